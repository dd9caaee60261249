"""Several server processes on PostgreSQL: `python -m tools.rig.bench.cloud_processes --database URL`.

What a request costs in processor time when 1, 2 or 4 processes share the load, in turns within one run: each
process on one core, as `docs/howto/OPERATIONS.md` advises, and one that is free to use all of them. The
database is an empty one on this machine, so that its own processor time can be seen too.
"""

import argparse
import itertools
import json
import os
import tempfile
from collections.abc import Iterable
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

import psycopg

from tools.rig.bench.cloud_server import ServerProcess, new_tenant, on_store, serving
from tools.rig.bench.http_load import LoadConnection, cpu_s, drive

PROCESSES: Final = (1, 2, 4)
LIMIT: Final = 0.1
"""By how much a request may cost more, or less, than with one process."""
_CORES: Final = sorted(os.sched_getaffinity(0))
_FREE: Final = "1, on all cores"
_SITUATIONS: Final = (*((count, str(count)) for count in PROCESSES), (1, _FREE))
_CONNECTIONS = 4
"""To each process."""
_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def run_processes_bench(folder: Path, database: str, requests: int, rounds: int) -> dict[str, Any]:
    """µs of processor time a request: of the servers, and of the database's processes."""
    tenant = on_store(folder, new_tenant, database)
    took: dict[str, dict[str, list[tuple[float, float]]]] = {"get_subject": {}, "create_subject": {}}
    with ExitStack() as stack:
        servers = [
            stack.enter_context(serving(folder, tenant=tenant, database=database, log=f"server-{number}.log"))
            for number in range(max(PROCESSES))
        ]
        # Every connection to the database is made before anything is measured.
        people = _created(servers, 100)
        _measured(servers, database, _reads(servers, people, 400), 200)
        for _ in range(rounds):
            for count, name in _SITUATIONS:
                used = servers[:count]
                for number, server in enumerate(used):
                    _allow_cores(server.pid, _CORES if name == _FREE else {_CORES[number % len(_CORES)]})
                read = _measured(used, database, _reads(used, people, requests), 200)
                made = _measured(used, database, [_new_person(servers[0]) for _ in range(requests)], 201)
                took["get_subject"].setdefault(name, []).append(read)
                took["create_subject"].setdefault(name, []).append(made)
    figures: dict[str, Any] = {"requests": requests, "rounds": rounds}
    for operation, by_name in took.items():
        base = median(ours for ours, _ in by_name[str(PROCESSES[0])])
        figures[operation] = {
            name: {
                "server_us": round(median(ours for ours, _ in costs)),
                "database_us": round(median(theirs for _, theirs in costs)),
                "to_one_process": round(median(ours for ours, _ in costs) / base, 2),
            }
            for name, costs in by_name.items()
        }
    return figures


def _allow_cores(pid: int, cores: Iterable[int]) -> None:
    """Let a server run on these cores only: with the threads that it has, and so with those they start."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), cores)


def _new_person(server: ServerProcess) -> bytes:
    # Letters only: eleven digits in a row might be a CPF.
    name = os.urandom(16).hex().translate(str.maketrans("0123456789", "ghijklmnop"))
    return server.partner_request("POST", "/v1/subjects", {"external_ref": name})


def _created(servers: list[ServerProcess], count: int) -> list[str]:
    with ExitStack() as stack:
        bodies = drive(_opened(servers, stack), [_new_person(servers[0]) for _ in range(count)], 201)
    return [json.loads(body)["subject_id"] for body in bodies]


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
    with psycopg.connect(database) as connection:
        return [pid for (pid,) in connection.execute(_BACKENDS).fetchall()]


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
                f"{operation:<15} processes {name}: server {one['server_us']} µs "
                f"({one['to_one_process']} of one), database {one['database_us']} µs"
            )


if __name__ == "__main__":
    main()
