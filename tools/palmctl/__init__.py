"""The command line of a device: what technicians type."""
