"""Benches of a whole device: figures, each beside a baseline of the same run."""
