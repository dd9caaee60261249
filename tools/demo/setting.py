"""The first acts: a cloud, a device and a gate, made and started as their operators would."""

import socket
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from link1.keys import PublicKey
from tools.demo.narrator import Narrator
from tools.demo.programs import Program, Stage, module, palmctl
from tools.demo.waiting import wait_until

DEVICE_ID, GATE_ID, DBD_ID = "palm-demo-1", "gate-1", "dbd-1"
CAMERA_FPS = 15

_SCOPES = ("subjects:read", "subjects:write", "devices:read", "verdicts:read")


@dataclass(frozen=True)
class Cloud:
    """A reference server, and what its operator gave out."""

    url: str
    api_key: str
    token: str
    validator_key: PublicKey


@dataclass(frozen=True)
class Device:
    """A provisioned device whose daemons run."""

    verdict_key: PublicKey
    control_socket: Path
    validator_port: str


def start_cloud(narrator: Narrator, folder: Path, stage: Stage) -> Cloud:
    """A reference server on loopback; a tenant, an API key, a validator key and a provisioning token."""
    say = narrator.say
    narrator.act("The cloud: a reference server, one tenant")
    data, port = str(folder / "cloud"), _free_port()
    url = f"http://127.0.0.1:{port}"
    stage.start("cloud", module("tools.palmctl", "cloud", "serve", "--data", data, "--port", str(port)))
    wait_until("the reference server to answer", 20, lambda: _answers(url))
    say("cloud_up", f"reference server at {url}, its store is {data}/", url=url)

    tenant_id = palmctl("cloud", "tenant", "create", "demo-transit", "--data", data)["tenant_id"]
    say("tenant", f"tenant demo-transit is {tenant_id}", tenant_id=tenant_id)

    place = ("--data", data, "--tenant", tenant_id, "--mode", "test")
    scopes = [word for scope in _SCOPES for word in ("--scope", scope)]
    key = palmctl("cloud", "key", "create", *place, *scopes)
    key_id = key["key_id"]
    say("api_key", f"API key {key_id} for the back office (its secret is shown once)", key_id=key_id)

    validator = palmctl("dbd", "key", "--generate", "--key-file", str(folder / "validator.key"))
    added = palmctl("cloud", "dbd", "add", *place, "--dbd-id", DBD_ID, "--pub-b64", validator["pub_b64"])
    say("validator_key", f"validator {DBD_ID} signs with key {added['kid']}", kid=added["kid"])

    token = palmctl("cloud", "token", "create", *place, "--device-id", DEVICE_ID)["token"]
    say("token", f"a provisioning token for {DEVICE_ID}: one set of keys, within an hour")
    return Cloud(url, key["api_key"], token, PublicKey.from_b64(validator["pub_b64"]))


def start_device(narrator: Narrator, folder: Path, stage: Stage, cloud: Cloud, camera: str) -> Device:
    """Keys made on the device and registered, a cable plugged in, then its two daemons."""
    say = narrator.say
    narrator.act("The device: provisioned, and its two daemons started")
    config, runtime, port = str(folder / "device.toml"), folder / "run", folder / "cable"
    made = palmctl(
        "provision", "--server", cloud.url, "--token-stdin", "--device-id", DEVICE_ID, "--gate-id", GATE_ID,
        "--dbd-id", DBD_ID, "--passage-sensor", "--config", config, "--state-dir", str(folder / "state"),
        "--runtime-dir", str(runtime), "--camera", camera, "--camera-fps", str(CAMERA_FPS),
        "--link-port", str(port),
        stdin=cloud.token + "\n",
    )  # fmt: skip
    key = PublicKey.from_b64(made["verdict_key"]["pub_b64"])
    say(
        "provisioned",
        f"{DEVICE_ID} made its keys, registered verdict key {key.kid}, pinned root {made['root_kid']}",
        verdict_kid=key.kid,
        root_kid=made["root_kid"],
    )
    cable = stage.start("cable", module("tools.palmctl", "link", "pair", "--json"))
    ends = cable.wait_line(lambda line: "device" in line, 10)
    port.symlink_to(ends["device"])
    say("cable", f"a virtual cable: {ends['device']} ↔ {ends['validator']}", **ends)

    begun = time.monotonic()
    stage.start_daemon("palmd", module("device.palmd", "--config", config), 30)
    stage.start_daemon("palm-syncd", module("device.syncd", "--config", config), 30)
    took_s = time.monotonic() - begun
    say(
        "daemons",
        f"palmd (no network) and palm-syncd (no camera, no cable) are ready after {took_s:.1f} s",
        took_s=round(took_s, 3),
    )
    return Device(key, runtime / "control.sock", ends["validator"])


def start_validator(narrator: Narrator, folder: Path, stage: Stage, device: Device) -> Program:
    """A validator at the other end of the cable, which asks for one hand after the other."""
    narrator.act("The gate: a validator at the other end of the cable")
    validator = stage.start(
        "validator",
        module(
            "tools.palmctl", "dbd", "simulate", "--port", device.validator_port, "--dbd-id", DBD_ID,
            "--gate-id", GATE_ID, "--key-file", str(folder / "validator.key"),
            "--device-pub-b64", device.verdict_key.b64, "--passage-sensor", "--json",
        ),
    )  # fmt: skip
    validator.wait_line(lambda line: line.get("event") == "link_up", 20)
    narrator.say("link_up", "both ends proved who they are; the validator asks for a hand and waits")
    return validator


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/v1/health", timeout=1).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
