"""How well a model tells palms apart. Never on a device."""
