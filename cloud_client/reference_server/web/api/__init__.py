"""The API: its operations, and the checks that every request passes."""
