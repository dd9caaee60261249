"""Threads that look: frames from the camera, and what recognition makes of them."""
