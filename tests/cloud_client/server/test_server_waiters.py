"""Many devices that wait: one change wakes all of them, and requests of others go between them."""

import asyncio
from typing import Any

import pytest

from cloud_client.reference_server.domain.gallery.waiters import AT_WORK, Waiters, Woken
from cloud_client.reference_server.domain.tenancy.callers import DeviceCaller, Environment
from cloud_client.reference_server.web.api import changes
from tests.cloud_client.server.server_harness import Cloud
from tests.until import until_async

DEVICES = 10 * AT_WORK
ENVIRONMENT = Environment("tenant", False)


async def test_some_are_at_work_at_once_and_none_is_forgotten() -> None:
    waiters = Waiters()
    at_work, most, woken = 0, 0, []

    async def poll(number: int) -> None:
        nonlocal at_work, most
        async with waiters.at_work:
            turn = waiters.enter(DeviceCaller(f"gate-{number}", ENVIRONMENT, "access"))
            waiters.look(turn)
            woken.append(await waiters.wait(turn, 20))
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0)  # the answer goes out
            at_work -= 1
            waiters.leave(turn)

    polls = [asyncio.create_task(poll(number)) for number in range(DEVICES)]
    for _ in range(DEVICES):  # a pass of the loop lets at least one of them begin
        await asyncio.sleep(0)
    assert waiters.count == DEVICES
    waiters.wake_stream(ENVIRONMENT.stream)
    # Whoever asks now does not wait for all of them.
    for _ in range(4):
        await asyncio.sleep(0)
    assert len(woken) < DEVICES
    await asyncio.gather(*polls)
    assert woken == [Woken.CHANGED] * DEVICES
    assert most <= AT_WORK
    assert waiters.count == 0


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_poll_of_either_method_has_a_turn(own_cloud: Cloud, method: str) -> None:
    """However many wait, no more than some are at work."""
    tenant, waiters = own_cloud.new_tenant(), own_cloud.api.service.waiters
    device = tenant.device()
    path, query = "/v1/gallery/deltas", "epoch=1&after_seq=0&wait_s=20"
    headers = device.signed(method, path, query, None)

    async def run() -> None:
        poll = asyncio.create_task(own_cloud.http.request(method, f"{path}?{query}", headers=headers))
        await until_async(lambda: waiters.count)
        for _ in range(AT_WORK):
            await waiters.at_work.acquire()
        assert waiters.at_work.locked()
        for _ in range(AT_WORK):
            waiters.at_work.release()
        waiters.end_all()
        assert (await poll).status_code == 200

    own_cloud.run(run())


async def test_a_wait_that_begins_during_a_wake_is_not_lost() -> None:
    """A device that looks after the change waits for the next one; one that looked before it is woken."""
    waiters = Waiters()

    async def poll(number: int, looked: asyncio.Event, go_on: asyncio.Event) -> Woken:
        async with waiters.at_work:
            turn = waiters.enter(DeviceCaller(f"gate-{number}", ENVIRONMENT, "access"))
            waiters.look(turn)
            looked.set()
            await go_on.wait()
            return await waiters.wait(turn, 0.01)

    looked, go_on = asyncio.Event(), asyncio.Event()
    before = asyncio.create_task(poll(1, looked, go_on))
    await looked.wait()
    waiters.wake_stream(ENVIRONMENT.stream)
    go_on.set()
    after = asyncio.create_task(poll(2, asyncio.Event(), go_on))
    assert await before is Woken.CHANGED
    assert await after is Woken.TIMED_OUT


def test_devices_are_woken_after_an_error_of_any_kind(
    own_cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "AGAIN_S", 0.01)
    tenant, store, errors = own_cloud.new_tenant(), own_cloud.api.store, [RuntimeError(), OSError()]
    read = store.read

    async def broken(work: Any) -> Any:
        if errors:
            raise errors.pop()
        return await read(work)

    monkeypatch.setattr(store, "read", broken)

    async def run() -> Woken:
        waiters = own_cloud.api.service.waiters
        async with changes.followed(own_cloud.api.service, store):
            turn = waiters.enter(DeviceCaller("gate-1", tenant.environment("test"), "access"))
            waiters.look(turn)
            return await asyncio.wait_for(waited(waiters, turn), 20)

    async def waited(waiters: Waiters, turn: Any) -> Woken:
        async with waiters.at_work:
            return await waiters.wait(turn, 10)

    assert own_cloud.run(run()) is Woken.CHANGED
    assert not errors
