"""Sockets of the core under clients that are silent, slow or too many."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from device.errors import IpcUnreachable
from device.platform.ipc import (
    MAX_CONNECTIONS,
    Handler,
    IpcClient,
    IpcServer,
    Packet,
    Patience,
    encode_packet,
    reply,
)
from tests.until import until_async

WITHOUT_HASTE = Patience()
QUICK = Patience(idle_s=0.2, packet_s=0.2)
Line = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo(request: Packet) -> Packet:
    return reply(request.payload, uid=request.peer_uid)


@asynccontextmanager
async def serving(
    path: Path, handler: Handler = echo, patience: Patience = WITHOUT_HASTE
) -> AsyncIterator[Path]:
    server = await IpcServer.start(path, handler, patience)
    try:
        yield path
    finally:
        await server.close()


@asynccontextmanager
async def crowd(path: Path, count: int, sent: bytes = b"") -> AsyncIterator[list[Line]]:
    """So many connections that have sent these bytes and no more."""
    lines = [await asyncio.open_unix_connection(path) for _ in range(count)]
    for _reader, writer in lines:
        writer.write(sent)
        with contextlib.suppress(ConnectionError):  # it has given way already
            await writer.drain()
    try:
        yield lines
    finally:
        for _reader, writer in lines:
            writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    with contextlib.suppress(ConnectionError):
        return await reader.read() == b""
    return True


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("sent", [b"", b"\x00", encode_packet(Packet({"op": "x"}, bytes(1000)))[:-1]])
async def test_idle_connections_give_way_to_a_newcomer(tmp_path: Path, sent: bytes) -> None:
    """With the patience of every day: nobody has to wait for a time-out."""
    async with serving(tmp_path / "s") as path, crowd(path, 4 * MAX_CONNECTIONS, sent):
        for _ in range(3):
            client = await IpcClient.connect(path)
            assert (await client.call("x", b"here", timeout_s=5)).payload == b"here"
            client.close()


async def test_a_client_that_asked_before_outlives_those_that_never_did(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as path:
        honest = [await IpcClient.connect(path) for _ in range(7)]
        for client in honest:
            await client.call("x", timeout_s=5)
        async with crowd(path, 3 * MAX_CONNECTIONS) as silent:
            assert await ended(silent[0][0])
            for client in honest:
                await client.call("x", timeout_s=5)
                client.close()


async def test_what_is_being_answered_is_never_cut_off(tmp_path: Path) -> None:
    arrived, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def waits(request: Packet) -> Packet:
        arrived.release()
        await go_on.wait()
        return reply(request.payload)

    async with serving(tmp_path / "s", waits) as path:
        clients = [await IpcClient.connect(path) for _ in range(MAX_CONNECTIONS)]
        calls = [asyncio.create_task(client.call("x", timeout_s=10)) for client in clients]
        for _ in clients:
            await arrived.acquire()
        extra = await IpcClient.connect(path)
        with pytest.raises(IpcUnreachable):
            await extra.call("x", timeout_s=5)
        go_on.set()
        await asyncio.gather(*calls)
        for client in clients:
            client.close()


@pytest.mark.parametrize("sent", [b"", b"\x00\x00\x00\x02\x00", encode_packet(Packet({"op": "x"}))[:-1]])
async def test_a_connection_that_says_nothing_or_half_a_packet_is_closed(tmp_path: Path, sent: bytes) -> None:
    async with serving(tmp_path / "s", patience=QUICK) as path, crowd(path, 1, sent) as lines:
        assert await ended(lines[0][0])


async def test_a_packet_that_comes_byte_by_byte_gets_no_more_time(tmp_path: Path) -> None:
    patience = Patience(idle_s=60, packet_s=0.2)
    async with serving(tmp_path / "s", patience=patience) as path, crowd(path, 1) as lines:
        reader, writer = lines[0]
        over = asyncio.create_task(ended(reader))
        packet = encode_packet(Packet({"op": "x"}, bytes(10_000)))
        for at in range(len(packet)):
            if over.done() or writer.is_closing():
                break
            writer.write(packet[at : at + 1])
            await asyncio.wait((over,), timeout=0.02)
        else:
            pytest.fail("the packet was taken whole")
        assert await over


async def test_a_client_that_takes_no_reply_is_closed_and_leaves_no_descriptor(tmp_path: Path) -> None:
    before = descriptors()
    async with serving(tmp_path / "s", patience=QUICK) as path:
        _reader, writer = await asyncio.open_unix_connection(path)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        large = encode_packet(Packet({"op": "x"}, bytes(2 * 1024 * 1024)))
        with contextlib.suppress(ConnectionError):
            while not writer.is_closing():
                writer.write(large)
                async with asyncio.timeout(5):
                    await writer.drain()
        writer.transport.abort()
        await until_async(lambda: descriptors() <= before + 1)  # the server's own socket stays


async def test_an_answer_may_take_longer_than_an_idle_connection_may_live(tmp_path: Path) -> None:
    async def slow(request: Packet) -> Packet:
        await asyncio.sleep(3 * QUICK.idle_s)
        return reply(request.payload)

    async with serving(tmp_path / "s", slow, QUICK) as path:
        client = await IpcClient.connect(path)
        assert (await client.call("x", b"y", timeout_s=10)).payload == b"y"
        client.close()


async def test_a_client_knows_that_its_idle_connection_was_closed(tmp_path: Path) -> None:
    """So that its next request goes over a new one, and is not taken for the loss of the core."""
    async with serving(tmp_path / "s", patience=QUICK) as path:
        client = await IpcClient.connect(path)
        await client.call("x", timeout_s=5)
        await until_async(lambda: client.closed)


async def test_a_request_carries_the_user_who_sent_it(tmp_path: Path) -> None:
    async with serving(tmp_path / "s") as path:
        client = await IpcClient.connect(path)
        assert (await client.call("x", timeout_s=5)).header["uid"] == os.geteuid()
        client.close()
