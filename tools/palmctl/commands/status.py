"""`palmctl status`: what the daemon is doing now, and with --watch its rates over the last minute."""

import json
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import click

from device.config.config import config_path, load_config
from device.errors import IpcError, IpcNotPermitted, IpcSilent
from device.values.status import CoreStatus, MailStatus, UpdatesStatus, read_status
from link1.canonical import JsonObject
from tools.palmctl.commands.update import under_way
from tools.palmctl.finite_range import FiniteRange
from tools.palmctl.language import marked
from tools.palmctl.language import translated as _
from tools.palmctl.live_terminal import is_live

WINDOW_S = 60.0
_AWAY = marked("waiting for it; start it with: systemctl start palmd")
_STUCK = marked("waiting for it; if it stays so, restart it with: systemctl restart palmd")
_STYLE_OR_LETTER = re.compile(r"(\x1b\[[\d;]*m)|(.)")


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole status as one JSON object.")
@click.option(
    "--watch",
    is_flag=True,
    help="A live view with rates; a line (--json: an object) each where no terminal is.",
)
@click.option(
    "--every", type=FiniteRange(0.2, 3600), default=1.0, show_default=True, help="With --watch: seconds."
)
def status(*, config: Path | None, as_json: bool, watch: bool, every: float) -> None:
    """What the daemon is doing now: camera, cable, gallery, cloud, health, last verdict, latency.

    Exit code 0: serving. 1: running, but every verdict would abstain. 3: no daemon answers. 4: this user
    may not ask it.
    """
    socket = load_config(config_path(config)).control_socket
    if watch:
        _watch(socket, every, as_json=as_json)
    told = read_status(socket)
    click.echo(json.dumps(told.to_obj(), sort_keys=True) if as_json else "\n".join(lines(told)))
    sys.exit(0 if told.serving else 1)


def _watch(socket: Path, every_s: float, *, as_json: bool) -> NoReturn:
    """Show it again and again until interrupted; a daemon that goes away is waited for."""
    recent, live = Recent(), is_live(sys.stdout) and not as_json
    with _whole_screen(live):
        while True:
            clock, due_s = datetime.now().astimezone().strftime("%H:%M:%S"), time.monotonic() + every_s
            try:
                told = read_status(socket)
            except IpcNotPermitted:
                raise  # waiting does not change it
            except IpcError as error:
                step = _STUCK if isinstance(error, IpcSilent) else _AWAY
                shown = [f"{clock} {_(str(error))}", _(step)]
                away = {"error": {"code": "not_reachable", "message": str(error)}}
                line = json.dumps(away) if as_json else f"{shown[0]}; {shown[1]}"
            else:
                brief = summary(told, recent.add(time.monotonic(), told))
                line = json.dumps(brief) if as_json else plain_line(clock, brief)
                health = [f"  {_('health'):<10} {note.word}: {_(note.detail)}" for note in told.health]
                shown = [
                    f"{clock}  {lines(told)[0]}",
                    *screen(brief),
                    *health,
                    "",
                    "  " + _("Ctrl-C ends this"),
                ]
            click.echo(_redrawn(shown) if live else line, nl=not live)
            time.sleep(max(0.0, due_s - time.monotonic()))


@contextmanager
def _whole_screen(live: bool) -> Iterator[None]:
    """The terminal's other screen without a cursor, and the first one again at the end."""
    if live:
        click.echo("\x1b[?1049h\x1b[?25l", nl=False)
    try:
        yield
    finally:
        if live:
            click.echo("\x1b[?25h\x1b[?1049l", nl=False)


def _redrawn(shown: list[str]) -> str:
    """Overwrite the screen line by line in one write: nothing is blanked first, so nothing flickers."""
    columns, rows = shutil.get_terminal_size()
    fitting = [_cut(line, columns) for line in shown[: rows - 1]]
    return "\x1b[H" + "".join(f"{line}\x1b[0m\x1b[K\n" for line in fitting) + "\x1b[J"


def _cut(line: str, columns: int) -> str:
    """The line's first columns. Its styles take none, and none is cut: text would then end it."""
    if len(click.unstyle(line)) <= columns:
        return line
    kept, room = "", columns - 1
    for style, letter in _STYLE_OR_LETTER.findall(line):
        if letter and not room:
            break
        kept += style + letter
        room -= len(letter)
    return kept + "…"


def lines(told: CoreStatus) -> list[str]:
    """The status for a person, a fact a line."""
    camera, cable, gallery = told.camera, told.cable, told.gallery
    head = _(
        f"{told.device_id} at {told.gate_id}, validator {told.dbd_id}, {told.app.pkg} {told.app.version}"
    )
    position = f"{gallery.stream} epoch {gallery.epoch} seq {gallery.seq}"
    fresh = _("fresh") if gallery.fresh else _("not fresh")
    rows = [
        (marked("serving"), _yes(told.serving)),
        (marked("camera"), f"{camera.condition} {_(camera.message or camera.description)}"),
        (marked("cable"), f"{cable.state} {_('on')} {cable.port}"),
        (marked("gallery"), _(f"{gallery.templates} templates at {position}, {fresh}")),
        (marked("cloud"), _(told.cloud.detail)),
        (marked("mail"), _mail(told.mail)),
        (marked("model"), _(f"{told.model_id}, thresholds {told.thr_id}")),
        (marked("updates"), _updates(told.updates)),
        (marked("enrolment"), told.enrolment.step),
        (marked("waiting"), _(f"{told.uploads_waiting} items to upload")),
    ]
    if told.verdict_key is not None:
        rows.append((marked("key"), _(f"{told.verdict_key.pub_b64} (verdict key, which the validator pins)")))
    last, latency = told.last_verdict, told.latency
    if last is not None:
        rows.append((marked("last"), _(f"verdict {last.verdict_seq}: {last.decision} {last.result}")))
    if latency.p50_us is not None and latency.p99_us is not None:
        p50, p99 = latency.p50_us / 1000, latency.p99_us / 1000
        over = _(f"p50 {p50:.0f} ms, p99 {p99:.0f} ms over {latency.count} verdicts")
        rows.append((marked("latency"), over))
    rows += [(marked("health"), f"{note.word}: {_(note.detail)}") for note in told.health]
    return [head, *(f"  {_(name):<10}{text}" for name, text in rows)]


def _updates(updates: UpdatesStatus) -> str:
    """What is under way, in one line; `palmctl update status` has the rest."""
    state = updates.state
    if state is None:
        return _(f"none is taken: {updates.fault}")
    said = [_("the model is on trial")] if state.model.on_trial else []
    said += [f"{_(word)} {text}" for word, text in under_way(state)]
    return "; ".join(said) or _(f"nothing under way, newest release {state.release_seq or _('none')}")


def _mail(mail: MailStatus) -> str:
    refused = mail.refused
    stopped = "" if refused is None else _(f", stopped at {refused.seq} ({refused.code})")
    waiting = mail.out_seq - mail.out_acked_seq
    return _(
        f"inbox applied up to {mail.in_applied_seq}{stopped}; {waiting} outbox records wait for a receipt"
    )


def _yes(value: bool) -> str:
    return (
        click.style(_("yes"), fg="green")
        if value
        else click.style(_("no: every verdict would abstain"), fg="red")
    )


@dataclass(frozen=True, slots=True)
class Rates:
    """Over the window, or from one status to the next where they are further apart; None while there is only
    one."""

    passages_min: float | None
    frames_s: float | None
    examined_s: float | None


class Recent:
    """The statuses of the last minute, and the one before the newest however old it is; each with when it was
    read (monotonic seconds)."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, tuple[int, int, int]]] = deque()

    def add(self, at_s: float, status: CoreStatus) -> Rates:
        """Rates with this one as the newest. A restarted daemon begins a new window."""
        now = status.verdict_seq, status.camera.frames, status.camera.examined
        if self._seen and (now[0] < self._seen[-1][1][0] or now[1] < self._seen[-1][1][1]):
            self._seen.clear()
        self._seen.append((at_s, now))
        while len(self._seen) > 2 and at_s - self._seen[0][0] > WINDOW_S:
            self._seen.popleft()
        since_s, before = self._seen[0]
        span_s = at_s - since_s
        if span_s <= 0:
            return Rates(None, None, None)
        return Rates(
            (now[0] - before[0]) * 60 / span_s, (now[1] - before[1]) / span_s, (now[2] - before[2]) / span_s
        )


def summary(status: CoreStatus, rates: Rates) -> JsonObject:
    """What one line of the watch says, for programs."""
    latency = status.latency
    return {
        "serving": status.serving,
        "passages_min": _rounded(rates.passages_min),
        "p50_ms": _ms(latency.p50_us),
        "p99_ms": _ms(latency.p99_us),
        "frames_s": _rounded(rates.frames_s),
        "examined_s": _rounded(rates.examined_s),
        "camera": status.camera.condition,
        "cable": status.cable.state,
        "cloud_online": status.cloud.online,
        "gallery_templates": status.gallery.templates,
        "gallery_fresh": status.gallery.fresh,
        "gallery_left_s": status.gallery.left_s,
        "verdict_seq": status.verdict_seq,
        "uploads_waiting": status.uploads_waiting,
        "health": list(status.words),
    }


def plain_line(clock: str, told: JsonObject) -> str:
    """One line for a log or a pipe."""
    return (
        f"{clock} serving {'yes' if told['serving'] else 'no'}  verdicts {told['verdict_seq']}  "
        f"passages/min {_number(told['passages_min'])}  p50 {_number(told['p50_ms'])} ms  "
        f"p99 {_number(told['p99_ms'])} ms  frames/s {_number(told['frames_s'])}  camera {told['camera']}  "
        f"cable {told['cable']}  gallery {_gallery(told)}  {' '.join(told['health']) or 'healthy'}"
    )


def screen(told: JsonObject) -> list[str]:
    """The lines below the head of a live screen."""

    def mark(good: bool, text: str) -> str:
        return click.style(text, fg="green" if good else "red")

    online = "online" if told["cloud_online"] else "offline"
    frames = _(f"{_number(told['frames_s'])} frames/s, {_number(told['examined_s'])} examined")
    rows = (
        (_("serving"), _yes(told["serving"])),
        (
            _("passages"),
            _(f"{_number(told['passages_min'])} a minute, {told['verdict_seq']} verdicts in all"),
        ),
        (_("latency"), f"p50 {_number(told['p50_ms'])} ms, p99 {_number(told['p99_ms'])} ms"),
        (_("camera"), f"{mark(told['camera'] == 'ok', told['camera'])}, {frames}"),
        (_("cable"), mark(told["cable"] == "up", told["cable"])),
        (_("gallery"), mark(told["gallery_fresh"], _(_gallery(told)))),
        (_("cloud"), f"{online}, " + _(f"{told['uploads_waiting']} items to upload")),
    )
    return [f"  {name:<10} {text}" for name, text in rows]


def _gallery(told: JsonObject) -> str:
    if not told["gallery_fresh"]:
        return marked(f"{told['gallery_templates']} templates, not fresh")
    return marked(f"{told['gallery_templates']} templates, fresh for {told['gallery_left_s'] / 3600:.1f} h")


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:g}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _ms(us: int | None) -> float | None:
    return None if us is None else round(us / 1000, 1)
