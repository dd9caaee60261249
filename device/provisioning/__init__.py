"""How a device gets its keys, its trust and its first gallery, with a network or without."""
