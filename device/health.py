"""What is wrong with the device, as a set of words that programs act on.

1. A word is present from `report(word, …)` until `clear(word)`; reporting it again only updates its detail.
2. `on_change` is called once for each change of the set of words, never for a change of detail.
3. The device serves while no word is present that takes away something a verdict needs.

The words go into the signed status of LINK/1 §4 and into reports to the service. The details stay on the
device.
"""

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType


class HealthWord(StrEnum):
    """The words that the device itself raises; receivers accept words they do not know."""

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
"""While one of these is present no one is recognised: verdicts abstain, or with STORE_FAULT and ROLLED_BACK
cannot be kept, and the request ends as expired."""


class Health:
    """The set of words that are present. `on_change` gets them, sorted, after each change of the set."""

    def __init__(
        self,
        on_change: Callable[[tuple[HealthWord, ...]], None],
        initial: Mapping[HealthWord, str] = MappingProxyType({}),
    ) -> None:
        """`initial`: the words present at the start, with their details."""
        self._on_change = on_change
        self._details = dict(initial)

    @property
    def words(self) -> tuple[HealthWord, ...]:
        return tuple(sorted(self._details))

    @property
    def details(self) -> dict[HealthWord, str]:
        """A copy: each word with what a technician should know and do."""
        return dict(sorted(self._details.items()))

    @property
    def serving(self) -> bool:
        return NOT_SERVING.isdisjoint(self._details)

    def report(self, word: HealthWord, detail: str = "") -> None:
        """Raise `word`."""
        known = word in self._details
        self._details[word] = detail
        if not known:
            self._on_change(self.words)

    def clear(self, word: HealthWord) -> None:
        """Take `word` back."""
        if self._details.pop(word, None) is not None:
            self._on_change(self.words)

    def put(self, word: HealthWord, present: bool, detail: str = "") -> None:
        """`report` or `clear`, by the result of a check that runs repeatedly."""
        if present:
            self.report(word, detail)
        else:
            self.clear(word)
