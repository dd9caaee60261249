"""`palmctl doctor`: every check, with what to do."""

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

import device
from tools.palmctl.command_errors import EXIT_FAILED, EXIT_NOT_PERMITTED
from tools.palmctl.language import marked
from tools.palmctl.language import translated as _

if TYPE_CHECKING:
    from device.doctor.case import Finding

_MARKS = {
    "ok": ("✓", "green"),
    "warn": ("!", "yellow"),
    "fail": ("✗", "red"),
    "skip": ("·", "bright_black"),
    "not_checked": ("·", "bright_black"),
}
_LABELS = {
    "ok": marked("fine"),
    "warn": marked("to watch"),
    "fail": marked("failed"),
    "skip": marked("nothing to look at"),
    "not_checked": marked("not checked"),
}
_NOT_ROOT = marked(
    "You are not root; what only root may see is marked · and not checked: sudo palmctl doctor\n"
)


def _checks_like(context: click.Context, _argument: click.Parameter, begun: str) -> list[str]:
    """Names of checks: read from the text, because importing them all takes longer than a key press may."""
    text = Path(device.__file__).with_name("doctor").joinpath("examine.py").read_text(encoding="utf-8")
    names = sorted(re.findall(r'^    "([a-z]+)": ', text, re.MULTILINE))
    given = context.params.get("checks") or ()
    return [name for name in names if name.startswith(begun) and name not in given]


@click.command()
@click.argument("checks", nargs=-1, metavar="[CHECK]…", shell_complete=_checks_like)
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option("--json", "as_json", is_flag=True, help="Print all findings as one JSON object.")
def doctor(checks: tuple[str, ...], config: Path | None, as_json: bool) -> None:
    """Look at everything that a gate needs, and say what to do about what is wrong.

    Runs with or without a daemon, and on a device whose provisioning is not finished; changes nothing.
    CHECK: only these (camera, cable, server, …). Run it as root to see everything.

    Exit code 0: nothing failed. 1: something did. 2: wrong usage. 4: nothing failed, and something could not
    be checked, because this user may not see it.
    """
    import os

    os.environ.setdefault("OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT", "1")
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    from device.config.config import config_path
    from device.doctor.case import take_case
    from device.doctor.examine import CHECKS, examine
    from device.platform.clock import SystemClock
    from tools.palmctl.live_terminal import live_line

    unknown = [name for name in checks if name not in CHECKS]
    if unknown:
        raise click.UsageError(f"no check is called {unknown[0]}; there are {', '.join(CHECKS)}")
    with live_line(hidden=as_json) as tell:
        case = take_case(config_path(config), SystemClock())
        findings = examine(case, checks, lambda name: tell("  " + _(f"looking at {name} …")))
    counts = {word: sum(finding.result == word for finding in findings.values()) for word in _MARKS}
    if as_json:
        items = [finding.to_obj(name) for name, finding in findings.items()]
        told = {"findings": items, "counts": counts, "as_root": os.geteuid() == 0}
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        if counts["not_checked"] and os.geteuid() != 0:
            click.echo(_(_NOT_ROOT))
        click.echo("\n".join((*_table(findings), _summary(counts))))
    if counts["fail"]:
        sys.exit(EXIT_FAILED)
    sys.exit(EXIT_NOT_PERMITTED if counts["not_checked"] else 0)


def _table(findings: "dict[str, Finding]") -> list[str]:
    """A line for each finding, with the next step below it."""
    width = max(map(len, findings), default=0)
    lines = []
    for name, finding in findings.items():
        sign, colour = _MARKS[finding.result]
        lines.append(f"{click.style(sign, fg=colour)} {name:<{width}}  {_(finding.detail)}")
        if finding.todo and finding.result != "ok":
            lines.append(f"  {'':<{width}}  → {_(finding.todo)}")
    return lines


def _summary(counts: dict[str, int]) -> str:
    parts = [
        click.style(f"{number} {_(_LABELS[word])}", fg=_MARKS[word][1])
        for word, number in counts.items()
        if number
    ]
    return f"\n{', '.join(parts)}"
