"""The hardware of the rig: a camera that shows chosen films, and a cable that can be pulled out."""

import json
from collections.abc import Callable
from typing import Any

from tools.palmctl.bench.board import DBD_ID, GATE_ID
from tools.rig.hil.errors import HilError
from tools.rig.hil.films import BYTES_A_PIXEL
from tools.rig.hil.machine import Machine, MachineProgram
from tools.rig.hil.machine_device import VALIDATOR_KEY, VALIDATOR_PORT, MachineDevice
from tools.rig.packaging import kit_copy

WIDTH_PX, HEIGHT_PX = 640, 480
START_WITHIN_S = 60.0
VERDICT_WITHIN_S = 20.0
HEALTH_WITHIN_S = 20.0
OUTPUT_FPS = 36
"""The slowest timing that vivid takes at this size."""
USUAL_DROPS = 60
"""Percent of the pictures that the camera leaves out, so that it gives about 15 a second."""
REPEAT = 4
"""How often each picture of a film is shown: a hand is held still for almost three seconds."""
TTL_MS = 60_000
_VIVID = (
    *("n_devs=1", "node_types=0x101", "num_inputs=1", "input_types=3"),
    *("num_outputs=1", "output_types=1"),
)
"""One HDMI capture and one HDMI output; with loop_video what goes into the one comes out of the other."""
_CABLE_PORT = ("/sys/kernel/config/usb_gadget/palm-access/UDC", "dummy_udc.0")
"""Who writes the controller's name into the file plugs the gadget in."""
_BULK_PORT = ("/sys/kernel/config/usb_gadget/palm-bulk/UDC", "dummy_udc.1")
_CAMERA_IS_OPEN = "ls -l /proc/$(systemctl show palmd --property=MainPID --value)/fd | grep -q /dev/video"
_POLL_S = 0.1


class ScenarioFailed(Exception):
    """The device did not do what it must; the message says what was waited for."""


class Rig:
    """Camera, cable and validator around a device that runs in the machine.

    Every wait is by the machine's clock, which goes slower than the host's: `within_s` is a device's time.
    """

    def __init__(self, machine: Machine, stage: MachineDevice) -> None:
        self.machine = machine
        self._stage = stage
        self._validator: MachineProgram | None = None
        self._seen = 0
        self._cable = _CABLE_PORT
        self._bulk: MachineProgram | None = None
        self.verdicts: list[dict[str, Any]] = []
        """Every verdict that the validator has reported, in order."""

    # ---- camera

    def plug_camera(self) -> None:
        """Load vivid and join its output to its capture; only then let udev tell of it, because a camera has
        its timing before any program opens it. When palmd has opened it, the empty scene is shown."""
        machine = self.machine
        machine.run("udevadm", "control", "--stop-exec-queue")
        machine.run("modprobe", "vivid", *_VIVID)
        timing = f"cvt,width={WIDTH_PX},height={HEIGHT_PX},fps={OUTPUT_FPS}"
        output, capture = self._node("vid-out"), self._node("vid-cap")
        for node in (capture, output):
            machine.run("v4l2-ctl", "-d", node, f"--set-dv-bt-timings={timing}")
        self.set_camera("loop_video=1,osd_text_mode=2")
        self.drop_pictures(USUAL_DROPS)
        machine.run("udevadm", "control", "--start-exec-queue")
        self.wait_run("palmd to open the camera", START_WITHIN_S, "sh", "-c", _CAMERA_IS_OPEN)
        machine.sleep(1.0)  # between opening and choosing a format
        # What goes out must have the format that palmd has chosen, or vivid joins nothing.
        told = machine.run("v4l2-ctl", "-d", capture, "--get-fmt-video").stdout
        pixels = next((name for name in BYTES_A_PIXEL if f"'{name}'" in told), None)
        if pixels is None:
            raise HilError(f"palmd chose a format for which there are no films: {told}")
        machine.run("v4l2-ctl", "-d", output, f"--set-fmt-video-out=pixelformat={pixels}")
        size = WIDTH_PX * HEIGHT_PX * BYTES_A_PIXEL[pixels]
        machine.ask("screen", node=output, films=f"/hil/films/{pixels}", picture_bytes=size)

    def unload_camera(self) -> None:
        """Take the driver away, once no process holds it."""
        self.wait_run("the camera driver to be let go", 20, "modprobe", "-r", "vivid")

    @property
    def capture_node(self) -> str:
        return self._node("vid-cap")

    def _node(self, kind: str) -> str:
        listed = self.machine.run("sh", "-c", "grep -H . /sys/class/video4linux/*/name").stdout
        for line in listed.splitlines():
            path, name = line.split(":", 1)
            if name.endswith(kind):
                return "/dev/" + path.split("/")[-2]
        raise HilError(f"vivid made no node {kind}")

    def set_camera(self, controls: str) -> float:
        """Set controls of the capture; when that was done, by the machine's clock."""
        self.machine.run("v4l2-ctl", "-d", self.capture_node, f"--set-ctrl={controls}")
        return self.machine.now_s()

    def drop_pictures(self, percent: int) -> float:
        """Let the camera leave out so many of its pictures; when that was done."""
        return self.set_camera(f"percentage_of_dropped_buffers={percent}")

    def show(self, film: str) -> float:
        """Show a film; when it began, by the machine's clock."""
        return float(self.machine.ask("play", film=film, repeat=REPEAT)["at_s"])

    def wait_empty(self) -> None:
        """Until the film is over."""
        self.wait("the film to end", 60, lambda: self.machine.ask("shown")["waiting"] == 0)
        self.machine.sleep(
            1.5
        )  # by the contract the hand must be seen to have left; what is there is not announced

    # ---- cable

    def plug_cable(self) -> float:
        gadget, controller = self._cable
        return self.machine.write(gadget, controller + "\n")

    def unplug_cable(self) -> float:
        """As pulling the plug: the host's side disappears, the gadget's loses its host."""
        return self.machine.write(self._cable[0], "\n")

    def start_bulk(self, mode: str) -> None:
        """The other gadget, of two bulk endpoints: from here on it is the cable, and plugged in."""
        self.stop_bulk()
        self._cable = _BULK_PORT
        self._bulk = self.machine.spawn("bulk", ["/usr/bin/python3", "-m", "tools.rig.hil.bulk_gadget", mode])
        self.wait("the endpoints", START_WITHIN_S, lambda: bool(self._bulk_lines()))
        self.plug_cable()

    def stop_bulk(self) -> list[str]:
        """End it, and what it had printed after its first line."""
        if self._bulk is None:
            return []
        self.unplug_cable()
        lines = self._bulk_lines()[1:]
        self._bulk.stop()
        self._bulk = None
        return lines

    def _bulk_lines(self) -> list[str]:
        return [] if self._bulk is None else [line.text for line in self._bulk.read()]

    # ---- validator

    def start_validator(self, port: str = VALIDATOR_PORT) -> None:
        self._seen = 0
        self._validator = self.machine.spawn(
            "validator",
            [
                *(str(kit_copy.PALMCTL), "dbd", "simulate", "--json", "--port", port),
                *("--device-pub-b64", self._stage.verdict_key_b64, "--key-file", str(VALIDATOR_KEY)),
                *("--dbd-id", DBD_ID, "--gate-id", GATE_ID, "--ttl-ms", str(TTL_MS)),
            ],
        )

    def stop_validator(self) -> None:
        if self._validator is not None:
            self._validator.stop()
            self._validator = None

    def await_line(
        self, what: str, within_s: float, wanted: Callable[[dict[str, Any]], bool]
    ) -> tuple[float, dict[str, Any]]:
        """The next line of the validator's that is `wanted`, and when it came; lines before it are passed
        over. Raises ScenarioFailed."""
        deadline_s = self.machine.now_s() + within_s
        if self._validator is None:
            raise HilError("no validator runs")
        while True:
            lines = self._validator.read()
            while self._seen < len(lines):
                line = lines[self._seen]
                self._seen += 1
                try:
                    told = json.loads(line.text)
                except ValueError:
                    raise HilError(f"the validator said: {line.text}") from None
                if "verdict_seq" in told:
                    self.verdicts.append(told)
                if wanted(told):
                    return line.at_s, told
            if self.machine.now_s() > deadline_s:
                last = [line.text[:200] for line in lines[-4:]]
                raise ScenarioFailed(f"no {what} within {within_s:.0f} s; the validator's last lines: {last}")
            self.machine.sleep(_POLL_S)

    def await_event(self, name: str, within_s: float) -> tuple[float, dict[str, Any]]:
        return self.await_line(name, within_s, lambda told: told.get("event") == name)

    def await_verdict(self) -> tuple[float, dict[str, Any]]:
        return self.await_line("verdict", VERDICT_WITHIN_S, lambda told: "verdict_seq" in told)

    def await_camera_fault(self, stands: bool) -> float:
        """Until a signed status has, or no longer has, CAMERA_FAULT; when it came."""

        def tells(told: dict[str, Any]) -> bool:
            return told.get("event") == "status" and ("CAMERA_FAULT" in told["health"]) is stands

        what = f"status {'with' if stands else 'without'} CAMERA_FAULT"
        return self.await_line(what, HEALTH_WITHIN_S, tells)[0]

    # ---- waiting

    def wait(self, what: str, within_s: float, ready: Callable[[], bool]) -> None:
        deadline_s = self.machine.now_s() + within_s
        while not ready():
            if self.machine.now_s() > deadline_s:
                raise ScenarioFailed(f"waited {within_s:.0f} s for {what}, which did not come")
            self.machine.sleep(_POLL_S)

    def wait_run(self, what: str, within_s: float, *argv: str) -> None:
        """Until a command there succeeds."""
        self.wait(what, within_s, lambda: self.machine.run(*argv, check=False).rc == 0)
