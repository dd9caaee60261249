"""`palmctl bench …`: figures of the reference server, the cable, and a device in its years."""

from collections.abc import Callable
from pathlib import Path

import click

from tools.palmctl.commands.bench import Figures, count, outputs, report_figures


@click.command()
@count("--requests", 10_000, "Requests of each kind to compare.", least=100)
@count("--batches", 20, "Batches of 100 verdicts.")
@count("--devices", 1000, "Devices that wait at once.", least=2)
@count("--templates", 100_000, "Templates of the snapshot.")
@outputs
def cloud(
    *, requests: int, batches: int, devices: int, templates: int, out: Path | None, as_json: bool
) -> None:
    """Measure the reference server: CPU per request against a bare app, batches, long-polls, a snapshot.

    Runs `palmctl cloud serve` on SQLite and talks to it over HTTP. Takes two minutes or three; what it makes
    lies in a temporary folder and is removed.
    """
    from tools.rig.bench.cloud import CloudBench, run_cloud_bench, summary

    setup = CloudBench(requests, batches, devices, templates)
    report_figures(lambda folder, tell: run_cloud_bench(folder, setup, tell), summary, out, as_json=as_json)


@click.command()
@click.option(
    "--seconds",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="How long each situation is looked at.",
)
@count("--connections", 2500, "Connections that say nothing.")
@count("--devices", 2000, "Devices that wait at once.", least=2)
@outputs
def strangers(*, seconds: float, connections: int, devices: int, out: Path | None, as_json: bool) -> None:
    """Measure what others notice of the reference server while it is attacked.

    Silent, slow, large and wrong requests from another process on this machine, each with a quiet period of
    the same run. The server has a service's usual limits. Takes three minutes.
    """
    from tools.rig.bench.cloud_strangers import StrangersBench, run_strangers_bench, summary

    setup = StrangersBench(seconds, connections, devices)
    report_figures(
        lambda folder, tell: run_strangers_bench(folder, setup, tell), summary, out, as_json=as_json
    )


@click.command()
@count("--requests", 500, "Requests, each with its verdict.")
@outputs
def link(*, requests: int, out: Path | None, as_json: bool) -> None:
    """Measure the cable: codec, request to verdict, mail, damaged pieces, cuts.

    Each with a baseline of the same run: plain COBS and CRC, a bare echo, a bare exchange of as many bytes
    over a pseudo-terminal. Bad cables and cuts run in simulated time. Takes half a minute.
    """
    from tools.rig.bench.link import run_link_bench, summary

    report_figures(
        lambda _folder, tell: run_link_bench(requests=requests, tell=tell), summary, out, as_json=as_json
    )


@click.command()
@click.option(
    "--templates",
    multiple=True,
    type=click.IntRange(min=1_000),
    default=(100_000, 1_000_000),
    show_default=True,
    help="Gallery size to start with; may be given several times. A million takes ten minutes to make.",
)
@count("--passages", 150, "Palms to show in each situation.")
@count("--beside-templates", 100_000, "Gallery size of the passages.")
@click.option("--start-only", is_flag=True, help="Measure start and memory, and nothing else.")
@outputs
def device(
    *,
    templates: tuple[int, ...],
    passages: int,
    beside_templates: int,
    start_only: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Measure a device in long service: large galleries, work during passages, an empty gate, flash."""
    from tools.rig.bench.device import run_device_bench, run_start_bench, summary

    def measure(folder: Path, tell: Callable[[str], None]) -> Figures:
        if start_only:
            return run_start_bench(folder, templates=templates, tell=tell)
        return run_device_bench(
            folder, templates=templates, passages=passages, beside_templates=beside_templates, tell=tell
        )

    report_figures(measure, summary, out, as_json=as_json)
