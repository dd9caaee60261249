"""Sealed records that the validator carries: what comes in, what goes out."""
