"""Whom the device believes, and the keys it holds itself."""
