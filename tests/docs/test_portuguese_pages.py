"""The pages in Portuguese say what the English ones say: the same headings, commands and links, and the
output that `palmctl` gives in Portuguese for the output shown there."""

import re
from pathlib import Path

import pytest

from tests.docs.page_commands import DOCS
from tools.palmctl.language import MessageCatalogue
from tools.rig.messages import PO, read_po

PAIRS = [
    (DOCS / "howto" / "FIELD.md", DOCS / "pt-BR" / "FIELD.md"),
    (DOCS / "tutorials" / "INSTALL.md", DOCS / "pt-BR" / "INSTALL.md"),
]
CATALOGUE = MessageCatalogue(read_po(PO.read_text(encoding="utf-8")))
WORDS = ("fine", "to watch", "failed", "nothing to look at", "not checked")
_FENCE = re.compile(r"^( *)```([a-z]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_FINDING = re.compile(r"([✓!✗·] \S+ +)(.*)")
_TODO = re.compile(r"( +→ )(.*)")
_COUNTS = re.compile(rf"(\d+ ({'|'.join(WORDS)})(, |$))+")
_ROW = re.compile(r"  (validator keys|verdict key|service root|in all|[a-z]+)( +)(\S.*)")
_PASSED = re.compile(r"(\S+ [A-Z_]+): (.*) \(verdict (\d+)\)")

pairs = pytest.mark.parametrize(("english", "portuguese"), PAIRS, ids=lambda page: page.parent.name)


def in_portuguese(text: str) -> str:
    """Output of `palmctl` in English, as it is in Portuguese."""
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    said = CATALOGUE.translated
    if line.startswith("$ "):
        return line
    if found := _FINDING.fullmatch(line) or _TODO.fullmatch(line):
        return found[1] + said(found[2])
    if _COUNTS.fullmatch(line):
        return re.sub("|".join(WORDS), lambda word: said(word[0]), line)
    if found := _PASSED.fullmatch(line):
        return f"{found[1]}: {said(found[2])} ({said('verdict')} {found[3]})"
    if (found := _ROW.fullmatch(line)) and "█" not in line and said(found[1]) != found[1]:
        return f"  {said(found[1]):<{len(found[1] + found[2])}}{_value(found[3])}"
    return said(line)


def _value(text: str) -> str:
    said = CATALOGUE.translated
    state, _, rest = text.partition(" ")
    if found := re.fullmatch(r"(.*?)(\bnot fresh|\bfresh|\bnone)", text):
        return said(found[1] + said(found[2]))
    if rest.startswith("on "):
        return f"{state} {said('on')} {rest[3:]}"
    if state == "ok":
        return f"ok {said(rest)}"
    if found := re.fullmatch(r"(\S+  )(\(give this to the validator\))", text):
        return found[1] + said(found[2])
    if found := re.fullmatch(r"(.* ms  \(\d+ ms )(from the frame to the cable)\)", text):
        return f"{found[1]}{said(found[2])})"
    return re.sub(r" of (?=100$)", f" {said('of')} ", said(text))


def blocks(page: Path) -> list[tuple[str, str, str]]:
    return _FENCE.findall(page.read_text(encoding="utf-8"))


def prose(page: Path) -> str:
    """The page without its blocks and its generated table."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    return re.sub(r"<!-- generated.*?end -->", "", text, flags=re.DOTALL)


@pairs
def test_headings_correspond(english: Path, portuguese: Path) -> None:
    levels = [re.findall(r"^#+(?= )", prose(page), re.MULTILINE) for page in (english, portuguese)]
    assert levels[0] == levels[1]


@pairs
def test_blocks_are_those_of_palmctl_in_portuguese(english: Path, portuguese: Path) -> None:
    expected = [(indent, kind, in_portuguese(text)) for indent, kind, text in blocks(english)]
    assert blocks(portuguese) == expected


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
