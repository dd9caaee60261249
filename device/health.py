"""What is wrong with the device, as a set of words that others act on.

1. A word stands from `report(word, …)` until `clear(word)`; reporting it again only renews its detail.
2. `on_change` is told once for each change of the set of words, never for a change of detail.
3. The device serves while no word stands that takes away something a verdict needs.

The words go into the signed status of LINK/1 §4 and into reports to the service; the details, which may
say more, stay on the device.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType


class HealthWord(StrEnum):
    """The words that the device itself raises; the set is open at the other ends."""

    KEY_UNATTESTED = "KEY_UNATTESTED"
    GALLERY_STALE = "GALLERY_STALE"
    CLOCK_UNTRUSTED = "CLOCK_UNTRUSTED"
    MODEL_MISMATCH = "MODEL_MISMATCH"
    MODEL_FAULT = "MODEL_FAULT"
    CAMERA_FAULT = "CAMERA_FAULT"
    STORE_FAULT = "STORE_FAULT"
    LINK_DOWN = "LINK_DOWN"
    STORAGE_LOW = "STORAGE_LOW"
    TEMPERATURE = "TEMPERATURE"
    SENSOR_MISMATCH = "SENSOR_MISMATCH"
    OFFLINE = "OFFLINE"
    REVOKED = "REVOKED"
    ROLLED_BACK = "ROLLED_BACK"
    UPDATE_FAILED = "UPDATE_FAILED"


NOT_SERVING = frozenset(
    {
        HealthWord.GALLERY_STALE,
        HealthWord.MODEL_MISMATCH,
        HealthWord.MODEL_FAULT,
        HealthWord.CAMERA_FAULT,
        HealthWord.STORE_FAULT,
        HealthWord.REVOKED,
        HealthWord.ROLLED_BACK,
    }
)
"""With one of these every verdict would abstain."""


class Health:
    """The set of standing words. `on_change` gets the sorted words after each change of the set."""

    def __init__(
        self,
        on_change: Callable[[tuple[HealthWord, ...]], None],
        standing: Mapping[HealthWord, str] = MappingProxyType({}),
    ) -> None:
        """`standing`: the words from the start, with their details."""
        self._on_change = on_change
        self._details = dict(standing)

    @property
    def words(self) -> tuple[HealthWord, ...]:
        return tuple(sorted(self._details))

    @property
    def details(self) -> dict[HealthWord, str]:
        """A copy: word to what a technician should know and do."""
        return dict(sorted(self._details.items()))

    @property
    def serving(self) -> bool:
        return NOT_SERVING.isdisjoint(self._details)

    def report(self, word: HealthWord, detail: str = "") -> bool:
        """Raise `word`; True when it did not stand before."""
        known = word in self._details
        self._details[word] = detail
        if not known:
            self._on_change(self.words)
        return not known

    def clear(self, word: HealthWord) -> bool:
        """Take `word` back; True when it stood."""
        if self._details.pop(word, None) is None:
            return False
        self._on_change(self.words)
        return True

    def put(self, word: HealthWord, standing: bool, detail: str = "") -> bool:
        """`report` or `clear`, by a condition that is looked at again and again."""
        return self.report(word, detail) if standing else self.clear(word)
