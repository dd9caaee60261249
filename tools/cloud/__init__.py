"""The commands of the reference server."""
