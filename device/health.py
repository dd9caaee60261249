"""What is wrong with the device, as a set of words that programs act on.

1. A word is present from `report(word, …)` until `clear(word)`; reporting it again only updates its detail.
2. `on_change` is called once for each change of the set of words, never for a change of detail.
3. The device serves while no word is present that takes away something a verdict needs.

The words go into the signed status of LINK/1 §4 and into reports to the service. The details stay on the
device.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""While one of these is present, every verdict abstains."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What a word means, and what a technician does about it. Each is one line of Markdown."""

    means: str
    do: str


ADVICE: Mapping[HealthWord, Advice] = {
    HealthWord.CAMERA_FAULT: Advice(
        "the camera delivers no frames",
        "check cable and power, then `[camera] source`; the device reopens the camera by itself. "
        "`palmctl doctor camera picture`",
    ),
    HealthWord.GALLERY_STALE: Advice(
        "no contact with the service for 6 h, or the gallery file went back to an earlier state "
        "(the detail says which)",
        "check the network and `palm-syncd`; without a network: does the validator carry mail? "
        "`palmctl doctor server gallery`",
    ),
    HealthWord.MODEL_FAULT: Advice(
        "the model does not load, or fails on every frame",
        "reinstall the package; see `palmctl doctor model`",
    ),
    HealthWord.MODEL_MISMATCH: Advice(
        "the gallery was made with another model",
        "install the gallery's model (`palmctl update status`), or ask the operator for a new epoch",
    ),
    HealthWord.STORE_FAULT: Advice(
        "the state directory cannot be read or written",
        "check disk, owner and free space: `palmctl doctor storage ownership`. Never delete `journal.db`",
    ),
    HealthWord.REVOKED: Advice(
        "the service has revoked this device",
        'the device has destroyed its gallery. Ask why; to use the board again see "Replacing a device"',
    ),
    HealthWord.ROLLED_BACK: Advice(
        "this device is in an earlier state than it was: an old card image, or a card that lost data",
        "do not keep using it: `palmctl factory-reset`, new token, provision again; if no old image was "
        "involved, on a new card",
    ),
    HealthWord.LINK_DOWN: Advice(
        "no validator has proved its identity",
        "check the cable, `[link] port` and the validator's power; compare the keys of both ends: "
        "`palmctl doctor cable validator`",
    ),
    HealthWord.OFFLINE: Advice(
        "the service cannot be reached; recognition continues for 6 h",
        "check network, TLS and server: `palmctl doctor server`",
    ),
    HealthWord.CLOCK_UNTRUSTED: Advice(
        "this clock and the service's differ by more than 300 s", "`timedatectl set-ntp true`"
    ),
    HealthWord.STORAGE_LOW: Advice(
        "less than 64 MiB is free",
        "`du -xh / \\| sort -h \\| tail`; verdicts that wait for upload need a network to leave",
    ),
    HealthWord.TEMPERATURE: Advice(
        "the board is at 80 °C or more and slows down", "shade, ventilation, heat sink"
    ),
    HealthWord.SENSOR_MISMATCH: Advice(
        "validator and registration disagree about a passage sensor",
        "correct one of them; provisioning has `--passage-sensor`",
    ),
    HealthWord.UPDATE_FAILED: Advice(
        "an update did not start, and the previous version runs again",
        "`palmctl update status`; nothing needs doing at the gate",
    ),
    HealthWord.KEY_UNATTESTED: Advice(
        "no factory certificate vouches for the keys; for information only", "–"
    ),
}
"""One entry for each word, those that stop recognition first. The tables in the documents are made from
it."""


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
