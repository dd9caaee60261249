"""The cable's bench: what it measures is there, and a bad cable loses and doubles nothing."""

import json

import pytest
from click.testing import CliRunner

from tools.palmctl.commands.bench import bench
from tools.rig.bench import link_faults


@pytest.mark.long
def test_figures_of_the_cable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_faults, "PASSAGES", 10)
    done = CliRunner().invoke(bench, ["link", "--requests", "20", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert figures["codec"]["mb_per_s"] > 0
    assert figures["mail"]["mib_per_s"] > 0
    assert figures["round_trip"]["durable_ms"]["p50"] > 0
    for fault in figures["faults"]:
        assert fault["verdicts"] == fault["decided_once"] == 10
    assert [cut["cut_s"] for cut in figures["cuts"]] == [0.1, 1.0, 12.0, 300.0]
    for cut in figures["cuts"]:
        assert (cut["lost"], cut["doubled"]) == (0, 0)
        assert cut["served_after_ms"] <= 2_000
