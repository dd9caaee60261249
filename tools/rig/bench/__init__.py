"""Benches of a whole device: figures, each with a baseline of the same run."""
