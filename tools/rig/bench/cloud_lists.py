"""What others wait for while one tenant lists many verdicts, erases during a long read, and is backed up.

The others are one back office of another tenant that reads a person again and again; what it waits is
measured quiet and in each situation of the same run. The processes that list are separate ones.
"""

import itertools
import json
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.store.base import Tx
from tools.palmctl.bench.daemon import BenchFailed
from tools.rig.bench.cloud_server import ServerProcess, on_store, serving
from tools.rig.bench.http_load import LoadConnection, connections, drive
from tools.rig.bench.many_verdicts import DEVICE, GATE, fill

LIMIT_MS: Final = 50
"""What 99 of 100 requests of others may wait."""
_LISTERS = 2
_FILTERS: Final = {
    "device_id": DEVICE,
    "gate_id": GATE,
    "subject_id": "{subject_id}",
    "decision": "abstain",
    "reconciliation": "conflict",
    "from": "2026-09-10T00:00:00Z",
}


def list_paths(subject_id: str) -> list[str]:
    """Every combination of the filters, in either order, and the list of changes."""
    paths = ["/v1/verdict-changes?limit=200"]
    for size in range(len(_FILTERS) + 1):
        for names in itertools.combinations(_FILTERS, size):
            words = "".join(f"&{name}={_FILTERS[name]}" for name in names).format(subject_id=subject_id)
            paths += [f"/v1/verdicts?limit=200&order={order}{words}" for order in ("asc", "desc")]
    return paths


def run_lists_bench(
    folder: Path, verdicts: int, requests: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Measure in ``folder``; ``requests`` of the others in each situation."""
    with serving(folder) as server:
        subject_id = _person(server, "listed")
        tell(f"writing {verdicts} verdicts")
        environment = Environment(server.tenant_id, False)
        on_store(folder, lambda tx, *_: fill(tx, environment, subject_id, verdicts))
        bystander = _other_tenant(server)
        person = bystander.partner_request("GET", f"/v1/subjects/{_person(bystander, 'other')}")
        figures: dict[str, Any] = {"verdicts": verdicts, "requests": requests}
        tell("others, quiet")
        figures["quiet"] = _waits(server, person, requests)
        tell(f"others, while {_LISTERS} processes list")
        with _listing(server, subject_id) as took:
            figures["while_listing"] = _waits(server, person, requests)
        figures["lists"] = _summed(took)
        tell("erasures, quiet and during a read that does not end")
        figures["erasure"] = _erasures(server)
        with _long_reader(folder):
            figures["erasure_beside_a_long_reader"] = _erasures(server)
            figures["while_somebody_reads_long"] = _waits(server, person, requests)
        tell("others, while the database is copied")
        figures["backup"], figures["while_backing_up"] = _backup(server, person, requests)
    return figures


def _other_tenant(server: ServerProcess) -> ServerProcess:
    def create(tx: Tx, vault: Any, now_ms: int) -> tuple[str, str]:
        tenant_id: str = operator.create_tenant(tx, vault, "other", now_ms)["tenant_id"]
        scopes = ["subjects:read", "subjects:write"]
        made = operator.create_key(tx, Environment(tenant_id, False), scopes, now_ms)
        return tenant_id, made["api_key"]

    tenant_id, api_key = on_store(server.data, create)
    return ServerProcess(server.address, server.pid, server.data, tenant_id, api_key)


def _person(server: ServerProcess, name: str) -> str:
    with connections(server.address, 1) as opened:
        request = server.partner_request("POST", "/v1/subjects", {"external_ref": name})
        subject_id: str = json.loads(drive(opened, [request], 201)[0])["subject_id"]
    return subject_id


def _waits(server: ServerProcess, request: bytes, count: int) -> dict[str, float]:
    """ms from a request to its answer, one after another."""
    with connections(server.address, 1) as (connection,):
        return _summed([_wait_s(connection, request) for _ in range(count)])


def _wait_s(connection: LoadConnection, request: bytes, expected: int = 200) -> float:
    began = time.perf_counter()
    connection.send(request)
    status, body = connection.answer()
    if status != expected:
        raise BenchFailed(f"a request was answered {status}: {body[:200]!r}")
    return time.perf_counter() - began


def _summed(waits_s: list[float]) -> dict[str, float]:
    cuts = quantiles(waits_s, n=100)
    shown = {"p50_ms": cuts[49], "p99_ms": cuts[98], "most_ms": max(waits_s)}
    return {name: round(seconds * 1000, 2) for name, seconds in shown.items()} | {"count": len(waits_s)}


@contextmanager
def _listing(server: ServerProcess, subject_id: str) -> Iterator[list[float]]:
    """Processes that list as fast as they are answered; what each list took is there at the end."""
    host, port = server.address
    words = [sys.executable, "-m", "tools.rig.bench.cloud_lists", host, str(port), server.api_key, subject_id]
    running = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(_LISTERS)
    ]
    took: list[float] = []
    try:
        for process in running:
            if process.stdout is None or not process.stdout.readline():
                raise BenchFailed("a process that lists did not start")
        yield took
        for process in running:
            took += json.loads(process.communicate()[0])
    finally:
        for process in running:
            process.kill()
            process.wait()


def _list_until_told(host: str, port: str, api_key: str, subject_id: str) -> None:
    """What such a process does, until its standard input ends."""
    server = ServerProcess((host, int(port)), 0, Path(), "", api_key)
    ended = threading.Event()

    def await_end() -> None:
        sys.stdin.read()
        ended.set()

    threading.Thread(target=await_end, daemon=True).start()
    took = []
    with connections(server.address, 1) as (connection,):
        for path in itertools.cycle(list_paths(subject_id)):
            took.append(_wait_s(connection, server.partner_request("GET", path)))
            if len(took) == 1:
                print(flush=True)
            if ended.is_set():
                break
    print(json.dumps(took))


def _erasures(server: ServerProcess, count: int = 20) -> dict[str, float]:
    names = [f"erased-{time.time_ns()}-{chr(97 + number)}" for number in range(count)]
    people = [_person(server, name) for name in names]
    with connections(server.address, 1) as (connection,):
        requests = [server.partner_request("DELETE", f"/v1/subjects/{one}") for one in people]
        return _summed([_wait_s(connection, request) for request in requests])


@contextmanager
def _long_reader(folder: Path) -> Iterator[None]:
    with closing(sqlite3.connect(folder / "cloud.db", isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM subjects").fetchone()
        yield


def _backup(server: ServerProcess, person: bytes, requests: int) -> tuple[dict[str, Any], dict[str, float]]:
    """One copy as the command makes it, and what others wait for meanwhile."""
    file = server.data / "copy.db"
    words = ["-m", "tools.palmctl.main", "cloud", "backup", str(file), "--data", str(server.data), "--json"]
    waits: list[float] = []
    began = time.perf_counter()
    seconds = 0.0
    with (
        connections(server.address, 1) as (other,),
        subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE) as process,
    ):
        while process.poll() is None or len(waits) < requests:
            waits.append(_wait_s(other, person))
            if process.poll() is None:
                seconds = time.perf_counter() - began
        if process.returncode != 0 or process.stdout is None:
            raise BenchFailed("the backup failed")
        size = json.loads(process.stdout.read())["bytes"]
    return {"mebibytes": round(size / 2**20), "seconds": round(seconds, 1)}, _summed(waits)


def summary(figures: dict[str, Any]) -> list[str]:
    """The figures for a person."""
    lines = [
        f"another tenant's getSubject, {figures['requests']} in each situation (p99 at most {LIMIT_MS} ms)"
    ]
    for name in ("quiet", "while_listing", "while_somebody_reads_long", "while_backing_up"):
        one = figures[name]
        lines.append(
            f"  {name:<26} p50 {one['p50_ms']:6} ms   p99 {one['p99_ms']:6} ms   most {one['most_ms']} ms"
        )
    lists = figures["lists"]
    lines.append(
        f"{lists['count']} lists with every combination of filters over {figures['verdicts']} verdicts: "
        f"p50 {lists['p50_ms']} ms, p99 {lists['p99_ms']} ms, most {lists['most_ms']} ms"
    )
    for name in ("erasure", "erasure_beside_a_long_reader"):
        one = figures[name]
        lines.append(f"{name}: p50 {one['p50_ms']} ms, most {one['most_ms']} ms")
    backup = figures["backup"]
    lines.append(f"backup of {backup['mebibytes']} MiB: {backup['seconds']} s")
    return lines


if __name__ == "__main__":
    _list_until_told(*sys.argv[1:])
