"""`palmctl pass`: one passage under a technician's eyes."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from device.config.config import config_path, load_config
from device.platform.ipc import ask_core
from device.values.control import NextAsked, PassAnswer, TrialPassage
from device.values.status import CoreStatus, read_status
from tools.palmctl.errors import NoPassage
from tools.palmctl.finite_range import FiniteRange
from tools.palmctl.language import marked
from tools.palmctl.language import translated as _
from tools.palmctl.output_file import require_writable

_ABOUT = {
    "MATCH": marked("a known person"),
    "NO_MATCH": marked("not enrolled"),
    "AMBIGUOUS": marked("two people are too alike"),
    "POOR_CAPTURE": marked("no capture was good enough"),
    "SPOOF": marked("not a living hand"),
    "NOT_READY": marked("the device cannot judge now; see palmctl status"),
    "GALLERY_EXPIRED": marked("the gallery is too old; see palmctl status"),
}
_CHART = 40
"""Columns of the chart of stages."""
_LANES = {"sign_and_journal": "journal", "cable": "loop"}
"""The thread of a stage, where it is not the recogniser's; a stage called `to_…` is a wait between two."""


@click.command(name="pass")
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Recognise the next hand and sign nothing; so it is also where no validator is connected.",
)
@click.option("--wait-s", type=FiniteRange(1, 600), default=30.0, show_default=True, help="How long to wait.")
@click.option(
    "--trace",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    metavar="FILE",
    help="Write the stages to this file too, for a trace viewer (ui.perfetto.dev, speedscope).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the passage as one JSON object.")
def trial_pass(
    *, config: Path | None, dry_run: bool, wait_s: float, trace: Path | None, as_json: bool
) -> None:
    """Wait for the next hand; show what was decided, its scores, and how long every stage took.

    With a validator connected it is the next real passage, which the validator asks for. Without one, or with
    --dry-run, it is a rehearsal: the same recognition, and no verdict.

    Exit code 0: a passage was seen, with any result. 1: none in time. 3: no daemon answers. 4: this
    user may not ask it.
    """
    if trace is not None:
        require_writable(trace)
    socket = load_config(config_path(config)).control_socket
    status = read_status(socket)
    rehearsal = dry_run or status.cable.state != "up"
    click.echo(
        _("show a palm to the camera (a rehearsal: nothing is signed)")
        if rehearsal
        else _("waiting for the next hand that the validator asks for"),
        err=True,
    )
    op = "pass.rehearse" if rehearsal else "pass.next"

    def ask(wait_ms: int) -> TrialPassage | None:
        told = ask_core(socket, op, timeout_s=wait_ms / 1000 + 5, **NextAsked(wait_ms).to_obj())
        return PassAnswer.from_obj(told.header).passage

    passage = _waited(ask, wait_s)
    if passage is None:
        raise NoPassage(_nothing_came(status, rehearsal=rehearsal))
    click.echo(json.dumps(passage.to_obj(), sort_keys=True) if as_json else "\n".join(lines(passage)))
    if trace is not None:  # last: a disk that is full by now does not cost the result
        trace.write_text(json.dumps(trace_of(passage.stages_us)), encoding="ascii")


def _waited(ask: Callable[[int], TrialPassage | None], wait_s: float) -> TrialPassage | None:
    """Ask as often as one question may not wait for all of the time."""
    left_ms = round(wait_s * 1000)
    while left_ms > 0:
        part_ms = min(left_ms, 30_000)
        passage = ask(part_ms)
        if passage is not None:
            return passage
        left_ms -= part_ms
    return None


def _nothing_came(status: CoreStatus, *, rehearsal: bool) -> str:
    if rehearsal:
        return marked("no hand came in this time; see with palmctl preview whether the camera shows one")
    if status.txn_id:
        return marked("no verdict left in this time; try --dry-run, which needs no validator")
    return marked(
        "no verdict left in this time, and the validator had not asked for one when this began; "
        "try --dry-run, which needs no validator"
    )


def lines(passage: TrialPassage) -> list[str]:
    result, decision = passage.result, passage.decision
    colour = {"accept": "green", "reject": "red"}.get(decision, "yellow")
    kind = (
        _("rehearsal, nothing signed")
        if passage.verdict is None
        else f"{_('verdict')} {passage.verdict.verdict_seq}"
    )
    pad = passage.pad
    rows = [
        (
            marked("score"),
            _(f"{passage.score_q / 10_000:.3f} (cosine)") if passage.score_q else _("none"),
        ),
        (marked("quality"), f"{passage.quality_q} {_('of')} 100"),
        (marked("liveness"), f"{pad.res} ({pad.mech}, {pad.score_q / 100:.0f} %)"),
        (marked("captures"), str(passage.attempts)),
    ]
    seen = passage.rehearsed
    if seen is not None and seen.subject_ref:
        hand = _("left") if seen.hand == "L" else _("right")
        rows.append((marked("person"), f"{seen.subject_ref}, {hand}"))
    if seen is not None and seen.hints:
        rows.append((marked("hints"), ", ".join(seen.hints)))
    head = (
        f"{click.style(f'{decision} {result}', fg=colour, bold=True)}: {_(_ABOUT.get(result, ''))} ({kind})"
    )
    return [head, *(f"  {_(name):<10}{text}" for name, text in rows), *_stages(passage)]


def trace_of(stages_us: Sequence[tuple[str, int]]) -> dict[str, object]:
    """The stages one after the other, a lane for each thread, in Chrome's Trace Event Format."""
    lanes = ["waits", "recogniser", "journal", "loop"]
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": tid, "args": {"name": lane}}
        for tid, lane in enumerate(lanes, 1)
    ]
    begins_us = 0
    for name, us in stages_us:
        lane = "waits" if name.startswith("to_") else _LANES.get(name, "recogniser")
        tid = lanes.index(lane) + 1
        events.append({"ph": "X", "name": name, "pid": 1, "tid": tid, "ts": begins_us, "dur": us})
        begins_us += us
    return {"displayTimeUnit": "ms", "traceEvents": events}


def _stages(passage: TrialPassage) -> list[str]:
    """A line for each stage, with a bar from its beginning to its end."""
    total_us = sum(us for _, us in passage.stages_us)
    if not total_us:
        return []
    rows, begins_us = [], 0
    for name, us in passage.stages_us:
        before = min(_CHART * begins_us // total_us, _CHART - 1)
        bar = max(1, _CHART * (begins_us + us) // total_us - before)
        drawn = ("░" if name.startswith("to_") else "█") * bar
        rows.append(f"  {name:<18}{us / 1000:7.1f} ms  {' ' * before}{drawn}")
        begins_us += us
    what = (
        _("from the hand's first frame to this one")
        if passage.rehearsal
        else _("from the frame to the cable")
    )
    return [
        "",
        *rows,
        f"  {_('in all'):<18}{total_us / 1000:7.1f} ms  ({passage.total_us / 1000:.0f} ms {what})",
    ]
