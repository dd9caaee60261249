"""What others notice while strangers do their worst: `palmctl bench strangers`.

A back office sends a request every few milliseconds, first on a quiet server and then while another process
attacks it, in turns within one run. Everything stays on the loopback interface.
"""

import multiprocessing
import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from cloud_client.http_signature import new_nonce
from tools.palmctl.bench.daemon import BenchFailed, rss_bytes
from tools.rig.bench.cloud_gallery import allow_files, measure_waiting, register
from tools.rig.bench.cloud_server import BenchDevice, ServerProcess, files_of_a_service, serving
from tools.rig.bench.http_load import LoadConnection
from tools.rig.bench.lifeline import end_with_parent

BAR_MS: Final = 50
"""The most that a bystander's request may take at the 99th percentile."""
_RATE_SCALE = 2.0  # a bystander asks more often than one key may
_STRANGER = "127.0.0.2"  # another address than that of the bystander and the devices
_EVERY_S = 0.01
_WARM_UP_S = 1.0
_REOPEN_EVERY_S = 0.2
_BATCH = "/v1/verdicts/batch"
_MIB = 2**20


@dataclass(frozen=True)
class StrangersBench:
    """How much is measured."""

    seconds: float = 5.0
    connections: int = 2500
    devices: int = 2000


@dataclass(frozen=True)
class _Target:
    server: ServerProcess
    device: BenchDevice
    connections: int


def run_strangers_bench(folder: Path, size: StrangersBench, tell: Callable[[str], None]) -> dict[str, Any]:
    """p50 and p99 of a bystander in each situation, with those of the quiet seconds before it."""
    allow_files(4 * max(size.connections, size.devices))
    figures: dict[str, Any] = {}
    with serving(folder, rate_scale=_RATE_SCALE, files=files_of_a_service()) as server:
        tell(f"registering {size.devices} devices")
        devices = register(server, size.devices, "waiting")
        target = _Target(server, devices[0], size.connections)
        for name, attack in ATTACKS.items():
            tell(f"strangers: {name}")
            figures[name] = _beside(server, size.seconds, partial(_attacked, attack, target))
        tell(f"{len(devices)} devices wait, and {size.connections} strangers say nothing")
        quiet = _bystander(server, size.seconds)
        with _attacked(ATTACKS["silence"], target):
            found = measure_waiting(server, devices, lambda: _bystander(server, size.seconds))
        figures["devices waiting"] = {"quiet": quiet, "attacked": found.pop("meanwhile"), **found}
    return figures


def _beside(server: ServerProcess, seconds: float, attacked: Callable[[], Any]) -> dict[str, Any]:
    quiet = _bystander(server, seconds)
    before = rss_bytes(server.pid)
    with attacked():
        time.sleep(min(_WARM_UP_S, seconds))
        found = _bystander(server, seconds)
        grown = rss_bytes(server.pid) - before
    return {"quiet": quiet, "attacked": found, "rss_growth_mib": round(grown / _MIB, 1)}


def _bystander(server: ServerProcess, seconds: float) -> dict[str, Any]:
    """A back office that creates and reads people, every fifth time on a new connection."""
    took = []
    end_s = time.monotonic() + seconds
    kept = LoadConnection(server.address)
    number = 0
    try:
        while time.monotonic() < end_s:
            number += 1
            reads = number % 3 != 0
            asked = server.partner_request("GET", "/v1/subjects?limit=1") if reads else server.new_person()
            begun = time.perf_counter()
            if number % 5 == 0:
                kept.close()
                kept = LoadConnection(server.address)
            kept.send(asked)
            status, _ = kept.answer()
            took.append(time.perf_counter() - begun)
            if status not in {200, 201}:
                raise BenchFailed(f"a bystander was answered {status}")
            time.sleep(_EVERY_S)
    finally:
        kept.close()
    if len(took) < 2:
        raise BenchFailed("a bystander had no answer in time")
    return {
        "requests": len(took),
        "p50_ms": round(median(took) * 1000, 1),
        "p99_ms": round(quantiles(took, n=100, method="inclusive")[98] * 1000, 1),
        "longest_ms": round(max(took) * 1000, 1),
    }


@contextmanager
def _attacked(attack: Callable[[_Target], None], target: _Target) -> Iterator[None]:
    """While inside, another process attacks."""

    def attack_on() -> None:
        end_with_parent()
        attack(target)

    process = multiprocessing.get_context("fork").Process(target=attack_on, daemon=True)
    process.start()
    try:
        yield
        if not process.is_alive():
            raise BenchFailed("the attack ended by itself")
    finally:
        process.kill()
        process.join()


def _hold(target: _Target, count: int, beginning: Callable[[], bytes], every: bytes = b"") -> None:
    """So many connections that begin like this and then send ``every``; a new one for each that ends."""
    held: dict[int, socket.socket] = {}
    poll = select.poll()
    while True:
        while len(held) < count:
            try:
                one = socket.create_connection(
                    target.server.address, timeout=5, source_address=(_STRANGER, 0)
                )
                one.setblocking(False)
                one.send(beginning())
            except OSError:
                break
            held[one.fileno()] = one
            poll.register(one, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        if every:
            for one in held.values():
                try:
                    one.send(every)
                except OSError:
                    continue
        for number, _ in poll.poll(_REOPEN_EVERY_S * 1000):
            poll.unregister(number)
            held.pop(number).close()
        time.sleep(_REOPEN_EVERY_S)


def _silence(target: _Target) -> None:
    _hold(target, target.connections, lambda: b"")


def _slow_heads(target: _Target) -> None:
    _hold(target, target.connections // 2, lambda: b"GET /v1/health HTTP/1.1\r\n", b"a")


def _slow_bodies(target: _Target) -> None:
    head = f"POST {_BATCH} HTTP/1.1\r\nHost: {target.server.host}\r\nContent-Length: 4000000\r\n\r\n"
    _hold(target, target.connections // 10, head.encode, b"a" * 100)


def _slow_bodies_signed(target: _Target) -> None:
    """Of a device that is known: heads with good signatures, and bodies that come slowly."""
    content = " " * (4 * _MIB)

    def beginning() -> bytes:
        return target.device.request("POST", _BATCH, body={"items": [content]})[:8000]

    _hold(target, 20, beginning, b" " * 400)


def _large_bodies(target: _Target) -> None:
    """4 MiB each, without a credential; 8 at a time."""
    stranger = BenchDevice(target.server.host, target.device.device_id)
    _repeat(target, lambda: stranger.request("POST", _BATCH, body={"items": [" " * 4 * _MIB]}), 8)


def _wrong_members(target: _Target) -> None:
    """A device's own, as often as its rate allows."""
    members = {format(number, "x"): 1 for number in range(4 * _MIB // 13)}
    while True:
        begun_s = time.monotonic()
        _repeat(target, lambda: target.device.request("POST", _BATCH, body=members), 1, once=True)
        time.sleep(max(0.0, 0.1 - (time.monotonic() - begun_s)))


def _crowded_batches(target: _Target) -> None:
    """As many wrong values as a batch may have, again and again."""
    items: list[list[int]] = [[] for _ in range(8000)]
    while True:
        _repeat(target, lambda: target.device.request("POST", _BATCH, body={"items": items}), 1, once=True)
        time.sleep(0.1)


def _unread(target: _Target) -> None:
    asked = f"GET /v1/openapi.json HTTP/1.1\r\nHost: {target.server.host}\r\n\r\n".encode() * 200
    _hold(target, target.connections // 10, lambda: asked)


def _no_http(target: _Target) -> None:
    _repeat(target, lambda: os.urandom(64).hex().encode() + b"\r\n\r\n", 4)


def _wrong_keys(target: _Target) -> None:
    """Well-formed requests with a signature by an unknown key."""
    stranger = BenchDevice(target.server.host, new_nonce())
    _repeat(target, lambda: stranger.request("GET", "/v1/devices/self/status"), 4)


def _repeat(target: _Target, made: Callable[[], bytes], at_once: int, *, once: bool = False) -> None:
    """Send requests on new connections and read their answers, for ever or once."""
    while True:
        opened = []
        for _ in range(at_once):
            try:
                opened.append(LoadConnection(target.server.address, _STRANGER))
                opened[-1].send(made())
            except OSError:
                continue
        for one in opened:
            try:
                one.answer()
            except (OSError, BenchFailed):
                continue
            finally:
                one.close()
        if once:
            return


ATTACKS: Final[dict[str, Callable[[_Target], None]]] = {
    "silence": _silence,
    "slow heads": _slow_heads,
    "slow bodies": _slow_bodies,
    "slow bodies, signed": _slow_bodies_signed,
    "4 MiB without a credential": _large_bodies,
    "4 MiB of wrong members": _wrong_members,
    "8,000 wrong values": _crowded_batches,
    "answers not taken": _unread,
    "no HTTP": _no_http,
    "signatures of nobody": _wrong_keys,
}


def summary(figures: dict[str, Any]) -> list[str]:
    lines = [f"a bystander's requests, p99 at most {BAR_MS} ms:"]
    for name, found in figures.items():
        quiet, attacked = found["quiet"], found["attacked"]
        more = f", memory {found['rss_growth_mib']:+} MiB" if "rss_growth_mib" in found else ""
        lines.append(
            f"  {name:<27} p50 {attacked['p50_ms']:5} ms, p99 {attacked['p99_ms']:5} ms"
            f"   quiet {quiet['p50_ms']} and {quiet['p99_ms']} ms{more}"
        )
    waiting = figures["devices waiting"]
    lines.append(
        f"  {waiting['answered']} of {waiting['devices']} devices waited through it and heard of an erasure, "
        f"the last after {waiting['last_ms']} ms"
    )
    return lines
