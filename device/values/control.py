"""Requests of a technician and of a totem's screen to the core, and the answers. Both sockets use the same
objects; the status is in `device.values.status`."""

import re
from dataclasses import field
from typing import Annotated, Final

from device.values.status import EnrolmentShown, UpdatesStatus
from link1.canonical import JsonObject
from link1.members import NAME
from link1.objects import Pad
from link1.wire import Between, WireObject

LONGEST_WAIT_MS: Final = 30_000
"""A request that waits for an event is answered after at most this time."""

_AT_MOST_16, _AT_MOST_32 = re.compile(r"(?s).{0,16}"), re.compile(r"(?s).{0,32}")

WaitMs = Annotated[int, Between(0, LONGEST_WAIT_MS)]


class ScreenAsked(WireObject):
    """`enrolment.state`: what the screen shows, as soon as its number differs from `after` or `wait_ms` is
    over."""

    after: Annotated[int, Between(0)]
    wait_ms: WaitMs


class ScreenAnswer(WireObject):
    """`unready` says why no enrolment is possible now, else it is empty. `online`: the service is
    reachable."""

    seq: int
    state: EnrolmentShown
    online: bool
    unready: str


class CodeTyped(WireObject):
    """`enrolment.begin`: a code from the keypad."""

    short_code: Annotated[str, _AT_MOST_32]


class TermsAsked(WireObject):
    """`enrolment.terms`: the text of a version, in a language such as pt-BR."""

    terms_version: Annotated[str, NAME]
    language: Annotated[str, _AT_MOST_16]


class TermsShown(WireObject):
    """The text of one version in one language."""

    terms_version: str
    language: str
    title: str
    paragraphs: tuple[str, ...]


class TermsAnswer(WireObject):
    """`required`: the purposes that must be accepted."""

    terms: TermsShown
    required: tuple[str, ...]


class TermsAccepted(WireObject):
    """`enrolment.accept`: the person accepts what is on the screen."""

    terms_version: Annotated[str, NAME]
    purposes: tuple[str, ...]


class NextAsked(WireObject):
    """`preview.frame`, `pass.next`, `pass.rehearse`: the next one, or none when `wait_ms` is over."""

    wait_ms: WaitMs


class PictureAnswer(WireObject):
    """With a JPEG. `picture`: what was seen in it (`device.enrolment.preview`); null when there is none."""

    picture: JsonObject | None


class VerdictSent(WireObject):
    """The verdict of a real passage."""

    verdict_seq: int
    verdict_ref: str


class Rehearsed(WireObject):
    """The additional members of a rehearsal."""

    best_score_q: int
    margin_q: int
    subject_ref: str | None
    hand: str | None
    hints: tuple[str, ...]
    thr_id: str


class TrialPassage(WireObject):
    """A passage shown to a technician. `stages_us`: name and microseconds, in the order they ran."""

    rehearsal: bool
    decision: str
    result: str
    score_q: int
    quality_q: int
    pad: Pad
    attempts: int
    total_us: int
    stages_us: tuple[tuple[str, int], ...]
    verdict: VerdictSent | None = field(default=None, metadata={"flat": VerdictSent})
    rehearsed: Rehearsed | None = field(default=None, metadata={"flat": Rehearsed})


class PassAnswer(WireObject):
    """`passage` is null when there was none in time."""

    passage: TrialPassage | None


class UpdatesAnswer(WireObject):
    """The answer to `update.status`, `update.rollback` and `update.manifest`, which carries a signed one."""

    updates: UpdatesStatus


class ChunkGiven(WireObject):
    """`update.chunk`, with the bytes of chunk `index`."""

    release_seq: Annotated[int, Between(1)]
    index: Annotated[int, Between(0)]


class DeviceNamed(WireObject):
    """`factory_reset`, `update.rollback`: destructive requests name the device."""

    device_id: str
