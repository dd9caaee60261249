"""The effects of an enrolment: what a screen shows, requests to send, and the outcome."""

from dataclasses import dataclass, field
from enum import StrEnum

from device.values.recognition import HandName
from device.values.status import CaptureShown, EnrolmentShown
from link1.objects import GuideHint
from models.template_choice import MOST_TEMPLATES


class Step(StrEnum):
    """What the person or the device does now."""

    CHECKING_CODE = "checking_code"
    CONSENT = "consent"
    SHOW_HAND = "show_hand"
    REMOVE_HAND = "remove_hand"
    SENDING = "sending"


class CaptureHint(StrEnum):
    """Why the hand in view is not captured, in addition to the hints of the cable."""

    OTHER_HAND = "other_hand"
    TRY_AGAIN = "try_again"


def capture_shown(
    step: Step,
    hand: HandName | None = None,
    hint: GuideHint | CaptureHint | None = None,
    captured: int = 0,
    hands: tuple[HandName, ...] = (),
) -> EnrolmentShown:
    """The screen in any step but `consent`: the hand to show, a hint, and the number of its captures."""
    word = None if hint is None else hint.value
    return EnrolmentShown(step.value, capture=CaptureShown(hands, hand, word, captured, MOST_TEMPLATES))


@dataclass(frozen=True, slots=True)
class RedeemCode:
    """Exchange a short code for its session; the answer goes to `redeem_answered`."""

    request_id: int
    short_code: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Upload:
    """Send a body of `POST /v1/enrollments`; the answer goes to `answered`."""

    upload_id: int
    body: bytearray = field(repr=False)


@dataclass(frozen=True, slots=True)
class EnrolmentAccepted:
    """The service has accepted the enrolment; with `review` an operator must approve it first."""

    session_id: str
    review: bool


@dataclass(frozen=True, slots=True)
class EnrolmentFailed:
    """It ended without success. `session_id` is "" when a short code led to no session.

    `code`: capture_rejected, not_sent, cancelled, consent_refused, no_answer, not_ready, terms_unknown,
    unreachable, or the service's code.
    """

    session_id: str
    code: str


Effect = EnrolmentShown | RedeemCode | Upload | EnrolmentAccepted | EnrolmentFailed
