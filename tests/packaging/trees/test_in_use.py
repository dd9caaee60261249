"""The package in use on Debian: passages, keys as credentials, updates, technicians' questions, reset, purge.

One board from its first hour to its end; each test goes on where the one before stopped.
"""

import json
import os
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.debian_tree import DEBIAN_TREES, EACH_RELEASE, package_of, version_of
from tests.packaging.gate_in_a_tree import (
    BROKEN,
    FPS,
    INSTALLED,
    SITE,
    STATE,
    Gate,
    as_version,
    begin_to_serve,
    enrol_somebody,
    gate_in_a_tree,
    release_of,
    that_does_not_serve,
    updates,
    wait_for_active,
    wait_for_outcome,
)
from tests.republished import republish
from tools.rig.demo.programs import palmctl
from tools.rig.demo.setting import DBD_ID
from tools.rig.demo.waiting import wait_until
from tools.rig.packaging.debian_package import DebianRelease

pytestmark = [*DEBIAN_TREES, EACH_RELEASE]
SECOND, NEXT_MODEL = "0.2.0-1", "palm-next"


@pytest.fixture(scope="module")
def gate(release: DebianRelease, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate_in_a_tree(release, "in-use", tmp_path_factory.mktemp("gate")) as made:
        yield made


@pytest.fixture
def first(release: DebianRelease) -> str:
    """The version that was installed first."""
    return version_of(release)


def test_01_installed_and_provisioned(gate: Gate, release: DebianRelease) -> None:
    gate.install(package_of(release, "amd64"))
    begin_to_serve(gate)


def test_02_somebody_is_enrolled_and_passes(gate: Gate) -> None:
    enrol_somebody(gate)
    assert gate.story is not None
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


def test_03_the_recogniser_has_a_core_of_its_own(gate: Gate) -> None:
    """The unit refuses other ways to take resources."""
    pid = gate.machine.run("systemctl", "show", "-P", "MainPID", "palmd").stdout.strip()
    allowed = gate.machine.run("sh", "-c", f"grep -h Cpus_allowed_list /proc/{pid}/task/*/status").stdout
    assert f"\t{max(os.sched_getaffinity(0))}\n" in allowed


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


def test_06_what_helps_from_afar(gate: Gate) -> None:
    machine = gate.machine
    said = machine.run("palmctl", "logs", "-n", "50").stdout
    assert "device.core.palmd: ready: gate-1-left" in said
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


def test_07_a_release_is_installed_by_root_and_serves(gate: Gate, first: str) -> None:
    """With another model, which waits for a gallery epoch of its own."""
    machine = gate.machine
    gate.forget_films()
    package = as_version(machine.root / INSTALLED / "package", first, SECOND, machine.root / "root/next")
    (model,) = package.glob("lib/python3*/site-packages/models/shipped/*")
    republish(model, NEXT_MODEL, model.with_name(NEXT_MODEL))
    shutil.rmtree(model)
    file = release_of(gate, package, 7)
    shutil.rmtree(package)
    machine.run("palmctl", "update", "apply", file)
    noted = wait_for_outcome(gate, 7, 600)
    assert (noted["code"], noted["version"], noted["back_to"]) == ("", SECOND, first)
    assert gate.current() == SECOND
    wait_until("palmd to say so", 60, lambda: updates(gate)["app_waiting"] is None)
    machine.run("palmctl", "update", "status")
    told = updates(gate)["model"]
    assert (told["model_id"], told["waiting"]["model_id"]) == (model.name, NEXT_MODEL)
    pid = machine.run("systemctl", "show", "-P", "MainPID", "palmd").stdout.strip()
    assert f"/versions/{SECOND}/" in machine.run("cat", f"/proc/{pid}/cmdline").stdout
    gate.pass_through()
    (machine.root / "root" / Path(file).name).unlink()


def test_08_one_that_does_not_serve_is_put_back(gate: Gate, tmp_path: Path) -> None:
    (site_packages,) = (gate.machine.root / INSTALLED / "package/lib").glob("python3*/site-packages")
    there = Path("/") / site_packages.relative_to(gate.machine.root)
    file = release_of(gate, that_does_not_serve(there, tmp_path / "broken"), 8)
    gate.forget_films()
    gate.machine.run("palmctl", "update", "apply", file)
    noted = wait_for_outcome(gate, 8, 400)
    assert noted["code"] == "no_start"
    assert gate.current() == SECOND
    wait_until("the gate to serve", 90, lambda: gate.status().get("serving") is True)
    wait_until("palmd to tell it", 180, lambda: updates(gate)["failed"] is not None)
    gate.machine.run("palmctl", "update", "status", fails=True)
    broken = gate.machine.root / INSTALLED / "versions" / BROKEN
    wait_until("its folder to go", 60, lambda: not broken.exists())
    gate.pass_through()


def test_09_a_power_cut_on_trial_is_put_back_before_palmd_starts(gate: Gate, first: str) -> None:
    """Also when nothing of the version on trial runs."""
    machine = gate.machine
    machine.run("systemctl", "stop", "palmd", "palm-syncd", "palm-update.path")
    on_trial = {"release_seq": 9, "version": BROKEN, "back_to": SECOND, "trial": True, "code": ""}
    (machine.root / INSTALLED / "update.json").write_text(json.dumps(on_trial))
    broken = machine.root / INSTALLED / "versions" / BROKEN / "bin"
    broken.mkdir(parents=True)
    for program in ("palmd", "python3"):
        (broken / program).write_text("#!/bin/sh\nexit 9\n")
        (broken / program).chmod(0o755)
    machine.run("ln", "-sfn", f"versions/{SECOND}", "/opt/palm-access/back")
    machine.run("ln", "-sfn", f"versions/{BROKEN}", "/opt/palm-access/current")
    machine.run("systemctl", "start", "palm-update-recover")
    assert gate.current() == SECOND
    noted = json.loads((machine.root / INSTALLED / "update.json").read_text())
    assert noted == on_trial | {"trial": False, "code": "died_on_trial"}
    assert (machine.root / INSTALLED / "previous").readlink().name == first
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
    units = machine.run("systemctl", "list-units", "--all", "--no-legend", "palm*").stdout
    # systemd of Debian 13 remembers names for a while, as not found.
    assert [line for line in units.splitlines() if "not-found" not in line] == []
