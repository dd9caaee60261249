"""Pinned trust, and the device's own keys."""
