"""The Debian package of the reference server, without the wheels of the lock."""

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.packaging.release.conftest import EPOCH
from tests.palmctl import PALMCTL
from tools.rig.packaging.release.server_deb import FILES, ServerBuild, build_server_deb
from tools.rig.packaging.wheels import BuildTarget

pytestmark = pytest.mark.timeout(600)
DEBIAN = REPOSITORY / "tools/rig/packaging/cloud/debian"


def order(wheels: Path, folder: Path) -> ServerBuild:
    target = BuildTarget("arm64", "3.13")
    return ServerBuild(REPOSITORY, wheels, target, "1.2.3-4", EPOCH, folder / "cache", folder)


@pytest.fixture(scope="module")
def package(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_server_deb(order(wheels, tmp_path_factory.mktemp("deb")), lock_text="")


@pytest.fixture(scope="module")
def listing(package: Path) -> dict[str, str]:
    """{path: mode and owner}."""
    listed = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout
    lines = (line.split(maxsplit=5) for line in listed.splitlines())
    return {words[5].partition(" -> ")[0].removeprefix("."): f"{words[0]} {words[1]}" for words in lines}


@pytest.mark.long
def test_the_same_sources_give_the_same_bytes(package: Path, wheels: Path, tmp_path: Path) -> None:
    again = build_server_deb(order(wheels, tmp_path / "again"), lock_text="")
    assert again.read_bytes() == package.read_bytes()


def test_everything_is_roots_and_the_configuration_is_roots_alone(listing: dict[str, str]) -> None:
    assert all(shown.endswith(" root/root") for shown in listing.values())
    assert listing["/etc/palm-access-cloud/server.env"].startswith("-rw------- ")
    executables = {path for path, shown in listing.items() if shown.startswith("-rwx")}
    assert executables == {
        "/opt/palm-access-cloud/bin/palmctl",
        "/usr/bin/palm-access-cloud",
        "/usr/libexec/palm-access-cloud/backup",
    }
    assert set(FILES.values()) <= listing.keys()
    assert "/usr/share/man/man8/palm-access-cloud.8.gz" in listing


def test_it_holds_server_and_command_line_but_neither_kit_nor_rig(listing: dict[str, str]) -> None:
    site = "/opt/palm-access-cloud/lib/python3.13/site-packages"
    assert f"{site}/cloud_client/reference_server/ops/serve.py" in listing
    assert f"{site}/tools/cloud/command.py" in listing
    assert not any(path.startswith((f"{site}/tools/rig/", f"{site}/tools/kit/")) for path in listing)


def test_the_same_package_does_not_collide_with_the_devices(listing: dict[str, str]) -> None:
    files = {path for path, shown in listing.items() if not shown.startswith("d")}
    assert all("palm-access-cloud" in path for path in files), "a server may be on a machine with the device"


def test_the_example_configuration_is_what_shell_and_systemd_both_read(tmp_path: Path) -> None:
    text = re.sub(r"^#(?=PALM_)", "", (DEBIAN / "server.env").read_text(), flags=re.MULTILINE)
    (tmp_path / "server.env").write_text(text)
    shown = subprocess.run(
        ["sh", "-c", f"set -a; . {tmp_path}/server.env; env | grep ^PALM_CLOUD_ | sort"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    # systemd takes the value between single quotes as it is (systemd.exec(5), EnvironmentFile=).
    lines = (line.partition("=") for line in text.splitlines() if line and line[0] != "#")
    assert shown.splitlines() == sorted(f"{name}={value.strip(chr(39))}" for name, _, value in lines)
    assert "PALM_CLOUD_DATABASE=postgresql:///palm?host=/run/postgresql" in shown


def test_a_backup_that_was_cut_off_takes_the_place_of_none(tmp_path: Path) -> None:
    base, program, script = tmp_path / "backups", tmp_path / "palmctl", tmp_path / "backup"
    text = (DEBIAN / "backup").read_text().replace("/var/backups/palm-access-cloud", str(base))
    script.write_text(text.replace("/opt/palm-access-cloud/bin/palmctl", str(program)))
    base.mkdir()
    environment = os.environ | {"PALM_CLOUD_DATA": str(tmp_path), "PALM_CLOUD_BACKUPS": "2"}
    subprocess.run([*PALMCTL, "cloud", "tenant", "create", "acme"], env=environment, check=True)

    def backed_up(then: str) -> int:
        program.write_text(f'#!/bin/sh\n{shlex.join(PALMCTL)} "$@"\n{then}\n')
        program.chmod(0o755)
        done = subprocess.run(
            ["/bin/sh", script], env=environment, cwd=REPOSITORY, start_new_session=True, check=False
        )
        return done.returncode

    def named() -> list[str]:
        return sorted(path.name for path in base.iterdir() if path.suffix != ".part")

    for name in ("2026-01-01T000000Z", "2026-01-02T000000Z"):
        (base / name).mkdir()
    # As when the machine goes down: the whole group ends, and nothing is cleared up.
    assert backed_up("kill -KILL 0") == -signal.SIGKILL
    assert named() == ["2026-01-01T000000Z", "2026-01-02T000000Z"]
    (cut_off,) = base.glob("*.part")
    left = cut_off.rename(base / "2026-01-03T000000Z.part")  # two in one second have one name
    long_ago = time.time() - 2 * 24 * 3600
    os.utime(left, (long_ago, long_ago))
    assert backed_up("") == 0
    assert not left.exists()
    assert named()[0] == "2026-01-02T000000Z"
    assert [path.name for path in (base / named()[1]).iterdir()] == ["cloud.db"]
