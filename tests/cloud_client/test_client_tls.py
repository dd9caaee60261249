"""What the client trusts over TLS: the CA it was given, for the host it was given, and nothing else."""

import asyncio
import os
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest

from cloud_client.client import CloudClient, ServerAddress
from cloud_client.errors import CloudUnreachable
from link1.keys import SigningKey
from tests.authorities import DAY, NOW, Authority
from tests.cloud_client.scripted_http import Answer, http, scripted

KEY = SigningKey.from_seed(bytes(range(32)))
GOOD = http(200, {})


def serving(certificate: Path, key: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return context


def asked(context: ssl.SSLContext, ca_file: Path | None, answer: Answer = GOOD) -> None:
    """One request to a TLS server, with this CA file."""

    async def scenario() -> None:
        async with asyncio.timeout(20), scripted([answer], tls=context) as double:
            address = ServerAddress.parse(double.origin, ca_file)
            async with CloudClient(address, KEY, lambda: 0) as cloud:
                await cloud.device_status()

    asyncio.run(scenario())


def test_a_server_of_the_given_ca_is_believed(tmp_path: Path) -> None:
    ours = Authority.made(tmp_path, "ours")
    asked(serving(*ours.server()), ours.file)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ours: (Authority.made(ours.folder, "theirs").server(), True),
        lambda ours: (ours.server(at="192.0.2.1"), True),
        lambda ours: (ours.server(until=NOW - DAY), True),
        lambda ours: (ours.server(), False),
    ],
    ids=["another CA", "another host", "run out", "not in the system's store"],
)
def test_anybody_else_is_unreachable_and_told_nothing(
    tmp_path: Path, wrong: Callable[[Authority], tuple[tuple[Path, Path], bool]]
) -> None:
    ours = Authority.made(tmp_path, "ours")
    files, with_file = wrong(ours)
    with pytest.raises(CloudUnreachable, match="certificate"):
        asked(serving(*files), ours.file if with_file else None)


def test_old_tls_is_refused(tmp_path: Path) -> None:
    ours = Authority.made(tmp_path, "ours")
    context = serving(*ours.server())
    with pytest.warns(DeprecationWarning):
        context.maximum_version = ssl.TLSVersion.TLSv1_1
        context.minimum_version = ssl.TLSVersion.TLSv1
    with pytest.raises(CloudUnreachable):
        asked(context, ours.file)


def test_bytes_that_are_changed_on_the_way_are_no_answer(tmp_path: Path) -> None:
    async def changed(writer: asyncio.StreamWriter) -> None:
        writer.write(http(200, {"a": 1})[:-3])
        await writer.drain()
        os.write(writer.get_extra_info("socket").fileno(), b"\x17\x03\x03\x00\x20" + bytes(32))

    ours = Authority.made(tmp_path, "ours")
    with pytest.raises(CloudUnreachable, match="decryption failed"):
        asked(serving(*ours.server()), ours.file, changed)
