"""The examples in docstrings are true."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("cloud_client", "device", "gallery", "link1", "models", "tools")
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if re.search(r"^\s*>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_hold(name: str) -> None:
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert tried
    assert failed == 0
