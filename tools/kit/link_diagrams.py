"""Draws the state tables of `link1` as Mermaid state diagrams, for docs/reference/LINK1.md.

`python -m tools.kit.link_diagrams` rewrites the pictures in the page; a test fails when they are out of date.
"""

import re
import sys
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

from link1.handshake import HANDSHAKE_TABLE
from link1.link_states import SESSION_TABLE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "LINK1.md"

Table = Mapping[Any, tuple[Enum, tuple[Enum, ...]]]
"""(state, input) → (next state, actions), all of them enums whose values are for people."""

TABLES: dict[str, Table] = {"session": SESSION_TABLE, "handshake": HANDSHAKE_TABLE}


def diagram_of(table: Table) -> str:
    """One arrow for each entry: the input, and after the slash what is done."""
    names = {state: state.name.lower() for pair in table.items() for state in (pair[0][0], pair[1][0])}
    lines = ["```mermaid", "stateDiagram-v2"]
    lines += [f'    state "{state.value}" as {name}' for state, name in names.items()]
    lines.append(f"    [*] --> {next(iter(names.values()))}")
    for (state, trigger), (next_state, actions) in table.items():
        done = f" / {', '.join(action.value for action in actions)}" if actions else ""
        lines.append(f"    {names[state]} --> {names[next_state]}: {trigger.value}{done}")
    return "\n".join([*lines, "```"])


def redraw(page: str) -> str:
    """`page` with every `<!-- diagram: NAME -->` … `<!-- end -->` filled again."""
    for name, table in TABLES.items():
        block = f"<!-- diagram: {name} -->\n{diagram_of(table)}\n<!-- end -->"
        pattern = rf"<!-- diagram: {name} -->.*?<!-- end -->"
        page = re.sub(pattern, block, page, flags=re.DOTALL)  # nothing in a table has a backslash
    return page


if __name__ == "__main__":
    PAGE.write_text(redraw(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    sys.stdout.write(f"{PAGE} redrawn\n")
