"""The wipe and the factory reset: keys first, then everything else, completed after any interruption."""
