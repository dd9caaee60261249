"""All pictures of the documents: `python -m tools.rig.pictures [--measure] [NAME]…`.

Drawings come from sources and figures that are in the repository, and are the same wherever they are drawn; a
test holds them together. `pages` photographs the playground, the operator's page, simulated gates, the totem
and the preview with Chromium; `--measure` measures the figures of the charts and the terminal first, which
takes minutes.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from models.evaluation import charts
from tools.rig.pictures import architecture, measure, terminal

DOCS: Final = Path(__file__).parents[3] / "docs"


def drawings() -> dict[str, Callable[[], tuple[Path, str]]]:
    """Every drawing by name: the file it is, and its content now."""
    return {
        "architecture": lambda: (
            DOCS / "architecture.svg",
            architecture.draw((DOCS / "architecture.txt").read_text(encoding="utf-8")),
        ),
        "det": lambda: (DOCS / "images" / "det.svg", charts.det_plot(_figures("det.json"))),
        "latency": lambda: (DOCS / "images" / "latency.svg", charts.histogram(_figures("latency.json"))),
        "terminal": lambda: (
            DOCS / "images" / "status-watch.svg",
            terminal.draw(
                "a gate that is passed",
                "palmctl status --watch",
                (measure.FIGURES / "status-watch.txt").read_text(encoding="utf-8"),
            ),
        ),
    }


def _figures(name: str) -> dict[str, object]:
    found: dict[str, object] = json.loads((measure.FIGURES / name).read_text(encoding="utf-8"))
    return found


_MEASURED: Final = {
    "det": measure.measure_det,
    "latency": measure.measure_latency,
    "terminal": measure.record_terminal,
}
_NAMES: Final = ("architecture", "det", "latency", "terminal", "pages")


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(_NAMES))
@click.option(
    "--measure", "anew", is_flag=True, help="First measure the figures of the charts and the terminal."
)
def main(*, names: tuple[str, ...], anew: bool) -> None:
    """Make the pictures of the documents; all of them without a NAME."""
    for name in names or _NAMES:
        if anew and name in _MEASURED:
            _MEASURED[name](lambda text: click.echo(text, err=True))
        if name == "pages":
            from tools.rig.pictures.screenshots import main as photograph

            photograph.main(args=[], standalone_mode=False)
            continue
        path, content = drawings()[name]()
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        click.echo(path)


if __name__ == "__main__":
    main()
