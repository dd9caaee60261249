"""The first hour of docs/howto/RELEASE.md, typed (`make release-test`): a bare Debian becomes a gate."""

import time
from pathlib import Path

from tests.docs.board_in_a_tree import Board
from tests.docs.first_hour import Learned
from tests.docs.page_commands import DOCS, Command, blocks_of, check_shown
from tests.packaging.debian_tree import EACH_RELEASE, booted, unpacked
from tests.packaging.release.test_whole_release import pytestmark as of_a_release
from tools.rig.demo.programs import palmctl
from tools.rig.packaging.debian_package import DebianRelease

pytestmark = [*of_a_release, EACH_RELEASE]
MOST_COMMANDS, MOST_S = 10, 600.0
"""An installer types no more and waits no longer; downloads do not count."""
FOLDER = "/srv/release"
VALIDATOR = (
    "palmctl dbd simulate --port $PORT --device-pub-b64 $DEVICE_KEY --key-file /root/dbd-7.key "
    "--dbd-id dbd-7 --gate-id gate-7"
)


def test_a_bare_debian_and_the_release_are_a_gate_that_serves(
    releases: list[Path], release: DebianRelease, tmp_path: Path
) -> None:
    (block,) = blocks_of(DOCS / "howto/RELEASE.md")
    assert len(block.commands) <= MOST_COMMANDS
    learned = Learned(FOLDER=str(tmp_path))
    made = palmctl("dbd", "key", "--generate", "--key-file", str(tmp_path / "dbd-7.key"))
    learned["VALIDATOR_KEY"] = made["pub_b64"]
    # Without a network of this machine: everything comes from the folder, and no port is taken here.
    alone = ["--private-network", f"--bind-ro={releases[0]}:{FOLDER}"]
    with unpacked("amd64", release, "release") as root, booted(root, release, alone) as machine:
        board = Board(machine, learned, FOLDER)
        told: list[tuple[Command, str, float]] = []
        try:
            for command in block.commands:
                began = time.monotonic()
                printed = board.run(command)
                told.append((command, printed, time.monotonic() - began))
                print(f"$ {command.text}\n{printed}({told[-1][2]:.1f} s)", flush=True)
            board.run_on(Command(VALIDATOR, ()))
            assert "serving   yes" in board.run(Command("palmctl status", ()))
        finally:
            board.stop()
    for command, printed, took_s in told:
        print(f"{took_s:6.1f} s  {command.text}")
        check_shown(command.shown, printed)
    assert sum(took_s for _, _, took_s in told) < MOST_S
