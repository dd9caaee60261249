"""Several server processes on PostgreSQL: `python -m tools.rig.bench.cloud_processes --database URL`.

What a request costs in processor time when 1, 2 or 4 processes share one database, in turns within one run
with as many processes that share nothing: each has a copy of that database. The cores are as full then, so
what is left of the difference is the sharing. Last, one process whose threads stay on one core. The database
is an empty one on this machine, of a user who may create others.
"""

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from tools.rig.bench.cloud_requests import created_people
from tools.rig.bench.cloud_server import ServerProcess, new_tenant, on_store, serving
from tools.rig.bench.http_load import LoadConnection, cpu_s, drive

PROCESSES: Final = (1, 2, 4)
_SHARED: Final = "shared"
_COPIES: Final = "copies"
_ON_ONE_CORE: Final = "on one core"
_SITUATIONS: Final = (
    *((count, kind) for count in PROCESSES for kind in (_SHARED, _COPIES)),
    (1, _ON_ONE_CORE),
)
_CORES: Final = sorted(os.sched_getaffinity(0))
_CONNECTIONS = 4
"""To each process."""
_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE starts_with(datname, %s) AND pid <> pg_backend_pid()"


def run_processes_bench(folder: Path, database: str, requests: int, rounds: int) -> dict[str, Any]:
    """µs of processor time a request: of the servers, and of the database's processes."""
    tenant = on_store(folder, new_tenant, database)
    with serving(folder, tenant=tenant, database=database) as server:
        people = created_people(server, 100)
    took: dict[str, dict[str, list[tuple[float, float]]]] = {"get_subject": {}, "create_subject": {}}
    with ExitStack() as stack:
        copies = [stack.enter_context(_copy(database, number)) for number in range(max(PROCESSES))]
        databases = {_SHARED: [database] * len(copies), _COPIES: copies}
        servers = {
            kind: [
                stack.enter_context(serving(folder, tenant=tenant, database=url, log=f"{kind}-{number}.log"))
                for number, url in enumerate(urls)
            ]
            for kind, urls in databases.items()
        }
        # Every connection to the databases is made before anything is measured.
        for used in servers.values():
            _measured(used, database, _reads(used, people, 400), 200)
            _measured(used, database, [used[0].new_person() for _ in range(100)], 201)
        for _ in range(rounds):
            for count, kind in _SITUATIONS:
                used = servers[_COPIES if kind == _COPIES else _SHARED][:count]
                _allow_cores(used[0].pid, _CORES[:1] if kind == _ON_ONE_CORE else _CORES)
                read = _measured(used, database, _reads(used, people, requests), 200)
                made = _measured(used, database, [used[0].new_person() for _ in range(requests)], 201)
                took["get_subject"].setdefault(f"{count} {kind}", []).append(read)
                took["create_subject"].setdefault(f"{count} {kind}", []).append(made)
    figures: dict[str, Any] = {"requests": requests, "rounds": rounds}
    for operation, by_name in took.items():
        ours = {name: median(cost for cost, _ in costs) for name, costs in by_name.items()}
        figures[operation] = {
            name: {
                "server_us": round(ours[name]),
                "database_us": round(median(theirs for _, theirs in costs)),
                "to_copies": round(ours[name] / ours[f"{name.split()[0]} {_COPIES}"], 2),
            }
            for name, costs in by_name.items()
        }
    return figures


@contextmanager
def _copy(database: str, number: int) -> Iterator[str]:
    """The URL of a copy of the database, which no one may be connected to now; it is dropped afterwards."""
    url = urlsplit(database)
    name = f"{url.path[1:]}_copy_{number}"
    elsewhere = urlunsplit(url._replace(path="/postgres"))
    with psycopg.connect(elsewhere, autocommit=True) as connection:
        words = {"copy": sql.Identifier(name), "original": sql.Identifier(url.path[1:])}
        connection.execute(sql.SQL("CREATE DATABASE {copy} TEMPLATE {original}").format(**words))
        try:
            yield urlunsplit(url._replace(path=f"/{name}"))
        finally:
            connection.execute(sql.SQL("DROP DATABASE {copy} WITH (FORCE)").format(**words))


def _allow_cores(pid: int, cores: Iterable[int]) -> None:
    """Let a server run on these cores only: with the threads that it has, and so with those they start."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def _reads(servers: list[ServerProcess], people: list[str], count: int) -> list[bytes]:
    ids = itertools.islice(itertools.cycle(people), count)
    return [servers[0].partner_request("GET", f"/v1/subjects/{subject_id}") for subject_id in ids]


def _opened(servers: list[ServerProcess], stack: ExitStack) -> list[LoadConnection]:
    """As many connections to each process, in turns over them."""
    opened = [
        LoadConnection(servers[number % len(servers)].address)
        for number in range(_CONNECTIONS * len(servers))
    ]
    for connection in opened:
        stack.callback(connection.close)
    return opened


def _measured(
    servers: list[ServerProcess], database: str, requests: list[bytes], expected: int
) -> tuple[float, float]:
    """µs of processor time a request: of the servers, of the database."""
    with ExitStack() as stack:
        opened = _opened(servers, stack)
        pids = _backends(database)
        ours, theirs = sum(cpu_s(server.pid) for server in servers), _together_s(pids)
        drive(opened, requests, expected)
        ours, theirs = sum(cpu_s(server.pid) for server in servers) - ours, _together_s(pids) - theirs
    return ours / len(requests) * 1e6, theirs / len(requests) * 1e6


def _backends(database: str) -> list[int]:
    """Those of its copies too, whose names begin with its own."""
    name = urlsplit(database).path[1:]
    with psycopg.connect(database) as connection:
        return [pid for (pid,) in connection.execute(_BACKENDS, (name,)).fetchall()]


def _together_s(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        with suppress(FileNotFoundError):
            total += cpu_s(pid)
    return total


def main() -> None:
    """Measure, and print a line for each situation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", required=True, help="the URL of an empty database on this machine")
    parser.add_argument("--requests", type=int, default=1000, help="of each kind in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="palm-processes-") as folder:
        figures = run_processes_bench(Path(folder), given.database, given.requests, given.rounds)
    if given.json:
        print(json.dumps(figures))
        return
    for operation in ("get_subject", "create_subject"):
        for name, one in figures[operation].items():
            print(
                f"{operation:<15} {name:<14} server {one['server_us']:5} µs "
                f"({one['to_copies']} of copies), database {one['database_us']} µs"
            )


if __name__ == "__main__":
    main()
