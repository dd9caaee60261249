"""The daemon as its users meet it: a process, a camera that is a folder, a cable that is a pty."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from device.wipe.wipe import Wipe, WipeStage, begin_wipe
from link1.events import ErrorReceived
from link1.objects import PREV_REF_OF_FIRST, VerdictResult
from link1.validator.desk import RequestEnded, VerdictAnswered
from link1.validator.events import DeviceProven
from models.manifest import shipped_model_dir
from tests.device.whole_device import (
    Device,
    answered,
    attempts,
    make_device,
    nobody,
    pictures,
    until,
    validator_at,
    validator_of,
)
from tests.palmctl import PALMCTL
from tools.kit.pty_pair import PtyPair


async def test_a_known_palm_becomes_a_verdict_and_the_chain_goes_on(device: Device) -> None:
    with PtyPair() as pair, device.running() as process:
        port = device.plug(pair)
        async with validator_at(port, device.board) as validator:
            await validator.wait_serving()
            refs = [PREV_REF_OF_FIRST]
            for _ in range(2):
                async for said in attempts(device, validator, pictures()):
                    assert (said.verdict.verdict_seq, said.verdict.prev_ref) == (len(refs), refs[-1])
                    refs.append(said.verdict_ref)
                assert said.verdict.result is VerdictResult.MATCH
                assert said.verdict.subject_ref == "0" * 32
                assert said.choice.actuated
            status = await asyncio.to_thread(device.status)
            assert status.serving is True
            assert status.verdict_seq == len(refs) - 1
            assert status.latency.count == len(refs) - 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


async def test_a_stranger_is_rejected_and_an_empty_gate_gets_no_verdict(device: Device) -> None:
    async with validator_of(device) as validator:
        await validator.wait_serving()
        validator.arm(500)
        ended = await validator.wait_for(RequestEnded)
        assert ended.why == "expired"
        said = [one async for one in attempts(device, validator, pictures(seed=77, occasion=1))]
        assert said[-1].verdict.result is VerdictResult.NO_MATCH
        assert said[-1].verdict.subject_ref is None
        assert said[0].verdict.verdict_seq == 1


async def test_a_kill_loses_nothing_that_was_promised(device: Device) -> None:
    """After SIGKILL the chain goes on where it was, and what was open is asked about."""

    with PtyPair() as pair:
        port = device.plug(pair)
        with device.running() as process:
            async with validator_at(port, device.board) as validator:
                await validator.wait_serving()
                last = await answered(device, validator, pictures())
            process.kill()
            process.wait(20)
        with device.running():
            seq, ref = last.verdict.verdict_seq, last.verdict_ref
            async with validator_at(port, device.board) as validator:
                status = (await validator.wait_serving()).status
                assert status.last is not None
                assert (status.last.verdict_seq, status.last.verdict_ref) == (seq, ref)
                said = [one async for one in attempts(device, validator, pictures(occasion=9001))]
                assert (said[0].verdict.verdict_seq, said[0].verdict.prev_ref) == (seq + 1, ref)


@pytest.mark.parametrize("is_wiped", [False, True])
async def test_once_it_is_ready_it_looks_for_garbage(device: Device, is_wiped: bool) -> None:
    """As it does not while it starts: without that, a daemon that runs for months would only grow."""
    found = device.folder / "found"
    program = f"""
import gc
from pathlib import Path
from device.core import main
from device.platform import sd_notify
def noted(_text):
    Path({str(found)!r}).write_text(str(gc.isenabled()))
sd_notify.ready = noted
main.main()
"""
    if is_wiped:
        of = device.config.device
        begin_wipe(of.state_dir, Wipe(WipeStage.CONFIRMED, "0" * 32, of.id, of.gate_id, of.dbd_id))
    with PtyPair() as pair:
        device.plug(pair)
        with device.altered(program):
            await until(found.exists)
            await until(lambda: found.read_text() != "")
    assert found.read_text() == "True"


async def test_a_cut_cable_is_a_state_and_not_an_end(device: Device) -> None:
    with PtyPair(show_close=True) as pair, device.running():
        port = device.plug(pair)
        async with validator_at(port, device.board) as validator:
            await validator.wait_serving()
        pair.close()
        await until(lambda: "LINK_DOWN" in device.health())
        assert (await asyncio.to_thread(device.status)).cable.state == "down"
        with PtyPair() as again:
            port = device.plug(again)
            async with validator_at(port, device.board) as validator:
                await validator.wait_serving()
                said = await answered(device, validator, pictures())
                assert said.verdict.result is VerdictResult.MATCH


async def test_a_port_that_is_back_is_no_longer_said_to_be_absent(device: Device) -> None:
    with device.running(), PtyPair() as pair:
        await until(lambda: "there is no such port" in device.health()["LINK_DOWN"])
        device.plug(pair)
        await until(lambda: device.status().cable.message == "open")
        assert device.health()["LINK_DOWN"] == "no validator has proved itself yet"


async def test_an_absent_camera_is_told_answered_for_and_taken_back(tmp_path: Path) -> None:
    device = make_device(tmp_path, fill_camera=False)
    async with validator_of(device) as validator:
        await validator.wait_for(DeviceProven)
        await until(lambda: "is absent" in device.health().get("CAMERA_FAULT", ""))
        validator.arm(1_000)
        said = await validator.wait_for(VerdictAnswered)
        assert said.verdict.result is VerdictResult.NOT_READY
        device.writer.make_folder()
        device.writer.put(nobody())
        await validator.wait_serving()
        said = await answered(device, validator, pictures())
        assert said.verdict.result is VerdictResult.MATCH


async def test_a_model_of_another_hash_takes_recognition_away_and_nothing_else(tmp_path: Path) -> None:
    spoilt = tmp_path / "model"
    shutil.copytree(shipped_model_dir(), spoilt)
    onnx = next(spoilt.glob("*.onnx"))
    data = bytearray(onnx.read_bytes())
    data[len(data) // 2] ^= 1
    onnx.write_bytes(data)
    device = make_device(tmp_path, model_dir=spoilt)
    async with validator_of(device) as validator:
        await validator.wait_for(DeviceProven)
        await until(lambda: "MODEL_FAULT" in device.health())
        health = await asyncio.to_thread(device.health)
        assert "install the model again" in health["MODEL_FAULT"]
        said = await answered(device, validator, pictures())
        assert said.verdict.result is VerdictResult.NOT_READY


def test_garbage_on_the_cable_is_counted_and_survived(device: Device) -> None:
    async def story(port: str) -> None:
        async with validator_at(port, device.board) as validator:
            await validator.wait_serving()
            assert not [event for event in validator.events if isinstance(event, ErrorReceived)]

    with PtyPair() as pair, device.running():
        port = device.plug(pair)
        Path(port).write_bytes(bytes(range(256)) * 40)
        asyncio.run(story(port))


@pytest.mark.parametrize(
    ("spoil", "code", "says"),
    [
        ("keys/verdict.key", 1, "palmctl factory-reset"),
        ("trust.json", 3, "palmctl provision"),
        ("journal.db", 1, "journal"),
    ],
)
def test_what_is_missing_from_the_state_is_never_made_anew(
    device: Device, spoil: str, code: int, says: str
) -> None:
    """A silent new start would fork the chain of verdicts."""
    path = device.config.device.state_dir / spoil
    path.unlink()
    for extra in path.parent.glob(f"{path.name}-*"):
        extra.unlink()
    exit_code, said = device.run_to_end()
    assert exit_code == code
    assert says in said
    assert not path.exists()


@pytest.mark.parametrize("name", ["keys/verdict.key", "trust.json", "journal.db"])
def test_a_half_written_state_is_refused_with_the_way_out(device: Device, name: str) -> None:
    path = device.config.device.state_dir / name
    half = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(half)
    exit_code, said = device.run_to_end()
    assert exit_code == 1
    assert path.name in said
    assert "regist" in said or "then provision it with a new token" in said
    assert path.read_bytes() == half


def test_a_configuration_with_wrong_members_is_named_member_by_member(device: Device) -> None:
    path = device.board.config_path
    text = (
        path.read_text().replace("[camera]\n", "[camera]\nfsp = 7\n").replace('look = "rgb"', 'look = "uv"')
    )
    path.write_text(text)
    for extra in ([], ["--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "device.core.main", "--config", str(path), *extra],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert done.returncode == 1
        assert "fsp" in done.stderr
        assert "look" in done.stderr


def test_a_folder_for_the_sockets_that_cannot_be_made_is_named_with_the_next_step(device: Device) -> None:
    device.config.device.runtime_dir.rmdir()
    device.config.device.runtime_dir.write_text("no folder")
    code, said = device.run_to_end()
    assert code == 1
    assert f"{device.config.device.runtime_dir}/carrier cannot be made (Not a directory)" in said
    assert "check [device] runtime_dir" in said


def test_check_says_that_a_good_configuration_can_be_used(device: Device) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "device.core.main", "--config", str(device.board.config_path), "--check"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_palmctl_status_tells_programs_and_people(device: Device) -> None:
    command = [*PALMCTL, "status", "--config", str(device.board.config_path)]
    absent = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert absent.returncode == 3
    assert "is palmd running?" in absent.stderr
    with device.running():
        asyncio.run(until(lambda: device.status().camera.condition == "ok"))
        asyncio.run(until(lambda: device.status().serving))
        told = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=30, check=True)
        status, key = json.loads(told.stdout), device.board.verdict_key
        assert status["device_id"] == "palm-bench"
        assert status["verdict_key"] == {"kid": key.kid, "alg": "ed25519", "pub_b64": key.b64}
        shown = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
        assert "serving" in shown.stdout and f"  {key.b64} (verdict key" in shown.stdout
