"""A board in a booted tree that serves as a gate: its service, its validator, its people, its updates."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from link1.keys import PublicKey
from link1.objects import VerdictResult
from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene
from tests.device.whole_device import MOST_ATTEMPTS
from tests.packaging.debian_tree import Machine, booted, unpacked
from tools.rig.demo.back_office import BackOffice
from tools.rig.demo.errors import DemoFailed
from tools.rig.demo.narrator import Narrator
from tools.rig.demo.programs import Program, RunningPrograms, module
from tools.rig.demo.setting import DBD_ID, Cloud, DemoDevice, Site, start_cloud
from tools.rig.demo.story import PLACE, DemoPerson, GateStory
from tools.rig.demo.waiting import wait_until
from tools.rig.packaging.debian_package import DebianRelease
from tools.rig.packaging.kit_copy import PALMCTL, copy_kit
from tools.rig.virtual_camera import VirtualCamera

FPS = 10
SITE = Site("gate-1-left", "gate-1", Path("/"), "file:/srv/camera")
BROKEN = "0.2.0-2"
INSTALLED = Path("opt/palm-access")
STATE = Path("var/lib/palm-access")


@dataclass
class Gate:
    """A board in a booted tree, its service outside, and the hands that people show it."""

    machine: Machine
    folder: Path
    stage: RunningPrograms
    cloud: Cloud
    camera: VirtualCamera
    kit: tuple[str, ...] = (str(PALMCTL),)
    """The command of the validator kit in the tree."""
    story: GateStory | None = None
    person: DemoPerson | None = None

    @property
    def control_socket(self) -> Path:
        return Path(f"/proc/{self.machine.pid}/root/run/palm-access/control/sock")

    def start(self, name: str, *command: str) -> Program:
        enter = ["nsenter", "--target", str(self.machine.pid), "--all", "--wdns=/root", "env", "-i"]
        return self.stage.start(name, [*enter, "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", *command])

    def palmctl(self, *words: str, given: str = "", code: int = 0) -> dict[str, Any]:
        """`palmctl … --json` in the tree: the object it prints."""
        told = self.machine.run("palmctl", *words, "--json", given=given, fails=True)
        assert told.returncode == code, told.stdout
        found: dict[str, Any] = json.loads(
            next(line for line in told.stdout.splitlines() if line.startswith("{"))
        )
        return found

    def status(self) -> dict[str, Any]:
        told = self.machine.run("palmctl", "status", "--json", fails=True)
        found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1]) if told.returncode < 2 else {}
        return found

    def current(self) -> str:
        return (self.machine.root / INSTALLED / "current").readlink().name

    def forget_films(self) -> None:
        """A folder camera plays what it finds when it is reopened: the last picture is enough."""
        for played in sorted(self.camera.folder.iterdir())[:-1]:
            played.unlink()

    def install(self, package: Path) -> str:
        """`apt-get install` of a package of this machine; what it said."""
        target = self.machine.root / "root" / package.name
        if not target.exists():
            shutil.copy(package, target)
        words = ("apt-get", "install", "-y", "--no-install-recommends", f"/root/{package.name}")
        return self.machine.run(*words, within_s=900).stdout

    def pass_through(self) -> int:
        """The person shows a palm; the validator accepts what the sandboxed unit signed.

        A busy machine looks at too few pictures of a capture: the palm is then shown again. Returns how many
        verdicts that took.
        """
        assert self.story is not None
        assert self.person is not None
        for attempt in range(1, MOST_ATTEMPTS):
            try:
                self.story.show_palm(self.person, "L", "accept")
            except DemoFailed as failed:
                if str(VerdictResult.POOR_CAPTURE) not in str(failed):
                    raise
            else:
                return attempt
        self.story.show_palm(self.person, "L", "accept")
        return MOST_ATTEMPTS


@contextlib.contextmanager
def gate_in_a_tree(release: DebianRelease, name: str, folder: Path) -> Iterator[Gate]:
    """A booted tree without the package, a service outside, an empty view."""
    (folder / "logs").mkdir()
    with RunningPrograms(folder / "logs") as stage:  # it ends after the tree, which ends what runs in it
        cloud = start_cloud(Narrator(as_json=False), folder, stage)
        with unpacked("amd64", release, name) as root, booted(root, release) as machine:
            empty = empty_scene(PLACE, 3, scene_seed=PLACE)
            yield Gate(machine, folder, stage, cloud, VirtualCamera(root / "srv/camera", empty, fps=FPS))


def begin_to_serve(gate: Gate) -> None:
    """Provision the installed package, plug in a cable, start the daemons and the validator."""
    made = gate.palmctl(
        "provision", "--server", gate.cloud.url, "--token-stdin", "--device-id", SITE.device_id,
        "--gate-id", SITE.gate_id, "--dbd-id", DBD_ID, "--passage-sensor", "--camera", SITE.camera,
        "--camera-fps", str(FPS), "--link-port", "/dev/palm-validator",
        given=gate.cloud.new_token(SITE.device_id) + "\n",
    )  # fmt: skip
    gate.machine.run("palmctl", "config", "set", "enrolment.consent", "service")
    plug_in(gate)
    gate.machine.run("systemctl", "start", "palmd", "palm-syncd")
    # An app release may come at any time from here on, without a reboot before.
    assert gate.machine.state_of("palm-update.path") == "active"
    meet_validator(gate, PublicKey.from_b64(made["verdict_key"]["pub_b64"]))


def enrol_somebody(gate: Gate) -> None:
    """One person, known at the gate."""
    assert gate.story is not None
    gate.person = DemoPerson("Ana", make_person(101))
    gate.story.enrol(gate.person)


def plug_in(gate: Gate) -> None:
    """A virtual cable. Its own names lie in /tmp, and the core has a /tmp of its own."""
    copy_kit(gate.machine.root)
    ends = gate.start("cable", *gate.kit, "link", "pair", "--json").wait_line(
        lambda line: "device" in line, 30
    )
    device = gate.machine.run("readlink", "-f", ends["device"]).stdout.strip()
    gate.machine.run("chmod", "666", device)
    gate.machine.run("ln", "-sfn", device, "/dev/palm-validator")
    gate.machine.run("ln", "-sfn", ends["validator"], "/root/validator-port")


def meet_validator(gate: Gate, verdict_key: PublicKey) -> None:
    shutil.copy(gate.folder / "validator.key", gate.machine.root / "root")
    (gate.machine.root / "root/validator.key").chmod(0o600)
    port = gate.machine.run("readlink", "/root/validator-port").stdout.strip()
    validator = gate.start(
        "validator", *gate.kit, "dbd", "simulate", "--port", port, "--dbd-id", DBD_ID,
        "--gate-id", SITE.gate_id, "--key-file", "/root/validator.key",
        "--device-pub-b64", verdict_key.b64, "--passage-sensor", "--json",
    )  # fmt: skip
    validator.wait_line(lambda line: line.get("event") == "link_up", 60)
    gate.story = GateStory(
        narrator=Narrator(as_json=False),
        cloud=gate.cloud,
        device=DemoDevice(SITE, verdict_key, gate.control_socket, port),
        validator=validator,
        office=BackOffice(gate.cloud.url, gate.cloud.api_key),
        camera=gate.camera,
    )


def wait_for_active(gate: Gate, unit: str) -> None:
    wait_until(f"{unit} to run", 60, lambda: gate.machine.state_of(unit) == "active")


def release_of(gate: Gate, folder: Path, seq: int) -> str:
    """A signed release of that environment, on a stick; its path in the tree."""
    out = gate.machine.root / "root" / f"release-{seq}.palm"
    words = ("--kind", "app", "--from", str(folder), "--release-seq", str(seq), "--out", str(out))
    made = module("tools.palmctl.main", "cloud", "release", "create", *gate.cloud.place, *words)
    subprocess.run(made, check=True, timeout=900)
    return f"/root/{out.name}"


def as_version(package: Path, was: str, version: str, folder: Path) -> Path:
    """What dpkg unpacked, as another version than it `was`: what names it is in few files."""
    subprocess.run(["cp", "-al", str(package), str(folder)], check=True)
    for file in (folder / "VERSION", *(folder / "bin").iterdir()):
        if not file.is_symlink():
            text, mode = file.read_text().replace(was, version), file.stat().st_mode
            file.unlink()  # not to write into the package's own
            file.write_text(text)
            file.chmod(mode)
    return folder


def that_does_not_serve(site_packages: Path, folder: Path) -> Path:
    """A software that passes its self-test with the libraries of the version in use, and then dies."""
    own = folder / "lib" / site_packages.parent.name / "site-packages"
    python = site_packages.parent.name.removeprefix("python")
    own.mkdir(parents=True)
    (own / "libraries.pth").write_text(f"{site_packages}\n")
    described = own / f"palm_access_device-{BROKEN}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: palm-access-device\nVersion: 0.2.0\n")
    (folder / "VERSION").write_text(f"{BROKEN}\n")
    (folder / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {python}\n"
    )
    (folder / "bin").mkdir()
    for name, script in (("palmd", 'case "$*" in *--check*) ;; *) exit 9 ;; esac'), ("palm-syncd", "exit 9")):
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


def wait_for_outcome(gate: Gate, seq: int, within_s: float) -> dict[str, Any]:
    """What root's installer noted of that release, once it is through."""
    path = gate.machine.root / INSTALLED / "update.json"

    def settled() -> bool:
        noted = json.loads(path.read_text()) if path.exists() else {"release_seq": 0}
        return bool(noted["release_seq"] == seq and not noted["trial"])

    wait_until("palm-update to be through", within_s, settled, every_s=1.0)
    gate.machine.run("journalctl", "-u", "palm-update", "--no-pager", "-n", "20", "-o", "cat")
    noted: dict[str, Any] = json.loads(path.read_text())
    return noted


def updates(gate: Gate) -> dict[str, Any]:
    told = gate.machine.run("palmctl", "update", "status", "--json", fails=True)
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found
