"""`palmctl bench cloud`, small: what is promised is measured; the device bench is where it was."""

import json
from pathlib import Path

from click.testing import CliRunner

from tools.palmctl.commands.bench import bench
from tools.rig.bench.cloud_strangers import ATTACKS


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


def test_the_situations_of_the_lists_are_measured() -> None:
    done = CliRunner().invoke(bench, ["lists", "--verdicts", "500", "--requests", "100", "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    for situation in ("quiet", "while_listing", "while_somebody_reads_long", "while_backing_up"):
        assert figures[situation]["count"] >= 100
        assert figures[situation]["p99_ms"] >= figures[situation]["p50_ms"] > 0
    assert figures["lists"]["count"] >= 2
    assert figures["erasure"]["count"] == figures["erasure_beside_a_long_reader"]["count"] == 20
    assert figures["backup"]["mebibytes"] >= 1


def test_the_device_is_still_measured_without_a_word() -> None:
    shown = CliRunner().invoke(bench, ["--help"]).stdout
    assert {"--templates", "--passages", "--start-templates", "--out", "--json"} <= set(shown.split())
