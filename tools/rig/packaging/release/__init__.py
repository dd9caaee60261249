"""A release: one folder with everything that is given out for a version, and what proves where it is from."""
