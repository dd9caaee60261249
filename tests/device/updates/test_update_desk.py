"""Releases from the first byte to the slot, with power cuts at every operation on the disk in between."""

import asyncio
import contextlib
import json
import shutil
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from device.errors import TrustError, UpdateRefused
from device.updates.desk import UpdateDesk
from device.updates.manifest import ReleaseKind
from device.updates.models import self_test
from device.updates.room import KEEP_FREE_BYTES
from device.updates.state import SHIPPED
from device.updates.store import UpdateStore
from link1.canonical import JsonObject
from tests.device.core.small_disk import fill, small_disk
from tests.device.updates.update_fuse import Fuse, PowerCut, power
from tests.device.updates.update_setting import (
    ROOT,
    SIGNER,
    now_ms,
    open_desk,
    packed_files,
    read_offer,
    release,
    signed,
    tiny_model,
)
from tools.cloud.pack_release import chunk_bodies

CHUNK = 64
CHUNK_OF_A_LARGE_ONE = 4096


def model(model_id: str = "palm-2") -> bytes:
    with packed_files(id=json.dumps({"model_id": model_id})) as payload:
        return payload


async def settled() -> None:
    """Until the desk's task has ended."""
    tasks = [task for task in asyncio.all_tasks() if task.get_name() == "update"]
    await asyncio.gather(*tasks, return_exceptions=True)


def erase(state_dir: Path) -> list[str]:
    """Remove the folders of the desk; their names."""
    folders = list(state_dir.iterdir())
    for folder in folders:
        shutil.rmtree(folder)
    return [folder.name for folder in folders]


def waiting(desk: UpdateDesk) -> int | None:
    assert desk.state is not None
    return desk.state.waiting


async def sent(desk: UpdateDesk, payload: bytes, release_seq: int, **changed: Any) -> None:
    await desk.take_manifest(signed(release(payload, release_seq, **changed)))
    for body in chunk_bodies(payload, release_seq, CHUNK):
        await desk.take_chunk(body)
    await settled()


@asynccontextmanager
async def one_life(state_dir: Path, **changed: Any) -> AsyncIterator[UpdateDesk]:
    """One life of the program."""
    desk = open_desk(state_dir, **changed)
    await desk.start()
    await settled()
    try:
        yield desk
    finally:
        await desk.finish()


def run(state_dir: Path, work: Any, **changed: Any) -> UpdateDesk:
    """One life of the program, in a loop of its own."""

    async def life() -> UpdateDesk:
        async with one_life(state_dir, **changed) as desk:
            await work(desk)
        return desk

    return asyncio.run(life())


def refused(state_dir: Path, work: Any, **changed: Any) -> str:
    with pytest.raises(UpdateRefused) as error:
        run(state_dir, work, **changed)
    return error.value.code


def test_a_model_arrives_in_its_slot_and_waits(tmp_path: Path) -> None:
    payload = model()
    desk = run(tmp_path, lambda desk: sent(desk, payload, 7))
    state = desk.state
    assert state is not None
    assert (state.model, state.waiting, state.receiving, state.failed) == (SHIPPED, 7, None, None)
    assert json.loads((tmp_path / "models" / "7" / "id").read_text()) == {"model_id": "palm-2"}
    assert not list((tmp_path / "updates" / "incoming").iterdir())
    assert UpdateStore(tmp_path).load(0) == state


def test_a_release_of_a_revoked_signer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TrustError, match="revoked"):
        run(tmp_path, lambda desk: sent(desk, model(), 7), revoked=lambda: (SIGNER.kid,))


async def test_chunks_may_come_in_any_order_twice_and_over_several_lives(tmp_path: Path) -> None:
    payload = model()
    bodies = list(chunk_bodies(payload, 7, CHUNK))[::-1]

    async with one_life(tmp_path) as desk:
        await desk.take_manifest(signed(release(payload, 7)))
        for body in (*bodies[:2], *bodies[:2]):
            await desk.take_chunk(body)
        assert desk.have == 2
    async with one_life(tmp_path) as desk:
        assert desk.have == 2
        for body in bodies:
            await desk.take_chunk(body)
        await settled()
        for body in bodies:
            await desk.take_chunk(body)  # of a release that is whole
    state = desk.state
    assert state is not None
    assert state.waiting == 7


@pytest.mark.parametrize("more", [70_000 * "x", [[[[[[[[[[[[[[]]]]]]]]]]]]]]], ids=["long", "deep"])
def test_a_manifest_that_the_next_start_could_not_read_is_refused(tmp_path: Path, more: object) -> None:
    wrapper = signed(release(model(), 7, more=more))
    assert refused(tmp_path, lambda desk: desk.take_manifest(wrapper)) == "malformed"
    state = UpdateStore(tmp_path).load(1)
    assert (state.receiving, state.model_seq) == (None, 0)


def test_what_does_not_belong_is_refused_with_a_code(tmp_path: Path) -> None:
    payload = model()
    bodies = list(chunk_bodies(payload, 7, CHUNK))

    async def with_chunk(body: JsonObject, desk: UpdateDesk) -> None:
        await desk.take_manifest(signed(release(payload, 7)))
        await desk.take_chunk(body)

    def code(**changed: Any) -> str:
        return refused(tmp_path, lambda desk: with_chunk(bodies[0] | changed, desk))

    assert code(index=len(bodies)) == "bad_index"
    assert code(data_b64="AAAA") == "bad_size"
    assert (
        refused(tmp_path, lambda desk: desk.take_manifest(signed(release(payload, 6)))) == "release_rollback"
    )
    assert (
        refused(tmp_path, lambda desk: desk.take_manifest(signed(release(payload, 8))), model_pinned=True)
        == "model_pinned"
    )
    other = release(payload, 9, kind="app", name="something-else")
    assert refused(tmp_path, lambda desk: desk.take_manifest(signed(other))) == "wrong_name"
    newer = release(payload, 9, min_app_version="9.0")
    assert refused(tmp_path, lambda desk: desk.take_manifest(signed(newer))) == "app_too_old"


async def test_chunks_of_a_refused_manifest_do_nothing_and_stop_no_mail(tmp_path: Path) -> None:
    payload = model()

    async with one_life(tmp_path) as desk:
        with pytest.raises(UpdateRefused):
            await desk.take_manifest(signed(release(payload, 7, min_app_version="9.0")))
        for body in chunk_bodies(payload, 7, CHUNK):
            await desk.take_chunk(body)
        assert desk.have == 0
        await sent(desk, payload, 7)  # the number is not used up: the software may be newer by now
        assert waiting(desk) == 7


async def test_a_payload_that_is_not_what_was_signed_is_given_up_for_good(tmp_path: Path) -> None:
    payload = model()
    other = bytes(len(payload))

    async with one_life(tmp_path) as desk:
        await desk.take_manifest(signed(release(payload, 7)))
        for body in chunk_bodies(other, 7, CHUNK):
            await desk.take_chunk(body)
        await settled()
        assert desk.state is not None
        assert desk.state.failed is not None
        assert (desk.state.failed.code, desk.state.receiving) == ("bad_hash", None)
        await sent(desk, payload, 7)  # again, and rightly: the number is used up
        assert waiting(desk) is None
        await sent(desk, payload, 8)
        assert waiting(desk) == 8


def test_a_model_that_fails_its_self_test_leaves_the_old_one(tmp_path: Path) -> None:
    def fails(folder: Path) -> str:
        raise UpdateRefused("self_test", f"{folder.name} answers otherwise")

    state = run(tmp_path, lambda desk: sent(desk, model(), 7), test_model=fails).state
    assert state is not None
    assert state.failed is not None
    assert (state.failed.code, state.slots, state.model) == ("self_test", (), SHIPPED)
    assert not list((tmp_path / "models").iterdir())


@pytest.mark.parametrize(
    ("changed", "times"),
    [
        pytest.param({}, 3, id="a model, unpacked beside its payload"),
        pytest.param(
            {"kind": str(ReleaseKind.APP), "name": "palm-access-device"}, 6, id="software, which root copies"
        ),
    ],
)
def test_a_release_is_taken_only_where_all_that_is_made_of_it_has_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any], times: int
) -> None:
    payload = model()
    real = shutil.disk_usage(tmp_path)

    def free(missing: int) -> None:
        full = real._replace(free=times * len(payload) + KEEP_FREE_BYTES - missing)
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: full)

    free(1)
    assert (
        refused(tmp_path, lambda desk: desk.take_manifest(signed(release(payload, 7, **changed))))
        == "no_space"
    )
    free(0)
    run(tmp_path, lambda desk: desk.take_manifest(signed(release(payload, 8, **changed))))


async def test_a_model_that_is_much_larger_unpacked_leaves_the_journal_its_room(tmp_path: Path) -> None:
    """The disk may be filled to its last block, and then no verdict can be written."""
    with packed_files(id=json.dumps({"model_id": "palm-2"}), zeros="\0" * (40 * 2**20)) as payload:
        pass

    with small_disk(tmp_path / "state", 160) as state_dir:
        fill(state_dir, leave_bytes=KEEP_FREE_BYTES + 20 * 2**20)
        async with one_life(state_dir) as desk:
            await desk.take_manifest(signed(release(payload, 7, chunk_bytes=CHUNK_OF_A_LARGE_ONE)))
            for body in chunk_bodies(payload, 7, CHUNK_OF_A_LARGE_ONE):
                await desk.take_chunk(body)
            await settled()
        state = desk.state
        assert state is not None
        assert state.receiving is None
        assert state.failed is not None
        assert state.failed.code == "no_space"
        assert list((state_dir / "models").iterdir()) == []


def test_a_self_test_that_cannot_be_started_is_said_and_done_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without memory for a process, or the version that runs was removed: the model is not to blame."""
    with monkeypatch.context() as gone:
        gone.setattr(sys, "executable", str(tmp_path / "removed" / "python"))
        state = run(tmp_path, lambda desk: sent(desk, model(), 7), test_model=self_test).state
    assert state is not None
    assert state.receiving is not None
    assert "release 7: the model's self-test cannot be started (No such file" in caplog.text
    assert "the next start tries again" in caplog.text
    assert waiting(run(tmp_path, lambda _desk: settled())) == 7


async def test_what_waited_for_its_turn_when_a_wipe_began_writes_nothing_afterwards(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A change of the state waits behind a self-test, which takes seconds; the wipe does not wait for it."""
    loop, began, goes_on, payload = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), model()

    def long_test(folder: Path) -> str:
        model_id = tiny_model(folder)
        loop.call_soon_threadsafe(began.set)
        goes_on.wait(20)
        return model_id

    async with one_life(tmp_path, test_model=long_test) as desk:
        await desk.take_manifest(signed(release(payload, 7)))
        for body in chunk_bodies(payload, 7, CHUNK):
            await desk.take_chunk(body)
        await began.wait()
        tasks = [task for task in asyncio.all_tasks() if task.get_name() == "update"]
        change = asyncio.create_task(desk.withdraw(7))
        await asyncio.sleep(0)
        desk.abandon()
        erase(tmp_path)
        goes_on.set()
        with pytest.raises(UpdateRefused, match="wiped"):
            await change
        assert await asyncio.gather(*tasks) == [None]
        assert desk.state is None
    assert erase(tmp_path) == []
    assert caplog.text == ""


async def test_a_newer_release_takes_the_place_of_one_half_received(tmp_path: Path) -> None:
    old, new = model("palm-2"), model("palm-3")

    async with one_life(tmp_path) as desk:
        await desk.take_manifest(signed(release(old, 7)))
        await desk.take_chunk(next(iter(chunk_bodies(old, 7, CHUNK))))
        await sent(desk, new, 8)
        await desk.take_chunk(next(iter(chunk_bodies(old, 7, CHUNK))))
    state = desk.state
    assert state is not None
    assert [slot.model_id for slot in state.slots] == ["palm-3"]


def test_a_damaged_state_refuses_updates_and_says_the_way_out(tmp_path: Path) -> None:
    from device.updates.models import OpenedUpdates

    (tmp_path / "updates").mkdir()
    (tmp_path / "updates" / "state.json").write_text('{"v": 1')
    with pytest.raises(Exception, match="moved away"):
        open_desk(tmp_path)
    opened = OpenedUpdates(UpdateStore(tmp_path), None, "state.json is damaged", "palm-1")
    (tmp_path / "updates" / "state.json").unlink()
    code = refused(tmp_path, lambda desk: desk.take_manifest(signed(release(model(), 7))), opened=opened)
    assert code == "updates_unusable"


async def test_a_damaged_state_refuses_a_release_once_and_not_each_of_its_chunks(tmp_path: Path) -> None:
    """Mail stands still at what is refused, and the gallery's freshness with it."""
    from device.updates.models import OpenedUpdates

    payload = model()

    async with one_life(
        tmp_path, opened=OpenedUpdates(UpdateStore(tmp_path), None, "damaged", "palm-1")
    ) as desk:
        with pytest.raises(UpdateRefused):
            await desk.take_manifest(signed(release(payload, 7)))
        for body in chunk_bodies(payload, 7, CHUNK):
            await desk.take_chunk(body)
        assert await desk.wanted_chunk() is None


@pytest.mark.parametrize("by", ["start", "chunk", "network"])
async def test_a_release_whose_space_went_in_a_power_cut_is_refused_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The state was saved, its space not allocated, and the disk is too full by now."""
    payload = model()
    wrapper = signed(release(payload, 7))
    async with one_life(tmp_path) as desk:
        await desk.take_offer(read_offer(wrapper))
        assert desk.state is not None
        assert desk.state.receiving is not None
    shutil.rmtree(tmp_path / "updates" / "incoming")
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: full)
    desk = open_desk(tmp_path)
    if by == "start":
        await desk.start()
    elif by == "network":
        assert await desk.wanted_chunk() is None
    else:
        with pytest.raises(UpdateRefused, match="make room"):
            await desk.take_chunk(next(iter(chunk_bodies(payload, 7, CHUNK))))
    for body in chunk_bodies(payload, 7, CHUNK):
        await desk.take_chunk(body)
    assert desk.state is not None
    assert (desk.state.receiving, desk.state.by_network) == (None, ())
    assert desk.state.failed is not None
    assert desk.state.failed.code == "no_space"
    await desk.finish()


async def test_a_software_is_handed_over_whole_and_settled_by_its_outcome(tmp_path: Path) -> None:
    payload = model()
    app = {"kind": str(ReleaseKind.APP), "name": "palm-access-device"}

    async with one_life(tmp_path) as desk:
        await sent(desk, payload, 7, **app)
        staged = tmp_path / "updates" / "app"
        assert (staged / "payload").read_bytes() == payload
        assert json.loads((staged / "manifest.json").read_text())["manifest_obj"]["release_seq"] == 7
        await desk.app_outcome(6, "")
        assert staged.exists()
        await desk.app_outcome(7, "unhealthy")
        assert not staged.exists()
        assert desk.state is not None
        assert desk.state.failed is not None
        assert desk.state.failed.code == "unhealthy"


async def test_software_whose_certificate_ends_before_it_is_handed_over_is_given_up(tmp_path: Path) -> None:
    payload = model()
    ahead_ms = 0

    async with one_life(tmp_path, now_ms=lambda: now_ms() + ahead_ms) as desk:
        app = release(payload, 7, kind=str(ReleaseKind.APP), name="palm-access-device")
        await desk.take_manifest(signed(app))
        ahead_ms = 2 * 3_600_000
        for body in chunk_bodies(payload, 7, CHUNK):
            await desk.take_chunk(body)
        await settled()
        assert desk.state is not None
        assert (desk.state.receiving, desk.state.app) == (None, None)
        assert desk.state.failed is not None
        assert desk.state.failed.code == "untrusted"
        assert not (tmp_path / "updates" / "app").exists()


async def test_software_that_was_handed_over_is_given_up_once_its_certificate_has_ended(
    tmp_path: Path,
) -> None:
    """Not before root's installer would be through, had it begun in time."""
    app = {"kind": str(ReleaseKind.APP), "name": "palm-access-device"}
    ahead_ms = 0

    async with one_life(tmp_path, now_ms=lambda: now_ms() + ahead_ms) as desk:
        await sent(desk, model(), 7, **app)
        ahead_ms = 3_600_000 + 600_000
        await desk.give_up_untrusted_app(lambda: [ROOT.public])
        assert desk.state is not None
        assert desk.state.app is not None
        ahead_ms += 600_000
        await desk.give_up_untrusted_app(lambda: [ROOT.public])
        assert desk.state.failed is not None
        assert desk.state.failed.code == "untrusted"
        assert not (tmp_path / "updates" / "app").exists()


async def test_a_chunk_whose_bytes_the_disk_lost_is_taken_again(tmp_path: Path) -> None:
    payload = model()
    bodies = list(chunk_bodies(payload, 7, CHUNK))

    async with one_life(tmp_path) as desk:
        await desk.take_manifest(signed(release(payload, 7)))
        for body in bodies[:3]:
            await desk.take_chunk(body)
    with (tmp_path / "updates" / "incoming" / "7" / "payload").open("r+b") as file:
        file.seek(CHUNK)
        file.write(bytes(CHUNK))
    with (tmp_path / "updates" / "incoming" / "7" / "chunks").open("ab") as notes:
        notes.write(b"torn")

    async with one_life(tmp_path) as desk:
        assert desk.have == 2
        await sent(desk, payload, 7)
    state = desk.state
    assert state is not None
    assert (state.waiting, state.failed) == (7, None)


@pytest.mark.parametrize("torn", [False, True])
def test_power_cut_at_every_operation_on_the_disk(tmp_path: Path, torn: bool) -> None:
    """From an empty device to a model that waits, cut at each operation, then started and sent again."""
    payload = model()
    whole = Fuse(tmp_path)
    with power(whole):
        run(tmp_path / "whole", _made(tmp_path / "whole", payload))
    assert whole.count > 40
    for blow_at in range(1, whole.count + 1):
        folder = tmp_path / str(blow_at)
        fuse = Fuse(tmp_path, blow_at, torn=torn)
        with power(fuse), contextlib.suppress(PowerCut):
            run(folder, _made(folder, payload))
        assert fuse.blown or fuse.count < blow_at
        state = UpdateStore(folder).load(1)
        # Old or new, never in between: what is named is there, and the present model did not change.
        assert state.model == SHIPPED
        for slot in state.slots:
            assert tiny_model(folder / "models" / str(slot.release_seq)) == slot.model_id == "palm-2"
        again = run(folder, _made(folder, payload)).state
        assert again is not None
        assert (again.waiting, again.failed, again.receiving) == (7, None, None), blow_at
        assert tiny_model(folder / "models" / "7") == "palm-2"


def _made(folder: Path, payload: bytes) -> Any:
    folder.mkdir(exist_ok=True)

    async def work(desk: UpdateDesk) -> None:
        await sent(desk, payload, 7)

    return work
