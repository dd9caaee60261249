"""What the transaction engine goes by: the times of LINK/1 §4, the service's settings, the device's state."""

from dataclasses import dataclass

from models.thresholds import Thresholds

EXPIRES_BEFORE_TTL_MS = 200
"""LINK/1 §4: with no hand, `error expired` goes out this long before the ttl ends."""
FINISHED_AFTER_TTL_MS = 1_000
"""LINK/1 §4: a hand that was there by then is finished this long after the ttl."""
CAPTURE_WINDOW_MS = 1_500
"""A hand that gives no decisive capture for so long is answered, rather than kept waiting."""
PASSING_BY_MS = 300
"""A hand that leaves sooner without a good capture was not meant for the reader."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What the signed configuration and the registration say.

    `attempts`: good captures before a rejection. `passage_sensor`: as registered, whatever `ready` says.
    """

    thresholds: Thresholds
    attempts: int
    decision_timeout_ms: int
    passage_timeout_ms: int
    passage_sensor: bool


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the device can do now. `camera`: it sees whether a hand is there. `recogniser`: model and stores
    work and the device is not revoked. `gallery`: there is one and it is within its TTL.
    """

    camera: bool
    recogniser: bool
    gallery: bool
