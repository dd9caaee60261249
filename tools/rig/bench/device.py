"""The bench of a device in long service: large galleries, work during passages, an empty gate, flash."""

import asyncio
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from itertools import count, cycle, islice
from pathlib import Path
from threading import Event
from typing import Any, Final

from device.config.config import DeviceConfig
from device.platform.ipc import IpcClient
from models.manifest import ModelManifest, load_manifest, open_embedder, shipped_model_dir
from models.synthesis.scene import empty_scene
from tools.palmctl.bench.board import Board, Known, snapshot_pages
from tools.palmctl.bench.daemon import BenchFailed, measure_start, running_palmd
from tools.palmctl.bench.run import new_board
from tools.palmctl.bench.verdict_latency import Beside, FolderWriter, encode, measure_latency
from tools.rig.bench.films import PLACE, enrol, film
from tools.rig.bench.flash_wear import measure_flash_wear
from tools.rig.bench.flash_wear import summary as flash_summary
from tools.rig.bench.http_load import cpu_s
from tools.rig.bench.update_load import feed_update

PEOPLE: Final = 12
IDLE_FPS: Final = 15
IDLE_S: Final = 30.0
SETTLE_S: Final = 5.0
"""What a daemon does once after its start is over by then."""

Tell = Callable[[str], None]


def run_device_bench(
    folder: Path, *, templates: Sequence[int], passages: int, beside_templates: int, tell: Tell
) -> dict[str, Any]:
    """All measurements, in `folder`, which is empty; figures as one JSON object."""
    manifest = load_manifest(shipped_model_dir())
    known = _known(manifest, tell)
    films = [film(seed) for seed in range(PEOPLE)]
    empty = encode(list(empty_scene(PLACE, 1, scene_seed=PLACE)))[0]

    starts = _measured_starts(folder, manifest, known, templates, tell)
    board, config = new_board(folder / "passages", manifest, known, beside_templates)
    played = list(islice(cycle(films), passages))

    def latency(beside: Beside | None) -> dict[str, Any]:
        camera = Path(config.camera.source.removeprefix("file:"))
        return measure_latency(board, played, empty, camera, Path(config.link.port), beside=beside)

    tell(f"{passages} passages with no other work")
    quiet = latency(None)
    tell(f"{passages} passages while snapshots of {beside_templates} templates are applied")
    pages = _snapshot_files(folder / "pages", board, manifest.model_id, known, beside_templates)
    applied: list[int] = []
    snapshot = latency(lambda _palmd: _apply_snapshots(config, pages, applied))
    tell(f"{passages} passages while an update is written")
    written: list[dict[str, float]] = []
    update = latency(lambda _palmd: _write_updates(config, board, written))
    tell("bytes to flash")
    wear_folder = folder / "wear"
    wear_folder.mkdir()
    wear = measure_flash_wear(wear_folder)
    tell(f"{IDLE_S:.0f} s of an empty gate, at {IDLE_FPS} frames a second")
    return starts | {
        "quiet": _told(quiet),
        "during_snapshot": _told(snapshot) | {"pages": len(applied), "over_quiet": _over(snapshot, quiet)},
        "during_update": _told(update) | {"over_quiet": _over(update, quiet)} | written[0],
        "flash": wear,
        "idle_cpu_share": idle_share(board, config, empty),
    }


def run_start_bench(folder: Path, *, templates: Sequence[int], tell: Tell) -> dict[str, Any]:
    """Start and memory alone, in `folder`, which is empty; those members of `run_device_bench`'s figures."""
    manifest = load_manifest(shipped_model_dir())
    return _measured_starts(folder, manifest, _known(manifest, tell), templates, tell)


def _known(manifest: ModelManifest, tell: Tell) -> list[Known]:
    tell(f"rendering {PEOPLE} generated people")
    embedder = open_embedder(manifest)
    return [one for seed in range(PEOPLE) for one in enrol(embedder, seed)]


def _measured_starts(
    folder: Path, manifest: ModelManifest, known: Sequence[Known], templates: Sequence[int], tell: Tell
) -> dict[str, Any]:
    starts = list(_starts(folder, manifest, known, [len(known), *templates], tell))
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "model_id": manifest.model_id,
        "starts": starts,
        "bytes_a_template": _bytes_a_template(starts),
    }


def _starts(
    folder: Path, manifest: ModelManifest, known: Sequence[Known], sizes: Sequence[int], tell: Tell
) -> Iterator[dict[str, Any]]:
    for templates in sizes:
        tell(f"a device with {templates} templates: making it, then starting it")
        board, _ = new_board(folder / f"start-{templates}", manifest, known, templates)
        yield measure_start(board.config_path, templates)


def _bytes_a_template(starts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Memory over that of a device with hardly any template."""
    base = starts[0]
    return {
        "base_bytes": base["rss_bytes"],
        **{
            str(start["templates"]): round(
                (start["rss_bytes"] - base["rss_bytes"]) / (start["templates"] - base["templates"])
            )
            for start in starts[1:]
        },
    }


async def _apply_snapshots(config: DeviceConfig, pages: Sequence[Path], applied: list[int]) -> None:
    """The same snapshot again and again, as fast as the core takes its pages from the carrier."""
    with closing(await IpcClient.connect(config.carrier_socket)) as client:
        for path in cycle(pages):
            page = await asyncio.to_thread(path.read_bytes)
            await client.call("gallery.snapshot", page, timeout_s=60)
            applied.append(len(page))


async def _write_updates(config: DeviceConfig, board: Board, written: list[dict[str, float]]) -> None:
    """Releases, one after the other, until cancelled."""
    stop = Event()
    feeding = asyncio.create_task(
        asyncio.to_thread(feed_update, config.control_socket, board.root_key, stop=stop)
    )
    try:
        await asyncio.shield(feeding)
    finally:
        stop.set()
        written.append(await feeding)


def _snapshot_files(
    folder: Path, board: Board, model_id: str, known: Sequence[Known], templates: int
) -> list[Path]:
    """A newer snapshot of the same people, made beforehand: in the field another machine makes it."""
    folder.mkdir()
    paths = []
    pages = snapshot_pages(
        known, templates, model_id, board.service_key, time.time_ns() // 1_000_000, seq=templates + 1
    )
    for number, page in enumerate(pages):
        paths.append(folder / f"{number:06d}.json")
        paths[-1].write_bytes(page)
    return paths


def _told(figures: dict[str, Any]) -> dict[str, Any]:
    spread = figures["by_film_ms"]["sudden"]
    return {name: spread[name] for name in ("count", "p50", "p99", "max")}


def _over(loaded: dict[str, Any], quiet: dict[str, Any]) -> float:
    return round(float(_told(loaded)["p99"]) / float(_told(quiet)["p99"]), 2)


def idle_share(board: Board, config: DeviceConfig, empty: bytes) -> float:
    """Of one core, while the camera shows an empty gate and a request is open."""
    camera = FolderWriter(Path(config.camera.source.removeprefix("file:")))
    camera.clear()
    text = board.config_path.read_text(encoding="utf-8")
    slow = board.config_path.with_name("idle.toml")
    slow.write_text(text.replace(f"fps = {config.camera.fps}", f"fps = {IDLE_FPS}"), encoding="utf-8")
    with running_palmd(slow) as palmd:
        _play_nobody(camera, empty, SETTLE_S)
        used_s, begun_s = cpu_s(palmd.pid), time.perf_counter()
        _play_nobody(camera, empty, IDLE_S)
        share = (cpu_s(palmd.pid) - used_s) / (time.perf_counter() - begun_s)
    if share <= 0:
        raise BenchFailed("an idle palmd used no processor time, which cannot be")
    return round(share, 3)


def _play_nobody(camera: FolderWriter, empty: bytes, lasts_s: float) -> None:
    begun_s = time.perf_counter()
    for number in count(1):
        camera.put(empty)
        due_s = begun_s + number / IDLE_FPS
        if due_s > begun_s + lasts_s:
            return
        time.sleep(max(0.0, due_s - time.perf_counter()))


def summary(figures: dict[str, Any]) -> list[str]:
    lines = [f"device bench; {figures['machine']}; model {figures['model_id']}"]
    lines += [
        f"  {start['templates']:>9} templates: ready after {start['ready_s']:.2f} s, "
        f"{start['rss_bytes'] / 2**20:.0f} MiB in RAM"
        for start in figures["starts"]
    ]
    memory = figures["bytes_a_template"]
    lines += [
        f"  bytes a template over a base of {memory['base_bytes'] / 2**20:.0f} MiB: {memory[size]} at {size}"
        for size in memory
        if size != "base_bytes"
    ]
    if "quiet" not in figures:
        return lines  # of `run_start_bench`
    for name in ("quiet", "during_snapshot", "during_update"):
        spread = figures[name]
        ratio = f"; p99 / quiet p99 {spread['over_quiet']}" if "over_quiet" in spread else ""
        lines.append(
            f"  hand there → verdict, {name.replace('_', ' ')}: p50 {spread['p50']} ms, "
            f"p99 {spread['p99']} ms, {spread['count']} passages{ratio}"
        )
    lines += [f"  {line}" for line in flash_summary(figures["flash"])]
    lines.append(f"  CPU at an empty gate, {IDLE_FPS} frames/s: {figures['idle_cpu_share']:.1%} of a core")
    return lines
