"""Devices: registration, keys, configuration, status, and their way to the gallery."""
