"""What an enrolment is told of the frames, and what it wants done and shown."""

from dataclasses import dataclass, field
from enum import StrEnum

from device.enrolment.consent import Asked
from device.values.recognition import HandName
from link1.objects import GuideHint
from models.template_choice import MOST_TEMPLATES


class Step(StrEnum):
    """What the person is to do, or what is being done."""

    CHECKING_CODE = "checking_code"
    CONSENT = "consent"
    SHOW_HAND = "show_hand"
    REMOVE_HAND = "remove_hand"
    SENDING = "sending"


class CaptureHint(StrEnum):
    """Why the hand in view is not taken, besides the hints of the cable."""

    OTHER_HAND = "other_hand"
    TRY_AGAIN = "try_again"


@dataclass(frozen=True, slots=True)
class Prompt:
    """To be shown: the step, the hand asked for, a hint, and how many captures of it there are.

    `hands`: all that are asked for, in order. `asked`: what stands on the screen in the step `consent`.
    """

    step: Step
    hand: HandName | None = None
    hint: GuideHint | CaptureHint | None = None
    captured: int = 0
    wanted: int = MOST_TEMPLATES
    hands: tuple[HandName, ...] = field(default=(), compare=False)
    asked: Asked | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Redeem:
    """A short code to exchange for its session; the answer comes back through `redeem_answered`."""

    request_id: int
    short_code: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Upload:
    """A body of `POST /v1/enrollments` to deliver; its answer comes back through `answered`."""

    upload_id: int
    body: bytearray = field(repr=False)


@dataclass(frozen=True, slots=True)
class Done:
    """The service has taken the enrolment; with `review` an operator must approve it first."""

    session_id: str
    review: bool
    subject_ref: str | None


@dataclass(frozen=True, slots=True)
class Failed:
    """It ended without success. `session_id` is "" where a short code led to none.

    `code`: capture_rejected, not_sent, cancelled, consent_refused, no_answer, terms_unknown, unreachable, or
    the service's word.
    """

    session_id: str
    code: str


Effect = Prompt | Redeem | Upload | Done | Failed
