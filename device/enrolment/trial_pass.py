"""A passage shown to a technician: the next real one, or a rehearsal that signs nothing.

A rehearsal runs the whole recognition on the next hand and reports what the verdict would be. It is not a
passage: nothing is signed, numbered, written or sent, and a validator that has armed a request meanwhile gets
a verdict on the same hand.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from device.passage.decision import Attempt, Outcome, score_q_of
from device.passage.engine import CAPTURE_WINDOW_MS
from device.trust.policy import Policy
from device.values.control import Rehearsed, TrialPassage, VerdictSent
from device.values.recognition import Sighting
from device.values.status import VerdictSummary

GONE_AFTER_MS: Final = 400
"""A hand not seen for so long has left."""


class TrialPasses:
    """Belongs to the loop. `policy` is the one in force; `on_change`: a rehearsal began or ended."""

    def __init__(self, policy: Callable[[], Policy], on_change: Callable[[], None]) -> None:
        self._policy = policy
        self._on_change = on_change
        self._rehearsals: list[_Rehearsal] = []
        self._next: list[asyncio.Future[TrialPassage]] = []

    @property
    def rehearsing(self) -> bool:
        """Whether a rehearsal waits for a hand."""
        return bool(self._rehearsals)

    async def rehearse(self, wait_s: float) -> TrialPassage | None:
        """What the verdict on the next hand would be; None without a hand in time."""
        policy = self._policy()
        rehearsal = _Rehearsal(Attempt(policy.thresholds, attempts=policy.attempts))
        self._rehearsals.append(rehearsal)
        self._on_change()
        try:
            async with asyncio.timeout(wait_s):
                return await rehearsal.done
        except TimeoutError:
            return rehearsal.concluded()
        finally:
            self._rehearsals.remove(rehearsal)
            self._on_change()

    async def next_passage(self, wait_s: float) -> TrialPassage | None:
        """The next verdict sent to the validator, with its times; None without one in time."""
        waiting: asyncio.Future[TrialPassage] = asyncio.get_running_loop().create_future()
        self._next.append(waiting)
        try:
            async with asyncio.timeout(wait_s):
                return await waiting
        except TimeoutError:
            return None
        finally:
            self._next.remove(waiting)

    def sighted(self, sighting: Sighting) -> None:
        for rehearsal in self._rehearsals:
            rehearsal.sighted(sighting)

    def passed(self, said: VerdictSummary, total_ms: float, stage_ms: Mapping[str, float]) -> None:
        """The verdict was written to the port."""
        passage = TrialPassage(
            rehearsal=False,
            decision=said.decision,
            result=said.result,
            score_q=said.score_q,
            quality_q=said.quality_q,
            pad=said.pad,
            attempts=said.attempts,
            total_us=round(total_ms * 1000),
            stages_us=_micros(stage_ms),
            verdict=VerdictSent(said.verdict_seq, said.verdict_ref),
        )
        for waiting in self._next:
            if not waiting.done():
                waiting.set_result(passage)


class _Rehearsal:
    """One hand, from its arrival until the outcome or until it leaves."""

    def __init__(self, attempt: Attempt) -> None:
        self.done: asyncio.Future[TrialPassage] = asyncio.get_running_loop().create_future()
        self._attempt = attempt
        self._first_ms: int | None = None
        self._last_ms = 0
        self._hints: list[str] = []

    def sighted(self, sighting: Sighting) -> None:
        if self.done.done():
            return
        if not sighting.hand_present:
            if self._first_ms is not None and sighting.at_ms - self._last_ms >= GONE_AFTER_MS:
                self.done.set_result(self._passage(self._attempt.conclude()))
            return
        self._first_ms = sighting.at_ms if self._first_ms is None else self._first_ms
        self._last_ms = sighting.at_ms
        if sighting.hint is not None and str(sighting.hint) not in self._hints:
            self._hints.append(str(sighting.hint))
        outcome = self._attempt.add(sighting)
        if outcome is None and sighting.at_ms - self._first_ms >= CAPTURE_WINDOW_MS:
            outcome = self._attempt.conclude()  # as a passage does
        if outcome is not None:
            self.done.set_result(self._passage(outcome))

    def concluded(self) -> TrialPassage | None:
        """The passage without further frames; None without a hand."""
        return None if self._first_ms is None else self._passage(self._attempt.conclude())

    def _passage(self, outcome: Outcome) -> TrialPassage:
        sighting = outcome.sighting
        first_ms = self._first_ms or 0
        return TrialPassage(
            rehearsal=True,
            decision=str(outcome.result.decision),
            result=str(outcome.result),
            score_q=outcome.score_q,
            quality_q=outcome.quality_q,
            pad=outcome.pad,
            attempts=outcome.attempts,
            total_us=1000 * ((sighting.at_ms if sighting else self._last_ms) - first_ms),
            stages_us=_micros(sighting.stage_ms if sighting else {}),
            rehearsed=Rehearsed(
                best_score_q=0 if sighting is None else score_q_of(sighting),
                margin_q=outcome.margin_q,
                subject_ref=outcome.subject_ref,
                hand=outcome.hand,
                hints=tuple(self._hints),
                thr_id=self._attempt.thr_id,
            ),
        )


def _micros(stage_ms: Mapping[str, float]) -> tuple[tuple[str, int], ...]:
    return tuple((name, round(ms * 1000)) for name, ms in stage_ms.items())
