"""DemoFailed: the story went otherwise than it must; the message says where to look."""


class DemoFailed(Exception):
    """Something that the demonstration relies on did not happen."""
