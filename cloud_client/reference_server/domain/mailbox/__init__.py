"""The inbox of a device: what is sealed into it, one seq after the other."""
