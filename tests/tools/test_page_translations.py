"""The pages whose script has its own table of Portuguese: every word that they show is in it."""

import re
from pathlib import Path

import pytest

from device.health import HealthWord
from tests import REPOSITORY

PAGES = [
    REPOSITORY / "tools/cloud/simulation/static/gates.js",
    REPOSITORY / "tools/rig/playground/static/playground.js",
]
CONTRACT = {"LIBERAR", "BLOQUEAR", "MATCH", "Content-Type", "X-About", "Palm access", "test", *HealthWord}
OF_THE_SCRIPT = {"Enter", "bad", "good", "warn"}
"""A key, and classes of the style."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_word_of_a_page_is_translated(page: Path) -> None:
    script = page.read_text()
    html = page.with_suffix(".html").read_text().partition("<noscript>")[0]
    block = re.search(r"const PORTUGUESE = \{(.*?)^\};", script, re.DOTALL | re.MULTILINE)
    assert block is not None
    known = dict(re.findall(r'"([^"]+)":\s*"([^"]+)"', block.group(1))).keys()
    code = script.replace(block.group(), "")
    said = {
        *re.findall(r'say\("([^"]+)"\)', code),
        *re.findall(r'cell\("\w+", "([^"]+)"\)', code),
        *re.findall(r'\["\w+", "([A-Za-z ]+)"[],]', code),
        *re.findall(r'(?:\? |: )"([A-Z][^"]{4,})"', code),
    }
    shown = {text.strip() for text in re.findall(r">([^<&]*[a-z]{3}[^<]*)<", html)}
    labels = set(re.findall(r'(?:aria-label|alt)="([^"]+)"', html))
    assert sorted((said | shown | labels) - known - CONTRACT - OF_THE_SCRIPT) == []
