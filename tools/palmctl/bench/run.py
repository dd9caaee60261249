"""The bench of a whole device, as `palmctl bench` runs it."""

import platform
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np

from device.config.config import (
    CameraSection,
    DeviceConfig,
    DeviceSection,
    LinkSection,
)
from device.platform.clock import SystemClock
from device.trust.keystore import KeyStore
from device.trust.known_time import gallery_now
from device.trust.trust import load_trust
from device.vision.recognition import Interest, Recogniser
from gallery.gallery import Gallery
from link1.canonical import JsonObject
from models.crop import cut_palm
from models.embedding import Embedder
from models.frames import CameraFrame
from models.hand import HandFinder
from models.manifest import ModelManifest, load_manifest, open_embedder, shipped_model_dir
from tools.palmctl.bench.board import DBD_ID, DEVICE_ID, GATE_ID, Board, Known, make_board
from tools.palmctl.bench.daemon import BenchFailed, measure_start
from tools.palmctl.bench.recording import FRAMES_HELD, films_of, read_recording
from tools.palmctl.bench.verdict_latency import (
    CAMERA_FPS,
    FILM_FPS,
    Film,
    Picture,
    encode,
    measure_latency,
    spread,
)

TEMPLATES_A_HAND = 3
LOOP_EVERY = 3
"""After so many passages a plain loop sees the last one's pictures: both have the machine's same minutes."""

Tell = Callable[[str], None]


def run_bench(
    folder: Path, *, templates: int, passages: int, start_templates: int, tell: Tell
) -> dict[str, Any]:
    """Both measurements, in `folder`, which is empty; figures as one JSON object."""
    manifest = load_manifest(shipped_model_dir())
    embedder = open_embedder(manifest)
    recording = read_recording()
    tell(f"enrolling {len(recording.people)} generated people")
    known = [
        one
        for number, person in enumerate(recording.people)
        for one in enrolled(embedder, f"{number:032x}", person.enrolment)
    ]
    films = [film for person in recording.people for film in films_of(person)]
    (empty,) = encode([recording.empty])

    tell(f"making a device with {templates} templates")
    board, config = new_board(folder / "a", manifest, known, templates)
    tell(f"{passages} passages before it")
    played = list(islice(cycle(films), passages))
    with plain_loop(config, manifest, embedder) as loop:
        for film in films:
            loop(film, 0.0)
        paced_ms: list[float] = []
        turns = cycle(range(LOOP_EVERY))

        def in_turn(film: Film) -> None:
            if next(turns) == 0:
                paced_ms.extend(loop(film, 1 / FILM_FPS))

        camera, cable = folder / "a" / "camera", Path(config.link.port)
        latency = measure_latency(board, played, empty, camera, cable, after=in_turn)
        floor_ms, paced = median(ms for film in films for ms in loop(film, 0.0)), spread(paced_ms)
    inside_ms = latency["inside_p50_ms"]
    image_and_search = ("hand", "crop", "quality", "vector", "match", "liveness")
    around_ms = sum(ms for name, ms in latency["stages_ms"].items() if name in {"sign_and_journal", "cable"})
    latency |= {
        "templates": templates,
        "floor_ms": round(floor_ms, 1),
        "inside_p50_over_floor": round(inside_ms / floor_ms, 2),
        "paced_floor_ms": paced["p50"],
        "paced_floor_p99_ms": paced["p99"],
        "inside_p50_over_paced_floor": round(inside_ms / paced["p50"], 2),
        "image_and_search_ms": round(
            sum(latency["stages_ms"].get(name, 0.0) for name in image_and_search), 1
        ),
        "sign_journal_cable_ms": round(around_ms, 1),
    }
    tell(f"making a device with {start_templates} templates")
    large, _ = new_board(folder / "b", manifest, known, start_templates)
    tell("starting it")
    start = measure_start(large.config_path, start_templates)
    return {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "model_id": manifest.model_id,
        "verdict_latency": latency,
        "start": start,
    }


def enrolled(embedder: Embedder, subject_ref: str, pictures: Sequence[Picture]) -> list[Known]:
    """Templates of one left palm from evenly spaced pictures of it. Raises BenchFailed."""
    crops = [crop for picture in pictures if (crop := palm_crop(picture)) is not None]
    if len(crops) < TEMPLATES_A_HAND:
        raise BenchFailed(f"a generated palm could not be enrolled: {subject_ref}")
    vectors = embedder.embed(np.stack(crops[:: len(crops) // TEMPLATES_A_HAND][:TEMPLATES_A_HAND]))
    return [Known(subject_ref, "L", vector) for vector in vectors]


def palm_crop(picture: Picture) -> Picture | None:
    frame = CameraFrame.from_pixels(picture)
    hand = HandFinder().find(frame)
    return None if hand is None else cut_palm(frame, hand)


def new_board(
    folder: Path, manifest: ModelManifest, known: Sequence[Known], templates: int
) -> tuple[Board, DeviceConfig]:
    folder.mkdir(parents=True)
    for name in ("camera", "state", "run"):
        (folder / name).mkdir()
    config = DeviceConfig(
        device=DeviceSection(DEVICE_ID, GATE_ID, DBD_ID, folder / "state", folder / "run"),
        camera=CameraSection(f"file:{folder / 'camera'}", CAMERA_FPS),
        link=LinkSection(str(folder / "cable")),
    )
    board = make_board(
        folder,
        config,
        model_id=manifest.model_id,
        thresholds=asdict(manifest.thresholds),
        known=known,
        templates=templates,
    )
    return board, config


@contextmanager
def plain_loop(
    config: DeviceConfig, manifest: ModelManifest, embedder: Embedder
) -> Iterator[Callable[[Film, float], list[float]]]:
    """A function that recognises and searches each picture of a film as a device does, without the device, in
    a copy of its gallery, and says how many milliseconds each steady picture took. It rests before each, as a
    camera makes a device do, so that caches and processor are as they are after a rest. The first picture of
    a film decides nothing on a device, and does not count."""
    keys, trust, clock = KeyStore.open(config.keys_dir), load_trust(config.trust_path), SystemClock()
    stream, epoch = trust.gallery or ("", 0)
    copy = config.gallery_dir.with_name("gallery-of-the-loop")
    shutil.copytree(config.gallery_dir, copy)
    gallery = Gallery(
        copy,
        data_key=keys.data_key,
        model_id=manifest.model_id,
        stream=stream,
        epoch=epoch,
        gallery_key=trust.gallery_key,
        now=gallery_now(clock),
    )
    agree_cosine = manifest.agree_q / 10_000
    recogniser = Recogniser(embedder, lambda: gallery, lambda: manifest.thresholds, agree_cosine=agree_cosine)
    cv2.setNumThreads(1)

    def times_ms(film: Film, rest_s: float) -> list[float]:
        recogniser.forget()
        found = []
        for number, data in enumerate(film.pictures[: film.steady + FRAMES_HELD]):
            picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
            frame = CameraFrame(np.asarray(picture, np.uint8), number * 33, number)
            time.sleep(rest_s)
            begun = time.perf_counter()
            recogniser.look(frame, Interest.PASSAGE)
            if number >= max(film.steady, 1):
                found.append((time.perf_counter() - begun) * 1000)
        return found

    with closing(gallery):
        yield times_ms


def summary(figures: JsonObject) -> list[str]:
    latency, start = figures["verdict_latency"], figures["start"]
    whole = sum(latency["stages_ms"].values())
    machine = figures["machine"]
    size = latency["templates"]
    lines = [f"hand steadily in view → verdict at the validator; {size} templates; {machine}"]
    lines += [
        f"  {kind:<9}{values['count']:4} passages   p50 {values['p50']:6.1f} ms   p99 {values['p99']:6.1f} ms"
        for kind, values in latency["by_film_ms"].items()
    ]
    inside, floor, paced, unrest = (
        latency[name] for name in ("inside_p50_ms", "floor_ms", "paced_floor_ms", "paced_floor_p99_ms")
    )
    lines += [
        f"  decisions {latency['decisions']}",
        f"inside palmd, frame read → verdict in the port: p50 {inside} ms, p99 {latency['inside_p99_ms']} ms",
        f"  a plain loop of the same, picture after picture: {floor} ms; p50 is {inside / floor:.2f} of it",
        f"  at a camera's pace: p50 {paced} ms, p99 {unrest} ms; p50 is {inside / paced:.2f} of it",
        "  where the time goes (mean):",
    ]
    lines += [
        f"    {name:<18}{ms:7.2f} ms  {100 * ms / whole:5.1f} %" for name, ms in latency["stages_ms"].items()
    ]
    ready, bare, ratio = start["ready_s"], start["imports_alone_s"], start["ratio"]
    lines += [
        f"  image work and search: {latency['image_and_search_ms']} ms",
        f"  signing, journal (fsync) and cable: {latency['sign_journal_cable_ms']} ms",
        f"start of palmd to ready, {start['templates']} templates: {ready} s",
        f"  the bare imports of its libraries: {bare} s; ratio {ratio}",
    ]
    return lines
