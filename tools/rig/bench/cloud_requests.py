"""CPU per request of the server process, in turns with the bare app in one run; verdict batches."""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from link1.signed import Kind, verify_object
from tools.palmctl.bench.daemon import BenchFailed
from tools.rig.bench.cloud_bare import ON_LOOP
from tools.rig.bench.cloud_server import BenchDevice, ServerProcess, printed_port, started
from tools.rig.bench.http_load import connections, cpu_s, drive

ROUNDS = 15
_KEPT_ALIVE = 4
_PERSONS = 200


def measure_requests(server: ServerProcess, folder: Path, requests: int) -> dict[str, Any]:
    """Median µs of CPU for getSubject and createSubject, of the server and of the bare app.

    ``requests`` is how many are made of each; short rounds in turns, because other programs on a machine
    slow both down alike.
    """
    words = [sys.executable, "-m", "tools.rig.bench.cloud_bare", str(folder / "bare.db")]
    log = folder / "bare.log"
    with started(words, log) as process:
        bare = ServerProcess(("127.0.0.1", printed_port(process, log)), process.pid, folder, server.tenant)
        both = {"server": server, "bare": bare}
        ids = {name: created_people(one, _PERSONS) for name, one in both.items()}
        gets: dict[str, list[float]] = {"server": [], "bare": []}
        posts: dict[str, list[float]] = {"server": [], "bare": []}
        on_loop: list[float] = []
        for _ in range(ROUNDS):
            for name, one in both.items():
                gets[name].append(_get_us(one, ids[name], requests // ROUNDS))
                posts[name].append(_post_us(one, requests // ROUNDS))
            on_loop.append(_post_us(bare, requests // ROUNDS, ON_LOOP))
    created = _beside(posts)
    strictest = _beside({"server": posts["server"], "bare": on_loop})
    created |= {"bare_on_loop_us": strictest["bare_us"], "ratio_on_loop": strictest["ratio"]}
    return {"get_subject": _beside(gets), "create_subject": created}


def measure_batches(server: ServerProcess, device: BenchDevice, batches: int) -> dict[str, Any]:
    """Verdict batches of 100, each one transaction, against the bare signature checks of one batch."""
    wall, cpu = [], []
    items: list[dict[str, Any]] = []
    with connections(server.address, 1) as (connection,):
        for _ in range(batches):
            items = [{"signed_verdict": device.verdict()} for _ in range(100)]
            request = device.request("POST", "/v1/verdicts/batch", body={"items": items})
            before, begun = cpu_s(server.pid), time.perf_counter()
            connection.send(request)
            status, body = connection.answer()
            wall.append(time.perf_counter() - begun)
            cpu.append(cpu_s(server.pid) - before)
            if status != 200 or len(json.loads(body)["accepted"]) != 100:
                raise BenchFailed(f"a batch was answered {status}")
    begun = time.process_time()
    for item in items:
        verify_object(Kind.VERDICT, item["signed_verdict"], device.verdict_key.public)
    checks_ms = (time.process_time() - begun) * 1000
    return {
        "batches": batches,
        "wall_ms": round(median(wall) * 1000, 1),
        "cpu_ms": round(sum(cpu) / batches * 1000, 1),
        "cpu_us_a_verdict": round(sum(cpu) / batches * 10_000),
        "signature_checks_alone_ms": round(checks_ms, 1),
        "ratio": round(sum(cpu) / batches * 1000 / checks_ms, 2),
    }


def created_people(server: ServerProcess, count: int) -> list[str]:
    """Create so many people; their ids."""
    with connections(server.address, _KEPT_ALIVE) as opened:
        bodies = drive(opened, [server.new_person() for _ in range(count)], 201)
    return [json.loads(body)["subject_id"] for body in bodies]


def _get_us(server: ServerProcess, ids: list[str], count: int) -> float:
    requests = [server.partner_request("GET", f"/v1/subjects/{ids[n % len(ids)]}") for n in range(count)]
    return _cpu_us(server, requests, 200)


def _post_us(server: ServerProcess, count: int, path: str = "/v1/subjects") -> float:
    return _cpu_us(server, [server.new_person(path) for _ in range(count)], 201)


def _cpu_us(server: ServerProcess, requests: list[bytes], expected: int) -> float:
    with connections(server.address, _KEPT_ALIVE) as opened:
        before = cpu_s(server.pid)
        drive(opened, requests, expected)
        return (cpu_s(server.pid) - before) / len(requests) * 1e6


def _beside(rounds: dict[str, list[float]]) -> dict[str, Any]:
    ratios = [ours / bare for ours, bare in zip(rounds["server"], rounds["bare"], strict=True)]
    return {
        "server_us": round(median(rounds["server"])),
        "bare_us": round(median(rounds["bare"])),
        "ratio": round(median(ratios), 2),
        "ratio_of_rounds": [round(ratio, 2) for ratio in sorted(ratios)],
    }
