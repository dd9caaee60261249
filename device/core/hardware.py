"""The last reports of camera and cable, and the health words that follow from them."""

from device.health import Health, HealthWord
from device.vision.capture import CameraCondition, CameraState


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
