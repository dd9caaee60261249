"""Every page of the documents: links and anchors lead somewhere, targets, files and commands exist."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests import REPOSITORY
from tests.docs.page_commands import DOCS, blocks_of
from tools.palmctl.main import main
from tools.rig.reference_pages import pages as generated_pages

PAGES = [REPOSITORY / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((REPOSITORY / "tools").rglob("*.md"))]
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_PLACES = re.compile(
    r"(?:cloud_client|device|docs|gallery|link1|models|systemd|tests|tools)/[A-Za-z0-9_./-]*[A-Za-z0-9_-]|Makefile"
)

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = sum(
            1 for other in found if other == anchor or re.fullmatch(rf"{re.escape(anchor)}-\d+", other)
        )
        found.add(anchor if not number else f"{anchor}-{number}")
    return found


@pages
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        led_to = (page.parent / path).resolve() if path else page
        assert led_to.exists(), f"{page.name} links to {target}, which is not there"
        if anchor:
            assert anchor in anchors_of(led_to), (
                f"{page.name} links to {target}; there are {anchors_of(led_to)}"
            )


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, waiting = set[Path](), [PAGES[0]]
    while waiting:
        page = waiting.pop()
        reached.add(page)
        linked = [target.partition("#")[0] for target in _LINK.findall(page.read_text(encoding="utf-8"))]
        targets = {(page.parent / path).resolve() for path in linked if path.endswith(".md")}
        waiting += sorted(targets & set(PAGES) - reached)
    assert set(PAGES) - reached == set()


@pages
def test_every_file_that_is_named_is_there(page: Path) -> None:
    for words in _CODE.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        for place in _PLACES.findall(words) if " " not in words else []:
            if words in {place, f"{place}/"} and not re.search(r"/[A-Z]+(/|$)", place):  # models/RELEASE
                assert (REPOSITORY / place).exists(), f"{page.name} names {place}"


def targets() -> set[str]:
    text = (REPOSITORY / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE))


@pages
def test_every_target_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z][a-z-]*)", text)) | set(
        re.findall(r"^make ([a-z][a-z-]*)", text, re.MULTILINE)
    )
    assert named <= targets()


def shown_commands(page: Path) -> Iterator[str]:
    """Every `palmctl …` that a page shows as something to type, in a block or in a line."""
    text = page.read_text(encoding="utf-8")
    for block in re.findall(r"^( *)```[a-z]*\n(.*?)^ *```", text, re.MULTILINE | re.DOTALL):
        joined = re.sub(r"\\\n *", " ", block[1])
        for line in joined.splitlines():
            typed = re.match(r"^ *(?:\$ )?(?:sudo )?(palmctl .*)$", line)
            if typed:
                yield re.split(r"  +#|  +[a-zé]|  ✓", typed[1])[0]
    for line in re.findall(
        r"^    (?:\$ )?(?:sudo )?(palmctl .*)$", re.sub(r"\\\n *", " ", text), re.MULTILINE
    ):
        yield line.split("  #")[0]
    yield from (
        code.removeprefix("sudo ") for code in _CODE.findall(_FENCE.sub("", text)) if is_command(code)
    )


def is_command(code: str) -> bool:
    return code.removeprefix("sudo ").startswith("palmctl ")


@pages
def test_every_command_can_be_typed(page: Path) -> None:
    for command in shown_commands(page):
        check_command(page, command)


def check_command(page: Path, command: str) -> None:
    """Follow the words through the groups to a command, and find each option there."""
    words = shlex.split(re.split(r"[|<>;&]|\$\(", command)[0].replace("…", " … ").replace("'", ""))[1:]
    found: click.Command = main
    context = click.Context(main)
    while words and isinstance(found, click.Group) and not words[0].startswith("-"):
        word = words.pop(0).rstrip(",")
        if word in ("…", "COMMAND"):
            return
        child = found.get_command(context, word)
        assert child is not None or found.invoke_without_command, (
            f"{page.name}: {command}: no command {word!r}"
        )
        if child is None:
            break
        found = child
    known = {name for parameter in found.params for name in (*parameter.opts, *parameter.secondary_opts)}
    known |= {"--help", "-h", "--version"}
    for word in words:
        if word.startswith("-") and len(word) > 1:
            assert word.partition("=")[0] in known, f"{page.name}: {command}: no option {word}"


def test_commands_are_found_on_the_pages() -> None:
    """The tests above look at something."""
    assert sum(1 for page in PAGES for _ in shown_commands(page)) > 150
    assert len(blocks_of(DOCS / "tutorials/INSTALL.md")) >= 12


def test_the_readme_can_be_read() -> None:
    assert len((REPOSITORY / "README.md").read_text(encoding="utf-8").splitlines()) <= 150


_LONG = {"LINK1.md", "COMMANDS.md"}
"""A contract that is implemented from its page alone, and a generated list of every command."""


@pages
def test_a_page_is_at_most_2500_words(page: Path) -> None:
    """Without the blocks of commands and answers."""
    words = len(_FENCE.sub("", page.read_text(encoding="utf-8")).split())
    assert words <= 2500 or page.name in _LONG, f"{page.name} has {words} words: split it by its readers"


@pytest.mark.parametrize("page", generated_pages(), ids=lambda page: page.stem)
def test_a_generated_page_is_current(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == generated_pages()[page](), "run: make reference"


SOURCES = sorted(
    path
    for package in ("cloud_client", "device", "gallery", "link1", "models", "tests", "tools")
    for path in (REPOSITORY / package).rglob("*.py")
)
MODULES = {
    ".".join(path.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__init__"): path
    for path in SOURCES
}
_DOTTED = re.compile(
    r"(?<![\w./\"\[-])((?:cloud_client|device|gallery|link1|models|tests|tools)(?:\.[A-Za-z_]\w*)+)(?![\w/(-])"
)
_FILES = re.compile(r"\.(toml|txt|key|py|json|db|witness)\b")
_NOT_MODULES = {
    "device.gate_id",  # a member of the configuration
    "gallery.deltas",  # operations of the core's sockets
    "gallery.snapshot",
    "gallery.head16",  # a member of LINK/1's status
    "link1.dropped",  # fields of the Wireshark dissector
    "link1.type",
}


def missing_modules(text: str) -> list[str]:
    """The dotted names in `text` that are neither a module nor a name at the top of one."""
    names = {name for name in _DOTTED.findall(text) if not _FILES.search(name)} - _NOT_MODULES
    return sorted(name for name in names if not is_there(name))


def is_there(name: str) -> bool:
    module, rest = name, ""
    while module not in MODULES:
        module, _, rest = module.rpartition(".")
    if not rest:
        return True
    top = rf"^(?:async )?(?:def|class) {rest}\b|^{rest}\b.*=|^(?:from|import) .*\b{rest}\b"
    return bool(re.search(top, MODULES[module].read_text(encoding="utf-8"), re.MULTILINE))


@pages
def test_every_module_that_a_page_names_exists(page: Path) -> None:
    assert missing_modules(page.read_text(encoding="utf-8")) == []


def test_every_module_that_a_docstring_names_exists() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    missing = {
        str(path.relative_to(REPOSITORY)): found
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, documented) and (found := missing_modules(ast.get_docstring(node) or ""))
    }
    assert missing == {}


def test_a_module_that_does_not_exist_is_found() -> None:
    assert missing_modules("see `device.nowhere` and tools.palmctl.main") == ["device.nowhere"]
