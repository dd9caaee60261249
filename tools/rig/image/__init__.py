"""An image that makes a gate of a board: Debian, the package, and a first boot that provisions it."""
