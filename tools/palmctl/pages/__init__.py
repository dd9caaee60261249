"""Pages for a person in front of the device: on loopback only, with a secret in their address."""
