"""What goes wrong on the rig itself, as opposed to what a scenario finds."""


class HilError(Exception):
    """The rig cannot be built, does not start or does not answer; the message says what to do."""
