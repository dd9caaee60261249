"""What charts and the terminal's picture show, measured: written to docs/figures/, from where it is drawn."""

import json
import os
import platform
import pty
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

FIGURES: Final = Path(__file__).parents[3] / "docs" / "figures"
_PEOPLE: Final = 80
_CAPTURES: Final = 4
_PASSAGES: Final = 240
_TEMPLATES: Final = 10_000
_POINTS: Final = 60

Tell = Callable[[str], None]


def machine_now() -> str:
    """What a figure is measured on, and whether it has the machine to itself."""
    load = os.getloadavg()[0]
    busy = f", with other work on the machine (load {load:.0f})" if load >= 1 else ""
    return f"{os.cpu_count()} {platform.machine()} cores{busy}"


def write(name: str, figures: dict[str, Any]) -> None:
    """Keep figures for drawing."""
    FIGURES.mkdir(parents=True, exist_ok=True)
    (FIGURES / name).write_text(json.dumps(figures, ensure_ascii=False) + "\n", encoding="utf-8")


def measure_det(tell: Tell) -> None:
    """Unseen generated people through the whole chain, by the shipped model and by the untrained code."""
    from models.evaluation.gabor_code import compare_all_codes, competitive_codes
    from models.evaluation.generated_people import (
        capture_people,
        compare_all,
        embed_all,
        false_match_rate,
        false_non_match_rate,
    )
    from models.manifest import load_manifest, open_embedder, shipped_model_dir

    manifest = load_manifest(shipped_model_dir())
    tell(f"{_PEOPLE} generated people, both hands, {_CAPTURES} times each")
    shown = capture_people(_PEOPLE, _CAPTURES, "rgb")
    mated, non_mated = compare_all(embed_all(open_embedder(manifest), shown.crops), shown.hands)
    tell("the untrained code on the same crops")
    by_code = compare_all_codes(competitive_codes(shown.crops), shown.hands)
    agree = manifest.agree_q / 10_000
    write(
        "det.json",
        {
            "title": "How often recognition errs, at every threshold",
            "about": f"{_PEOPLE} unseen generated people, one vector each: {len(mated):,} "
            f"comparisons of one palm, {len(non_mated):,} of two people",
            "curves": [
                _curve(manifest.model_id, mated, non_mated),
                _curve("Gabor code, untrained", *by_code),
            ],
            "operating_point": {
                "name": f"captures agree, agree_q {manifest.agree_q}",
                "fmr": false_match_rate(non_mated, agree),
                "fnmr": round(false_non_match_rate(mated, agree), 6),
            },
        },
    )


def _curve(name: str, mated: Any, non_mated: Any) -> dict[str, Any]:
    """The error rates at thresholds that let from one stranger to a tenth of them pass."""
    import numpy as np

    descending, rising = np.sort(non_mated)[::-1], np.sort(mated)
    errors = np.unique(np.geomspace(1, len(non_mated) / 10, _POINTS).astype(int))
    fnmr = np.searchsorted(rising, descending[errors - 1], side="left") / len(mated)
    return {
        "name": name,
        "comparisons": [len(mated), len(non_mated)],
        "fmr": [round(float(rate), 9) for rate in errors / len(non_mated)],
        "fnmr": [round(float(rate), 7) for rate in fnmr],
    }


def measure_latency(tell: Tell) -> None:
    """A whole device before a camera of files: a hand that is there from one picture to the next."""
    from itertools import cycle, islice

    from models.manifest import load_manifest, open_embedder, shipped_model_dir
    from models.synthesis.scene import empty_scene
    from tools.palmctl.bench.run import new_board
    from tools.palmctl.bench.verdict_latency import encode
    from tools.palmctl.bench.verdict_latency import measure_latency as measure
    from tools.rig.bench.films import PEOPLE, PLACE, enrol, film

    manifest = load_manifest(shipped_model_dir())
    embedder = open_embedder(manifest)
    machine = machine_now()
    tell("rendering generated people")
    known = [one for seed in range(PEOPLE) for one in enrol(embedder, seed)]
    films = list(islice(cycle([film(seed) for seed in range(PEOPLE)]), _PASSAGES))
    empty = encode(list(empty_scene(PLACE, 1, scene_seed=PLACE)))[0]
    with tempfile.TemporaryDirectory(prefix="palm-pictures-") as folder:
        board, config = new_board(Path(folder) / "a", manifest, known, _TEMPLATES)
        tell(f"{_PASSAGES} passages")
        camera = Path(folder) / "a" / "camera"
        figures = measure(board, films, empty, camera, Path(config.link.port))
    write(
        "latency.json",
        {
            "title": "From a hand in view to the verdict at the validator",
            "about": f"{_PASSAGES} passages, {_TEMPLATES:,} palms in the gallery; {machine}",
            "samples_ms": figures["samples_ms"]["sudden"],
        },
    )


def record_terminal(tell: Tell) -> None:
    """`palmctl status --watch` on a terminal, while people pass."""
    from models.synthesis.person import make_person
    from models.synthesis.scene import empty_scene
    from tools.rig.demo.back_office import BackOffice
    from tools.rig.demo.programs import RunningPrograms, module
    from tools.rig.demo.setting import CAMERA_FPS, Site, start_cloud, start_device, start_validator
    from tools.rig.demo.story import PLACE, DemoPerson, GateStory
    from tools.rig.pictures.device_stage import Quiet
    from tools.rig.virtual_camera import VirtualCamera

    tell("a device, three people, twelve passages")
    with tempfile.TemporaryDirectory(prefix="palm-pictures-") as name, ExitStack() as stack:
        folder, quiet = Path(name), Quiet()
        (folder / "logs").mkdir()
        stage = stack.enter_context(RunningPrograms(folder / "logs"))
        camera = VirtualCamera(folder / "camera", empty_scene(PLACE, 3, scene_seed=PLACE), fps=CAMERA_FPS)
        cloud = start_cloud(quiet, folder, stage)
        device = start_device(quiet, stage, cloud, Site("gate-7-left", "gate-7", folder, camera.source))
        validator = start_validator(quiet, folder, stage, device)
        office = stack.enter_context(BackOffice(cloud.url, cloud.api_key))
        story = GateStory(
            narrator=quiet, cloud=cloud, device=device, validator=validator, office=office, camera=camera
        )
        people = [DemoPerson(name, make_person(seed)) for name, seed in (("Ana", 101), ("Clara", 103))]
        for person in people:
            story.enrol(person)
        ours, theirs = pty.openpty()
        words = module("tools.palmctl.main", "status", "--watch", "--config", str(device.site.config))
        environment = os.environ | {"COLUMNS": "100", "LINES": "30", "TERM": "xterm-256color"}
        watch = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        for number in range(12):
            story.show_palm(people[number % 2], "L" if number % 4 < 2 else "R", "accept")
        written = _read_for(ours, 4.0)
        watch.terminate()
        watch.wait()
        os.close(ours)
    FIGURES.mkdir(parents=True, exist_ok=True)
    whole = written[: written.rindex("\x1b[J") + 3]
    (FIGURES / "status-watch.txt").write_text(whole[whole.rindex("\x1b[H") :], encoding="utf-8")


def _read_for(descriptor: int, seconds: float) -> str:
    """What comes out of a terminal in this time, and what waited there."""
    import select

    read, until_s = b"", time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        if select.select([descriptor], [], [], left_s)[0]:
            read += os.read(descriptor, 65536)
    return read.decode("utf-8", "replace")
