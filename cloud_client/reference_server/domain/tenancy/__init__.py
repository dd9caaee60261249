"""Tenants, the service's signing keys, and persons as they are sealed."""
