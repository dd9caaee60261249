"""The first acts: a cloud, a device and a gate, made and started as their operators would."""

import socket
import time
from dataclasses import dataclass
from pathlib import Path

import httpx

from device.platform.roles import SocketRole, socket_path
from link1.keys import PublicKey
from tools.rig.demo.narrator import Narrator
from tools.rig.demo.programs import Program, RunningPrograms, module, palmctl
from tools.rig.demo.waiting import wait_until

DBD_ID = "dbd-1"
CAMERA_FPS = 15

_SCOPES = ("subjects:read", "subjects:write", "devices:read", "devices:write", "verdicts:read")


@dataclass(frozen=True)
class Cloud:
    """A reference server, and what its operator gave out."""

    url: str
    place: tuple[str, ...]
    api_key: str
    validator_key: PublicKey

    def new_token(self, device_id: str) -> str:
        """A provisioning token of the operator's."""
        token = palmctl("cloud", "token", "create", *self.place, "--device-id", device_id)["token"]
        return str(token)


@dataclass(frozen=True)
class Site:
    """A device's gate, and the folder of its files."""

    device_id: str
    gate_id: str
    folder: Path
    camera: str

    @property
    def config(self) -> Path:
        return self.folder / f"{self.device_id}.toml"

    @property
    def runtime(self) -> Path:
        return self.folder / f"{self.device_id}.run"

    @property
    def control_socket(self) -> Path:
        return socket_path(self.runtime, SocketRole.TECHNICIAN)

    @property
    def cable(self) -> Path:
        return self.folder / f"{self.device_id}.cable"


@dataclass(frozen=True)
class DemoDevice:
    """A provisioned device whose daemons run."""

    site: Site
    verdict_key: PublicKey
    control_socket: Path
    validator_port: str


def start_cloud(narrator: Narrator, folder: Path, stage: RunningPrograms) -> Cloud:
    """A reference server on loopback; a tenant, an API key, a validator key and a provisioning token."""
    say = narrator.say
    narrator.act("The cloud: a reference server, one tenant")
    data, port = str(folder / "cloud"), _free_port()
    url = f"http://127.0.0.1:{port}"
    stage.start("cloud", module("tools.palmctl.main", "cloud", "serve", "--data", data, "--port", str(port)))
    wait_until("the reference server to answer", 20, lambda: answers(url))
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

    return Cloud(url, place, key["api_key"], PublicKey.from_b64(validator["pub_b64"]))


def provision(narrator: Narrator, site: Site, cloud: Cloud) -> PublicKey:
    """Keys made on the device and registered; returns its verdict key."""
    made = palmctl(
        "provision", "--server", cloud.url, "--token-stdin", "--device-id", site.device_id,
        "--gate-id", site.gate_id, "--dbd-id", DBD_ID, "--passage-sensor", "--config", str(site.config),
        "--state-dir", str(site.folder / f"{site.device_id}.state"), "--runtime-dir", str(site.runtime),
        "--camera", site.camera, "--camera-fps", str(CAMERA_FPS), "--link-port", str(site.cable),
        stdin=cloud.new_token(site.device_id) + "\n",
    )  # fmt: skip
    # People agree in the operator's app here. A device's default is to ask them itself, on a screen.
    palmctl("config", "set", "enrolment.consent", "service", "--config", str(site.config))
    key = PublicKey.from_b64(made["verdict_key"]["pub_b64"])
    narrator.say(
        "provisioned",
        f"{site.device_id} made its keys, registered verdict key {key.kid}, pinned root {made['root_kid']}",
        device_id=site.device_id,
        verdict_kid=key.kid,
        root_kid=made["root_kid"],
    )
    return key


def plug_cable(narrator: Narrator, stage: RunningPrograms, site: Site) -> str:
    """A virtual cable at a device; returns the port at its other end."""
    cable = stage.start(f"cable-{site.device_id}", module("tools.palmctl.main", "link", "pair", "--json"))
    ends = cable.wait_line(lambda line: "device" in line, 10)
    site.cable.symlink_to(ends["device"])
    narrator.say("cable", f"a virtual cable: {ends['device']} ↔ {ends['validator']}", **ends)
    return str(ends["validator"])


def start_device(narrator: Narrator, stage: RunningPrograms, cloud: Cloud, site: Site) -> DemoDevice:
    """A device with a network: registered, a cable plugged in, then its two daemons."""
    narrator.act("The device: provisioned, and its two daemons started")
    key = provision(narrator, site, cloud)
    validator_port = plug_cable(narrator, stage, site)
    begun, config = time.monotonic(), str(site.config)
    stage.start_daemon("palmd", module("device.core.main", "--config", config), 30)
    stage.start_daemon("palm-syncd", module("device.syncd.main", "--config", config), 30)
    took_s = time.monotonic() - begun
    narrator.say(
        "daemons",
        f"palmd (no network) and palm-syncd (no camera, no cable) are ready after {took_s:.1f} s",
        took_s=round(took_s, 3),
    )
    return DemoDevice(site, key, site.control_socket, validator_port)


def start_validator(
    narrator: Narrator, folder: Path, stage: RunningPrograms, device: DemoDevice, *, mail: Cloud | None = None
) -> Program:
    """A validator at the other end of the cable, which asks for one hand after the other; with `mail`, it
    carries the device's mail to and from that service."""
    carries = () if mail is None else ("--server", mail.url, "--api-key-stdin")
    validator = stage.start(
        "validator",
        module(
            "tools.palmctl.main", "dbd", "simulate", "--port", device.validator_port, "--dbd-id", DBD_ID,
            "--gate-id", device.site.gate_id, "--key-file", str(folder / "validator.key"),
            "--device-pub-b64", device.verdict_key.b64, "--passage-sensor", "--json", *carries,
        ),
        stdin=None if mail is None else mail.api_key + "\n",
    )  # fmt: skip
    validator.wait_line(lambda line: line.get("event") == "link_up", 20)
    narrator.say("link_up", "both ends proved who they are; the validator asks for a hand and waits")
    return validator


def answers(url: str) -> bool:
    """Whether a service is there."""
    try:
        return httpx.get(f"{url}/v1/health", timeout=1).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
