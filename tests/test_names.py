"""Class names are unique in the product, so that a name leads to one thing."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("cloud_client", "device", "gallery", "link1", "models", "tools")


def test_a_class_name_has_one_home() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.is_symlink():
                continue
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    homes[node.name].append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_no_test_takes_a_private_name_of_the_product() -> None:
    """Neither by an import nor as the string of a monkeypatch; ruff's SLF001 sees attributes."""
    taken = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names: list[str] = []
            match node:
                case ast.ImportFrom(module=str(module)) if module.split(".")[0] in PACKAGES:
                    names = [*module.split("."), *(alias.name for alias in node.names)]
                case ast.Call(func=ast.Attribute(attr="setattr" | "delattr" | "object")):
                    names = [
                        each.value.rpartition(".")[2]
                        for each in node.args[:2]
                        if isinstance(each, ast.Constant) and isinstance(each.value, str)
                    ]
            if any(name.startswith("_") and not name.endswith("__") for name in names):
                taken.append(f"{path.relative_to(ROOT)}:{node.lineno}")  # type: ignore[attr-defined]
    assert taken == []
