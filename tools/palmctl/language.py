"""The language that a person reads: English as the code has it, or Portuguese from the catalogue.

1. The language is gettext's: LANGUAGE, LC_ALL, LC_MESSAGES, LANG; `palmctl --lang` is above them.
2. A program reads English: with `--json` nothing is translated. Codes, names of checks, health words, log
   lines and exit codes are the same in every language.
3. Texts arrive here complete and in English, from the daemons too, and are translated when they are shown.
   The catalogue's messages have the places of an f-string (`{port} is absent`): a text that fits such a
   message is shown in the words of its translation, with the same values.

`make messages` collects the messages from the source.
"""

import gettext
import os
import re
import struct
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from string import Formatter
from typing import Final

LANGUAGES: Final = ("pt-BR", "en")
DOMAIN: Final = "palmctl"
FOLDER: Final = Path(__file__).parent / "locale"

_LONGEST = 1000
"""Characters of a text that is compared with messages: matching takes more than linear time."""
_FEWEST_LETTERS = 6
_MOST_PLACES = 4
_NUMERIC = re.compile(r"[,.0-9]*[,dfg]")
_SWAPPED = str.maketrans(",.", ".,")


@dataclass(frozen=True)
class MessageForm:
    """A message with places for values, and its translation."""

    message: str
    translation: str

    @cached_property
    def literals(self) -> tuple[str, ...]:
        """The words between the values, in order."""
        return tuple(text for text, *_ in Formatter().parse(self.message) if text)

    @cached_property
    def numbers(self) -> frozenset[str]:
        """The places that hold a number."""
        parts = Formatter().parse(self.message)
        return frozenset(name for _, name, spec, _ in parts if name and spec and _NUMERIC.fullmatch(spec))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        seen, out = set[str](), ""
        for text, name, _, _ in Formatter().parse(self.message):
            out += re.escape(text)
            if name:
                value = r"-?[\d.,]+" if name in self.numbers else r".*?"
                out += f"(?P={name})" if name in seen else f"(?P<{name}>{value})"
                seen.add(name)
        return re.compile(out, re.DOTALL)

    def values(self, text: str) -> dict[str, str] | None:
        """The values in `text`; None when it is not this message."""
        at = 0
        for literal in self.literals:
            at = text.find(literal, at)
            if at < 0:
                return None
            at += len(literal)
        found = self._pattern.fullmatch(text)
        return None if found is None else found.groupdict()


class MessageCatalogue:
    """Translations of one language. `messages`: {English: translation}."""

    def __init__(self, messages: dict[str, str]) -> None:
        self._messages = messages
        forms = [MessageForm(*item) for item in messages.items() if "{" in item[0]]
        forms = [form for form in forms if sum(map(len, form.literals)) >= _FEWEST_LETTERS]
        # The message that says most itself is the closest.
        self._forms = sorted(forms, key=lambda form: -sum(map(len, form.literals)))

    def translated(self, text: str) -> str:
        """`text` in this language; as it is where no message fits."""
        whole = self._whole(text)
        if whole is not None:
            return whole
        if "\n" in text:
            return "\n".join(map(self.translated, text.split("\n")))
        if text.startswith(" "):
            words = text.lstrip(" ")
            return " " * (len(text) - len(words)) + self.translated(words)
        parts = text.split(": ", _MOST_PLACES)
        for count in range(1, len(parts)):  # "file:line: member: what is wrong there"
            told = self._whole(": ".join(parts[count:]))
            if told is not None:
                return ": ".join((*parts[:count], told))
        sentences = text.split("; ")
        return "; ".join(map(self.translated, sentences)) if len(sentences) > 1 else text

    def _whole(self, text: str) -> str | None:
        """The translation of the message that `text` is; None for another text."""
        if text in self._messages:
            return self._messages[text]
        if len(text) > _LONGEST:
            return None
        for form in self._forms:
            values = form.values(text)
            if values is not None:
                shown = {name: self._value(form, name, value) for name, value in values.items()}
                return form.translation.format(**shown)
        return None

    def _value(self, form: MessageForm, name: str, value: str) -> str:
        if name in form.numbers:
            return value.translate(_SWAPPED)
        return self.translated(value) if " " in value else value  # a single word is a name or a code


def read_catalogue(path: Path) -> MessageCatalogue:
    """The messages of a compiled catalogue, as `msgfmt` makes it in this machine's byte order."""
    data = path.read_bytes()
    _, _, count, ids, strings = struct.unpack_from("=5I", data)

    def text(table: int, number: int) -> str:
        length, offset = struct.unpack_from("=2I", data, table + 8 * number)
        return data[offset : offset + length].decode("utf-8")

    return MessageCatalogue({text(ids, number): text(strings, number) for number in range(1, count)})


@cache
def catalogue_of(language: str) -> MessageCatalogue:
    """The catalogue of one of LANGUAGES; English has no translations."""
    path = gettext.find(DOMAIN, str(FOLDER), [language.replace("-", "_")])
    return MessageCatalogue({}) if path is None else read_catalogue(Path(path))


_in_force: MessageCatalogue | None = None


def choose_language(wanted: str | None, *, as_json: bool) -> None:
    """Take the language for this process: `wanted` is one of LANGUAGES, or None for the environment's."""
    global _in_force  # noqa: PLW0603 (as gettext's own: a process has one language)
    if wanted is not None:
        os.environ["LANGUAGE"] = wanted.replace("-", "_")
    path = None if as_json else gettext.find(DOMAIN, str(FOLDER))
    _in_force = None if path is None else read_catalogue(Path(path))
    # click's own words ("Usage", "Missing option") come through gettext as well.
    gettext.bindtextdomain(DOMAIN, str(FOLDER))
    gettext.textdomain("messages" if path is None else DOMAIN)


def translated(text: str) -> str:
    """`text` in the language of this process."""
    return text if _in_force is None else _in_force.translated(text)


def is_english() -> bool:
    """Whether nothing is translated in this process."""
    return _in_force is None


def marked(text: str) -> str:
    """`text` itself: marks a constant for `make messages` that is translated where it is shown."""
    return text
