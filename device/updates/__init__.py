"""New models and new software: received, judged, tried, and gone back from."""
