"""Deterministic simulation: both ends, the carrier and the service in one process, one order, virtual
time."""
