"""How enrolment, preview and trial passages are put together, for `device.core.main`."""

import asyncio
from dataclasses import dataclass

from device.core.carrier_api import CarrierDesk
from device.core.core import Core
from device.core.people_control import PeopleParts, people_operations
from device.enrolment.consent import TermsFolder, shipped_terms_dir
from device.enrolment.desk import EnrolmentDesk
from device.enrolment.flow import EnrolmentFlow
from device.enrolment.preview import Preview
from device.health import HealthWord
from device.platform.clock import Clock
from device.platform.control import Operation

_CAPTURE_NEEDS = (
    HealthWord.REVOKED,
    HealthWord.MODEL_FAULT,
    HealthWord.MODEL_MISMATCH,
    HealthWord.CAMERA_FAULT,
)


@dataclass(frozen=True, slots=True)
class People:
    """What has to do with people before the camera, besides the gate."""

    enrolment: EnrolmentDesk
    preview: Preview
    operations: dict[str, Operation]


def make_people(core: Core, desk: CarrierDesk, clock: Clock) -> People:
    """On the loop, before `core.start`."""
    opened = core.opened
    settings = opened.config.enrolment
    terms = TermsFolder(
        settings.terms_dir or shipped_terms_dir(), settings.terms_version or core.trust.terms_version
    )
    flow = EnrolmentFlow(
        opened.model_id,
        lambda: core.policy.thresholds,
        agree_cosine=opened.agree_cosine,
        terms=terms if settings.consent == "screen" else None,
        qr_hands=settings.hands,
    )

    def unready() -> str:
        """Why no palm can be captured now; empty when one can."""
        details = core.health.details
        return next((details[word] for word in _CAPTURE_NEEDS if word in details), "")

    enrolment = EnrolmentDesk(
        flow, desk.enrolments, desk.redeems, clock, on_change=core.choose_interest, unready=unready
    )
    preview = Preview(asyncio.get_running_loop(), clock.monotonic_ms, core.choose_interest)
    parts = PeopleParts(
        enrolment=enrolment,
        preview=preview,
        passes=core.passes,
        terms=terms,
        has_network=opened.config.cloud is not None,
        online=lambda: core.cloud.online,
        unready=unready,
        thresholds=lambda: core.policy.thresholds,
    )
    return People(enrolment, preview, people_operations(parts))
