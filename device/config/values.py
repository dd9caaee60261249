"""Parsers for the kinds of values in the configuration.

A parser takes the TOML value and the folder of relative paths, and returns the typed value. It raises
WrongValue, whose text names the kind of value found and never the value, because that may be a misplaced
password.
"""

import difflib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloud_client.contract import is_host, is_loopback
from device.platform.roles import LONGEST_PATH
from link1.members import NAME

MAX_SOCKET_PATH_BYTES = 107
"""unix(7): 108 bytes with the NUL."""
_LONGEST_SOCKET_NAME = f"/{LONGEST_PATH}"
_RESERVED_DEVICE_IDS = frozenset({"self", "register", "attest", ".", ".."})


def nearest(word: str, known: Iterable[str]) -> str:
    """` (did you mean …?)` when one of `known` is close to `word`, else an empty string."""
    close = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean {close[0]}?)" if close else ""


def describe_kind(value: object) -> str:
    """The kind of a TOML value in words, without the value."""
    kinds: tuple[tuple[type, str], ...] = (
        (bool, "true or false"),
        (str, "a string"),
        (int, "a whole number"),
        (float, "a number with a fraction"),
        (list, "a list"),
        (dict, "a table"),
    )
    return next((text for kind, text in kinds if isinstance(value, kind)), "a date or time")


class WrongValue(Exception):
    """The value does not fit the member; the text says what was found."""


@dataclass(frozen=True, slots=True)
class Parser:
    """`parse` with a description of the values it accepts."""

    expected: str
    parse: Callable[[Any, Path], Any]

    def __call__(self, value: Any, folder: Path) -> Any:
        return self.parse(value, folder)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise WrongValue(describe_kind(value))
    if not value:
        raise WrongValue("an empty string")
    if not value.isprintable():
        raise WrongValue("a string with control characters")
    return value


def _name(value: Any, _folder: Path) -> str:
    text = _text(value)
    if NAME.fullmatch(text) is None:
        raise WrongValue("a string with other characters" if len(text) <= 64 else "a longer string")
    return text


def _device_id(value: Any, folder: Path) -> str:
    text = _name(value, folder)
    if text in _RESERVED_DEVICE_IDS:
        raise WrongValue("a reserved name (self, register, attest, . and .. are part of the service's paths)")
    return text


def _path(value: Any, folder: Path) -> Path:
    return folder / Path(_text(value))


def _socket_folder(value: Any, folder: Path) -> Path:
    path = _path(value, folder)
    over = len(bytes(path)) + len(_LONGEST_SOCKET_NAME) - MAX_SOCKET_PATH_BYTES
    if over > 0:
        raise WrongValue(f"a path that is {over} bytes too long for a UNIX socket in it")
    return path


def _boolean(value: Any, _folder: Path) -> bool:
    if not isinstance(value, bool):
        raise WrongValue(describe_kind(value))
    return value


def _service_url(value: Any, _folder: Path) -> str:
    text = _text(value)
    try:
        parts = urlsplit(text)
        host = parts.hostname
        _ = parts.port
    except ValueError:
        raise WrongValue("a string that is not a URL") from None
    if parts.scheme not in ("https", "http") or not host:
        raise WrongValue("a string that is not an http or https URL")
    if not is_host(host):
        raise WrongValue("a URL whose host is neither a name nor an address")
    if parts.username or parts.password:
        raise WrongValue("a URL with a user name or a password in it (the device signs with its own key)")
    if parts.query or parts.fragment or parts.path not in ("", "/"):
        raise WrongValue("a URL with a path, a query or a fragment")
    if parts.scheme == "http" and not is_loopback(host):
        raise WrongValue("plain http to another machine (biometric data travels in TLS only)")
    return text.rstrip("/")


def _hands(value: Any, _folder: Path) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise WrongValue(describe_kind(value))
    if not value or any(hand not in ("L", "R") for hand in value) or len(set(value)) != len(value):
        raise WrongValue("another list")
    return tuple(value)


def integer(low: int, high: int) -> Parser:
    def parse(value: Any, _folder: Path) -> int:
        if type(value) is not int:
            raise WrongValue(describe_kind(value))
        if not low <= value <= high:
            raise WrongValue("a smaller one" if value < low else "a larger one")
        return value

    return Parser(f"a whole number from {low} to {high}", parse)


def one_of(*words: str) -> Parser:
    def parse(value: Any, _folder: Path) -> str:
        text = _text(value)
        if text not in words:
            close = difflib.get_close_matches(text.lower(), words, n=1)
            meant = f' (did you mean "{close[0]}"?)' if close else ""
            raise WrongValue(f"another string{meant}")
        return text

    return Parser(" or ".join(f'"{word}"' for word in words), parse)


def _of_form(expected: str, form: str) -> Parser:
    """A string of this form; a path after `file:` may be relative."""
    pattern = re.compile(form)

    def parse(value: Any, folder: Path) -> str:
        text = _text(value)
        if pattern.fullmatch(text) is None:
            raise WrongValue("a string of another form")
        scheme, _, rest = text.partition(":")
        return f"file:{folder / Path(rest)}" if scheme == "file" else text

    return Parser(expected, parse)


name = Parser("a string of 1 to 64 letters, digits and . _ : -", _name)
device_id = Parser(name.expected, _device_id)
path = Parser("a path as a string", _path)
socket_folder = Parser("a path as a string, short enough for UNIX sockets", _socket_folder)
boolean = Parser("true or false", _boolean)
camera_source = _of_form(
    '"/dev/video0", "v4l2:by-id/…" or "file:PATH" of a video or a folder',
    r"/dev/.*|v4l2:by-(id|path)/(?!\.\.?$)[^/]+|file:.+",
)
port = _of_form(
    'the path of a serial port or "usb:VID:PID[:SERIAL]" with 4 hexadecimal digits each',
    r"/.*|usb:[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}(:[\x21-\x7e]{1,126})?",
)
signer = _of_form(
    '"file:PATH", "credential:NAME" or a "pkcs11:" URI',
    r"file:.+|credential:[A-Za-z0-9][A-Za-z0-9._-]{0,127}|pkcs11:[^ ]+",
)
service_url = Parser('"https://HOST[:PORT]" (http for this machine itself)', _service_url)
hands = Parser('["L"], ["R"] or ["L", "R"]', _hands)
