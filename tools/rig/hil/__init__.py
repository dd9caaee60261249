"""`make hil`: a hardware rig made of software. See docs/HIL.md."""
