"""`palmctl bench`: figures of this machine."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., Any]
Measure = Callable[[Path, Callable[[str], None]], tuple[dict[str, Any], list[str]]]


def _outputs(command: Command) -> Command:
    command = click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")(
        command
    )
    return click.option(
        "--out", type=click.Path(path_type=Path, dir_okay=False), help="Also write the figures here."
    )(command)


def _report(measure: Measure, out: Path | None, *, as_json: bool) -> None:
    """Measure in a temporary folder, and print or write what came out."""
    from tools.palmctl.bench.daemon import BenchFailed

    with tempfile.TemporaryDirectory(prefix="palm-bench-") as folder:
        try:
            figures, lines = measure(Path(folder), lambda text: click.echo(text, err=True))
        except BenchFailed as error:
            raise click.ClickException(f"the bench failed: {error}") from error
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    click.echo(json.dumps(figures) if as_json else "\n".join(lines))


@click.group(invoke_without_command=True)
@click.option("--templates", default=10_000, show_default=True, help="Gallery size for the verdict latency.")
@click.option("--passages", default=100, show_default=True, help="Palms to show.")
@click.option("--start-templates", default=100_000, show_default=True, help="Gallery size for the start.")
@_outputs
@click.pass_context
def bench(
    context: click.Context,
    *,
    templates: int,
    passages: int,
    start_templates: int,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure a whole device on this machine: the verdict's latency stage by stage, and the start.

    Runs the real daemon on generated palms, camera files and a pty, beside a baseline in the same run. Takes
    some minutes; what it makes lies in a temporary folder and is removed.
    """
    if context.invoked_subcommand is not None:
        return
    from tools.palmctl.bench.run import run_bench, summary

    def measure(folder: Path, tell: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
        figures = run_bench(
            folder, templates=templates, passages=passages, start_templates=start_templates, tell=tell
        )
        return figures, summary(figures)

    _report(measure, out, as_json=as_json)


@bench.command()
@click.option("--requests", default=10_000, show_default=True, help="Requests of each kind to compare.")
@click.option("--batches", default=20, show_default=True, help="Batches of 100 verdicts.")
@click.option("--devices", default=1000, show_default=True, help="Devices that wait at once.")
@click.option("--templates", default=100_000, show_default=True, help="Templates of the snapshot.")
@_outputs
def cloud(
    *, requests: int, batches: int, devices: int, templates: int, out: Path | None, as_json: bool
) -> None:
    """Measure the reference server: CPU a request beside a bare app, batches, long-polls, a large snapshot.

    Runs `palmctl cloud serve` on SQLite and talks to it over HTTP. Takes two minutes or three; what it makes
    lies in a temporary folder and is removed.
    """
    from tools.rig.bench.cloud import CloudBench, run_cloud_bench, summary

    def measure(folder: Path, tell: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
        figures = run_cloud_bench(folder, CloudBench(requests, batches, devices, templates), tell)
        return figures, summary(figures)

    _report(measure, out, as_json=as_json)


@bench.command()
@click.option("--seconds", default=5.0, show_default=True, help="How long each situation is looked at.")
@click.option("--connections", default=2500, show_default=True, help="Connections that say nothing.")
@click.option("--devices", default=2000, show_default=True, help="Devices that wait at once.")
@_outputs
def strangers(*, seconds: float, connections: int, devices: int, out: Path | None, as_json: bool) -> None:
    """Measure what others notice of the reference server while it is attacked.

    Silent, slow, large and wrong requests from another process on this machine, each beside a quiet time in
    the same run. The server has a service's usual limits. Takes three minutes.
    """
    from tools.rig.bench.cloud_strangers import StrangersBench, run_strangers_bench, summary

    def measure(folder: Path, tell: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
        figures = run_strangers_bench(folder, StrangersBench(seconds, connections, devices), tell)
        return figures, summary(figures)

    _report(measure, out, as_json=as_json)


@bench.command()
@click.option("--verdicts", default=400_000, show_default=True, help="Verdicts of the tenant that lists.")
@click.option("--requests", default=2_000, show_default=True, help="Requests of the others a situation.")
@_outputs
def lists(*, verdicts: int, requests: int, out: Path | None, as_json: bool) -> None:
    """Measure what others wait for at the reference server while verdicts are listed, erased, backed up.

    Runs `palmctl cloud serve` on SQLite. Takes two minutes and some 3 GiB of disk; what it makes lies in a
    temporary folder and is removed.
    """
    from tools.rig.bench.cloud_lists import run_lists_bench, summary

    def measure(folder: Path, tell: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
        figures = run_lists_bench(folder, verdicts, requests, tell)
        return figures, summary(figures)

    _report(measure, out, as_json=as_json)


@bench.command()
@click.option("--requests", default=500, show_default=True, help="Requests, each with its verdict.")
@_outputs
def link(*, requests: int, out: Path | None, as_json: bool) -> None:
    """Measure the cable: codec, request to verdict, mail, damaged pieces, cuts.

    Each beside a baseline in the same run: plain COBS and CRC, a bare echo, a bare exchange of as many bytes
    over a pseudo-terminal. Bad cables and cuts run on a clock of their own. Takes half a minute.
    """
    from tools.rig.bench.link import run_link_bench, summary

    def measure(_folder: Path, tell: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
        figures = run_link_bench(requests=requests, tell=tell)
        return figures, summary(figures)

    _report(measure, out, as_json=as_json)


@bench.command()
@click.option(
    "--templates",
    multiple=True,
    type=click.IntRange(min=1_000),
    default=(100_000, 1_000_000),
    show_default=True,
    help="Gallery size to start with; may be given several times. A million takes ten minutes to make.",
)
@click.option("--passages", default=150, show_default=True, help="Palms to show in each situation.")
@click.option("--beside-templates", default=100_000, show_default=True, help="Gallery size of the passages.")
@click.option("--start-only", is_flag=True, help="Measure start and memory, and nothing else.")
@_outputs
def device(
    *,
    templates: tuple[int, ...],
    passages: int,
    beside_templates: int,
    start_only: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure a device in its years: large galleries, work beside the passages, an empty gate, flash."""
    from tools.rig.bench.device import run_device_bench, run_start_bench, summary

    def measure(folder: Path, tell: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
        if start_only:
            figures = run_start_bench(folder, templates=templates, tell=tell)
        else:
            figures = run_device_bench(
                folder,
                templates=templates,
                passages=passages,
                beside_templates=beside_templates,
                tell=tell,
            )
        return figures, summary(figures)

    _report(measure, out, as_json=as_json)
