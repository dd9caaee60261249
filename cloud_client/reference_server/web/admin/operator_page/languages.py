"""The language of the page: chosen by a link, else the browser's."""

from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Final

import jinja2

from cloud_client.reference_server.web.admin.operator_page import words
from cloud_client.reference_server.web.admin.operator_page.portuguese import PORTUGUESE

LANGUAGES: Final[Mapping[str, Mapping[str, str]]] = {"en": {}, "pt-BR": PORTUGUESE}
_LONGEST_HEADER = 1000


@cache
def templates(language: str) -> jinja2.Environment:
    """The templates of every page on the admin bind; whatever a template leaves open is an error.

    `language`: one of LANGUAGES.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    say = partial(_said, LANGUAGES[language])
    environment.install_gettext_callables(say, _no_plurals, newstyle=True)  # type: ignore[attr-defined]
    environment.globals["language"] = language
    environment.filters |= {
        "clock": words.clock,
        "iso": words.iso,
        "ago": partial(words.ago, say=say),
        "until": partial(words.until, say=say),
        "number": lambda value: f"{value:,}".replace(",", "." if language == "pt-BR" else ","),
        "translated": say,
        "sentence": partial(words.sentence, say=say, point="," if language == "pt-BR" else "."),
    }
    return environment


def _said(known: Mapping[str, str], text: str) -> str:
    return known.get(text, text)


def _no_plurals(one: str, _many: str, _count: int) -> str:
    raise NotImplementedError(f"{one}: the pages have no message in two numbers")


def language_of(chosen: str | None, accepted: str | None) -> str:
    """The language for a reader: `chosen` earlier, else what `accepted` (RFC 9110 §12.5.4) likes best.

    >>> language_of(None, "fr;q=0.9, pt;q=0.8, en;q=0.1")
    'pt-BR'
    >>> language_of("en", "pt-BR")
    'en'
    """
    if chosen in LANGUAGES:
        return str(chosen)
    known = {word.partition("-")[0]: word for word in LANGUAGES}
    weighed = []
    for part in (accepted or "")[:_LONGEST_HEADER].lower().split(","):
        name, _, weight = "".join(part.split()).partition(";q=")
        language = known.get(name.partition("-")[0])
        try:
            if language and float(weight or 1) > 0:
                weighed.append((-float(weight or 1), language))
        except ValueError:
            continue
    return min(weighed, key=lambda item: item[0], default=(0.0, "en"))[1]
