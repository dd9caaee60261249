"""Taking out of a text what must not leave a device: keys, vectors, tokens, and personal data.

The daemons never log such things. This is the second wall, for what a driver, a library or a person wrote.
It errs on the side of taking out: what looks like an identifier goes, unless it is one of those named as
harmless (the device's own key ids, its tenant, its serial port).

    scrub = Scrubber(keep={"857666d8f8cf39614cc80be69c7f74d9"})
    scrub.text("token=abc…")  →  "token=[removed]"
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

REMOVED: Final = "[removed]"

SENSITIVE: Final = frozenset(
    {
        "api_key",
        "authorization",
        "body_b64",
        "box_b64",
        "cpf",
        "ct_b64",
        "data_b64",
        "document",
        "external_ref",
        "fingerprint_b64",
        "nonce",
        "onboard_ref",
        "passphrase",
        "password",
        "payload",
        "phone",
        "pin",
        "probe",
        "qr",
        "secret",
        "seed",
        "short_code",
        "sig_b64",
        "subject",
        "subject_id",
        "subject_ref",
        "template",
        "template_id",
        "templates_b64",
        "token",
        "txn_id",
        "vector",
        "vector_b64",
        "verdict_id",
        "verdict_ref",
    }
)
"""Members that are taken out with their value, in objects and where a text says `name=value`."""

_SPOKEN: Final = "|".join(sorted(SENSITIVE - {"subject", "document", "pin", "qr", "template"}))
_RULES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"(?i)\b(bearer|provisioning|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {REMOVED}"),
    # The PIN in a pkcs11: URI (RFC 7512), where [attest] signer takes none and people write one
    (re.compile(r"""(?i)(\bpin-value=)[^&\s"]+"""), rf"\1{REMOVED}"),
    # The look behind and the possessive run: each run of such characters is read once, however long it is.
    (re.compile(r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]++@[A-Za-z0-9.-]+\.[A-Za-z]{2,}"), REMOVED),
    # CPF, with or without its points; telephone numbers
    (re.compile(r"(?<!\d)\d{3}[. ]?\d{3}[. ]?\d{3}[-. ]?\d{2}(?!\d)"), REMOVED),
    (re.compile(r"\+\d[\d ()-]{8,}\d"), REMOVED),
    # Base64 in one piece: vectors, keys, signatures, sealed records
    (re.compile(r"(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{40,}={0,2}"), REMOVED),
    # name=value, name: value, "name": "value with spaces"; last: the others know unquoted spaces
    (
        re.compile(
            rf"""(?i)(["']?\b(?:{_SPOKEN})\b["']?\s*[=:]\s*)"""
            r"""("[^"]*"|'[^']*'|(?:\[removed\]|[^\s,;}\])])+)"""
        ),
        rf"\1{REMOVED}",
    ),
)
_IDENTIFIER: Final = re.compile(
    r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b"
    r"|(?<![A-Za-z0-9_-])(?=[A-Za-z_-]*\d)[A-Za-z0-9_-]{24,}"
)
"""UUIDs, hexadecimal ids and digests, tokens: 24 characters or more in one piece, with a digit among them."""


_SMALL: Final = 1_000_000
_CPF_DIGITS: Final = 11


@dataclass(frozen=True, slots=True)
class Scrubber:
    """`keep`: identifiers that may stay.

    >>> Scrubber().value({"why": "he sent 01JD3ZK5Q8M4T7V2X9B6C1N0P4", "seq": 7})
    {'why': 'he sent [removed]', 'seq': 7}
    """

    keep: frozenset[str] = frozenset()

    def text(self, text: str) -> str:
        """The text without what must not leave."""
        for pattern, put in _RULES:
            text = pattern.sub(partial(self._unless_kept, put=put), text)
        return _IDENTIFIER.sub(partial(self._unless_kept, put=REMOVED), text)

    def value(self, value: object) -> object:
        """The same for an object of JSON: sensitive members lose their value, every text is scrubbed."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, dict):
            return {self.text(str(name)): self._member(name, item) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        if isinstance(value, int) and len(str(abs(value))) == _CPF_DIGITS:
            return REMOVED
        return value

    def _member(self, name: object, item: object) -> object:
        # `vector` is also a stage of recognition that takes microseconds; nothing sensitive is a short number
        harmless = item is None or (isinstance(item, int) and abs(item) < _SMALL)
        return self.value(item) if name not in SENSITIVE or harmless else REMOVED

    def lines(self, lines: Iterable[str]) -> str:
        return "".join(f"{self.text(line)}\n" for line in lines)

    def _unless_kept(self, found: re.Match[str], *, put: str) -> str:
        return found.group() if found.group() in self.keep else found.expand(put)
