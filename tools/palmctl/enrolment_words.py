"""What people read while they enrol, in the languages of the terms; for the totem's page and the terminal."""

import json
from pathlib import Path
from typing import Final

WORDS: Final[dict[str, dict[str, str]]] = json.loads(
    Path(__file__).with_name("pages").joinpath("static", "words.json").read_bytes()
)
"""{language: {name: text}}. The first language is the one that a page begins in."""


def hint_word(language: str, hint: str | None) -> str:
    """What to do next, in one sentence."""
    words = WORDS[language]
    return words.get(f"hint_{hint}", words["hint_none"])


def failure_word(language: str, code: str, *, typed: bool = False) -> str:
    """Why it ended, as far as a person needs to know. `typed`: the code came from a person's fingers."""
    words = WORDS[language]
    if typed and code == "enrollment_session_invalid":
        return words["why_typed_code"]  # the service does not distinguish a wrong code from an expired one
    return words.get(f"why_{code}", words["why_other"])
