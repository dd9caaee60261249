"""Everything that `link1` raises."""


class Link1Error(Exception):
    """Base of all errors of this package."""


class FormatError(Link1Error):
    """Bytes or members outside the contract. The message names the member, never a received value."""


class KeyFormatError(FormatError):
    """Key bytes that are no usable key: wrong length, no point, or a point of small or mixed order."""


class SignatureError(Link1Error):
    """The signature does not hold under the expected key, or names another key."""


class SealError(Link1Error):
    """A sealed record was refused.

    `code` is one of `bad_signature`, `unknown_signer`, `wrong_destination`, `wrong_source`,
    `wrong_box`, `hash_mismatch`, `length_mismatch`, `seq_conflict`, `unsupported_suite`, `malformed`.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TransportError(Link1Error):
    """A port cannot be opened or has gone away; the message says which and what to do."""


def reason_of(error: BaseException) -> str:
    """Why it failed, for the middle of a sentence: the system's words, else the error's own, else its kind.

    An OSError that a library raises often has a text and no errno, and then no `strerror`.
    """
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def is_not_permitted(error: BaseException) -> bool:
    """Whether it failed because this user may not: a PermissionError, or what was raised from one."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, PermissionError):
            return True
        found = found.__cause__
    return False
