"""`palmctl bench cloud`, small: what is promised is measured; the device bench is where it was."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.cloud_client.server.server_database import cluster
from tools.palmctl.commands.bench import bench
from tools.rig.bench.cloud_processes import run_processes_bench
from tools.rig.bench.cloud_scale import ScaleBench, run_scale_bench, summary
from tools.rig.bench.cloud_strangers import ATTACKS


@pytest.mark.long
def test_every_figure_is_measured(tmp_path: Path) -> None:
    words = ["--requests", "150", "--batches", "1", "--devices", "12", "--templates", "250"]
    out = tmp_path / "figures" / "cloud.json"
    done = CliRunner().invoke(bench, ["cloud", *words, "--json", "--out", str(out)])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures == json.loads(out.read_text())
    for operation in ("get_subject", "create_subject"):
        assert {"server_us", "bare_us", "ratio", "ratio_of_rounds"} <= set(figures["requests"][operation])
    assert figures["requests"]["create_subject"]["bare_on_loop_us"] > 0
    assert figures["verdict_batch"]["batches"] == 1
    waiting = figures["long_poll"]
    assert (waiting["devices"], waiting["answered"]) == (12, 12)
    assert waiting["p99_ms"] >= waiting["p50_ms"] > 0
    assert (figures["snapshot"]["templates"], figures["snapshot"]["pages"]) == (250, 2)


@pytest.mark.long
def test_strangers_in_every_situation() -> None:
    words = ["--seconds", "0.3", "--connections", "40", "--devices", "5"]
    done = CliRunner().invoke(bench, ["strangers", *words, "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert set(figures) == {*ATTACKS, "devices waiting"}
    for found in figures.values():
        for when in ("quiet", "attacked"):
            assert found[when]["requests"] > 0
            assert found[when]["p99_ms"] >= found[when]["p50_ms"] > 0
    assert figures["devices waiting"]["answered"] == 5


@pytest.mark.long
def test_the_situations_of_a_large_store_are_measured(tmp_path: Path) -> None:
    size = ScaleBench(verdicts=500, people=210, devices=10, erasures=2, expired=150, seconds=0.5)
    figures = run_scale_bench(tmp_path, size, lambda _line: None)
    for situation in ("sweep", "idle", "connecting", "waiting", "erasures", "lists", "backup", "long_read"):
        found = figures[situation]["all"]
        assert found["most_ms"] >= found["p99_ms"] >= found["p50_ms"] > 0
    assert figures["erasure_at_each"]["count"] == 20
    assert figures["erasure_at_the_last"]["count"] == figures["erasure_answered"]["count"] == 2
    assert figures["pages_of_200"]["count"] >= 2
    assert "1000 ms" in "".join(summary(figures))


@pytest.mark.long
def test_several_processes_are_measured(tmp_path: Path) -> None:
    figures = run_processes_bench(tmp_path, cluster().new_database(), requests=8, rounds=1)
    for operation in ("get_subject", "create_subject"):
        assert len(figures[operation]) == 7
        assert all(one["server_us"] > 0 for one in figures[operation].values())


def test_the_device_is_still_measured_without_a_word() -> None:
    shown = CliRunner().invoke(bench, ["--help"]).stdout
    assert {"--templates", "--passages", "--start-templates", "--out", "--json"} <= set(shown.split())
