"""The kit's commands of palmctl."""
