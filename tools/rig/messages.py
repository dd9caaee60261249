"""The messages of `palmctl` and of what it shows, from the source into the catalogue (`make messages`).

`palmctl.po` is the source of the translation; `palmctl.mo` is made from it. A run takes new messages over,
drops those that are gone, keeps the translations and names the messages that have none.
"""

import ast
import errno
import json
import os
import re
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from string import Formatter
from typing import Final

import click

from tools.palmctl.groups import paragraphs
from tools.palmctl.language import DOMAIN, FOLDER
from tools.palmctl.main import ADDED_COMMANDS, COMMANDS, main

ROOT: Final = Path(__file__).parents[2]
PO: Final = FOLDER / "pt_BR/LC_MESSAGES" / f"{DOMAIN}.po"
MO: Final = PO.with_suffix(".mo")

PROSE: Final = (
    "device/camera",
    "device/config",
    "device/core/core.py",
    "device/core/gate.py",
    "device/core/running_wipe.py",
    "device/core/self_description.py",
    "device/core/housekeeping.py",
    "device/core/opening.py",
    "device/core/served_gallery.py",
    "device/core/update_watch.py",
    "device/core/wiped_device.py",
    "device/doctor",
    "tools/rig/health_advice.py",
    "device/journal/opening.py",
    "device/provisioning",
    "device/syncd/policy.py",
    "device/trust/attestation.py",
    "device/vision/capture.py",
    "device/vision/hand_weights.py",
    "device/wipe",
    "link1/plain_file.py",
    "link1/transport",
    "tools/kit/ports.py",
    "tools/palmctl/commands/enrol.py",
)
"""Here every string of several words is a message: findings, details, what to do."""

ERRORS: Final = (
    "cloud_client/client.py",
    "device/core/device_operations.py",
    "device/core/people_operations.py",
    "device/enrolment",
    "device/journal/rows.py",
    "device/journal/witness.py",
    "device/platform",
    "device/trust",
    "device/updates",
    "gallery/store.py",
    "models/manifest.py",
    "models/pad_network.py",
    "tools/palmctl",
)
"""Here the strings of several words in a `raise` are messages."""

MARKED: Final = ("tools/palmctl", "tools/rig/packaging/manual.py", "tools/rig/reference_pages.py")
"""Here the arguments of `_` and `marked` are messages."""

CLICK: Final = (
    "Commands",
    "Invalid value for {param_hint}: {message}",
    "Invalid value: {message}",
    "Missing argument",
    "Missing command.",
    "Missing option",
    "No such command {name!r}.",
    "No such option {name!r}.",
    "Option {name!r} does not take a value.",
    "Options",
    "Show the version and exit.",
    "Show this message and exit.",
    "Usage:",
    "default: {default}",
    "directory",
    "file",
    "path",
    "required",
    "{name} {filename!r} does not exist.",
    "{name} {filename!r} is a directory.",
    "{name} {filename!r} is a file.",
    "{name} {filename!r} is not readable.",
    "{value!r} is not a valid {number_type}.",
    "{value} is not in the range {range}.",
    "Got unexpected extra argument ({args})\0Got unexpected extra arguments ({args})",
    "Option {name!r} requires an argument.\0Option {name!r} requires {nargs} arguments.",
    "{value!r} is not {choice}.\0{value!r} is not one of {choices}.",
)
"""Messages of click that a technician sees; `\\0` is between singular and plural."""

SYSTEM: Final = (errno.EACCES, errno.ECONNREFUSED, errno.EHOSTUNREACH, errno.EIO, errno.EISDIR)
SYSTEM_MORE: Final = (errno.ENETUNREACH, errno.ENOENT, errno.ENOSPC, errno.ENOTDIR, errno.EPERM, errno.EROFS)
"""Errors of the system whose texts are part of messages."""

SINGLE: Final = ("optional",)
"""Single words that these places show."""

_LOGGING = frozenset({"debug", "info", "warning", "error", "exception", "critical"})
_PROSE = re.compile(
    r"(?!(?:SELECT|PRAGMA|INSERT|BEGIN|%)).*([A-Za-z]{2}[,;:.)]? +\S|\S +[(\[`]?[A-Za-z]{2})", re.DOTALL
)
_HEADER = (
    "Content-Type: text/plain; charset=UTF-8\nLanguage: pt_BR\nPlural-Forms: nplurals=2; plural=(n != 1);\n"
)
_ENTRY = re.compile(
    r'^msgid (?P<id>".*")\n(?:msgid_plural (?P<many>".*")\n)?'
    r'msgstr(?:\[0\])? (?P<one>".*")\n(?:msgstr\[1\] (?P<more>".*")\n)?',
    re.MULTILINE,
)


def collected() -> dict[str, str]:
    """{message: the file it is from}, in the order of the files and their lines."""
    found: dict[str, str] = {}
    for path in _files((*PROSE, *ERRORS, *MARKED)):
        place = path.relative_to(ROOT).as_posix()
        for message in _messages_of(ast.parse(path.read_text(encoding="utf-8")), place):
            found.setdefault(message, place)
    for message in _helps():
        found.setdefault(message, "help")
    for message in CLICK:
        found.setdefault(message, "click")
    for word in SINGLE:
        found.setdefault(word, "words")
    for number in (*SYSTEM, *SYSTEM_MORE):
        found.setdefault(os.strerror(number), "system")
    return found


def _files(places: Iterable[str]) -> list[Path]:
    paths = {ROOT / place for place in places}
    return sorted({file for path in paths for file in (path.rglob("*.py") if path.is_dir() else (path,))})


def _is_in(place: str, places: Iterable[str]) -> bool:
    return any(place == name or place.startswith(f"{name}/") for name in places)


def _messages_of(tree: ast.Module, place: str) -> Iterator[str]:
    taken: set[int] = set()
    skipped = {id(part) for node in ast.walk(tree) for part in _no_messages(node)}
    raised = {
        id(part)
        for node in ast.walk(tree)
        if (error := _error_of(node)) is not None
        for part in ast.walk(error)
    }
    in_prose, in_errors = _is_in(place, PROSE), _is_in(place, ERRORS)
    explicit = {
        id(argument)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("_", "marked")
        for argument in node.args
    }
    nodes = (
        node for node in ast.walk(tree) if isinstance(node, ast.Constant | ast.JoinedStr | ast.AugAssign)
    )
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        if id(node) in taken or id(node) in skipped:
            continue
        if not isinstance(node, ast.Constant):
            taken |= _inside(node)
        message = message_of(node)
        if message is None:
            continue
        prose = in_prose or (in_errors and id(node) in raised)
        if id(node) in explicit or (prose and _PROSE.match(message)):
            yield message


def _error_of(node: ast.AST) -> ast.expr | None:
    """What is raised, or made by a function whose caller raises it."""
    match node:
        case ast.Raise(exc=error):
            return error
        case ast.Return(value=ast.Call(func=ast.Name(id=name)) as made) if name[:1].isupper():
            return made
    return None


def _inside(node: ast.AST) -> set[int]:
    """The parts of a message that are none themselves; a string in one of its values is one."""
    match node:
        case ast.AugAssign(value=ast.Constant() | ast.JoinedStr() as text):
            return {id(text)} | _inside(text)
        case ast.JoinedStr(values=parts):
            return {id(part) for part in parts}
    return set()


def _no_messages(node: ast.AST) -> Iterator[ast.AST]:
    """Docstrings, lines of the log, and format specifications."""
    match node:
        case ast.Expr(value=ast.Constant() as text):
            yield text
        case ast.Call(func=ast.Attribute(attr=name)) if name in _LOGGING:
            yield from (part for argument in node.args for part in ast.walk(argument))
        case ast.FormattedValue(format_spec=ast.expr() as spec):
            yield from ast.walk(spec)


def message_of(node: ast.AST) -> str | None:
    """The message of a string, or of an f-string with a named place for each value."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr():
            return "".join(_parts(node))
        case (
            ast.AugAssign(target=ast.Name(id=name), value=ast.Constant(value=str()))
            | ast.AugAssign(target=ast.Name(id=name), value=ast.JoinedStr())
        ):
            more = message_of(node.value)
            return f"{{{name}}}{more}"
    return None


def _parts(text: ast.JoinedStr) -> Iterator[str]:
    names: dict[str, str] = {}
    for part in text.values:
        match part:
            case ast.Constant(value=str(words)):
                yield words.replace("{", "{{").replace("}", "}}")
            case ast.FormattedValue():
                source = ast.unparse(part.value)
                if source not in names:
                    name = _name_of(part.value)
                    count = sum(given.rstrip("0123456789") == name for given in names.values())
                    names[source] = f"{name}{count + 1}" if count else name
                spec = (
                    "".join(_parts(part.format_spec)) if isinstance(part.format_spec, ast.JoinedStr) else ""
                )
                yield f"{{{names[source]}{f':{spec}' if spec else ''}}}"


def _name_of(value: ast.expr) -> str:
    """A word for the value: the name in the code, or that of the first name in it."""
    for part in ast.walk(value):
        match part:
            case ast.Attribute(attr=name) | ast.Name(id=name):
                return name.strip("_").rstrip("0123456789").lower() or "value"
            case ast.Constant(value=str(name)) if name.isidentifier():
                return name
    return "value"


def _helps() -> Iterator[str]:
    for _, line in (COMMANDS | ADDED_COMMANDS).values():
        yield line
    yield from _help_of(main)
    for name in COMMANDS:
        command = main.get_command(click.Context(main), name)
        if command is not None:
            yield from _help_of(command)


def _help_of(command: click.Command) -> Iterator[str]:
    yield from paragraphs(command.help or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option) and parameter.help:
            yield parameter.help
    if isinstance(command, click.Group):
        for child in command.commands.values():
            yield from _help_of(child)


def read_po(text: str) -> dict[str, str]:
    """{message: translation}; `\\0` is between singular and plural."""
    found = {}
    for entry in _ENTRY.finditer(text):
        words = {name: json.loads(value) for name, value in entry.groupdict().items() if value is not None}
        if words["id"]:
            key = "\0".join(words[name] for name in ("id", "many") if name in words)
            found[key] = "\0".join(words[name] for name in ("one", "more") if name in words)
    return found


def po_text(messages: dict[str, str], translations: dict[str, str]) -> str:
    """The catalogue's source: each message with the file it is from."""
    out, place = [f'msgid ""\nmsgstr {_quoted(_HEADER)}\n'], ""
    for message, origin in messages.items():
        head = f"#: {origin}\n" if origin != place else ""
        place = origin
        translation = translations.get(message, "")
        one, _, many = message.partition("\0")
        if many:
            first, _, second = translation.partition("\0")
            out.append(
                f"{head}msgid {_quoted(one)}\nmsgid_plural {_quoted(many)}\n"
                f"msgstr[0] {_quoted(first)}\nmsgstr[1] {_quoted(second)}\n"
            )
        else:
            out.append(f"{head}msgid {_quoted(one)}\nmsgstr {_quoted(translation)}\n")
    return "\n".join(out)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def mo_bytes(translations: dict[str, str]) -> bytes:
    """The compiled catalogue, little-endian (gettext's manual, "The Format of GNU MO Files")."""
    rows = [
        (key.encode(), text.encode()) for key, text in sorted({"": _HEADER, **translations}.items()) if text
    ]
    rows.sort()
    at = 28 + 16 * len(rows)
    tables, data = [b"", b""], b""
    for column in (0, 1):
        for row in rows:
            tables[column] += struct.pack("<2I", len(row[column]), at + len(data))
            data += row[column] + b"\0"
    head = struct.pack("<7I", 0x950412DE, 0, len(rows), 28, 28 + 8 * len(rows), 0, 28 + 16 * len(rows))
    return head + tables[0] + tables[1] + data


def wrong_places(message: str, translation: str) -> set[str]:
    """The places for values that only one of them has."""
    return _places(message) ^ _places(translation)


def _places(text: str) -> set[str]:
    try:
        return {name for _, name, _, _ in Formatter().parse(text) if name}
    except ValueError:  # a message that is no f-string may hold a brace
        return set()


def run() -> int:
    """Renew both files; 1 where a message has no translation or another one's places."""
    messages = collected()
    before = read_po(PO.read_text(encoding="utf-8")) if PO.exists() else {}
    translations = {message: before[message] for message in messages if before.get(message)}
    PO.parent.mkdir(parents=True, exist_ok=True)
    PO.write_text(po_text(messages, translations), encoding="utf-8")
    MO.write_bytes(mo_bytes(translations))
    wrong = [message for message in messages if message not in translations]
    wrong += [message for message, translation in translations.items() if wrong_places(message, translation)]
    for message in wrong:
        print(
            f"{messages[message]}: {message!r} is not translated, or not with the same places",
            file=sys.stderr,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run())
