"""An hour of passages before one device: does any stage's p99 leave its p50, and does memory grow?

    python -m tools.rig.bench.steady --minutes 60

The same bench as `palmctl bench`, for as long as asked. Each passage's stages come from the socket that
`palmctl pass` uses; page faults, memory and the bytes sent to the disk are the kernel's, of the daemon alone.
After each passage the disk is asked for one sync of a page: what the journal's stage can be at best.
"""

import asyncio
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any, Final

import click

from device.config.config import DeviceConfig
from device.platform.ipc import ask_core
from device.values.control import NextAsked, PassAnswer
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from tools.palmctl.bench.daemon import Running, rss_bytes
from tools.palmctl.bench.recording import films_of, read_recording
from tools.palmctl.bench.run import enrolled, new_board
from tools.palmctl.bench.verdict_latency import encode, measure_latency
from tools.palmctl.finite_range import FiniteRange
from tools.rig.bench.films import film
from tools.rig.bench.small_board import STRANGERS

PASSAGE_S: Final = 1.02
"""What one passage of the bench takes, with the pause before the next hand."""
SETTLED: Final = 60
"""Passages before memory is looked at: the first ones fill what is kept for reuse. The very first are of
strangers, whose many vectors take the most; else the first known palm that needs as many would."""
_WAIT_MS: Final = 30_000
_BARE_SYNC: Final = "(a sync by itself)"
_PAGE_BYTES: Final = 4096


def measure_steady(folder: Path, *, templates: int, minutes: float) -> dict[str, Any]:
    """Passages for `minutes` before a device with `templates`, in `folder`, which is empty."""
    manifest = load_manifest(shipped_model_dir())
    embedder = open_embedder(manifest)
    recording = read_recording()
    known = [
        one
        for number, person in enumerate(recording.people)
        for one in enrolled(embedder, f"{number:032x}", person.enrolment)
    ]
    strangers = [film(seed) for seed in STRANGERS]
    films = [one for person in recording.people for one in films_of(person)]
    (empty,) = encode([recording.empty])
    board, config = new_board(folder / "device", manifest, known, templates)
    seen: list[dict[str, float]] = []
    figures = measure_latency(
        board,
        strangers + list(islice(cycle(films), max(SETTLED * 2, round(minutes * 60 / PASSAGE_S)))),
        empty,
        folder / "device" / "camera",
        Path(config.link.port),
        beside=lambda palmd: _watch(config, palmd, folder / "page", seen),
    )
    return {
        "templates": templates,
        "passages": figures["passages"],
        "decisions": figures["decisions"],
        "by_film_ms": figures["by_film_ms"],
        "stages_ms": _stages(seen),
        "rss_mib": [round(one["rss_mib"], 1) for one in seen[SETTLED :: (len(seen) - SETTLED) // 8]],
        "faults_a_passage": round(_grown(seen, "faults")),
        "disk_kib_a_passage": round(_grown(seen, "disk_bytes") / 1024, 1),
    }


async def _watch(config: DeviceConfig, palmd: Running, page: Path, seen: list[dict[str, float]]) -> None:
    """Note every passage: its stages, what the daemon has used until then, and a sync of `page`."""
    while True:
        answer = await asyncio.to_thread(_next_passage, config)
        if answer is not None:
            noted = {name: us / 1000 for name, us in answer} | await asyncio.to_thread(_used, palmd)
            seen.append(noted | {_BARE_SYNC: await asyncio.to_thread(_sync_ms, page)})


def _sync_ms(page: Path) -> float:
    descriptor = os.open(page, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.pwrite(descriptor, os.urandom(_PAGE_BYTES), 0)
        begun_s = time.perf_counter()
        os.fdatasync(descriptor)
        return (time.perf_counter() - begun_s) * 1000
    finally:
        os.close(descriptor)


def _next_passage(config: DeviceConfig) -> Sequence[tuple[str, int]] | None:
    told = ask_core(
        config.control_socket, "pass.next", timeout_s=_WAIT_MS / 1000 + 5, **NextAsked(_WAIT_MS).to_obj()
    )
    passage = PassAnswer.from_obj(told.header).passage
    return None if passage is None else passage.stages_us


def _used(palmd: Running) -> dict[str, float]:
    proc = Path(f"/proc/{palmd.pid}")
    written = dict(line.split(": ") for line in (proc / "io").read_text().splitlines())
    return {
        "rss_mib": rss_bytes(palmd.pid) / 2**20,
        "faults": float((proc / "stat").read_text().rpartition(")")[2].split()[7]),
        "disk_bytes": float(written["write_bytes"]),
    }


def _grown(seen: Sequence[dict[str, float]], name: str) -> float:
    return (seen[-1][name] - seen[SETTLED][name]) / (len(seen) - 1 - SETTLED)


def _stages(seen: Sequence[dict[str, float]]) -> dict[str, dict[str, float]]:
    by_name: dict[str, list[float]] = defaultdict(list)
    for one in seen:
        for name, ms in one.items():
            if name not in {"rss_mib", "faults", "disk_bytes"}:
                by_name[name].append(ms)
    return {
        name: {
            "p50": round(median(ms), 2),
            "p99": round(sorted(ms)[len(ms) * 99 // 100], 2),
            "max": round(max(ms), 2),
        }
        for name, ms in by_name.items()
    }


@click.command()
@click.option("--minutes", type=FiniteRange(min=1), default=60.0, show_default=True)
@click.option("--templates", type=click.IntRange(min=1), default=100_000, show_default=True)
@click.option(
    "--in", "where", type=click.Path(file_okay=False, path_type=Path), help="A folder on a real disk."
)
def main(minutes: float, templates: int, where: Path | None) -> None:
    """Print the figures as one JSON object; the time that it takes is said first."""
    with tempfile.TemporaryDirectory(prefix="palm-steady-", dir=where) as folder:
        begun = time.monotonic()
        figures = measure_steady(Path(folder), templates=templates, minutes=minutes)
        figures["minutes"] = round((time.monotonic() - begun) / 60, 1)
    json.dump(figures, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
