"""`palmctl status`: what the daemon is doing now."""

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import NoReturn

import click

from device.config.config import config_path, load_config
from device.errors import IpcError, IpcNotPermitted
from device.values.status import CoreStatus, MailStatus, UpdatesStatus, read_status
from tools.palmctl.commands.update import under_way
from tools.palmctl.language import marked
from tools.palmctl.language import translated as _
from tools.palmctl.live_status import Recent, plain_line, screen, summary
from tools.palmctl.live_terminal import is_live


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole status as one JSON object.")
@click.option(
    "--watch",
    is_flag=True,
    help="A live view with rates; a line (--json: an object) each where no terminal is.",
)
@click.option(
    "--every", type=click.FloatRange(0.2, 3600), default=1.0, show_default=True, help="With --watch: seconds."
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
                shown = [
                    f"{clock} {_(str(error))}",
                    _("waiting for it; start it with: systemctl start palmd"),
                ]
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
    fitting = [
        line if len(click.unstyle(line)) <= columns else line[: columns - 1] + "…"
        for line in shown[: rows - 1]
    ]
    return "\x1b[H" + "".join(f"{line}\x1b[0m\x1b[K\n" for line in fitting) + "\x1b[J"


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
