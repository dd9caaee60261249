"""Registration of a device: its keys, its trust and its configuration, with a network or without."""
