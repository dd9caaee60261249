"""The bench of the reference server, as `palmctl bench cloud` runs it."""

import platform
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.rig.bench.cloud_gallery import fill_gallery, measure_snapshot, measure_waiting, register
from tools.rig.bench.cloud_requests import measure_batches, measure_requests
from tools.rig.bench.cloud_server import serving

LIMITS = {"get_subject": 1.5, "create_subject": 2.0}
"""How many times the bare app an operation may cost."""


@dataclass(frozen=True)
class CloudBench:
    """How much is measured."""

    requests: int = 10_000
    batches: int = 20
    devices: int = 1000
    templates: int = 100_000


def run_cloud_bench(folder: Path, size: CloudBench, tell: Callable[[str], None]) -> dict[str, Any]:
    """Measure in `folder`; every figure has a baseline of the same run."""
    figures: dict[str, Any] = {"machine": f"{platform.machine()}, Python {platform.python_version()}"}
    (folder / "a").mkdir()
    with serving(folder / "a") as server:
        tell(f"{size.requests} requests, in turns with a bare app")
        figures["requests"] = measure_requests(server, folder, size.requests)
        (device,) = register(server, 1, "batches")
        tell(f"{size.batches} batches of 100 verdicts")
        figures["verdict_batch"] = measure_batches(server, device, size.batches)
    (folder / "b").mkdir()
    with serving(folder / "b") as server:
        tell(f"registering {size.devices} devices")
        devices = register(server, size.devices, "waiting")
        tell("all of them wait for one tombstone")
        figures["long_poll"] = measure_waiting(server, devices)
    (folder / "c").mkdir()
    with serving(folder / "c") as server:
        (device,) = register(server, 1, "snapshot")
        tell(f"making a gallery of {size.templates} templates")
        fill_gallery(server.data, server.tenant, size.templates)
        tell("taking it page by page")
        figures["snapshot"] = measure_snapshot(server, device)
    return figures


def summary(figures: dict[str, Any]) -> list[str]:
    lines = [f"CPU of the server process a request; {figures['machine']}"]
    for name, limit in LIMITS.items():
        one = figures["requests"][name]
        lines.append(
            f"  {name:<15} {one['server_us']:5} µs   bare app {one['bare_us']:5} µs   "
            f"ratio {one['ratio']:.2f} (at most {limit}; rounds {one['ratio_of_rounds']})"
        )
    created = figures["requests"]["create_subject"]
    on_loop_us, strictest = created["bare_on_loop_us"], created["ratio_on_loop"]
    lines.append(f"    against a bare app that commits on its loop: {on_loop_us} µs, ratio {strictest:.2f}")
    batch, wait, snapshot = (figures[name] for name in ("verdict_batch", "long_poll", "snapshot"))
    batch_ms, checks_ms = batch["cpu_ms"], batch["signature_checks_alone_ms"]
    kib = wait["bytes_a_device"] / 1024
    size = f"{snapshot['templates']} templates, {snapshot['pages']} pages, {snapshot['mebibytes']} MiB"
    grown = f"{snapshot['rss_before_mib']} MiB + {snapshot['rss_growth_mib']} MiB"
    lines += [
        f"a batch of 100 verdicts in one transaction: {batch['wall_ms']} ms, CPU {batch_ms} ms",
        f"  its 100 signature checks alone: {checks_ms} ms; ratio {batch['ratio']}",
        f"{wait['devices']} devices waiting on one worker, one erasure: {wait['answered']} answered",
        f"  p50 {wait['p50_ms']} ms, p99 {wait['p99_ms']} ms, the last {wait['last_ms']} ms",
        f"  memory a waiting device {kib:.1f} KiB; CPU to answer one {wait['cpu_us_to_answer']} µs",
        f"a snapshot ({size}): {snapshot['seconds']} s; server memory {grown}",
        f"  first page {snapshot['first_page_ms']} ms, the others {snapshot['page_p50_ms']} ms",
    ]
    return lines
