"""The drawings of the documents are what their sources give, and say what is wrong with a source."""

import json
import xml.etree.ElementTree as ET

import pytest

from models.evaluation import charts
from tools.palmctl.errors import ToolError
from tools.rig.pictures import architecture, terminal
from tools.rig.pictures.__main__ import drawings


@pytest.mark.parametrize("name", list(drawings()))
def test_a_drawing_is_made_from_its_source(name: str) -> None:
    path, content = drawings()[name]()
    assert path.read_text(encoding="utf-8") == content, "run: make pictures"
    assert ET.fromstring(content).attrib["aria-label"]


@pytest.mark.parametrize(
    "line", ["bax palmd own 1 2 3 4 x", "box palmd own 1 2 x", "wire a right b left", "size a b"]
)
def test_a_line_that_means_nothing_is_named(line: str) -> None:
    with pytest.raises(ToolError, match="line 2 of the drawing"):
        architecture.draw(f"# a drawing\n{line}\n")


def test_what_a_terminal_shows_at_last() -> None:
    written = "\x1b[?1049h\x1b[Hold\x1b[K\n\x1b[J\x1b[H  a \x1b[32m\x1b[1mgood\x1b[0m <one>\x1b[K\n\n\x1b[J"
    (line,) = terminal.last_screen(written)
    assert list(terminal.pieces(line)) == [("  a ", "", False), ("good", "32", True), (" <one>", "", False)]
    drawn = terminal.draw("a title", "palmctl status", written)
    assert "&lt;one&gt;" in drawn and "old" not in drawn


def test_errors_that_were_never_seen_are_drawn_where_they_could_have_been() -> None:
    curve = {"name": "m", "comparisons": [100, 10_000], "fmr": [1e-4, 0.1], "fnmr": [0.0, 0.0]}
    figures = {
        "title": "t",
        "about": "a",
        "curves": [curve],
        "operating_point": {"name": "here", "fmr": 0.0, "fnmr": 0.0},
    }
    drawn = charts.det_plot(json.loads(json.dumps(figures)))
    ((_, y1), (_, y2)) = [
        tuple(map(float, point.split(",")))
        for line in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}polyline")
        if line.attrib["class"] == "curve" and line.attrib["points"].count(",") == 2
        for point in line.attrib["points"].split()
    ][:2]
    assert y1 == y2


def test_scores_that_are_all_the_same_are_drawn() -> None:
    same = [charts.Curve("one palm", [1.0, 0.0])]
    drawn = charts.curves("t", "a", [0.5, 0.5], same, across="similarity", up="frequency")
    assert ET.fromstring(drawn).tag.endswith("svg")
    assert "nan" not in drawn


def test_a_histogram_has_every_sample() -> None:
    samples = [10.0] * 30 + [20.0] * 10
    drawn = charts.histogram({"title": "t", "about": "a", "samples_ms": samples})
    bars = [
        float(bar.attrib["height"])
        for bar in ET.fromstring(drawn).iter("{http://www.w3.org/2000/svg}rect")
        if bar.attrib["class"] == "accent"
    ]
    assert len(bars) == 2
    assert bars[0] == pytest.approx(3 * bars[1], rel=1e-3)
    assert "p50 10.0 ms" in drawn.replace("  ", " ") and "p99 20.0 ms" in drawn.replace("  ", " ")
