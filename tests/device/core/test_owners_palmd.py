"""The daemon where some of its state is another user's, or is no file: it says so, and waits for nothing."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.device.doctor.test_without_root import AS_NOBODY, NOBODY
from tests.device.whole_device import WITHIN_S, Device, make_device

as_another_user = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs root to become another user"
)


@pytest.fixture
def device() -> Iterator[Device]:
    folder = Path(tempfile.mkdtemp(prefix="palm-owners-"))  # pytest's own folders are closed to other users
    folder.chmod(0o755)
    made = make_device(folder)
    give(folder, NOBODY)
    yield made
    shutil.rmtree(folder)


def give(folder: Path, user: int) -> None:
    subprocess.run(["chown", "-R", f"{user}:{user}", folder], check=True)


def palmd(device: Device) -> "subprocess.Popen[str]":
    words = [*AS_NOBODY, sys.executable, "-m", "device.core.main", "--config", str(device.board.config_path)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True)


@as_another_user
def test_a_gallery_of_another_user_is_a_fault_of_the_store_and_no_reason_to_end(device: Device) -> None:
    device.config.gallery_dir.chmod(0o700)
    give(device.config.gallery_dir, 0)
    process = palmd(device)
    try:
        assert process.stderr is not None and any("ready: " in line for line in process.stderr)
        assert "Permission denied" in device.health()["STORE_FAULT"]
    finally:
        process.kill()
        process.communicate()


@as_another_user
@pytest.mark.parametrize("mode", [0o644, 0o600])
def test_a_journal_of_another_user_is_not_taken_for_a_damaged_one(device: Device, mode: int) -> None:
    give(device.config.journal_path, 0)
    device.config.journal_path.chmod(mode)
    process = palmd(device)
    said = process.communicate(timeout=WITHIN_S)[1]
    assert process.returncode == 1
    assert f"{device.config.journal_path} cannot be" in said and "check its owner and mode" in said
    assert "factory-reset" not in said


@pytest.mark.parametrize("name", ["trust.json", "wipe.json", "journal.db"])
def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    device = make_device(tmp_path)
    path = device.config.device.state_dir / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    code, said = device.run_to_end()
    assert code == 1 and f"{path} cannot be read (expected a plain file, found a FIFO)" in said


def test_a_pipe_in_the_place_of_the_attestations_record_counts_as_no_record(tmp_path: Path) -> None:
    device = make_device(tmp_path)
    os.mkfifo(device.config.device.state_dir / "attest.json")
    with device.running():
        assert "KEY_UNATTESTED" in device.health()
