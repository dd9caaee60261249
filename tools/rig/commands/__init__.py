"""The rig's commands of palmctl."""
