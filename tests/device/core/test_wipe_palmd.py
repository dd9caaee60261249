"""The wipe of the daemon itself: ordered by the service over the network or the mail, or by a technician."""

import asyncio
import json
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from device.doctor.case import take_case
from device.doctor.examine import examine
from device.errors import IpcError, IpcRefused
from device.platform.clock import SystemClock
from device.platform.ipc import IpcClient, ask_core
from device.values.control import DeviceNamed
from device.wipe.wipe import Wipe, WipeStage, begin_wipe
from link1.canonical import canonical_bytes
from link1.objects import VerdictResult
from link1.signed import Kind, sign_object
from link1.validator.mail import OutboxCollected
from tests.device.core.small_disk import refusing
from tests.device.state_scan import files_of, found_in, found_in_memory
from tests.device.status_makers import some_device_status
from tests.device.whole_device import (
    Device,
    answered,
    ask_carrier,
    pictures,
    until,
    validator_at,
)
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.board import DEVICE_ID
from tools.palmctl.commands.status import lines
from tools.palmctl.main import main
from tools.palmctl.reset import RESET_WITHIN_S, carry_out, who_is_here


def wipe_order(device: Device) -> bytes:
    wipe = {"wipe_id": "w-1", "reason": "stolen"}
    status = some_device_status(
        device_id=DEVICE_ID, status="revoked", issued_at_ms=1_800_000_000_000, gallery=None, wipe=wipe
    )
    return canonical_bytes(sign_object(Kind.DEVICE_STATUS, status, device.board.service_key))


async def test_a_revoked_device_destroys_everything_and_says_so_through_restarts(device: Device) -> None:
    state = device.config.device.state_dir
    secrets = {path.name: path.read_bytes() for path in (state / "keys").iterdir()}
    http = {"http.key": secrets.pop("http.key")}

    with PtyPair() as pair:
        port = device.plug(pair)
        with device.running():
            async with validator_at(port, device.board) as validator:
                await validator.wait_serving()
                assert (await ask_carrier(device, "status", wipe_order(device)))[0]["wiped"] == "w-1"
                assert set(files_of(state)) == {"wipe.json", "keys/http.key"}
                assert found_in(state, secrets) == []
                # While this process lives it can still say why it recognises nobody.
                said = await answered(device, validator, pictures())
                assert said.verdict.result is VerdictResult.NOT_READY
                assert "NOT_READY" in (await asyncio.to_thread(device.health))["REVOKED"]
                told = await asyncio.to_thread(device.status)
                assert (told.serving, told.gallery.templates) == (False, 0)
                assert (await ask_carrier(device, "hello"))[0]["wipe_id"] == "w-1"
                case = take_case(device.board.config_path, SystemClock())
                assert examine(case, ("gallery",))["gallery"].todo == "see the line `provisioned`"
            assert device.status().updates.fault == "this device is wiped"
        with device.running():
            told = await asyncio.to_thread(device.status)
            assert not told.serving
            assert "palmctl factory-reset" in "\n".join(lines(told))
            assert (await ask_carrier(device, "hello"))[0]["wipe_id"] == "w-1"
            await ask_carrier(device, "wiped", wipe_id="w-1")
            with pytest.raises(IpcRefused, match="wiped"):
                await ask_carrier(device, "hello")
            assert set(files_of(state)) == {"wipe.json"}
            assert found_in(state, secrets | http) == []
        with device.running():
            assert "REVOKED" in device.health()
            for operation in ("pass.rehearse", "update.status", "enrolment.state"):
                with pytest.raises(IpcRefused, match="this device is wiped; palmctl status says what to do"):
                    ask_core(device.control_socket, operation, after=0, wait_ms=0)


def test_a_technician_at_a_wiped_device_reads_at_every_command_that_it_is_wiped(device: Device) -> None:
    of, place = device.config.device, ("--config", str(device.board.config_path))
    begin_wipe(of.state_dir, Wipe(WipeStage.ERASING, "w-1", of.id, of.gate_id, of.dbd_id))
    with device.running():
        for words in ("pass", "enrol --accept-terms v1", "enrol --cancel", "update status"):
            done = CliRunner().invoke(main, [*words.split(), *place])
            assert done.exit_code == 1
            assert "this device is wiped; palmctl status says what to do" in done.stderr
        doctor = json.loads(CliRunner().invoke(main, ["doctor", "--json", *place]).stdout)
    found = {finding["name"]: finding for finding in doctor["findings"]}
    assert {found[name]["todo"] for name in ("camera", "picture", "cable", "gallery", "model")} == {
        "see the line `provisioned`"
    }
    assert "palmctl factory-reset" in found["provisioned"]["todo"]


async def test_an_order_that_the_disk_does_not_keep_stops_recognition_and_destroys_nothing(
    device: Device,
) -> None:
    """Until the order is kept, a power cut leaves a device that serves: its gallery must not go back."""
    state = device.config.device.state_dir

    with PtyPair() as pair:
        port = device.plug(pair)
        with device.running() as process:
            async with validator_at(port, device.board) as validator:
                await validator.wait_serving()
                before = (await asyncio.to_thread(device.status)).gallery
                assert before.templates
                with refusing(process), pytest.raises(IpcError):
                    await ask_carrier(device, "status", wipe_order(device))
                assert "can be written" in (await asyncio.to_thread(device.health))["REVOKED"]
                said = await answered(device, validator, pictures())
                assert said.verdict.result is VerdictResult.NOT_READY
        with device.running():
            after = (await asyncio.to_thread(device.status)).gallery
            assert (after.seq, after.head16, after.templates) == (before.seq, before.head16, before.templates)
            assert (await ask_carrier(device, "status", wipe_order(device)))[0]["wiped"] == "w-1"
        assert set(files_of(state)) == {"wipe.json", "keys/http.key"}


async def test_a_wipe_that_the_disk_does_not_let_end_is_reported_and_repeated(device: Device) -> None:
    """Without a network the wipe ends when the validator has the record, each time that it asks."""
    state = device.config.device.state_dir
    said: list[str] = []

    with PtyPair() as pair, device.running() as process:
        port = device.plug(pair)
        assert process.stderr is not None
        await ask_carrier(device, "status", wipe_order(device))
        async with validator_at(port, device.board, carries_mail=True) as validator:
            with refusing(process):
                await validator.wait_for(OutboxCollected)
                while "the wipe is not complete" not in "".join(said[-1:]):
                    said.append(await asyncio.to_thread(process.stderr.readline))
                    assert said[-1], "palmd has ended"
            await until(lambda: set(files_of(state)) == {"wipe.json"})
        process.kill()
        assert process.stderr is not None
        said.append(process.stderr.read())
        assert "never retrieved" not in "".join(said)


def on_a_slow_disk(asked: Path, done: Path) -> str:
    """The same daemon, on a disk that makes `asked` at the first step of a wipe, and is done with it when the
    test makes `done`."""
    return f"""
import time
from pathlib import Path
from device.core import palmd, running_wipe
begin_wipe = running_wipe.begin_wipe
def begin_slowly(*given):
    Path({str(asked)!r}).touch()
    while not Path({str(done)!r}).exists():
        time.sleep(0.01)
    begin_wipe(*given)
running_wipe.begin_wipe = begin_slowly
palmd.main()
"""


async def test_a_revoked_device_recognises_no_one_while_its_disk_takes_its_time(
    device: Device, tmp_path: Path
) -> None:
    asked, disk_is_done = tmp_path / "asked", tmp_path / "disk is done"
    with PtyPair() as pair:
        port = device.plug(pair)
        with device.altered(on_a_slow_disk(asked, disk_is_done)):
            async with validator_at(port, device.board) as validator:
                await validator.wait_serving()
                order = asyncio.create_task(ask_carrier(device, "status", wipe_order(device)))
                await until(lambda: "REVOKED" in device.health())
                assert not (device.config.device.state_dir / "wipe.json").exists(), "the wipe has not begun"
                answer = asyncio.create_task(answered(device, validator, pictures()))
                disk_is_done.touch()
                assert (await answer).verdict.result is VerdictResult.NOT_READY
                assert (await order)[0]["wiped"] == "w-1"


async def test_no_key_is_in_memory_once_the_service_knows_of_the_wipe(device: Device) -> None:
    state = device.config.device.state_dir
    keys = {path.name: path.read_bytes() for path in (state / "keys").iterdir()}
    # The same daemon, but that the validator hears its farewell for less than half a minute.
    program = "from device.core import palmd, running_wipe; running_wipe.FAREWELL_S = 0.5; palmd.main()"

    def held(process: "subprocess.Popen[bytes]") -> set[str]:
        counts = found_in_memory(process.pid, list(keys.values()))
        return {name for name, count in zip(keys, counts, strict=True) if count}

    with PtyPair() as pair:
        device.plug(pair)
        with device.altered(program) as process:
            await until(lambda: device.status().device_id != "")
            assert held(process) == set(keys), "they are found by this way of looking"
            await ask_carrier(device, "status", wipe_order(device))
            await ask_carrier(device, "wiped", wipe_id="w-1")
            await until(lambda: not held(process))
            await until(lambda: "REVOKED" in device.health())
            assert not held(process), "nor in what goes on in its place"


async def test_a_wiped_device_whose_gallery_did_not_open_stays_until_its_record_is_handed_over(
    device: Device,
) -> None:
    state = device.config.device.state_dir
    (state / "gallery").rename(state / "aside")
    (state / "gallery").write_text("no folder")
    tries = state.parent / "tries"
    tries.touch()
    # The same daemon, which looks for its gallery more often, and notes each look.
    program = f"""
from pathlib import Path
from device.core import palmd
palmd.GALLERY_AGAIN_S = 0.05
sleep = palmd.asyncio.sleep
async def noted(seconds, *more):
    if seconds == palmd.GALLERY_AGAIN_S:
        with Path({str(tries)!r}).open("a") as file:
            file.write("x")
    await sleep(seconds, *more)
palmd.asyncio.sleep = noted
palmd.main()
"""

    with PtyPair() as pair:
        port = device.plug(pair)
        with device.altered(program):
            await until(lambda: "STORE_FAULT" in device.health())
            assert (await ask_carrier(device, "status", wipe_order(device)))[0]["wiped"] == "w-1"
            seen = tries.stat().st_size
            await until(lambda: tries.stat().st_size > seen + 1)
            assert set(files_of(state)) == {"wipe.json", "keys/http.key"}
            async with validator_at(port, device.board, carries_mail=True) as validator:
                await validator.wait_for(OutboxCollected)


def test_a_technician_empties_a_device_that_runs_and_one_that_does_not(device: Device) -> None:
    state = device.config.device.state_dir
    with PtyPair() as pair:
        device.plug(pair)
        with device.running() as process:
            here = who_is_here(device.config)
            assert here is not None
            carry_out(device.config, here)
            assert list(state.iterdir()) == []
            assert process.wait(20) == 0
        carry_out(device.config, here)
        code, said = device.run_to_end()
        assert (code, "palmctl provision" in said) == (3, True)


async def test_no_key_is_handed_out_behind_a_technicians_reset(device: Device) -> None:
    with PtyPair() as pair:
        device.plug(pair)
        with device.running() as process:
            named = DeviceNamed(device.config.device.id).to_obj()
            ask_core(device.config.control_socket, "factory_reset", timeout_s=RESET_WITHIN_S, **named)
            with pytest.raises(IpcError):  # refused, or the process has ended
                await ask_carrier(device, "http_key")
            assert process.wait(20) == 0


async def test_a_reset_of_a_wiped_device_whose_service_does_not_know_of_the_wipe_empties_it(
    device: Device,
) -> None:
    with PtyPair() as pair:
        device.plug(pair)
        with device.running():
            await ask_carrier(device, "status", wipe_order(device))
        with device.running() as process:
            named = DeviceNamed(device.config.device.id).to_obj()
            ask_core(device.config.control_socket, "factory_reset", timeout_s=RESET_WITHIN_S, **named)
            assert process.wait(20) == 0
        assert list(device.config.device.state_dir.iterdir()) == []


async def test_an_order_that_comes_behind_a_technicians_reset_leaves_nothing(device: Device) -> None:
    # The same daemon, which stays for longer after the reset.
    program = "from device.core import palmd, running_wipe; running_wipe.REPLY_WITHIN_S = 60; palmd.main()"
    with PtyPair() as pair:
        device.plug(pair)
        with device.altered(program):
            await until(lambda: device.status().device_id != "")
            named = DeviceNamed(device.config.device.id).to_obj()
            ask_core(device.control_socket, "factory_reset", timeout_s=RESET_WITHIN_S, **named)
            assert (await ask_carrier(device, "status", wipe_order(device)))[0]["wiped"] is None
            assert list(device.config.device.state_dir.iterdir()) == []


async def test_a_technicians_reset_is_carried_out_when_nothing_waits_for_its_answer_any_more(
    device: Device, tmp_path: Path
) -> None:
    """Ctrl-C at `palmctl factory-reset`: the order reaches the disk, so the next start would carry it out."""
    asked, disk_is_done = tmp_path / "asked", tmp_path / "disk is done"
    with PtyPair() as pair:
        device.plug(pair)
        with device.altered(on_a_slow_disk(asked, disk_is_done)) as process:
            await until(lambda: device.status().device_id != "")
            client = await IpcClient.connect(device.control_socket)
            named = DeviceNamed(device.config.device.id).to_obj()
            reset = asyncio.create_task(client.call("factory_reset", timeout_s=RESET_WITHIN_S, **named))
            await until(asked.exists)
            reset.cancel()
            await asyncio.gather(reset, return_exceptions=True)
            await until(lambda: device.status().device_id != "")
            disk_is_done.touch()
            assert await asyncio.to_thread(process.wait, 20) == 0
            assert list(device.config.device.state_dir.iterdir()) == []
