"""The end of a device: keys first, then everything else, whatever interrupts it."""
