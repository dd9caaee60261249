"""The last reports of camera, cable and carrier, and the health words that follow from them."""

from typing import Final

from cloud_client.contract import SIGNATURE_SKEW_S
from device.health import Health, HealthWord
from device.platform.clock import Clock
from device.values.carrier import CloudState
from device.vision.capture import CameraCondition, CameraState

OFFLINE_WORD: Final = "no [cloud] in the configuration: this device lives on the validator's mail"
"""Shown by `palmctl status` on a device without a network."""


class Hardware:
    """Every method runs on the loop's thread."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self.camera: CameraState | None = None
        """None before its first report."""
        self.cable_message = "the port has not been opened yet"
        """For a technician: "open", or why the port is not open."""

    def on_camera(self, state: CameraState) -> None:
        self.camera = state
        working = state.condition is CameraCondition.OK
        self._health.put(HealthWord.CAMERA_FAULT, not working, state.message)

    def on_port(self, error: Exception | None) -> None:
        """The port was opened, or cannot be."""
        self.cable_message = "open" if error is None else str(error)
        if error is not None:
            self._health.report(HealthWord.LINK_DOWN, str(error))


class ServiceLink:
    """Whether the service is reachable, as the carrier reports it, and the difference of its clock. Every
    method runs on the loop's thread."""

    def __init__(self, health: Health, clock: Clock, *, has_cloud: bool) -> None:
        self._health = health
        self._clock = clock
        self.state = CloudState(False, "palm-syncd has not reported yet" if has_cloud else OFFLINE_WORD)

    def link_state(self, state: CloudState) -> None:
        self.state = state
        self._health.put(HealthWord.OFFLINE, not state.online, state.detail)

    def server_time(self, wall_ms: int) -> None:
        """The service's clock (epoch ms), unsigned: used only for health."""
        apart_ms = abs(wall_ms - self._clock.wall_ms())
        self._health.put(
            HealthWord.CLOCK_UNTRUSTED,
            apart_ms > SIGNATURE_SKEW_S * 1000,
            f"this clock and the service's are {apart_ms // 1000} s apart; check time synchronisation",
        )
