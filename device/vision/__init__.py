"""The capture and inference threads, and recognition."""
