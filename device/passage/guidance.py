"""Which hints go out, and how often: at most five a second (LINK/1 §4, guide)."""

from link1.objects import GuideHint

_MIN_GAP_MS = 200
_REPEAT_MS = 1_000
"""A hint is one unacknowledged frame: what still holds is said again, in case that frame was lost."""


class Guidance:
    """Decides whether a hint is worth a frame now."""

    def __init__(self) -> None:
        self._last: tuple[str, GuideHint] | None = None
        self._last_ms: int | None = None

    def wants(self, txn_id: str, hint: GuideHint, now_ms: int) -> bool:
        """True when `hint` shall go out now; it then counts as sent."""
        if self._last_ms is not None:
            gap_ms = now_ms - self._last_ms
            if gap_ms < _MIN_GAP_MS or (self._last == (txn_id, hint) and gap_ms < _REPEAT_MS):
                return False
        self._last = (txn_id, hint)
        self._last_ms = now_ms
        return True
