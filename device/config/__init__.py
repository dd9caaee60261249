"""The configuration file: read, described, changed."""
