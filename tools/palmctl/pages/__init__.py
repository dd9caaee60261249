"""Pages that a device shows to who stands before it: on loopback only, with a secret in their address."""
