"""The commands of `palmctl`, one file each; a file is imported only when its command runs."""
