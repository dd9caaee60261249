"""What can go wrong between pixels and a vector."""


class ModelsError(Exception):
    """Anything this package refuses; the text says what was expected, what was found and what to do."""


class ModelFileError(ModelsError):
    """A model file is absent, has another SHA-256 than its manifest says, or fails its self test."""


class ManifestError(ModelsError):
    """A model's ``manifest.json`` is absent, unreadable, or has a wrong member."""


class PixelsError(ModelsError):
    """An image or a batch of crops has the wrong shape or data type."""
