"""The package in use on Debian: passages, keys as credentials, updates, technicians' questions, reset, purge.

One board from its first hour to its end; each test goes on where the one before stopped.
"""

import json
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from link1.keys import PublicKey
from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene
from tests.packaging.debian_tree import (
    DEBIAN_TREES,
    EACH_RELEASE,
    Machine,
    booted,
    package_of,
    unpacked,
    version_of,
)
from tools.rig.demo.back_office import BackOffice
from tools.rig.demo.narrator import Narrator
from tools.rig.demo.programs import Program, RunningPrograms, module, palmctl
from tools.rig.demo.setting import DBD_ID, Cloud, DemoDevice, Site, start_cloud
from tools.rig.demo.story import PLACE, DemoPerson, GateStory
from tools.rig.demo.waiting import wait_until
from tools.rig.packaging.deb import DebianRelease
from tools.rig.packaging.kit_copy import PALMCTL, copy_kit
from tools.rig.virtual_camera import VirtualCamera

pytestmark = [*DEBIAN_TREES, EACH_RELEASE]
SECOND, BROKEN = "0.2.0-1", "0.2.0-2"
FPS = 10
SITE = Site("gate-1-left", "gate-1", Path("/"), "file:/srv/camera")
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

    @property
    def first(self) -> str:
        """The version that was installed first."""
        return version_of(self.machine.release)

    def current(self) -> str:
        return (self.machine.root / INSTALLED / "current").readlink().name

    def forget_films(self) -> None:
        """A folder camera that is opened anew plays what it finds: the last picture is enough."""
        for played in sorted(self.camera.folder.iterdir())[:-1]:
            played.unlink()

    def pass_through(self) -> None:
        """The person shows a palm; the validator accepts what the sandboxed unit signed."""
        assert self.story is not None
        assert self.person is not None
        self.story.show_palm(self.person, "L", "accept")


@pytest.fixture(scope="module")
def gate(release: DebianRelease, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    folder = tmp_path_factory.mktemp("gate")
    (folder / "logs").mkdir()
    stage = RunningPrograms(folder / "logs")
    try:
        cloud = start_cloud(Narrator(as_json=False), folder, stage)
        with unpacked("amd64", release, "in-use") as root:
            shutil.copy(package_of(release, "amd64"), root / "root")
            with booted(root, release) as machine:
                empty = empty_scene(PLACE, 3, scene_seed=PLACE)
                yield Gate(machine, folder, stage, cloud, VirtualCamera(root / "srv/camera", empty, fps=FPS))
    finally:
        stage.stop()  # after the tree: what runs in there ends with it


def test_01_installed_and_provisioned(gate: Gate) -> None:
    machine = gate.machine
    file = f"/root/{package_of(machine.release, 'amd64').name}"
    machine.run("apt-get", "install", "-y", "--no-install-recommends", file)
    made = gate.palmctl(
        "provision", "--server", gate.cloud.url, "--token-stdin", "--device-id", SITE.device_id,
        "--gate-id", SITE.gate_id, "--dbd-id", DBD_ID, "--passage-sensor", "--camera", SITE.camera,
        "--camera-fps", str(FPS), "--link-port", "/dev/palm-validator",
        given=gate.cloud.new_token(SITE.device_id) + "\n",
    )  # fmt: skip
    machine.run("palmctl", "config", "set", "enrolment.consent", "service")
    plug_in(gate)
    machine.run("systemctl", "start", "palmd", "palm-syncd")
    # An app release may come at any time from here on, without a reboot before.
    assert machine.state_of("palm-update.path") == "active"
    meet_validator(gate, PublicKey.from_b64(made["verdict_key"]["pub_b64"]))


def plug_in(gate: Gate) -> None:
    """A virtual cable. Its own names lie in /tmp, and the core has a /tmp of its own."""
    copy_kit(gate.machine.root)
    ends = gate.start("cable", str(PALMCTL), "link", "pair", "--json").wait_line(
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
        "validator", str(PALMCTL), "dbd", "simulate", "--port", port, "--dbd-id", DBD_ID,
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


def test_02_somebody_is_enrolled_and_passes(gate: Gate) -> None:
    assert gate.story is not None
    gate.person = DemoPerson("Ana", make_person(101))
    gate.story.enrol(gate.person)
    gate.pass_through()
    gate.story.reconcile()
    assert gate.palmctl("status")["serving"] is True


def test_03_memory_is_locked_where_the_machine_allows_it(gate: Gate) -> None:
    """LimitMEMLOCK=infinity needs a first process that may raise limits; not every container's may."""
    probe = gate.machine.run(
        "systemd-run", "-q", "--pipe", "--wait", "-p", "LimitMEMLOCK=infinity", "sh", "-c", "ulimit -l"
    )
    memory = gate.status()["memory"]
    assert memory["dumps_off"] is True
    assert memory["locked"] is (probe.stdout.strip() == "unlimited")


def test_04_the_doctor_finds_nothing(gate: Gate) -> None:
    gate.machine.run("palmctl", "doctor", fails=True)
    told = gate.palmctl("doctor")
    results = {finding["name"]: finding for finding in told["findings"]}
    for name in ("provisioned", "ownership", "daemon", "cable", "validator", "server", "sandbox", "model"):
        assert results[name]["result"] == "ok", results[name]


def test_05_keys_become_credentials_of_the_units(gate: Gate) -> None:
    machine, keys = gate.machine, gate.machine.root / STATE / "keys"
    secrets = [path.read_bytes() for path in keys.iterdir()]
    assert len(secrets) == 4
    gate.forget_films()
    machine.run("palmctl", "keys", "encrypt")
    assert not keys.exists()
    for unit in ("palmd", "palm-syncd"):
        wait_for_active(gate, unit)
    given = machine.run("ls", "/run/credentials/palmd.service").stdout.split()
    assert set(given) == {f"palm-access.{name}" for name in ("verdict", "http", "seal", "data")}
    assert not (machine.root / "run/credentials/palm-syncd.service").exists()
    found = [
        path
        for path in (*(machine.root / STATE).rglob("*"), *(machine.root / "etc").rglob("*"))
        if path.is_file() and not path.is_symlink() and any(key in path.read_bytes() for key in secrets)
    ]
    assert found == []
    results = {finding["name"]: finding for finding in gate.palmctl("doctor", code=0)["findings"]}
    assert results["sandbox"]["result"] == results["provisioned"]["result"] == "ok", results
    assert gate.palmctl("keys", "encrypt") == {"encrypted_with": None, "moved": False}
    machine.run("systemctl", "restart", "palmd", "palm-syncd")
    wait_until("the gate to serve", 60, lambda: gate.status().get("serving") is True)
    gate.pass_through()


def wait_for_active(gate: Gate, unit: str) -> None:
    wait_until(f"{unit} to run", 60, lambda: gate.machine.state_of(unit) == "active")


def test_06_what_helps_from_afar(gate: Gate) -> None:
    machine = gate.machine
    said = machine.run("palmctl", "logs", "-n", "50").stdout
    assert "device.core.main: ready: gate-1-left" in said
    told = machine.run("palmctl", "logs", "--json", "-n", "50").stdout
    lines = [json.loads(line) for line in told.splitlines()]
    assert {line["unit"] for line in lines} == {"palmd", "palm-syncd"}
    gate.palmctl("support-bundle", "/root/bundle.tar.gz")
    with tarfile.open(machine.root / "root/bundle.tar.gz") as bundle:
        files = {
            member.name: opened.read()
            for member in bundle.getmembers()
            if (opened := bundle.extractfile(member)) is not None
        }
    assert any(b"ready: gate-1-left" in content for content in files.values()), sorted(files)
    assert gate.person is not None
    subject = str(gate.person.subject["subject_ref"]).encode()
    assert [name for name, content in files.items() if subject in content] == []
    refused = machine.run("palmctl", "support-bundle", "/root/bundle.tar.gz", fails=True)
    assert refused.returncode == 1


def release(gate: Gate, folder: Path, seq: int) -> str:
    """A signed release of that environment, on a stick; its path in the tree."""
    out = gate.machine.root / "root" / f"release-{seq}.palm"
    words = ("--kind", "app", "--from", str(folder), "--release-seq", str(seq), "--out", str(out))
    made = module("tools.palmctl.main", "cloud", "release", *gate.cloud.place, *words)
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


def test_07_a_release_is_installed_by_root_and_serves(gate: Gate) -> None:
    machine = gate.machine
    gate.forget_films()
    package = as_version(machine.root / INSTALLED / "package", gate.first, SECOND, machine.root / "root/next")
    file = release(gate, package, 7)
    shutil.rmtree(package)
    machine.run("palmctl", "update", "apply", file)
    noted = wait_for_outcome(gate, 7, 600)
    assert (noted["code"], noted["version"], noted["back_to"]) == ("", SECOND, gate.first)
    assert gate.current() == SECOND
    wait_until("palmd to say so", 60, lambda: updates(gate)["app_waiting"] is None)
    machine.run("palmctl", "update", "status")
    pid = machine.run("systemctl", "show", "-P", "MainPID", "palmd").stdout.strip()
    assert f"/versions/{SECOND}/" in machine.run("cat", f"/proc/{pid}/cmdline").stdout
    gate.pass_through()
    (machine.root / "root" / Path(file).name).unlink()


def updates(gate: Gate) -> dict[str, Any]:
    told = gate.machine.run("palmctl", "update", "status", "--json", fails=True)
    found: dict[str, Any] = json.loads(told.stdout.splitlines()[-1])
    return found


def test_08_one_that_does_not_serve_is_put_back(gate: Gate, tmp_path: Path) -> None:
    (site_packages,) = (gate.machine.root / INSTALLED / "package/lib").glob("python3*/site-packages")
    there = Path("/") / site_packages.relative_to(gate.machine.root)
    file = release(gate, that_does_not_serve(there, tmp_path / "broken"), 8)
    gate.forget_films()
    gate.machine.run("palmctl", "update", "apply", file)
    noted = wait_for_outcome(gate, 8, 400)
    assert noted["code"] == "no_start"
    assert gate.current() == SECOND
    wait_until("the gate to serve", 90, lambda: gate.status().get("serving") is True)
    wait_until("palmd to tell it", 60, lambda: updates(gate)["failed"] is not None)
    gate.machine.run("palmctl", "update", "status", fails=True)
    assert not (gate.machine.root / INSTALLED / "versions" / BROKEN).exists()
    gate.pass_through()


def test_09_a_power_cut_on_trial_is_put_back_before_palmd_starts(gate: Gate) -> None:
    machine = gate.machine
    machine.run("systemctl", "stop", "palmd", "palm-syncd", "palm-update.path")
    on_trial = {"release_seq": 9, "version": gate.first, "back_to": SECOND, "trial": True, "code": ""}
    (machine.root / INSTALLED / "update.json").write_text(json.dumps(on_trial))
    machine.run("ln", "-sfn", f"versions/{gate.first}", "/opt/palm-access/current")
    machine.run("systemctl", "start", "palm-update-recover")
    assert gate.current() == SECOND
    machine.run("systemctl", "start", "palm-update.path", "palmd", "palm-syncd")
    wait_until("the gate to serve", 90, lambda: gate.status().get("serving") is True)


def test_10_a_reset_leaves_no_device(gate: Gate) -> None:
    machine = gate.machine
    refused = machine.run("palmctl", "factory-reset", "--yes-i-mean", "another", fails=True)
    assert refused.returncode == 1
    machine.run("palmctl", "factory-reset", "--yes-i-mean", SITE.device_id)
    assert list((machine.root / STATE).iterdir()) == []
    assert machine.state_of("palmd") == "inactive"
    machine.run("systemctl", "start", "palmd", fails=True)
    machine.run("palmctl", "doctor", "provisioned", "daemon", fails=True)
    assert machine.run("palmctl", "status", fails=True).returncode == 3


def test_11_another_device_comes_over_a_stick(gate: Gate) -> None:
    """The units keep the drop-ins of the credentials that are gone, and start with key files."""
    machine, stick = gate.machine, "/root/stick.json"
    (machine.root / "etc/palm-access/device.toml").unlink()
    asked = gate.palmctl(
        "provision", "--offline-bundle", stick, "--device-id", "gate-1-right", "--gate-id", SITE.gate_id,
        "--dbd-id", DBD_ID, "--camera", SITE.camera, "--camera-fps", str(FPS),
        "--link-port", "/dev/palm-validator",
    )  # fmt: skip
    print(asked)
    kid = asked["verdict_key"]["kid"]
    request = str(machine.root / stick[1:])
    palmctl("cloud", "bundle", "create", *gate.cloud.place, "--request", request, "--verdict-kid", kid)
    root_kid = palmctl("cloud", "root", "show", *gate.cloud.place[:2])["kid"]
    made = gate.palmctl("provision", "--offline-bundle", stick, "--root-kid", root_kid)
    assert made["verdict_key"]["kid"] == kid
    machine.run("systemctl", "restart", "palmd", "palm-syncd")
    wait_until("palmd to run", 60, lambda: machine.state_of("palmd") == "active")
    # This device lives on mail: the carrier has nothing to do, and that is no fault.
    wait_until("palm-syncd to end", 60, lambda: machine.state_of("palm-syncd") == "inactive")
    assert gate.status()["device_id"] == "gate-1-right"


def test_12_purged_nothing_stays(gate: Gate) -> None:
    machine = gate.machine
    machine.run("palmctl", "keys", "encrypt")
    machine.run("apt-get", "purge", "-y", "palm-access")
    for place in ("var/lib/palm-access", "etc/palm-access", "opt/palm-access"):
        assert not (machine.root / place).exists(), place
    ours = r"\( -name 'palm-*' -o -name 'palmd*' -o -name 'palmctl*' -o -name '_palmctl' \)"
    # The kit lies next to the package, not in it.
    elsewhere = "! -path '/root/*' ! -path '/proc/*' ! -path '/srv/kit/*'"
    left = machine.run("sh", "-c", f"find / -xdev {ours} {elsewhere}")
    assert left.stdout == ""
    machine.run("systemctl", "daemon-reload")
    assert machine.run("systemctl", "list-units", "--all", "--no-legend", "palm*").stdout == ""
