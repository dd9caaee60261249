"""The package on Debian: installed, provisioned, serving, upgraded, rolled back, removed, purged."""

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.cloud_client.server.server_process import start
from tests.packaging.debian_tree import (
    DEBIAN_TREES,
    EACH_RELEASE,
    SOURCE,
    Machine,
    booted,
    package_of,
    unpacked,
    version_of,
)
from tools.rig.demo.errors import DemoFailed
from tools.rig.demo.programs import palmctl
from tools.rig.demo.waiting import wait_until
from tools.rig.packaging.debian_package import DebianRelease
from tools.rig.packaging.tree import own_version

pytestmark = [*DEBIAN_TREES, EACH_RELEASE]
SECOND = f"{own_version(SOURCE)}-2"
_MAGIC = "import importlib.util; print(importlib.util.MAGIC_NUMBER.hex())"
_CONNECT = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
_NOT_OURS = ("/proc", "/sys", "/dev", "/run/host")
"""The kernel's, and systemd-nspawn's."""


def next_version(first: Path, version: str, folder: Path) -> Path:
    """The same package as another version, uncompressed: what tells a version is in few files."""
    tree, path = folder / "tree", folder / f"palm-access_{SECOND}_amd64.deb"
    subprocess.run(["dpkg-deb", "-R", first, tree], check=True)
    told = [*(tree / "DEBIAN").iterdir(), *(tree / "opt/palm-access/package/bin").iterdir()]
    for file in (*told, tree / "opt/palm-access/package/VERSION"):
        if not file.is_symlink() and file.name != "md5sums":
            file.write_text(file.read_text().replace(version, SECOND))
    sums = [
        f"{hashlib.md5(file.read_bytes(), usedforsecurity=False).hexdigest()}  {file.relative_to(tree)}\n"
        for file in sorted(tree.rglob("*"))
        if file.is_file()
        and not file.is_symlink()
        and file.relative_to(tree).parts[0] not in {"DEBIAN", "etc"}
    ]
    (tree / "DEBIAN" / "md5sums").write_text("".join(sums))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, path], check=True)
    shutil.rmtree(tree)
    return path


@pytest.fixture(scope="module")
def machine(release: DebianRelease, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    first = package_of(release, "amd64")
    with unpacked("amd64", release, "amd64") as root:
        shutil.copy(first, root / "root")
        second = next_version(first, version_of(release), tmp_path_factory.mktemp("next"))
        shutil.move(second, root / "root")
        with booted(root, release) as running:
            yield running


@pytest.fixture(scope="module")
def service(release: DebianRelease, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A reference server on the machine outside, its address and a provisioning token; each release's machine
    has its own, for a token is good for one device's keys."""
    folder = tmp_path_factory.mktemp(f"cloud-{release.suite}")
    data = folder / "cloud"
    running = start(data, folder / "log", None, "--admin-port", "0")
    try:
        tenant_id = palmctl("cloud", "tenant", "create", "deb-test", "--data", str(data))["tenant_id"]
        place = ("--data", str(data), "--tenant", tenant_id, "--mode", "test")
        validator = palmctl("dbd", "key", "--generate", "--key-file", str(folder / "validator.key"))
        palmctl("cloud", "dbd", "add", *place, "--dbd-id", "dbd-1", "--pub-b64", validator["pub_b64"])
        yield (
            running.url,
            palmctl("cloud", "token", "create", *place, "--device-id", "gate-1-left")["token"],
        )
    finally:
        running.process.terminate()
        running.process.wait(20)


def install(machine: Machine, version: str) -> str:
    return machine.run(
        "apt-get", "install", "-y", "--no-install-recommends", f"/root/palm-access_{version}_amd64.deb"
    ).stdout


def current(machine: Machine) -> str:
    return machine.run("readlink", "/opt/palm-access/current").stdout.strip()


def status(machine: Machine) -> dict[str, object]:
    """`palmctl status --json`; a gate without a validator at its cable does not serve, and exits with 1."""
    told = machine.run("palmctl", "status", "--json", fails=True)
    assert told.returncode in {0, 1}
    parsed: dict[str, object] = json.loads(told.stdout.splitlines()[-1])
    return parsed


def online(machine: Machine) -> bool:
    return bool(status(machine)["cloud"]["online"])  # type: ignore[index]


def wait_for(what: str, machine: Machine, unit: str, within_s: float = 60.0) -> None:
    try:
        wait_until(f"{unit} to be {what}", within_s, lambda: machine.state_of(unit) == what, every_s=1)
    except DemoFailed:
        machine.run("journalctl", "-u", unit, "-n", "40", "--no-pager")
        raise


def digest_of_state(machine: Machine) -> str:
    return machine.run("sh", "-c", "cd /var/lib/palm-access && sha256sum keys/*.key").stdout


def test_01_installed_a_bare_board_waits_to_be_provisioned(machine: Machine) -> None:
    first = version_of(machine.release)
    install(machine, first)
    assert current(machine) == f"versions/{first}"
    assert machine.run("dpkg", "--verify", "palm-access").stdout == ""
    byte_code = next(
        (machine.root / "opt/palm-access/current/lib").glob("*/site-packages/device/core/**/main.*.pyc")
    )
    magic = machine.run("/opt/palm-access/current/bin/python", "-I", "-c", _MAGIC).stdout.strip()
    assert byte_code.read_bytes()[:4].hex() == magic, "the board would compile what it starts"
    for unit in ("palmd", "palm-syncd", "palm-update.path"):
        assert machine.run("systemctl", "is-enabled", unit).stdout.strip() == "enabled"
    assert machine.state_of("palmd") == machine.state_of("palm-syncd") == "inactive"
    assert machine.run("systemctl", "--failed", "--no-legend").stdout == ""
    assert machine.run("stat", "-c", "%U %a", "/var/lib/palm-access").stdout == "palm-access 700\n"
    assert "usage" in machine.run("palmd", "--help").stdout
    assert "usage" in machine.run("palm-syncd", "--help").stdout
    assert "provision" in machine.run("palmd", "--check", fails=True).stdout
    groups = machine.run("id", "-nG", "palm-access").stdout.split()
    assert {"video", "dialout"} <= set(groups)
    completed = machine.run(
        "env", "_PALMCTL_COMPLETE=bash_complete", "COMP_WORDS=palmctl pro", "COMP_CWORD=1", "palmctl"
    )
    assert "plain,provision" in completed.stdout


def test_02_provisioned_and_ready(machine: Machine, service: tuple[str, str]) -> None:
    url, token = service
    camera = machine.root / "srv" / "camera"
    camera.mkdir(parents=True)
    for number in range(3):
        cv2.imwrite(str(camera / f"{number}.png"), np.full((480, 640, 3), 96, np.uint8))
    machine.run(
        "palmctl", "provision", "--server", url, "--token-stdin",
        "--device-id", "gate-1-left", "--gate-id", "gate-1", "--dbd-id", "dbd-1",
        "--camera", "file:/srv/camera", "--camera-fps", "2",
        given=token + "\n",
    )  # fmt: skip
    assert machine.run("find", "/var/lib/palm-access", "!", "-user", "palm-access").stdout == ""
    assert "can be used" in machine.run("palmd", "--check").stdout
    machine.run("systemctl", "start", "palmd", "palm-syncd")
    wait_for("active", machine, "palmd")
    wait_for("active", machine, "palm-syncd")
    told = status(machine)
    assert told["device_id"] == "gate-1-left"
    machine.run("palmctl", "status", fails=True)
    machine.run("systemctl", "status", "--no-pager", "palmd", "palm-syncd", fails=True)
    wait_until("the carrier to be online", 60, lambda: online(machine), every_s=1)


def test_03_the_daemons_write_nothing_but_their_state_and_nothing_there_runs(machine: Machine) -> None:
    for unit, state in (("palmd", {"/var/lib/palm-access", "/run/palm-access"}), ("palm-syncd", set[str]())):
        pid = machine.run("systemctl", "show", "-P", "MainPID", unit).stdout.strip()
        mounts = [line.split() for line in machine.run("cat", f"/proc/{pid}/mountinfo").stdout.splitlines()]
        places = {mount[4]: set(mount[5].split(",")) for mount in mounts}
        own = {place: flags for place, flags in places.items() if not place.startswith(_NOT_OURS)}
        assert {place for place, flags in own.items() if "rw" in flags} == {"/tmp", "/var/tmp", *state}
        assert all("noexec" in flags for flags in own.values() if "rw" in flags)
    # The core has a network of its own, with nothing in it.
    pid = machine.run("systemctl", "show", "-P", "MainPID", "palmd").stdout.strip()
    assert len(machine.run("cat", f"/proc/{pid}/net/route").stdout.splitlines()) <= 1  # a heading
    assert machine.run("ls", "/nonexistent", fails=True).returncode != 0


def test_03_the_carrier_sees_one_socket_and_no_file_of_the_device(machine: Machine) -> None:
    modes = machine.run("sh", "-c", "cd /run/palm-access && stat -c '%n %U:%G %a' * */*").stdout
    assert modes.splitlines() == [
        "carrier palm-access:palm-syncd 2750",
        "control palm-access:palm-access 2750",
        "control.sock palm-access:palm-access 660",
        "totem palm-access:palm-totem 2750",
        "carrier/sock palm-access:palm-syncd 660",
        "control/sock palm-access:palm-access 660",
        "totem/sock palm-access:palm-totem 660",
    ]
    pid = machine.run("systemctl", "show", "-P", "MainPID", "palm-syncd").stdout.strip()
    assert machine.run("ps", "-o", "user=", "-p", pid).stdout.strip() == "palm-syncd"
    inside = ("nsenter", "--target", pid, "--mount")
    assert machine.run(*inside, "find", "/run/palm-access", "-type", "s").stdout.split() == [
        "/run/palm-access/carrier/sock"
    ]
    assert "No such" in machine.run(*inside, "ls", "/var/lib/palm-access/trust.json", fails=True).stdout
    for path, open_to_carrier in (("carrier/sock", True), ("control/sock", False), ("control.sock", False)):
        done = machine.run(
            *("setpriv", "--reuid", "palm-syncd", "--regid", "palm-syncd", "--clear-groups"),
            *(f"python{machine.release.python}", "-c", _CONNECT, f"/run/palm-access/{path}"),
            fails=True,
        )
        assert (done.returncode == 0) is open_to_carrier, done.stdout


def test_04_killed_it_comes_back(machine: Machine) -> None:
    def pid() -> str:
        return machine.run("systemctl", "show", "-P", "MainPID", "palmd").stdout.strip()

    before = pid()
    machine.run("kill", "-KILL", before)
    wait_until("palmd to be started again", 60, lambda: pid() not in {before, "0"}, every_s=0.5)
    wait_for("active", machine, "palmd")


def test_05_upgraded_with_its_state_and_the_way_back(machine: Machine) -> None:
    keys = digest_of_state(machine)
    install(machine, SECOND)
    assert current(machine) == f"versions/{SECOND}"
    assert digest_of_state(machine) == keys
    wait_for("active", machine, "palmd")
    wait_for("active", machine, "palm-syncd")
    pid = machine.run("systemctl", "show", "-P", "MainPID", "palmd").stdout.strip()
    assert SECOND in machine.run("cat", f"/proc/{pid}/cmdline").stdout
    listed = machine.run("palm-access-rollback", "--list").stdout
    assert listed.splitlines() == [f"  {version_of(machine.release)}", f"* {SECOND}"]


def test_06_rolled_back_and_forth(machine: Machine) -> None:
    machine.run("palm-access-rollback")
    wait_for("active", machine, "palmd")
    assert current(machine) == f"versions/{version_of(machine.release)}"
    assert status(machine)["device_id"] == "gate-1-left"
    refused = machine.run("palm-access-rollback", "9.9", fails=True)
    assert refused.returncode == 1
    assert "is not here" in refused.stdout
    machine.run("palm-access-rollback", SECOND)
    assert current(machine) == f"versions/{SECOND}"
    wait_for("active", machine, "palmd")


def test_07_installed_again_over_itself(machine: Machine) -> None:
    machine.run("dpkg", "-i", f"/root/palm-access_{SECOND}_amd64.deb")
    wait_for("active", machine, "palmd")
    assert current(machine) == f"versions/{SECOND}"
    assert machine.run("dpkg", "--verify", "palm-access").stdout == ""


def test_08_removed_the_state_stays(machine: Machine) -> None:
    keys = digest_of_state(machine)
    said = machine.run("apt-get", "remove", "-y", "palm-access").stdout
    assert "keys, gallery and journal stay" in said
    assert digest_of_state(machine) == keys
    assert machine.run("ls", "/opt/palm-access", fails=True).returncode != 0
    assert machine.run("pgrep", "-f", "palmd", fails=True).returncode != 0
    install(machine, SECOND)
    wait_for("active", machine, "palmd")
    assert status(machine)["device_id"] == "gate-1-left"


def test_09_purged_nothing_stays(machine: Machine) -> None:
    said = machine.run("apt-get", "purge", "-y", "palm-access").stdout
    assert "no device any more" in said
    for place in ("/var/lib/palm-access", "/etc/palm-access", "/run/palm-access", "/opt/palm-access"):
        assert not (machine.root / place[1:]).exists(), place
    ours = r"\( -name 'palm-*' -o -name 'palmd*' -o -name 'palmctl*' -o -name '_palmctl' \)"
    left = machine.run("sh", "-c", f"find / -xdev {ours} ! -path '/root/*' ! -path '/proc/*'")
    assert left.stdout == ""
