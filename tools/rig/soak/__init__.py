"""Hours at a bad gate, in minutes: everything runs, everything fails, and nothing may be lost."""
