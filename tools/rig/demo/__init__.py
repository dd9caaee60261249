"""The demonstration: every program of the project on one machine, telling one story."""
