"""`palmctl` typed by nobody on a gate that is well: it says that this user is not root, and nothing is wrong.

The modes are those of an installation: the state directory 0700, the runtime directory 0750, the
configuration for everybody to read.
"""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.device.whole_device import WITHIN_S, Device, make_device, validator_at
from tools.kit.pty_pair import PtyPair

NOBODY = 65_534
AS_NOBODY = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups")
pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root to become somebody else"
)

OF_ROOT = {
    "provisioned",
    "ownership",
    "daemon",
    "camera",
    "picture",
    "cable",
    "validator",
    "gallery",
    "telemetry",
}
"""What only root sees on this gate."""
COMMANDS: dict[str, tuple[str, ...]] = {
    "doctor": ("doctor",),
    "doctor-json": ("doctor", "--json"),
    "status": ("status",),
    "status-json": ("status", "--json"),
    "watch": ("status", "--watch"),
    "preview": ("preview",),
    "totem": ("totem",),
    "update": ("update", "status"),
    "pass": ("pass",),
    "enrol": ("enrol", "--accept-terms", "v1"),
    "factory-reset": ("factory-reset", "--yes-i-mean", "another"),
    "keys": ("keys", "encrypt"),
    "config-show": ("config", "show"),
    "config-check": ("config", "check"),
    "config-set": ("config", "set", "camera.fps", "29"),
    "model": ("model", "check"),
    "support-bundle": ("support-bundle", "bundle.tar.gz", "--json"),
}

ALL_OF_THEM = """
import json, sys
from click.testing import CliRunner
from tools.palmctl.main import main

for name, words in json.load(sys.stdin).items():
    done = CliRunner().invoke(main, words)
    print(json.dumps([name, done.exit_code, done.stdout, done.stderr]))
"""
"""One interpreter for every command: what it imports is most of what a command takes."""


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


Said = dict[str, Done]


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder whose way everybody may walk, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="palm-not-root-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def said(place: Path) -> Said:
    device = make_device(place)
    device.config.device.state_dir.chmod(0o700)
    device.config.device.runtime_dir.chmod(0o750)
    device.board.config_path.chmod(0o644)
    desk = place / "nobody"
    desk.mkdir()
    os.chown(desk, NOBODY, NOBODY)
    told: Said = {}
    with PtyPair() as pair, device.running():
        (place / "cable").symlink_to(pair.left)

        async def joined() -> None:
            async with validator_at(pair.right, device.board) as other:
                await other.wait_serving()
                told["root"] = (await asyncio.to_thread(run, device, {"x": ("doctor", "--json")}, desk, ()))[
                    "x"
                ]
                told.update(await asyncio.to_thread(run, device, COMMANDS, desk, AS_NOBODY))

        asyncio.run(joined())
    return told


def run(device: Device, commands: dict[str, tuple[str, ...]], desk: Path, user: tuple[str, ...]) -> Said:
    done = subprocess.run(
        [*user, sys.executable, "-c", ALL_OF_THEM],
        env={**os.environ, "PALM_ACCESS_CONFIG": str(device.board.config_path), "HOME": str(desk)},
        cwd=desk,
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=2 * WITHIN_S,
        check=True,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: Done(code, stdout, stderr) for name, code, stdout, stderr in lines}


def results(done: Done) -> dict[str, str]:
    return {item["name"]: item["result"] for item in json.loads(done.stdout)["findings"]}


def test_the_gate_is_well(said: Said) -> None:
    found = results(said["root"])
    assert json.loads(said["root"].stdout)["as_root"] is True
    assert "fail" not in found.values() and "not_checked" not in found.values(), said["root"].stdout
    assert {found[name] for name in OF_ROOT} == {"ok"}


def test_the_doctor_checks_what_he_may_and_says_once_that_he_is_not_root(said: Said) -> None:
    done = said["doctor"]
    assert done.returncode == 4
    assert "✗" not in done.stdout
    assert done.stdout.startswith("You are not root")
    assert done.stdout.count("not root") == done.stdout.count("sudo") == 1
    for wrong in (
        "factory-reset",
        "systemctl start",
        "is there and free",
        "provision`",
    ):
        assert wrong not in done.stdout, done.stdout


def test_json_has_a_word_of_its_own_for_it(said: Said) -> None:
    done = said["doctor-json"]
    told, found = json.loads(done.stdout), results(done)
    assert (done.returncode, told["as_root"]) == (4, False)
    assert {name for name, result in found.items() if result == "not_checked"} == OF_ROOT
    assert told["counts"]["not_checked"] == len(OF_ROOT)
    as_root = results(said["root"])
    assert {name: result for name, result in found.items() if name not in OF_ROOT} == {
        name: result for name, result in as_root.items() if name not in OF_ROOT
    }


@pytest.mark.parametrize(
    "name",
    [
        *("status", "status-json", "watch", "preview", "totem", "update", "pass", "enrol"),
        *("factory-reset", "keys", "config-set"),
    ],
)
def test_a_command_that_may_not_says_so_and_not_that_palmd_is_down(said: Said, name: str) -> None:
    done = said[name]
    assert done.returncode == 4, done.stderr
    assert done.stderr.count("palmctl: ") == 1 and "root" in done.stderr, done.stderr
    for wrong in ("systemctl start", "is palmd running", "nothing answers", "provision", "Traceback"):
        assert wrong not in done.stderr, done.stderr
    if name == "status-json":
        assert json.loads(done.stdout)["error"]["code"] == "not_permitted"
    else:
        assert done.stdout == ""


@pytest.mark.parametrize("name", ["config-show", "config-check", "model"])
def test_what_everybody_may_read_is_shown(said: Said, name: str) -> None:
    assert (said[name].returncode, said[name].stderr) == (0, "")


def test_a_support_bundle_says_what_it_could_not_see(said: Said, place: Path) -> None:
    done = said["support-bundle"]
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout)["not_readable"]) == {"keys", "status", "trust"}
    with tarfile.open(place / "nobody/bundle.tar.gz") as bundle:
        held = {Path(entry.name).name: bundle.extractfile(entry) for entry in bundle.getmembers()}
        read = {name: json.load(file) for name, file in held.items() if file and name.endswith(".json")}
    assert "may not use" in read["status.json"]["problem"]
    assert "problem" in read["state.json"][0]
    assert "fail" not in {item["result"] for item in read["doctor.json"]}
