"""One server process at its size: `python -m tools.rig.bench.cloud_scale`.

A store with a million verdicts and a hundred thousand people; two thousand devices wait. What is measured,
each next to the idle server of the same run: how long an erasure takes to reach every device, and what a back
office waits for meanwhile, while the server sweeps what is past its time, while two processes list verdicts,
and while it is backed up. The server has its default limits of requests, and those of open files that systemd
gives a service.
"""

import argparse
import asyncio
import itertools
import json
import platform
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from cloud_client.reference_server.domain.verdicts.expiry import VERDICT_MONTHS
from cloud_client.reference_server.store.base import Tx
from tools.palmctl.bench.daemon import BenchFailed, rss_bytes
from tools.rig.bench import many_verdicts
from tools.rig.bench.cloud_gallery import allow_files, await_idle, fill_gallery, person_id, register
from tools.rig.bench.cloud_requests import measure_batches
from tools.rig.bench.cloud_server import (
    BenchDevice,
    BenchTenant,
    ServerProcess,
    files_of_a_service,
    new_tenant,
    on_store,
    serving,
    with_new_key,
)
from tools.rig.bench.http_load import connections, cpu_s, drive
from tools.rig.bench.thin_clients import ThinClient, asked_steadily, beside

ERASURE_BAR_MS: Final = 1000
OTHERS_BAR_MS: Final = 50
"""99 of 100: from an erasure to its tombstone at a waiting device; what a back office waits for an answer."""

_BACK_OFFICE = "127.0.0.3"
"""Not the address of the devices: newcomers of one address take turns."""
_PREFIX = "waiting"
_UPLOADER = f"{_PREFIX}-0"
_DELTAS = "/v1/gallery/deltas"
_DAY_MS = 24 * 3600 * 1000
_OTHERS_EVERY_S = 0.025
_ERASURE_EVERY_S = 2.0
_LISTERS = 2
_RETRY_S = 0.5
_UPLOADS = 400
_AT_ONCE = 2000
"""Devices that connect without a pause."""
_STEP = 50_000
"""Rows that are written in one transaction."""


@dataclass(frozen=True)
class ScaleBench:
    """How much there is, and how long each situation is looked at."""

    verdicts: int = 1_000_000
    people: int = 100_000
    devices: int = 2_000
    erasures: int = 15
    expired: int = 20_000
    seconds: float = 10.0


def run_scale_bench(folder: Path, size: ScaleBench, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure in ``folder``, which takes some 6 GiB."""
    allow_files(size.devices + 500)
    begun_s = time.monotonic()
    tenant = on_store(folder, new_tenant)
    with serving(folder, tenant=tenant, files=files_of_a_service()) as server:
        tell(f"registering {size.devices} devices")
        devices = register(server, size.devices, _PREFIX)
        measure_batches(server, devices[0], 1)
    fill(folder, tenant, size, tell)
    figures: dict[str, Any] = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "verdicts": size.verdicts,
        "people": size.people,
        "filled_s": round(time.monotonic() - begun_s),
        "database_mib": round((folder / "cloud.db").stat().st_size / 2**20),
    }
    with serving(folder, tenant=tenant, rate_scale=1.0, files=files_of_a_service()) as server:
        tell(f"the server starts, and sweeps {size.expired} of each kind of record")
        figures["sweep"] = asyncio.run(_sweep(server))
        tell("others, and nothing else")
        figures["idle"] = _others_for(server, size.seconds)
        tell(f"{size.devices} devices wait, {size.erasures} people are erased")
        figures |= asyncio.run(_erasures(server, devices, size))
        tell(f"others, while {_LISTERS} processes list")
        figures["pages_of_200"], figures["lists"] = _while_listing(server, size.seconds)
        figures["cpu_ms_a_verdict"] = _uploaded(server, devices)
        tell("others, while the database is copied")
        figures["backup"] = _backup(server)
        tell("others, during a read without end")
        with _long_reader(folder):
            figures["long_read"] = _others_for(server, size.seconds)
        tell("others, while an epoch begins")
        figures["epoch"] = _epoch(server)
    return figures


def fill(folder: Path, tenant: BenchTenant, size: ScaleBench, tell: Callable[[str], None]) -> None:
    """People with two palms each; verdicts, the first of them and other records past their time."""
    environment = tenant.environment
    tell(f"writing {size.people} people and {2 * size.people} palms")
    fill_gallery(folder, tenant, 2 * size.people)
    past_ms = int(time.time() * 1000) - (VERDICT_MONTHS * 31 + 1) * _DAY_MS
    spans = [(0, size.expired, past_ms - size.expired * 1000)]
    spans += [(size.expired, size.verdicts - size.expired, many_verdicts.FIRST_MS)]
    tell(f"writing {size.verdicts} verdicts, {size.expired} of them past their time")
    for begin, count, first_ms in spans:
        for after in range(begin, begin + count, _STEP):
            step = min(_STEP, begin + count - after)

            def verdicts(
                tx: Tx, *_: object, after: int = after, step: int = step, first_ms: int = first_ms
            ) -> None:
                many_verdicts.fill(tx, environment, person_id(0), step, after=after, first_ms=first_ms)

            on_store(folder, verdicts)
    on_store(folder, lambda tx, *_: _expired(tx, tenant, size.expired, past_ms))


def _expired(tx: Tx, tenant: BenchTenant, count: int, past_ms: int) -> None:
    """Recorded answers, nonces, events and the beginning of the gallery's log, all past their time."""
    numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :count)"
    for statement in (
        """INSERT INTO idempotency (scope_hash, key_mac, body_mac, started_ms, answer_ct)
           SELECT randomblob(32), randomblob(32), randomblob(32), :past_ms, randomblob(700) FROM n""",
        """INSERT INTO nonces (kid, nonce, expires_ms)
           SELECT lower(hex(randomblob(16))), lower(hex(randomblob(16))), :past_ms FROM n""",
        """INSERT INTO events (event_id, tenant_id, livemode, kind, created_ms)
           SELECT lower(hex(randomblob(16))), :tenant_id, 0, 'verdict', :past_ms FROM n""",
        """INSERT INTO deltas (stream, epoch, seq, op, digest, head, salt, created_ms)
           SELECT :stream, 1, i, 'noop', randomblob(32), randomblob(32), randomblob(16), :past_ms + i
           FROM n""",
        "UPDATE streams SET seq = :count, head = randomblob(32) WHERE stream = :stream",
    ):
        given = {"count": count, "past_ms": past_ms, "tenant_id": tenant.tenant_id}
        sql = f"{numbers} {statement}"
        named = {name: value for name, value in given.items() if f":{name}" in sql}
        if ":stream" in sql:
            named["stream"] = tenant.environment.stream
        tx.run(sql, **named)


# What others ask for


def _requests(server: ServerProcess) -> Iterator[tuple[str, bytes]]:
    """What a back office asks for: people, lists of 50, proofs, and now and then a new person."""
    proofs = _ids(server, f"/v1/verdicts?device_id={_UPLOADER}&limit=100", "verdict_id")
    people = _ids(server, "/v1/subjects?limit=200", "subject_id")
    lists = itertools.cycle(path.replace("limit=200", "limit=50") for path in list_paths(person_id(0)))
    for number in itertools.count():
        match number % 8:
            case 0 | 4:
                yield "getSubject", server.partner_request("GET", f"/v1/subjects/{next(people)}")
            case 1 | 5:
                yield "lists of verdicts", server.partner_request("GET", next(lists))
            case 2:
                yield "listSubjects", server.partner_request("GET", "/v1/subjects?limit=50")
            case 3 | 6:
                yield "getVerdict", server.partner_request("GET", f"/v1/verdicts/{next(proofs)}")
            case _:
                yield "createSubject", server.new_person()


_FILTERS: Final = {
    "device_id": many_verdicts.DEVICE,
    "gate_id": many_verdicts.GATE,
    "subject_id": "{subject_id}",
    "decision": "abstain",
    "reconciliation": "conflict",
    "from": "2026-09-10T00:00:00Z",
}


def list_paths(subject_id: str) -> list[str]:
    """Every combination of the filters of listVerdicts, in either order, and the list of changes."""
    paths = ["/v1/verdict-changes?limit=200"]
    for size in range(len(_FILTERS) + 1):
        for names in itertools.combinations(_FILTERS, size):
            words = "".join(f"&{name}={_FILTERS[name]}" for name in names).format(subject_id=subject_id)
            paths += [f"/v1/verdicts?limit=200&order={order}{words}" for order in ("asc", "desc")]
    return paths


def _ids(server: ServerProcess, path: str, name: str) -> Iterator[str]:
    """The ids of a page, again and again."""
    with connections(server.address, 1) as opened:
        (page,) = drive(opened, [server.partner_request("GET", path)], 200)
    return itertools.cycle([one[name] for one in json.loads(page)["data"]])


def _others(ended: Callable[[], bool], server: ServerProcess) -> dict[str, Any]:
    """What a back office waits for until it is ended: of each kind of request, and of all."""
    took = asyncio.run(
        asked_steadily(server.address, _BACK_OFFICE, _requests(server), _OTHERS_EVERY_S, ended)
    )
    return {"all": _summed([*itertools.chain(*took.values())])} | {
        kind: _summed(waits) for kind, waits in took.items()
    }


def _others_for(server: ServerProcess, seconds: float) -> dict[str, Any]:
    with beside(_others, server) as others:
        time.sleep(seconds)
        found: dict[str, Any] = others()
    return found


def _with_own_key(server: ServerProcess) -> ServerProcess:
    """The server as another program of the same tenant talks to it."""
    tenant_id = server.tenant.tenant_id
    made = on_store(server.data, lambda tx, _vault, now_ms: with_new_key(tx, tenant_id, now_ms))
    return replace(server, tenant=made)


def _lists(ended: Callable[[], bool], server: ServerProcess) -> list[float]:
    """Pages of 200 verdicts, as fast as they are answered; seconds each."""
    took: list[float] = []
    with connections(server.address, 1) as (connection,):
        for path in itertools.cycle(list_paths(person_id(0))):
            if ended():
                return took
            begun = time.perf_counter()
            connection.send(server.partner_request("GET", path))
            status, body = connection.answer()
            if status == 429:
                time.sleep(_RETRY_S)
                continue
            took.append(time.perf_counter() - begun)
            if status != 200:
                raise BenchFailed(f"a list was answered {status}: {body[:200]!r}")
    raise AssertionError


def _while_listing(server: ServerProcess, seconds: float) -> tuple[dict[str, float], dict[str, Any]]:
    """What the pages of 200 take, and others meanwhile."""
    with ExitStack() as stack:
        listing = [stack.enter_context(beside(_lists, _with_own_key(server))) for _ in range(_LISTERS)]
        found = _others_for(server, seconds)
        return _summed([took for one in listing for took in one()]), found


def _summed(waits_s: list[float]) -> dict[str, float]:
    cuts = quantiles(waits_s, n=100, method="inclusive") if len(waits_s) > 1 else waits_s * 99
    shown = {"p50_ms": cuts[49], "p99_ms": cuts[98], "most_ms": max(waits_s)}
    return {name: round(seconds * 1000, 1) for name, seconds in shown.items()} | {"count": len(waits_s)}


# The situations


async def _sweep(server: ServerProcess) -> dict[str, Any]:
    """Others from the start of the server to the end of its first sweep."""
    begun = time.monotonic()
    with beside(_others, server) as others:
        log = server.data / "server.log"
        while "sweep: {" not in log.read_text():
            await asyncio.sleep(0.1)
            if time.monotonic() - begun > 600:
                raise BenchFailed("the sweep does not end in 10 minutes")
        seconds = time.monotonic() - begun
        found: dict[str, Any] = others()
    return found | {"seconds": round(seconds, 1)}


class _Fleet:
    """Devices that wait for changes, and ask again as soon as they are answered."""

    def __init__(self, server: ServerProcess, devices: list[BenchDevice], seq: int, changes: int) -> None:
        self._server = server
        self._waits = [
            [
                device.request("GET", _DELTAS, query=f"epoch=1&after_seq={seq + number}&wait_s=55")
                for number in range(changes + 1)
            ]
            for device in devices
        ]
        self._clients: list[ThinClient] = []
        self._changes = [0] * len(devices)
        self._heard: list[float] = []
        self._all_heard = asyncio.Event()

    async def connect(self) -> None:
        for number in range(len(self._waits)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(1)  # of newcomers that wait for their turn, the oldest go for the newest
            self._clients.append(await ThinClient.connected(self._server.address))
            self._ask(number)

    def _ask(self, number: int) -> None:
        def answered(status: int, body: bytes) -> None:
            if status != 200 or body.count(b'"tombstone"') != 1:
                raise BenchFailed(f"a waiting device was answered {status}: {body[:300]!r}")
            self._heard.append(time.perf_counter())
            if len(self._heard) == len(self._clients):
                self._all_heard.set()
            self._changes[number] += 1
            self._ask(number)

        self._clients[number].ask(self._waits[number][self._changes[number]], answered)

    async def erase(self, erasing: Awaitable[tuple[int, bytes]]) -> tuple[float, list[float]]:
        """Seconds from an erasure's request to its answer, and to its tombstone at each device."""
        self._heard.clear()
        self._all_heard.clear()
        begun = time.perf_counter()
        status, body = await erasing
        answered_s = time.perf_counter() - begun
        if status != 200:
            raise BenchFailed(f"an erasure was answered {status}: {body[:200]!r}")
        async with asyncio.timeout(50):
            await self._all_heard.wait()
        return answered_s, [heard - begun for heard in self._heard]

    def close(self) -> None:
        for client in self._clients:
            client.close()


async def _erasures(server: ServerProcess, devices: list[BenchDevice], size: ScaleBench) -> dict[str, Any]:
    with connections(server.address, 1) as opened:
        asked = devices[0].request("GET", "/v1/gallery/snapshot")
        head = json.loads(drive(opened, [asked], 200)[0])["head"]["head_obj"]
    before = rss_bytes(server.pid)
    fleet = _Fleet(server, devices, head["seq"], size.erasures + 1)
    with beside(_others, server) as others:
        await asyncio.sleep(1)
        begun = time.monotonic()
        await fleet.connect()
        await asyncio.to_thread(await_idle, server, 0.5)
        connected_s = time.monotonic() - begun
        connecting = others()
    answered, last, every = [], [], []
    try:
        with beside(_others, server) as others:
            await asyncio.sleep(min(size.seconds, 20))
            grown = rss_bytes(server.pid) - before
            waiting = others()
        alone, cpu_ms = await _erased_alone(server, fleet, size)
        with beside(_others, server) as others:
            for number in range(size.erasures):
                await asyncio.sleep(_ERASURE_EVERY_S)
                request = server.partner_request("DELETE", f"/v1/subjects/{person_id(number + 1)}")
                partner = await ThinClient.connected(server.address)
                answered_s, heard = await fleet.erase(partner.answer(request))
                partner.close()
                answered.append(answered_s)
                last.append(max(heard))
                every += heard
            meanwhile = others()
    finally:
        fleet.close()
    return {
        "devices": len(devices),
        "connected_s": round(connected_s, 1),
        "erasure_and_nothing_else": _summed(alone),
        "cpu_ms_a_poll": cpu_ms,
        "kib_a_device": round(grown / len(devices) / 1024, 1),
        "connecting": connecting,
        "waiting": waiting,
        "erasures": meanwhile,
        "erasure_answered": _summed(answered),
        "erasure_at_each": _summed(every),
        "erasure_at_the_last": _summed(last),
    }


async def _erased_alone(server: ServerProcess, fleet: _Fleet, size: ScaleBench) -> tuple[list[float], float]:
    """Seconds to each device, and ms of processor to answer one of them and take its next poll."""
    await asyncio.to_thread(await_idle, server)
    before = cpu_s(server.pid)
    partner = await ThinClient.connected(server.address)
    request = server.partner_request("DELETE", f"/v1/subjects/{person_id(size.erasures + 1)}")
    _, heard = await fleet.erase(partner.answer(request))
    partner.close()
    await asyncio.to_thread(await_idle, server)
    return heard, round((cpu_s(server.pid) - before) / size.devices * 1000, 2)


def _uploaded(server: ServerProcess, devices: list[BenchDevice]) -> float:
    """ms of processor that a verdict costs which is uploaded by itself, as gates do when someone passes."""
    uploaders = devices[1 : 1 + _UPLOADS]
    requests = [
        device.request("POST", "/v1/verdicts/batch", body={"items": [{"signed_verdict": device.verdict()}]})
        for device in uploaders
    ]
    with connections(server.address, 4) as opened:
        before = cpu_s(server.pid)
        drive(opened, requests, 200)
        return round((cpu_s(server.pid) - before) / len(requests) * 1000, 2)


def _backup(server: ServerProcess) -> dict[str, Any]:
    """One copy as the command makes it, and what others wait for meanwhile."""
    file = server.data / "copy.db"
    found = _while_commanded(server, "backup", str(file))
    file.unlink()
    return found


def _epoch(server: ServerProcess) -> dict[str, Any]:
    """An epoch of the same model, as the command begins it, and what others wait for meanwhile."""
    tenant_id = server.tenant.tenant_id
    return _while_commanded(server, "epoch", "new", "--tenant", tenant_id, "--mode", "test")


def _while_commanded(server: ServerProcess, *words: str) -> dict[str, Any]:
    """Others from the start of a ``palmctl cloud`` command to its end, and its seconds."""
    command = [sys.executable, "-m", "tools.palmctl.main", "cloud", *words]
    with beside(_others, server) as others:
        begun = time.monotonic()
        subprocess.run(
            [*command, "--data", str(server.data), "--json"], stdout=subprocess.DEVNULL, check=True
        )
        seconds = time.monotonic() - begun
        found: dict[str, Any] = others()
    return found | {"seconds": round(seconds, 1)}


def _long_reader(folder: Path) -> closing[sqlite3.Connection]:
    connection = sqlite3.connect(folder / "cloud.db", isolation_level=None)
    connection.execute("BEGIN")
    connection.execute("SELECT count(*) FROM subjects").fetchone()
    return closing(connection)


def summary(figures: dict[str, Any]) -> list[str]:
    lines = [
        (
            f"{figures['machine']}; {figures['verdicts']} verdicts, {figures['people']} people: "
            f"{figures['database_mib']} MiB, made in {figures['filled_s']} s"
        ),
        f"an erasure at {figures['devices']} waiting devices (99 of 100 within {ERASURE_BAR_MS} ms):",
    ]
    lines += [_line(name, figures[name]) for name in _ERASURES]
    lines.append(f"a back office's requests (99 of 100 within {OTHERS_BAR_MS} ms):")
    for name in _SITUATIONS:
        kinds = ((kind, one) for kind, one in figures[name].items() if isinstance(one, dict))
        lines += [_line(name if kind == "all" else f"  {kind}", one) for kind, one in kinds]
    took = ", ".join(f"{name} {figures[name]['seconds']} s" for name in ("sweep", "backup", "epoch"))
    return [
        *lines,
        f"{took}; all devices connected in {figures['connected_s']} s",
        f"a waiting device: {figures['kib_a_device']} KiB",
        f"ms of processor: {figures['cpu_ms_a_poll']} a poll, {figures['cpu_ms_a_verdict']} an upload",
    ]


def _line(name: str, one: dict[str, float]) -> str:
    return f"  {name:<24} p50 {one['p50_ms']:7} ms, p99 {one['p99_ms']:7} ms, most {one['most_ms']} ms"


_ERASURES: Final = (
    "erasure_answered",
    "erasure_at_each",
    "erasure_at_the_last",
    "erasure_and_nothing_else",
    "pages_of_200",
)
_SITUATIONS: Final = (
    "idle",
    "connecting",
    "waiting",
    "erasures",
    "lists",
    "sweep",
    "backup",
    "long_read",
    "epoch",
)


def main() -> None:
    """Measure in a temporary folder; figures for a person, or all of them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in vars(ScaleBench()).items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    given = vars(parser.parse_args())
    as_json = given.pop("json")
    with tempfile.TemporaryDirectory(prefix="palm-scale-") as folder:
        figures = run_scale_bench(
            Path(folder), ScaleBench(**given), lambda line: print(line, file=sys.stderr)
        )
    print(json.dumps(figures) if as_json else "\n".join(summary(figures)))


if __name__ == "__main__":
    main()
