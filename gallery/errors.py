"""What can go wrong in the gallery. A refused page changes nothing: the gallery keeps its position."""

from enum import StrEnum


class RefusalCode(StrEnum):
    """Why a page or a head was not taken."""

    MALFORMED = "malformed"
    BAD_SIGNATURE = "bad_signature"
    WRONG_STREAM = "wrong_stream"
    WRONG_EPOCH = "wrong_epoch"
    ROLLBACK = "rollback"
    FREEZE = "freeze"
    GAP = "gap"
    BAD_CHAIN = "bad_chain"
    STATE_MISMATCH = "state_mismatch"


_SUPERSEDED = frozenset({RefusalCode.ROLLBACK, RefusalCode.FREEZE})


class GalleryError(Exception):
    """Root of everything this package raises on purpose."""


class PageRefused(GalleryError):
    """A page, entry, delta or head that is not taken."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code

    @property
    def superseded(self) -> bool:
        """True when it is merely older than what is held: a carrier may drop it and go on."""
        return self.code in _SUPERSEDED


class StoreError(GalleryError):
    """The store cannot be opened or read, or what it holds fails its own checks."""


class Overtaken(GalleryError):
    """What a search had found was changed on the disk before it was read."""


class ProbeError(GalleryError, ValueError):
    """Not a (n, 512) float32 array of finite vectors that have a direction."""
