"""Operations of the technician's socket for enrolment, preview and passages (`device.platform.roles`).

Pictures leave the core only here. The socket belongs to the group that maintains the device.
"""

from collections.abc import Callable
from typing import Final

from device.enrolment.consent import LANGUAGES, OPTIONAL, REQUIRED, TermsFolder
from device.enrolment.desk import EnrolmentDesk
from device.enrolment.preview import Preview
from device.enrolment.trial_pass import TrialPasses
from device.errors import IpcRefused
from device.health import NOT_SERVING, Health, HealthWord
from device.platform.ipc import Handler, Packet, reply, reply_with
from device.platform.roles import refusing
from device.values import control
from link1.errors import FormatError
from models.thresholds import Thresholds

_CAPTURE_NEEDS: Final = (
    HealthWord.REVOKED,
    HealthWord.MODEL_FAULT,
    HealthWord.MODEL_MISMATCH,
    HealthWord.CAMERA_FAULT,
)


def why_not_captured(health: Health) -> str:
    """Why no palm can be captured now; empty when one can."""
    details = health.details
    return next((details[word] for word in _CAPTURE_NEEDS if word in details), "")


def people_operations(  # noqa: C901 - one function an operation
    enrolment: EnrolmentDesk,
    preview: Preview,
    passes: TrialPasses,
    terms: TermsFolder,
    *,
    has_network: bool,
    online: Callable[[], bool],
    health: Health,
    thresholds: Callable[[], Thresholds],
) -> dict[str, Handler]:
    async def state(request: Packet) -> Packet:
        asked = control.ScreenAsked.from_obj(request.header)
        seq, shown = await enrolment.shown_after(asked.after, asked.wait_ms / 1000)
        return reply_with(control.ScreenAnswer(seq, shown, online(), enrolment.unready()))

    async def begin(request: Packet) -> Packet:
        if not has_network:
            raise IpcRefused("no_network", "this device has no [cloud], so a code cannot be exchanged here")
        _check_ready(health)
        enrolment.code_typed(control.CodeTyped.from_obj(request.header).short_code)
        return reply()

    async def show_terms(request: Packet) -> Packet:
        asked = control.TermsAsked.from_obj(request.header)
        text = terms.read(asked.terms_version, asked.language)
        if text is None:
            raise IpcRefused(
                "terms_unknown",
                f"there is no text of the terms {asked.terms_version} on this device; "
                f"put {asked.terms_version}.{LANGUAGES[0]}.txt into {terms.folder}",
            )
        return reply_with(control.TermsAnswer(text, tuple(REQUIRED)))

    async def accept(request: Packet) -> Packet:
        accepted = control.TermsAccepted.from_obj(request.header)
        most = len(REQUIRED) + len(OPTIONAL)
        if not 1 <= len(accepted.purposes) <= most:
            raise FormatError(f"member purposes is not an array of 1 to {most} items")
        enrolment.accept(accepted.terms_version, accepted.purposes)
        return reply()

    async def refuse(_request: Packet) -> Packet:
        enrolment.cancel("consent_refused")
        return reply()

    async def cancel(_request: Packet) -> Packet:
        enrolment.cancel()
        return reply()

    async def picture(request: Packet) -> Packet:
        made = await preview.picture(control.NextAsked.from_obj(request.header).wait_ms / 1000)
        if made is None:
            return reply_with(control.PictureAnswer(None))
        findings, jpeg = made
        limits = thresholds()
        floors = {
            "quality_q": limits.quality_q,
            "enrol_quality_q": limits.enrol_quality_q,
            "pad_q": limits.pad_q,
        }
        return reply_with(control.PictureAnswer(findings | {"floors": floors}), jpeg)

    async def next_passage(request: Packet) -> Packet:
        asked = control.NextAsked.from_obj(request.header)
        return reply_with(control.PassAnswer(await passes.next_passage(asked.wait_ms / 1000)))

    async def rehearse(request: Packet) -> Packet:
        _check_serving(health)
        _check_free(enrolment)
        asked = control.NextAsked.from_obj(request.header)
        passage = await passes.rehearse(asked.wait_ms / 1000)
        _check_free(enrolment)
        _check_serving(health)  # what came up while it waited for the hand counts too
        return reply_with(control.PassAnswer(passage))

    return refusing(
        {
            "enrolment.state": state,
            "enrolment.begin": begin,
            "enrolment.terms": show_terms,
            "enrolment.accept": accept,
            "enrolment.refuse": refuse,
            "enrolment.cancel": cancel,
            "preview.frame": picture,
            "pass.next": next_passage,
            "pass.rehearse": rehearse,
        }
    )


def _check_ready(health: Health) -> None:
    if reason := why_not_captured(health):
        raise IpcRefused("not_ready", reason)


def _check_free(enrolment: EnrolmentDesk) -> None:
    """While an enrolment captures, no hand comes to a rehearsal: it would be taken for the person's."""
    if enrolment.capturing:
        raise IpcRefused("busy", "an enrolment is using the camera; finish or cancel it first")


def _check_serving(health: Health) -> None:
    """A rehearsal says what the verdict would be; while every verdict abstains, it says why."""
    _check_ready(health)
    for word, detail in health.details.items():
        if word in NOT_SERVING:
            raise IpcRefused("not_ready", detail or str(word))
