"""What can go wrong while a package is built."""


class PackagingError(Exception):
    """The package cannot be built; the text says what was expected, what was found and what to do."""
