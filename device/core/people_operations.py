"""The technician's socket, where people and pictures are concerned (`device.platform.control`'s table).

    enrolment.state   {after, wait_ms}              → seq, state (what a screen shows), unready, online
    enrolment.begin   {short_code}                  a code from the keypad
    enrolment.terms   {terms_version, language}     → terms: title, paragraphs, language
    enrolment.accept  {terms_version, purposes}     somebody accepts what stands on the screen
    enrolment.refuse, enrolment.cancel
    preview.frame     {wait_ms}                     → picture, and a JPEG as payload; picture null: none now
    pass.next         {wait_ms}                     → passage, or null
    pass.rehearse     {wait_ms}                     → passage, or null

Pictures leave the core here and nowhere else. The socket is the group's that may maintain the device.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from device.enrolment.consent import LANGUAGES, OPTIONAL, REQUIRED, TermsFolder
from device.enrolment.desk import EnrolmentDesk
from device.enrolment.preview import Preview
from device.enrolment.trial_pass import TrialPasses
from device.errors import EnrolmentRefused, IpcRefused
from device.health import Health, HealthWord
from device.platform.control import Operation
from device.platform.ipc import Packet, reply
from link1 import members
from link1.canonical import JsonObject
from link1.errors import FormatError
from link1.members import NAME
from models.thresholds import Thresholds

_CAPTURE_NEEDS: Final = (
    HealthWord.REVOKED,
    HealthWord.MODEL_FAULT,
    HealthWord.MODEL_MISMATCH,
    HealthWord.CAMERA_FAULT,
)
MAX_WAIT_MS: Final = 30_000
MAX_CODE_CHARACTERS: Final = 32


@dataclass(frozen=True, slots=True)
class PeopleParts:
    """What the operations work with. `unready` is empty, or says why nobody can be enrolled now."""

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
    return {name: _politely(partial(operation, parts)) for name, operation in operations.items()}


async def _state(parts: PeopleParts, request: Packet) -> Packet:
    wait_s = members.integer(request.header, "wait_ms", 0, MAX_WAIT_MS) / 1000
    seq, shown = await parts.enrolment.shown_after(members.integer(request.header, "after"), wait_s)
    return reply(seq=seq, state=shown, online=parts.online(), unready=parts.unready())


async def _begin(parts: PeopleParts, request: Packet) -> Packet:
    if not parts.has_network:
        raise IpcRefused("no_network", "this device has no [cloud], so a code cannot be exchanged here")
    if reason := parts.unready():
        raise IpcRefused("not_ready", reason)
    parts.enrolment.code_typed(_text(request.header, "short_code", MAX_CODE_CHARACTERS))
    return reply()


async def _terms(parts: PeopleParts, request: Packet) -> Packet:
    version = members.text(request.header, "terms_version", NAME)
    text = parts.terms.read(version, _text(request.header, "language", 16))
    if text is None:
        raise IpcRefused(
            "terms_unknown",
            f"there is no text of the terms {version} on this device; put {version}.{LANGUAGES[0]}.txt "
            f"into {parts.terms.folder}",
        )
    return reply(terms=text.to_obj(), required=list(REQUIRED))


async def _accept(parts: PeopleParts, request: Packet) -> Packet:
    version = members.text(request.header, "terms_version", NAME)
    given = members.array(request.header, "purposes", 1, len(REQUIRED) + len(OPTIONAL))
    parts.enrolment.accept(version, [str(purpose) for purpose in given])
    return reply()


async def _refuse(parts: PeopleParts, _request: Packet) -> Packet:
    parts.enrolment.cancel("consent_refused")
    return reply()


async def _cancel(parts: PeopleParts, _request: Packet) -> Packet:
    parts.enrolment.cancel()
    return reply()


async def _picture(parts: PeopleParts, request: Packet) -> Packet:
    wait_s = members.integer(request.header, "wait_ms", 0, MAX_WAIT_MS) / 1000
    made = await parts.preview.picture(wait_s)
    limits = parts.thresholds()
    floors = {"quality_q": limits.quality_q, "enrol_quality_q": limits.enrol_quality_q}
    if made is None:
        return reply(picture=None)
    told, jpeg = made
    return reply(jpeg, picture=told | {"floors": floors | {"pad_q": limits.pad_q}})


async def _next_passage(parts: PeopleParts, request: Packet) -> Packet:
    wait_s = members.integer(request.header, "wait_ms", 0, MAX_WAIT_MS) / 1000
    return reply(passage=await parts.passes.next_passage(wait_s))


async def _rehearse(parts: PeopleParts, request: Packet) -> Packet:
    if reason := parts.unready():
        raise IpcRefused("not_ready", reason)
    wait_s = members.integer(request.header, "wait_ms", 0, MAX_WAIT_MS) / 1000
    return reply(passage=await parts.passes.rehearse(wait_s))


def _politely(operation: Operation) -> Operation:
    """What cannot be done becomes a refusal that says why."""

    async def answer(request: Packet) -> Packet:
        try:
            return await operation(request)
        except EnrolmentRefused as error:
            raise IpcRefused(error.code, str(error)) from error
        except FormatError as error:
            raise IpcRefused("malformed", str(error)) from error

    return answer


def _text(header: JsonObject, name: str, longest: int) -> str:
    value: Any = members.member(header, name)
    if not isinstance(value, str) or len(value) > longest:
        raise FormatError(f"member {name} is not a string of at most {longest} characters")
    return value
