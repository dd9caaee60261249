"""The published vectors of LINK/1."""
