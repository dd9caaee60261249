"""The latency bench of a technician's own board."""
