"""The pages in Portuguese say what the English ones say: the same headings, commands and links."""

import re
from pathlib import Path

import pytest

from tests.docs.page_commands import DOCS
from tools.rig.portuguese_pages import FENCE, in_portuguese, with_blocks

PAIRS = [
    (DOCS / "howto" / "FIELD.md", DOCS / "pt-BR" / "FIELD.md"),
    (DOCS / "tutorials" / "INSTALL.md", DOCS / "pt-BR" / "INSTALL.md"),
]
pairs = pytest.mark.parametrize(("english", "portuguese"), PAIRS, ids=lambda page: page.parent.name)


def prose(page: Path) -> str:
    """The page without its blocks and its generated table."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"<!-- generated.*?end -->", "", text, flags=re.DOTALL)


@pairs
def test_headings_correspond(english: Path, portuguese: Path) -> None:
    levels = [re.findall(r"^#+(?= )", prose(page), re.MULTILINE) for page in (english, portuguese)]
    assert levels[0] == levels[1]


@pairs
def test_no_output_of_palmctl_is_left_in_english(english: Path, portuguese: Path) -> None:
    """That the blocks are those of the English page is tested with the other generated pages."""
    text = portuguese.read_text(encoding="utf-8")
    assert with_blocks(text, english.read_text(encoding="utf-8")) == text
    findings = re.findall(r"^(?:[✓!✗·] \S+ +| +→ )(.*)", text, re.MULTILINE)
    assert len(findings) > 15
    assert not [line for line in findings if re.search(r"\b(the|is|of|may|not|an)\b", line)]


def test_output_in_portuguese() -> None:
    assert in_portuguese("$ palmctl status") == "$ palmctl status"
    assert in_portuguese("  cable     up on /dev/x") == "  cabo      up em /dev/x"
    assert in_portuguese("1 failed, 3 nothing to look at") == "1 com falha, 3 nada a verificar"
    with pytest.raises(ValueError, match="0 blocks in Portuguese, 1 in English"):
        with_blocks("", "```\nx\n```\n")


@pairs
def test_links_lead_to_the_same_pages(english: Path, portuguese: Path) -> None:
    translated = dict(PAIRS)
    led = []
    for page in (english, portuguese):
        targets = [target.partition("#") for target in re.findall(r"\]\(([^)\s]+)\)", prose(page))]
        paths = [((page.parent / path).resolve(), anchor) for path, _, anchor in targets]
        led.append([(translated.get(path, path), anchor) for path, anchor in paths])
    assert led[0][1:] == led[1][1:]
    assert (led[0][0], led[1][0]) == ((portuguese, ""), (portuguese, "")), (
        "the first link is the other language"
    )


@pairs
def test_the_same_commands_and_words_of_programs(english: Path, portuguese: Path) -> None:
    named = [set(re.findall(r"`([^`\n]+)`", prose(page))) for page in (english, portuguese)]
    assert named[0] - named[1] <= {"waiting 0 items to upload"}
    assert named[1] - named[0] == ({"na fila    0 itens a enviar"} if named[0] - named[1] else set())
