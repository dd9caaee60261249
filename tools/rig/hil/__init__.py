"""`make hil`: a hardware rig made of software. See docs/lab/HIL.md."""
