"""Consent: the terms that a person is shown before any capture, and the purposes that they accept.

The terms are texts in a folder, `<terms_version>.<language>.txt`: the first line is the title, empty lines
separate paragraphs, and the first line of a paragraph with several is its heading. A session whose terms are
not in the folder is not begun, because they cannot be shown.
"""

import logging
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final, Literal

from device.errors import EnrolmentRefused
from device.values.control import TermsShown
from link1.errors import reason_of
from link1.members import NAME
from link1.plain_file import read_plain_file
from link1.wire import WireObject

Purpose = Literal["enrollment", "identification", "dataset_collection"]

REQUIRED: Final[tuple[Purpose, ...]] = ("enrollment", "identification")
OPTIONAL: Final[tuple[Purpose, ...]] = ("dataset_collection",)
LANGUAGES: Final = ("pt-BR", "en")
"""In the order of preference; the first replaces a missing one."""

_MAX_TERMS_BYTES: Final = 32 * 1024
_LANGUAGE = re.compile(r"[A-Za-z]{2}(-[A-Za-z]{2})?")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asked:
    """The question on the screen: the version of the terms, and the purposes beyond the required ones."""

    terms_version: str
    optional: tuple[Purpose, ...] = ()

    def accepted(
        self, terms_version: str, purposes: Collection[str], at_ms: int
    ) -> tuple["AcceptedPurpose", ...]:
        """The accepted purposes, at `at_ms` (epoch). Raises EnrolmentRefused when they were not asked."""
        if terms_version != self.terms_version:
            raise EnrolmentRefused(
                "other_terms", f"the terms on the screen are {self.terms_version}; show those and ask again"
            )
        if not set(REQUIRED) <= set(purposes) <= {*REQUIRED, *self.optional}:
            allowed = f", and may be {', '.join(self.optional)} as well" if self.optional else ""
            raise EnrolmentRefused(
                "other_purposes", f"the purposes agreed to must be {' and '.join(REQUIRED)}{allowed}"
            )
        every = (*REQUIRED, *self.optional)
        return tuple(
            AcceptedPurpose(purpose, terms_version, at_ms) for purpose in every if purpose in purposes
        )


class AcceptedPurpose(WireObject):
    """One purpose, accepted on the screen of this device."""

    constants: ClassVar = {"method": "device_screen"}
    purpose: Purpose
    terms_version: str
    accepted_at_ms: int


def shipped_terms_dir() -> Path:
    """The texts shipped with the program: version v1."""
    return Path(__file__).parent / "terms"


@dataclass(frozen=True, slots=True)
class TermsFolder:
    """The texts that a device can show. `usual`: the version for a session that does not name one."""

    folder: Path
    usual: str

    def has(self, terms_version: str) -> bool:
        """Whether there is a text of this version in any language."""
        return self.read(terms_version, LANGUAGES[0]) is not None

    def read(self, terms_version: str, language: str) -> TermsShown | None:
        """The text in `language`, else in another available one; None without any."""
        if NAME.fullmatch(terms_version) is None:
            return None
        wanted = [language] if _LANGUAGE.fullmatch(language) else []
        for candidate in (*wanted, *LANGUAGES):
            path = self.folder / f"{terms_version}.{candidate}.txt"
            try:
                text = read_plain_file(path, _MAX_TERMS_BYTES).decode("utf-8-sig")
            except FileNotFoundError:
                continue
            except (OSError, UnicodeDecodeError) as error:
                _log.warning("terms in %s cannot be shown: %s", path, reason_of(error))
                continue
            # Line by line: editors end lines with \r\n and leave spaces in empty ones.
            title, _, rest = "\n".join(line.rstrip() for line in text.strip().splitlines()).partition("\n")
            paragraphs = tuple(part.strip() for part in rest.split("\n\n") if part.strip())
            if title and paragraphs:
                return TermsShown(terms_version, candidate, title, paragraphs)
            _log.warning("terms in %s cannot be shown: expected a title and a paragraph under it", path)
        return None
