"""`palmctl enrol`: a person enrols before this device, and this terminal is the screen.

The terms are read and accepted here; the guidance is one line that changes.
"""

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import click

from device.config.config import config_path, load_config
from device.errors import IpcRefused
from device.platform.ipc import Ask, ask_core
from device.values.control import (
    CodeTyped,
    ScreenAnswer,
    ScreenAsked,
    TermsAccepted,
    TermsAnswer,
    TermsAsked,
    TermsShown,
)
from device.values.status import EnrolmentShown
from tools.palmctl.finite_range import FiniteRange
from tools.palmctl.language import translated as _
from tools.palmctl.live_terminal import is_live
from tools.palmctl.pages import WORDS

_ASK_EVERY_S: Final = 5.0
_OVER = frozenset({"idle", "done", "review", "failed"})
_CAPTURES: Final = frozenset({"show_hand", "remove_hand"})
_YES: Final = {"pt-BR": "aceito", "en": "accept"}
_WIDEST: Final = 88
_UNKNOWN_COLUMNS: Final = 80


@click.command()
@click.option("--config", type=click.Path(path_type=Path), help="Configuration file; default as for palmd.")
@click.option(
    "--code", help="The session's short code, such as 4F7K-9QRT; without it, its QR code is awaited."
)
@click.option(
    "--language",
    type=click.Choice(["pt-BR", "en"]),
    default="pt-BR",
    show_default=True,
    help="What the person reads: the terms and the guidance.",
)
@click.option(
    "--accept-terms",
    metavar="VERSION",
    help="For tests and demonstrations, where no person is: accept terms of this version unread.",
)
@click.option(
    "--wait-s",
    type=FiniteRange(1, 3600),
    default=900.0,
    show_default=True,
    help="How long to wait for it all; what is in progress then is cancelled.",
)
@click.option("--cancel", is_flag=True, help="Cancel the enrolment in progress, started here or elsewhere.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def enrol(
    *,
    config: Path | None,
    code: str | None,
    language: str,
    accept_terms: str | None,
    wait_s: float,
    cancel: bool,
    as_json: bool,
) -> None:
    """Enrol a person: the session's code, the terms shown and accepted here, both palms, the upload.

    Ctrl-C cancels: what was captured is overwritten, and the session's code stays valid.

    Exit code 0: completed, or held for an operator's review. 1: failed or refused. 3: no daemon answers.
    4: this user may not ask it.
    """
    if accept_terms is None and not cancel and not sys.stdin.isatty():
        raise click.UsageError(
            "the person reads and accepts the terms on a terminal, and this is none; use palmctl totem, or, "
            "in a test, --accept-terms VERSION"
        )
    terminal = EnrolmentTerminal(
        partial(ask_core, load_config(config_path(config)).totem_socket),
        language=language,
        accept_unread=accept_terms,
        tell=lambda text: click.echo(text, err=True),
        live=is_live(sys.stderr),
    )
    try:
        ended = terminal.cancel() if cancel else terminal.run(code, wait_s)
    except IpcRefused as error:
        ended = EnrolmentEnd("refused", error.code, _(str(error)))
    if as_json:
        click.echo(json.dumps({"status": ended.status, "code": ended.code}))
    # What is refused is an error of the technician's; everything else is said to the person.
    click.echo(("palmctl: " if ended.status == "refused" else "") + ended.text, err=True)
    sys.exit(0 if ended.good else 1)


@dataclass(frozen=True, slots=True)
class EnrolmentEnd:
    """How it ended. `status`: completed, review, failed, refused, cancelled; `code`: why, if it failed."""

    status: str
    code: str | None
    text: str

    @property
    def good(self) -> bool:
        """Whether the service has taken it, or what was asked is done."""
        return self.status in ("completed", "review", "cancelled")


class EnrolmentTerminal:
    """One enrolment. `accept_unread`: terms of this version are accepted without being shown."""

    def __init__(
        self,
        ask: Ask,
        *,
        language: str,
        accept_unread: str | None,
        tell: Callable[[str], None],
        live: bool,
    ) -> None:
        self._ask = ask
        self._language = language
        self._words = WORDS[language]
        self._accept_unread = accept_unread
        self._tell = tell
        self._live = live
        self._line = ""
        self._typed = False

    def cancel(self) -> EnrolmentEnd:
        """Cancel what is in progress. Raises IpcRefused where nothing is."""
        if self._state(after=0, wait_ms=0).state.step in _OVER:
            raise IpcRefused("idle", "no enrolment is in progress")
        self._ask("enrolment.cancel")
        return EnrolmentEnd(
            "cancelled", None, _("cancelled; what was captured is overwritten, its code stays valid")
        )

    def run(self, code: str | None, wait_s: float) -> EnrolmentEnd:
        """From the code to the end. Raises IpcRefused and IpcUnreachable; Ctrl-C cancels and is raised on."""
        told = self._state(after=0, wait_ms=0)
        if told.unready:
            raise IpcRefused("not_ready", f"no palm can be captured now: {told.unready}")
        if told.state.step not in _OVER:
            raise IpcRefused(
                "busy", "another enrolment is in progress; see it with palmctl status, end it with --cancel"
            )
        seq, self._typed = told.seq, code is not None
        if code is None:
            self._tell(self._words["welcome_how"])
        else:
            self._ask("enrolment.begin", **CodeTyped(code).to_obj())
        try:
            return self._follow(seq, time.monotonic() + wait_s)
        except BaseException:
            self._ask("enrolment.cancel")
            raise
        finally:
            self._close_line()

    def _follow(self, first: int, until_s: float) -> EnrolmentEnd:
        seq, was_blind = first, False
        while True:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                self._ask("enrolment.cancel")
                return EnrolmentEnd(
                    "failed", "no_answer", _("nothing more happened in this time; it is cancelled")
                )
            wait_ms = round(1000 * min(_ASK_EVERY_S, left_s))
            told = self._state(after=seq, wait_ms=wait_ms)
            awaits_code = told.seq == first
            blind = told.unready != "" and (awaits_code or told.state.step in _CAPTURES)
            if (told.seq, blind) == (seq, was_blind):
                continue
            seq, was_blind = told.seq, blind
            if blind or awaits_code:
                words = self._words
                self._show(f"{words['unready']}. {words['unready_how']}" if blind else words["welcome_how"])
                continue
            ended = self._step(told.state, online=told.online)
            if ended is not None:
                return ended

    def _state(self, *, after: int, wait_ms: int) -> ScreenAnswer:
        asked = ScreenAsked(after, wait_ms).to_obj()
        return ScreenAnswer.from_obj(self._ask("enrolment.state", timeout_s=_ASK_EVERY_S + 5, **asked).header)

    def _step(self, state: EnrolmentShown, *, online: bool) -> EnrolmentEnd | None:
        words, step = self._words, state.step
        if state.consent is not None:
            return self._consent(state.consent.terms_version, list(state.consent.optional))
        if step in ("done", "review"):
            self._show(words[step])
            return EnrolmentEnd("completed" if step == "done" else "review", None, words[f"{step}_how"])
        if step == "failed":
            code = state.code or ""
            return EnrolmentEnd("failed", code, self._why(code))
        capture = state.capture
        if step == "show_hand" and capture is not None:
            marks = "●" * capture.captured + "○" * (capture.wanted - capture.captured)
            hint = words.get(f"hint_{capture.hint}", words["hint_none"])
            self._show(f"{words[f'show_{capture.hand}']}  {marks}  {hint}")
        elif step == "sending" and not online:
            self._show(words["sending_offline"])
        else:
            self._show(words[step])
        return None

    def _why(self, code: str) -> str:
        """Why it ended, as far as a person needs to know."""
        if self._typed and code == "enrollment_session_invalid":
            # The service does not distinguish a wrong code from an expired one.
            return self._words["why_typed_code"]
        return self._words.get(f"why_{code}", self._words["why_other"])

    def _consent(self, version: str, optional: list[str]) -> EnrolmentEnd | None:
        """Show the terms and ask; None when they were accepted."""
        if self._accept_unread is not None and self._accept_unread != version:
            self._ask("enrolment.cancel")
            return EnrolmentEnd(
                "refused",
                "other_terms",
                _(f"--accept-terms names other terms than the session, {version}"),
            )
        asked = TermsAsked(version, self._language).to_obj()
        answer = TermsAnswer.from_obj(self._ask("enrolment.terms", **asked).header)
        purposes = list(answer.required)
        if self._accept_unread is None:
            chosen = self._read_and_ask(answer.terms, purposes, optional)
            if chosen is None:
                self._ask("enrolment.refuse")
                return EnrolmentEnd("failed", "consent_refused", self._why("consent_refused"))
            purposes = chosen
        self._ask("enrolment.accept", **TermsAccepted(version, tuple(purposes)).to_obj())
        return None

    def _read_and_ask(self, terms: TermsShown, required: list[str], optional: list[str]) -> list[str] | None:
        words, width = self._words, min(_WIDEST, shutil.get_terminal_size().columns)
        self._close_line()
        self._tell("\n" + click.style(terms.title, bold=True) + f"  ({terms.terms_version})\n")
        for paragraph in terms.paragraphs:
            self._tell("\n".join(textwrap.fill(line, width) for line in paragraph.splitlines()) + "\n")
        self._tell(words["you_agree"])
        for purpose in required:
            self._tell(f"  • {words[purpose]}")
        yes = _YES[self._language]
        said = click.prompt(f"\n«{yes}»?", default="", show_default=False, err=True)
        if str(said).strip().lower() != yes:
            return None
        more = [purpose for purpose in optional if click.confirm(words[purpose], default=False, err=True)]
        return [*required, *more]

    def _show(self, text: str) -> None:
        """One line: on a terminal it replaces the line before, elsewhere it is printed when it changes."""
        if text == self._line:
            return
        if self._live:
            click.echo(f"{_back_over(self._line)}{text}", nl=False, err=True)
        else:
            self._tell(text)
        self._line = text

    def _close_line(self) -> None:
        if self._live and self._line:
            click.echo("", err=True)
        self._line = ""


def _back_over(line: str) -> str:
    """To the beginning of `line`, which may fill several rows of the terminal, with nothing after it."""
    columns = os.get_terminal_size(sys.stderr.fileno()).columns or _UNKNOWN_COLUMNS
    rows_above = max(0, len(line) - 1) // columns
    return (f"\x1b[{rows_above}A" if rows_above else "") + "\r\x1b[J"
