"""One soak, from the first passage to the audit."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from device.errors import IpcError
from device.values.status import read_status
from tools.palmctl.bench.verdict_latency import FolderWriter
from tools.rig.demo.errors import DemoFailed
from tools.rig.demo.story import PLACE
from tools.rig.demo.waiting import wait_until
from tools.rig.soak.audit import Seen, findings, in_cloud, in_journal
from tools.rig.soak.chaos import Chaos
from tools.rig.soak.crowd import STRANGERS, Crowd, films
from tools.rig.soak.growth import Growth
from tools.rig.soak.site import DEVICE_ID, ENROLLED, Teller, World, build, camera_folder, faults

LOOK_EVERY_S: Final = 0.2
SAMPLE_EVERY_S: Final = 5.0
TELL_EVERY_S: Final = 60.0
SETTLE_WITHIN_S: Final = 120.0
"""Everything that waits must be in the cloud so long after the last fault: a few rounds of back-off."""

MOST_RSS_KIB_PER_H: Final = 40 * 1024
"""Growth that is above the noise of ten minutes: a leak of one 640×480 frame a passage is 40 times this."""
MOST_COUNT_PER_H: Final = 12.0
"""Descriptors or threads: two in ten minutes."""
MOST_RISE: Final = 3.0
"""And so many in one life: in a life of minutes two connections that happen to be open are a slope of 40."""


def soak(folder: Path, *, minutes: float, seed: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Run everything for `minutes` and audit it; the figures, with `problems` empty when all is well."""
    with ExitStack() as stack:
        tell("setting up a cloud, a device, a cable, a validator; enrolling people")
        world = build(Teller(tell), folder, seed, stack)
        tell("rendering their palms, and strangers'")
        played = films([*ENROLLED, *STRANGERS], PLACE)
        crowd = Crowd(FolderWriter(camera_folder(folder)), played, place=PLACE, seed=seed)
        chaos = Chaos(faults(world, crowd), seed, tell)
        seen, growth = Seen(), Growth()
        crowd.start()
        world.cable.noisy = True
        begun_s = time.monotonic()
        _live(world, crowd, chaos, seen=seen, growth=growth, lasts_s=minutes * 60, tell=tell)
        chaos.calm()
        world.cable.noisy = False
        lasted_s = time.monotonic() - begun_s
        crowd.stop()
        tell("no more people; everything that waits must reach the cloud")
        problems = _settle(world, seen)
        world.validator.stop()
        problems += _last_request_settled(world)
        world.syncd.stop()
        world.palmd.stop()
        for line in world.validator.program.json_lines():
            seen.take(line)
        journal, cloud = in_journal(world.journal), in_cloud(world.office, DEVICE_ID)
        problems += findings(seen, journal, cloud)
        slopes = {name: growth.slopes(name) for name in growth.names}
        problems += grown(slopes)
        problems += [
            f"{one.name} ended by itself {len(one.unexpected)} times: exit codes {one.unexpected}"
            for one in world.supervised
            if one.unexpected
        ]
        return {
            "minutes": round(lasted_s / 60, 1),
            "seed": seed,
            "passages_shown": crowd.shown,
            "verdicts_seen": len(seen.verdicts),
            "verdicts_in_journal": len(journal),
            "verdicts_in_cloud": len(cloud),
            "decisions": dict(seen.decisions),
            "reconciliation": _count(cloud),
            "faults": dict(sorted(chaos.done.items())),
            "damaged_pieces": world.cable.damaged,
            "sessions": seen.links,
            "starts": {one.name: one.starts for one in world.supervised},
            "slopes": slopes,
            "left_out": _left_out(world),
            "problems": problems,
        }


def _live(
    world: World,
    crowd: Crowd,
    chaos: Chaos,
    *,
    seen: Seen,
    growth: Growth,
    lasts_s: float,
    tell: Callable[[str], None],
) -> None:
    begun_s = sampled_s = told_s = time.monotonic()
    until_s = begun_s + lasts_s
    while (now_s := time.monotonic()) < until_s:
        chaos.spare_lives = now_s > begun_s + lasts_s / 2
        chaos.look()
        for one in world.supervised:
            one.look()
        for line in world.validator.program.json_lines():
            seen.take(line)
        if now_s - sampled_s >= SAMPLE_EVERY_S:
            sampled_s = now_s
            for one in (world.palmd, world.syncd, world.server):
                growth.sample(one.name, one.program.pid, now_s)
        if now_s - told_s >= TELL_EVERY_S:
            told_s = now_s
            left_min = (until_s - now_s) / 60
            tell(
                f"{crowd.shown} palms shown, {len(seen.verdicts)} verdicts at the validator, "
                f"{sum(chaos.done.values())} faults; {left_min:.0f} min left"
            )
        time.sleep(LOOK_EVERY_S)


def _settle(world: World, seen: Seen) -> list[str]:
    """Wait until the device has nothing left to upload; what stays behind is a problem."""

    def done() -> bool:
        for one in world.supervised:
            one.look()
        for line in world.validator.program.json_lines():
            seen.take(line)
        try:
            status = read_status(world.device.control_socket)
        except IpcError:
            return False
        return status.serving and status.uploads_waiting == 0

    return _waited("the device to serve, with nothing to upload", done)


def _last_request_settled(world: World) -> list[str]:
    """The validator's last request ends without it, in a verdict that has to reach the cloud as well."""

    def done() -> bool:
        try:
            status = read_status(world.device.control_socket)
        except IpcError:
            return False
        return status.txn_id is None and status.uploads_waiting == 0

    return _waited("the last request to end and its verdict to be uploaded", done)


def _waited(what: str, done: Callable[[], bool]) -> list[str]:
    """Wait for it; the problem where it does not come."""
    try:
        wait_until(what, SETTLE_WITHIN_S, done, every_s=0.5)
    except DemoFailed as error:
        return [str(error)]
    return []


def grown(slopes: dict[str, dict[str, float] | None]) -> list[str]:
    """What grew, in words, from the slopes of each program."""
    problems = []
    for name, slope in slopes.items():
        if slope is None:
            continue
        if slope["rss_kib_per_h"] > MOST_RSS_KIB_PER_H:
            problems.append(f"{name} grows by {slope['rss_kib_per_h'] / 1024:.0f} MiB an hour")
        problems += [
            f"{name} gains {slope[f'{measure}_per_h']:.0f} {measure} an hour"
            for measure in ("descriptors", "threads")
            if slope[f"{measure}_per_h"] > MOST_COUNT_PER_H and slope[f"{measure}_rise"] > MOST_RISE
        ]
    return problems


def _count(records: list[dict[str, Any]]) -> dict[str, int]:
    words = [record["reconciliation"] for record in records]
    return {word: words.count(word) for word in sorted(set(words))}


def _left_out(world: World) -> list[str]:
    left = []
    if world.clock is None:
        left.append("clock steps: install a C compiler, with which the daemons' wall clock is moved")
    if world.disk is None:
        left.append("full disk: run as root, so that a small file system can be mounted")
    return left


def summary(figures: dict[str, Any]) -> list[str]:
    lines = [
        f"{figures['minutes']} minutes, seed {figures['seed']}",
        f"  palms shown     {figures['passages_shown']}",
        f"  at validator    {figures['verdicts_seen']} verdicts",
        f"  in the journal  {figures['verdicts_in_journal']}",
        f"  in the cloud    {figures['verdicts_in_cloud']}",
        f"  decisions       {_words(figures['decisions'])}",
        f"  reconciliation  {_words(figures['reconciliation'])}",
        f"  faults          {_words(figures['faults'])}",
        f"  cable           {figures['damaged_pieces']} pieces damaged, {figures['sessions']} sessions",
        f"  starts          {_words(figures['starts'])}",
        "  growth an hour (after 30 s of each life)",
    ]
    for name, slope in figures["slopes"].items():
        if slope is None:
            lines.append(f"    {name:<12}no life was long enough for a slope")
            continue
        lines.append(
            f"    {name:<12}{slope['rss_kib_per_h'] / 1024:+8.1f}"
            f" ± {slope['rss_kib_per_h_error'] / 1024:.1f} MiB (at {slope['rss_kib'] / 1024:.0f} MiB)"
            f"   descriptors {slope['descriptors_per_h']:+.1f} (at {slope['descriptors']:.0f})"
            f"   threads {slope['threads_per_h']:+.1f} (at {slope['threads']:.0f})"
        )
    lines += [f"  left out        {text}" for text in figures["left_out"]]
    lines += [f"PROBLEM: {text}" for text in figures["problems"]]
    if not figures["problems"]:
        lines.append("Every verdict that the validator saw is in the journal and in the cloud, exactly once.")
    return lines


def _words(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
