"""Pages in Portuguese: their blocks are those of the English page, as `palmctl` prints them in Portuguese."""

import re
from typing import Final

from tools.palmctl.language import DOMAIN, FOLDER, read_catalogue

_CATALOGUE = read_catalogue(FOLDER / "pt_BR" / "LC_MESSAGES" / f"{DOMAIN}.mo")
_WORDS = ("fine", "to watch", "failed", "nothing to look at", "not checked")
FENCE: Final = re.compile(r"^( *)```([a-z]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_FINDING = re.compile(r"([✓!✗·] \S+ +)(.*)")
_TODO = re.compile(r"( +→ )(.*)")
_SAID = re.compile(r"(\S+: \d+ KiB, \d+ )(files)|( *)(Type the device id to go on)(:)")
_COUNTS = re.compile(rf"(\d+ ({'|'.join(_WORDS)})(, |$))+")
_ROW = re.compile(r"  (validator keys|verdict key|service root|in all|[a-z]+)( +)(\S.*)")
_PASSED = re.compile(r"(\S+ [A-Z_]+): (.*) \(verdict (\d+)\)")


def with_blocks(page: str, english: str) -> str:
    """`page` with the blocks of the page `english`. Raises ValueError where it has another number of them."""
    blocks = [(found[1], found[2], in_portuguese(found[3])) for found in FENCE.finditer(english)]
    places = len(FENCE.findall(page))
    if places != len(blocks):
        raise ValueError(f"{places} blocks in Portuguese, {len(blocks)} in English; add or remove one")
    texts = iter(blocks)
    return FENCE.sub(lambda _found: "{0}```{1}\n{2}{0}```".format(*next(texts)), page)


def in_portuguese(text: str) -> str:
    """Output of `palmctl` in English, as it is in Portuguese."""
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    said = _CATALOGUE.translated
    if line.startswith("$ "):
        return line
    if found := _FINDING.fullmatch(line) or _TODO.fullmatch(line) or _SAID.fullmatch(line):
        return "".join(said(part) for part in found.groups(""))
    if _COUNTS.fullmatch(line):
        return re.sub("|".join(_WORDS), lambda word: said(word[0]), line)
    if found := _PASSED.fullmatch(line):
        return f"{found[1]}: {said(found[2])} ({said('verdict')} {found[3]})"
    if (found := _ROW.fullmatch(line)) and "█" not in line and said(found[1]) != found[1]:
        return f"  {said(found[1]):<{len(found[1] + found[2])}}{_value(found[3])}"
    return said(line)


def _value(text: str) -> str:
    said = _CATALOGUE.translated
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
