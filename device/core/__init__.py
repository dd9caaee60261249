"""palmd: the process with the camera, the keys and the cable."""
