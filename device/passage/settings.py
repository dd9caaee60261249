"""Inputs of the transaction engine: the times of LINK/1 §4, the service's settings, the device's state."""

from dataclasses import dataclass

from models.thresholds import Thresholds

EXPIRES_BEFORE_TTL_MS = 200
"""LINK/1 §4: without a hand, `error expired` is sent this long before the ttl ends."""
FINISHED_AFTER_TTL_MS = 1_000
"""LINK/1 §4: a hand that was in view by then is finished this long after the ttl."""
CAPTURE_WINDOW_MS = 1_500
"""After this time without a decisive capture the hand gets an answer."""
PASSING_BY_MS = 300
"""A hand that leaves sooner without a good capture was only passing by."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings from the signed configuration and the registration.

    `attempts`: good captures before a rejection. `passage_sensor`: as registered, regardless of `ready`.
    """

    thresholds: Thresholds
    attempts: int
    decision_timeout_ms: int
    passage_timeout_ms: int
    passage_sensor: bool


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the device can do now. `camera`: it sees whether a hand is in view. `recogniser`: model and stores
    work and the device is not revoked. `gallery`: there is one and it is within its TTL.
    """

    camera: bool
    recogniser: bool
    gallery: bool
