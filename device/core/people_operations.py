"""Operations of the technician's socket for enrolment, preview and passages (`device.platform.control`).

    enrolment.state   ScreenAsked     → ScreenAnswer
    enrolment.begin   CodeTyped       a code from the keypad
    enrolment.terms   TermsAsked      → TermsAnswer
    enrolment.accept  TermsAccepted   the person accepts what is on the screen
    enrolment.refuse, enrolment.cancel
    preview.frame     NextAsked    → PictureAnswer, with a JPEG
    pass.next         NextAsked       → PassAnswer
    pass.rehearse     NextAsked       → PassAnswer

Pictures leave the core only here. The socket belongs to the group that maintains the device.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from device.enrolment.consent import LANGUAGES, OPTIONAL, REQUIRED, TermsFolder
from device.enrolment.desk import EnrolmentDesk
from device.enrolment.preview import Preview
from device.enrolment.trial_pass import TrialPasses
from device.errors import EnrolmentRefused, IpcRefused
from device.health import Health, HealthWord
from device.platform.control import Operation
from device.platform.ipc import Packet, reply
from device.values.control import (
    CodeTyped,
    NextAsked,
    PassAnswer,
    PictureAnswer,
    ScreenAnswer,
    ScreenAsked,
    TermsAccepted,
    TermsAnswer,
    TermsAsked,
)
from device.values.wire import reply_with
from link1.errors import FormatError
from models.thresholds import Thresholds

_CAPTURE_NEEDS: Final = (
    HealthWord.REVOKED,
    HealthWord.MODEL_FAULT,
    HealthWord.MODEL_MISMATCH,
    HealthWord.CAMERA_FAULT,
)


@dataclass(frozen=True, slots=True)
class PeopleParts:
    """What the operations work with. `unready` says why no enrolment is possible now, else it is empty."""

    enrolment: EnrolmentDesk
    preview: Preview
    passes: TrialPasses
    terms: TermsFolder
    has_network: bool
    online: Callable[[], bool]
    unready: Callable[[], str]
    thresholds: Callable[[], Thresholds]


def why_not_captured(health: Health) -> str:
    """Why no palm can be captured now; empty when one can."""
    details = health.details
    return next((details[word] for word in _CAPTURE_NEEDS if word in details), "")


def people_operations(parts: PeopleParts) -> dict[str, Operation]:
    """The operations by name."""
    operations: dict[str, Callable[[PeopleParts, Packet], Awaitable[Packet]]] = {
        "enrolment.state": _state,
        "enrolment.begin": _begin,
        "enrolment.terms": _terms,
        "enrolment.accept": _accept,
        "enrolment.refuse": _refuse,
        "enrolment.cancel": _cancel,
        "preview.frame": _picture,
        "pass.next": _next_passage,
        "pass.rehearse": _rehearse,
    }
    return {name: _refusing(partial(operation, parts)) for name, operation in operations.items()}


async def _state(parts: PeopleParts, request: Packet) -> Packet:
    asked = ScreenAsked.from_obj(request.header)
    seq, shown = await parts.enrolment.shown_after(asked.after, asked.wait_ms / 1000)
    return reply_with(ScreenAnswer(seq, shown, parts.online(), parts.unready()))


async def _begin(parts: PeopleParts, request: Packet) -> Packet:
    if not parts.has_network:
        raise IpcRefused("no_network", "this device has no [cloud], so a code cannot be exchanged here")
    if reason := parts.unready():
        raise IpcRefused("not_ready", reason)
    parts.enrolment.code_typed(CodeTyped.from_obj(request.header).short_code)
    return reply()


async def _terms(parts: PeopleParts, request: Packet) -> Packet:
    asked = TermsAsked.from_obj(request.header)
    text = parts.terms.read(asked.terms_version, asked.language)
    if text is None:
        raise IpcRefused(
            "terms_unknown",
            f"there is no text of the terms {asked.terms_version} on this device; "
            f"put {asked.terms_version}.{LANGUAGES[0]}.txt into {parts.terms.folder}",
        )
    return reply_with(TermsAnswer(text, tuple(REQUIRED)))


async def _accept(parts: PeopleParts, request: Packet) -> Packet:
    accepted = TermsAccepted.from_obj(request.header)
    most = len(REQUIRED) + len(OPTIONAL)
    if not 1 <= len(accepted.purposes) <= most:
        raise FormatError(f"member purposes is not an array of 1 to {most} items")
    parts.enrolment.accept(accepted.terms_version, accepted.purposes)
    return reply()


async def _refuse(parts: PeopleParts, _request: Packet) -> Packet:
    parts.enrolment.cancel("consent_refused")
    return reply()


async def _cancel(parts: PeopleParts, _request: Packet) -> Packet:
    parts.enrolment.cancel()
    return reply()


async def _picture(parts: PeopleParts, request: Packet) -> Packet:
    made = await parts.preview.picture(NextAsked.from_obj(request.header).wait_ms / 1000)
    limits = parts.thresholds()
    floors = {"quality_q": limits.quality_q, "enrol_quality_q": limits.enrol_quality_q}
    if made is None:
        return reply_with(PictureAnswer(None))
    findings, jpeg = made
    return reply_with(PictureAnswer(findings | {"floors": floors | {"pad_q": limits.pad_q}}), jpeg)


async def _next_passage(parts: PeopleParts, request: Packet) -> Packet:
    asked = NextAsked.from_obj(request.header)
    return reply_with(PassAnswer(await parts.passes.next_passage(asked.wait_ms / 1000)))


async def _rehearse(parts: PeopleParts, request: Packet) -> Packet:
    if reason := parts.unready():
        raise IpcRefused("not_ready", reason)
    asked = NextAsked.from_obj(request.header)
    return reply_with(PassAnswer(await parts.passes.rehearse(asked.wait_ms / 1000)))


def _refusing(operation: Operation) -> Operation:
    """`operation`, with its errors as refusals."""

    async def answer(request: Packet) -> Packet:
        try:
            return await operation(request)
        except EnrolmentRefused as error:
            raise IpcRefused(error.code, str(error)) from error
        except FormatError as error:
            raise IpcRefused("malformed", str(error)) from error

    return answer
