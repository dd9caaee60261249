"""`palmctl factory-reset`: what it says, whom it asks, what it leaves, what a cut leaves to do."""

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from device.journal.journal import Journal
from device.platform.clock import SystemClock
from device.trust.keystore import KeyStore
from device.wipe.wipe import Wipe, WipeStage, begin_wipe
from tests.device.whole_device import Device, make_device
from tools.palmctl.main import main


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return make_device(tmp_path)


def reset(device: Device, *more: str) -> Result:
    return CliRunner().invoke(
        main, ["factory-reset", "--config", str(device.board.config_path), *more], input=""
    )


def unsigned(txn_id: str, seq: int, prev_ref: str) -> dict[str, Any]:
    return {"verdict": {"verdict_seq": seq, "prev_ref": prev_ref, "txn_id": txn_id}}


def waiting(device: Device) -> int:
    """Two verdicts that the service does not have."""
    keys = KeyStore.open(device.config.keys_dir)
    journal = Journal(
        device.config.journal_path,
        device_id=device.config.device.id,
        verdict_kid=keys.verdict.kid,
        data_key=keys.data_key,
        clock=SystemClock(),
    )
    for number in range(2):
        txn_id = f"{number:032x}"
        journal.append_verdict(txn_id, "0" * 32, partial(unsigned, txn_id))
    pending = journal.pending_uploads()
    journal.close()
    return pending


def left(device: Device) -> list[str]:
    return sorted(path.name for path in device.config.device.state_dir.iterdir())


def test_it_says_in_numbers_what_goes_and_takes_it_all(device: Device) -> None:
    assert waiting(device) == 2
    done = reset(device, "--yes-i-mean", device.config.device.id, "--json")
    assert done.exit_code == 0, done.output
    assert "2 verdicts not yet uploaded" in done.stderr
    told = json.loads(done.stdout)
    assert told["done"] is True
    assert (told["lost"]["uploads_waiting"], told["lost"]["verdict_seq"]) == (2, 2)
    assert told["lost"]["templates"] > 0
    assert left(device) == []
    assert reset(device, "--yes-i-mean", device.config.device.id).exit_code == 3


@pytest.mark.parametrize(("more", "code"), [((), 2), (("--yes-i-mean", "another"), 1)])
def test_without_the_right_id_nothing_is_touched(device: Device, more: tuple[str, ...], code: int) -> None:
    before = left(device)
    done = reset(device, *more)
    assert done.exit_code == code
    assert left(device) == before and KeyStore.exists(device.config.keys_dir)


def test_a_palmd_that_runs_empties_the_device_itself_and_ends(device: Device) -> None:
    with device.running() as process:
        done = reset(device, "--yes-i-mean", device.config.device.id)
        assert done.exit_code == 0, done.stderr
        assert process.wait(20) == 0
    assert left(device) == []


@pytest.mark.parametrize("cut_at", [1, 3, 5])
def test_cut_off_anywhere_the_next_one_finishes_without_asking(
    device: Device, monkeypatch: pytest.MonkeyPatch, cut_at: int
) -> None:
    real, unlinked = Path.unlink, 0

    def until_the_cut(path: Path, missing_ok: bool = False) -> None:
        nonlocal unlinked
        unlinked += 1
        if unlinked > cut_at:
            raise KeyboardInterrupt
        real(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", until_the_cut)
    assert reset(device, "--yes-i-mean", device.config.device.id).exit_code == 130
    monkeypatch.undo()
    assert "wipe.json" in left(device)
    again = reset(device)
    assert again.exit_code == 0, again.output
    assert "was begun before" in again.stderr
    assert left(device) == []


def test_one_that_is_too_busy_to_answer_is_running_too(device: Device) -> None:
    with device.running() as process:
        process.send_signal(signal.SIGSTOP)
        done = reset(device, "--yes-i-mean", device.config.device.id)
        device.config.control_socket.unlink()
        hidden = reset(device, "--yes-i-mean", device.config.device.id)
    assert (done.exit_code, hidden.exit_code) == (1, 1)
    assert KeyStore.exists(device.config.keys_dir)


def test_a_wipe_that_the_service_does_not_know_of_is_told(device: Device) -> None:
    config = device.config
    ids = (config.device.id, config.device.gate_id, config.device.dbd_id)
    begin_wipe(config.device.state_dir, Wipe(WipeStage.ERASED, "0" * 32, *ids))
    assert "stage: confirmed" in reset(device).stderr
    assert reset(device, "--yes-i-mean", config.device.id).exit_code == 0
    assert left(device) == []


def test_of_a_device_that_was_wiped_nothing_more_is_said_to_be_lost(device: Device) -> None:
    config = device.config
    ids = (config.device.id, config.device.gate_id, config.device.dbd_id)
    begin_wipe(config.device.state_dir, Wipe(WipeStage.CONFIRMED, "0" * 32, *ids))
    done = reset(device, "--yes-i-mean", config.device.id)
    assert (done.exit_code, left(device)) == (0, [])
    assert "was wiped before" in done.stderr and "not yet uploaded" not in done.stderr


def test_a_folder_that_holds_no_device_is_left_alone(device: Device, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter.txt").write_text("Dear all")
    text = device.board.config_path.read_text()
    device.board.config_path.write_text(text.replace(str(device.config.device.state_dir), str(home)))
    done = reset(device, "--yes-i-mean", device.config.device.id)
    assert done.exit_code == 3 and f"{home} holds no device" in done.stderr
    assert (home / "letter.txt").read_text() == "Dear all"
