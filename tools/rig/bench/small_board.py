"""A whole device on cores as slow as a small board's (`make bench-board`; root, and Debian's package 7zip).

Nothing here is a board. Two published scores place one next to this machine: 7-Zip's, for ordinary code, and
Linpack's, for long sums of products, which this machine's wide vector units do far better than a board's. A
device does both, so a board lies between the two runs. Memory is not made slower: what this machine reads a
second is printed next to the board's figure.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any, Final

import click
import numpy as np

from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.synthesis.scene import empty_scene
from tools.palmctl.bench.daemon import BenchFailed, measure_start
from tools.palmctl.bench.run import new_board
from tools.palmctl.bench.verdict_latency import encode, measure_latency
from tools.palmctl.commands.bench import outputs, report_figures
from tools.rig.bench.device import idle_share
from tools.rig.bench.films import PEOPLE, PLACE, enrol, film
from tools.rig.bench.slow_cores import LEAST_SPEED, slowed

CORES: Final = (0, 1)
APART_S: Final = 1.5
"""Between two people: a slow core sees few pictures of the empty view."""
STRANGERS: Final = range(100, 106)
"""Seeds of people whom no gallery has."""
_MATRIX: Final = 1536
_READ_BYTES: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class BoardProfile:
    """What others measured on a board, for one core."""

    name: str
    seven_zip_mips: int
    """7-Zip's benchmark on one core: sbc-bench, Results.md of 2026-06-19."""
    linpack_gflops: float
    """Linpack in double precision, all cores, divided by their number: top500-benchmark, README.md."""
    memcpy_mb_s: int
    """sbc-bench, Results.md."""


PROFILES: Final = {
    "pi4": BoardProfile("Raspberry Pi 4, 1.8 GHz", 1769, 11.889 / 4, 2330),
    "pi5": BoardProfile("Raspberry Pi 5, 2.4 GHz", 3196, 35.169 / 4, 5270),
    "rk3588": BoardProfile("RK3588 (ROCK 5B), big core; Linpack: mean of all 8", 3146, 51.382 / 8, 10830),
}

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CoreScores:
    """One core of this machine, as it is now."""

    seven_zip_mips: int
    product_gflops: float
    memcpy_mb_s: int


def scores() -> CoreScores:
    """Take the three scores. Raises BenchFailed."""
    return CoreScores(_seven_zip(), _product_gflops(), _memcpy_mb_s())


def run_board_bench(
    folder: Path, *, profiles: Sequence[str], templates: int, passages: int, tell: Tell
) -> dict[str, Any]:
    """The plain run and two for each profile, in `folder`, which is empty; figures as one JSON object."""
    manifest = load_manifest(shipped_model_dir())
    embedder = open_embedder(manifest)
    tell(f"rendering {PEOPLE + len(STRANGERS)} generated people")
    known = [one for seed in range(PEOPLE) for one in enrol(embedder, seed)]
    films = [film(seed) for seed in range(PEOPLE)]
    strangers = [film(seed) for seed in STRANGERS]
    empty = encode(list(empty_scene(PLACE, 1, scene_seed=PLACE)))[0]
    tell(f"making a device with {templates} templates")
    board, config = new_board(folder / "device", manifest, known, templates)
    camera, cable = Path(config.camera.source.removeprefix("file:")), Path(config.link.port)
    plain, turns = scores(), _turns()

    def row(name: str, speed: float) -> dict[str, Any]:
        tell(f"{name}: every core at {speed:.0%}")
        found: dict[str, Any] = {"name": name, "speed": round(speed, 3)}
        with slowed(speed, CORES):
            found["speed_reached"] = round(_turns() / turns, 3)
            found["ready_s"] = measure_start(board.config_path, templates)["ready_s"]
            # Processor time runs at this machine's speed; a slower core needs more of it.
            found["idle_share"] = round(idle_share(board, config, empty) / speed, 3)
            for who, shown, count in (("hand", films, passages), ("stranger", strangers, passages // 3)):
                played = list(islice(cycle(shown), count))
                try:
                    found[who] = measure_latency(board, played, empty, camera, cable, apart_s=APART_S)
                except BenchFailed as error:
                    found[who] = {"failed": str(error)}
        return found

    rows = [row("this machine", 1.0)]
    for profile in (PROFILES[name] for name in profiles):
        for by, speed in (
            ("7-Zip", profile.seven_zip_mips / plain.seven_zip_mips),
            ("Linpack", profile.linpack_gflops / plain.product_gflops),
        ):
            rows.append(row(f"{profile.name}, by {by}", min(1.0, max(LEAST_SPEED, speed))))
    return {
        "templates": templates,
        "passages": passages,
        "core": {
            "seven_zip_mips": plain.seven_zip_mips,
            "product_gflops": round(plain.product_gflops, 1),
            "memcpy_mb_s": plain.memcpy_mb_s,
        },
        "memcpy_mb_s_of_boards": {PROFILES[name].name: PROFILES[name].memcpy_mb_s for name in profiles},
        "rows": rows,
    }


def summary(figures: dict[str, Any]) -> list[str]:
    core = figures["core"]
    lines = [
        (
            f"one core here: {core['seven_zip_mips']} MIPS of 7-Zip, {core['product_gflops']} Gflops, "
            f"memcpy {core['memcpy_mb_s']} MB/s"
        ),
        f"{figures['templates']} templates; hand there → verdict, p50 and p99 in ms",
        f"{'':44} {'speed':>5} {'reached':>7} {'ready':>6} {'known':>12} {'stranger':>12} {'empty gate':>12}",
    ]
    for row in figures["rows"]:
        known, stranger = (_told(row[who]) for who in ("hand", "stranger"))
        lines.append(
            f"{row['name'][:44]:44} {row['speed']:5.0%} {row['speed_reached']:7.0%} {row['ready_s']:4.1f} s "
            f"{known:>12} {stranger:>12} {row['idle_share']:12.0%}"
        )
    boards = figures["memcpy_mb_s_of_boards"]
    return [*lines, *(f"memory was not slowed; {name}: memcpy {rate} MB/s" for name, rate in boards.items())]


def _told(latency: dict[str, Any]) -> str:
    if "failed" in latency:
        return "none in 5 s"
    spread = latency["by_film_ms"]["sudden"]
    return f"{spread['p50']:.0f}, {spread['p99']:.0f}"


def _seven_zip() -> int:
    program = shutil.which("7zz") or shutil.which("7z")
    if program is None:
        raise BenchFailed("7-Zip gives the scores; apt install 7zip")
    done = subprocess.run(
        ["taskset", "-c", str(CORES[0]), program, "b", "-mmt1", "-md25"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    # By the wall clock, as published: the last column; 7-Zip's own "R/U" leaves out what others took.
    if (total := re.search(r"^Tot:.*?(\d+)\s*$", done.stdout, re.MULTILINE)) is None:
        raise BenchFailed(f"7-Zip printed no total: {done.stdout[-300:]}{done.stderr[-300:]}")
    return int(total[1])


def _product_gflops() -> float:
    """Of double precision on one core, as Linpack's; the best of three, which other work disturbs least."""
    code = (
        "import numpy, time\n"
        f"a = numpy.random.default_rng(1).random(({_MATRIX}, {_MATRIX}))\n"
        "for _ in range(3):\n"
        " at = time.perf_counter(); a @ a; print(time.perf_counter() - at)\n"
    )
    done = subprocess.run(
        ["taskset", "-c", str(CORES[0]), sys.executable, "-c", code],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return 2 * _MATRIX**3 / min(map(float, done.stdout.split())) / 1e9


def _turns() -> int:
    """Of an empty loop in a second, on one of the cores."""
    code = (
        "import time\n"
        "n, ends = 0, time.perf_counter() + 1\n"
        "while time.perf_counter() < ends: n += 1\n"
        "print(n)"
    )
    words = ["taskset", "-c", str(CORES[0]), sys.executable, "-c", code]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def _memcpy_mb_s() -> int:
    source = np.ones(_READ_BYTES, np.uint8)
    target = np.empty_like(source)
    times = []
    for _ in range(4):
        begun = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - begun)
    return round(_READ_BYTES / min(times) / 1e6)


@click.command()
@click.option(
    "--profile",
    "profiles",
    multiple=True,
    type=click.Choice(list(PROFILES)),
    default=("pi5",),
    show_default=True,
    help="May be given several times; each takes ten minutes.",
)
@click.option("--templates", default=100_000, show_default=True)
@click.option("--passages", default=150, show_default=True, help="Of known palms; a third as many strangers.")
@outputs
def main(
    *, profiles: tuple[str, ...], templates: int, passages: int, out: Path | None, as_json: bool
) -> None:
    """Measure a whole device on cores as slow as a small board's."""
    report_figures(
        lambda folder, tell: run_board_bench(
            folder, profiles=profiles, templates=templates, passages=passages, tell=tell
        ),
        summary,
        out,
        as_json=as_json,
    )


if __name__ == "__main__":
    main()
