"""`palmctl status`: what the daemon is doing now."""

import json
import sys
from pathlib import Path
from typing import Any

import click


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole status as one JSON object.")
def status(config: Path | None, as_json: bool) -> None:
    """What the daemon is doing now: camera, cable, gallery, cloud, health, last verdict, latency.

    Exit code 0: serving. 1: running, but every verdict would abstain. 3: no daemon answers.
    """
    from device.config import config_path, load_config
    from device.control import read_status
    from device.errors import ConfigError, IpcError

    try:
        socket = load_config(config_path(config)).control_socket
    except ConfigError as error:
        click.echo(f"{error}", err=True)
        sys.exit(3)
    try:
        told = read_status(socket)
    except IpcError as error:
        click.echo(
            f"{error}\nStart it with: systemctl start palmd; see why it stopped with: journalctl -u palmd",
            err=True,
        )
        sys.exit(3)
    click.echo(json.dumps(told) if as_json else "\n".join(lines(told)))
    sys.exit(0 if told["serving"] else 1)


def lines(told: dict[str, Any]) -> list[str]:
    """The status for a person, a fact a line."""
    camera, cable, gallery, cloud = told["camera"], told["cable"], told["gallery"], told["cloud"]
    app = f"{told['app']['pkg']} {told['app']['version']}"
    head = f"{told['device_id']} at {told['gate_id']}, validator {told['dbd_id']}, {app}"
    position = f"{gallery['stream']} epoch {gallery['epoch']} seq {gallery['seq']}"
    fresh = "fresh" if gallery["fresh"] else "not fresh"
    rows = [
        ("serving", _yes(told["serving"])),
        ("camera", f"{camera['condition']} {camera['message'] or camera['description']}"),
        ("cable", f"{cable['state']} on {cable['port']}"),
        ("gallery", f"{gallery['templates']} templates at {position}, {fresh}"),
        ("cloud", cloud["detail"]),
        ("mail", _mail(told["mail"])),
        ("model", f"{told['model_id']}, thresholds {told['thr_id']}"),
        ("enrolment", told["enrolment"]["step"]),
        ("waiting", f"{told['uploads_waiting']} items to upload"),
    ]
    last, latency = told["last_verdict"], told["latency"]
    if last is not None:
        rows.append(("last", f"verdict {last['verdict_seq']}: {last['decision']} {last['result']}"))
    if latency["count"]:
        p50, p99 = latency["p50_us"] / 1000, latency["p99_us"] / 1000
        rows.append(("latency", f"p50 {p50:.0f} ms, p99 {p99:.0f} ms over {latency['count']} verdicts"))
    rows += [("health", f"{item['word']}: {item['detail']}") for item in told["health"]]
    return [head, *(f"  {name:<10}{text}" for name, text in rows)]


def _mail(mail: dict[str, Any]) -> str:
    refused = mail["refused"]
    stopped = "" if refused is None else f", stopped at {refused['seq']} ({refused['code']})"
    waiting = mail["out_seq"] - mail["out_acked_seq"]
    return (
        f"inbox applied up to {mail['in_applied_seq']}{stopped}; {waiting} outbox records wait for a receipt"
    )


def _yes(value: bool) -> str:
    return (
        click.style("yes", fg="green") if value else click.style("no: every verdict would abstain", fg="red")
    )
