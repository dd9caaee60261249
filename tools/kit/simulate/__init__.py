"""A simulated validator."""
