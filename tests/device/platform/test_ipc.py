"""Packets over a real AF_UNIX socket: whole, cut, oversized, and with a side that goes away."""

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device.errors import IpcError, IpcRefused, IpcUnreachable
from device.platform.ipc import (
    MAX_HEADER_BYTES,
    MAX_PAYLOAD_BYTES,
    Handler,
    IpcClient,
    IpcServer,
    Packet,
    encode_packet,
    read_packet,
    reply,
)
from tests.until import run

T = TypeVar("T")
_NAMES = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=8)
_VALUES = st.one_of(st.integers(-(2**53) + 1, 2**53 - 1), st.booleans(), st.none(), st.text(max_size=20))


async def parse(data: bytes, *, step: int) -> list[Packet]:
    reader = asyncio.StreamReader()

    async def feed() -> None:
        for at in range(0, len(data), step):
            reader.feed_data(data[at : at + step])
            await asyncio.sleep(0)
        reader.feed_eof()

    feeding = asyncio.create_task(feed())
    packets = []
    while (packet := await read_packet(reader)) is not None:
        packets.append(packet)
    await feeding
    return packets


@given(
    packets=st.lists(
        st.builds(Packet, st.dictionaries(_NAMES, _VALUES, max_size=4), st.binary(max_size=200)), max_size=4
    ),
    step=st.integers(1, 64),
)
def test_packets_come_out_as_they_went_in_however_they_are_sliced(packets: list[Packet], step: int) -> None:
    assert run(lambda: parse(b"".join(map(encode_packet, packets)), step=step)) == packets


@given(data=st.binary(max_size=64))
def test_only_the_package_error_escapes_the_parser(data: bytes) -> None:
    with suppress(IpcError):
        run(lambda: parse(data, step=64))


def test_lengths_over_the_caps_are_refused_before_anything_else_is_read() -> None:
    for lengths in ((MAX_HEADER_BYTES + 1, 0), (2, MAX_PAYLOAD_BYTES + 1), (2**32 - 1, 2**32 - 1)):
        prefix = lengths[0].to_bytes(4, "big") + lengths[1].to_bytes(4, "big")
        with pytest.raises(IpcError, match="at most"):
            run(lambda prefix=prefix: parse(prefix, step=8))  # type: ignore[misc]
    with pytest.raises(IpcError, match="at most"):
        encode_packet(Packet({}, bytes(MAX_PAYLOAD_BYTES + 1)))


def test_a_payload_is_never_shown() -> None:
    assert "secret" not in repr(Packet({"op": "x"}, b"secret"))


@asynccontextmanager
async def serving(path: Path, handler: Handler) -> AsyncIterator[IpcServer]:
    server = await IpcServer.start(path, handler)
    try:
        yield server
    finally:
        await server.close()


async def echo(request: Packet) -> Packet:
    return reply(request.payload, op=request.header["op"])


async def test_requests_on_one_connection_are_answered_in_order(tmp_path: Path) -> None:
    path = tmp_path / "core.sock"
    async with serving(path, echo):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        client = await IpcClient.connect(path)
        for number in range(20):
            answer = await client.call(f"op{number}", bytes([number]) * 100_000, timeout_s=5)
            assert answer.header["op"] == f"op{number}"
            assert answer.payload == bytes([number]) * 100_000
        client.close()
    assert not path.exists()


def test_a_refusal_is_told_with_its_code_and_the_connection_goes_on(tmp_path: Path) -> None:
    async def refusing(request: Packet) -> Packet:
        if request.header["op"] == "bad":
            raise IpcRefused("gap", "delta 5 expected")
        return reply()

    async def scenario() -> None:
        async with serving(tmp_path / "s", refusing):
            client = await IpcClient.connect(tmp_path / "s")
            with pytest.raises(IpcRefused, match="delta 5 expected") as caught:
                await client.call("bad", timeout_s=5)
            assert caught.value.code == "gap"
            await client.call("good", timeout_s=5)
            client.close()

    run(scenario)


async def test_a_client_that_goes_away_cancels_what_it_was_waiting_for(tmp_path: Path) -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def waits(_request: Packet) -> Packet:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        return reply()

    async with serving(tmp_path / "s", waits):
        client = await IpcClient.connect(tmp_path / "s")
        call = asyncio.create_task(client.call("wait", timeout_s=30))
        await begun.wait()
        call.cancel()
        await cancelled.wait()


async def test_a_reply_that_comes_too_late_is_never_taken_for_another(tmp_path: Path) -> None:
    never = asyncio.Event()

    async def slow(request: Packet) -> Packet:
        if request.header["op"] == "slow":
            await never.wait()
        return reply(op=request.header["op"])

    async with serving(tmp_path / "s", slow):
        client = await IpcClient.connect(tmp_path / "s")
        with pytest.raises(IpcUnreachable, match="no reply to slow"):
            await client.call("slow", timeout_s=0.05)
        assert client.closed
        with pytest.raises(IpcUnreachable):
            await client.call("quick", timeout_s=5)


async def test_a_client_that_breaks_the_framing_is_cut_off_alone(tmp_path: Path) -> None:
    async with serving(tmp_path / "s", echo):
        good = await IpcClient.connect(tmp_path / "s")
        reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
        writer.write(b"\xff" * 64)
        assert await reader.read() == b""
        writer.close()
        await good.call("still", timeout_s=5)
        good.close()


async def test_the_server_ending_is_noticed_by_a_waiting_client(tmp_path: Path) -> None:
    begun = asyncio.Event()

    async def waits(_request: Packet) -> Packet:
        begun.set()
        await asyncio.Event().wait()
        return reply()

    server = await IpcServer.start(tmp_path / "s", waits)
    client = await IpcClient.connect(tmp_path / "s")
    call = asyncio.create_task(client.call("wait", timeout_s=30))
    await begun.wait()
    await server.close()
    with pytest.raises(IpcUnreachable):
        await call
    with pytest.raises(IpcUnreachable, match="is palmd running"):
        await IpcClient.connect(tmp_path / "s")


async def test_a_socket_left_behind_is_replaced_but_a_live_one_and_a_file_are_not(tmp_path: Path) -> None:
    path = tmp_path / "s"
    left_behind = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    left_behind.bind(str(path))
    left_behind.close()
    async with serving(path, echo):
        with pytest.raises(IpcError, match="already listens"):
            await IpcServer.start(path, echo)
    path.write_text("precious")
    with pytest.raises(IpcError, match="no socket"):
        await IpcServer.start(path, echo)
    assert path.read_text() == "precious"
