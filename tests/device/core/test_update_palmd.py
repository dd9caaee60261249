"""Updates of the daemon itself: a process, a pty, and a validator that carries the releases as mail."""

import asyncio
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cloud_client.contract import MAX_CHUNK_BYTES
from device.platform.ipc import ask_core
from device.updates.manifest import Manifest
from device.updates.state import UpdateState
from device.updates.store import UpdateStore
from link1.bodies import MailState
from link1.canonical import JsonObject, canonical_bytes, read_strict
from link1.objects import VerdictResult
from link1.validator.events import StatusReceived
from models.manifest import shipped_model_dir
from tests.device.core.test_mail_palmd import carried, record, shown
from tests.device.updates.update_setting import (
    OTHER_MODEL,
    model_payload,
    now_ms,
    release,
    shipped_id,
    signed,
)
from tests.device.whole_device import (
    Device,
    Validator,
    known_people,
    make_device,
    until,
    validator_of,
)
from tests.republished import republish
from tools.cloud.pack_release import chunk_bodies, write_release
from tools.palmctl.bench.board import snapshot_pages
from tools.palmctl.main import main


def updates(device: Device) -> dict[str, Any]:
    told = ask_core(device.control_socket, "update.status").header["updates"]
    assert isinstance(told, dict)
    return told


def manifest(device: Device, payload: bytes, release_seq: int) -> JsonObject:
    return signed(release(payload, release_seq, chunk_bytes=MAX_CHUNK_BYTES), device.board.root_key)


def epoch_page(device: Device, epoch: int, model_id: str) -> JsonObject:
    (page,) = snapshot_pages(
        known_people(), len(known_people()), model_id, device.board.service_key, now_ms(), epoch=epoch
    )
    return read_strict(page, max_bytes=len(page))


async def mailed(validator: Validator, device: Device, seq: int, type_: str, body: JsonObject) -> None:
    settled = await carried(validator, seq, record(device, seq, type_, body))
    assert settled.state is MailState.APPLIED, settled.code


@pytest.mark.long
@pytest.mark.timeout(240)
def test_kills_while_a_release_comes_from_a_stick_lose_nothing(device: Device) -> None:
    payload = model_payload(shipped_id())
    wrapper = manifest(device, payload, 7)
    chunks = [payload[start : start + MAX_CHUNK_BYTES] for start in range(0, len(payload), MAX_CHUNK_BYTES)]
    rng = random.Random(7)

    def hand_over(upto: int) -> None:
        ask_core(device.control_socket, "update.manifest", payload=canonical_bytes(wrapper), timeout_s=60)
        for index, chunk in enumerate(chunks[:upto]):
            ask_core(
                device.control_socket,
                "update.chunk",
                payload=chunk,
                timeout_s=60,
                release_seq=7,
                index=index,
            )

    had = 0
    for upto in (rng.randrange(2, 8), rng.randrange(8, len(chunks)), len(chunks)):
        with device.running():  # killed at the end, and not asked
            receiving = updates(device)["receiving"]
            assert (receiving["chunks"] if receiving else 0) >= had
            hand_over(upto)
            had = min(upto, len(chunks) - 1)
    with device.running():
        # The same model_id needs no epoch: it switches as soon as it is tested, and proves itself.
        asyncio.run(until(lambda: updates(device)["model"]["release_seq"] == 7))
        asyncio.run(until(lambda: not updates(device)["model"]["on_trial"]))
        assert updates(device)["failed"] is None


@pytest.mark.slow
def test_a_technician_installs_a_model_from_a_stick(device: Device, tmp_path: Path) -> None:
    payload = model_payload(shipped_id())
    stick = tmp_path / "model.palm"
    write_release(stick, manifest(device, payload, 7), payload)

    def install(*options: str) -> Any:
        return CliRunner().invoke(
            main, ["model", "install", str(stick), "--config", str(device.board.config_path), *options]
        )

    with device.running():
        done = install()
        assert done.exit_code == 0, done.stderr
        asyncio.run(until(lambda: updates(device)["model"]["release_seq"] == 7))
        asyncio.run(until(lambda: not updates(device)["model"]["on_trial"]))
        assert updates(device)["failed"] is None
        again = install("--json")
        assert again.exit_code == 0, again.stderr
        assert "taken before" in again.stderr
        assert json.loads(again.stdout)["model"]["release_seq"] == 7


def doctor(device: Device) -> str:
    """What the doctor says of the model."""
    done = CliRunner().invoke(main, ["doctor", "model", "--config", str(device.board.config_path)])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.long
async def test_a_model_and_its_gallery_epoch_change_together_by_mail(device: Device) -> None:
    payload = model_payload()
    async with validator_of(device, carries_mail=True) as validator:
        await validator.wait_serving()
        await mailed(validator, device, 1, "svc.update.manifest", manifest(device, payload, 7))
        bodies = list(chunk_bodies(payload, 7))
        for seq, body in enumerate(bodies[:-1], start=2):
            await mailed(validator, device, seq, "svc.update.chunk", body)
        said = await shown(validator, device, 9000)
        assert (said.verdict.result, said.verdict.model_id) == (VerdictResult.MATCH, shipped_id())
        await mailed(validator, device, len(bodies) + 1, "svc.update.chunk", bodies[-1])
        # Whole and tested, it waits: the gallery is still of the model before.
        await until(lambda: updates(device)["model"]["waiting"] is not None)
        seq, page = len(bodies) + 2, epoch_page(device, 2, OTHER_MODEL)
        assert validator.mail.offer(seq, record(device, seq, "svc.gallery.snapshot.page", page))
        validator.pump.kick()
        # palmd may restart before it has answered: then its next status says that the page is applied.
        await validator.wait_for(
            StatusReceived, lambda event: event.status.serving and event.status.model_id == OTHER_MODEL
        )
        assert validator.mail.applied_seq == seq
        said = await shown(validator, device, 9001)
        assert (said.verdict.result, said.verdict.model_id) == (VerdictResult.MATCH, OTHER_MODEL)
        await until(lambda: not updates(device)["model"]["on_trial"])
        assert f"{OTHER_MODEL} gives the known answer" in doctor(device)


@pytest.mark.slow
async def test_software_with_another_model_serves_the_gallery_that_it_finds(tmp_path: Path) -> None:
    """What an upgrade of the package leaves: templates, and the copy of the model they were made with."""
    device = make_device(tmp_path, model_id=OTHER_MODEL)
    republish(shipped_model_dir(), OTHER_MODEL, tmp_path / "before")
    store = UpdateStore(device.config.device.state_dir)
    store.save(UpdateState(home_epoch=1))
    store.keep_model(tmp_path / "before")
    async with validator_of(device, carries_mail=True) as validator:
        await validator.wait_serving()
        said = await shown(validator, device, 9000)
        assert (said.verdict.result, said.verdict.model_id) == (VerdictResult.MATCH, OTHER_MODEL)
        waiting = updates(device)["model"]["waiting"]
        assert waiting == {"release_seq": 0, "version": "shipped", "model_id": shipped_id()}
        told = CliRunner().invoke(main, ["update", "status", "--config", str(device.board.config_path)])
        assert f"waiting   model {shipped_id()}, shipped: for its gallery epoch" in told.stdout
        assert f"{OTHER_MODEL} gives the known answer" in doctor(device)
        page = epoch_page(device, 2, shipped_id())
        assert validator.mail.offer(1, record(device, 1, "svc.gallery.snapshot.page", page))
        validator.pump.kick()
        await validator.wait_for(
            StatusReceived, lambda event: event.status.serving and event.status.model_id == shipped_id()
        )
        said = await shown(validator, device, 9001)
        assert (said.verdict.result, said.verdict.model_id) == (VerdictResult.MATCH, shipped_id())
        assert updates(device)["model"]["waiting"] is None


def test_software_on_trial_counts_only_when_roots_installer_is_through(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "opt"
    prefix.mkdir()
    monkeypatch.setenv("PALM_ACCESS_PREFIX", str(prefix))
    payload = b"an environment, for all that palmd knows"
    # The version that runs: the release has been switched to, and palmd restarted with it.
    named = {"kind": "app", "name": "palm-access-device", "version": version("palm-access-device")}
    wrapper = signed(release(payload, 7, chunk_bytes=64, **named), device.board.root_key)

    def states() -> list[tuple[int, str, str | None]]:
        return [(one["release_seq"], one["state"], one.get("code")) for one in updates(device)["releases"]]

    def noted(*, trial: bool, code: str) -> str:
        outcome = {"release_seq": 7, "version": "0.1.0", "back_to": "0.0.9", "trial": trial, "code": code}
        return json.dumps(outcome)

    with device.running():
        ask_core(device.control_socket, "update.manifest", payload=canonical_bytes(wrapper))
        ask_core(device.control_socket, "update.chunk", payload=payload, release_seq=7, index=0)
        asyncio.run(until(lambda: states() == [(7, "trial", None)]))
        with next_reading(prefix / "update.json", noted(trial=True, code="")):
            pass
        with next_reading(prefix / "update.json", noted(trial=False, code="unhealthy")):
            assert states() == [(7, "trial", None)]
        asyncio.run(until(lambda: states() == [(7, "failed", "unhealthy")]))


@contextmanager
def next_reading(path: Path, text: str) -> Iterator[None]:
    """The body of the `with` runs while palmd reads `path`, after it has acted on all that it read before. At
    the end it gets `text`, which stays there."""
    pipe, after = path.with_suffix(".pipe"), path.with_suffix(".after")
    after.write_text(text)
    os.mkfifo(pipe)
    pipe.rename(path)
    opened: list[int] = []

    def is_read() -> bool:
        with suppress(OSError):  # ENXIO: it is not open for reading
            opened.append(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
        return bool(opened)

    asyncio.run(until(is_read))
    with os.fdopen(opened[0], "w") as writer:
        after.rename(path)  # before this reading ends: the next one must not wait at the pipe
        yield
        writer.write(text)


@pytest.mark.parametrize(
    ("noted_seq", "valid_ms", "code"),
    [(None, -3_600_000, "untrusted"), (6, -3_600_000, "untrusted"), (8, 3_600_000, "release_rollback")],
)
def test_software_that_roots_installer_passes_over_is_given_up(
    device: Device,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    noted_seq: int | None,
    valid_ms: int,
    code: str,
) -> None:
    """Its certificate has ended, or what is noted is newer: of another environment."""
    prefix = tmp_path / "opt"
    prefix.mkdir()
    monkeypatch.setenv("PALM_ACCESS_PREFIX", str(prefix))
    if noted_seq is not None:
        outcome = {"release_seq": noted_seq, "version": "9.0", "back_to": "8.0", "trial": False, "code": ""}
        (prefix / "update.json").write_text(json.dumps(outcome))
    named = release(bytes(64), 7, kind="app", name="palm-access-device")
    wrapper = signed(named, device.board.root_key, not_after_ms=now_ms() + valid_ms)
    handed_over = UpdateState(app_seq=7, app=Manifest.from_obj(wrapper), home_epoch=1)
    UpdateStore(device.config.device.state_dir).save(handed_over)

    def states() -> list[tuple[int, str, str | None]]:
        return [(one["release_seq"], one["state"], one.get("code")) for one in updates(device)["releases"]]

    with device.running():
        asyncio.run(until(lambda: states() == [(7, "failed", code)]))
