"""What the rig makes a device go through. Each scenario leaves it served and with an empty scene.

Times are spans between two readings of the machine's own clock, which counts instructions: what the host does
meanwhile does not change them (tools.rig.hil.machine).
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tools.rig.hil.bulk_gadget import PRODUCT, PTY, VENDOR
from tools.rig.hil.machine_device import CONFIG, DEVICE_PORT, VALIDATOR_PORT, MachineDevice
from tools.rig.hil.rig import START_WITHIN_S, USUAL_DROPS, Rig, ScenarioFailed

SERVED_AGAIN_WITHIN_S = 2.0
"""LINK/1 §1: after any outage RSTACK comes within 2 s of bytes flowing again."""
OUTAGE_S = 3.0
"""Longer than the 2 s after which both ends declare the link down."""

BULK_PORT = f"usb:{VENDOR}:{PRODUCT}"
BULK_PTY = str(PTY)
BULK_SERIAL = "HIL"

Figures = dict[str, float | int | str]


@dataclass(frozen=True)
class Scenario:
    name: str
    run: Callable[[Rig, MachineDevice], Figures]
    needed: bool
    """Whether the scenarios after it can be played at all when this one fails."""


def start(rig: Rig, _stage: MachineDevice) -> Figures:
    """The camera appears: the package's udev rule names it, and systemd starts palmd in its sandbox."""
    machine = rig.machine
    machine.run("modprobe", "dummy_hcd", "num=2")
    machine.run("modprobe", "usb_f_fs")
    machine.run("systemctl", "start", "palm-usb-gadget")
    plugged_s = machine.now_s()
    rig.plug_camera()
    rig.wait_run("palmd.service", START_WITHIN_S, "systemctl", "--quiet", "is-active", "palmd")
    active_s = machine.now_s()
    shown = machine.run("systemctl", "show", "palmd", "--property=NRestarts,ExecMainPID", "--value").stdout
    return {"active_after_s": round(active_s - plugged_s, 1), "restarts": int(shown.split()[0])}


def pairing(rig: Rig, _stage: MachineDevice) -> Figures:
    """A validator at the other end of the cable: both prove who they are, and the device serves."""
    rig.start_validator()
    begun_s = rig.machine.now_s()
    up_s, _ = rig.await_event("link_up", START_WITHIN_S)
    rig.await_line("serving", START_WITHIN_S, _serves)
    return {"proven_after_s": round(up_s - begun_s, 1)}


def accept(rig: Rig, stage: MachineDevice) -> Figures:
    """The palm of a person in the gallery."""
    begun_s = rig.show("known")
    at_s, verdict = rig.await_verdict()
    rig.wait_empty()
    _expect(verdict, "accept", "MATCH", stage.known_subject)
    return {"verdict_after_s": round(at_s - begun_s, 2), "score_q": verdict["score_q"]}


def reject(rig: Rig, _stage: MachineDevice) -> Figures:
    """The palm of a stranger."""
    begun_s = rig.show("stranger")
    at_s, verdict = rig.await_verdict()
    rig.wait_empty()
    _expect(verdict, "reject", "NO_MATCH", None)
    return {"verdict_after_s": round(at_s - begun_s, 2), "score_q": verdict["score_q"]}


def next_hand(rig: Rig, stage: MachineDevice) -> Figures:
    """After a fault: the next hand is known again."""
    return accept(rig, stage)


def unplug_armed(rig: Rig, stage: MachineDevice) -> Figures:
    """The cable is pulled out while a request waits for a hand."""
    return _outage(rig) | next_hand(rig, stage)


def unplug_with_hand(rig: Rig, _stage: MachineDevice) -> Figures:
    """The cable is pulled out while the hand is before the camera: the verdict finds no validator."""
    before = len(rig.verdicts)
    rig.show("known")
    rig.machine.sleep(0.5)
    figures = _outage(rig)
    if len(rig.verdicts) == before:
        # Either the verdict was made meanwhile and is given again, or the hand is asked for again.
        rig.wait_empty()
        rig.show("known")
        rig.await_verdict()
    rig.wait_empty()
    return figures


def unplug_at_verdict(rig: Rig, _stage: MachineDevice) -> Figures:
    """The cable is pulled out as the verdict comes: its decision may be lost, and is asked after."""
    rig.show("known")
    rig.await_verdict()
    figures = _outage(rig)
    rig.wait_empty()
    return figures


def camera_stalls(rig: Rig, stage: MachineDevice) -> Figures:
    """The camera goes on without delivering pictures; then it delivers again."""
    stalled_s = rig.drop_pictures(100)
    told_s = rig.await_camera_fault(True)
    mended_s = rig.drop_pictures(USUAL_DROPS)
    well_s = rig.await_camera_fault(False)
    return {
        "told_after_s": round(told_s - stalled_s, 1),
        "well_after_s": round(well_s - mended_s, 1),
    } | next_hand(rig, stage)


def camera_corrupts(rig: Rig, stage: MachineDevice) -> Figures:
    """Half of the pictures is lost, and some that come are marked as damaged by the driver."""
    rig.drop_pictures(USUAL_DROPS + 20)
    begun_s = rig.show("known")
    for _ in range(3):
        rig.set_camera("inject_v4l2_buf_flag_error=1")
    at_s, verdict = rig.await_verdict()
    rig.drop_pictures(USUAL_DROPS)
    rig.wait_empty()
    _expect(verdict, "accept", "MATCH", stage.known_subject)
    return {"verdict_after_s": round(at_s - begun_s, 2), "score_q": verdict["score_q"]}


def camera_unplugged(rig: Rig, stage: MachineDevice) -> Figures:
    """The camera disappears and comes back as a new one."""
    gone_s = rig.machine.now_s()
    rig.set_camera("disconnect=1")
    told_s = rig.await_camera_fault(True)
    rig.unload_camera()
    back_s = rig.machine.now_s()
    rig.plug_camera()
    well_s = rig.await_camera_fault(False)
    figures: Figures = {
        "told_after_s": round(told_s - gone_s, 1),
        "well_after_s": round(well_s - back_s, 1),
    }
    return figures | next_hand(rig, stage)


def core_killed(rig: Rig, stage: MachineDevice) -> Figures:
    """palmd is killed; systemd starts it again and the validator never notices more than a silence."""
    killed_s = rig.machine.now_s()
    rig.machine.run("systemctl", "kill", "--signal=KILL", "palmd")
    up_s, _ = rig.await_event("link_up", START_WITHIN_S)
    rig.await_line("serving", START_WITHIN_S, _serves)
    return {"served_after_s": round(up_s - killed_s, 1)} | next_hand(rig, stage)


def other_way_round(rig: Rig, stage: MachineDevice) -> Figures:
    """The device is the USB host and the validator the peripheral: the same cable, the other ends."""
    rig.stop_validator()
    swap = f"s|{DEVICE_PORT}|/dev/swap|; s|{VALIDATOR_PORT}|{DEVICE_PORT}|; s|/dev/swap|{VALIDATOR_PORT}|"
    rig.machine.run("sed", "-i", swap, str(CONFIG))
    rig.machine.run("systemctl", "restart", "palmd", timeout_s=120)
    rig.start_validator(DEVICE_PORT)
    rig.await_line("serving", START_WITHIN_S, _serves)
    return next_hand(rig, stage)


def bulk_transfers(rig: Rig, _stage: MachineDevice) -> Figures:
    """Two bulk endpoints and no tty, in the sandbox of palmd: transfers of every length around whole packets,
    to firmware that waits for their end and back from it without one; and why a port does not open."""
    machine = rig.machine
    if "no such device" not in (why := _echo(rig).get("error", "")):
        raise ScenarioFailed(f"not plugged in, the port says: {why}")
    rig.start_bulk("echo")
    rig.wait_run(
        "the device on the bus", 20, "sh", "-c", f"grep -q {BULK_SERIAL} /sys/bus/usb/devices/*/serial"
    )
    machine.run("udevadm", "settle")
    if "no permission" not in (why := _echo(rig, "User=nobody", "SupplementaryGroups=").get("error", "")):
        raise ScenarioFailed(f"without the group, the port says: {why}")
    told = _echo(rig)
    if told.get("wrong") != [] or told["unsent"]:
        raise ScenarioFailed(f"transfers were lost or changed: {told}")
    came = [int(line) for line in rig.stop_bulk()]
    if sum(came) != told["bytes"] or len(came) < told["sizes"]:  # the longest may leave in two transfers
        raise ScenarioFailed(f"{told['sizes']} transfers were sent, the firmware saw {came}")
    return {"transfers": len(came), "bytes_each_way": sum(came)}


def bulk_cable(rig: Rig, stage: MachineDevice) -> Figures:
    """The validator at the end of two bulk endpoints, the device their host; the next hand is known."""
    rig.stop_validator()
    rig.start_bulk("bridge")
    rig.machine.run("sed", "-i", f's|^port = .*|port = "{BULK_PORT}"|', str(CONFIG))
    rig.machine.run("systemctl", "restart", "palmd", timeout_s=120)
    rig.wait_run("the validator's end", START_WITHIN_S, "test", "-e", BULK_PTY)
    rig.start_validator(BULK_PTY)
    rig.await_line("serving", START_WITHIN_S, _serves)
    return next_hand(rig, stage)


def bulk_unplugged(rig: Rig, stage: MachineDevice) -> Figures:
    """That cable is pulled out, and plugged in again under another number of the bus."""
    return _outage(rig) | next_hand(rig, stage)


def nothing_lost(rig: Rig, _stage: MachineDevice) -> Figures:
    """Over all of it: every verdict was decided exactly once, and the numbers have neither gap nor repeat."""
    numbers = [verdict["verdict_seq"] for verdict in rig.verdicts]
    if numbers != list(range(1, len(numbers) + 1)):
        raise ScenarioFailed(f"verdict_seq at the validator: {numbers}")
    if refused := [verdict for verdict in rig.verdicts if "event" in verdict]:
        raise ScenarioFailed(f"{len(refused)} verdicts were not acted on: {refused[0].get('why')}")
    return {"verdicts": len(numbers)}


SCENARIOS = tuple(
    Scenario(run.__name__.replace("_", " "), run, run in (start, pairing))
    for run in (
        *(start, pairing, accept, reject, unplug_armed, unplug_with_hand, unplug_at_verdict),
        *(camera_stalls, camera_corrupts, camera_unplugged, core_killed, other_way_round),
        *(bulk_transfers, bulk_cable, bulk_unplugged, nothing_lost),
    )
)


def _outage(rig: Rig) -> Figures:
    """Pull the plug for a while; the link must be proven within 2 s of both ends having their port."""
    rig.unplug_cable()
    rig.await_event("link_down", 20)
    rig.machine.sleep(OUTAGE_S)
    plugged_s = rig.plug_cable()
    opened_s, _ = rig.await_line("open port", 20, _port_opened)
    up_s, _ = rig.await_event("link_up", 20)
    served_s = up_s - opened_s
    if served_s > SERVED_AGAIN_WITHIN_S:
        raise ScenarioFailed(f"served again {served_s:.2f} s after bytes could flow, at most 2 s")
    return {"served_again_after_s": round(served_s, 2), "since_plugged_s": round(up_s - plugged_s, 2)}


def _echo(rig: Rig, *properties: str) -> dict[str, Any]:
    """What the echo's client says, run as palmd is: its user, its devices, its address families."""
    sandbox = (
        *("User=palm-access", "SupplementaryGroups=dialout", "PrivateUsers=yes", "PrivateNetwork=yes"),
        *("RestrictAddressFamilies=AF_UNIX", "DevicePolicy=closed", "DeviceAllow=char-usb_device rw"),
        *("ProtectKernelTunables=yes", "SystemCallFilter=@system-service"),
        *properties,
    )
    options = [option for each in sandbox for option in ("-p", each)]
    client = ("/opt/palm-access/current/bin/python", "/hil/tools/rig/hil/bulk_echo.py", BULK_PORT)
    done = rig.machine.run("systemd-run", "--quiet", "--pipe", "--wait", *options, *client, check=False)
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        raise ScenarioFailed(f"the echo's client ended with {done.rc}: {done.stderr[-500:]}") from None


def _serves(told: dict[str, Any]) -> bool:
    return told.get("event") == "status" and bool(told["serving"])


def _port_opened(told: dict[str, Any]) -> bool:
    return told.get("event") == "port" and bool(told["open"])


def _expect(verdict: dict[str, Any], decision: str, result: str, subject: str | None) -> None:
    found = (verdict["decision"], verdict["result"], verdict.get("subject_ref"))
    if found != (decision, result, subject):
        raise ScenarioFailed(f"expected {decision} {result}, found {found[0]} {found[1]}")
