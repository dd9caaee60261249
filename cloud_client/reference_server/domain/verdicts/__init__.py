"""Verdicts: taken from devices, reconciled, shown to the partner."""
