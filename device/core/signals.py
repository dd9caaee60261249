"""Reports to the core from parts that are made before it."""

from collections.abc import Callable
from dataclasses import dataclass, field


class Signal:
    """Calls every subscriber, in the order of subscription."""

    def __init__(self) -> None:
        self._subscribers: list[Callable[[], None]] = []

    def subscribe(self, call: Callable[[], None]) -> None:
        self._subscribers.append(call)

    def __call__(self) -> None:
        for call in self._subscribers:
            call()


@dataclass(frozen=True, slots=True)
class CoreSignals:
    """The parts call them; the core subscribes when it is made."""

    health_changed: Signal = field(default_factory=Signal)
    """The set of health words has changed."""
    validator_keys_changed: Signal = field(default_factory=Signal)
    """The validator keys that count have changed."""
    policy_changed: Signal = field(default_factory=Signal)
    """Another configuration is in force."""
    interest_changed: Signal = field(default_factory=Signal)
    """Another part needs the camera, or none does."""
    cable_queued: Signal = field(default_factory=Signal)
    """Something was queued for the cable, or a deadline has changed."""
