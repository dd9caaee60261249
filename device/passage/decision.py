"""The result of the sightings of one hand: the table "What a verdict says" of LINK/1 §4.

1. One good, live capture that reaches score and margin is enough: MATCH, at once.
2. A failed presentation-attack check on a good capture ends the attempt: SPOOF, at once. The check itself
   smooths over several frames where it has to, and returns `unknown` until it has a result.
3. A capture below the threshold does not reject yet, because the next frame may be better: NO_MATCH and
   AMBIGUOUS need `attempts` good, live captures, or the end of the captures.
4. A capture that is not good, or not known to be live, decides nothing. Without any other: POOR_CAPTURE.
5. Numbers are compared as they are signed (cosine × 10000, rounded), so that a verdict can be checked
   against the thresholds that it names.

    attempt = Attempt(thresholds, attempts=3)
    outcome = attempt.add(sighting)        # None until it is decided
    outcome = attempt.conclude()           # the hand has left, or the time is over
"""

from dataclasses import dataclass

from device.values.recognition import Sighting
from link1.objects import GalleryMark, Pad, Request, Verdict, VerdictResult
from models.thresholds import Thresholds

PAD_UNKNOWN = Pad("unknown", "none", 0)
"""In a verdict without a liveness check."""

MARGIN_Q_WITHOUT_SECOND = 10_000
_MAX_ATTEMPTS = 1_000
"""The largest count in a verdict; a hand in view for half a minute stays below it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The part of a verdict that comes from the hand. `sighting` is the deciding capture, if any."""

    result: VerdictResult
    score_q: int = 0
    margin_q: int = MARGIN_Q_WITHOUT_SECOND
    quality_q: int = 0
    pad: Pad = PAD_UNKNOWN
    attempts: int = 0
    subject_ref: str | None = None
    onboard_ref: str | None = None
    hand: str | None = None
    sighting: Sighting | None = None


def judge(sighting: Sighting, thresholds: Thresholds) -> VerdictResult | None:
    """The result of one capture by itself; None when it decides nothing."""
    if not (sighting.hand_present and sighting.good):
        return None
    pad = _pad_of(sighting, thresholds)
    if pad.res == "fail":
        return VerdictResult.SPOOF
    if pad.res != "pass":
        return None
    if sighting.candidate is None or score_q_of(sighting) < thresholds.accept_q:
        return VerdictResult.NO_MATCH
    if margin_q_of(sighting) < thresholds.margin_q:
        return VerdictResult.AMBIGUOUS
    return VerdictResult.MATCH


class Attempt:
    """The captures of one hand for one request, until they give an outcome."""

    def __init__(self, thresholds: Thresholds, *, attempts: int) -> None:
        """`attempts`: how many good, live captures a rejection needs, at least 1."""
        self._thresholds = thresholds
        self._needed = attempts
        self._tried = 0
        self._decisive = 0
        self._best: Sighting | None = None
        self._best_poor: Sighting | None = None

    @property
    def thr_id(self) -> str:
        """The thresholds that judge these captures."""
        return self._thresholds.thr_id

    @property
    def decisive(self) -> int:
        """Good, live captures so far."""
        return self._decisive

    def add(self, sighting: Sighting) -> Outcome | None:
        """Add one capture; the outcome if it decides, else None."""
        if not sighting.hand_present:
            return None
        self._tried = min(self._tried + 1, _MAX_ATTEMPTS)
        result = judge(sighting, self._thresholds)
        if result is None:
            if self._best_poor is None or sighting.quality_q > self._best_poor.quality_q:
                self._best_poor = sighting
            return None
        if result in (VerdictResult.MATCH, VerdictResult.SPOOF):
            return self._outcome(result, sighting)
        self._decisive += 1
        if self._best is None or score_q_of(sighting) > score_q_of(self._best):
            self._best = sighting
        return self.conclude() if self._decisive >= self._needed else None

    def conclude(self) -> Outcome:
        """The outcome without further captures."""
        if self._best is None:
            return self._outcome(VerdictResult.POOR_CAPTURE, self._best_poor)
        result = judge(self._best, self._thresholds)
        return self._outcome(result or VerdictResult.POOR_CAPTURE, self._best)

    def abstain(self, result: VerdictResult) -> Outcome:
        """NOT_READY or GALLERY_EXPIRED, regardless of the captures so far."""
        return Outcome(result, attempts=self._tried)

    def _outcome(self, result: VerdictResult, sighting: Sighting | None) -> Outcome:
        if sighting is None:
            return Outcome(result, attempts=self._tried)
        scored = result in (VerdictResult.MATCH, VerdictResult.NO_MATCH, VerdictResult.AMBIGUOUS)
        person = sighting.candidate if result is VerdictResult.MATCH else None
        return Outcome(
            result,
            score_q=score_q_of(sighting) if scored else 0,
            margin_q=margin_q_of(sighting) if scored else MARGIN_Q_WITHOUT_SECOND,
            quality_q=sighting.quality_q,
            pad=_pad_of(sighting, self._thresholds),
            attempts=self._tried,
            subject_ref=person.subject_ref if person else None,
            onboard_ref=person.onboard_ref if person else None,
            hand=person.hand if person else None,
            sighting=sighting,
        )


def score_q_of(sighting: Sighting) -> int:
    """Best cosine × 10000, rounded; 0 when nothing was scored."""
    return 0 if sighting.score is None else max(-10_000, min(10_000, round(sighting.score * 10_000)))


def margin_q_of(sighting: Sighting) -> int:
    """Margin × 10000, rounded; 10000 when there is no second person."""
    if sighting.margin is None:
        return MARGIN_Q_WITHOUT_SECOND
    return max(0, min(20_000, round(sighting.margin * 10_000)))


def _pad_of(sighting: Sighting, thresholds: Thresholds) -> Pad:
    """The liveness result, compared with the threshold in force."""
    pad = sighting.pad or PAD_UNKNOWN
    if pad.res == "pass" and pad.score_q < thresholds.pad_q:
        return Pad("fail", pad.mech, pad.score_q)
    return pad


def build_verdict(
    request: Request,
    outcome: Outcome,
    *,
    device_id: str,
    verdict_seq: int,
    prev_ref: str,
    decided_at_ms: int,
    model_id: str,
    thr_id: str,
    gallery: GalleryMark,
) -> Verdict:
    """The verdict to sign. `gallery`: the state in force, used when the outcome names no searched state."""
    searched = outcome.sighting.gallery if outcome.sighting else None
    return Verdict(
        txn_id=request.txn_id,
        gate_id=request.gate_id,
        dbd_id=request.dbd_id,
        nonce_b64=request.nonce_b64,
        issued_at_ms=request.issued_at_ms,
        ttl_ms=request.ttl_ms,
        decided_at_ms=decided_at_ms,
        device_id=device_id,
        result=outcome.result,
        verdict_seq=verdict_seq,
        prev_ref=prev_ref,
        score_q=outcome.score_q,
        margin_q=outcome.margin_q,
        quality_q=outcome.quality_q,
        pad=outcome.pad,
        attempts=outcome.attempts,
        model_id=model_id,
        thr_id=thr_id,
        gallery=searched or gallery,
        subject_ref=outcome.subject_ref,
        onboard_ref=outcome.onboard_ref,
        hand=outcome.hand,
    )
