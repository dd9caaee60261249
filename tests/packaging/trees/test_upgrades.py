"""A gate that serves, upgraded in place: from an earlier software, and from Debian 12 to 13.

Each gate keeps its people, its keys and its configuration, and its verdicts go on counting.
"""

import hashlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging import former_package
from tests.packaging.debian_tree import DEBIAN_TREES, package_of, version_of
from tests.packaging.gate_in_a_tree import (
    BROKEN,
    INSTALLED,
    STATE,
    Gate,
    begin_to_serve,
    enrol_somebody,
    gate_in_a_tree,
    release_of,
    that_does_not_serve,
    wait_for_active,
    wait_for_outcome,
)
from tools.rig.demo.waiting import wait_until
from tools.rig.packaging.debian_package import RELEASES
from tools.rig.packaging.kit_copy import PALMCTL

pytestmark = DEBIAN_TREES
BOOKWORM, TRIXIE = RELEASES
NEXT = Path("srv/next")
"""The present package, unpacked in the tree: its environment runs the kit, and is what a release holds."""


def unpack_next(gate: Gate) -> None:
    """Put the present package's environment next to what is installed, for the kit."""
    unpacked = gate.machine.root / "srv/unpacked"
    subprocess.run(["dpkg-deb", "-x", package_of(BOOKWORM, "amd64"), unpacked], check=True)
    (unpacked / INSTALLED / "package").rename(gate.machine.root / NEXT)
    subprocess.run(["rm", "-r", unpacked], check=True)
    gate.kit = (f"/{NEXT}/bin/python", "-I", str(PALMCTL))


def kept(gate: Gate) -> dict[str, str]:
    """SHA-256 of what an upgrade may not touch."""
    root = gate.machine.root
    files = [root / "etc/palm-access/device.toml", *sorted((root / STATE / "keys").iterdir())]
    assert len(files) == 5
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def verdict_seq(gate: Gate) -> int:
    return int(gate.status()["verdict_seq"])


def serves_on(gate: Gate, before: int) -> None:
    """It serves again, and knows the person; its verdicts go on from number `before`."""
    wait_until("the gate to serve", 180, lambda: gate.status().get("serving") is True)
    count = gate.pass_through()
    assert verdict_seq(gate) == before + count
    assert gate.story is not None
    gate.story.reconcile()


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    package = former_package.former_package()
    with gate_in_a_tree(BOOKWORM, "former", tmp_path_factory.mktemp("former")) as gate:
        gate.install(package)
        unpack_next(gate)
        yield gate


def test_01_a_gate_with_the_earlier_software(former: Gate) -> None:
    assert former.current() == former_package.VERSION
    begin_to_serve(former)
    enrol_somebody(former)
    serves_on(former, 0)


def test_02_a_signed_release_brings_this_software_under_the_earlier_units(former: Gate) -> None:
    before, held = verdict_seq(former), kept(former)
    file = release_of(former, former.machine.root / NEXT, 7)
    former.forget_films()
    former.machine.run("palmctl", "update", "apply", file)
    noted = wait_for_outcome(former, 7, 900)
    now = version_of(BOOKWORM)
    assert (noted["code"], noted["version"], noted["back_to"]) == ("", now, former_package.VERSION)
    assert former.current() == now
    serves_on(former, before)
    assert kept(former) == held
    (former.machine.root / file[1:]).unlink()


def test_03_this_software_installs_releases_under_the_earlier_units(former: Gate, tmp_path: Path) -> None:
    before = verdict_seq(former)
    (site_packages,) = (former.machine.root / INSTALLED / "current/lib").glob("python3*/site-packages")
    there = Path("/opt/palm-access/current/lib") / site_packages.parent.name / "site-packages"
    file = release_of(former, that_does_not_serve(there, tmp_path / "broken"), 8)
    former.forget_films()
    former.machine.run("palmctl", "update", "apply", file)
    assert wait_for_outcome(former, 8, 400)["code"] == "no_start"
    assert former.current() == version_of(BOOKWORM)
    serves_on(former, before)
    broken = former.machine.root / INSTALLED / "versions" / BROKEN
    wait_until("the broken version to be removed", 60, lambda: not broken.exists())


def test_04_the_package_mends_what_the_earlier_ones_rollback_left(former: Gate) -> None:
    before, held = verdict_seq(former), kept(former)
    former.forget_films()
    # Its own way back leads to software that cannot read the journal.
    assert former.machine.run("palm-access-rollback", former_package.VERSION, fails=True).returncode == 1
    assert former.current() == former_package.VERSION
    former.install(package_of(BOOKWORM, "amd64"))
    for unit in ("palmd", "palm-syncd"):
        wait_for_active(former, unit)
    assert former.current() == version_of(BOOKWORM)
    assert former.machine.run("dpkg", "--verify", "palm-access").stdout == ""
    serves_on(former, before)
    assert kept(former) == held
    listed = former.machine.run("palm-access-rollback", "--list").stdout
    assert set(listed.splitlines()) == {f"  {former_package.VERSION}", f"* {version_of(BOOKWORM)}"}


def test_05_the_earlier_software_cannot_read_the_journal_and_is_left_at_once(former: Gate) -> None:
    before, held = verdict_seq(former), kept(former)
    former.forget_films()
    done = former.machine.run("palm-access-rollback", former_package.VERSION, fails=True)
    assert done.returncode == 1
    assert f"{former_package.VERSION} does not start with this state" in done.stdout
    wait_for_active(former, "palmd")
    assert former.current() == version_of(BOOKWORM)
    serves_on(former, before)
    assert kept(former) == held


@pytest.fixture(scope="module")
def on_bookworm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with gate_in_a_tree(BOOKWORM, "dist-upgrade", tmp_path_factory.mktemp("gate")) as gate:
        unpack_next(gate)
        gate.install(package_of(BOOKWORM, "amd64"))
        begin_to_serve(gate)
        enrol_somebody(gate)
        yield gate


def test_11_debian_12_becomes_13_under_the_gate(on_bookworm: Gate) -> None:
    """Python 3.11 stays for as long as the package needs it, so that the gate serves throughout."""
    serves_on(on_bookworm, 0)
    held = kept(on_bookworm)
    on_bookworm.machine.run("sed", "-i", "s/bookworm/trixie/g", "/etc/apt/sources.list")
    on_bookworm.machine.run("apt-get", "update", within_s=600)
    keep = ("-o", "Dpkg::Options::=--force-confold")
    on_bookworm.machine.run("apt-get", "full-upgrade", "-y", *keep, within_s=1800)
    assert on_bookworm.machine.run("cat", "/etc/debian_version").stdout.startswith("13")
    assert on_bookworm.current() == version_of(BOOKWORM)
    before = verdict_seq(on_bookworm)
    on_bookworm.forget_films()
    on_bookworm.machine.run("systemctl", "restart", "palmd", "palm-syncd")
    serves_on(on_bookworm, before)
    assert kept(on_bookworm) == held


def test_12_the_package_of_debian_13_goes_on(on_bookworm: Gate) -> None:
    machine, held, before = on_bookworm.machine, kept(on_bookworm), verdict_seq(on_bookworm)
    on_bookworm.forget_films()
    on_bookworm.install(package_of(TRIXIE, "amd64"))
    for unit in ("palmd", "palm-syncd"):
        wait_for_active(on_bookworm, unit)
    assert on_bookworm.current() == version_of(TRIXIE)
    pid = machine.run("systemctl", "show", "-P", "MainPID", "palmd").stdout.strip()
    assert machine.run("readlink", f"/proc/{pid}/exe").stdout.strip() == "/usr/bin/python3.13"
    serves_on(on_bookworm, before)
    assert kept(on_bookworm) == held
    assert machine.run("dpkg", "--verify", "palm-access").stdout == ""


def test_13_the_way_back_lasts_as_long_as_its_python(on_bookworm: Gate) -> None:
    machine, before = on_bookworm.machine, verdict_seq(on_bookworm)
    on_bookworm.forget_films()
    machine.run("palm-access-rollback")
    assert on_bookworm.current() == version_of(BOOKWORM)
    serves_on(on_bookworm, before)
    before = verdict_seq(on_bookworm)
    on_bookworm.forget_films()
    machine.run("palm-access-rollback")
    machine.run("apt-mark", "auto", "python3.11")  # as on a board, where Debian installed it
    machine.run("apt-get", "autoremove", "-y", within_s=600)
    machine.run("sh", "-c", "! test -e /usr/bin/python3.11")
    refused = machine.run("palm-access-rollback", fails=True)
    assert refused.returncode == 1
    assert "/usr/bin/python3.11 is not here" in refused.stdout
    serves_on(on_bookworm, before)
