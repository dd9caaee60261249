"""palmd: everything that has the camera, the keys and the cable, put together in one process."""
