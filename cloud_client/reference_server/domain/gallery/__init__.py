"""The gallery stream of an environment: its log, its snapshots, and who waits for it."""
