"""The playground as its picture shows it: a palm in view, the turnstile open, the signed verdict decoded."""

import tempfile
from pathlib import Path
from typing import Final

from tools.rig.browser import Tab
from tools.rig.demo.programs import RunningPrograms, module
from tools.rig.demo.waiting import wait_until

_WITHIN_S: Final = 60.0
_WIDTH, _HEIGHT = 1400, 860
_ANA: Final = "[data-button=palm][data-who=Ana]"
_VERDICT: Final = """
    [...document.querySelectorAll("#events details")]
      .find((one) => /device → validator verdict/.test(one.innerText))
"""


def photograph_playground(tab: Tab, folder: Path) -> None:
    """Start a playground, let Ana pass, and write `playground.png`."""
    with (
        tempfile.TemporaryDirectory(prefix="palm-playground-") as place,
        RunningPrograms(Path(place)) as stage,
    ):
        words = ("playground", "--json", "--port", "0")
        playground = stage.start("playground", module("tools.palmctl.main", *words))
        url = playground.wait_line(lambda line: "url" in line, _WITHIN_S)["url"]
        tab.show(width=_WIDTH, height=_HEIGHT)
        tab.open(url)
        _wait(tab, f"document.querySelector('{_ANA}')?.disabled === false")
        _wait(tab, "document.getElementById('session').textContent === 'up'")
        tab.value(f"document.querySelector('{_ANA}').click()")
        _wait(tab, "document.getElementById('turnstile').textContent === 'open'")
        tab.value("document.querySelector('[data-pace=\"0\"]').click()")
        _wait(tab, _VERDICT.strip() + " !== undefined")
        tab.value(f"({_VERDICT}).open = true")
        _wait(tab, "document.getElementById('seen').textContent.startsWith('left palm')")
        _wait(tab, "[...document.images].every((one) => one.complete && one.naturalWidth > 0)")
        _wait(tab, "document.getAnimations().length === 0")
        (folder / "playground.png").write_bytes(tab.photograph())  # a palm has more than 256 colours


def _wait(tab: Tab, shown: str) -> None:
    wait_until(f"the playground to show {shown}", _WITHIN_S, lambda: bool(tab.value(shown)))
