"""A key in a PKCS#11 token, named by a `pkcs11:` URI (RFC 7512)."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes

from link1.errors import FormatError
from link1.plain_file import read_plain_file


@dataclass(frozen=True, slots=True)
class TokenKey:
    """Which key, the module that reaches its token, and the file with the token's PIN."""

    module: Path
    pin_file: Path | None
    token: str | None
    serial: str | None
    label: str | None
    id: bytes | None

    @classmethod
    def parse(cls, uri: str) -> "TokenKey":
        """Read a `pkcs11:` URI. Raises FormatError."""
        path, _, query = uri.removeprefix("pkcs11:").partition("?")
        found = _attributes(path, ";") | _attributes(query, "&")
        unknown = found.keys() - {"token", "serial", "object", "id", "type", "module-path", "pin-source"}
        if "pin-value" in unknown:
            raise FormatError(
                "a URI is no place for a PIN; put the PIN into a file of mode 0600 and name it in pin-source"
            )
        if unknown or "module-path" not in found or not {"object", "id"} & found.keys():
            raise FormatError(
                "expected pkcs11:token=…;object=…?module-path=…&pin-source=file:… with "
                f"token, serial, object, id and these two alone; found {', '.join(sorted(found)) or 'none'}"
            )
        pin = found.get("pin-source")
        return cls(
            module=Path(unquote(found["module-path"])),
            pin_file=None if pin is None else Path(unquote(pin).removeprefix("file:")),
            token=_text(found, "token"),
            serial=_text(found, "serial"),
            label=_text(found, "object"),
            id=unquote_to_bytes(found["id"]) if "id" in found else None,
        )

    def pin(self) -> str | None:
        """The PIN out of its file. Raises OSError, UnicodeDecodeError."""
        if self.pin_file is None:
            return None
        return read_plain_file(self.pin_file, 1024).decode("utf-8").strip()


def _attributes(text: str, between: str) -> dict[str, str]:
    pairs = (part.partition("=") for part in text.split(between) if part)
    return {name: value for name, _, value in pairs}


def _text(found: Mapping[str, str], name: str) -> str | None:
    return unquote(found[name]) if name in found else None
