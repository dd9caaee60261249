"""A frame's journey from the camera to a Sighting.

    camera frame → hand → palm crop → quality → vector → match → Sighting
                                           └──→ liveness ──┘

`Recogniser.look` is that journey, in order; `device.passage.decision` continues with the Sighting.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Protocol

import numpy as np
import numpy.typing as npt

from device.values.recognition import EnrolmentLook, HandName, MatchedPerson, PalmCapture, Sighting
from device.vision.tracked_hand import TrackedHand
from gallery.errors import StoreError
from gallery.index import Match, joined
from link1.objects import GalleryMark, GuideHint
from models.crop import cut_palm
from models.frames import CameraFrame
from models.hand import Hand, HandFinder, PartialHand
from models.liveness import LivenessCheck
from models.probes import STILL, next_slips, probe_crops
from models.quality import Quality, assess
from models.second_core import second_core
from models.thresholds import Thresholds


class Interest(Enum):
    """What frames are examined for."""

    IDLE = auto()
    """Only whether there is a hand."""
    PREVIEW = auto()
    """The quality of the view, for the setup of the camera."""
    PASSAGE = auto()
    """The identity of the person."""
    ENROLMENT = auto()
    """Good captures, without a search."""


class Embeds(Protocol):
    """The model."""

    def embed(self, crops: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Palm crops (n, 112, 112) uint8 to vectors (n, 512) float32 of unit length."""


class Searches(Protocol):
    """The gallery, searched on the inference thread while another thread applies pages."""

    def search(self, probes: npt.NDArray[np.float32]) -> Match:
        """The person nearest to the probes (n, 512) of one hand. Raises StoreError when the disk fails."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """One examined frame: the sighting, the hand it shows, and for enrolment the capture, if good.

    `seen` and `quality` are for a preview: the position of the hand, and the quality of a capture of it.
    `store_fault`: why the gallery could not be read for this frame, whose sighting then decides nothing.
    """

    interest: Interest
    frame_number: int
    sighting: Sighting
    hand: HandName | None = None
    capture: PalmCapture | None = None
    seen: Hand | PartialHand | None = None
    quality: Quality | None = None
    store_fault: str = ""

    def with_waits(self, to_recogniser_ms: float, to_loop_ms: float) -> "Look":
        """The same with two stages more: from the camera to the examination, and from there to the loop."""
        stage_ms = {
            "to_recogniser": to_recogniser_ms,
            **self.sighting.stage_ms,
            "to_loop": to_loop_ms,
        }
        return replace(self, sighting=replace(self.sighting, stage_ms=stage_ms))

    def drop(self) -> None:
        """The look is not delivered: overwrite the vector of its capture."""
        if self.capture is not None:
            self.capture.vector.fill(0.0)

    def for_enrolment(self) -> EnrolmentLook:
        """The part that enrolment uses."""
        return EnrolmentLook(self.sighting.hand_present, self.hand, self.sighting.hint, self.capture)


@dataclass(slots=True)
class StageTimes:
    """Milliseconds of each stage by name, in the order they ended."""

    stage_ms: dict[str, float] = field(default_factory=dict)
    _since_s: float = field(default_factory=time.perf_counter)

    def end(self, stage: str) -> None:
        """`stage` ends here; the next begins."""
        now_s = time.perf_counter()
        self.stage_ms[stage] = (now_s - self._since_s) * 1000.0
        self._since_s = now_s


class Recogniser:
    """Everything between a frame and a Sighting, with the memory of the hand in view. Used by one thread."""

    def __init__(
        self,
        embedder: Embeds | None,
        gallery: Callable[[], Searches | None],
        thresholds: Callable[[], Thresholds],
        liveness: LivenessCheck | None = None,
        *,
        agree_cosine: float,
        finder: HandFinder | None = None,
    ) -> None:
        """`embedder` is None when no model could be loaded: hands are then detected and not examined.

        `gallery` returns None while there is none to search; `thresholds` returns those in force. `liveness`:
        a check beyond the built-in cues. `agree_cosine`: the cosine from which two vectors of the model count
        as one palm; half of it is required of the hand in view, whose captures may be poor. `finder`: another
        than one with all that is installed.
        """
        self._embedder = embedder
        self._gallery = gallery
        self._thresholds = thresholds
        self._same_hand_cosine = agree_cosine / 2
        self._finder = finder or HandFinder()
        self._liveness = liveness or LivenessCheck()
        self._second_core = second_core("liveness")
        self._tracked = TrackedHand()
        self._enrolling = False

    def look(self, frame: CameraFrame, interest: Interest) -> Look | None:
        """The journey of one frame, as far as `interest` requires.

        None when the finder missed a hand that was in view a moment ago: such a frame says nothing.
        """
        thresholds, times = self._thresholds(), StageTimes()
        self._note_enrolment(interest is Interest.ENROLMENT)

        hand = self._finder.look(frame)
        if self._tracked.see(hand, frame):
            self._liveness.reset()
        times.end("hand")
        if hand is None and self._tracked.there:
            return None
        if interest is Interest.IDLE or not isinstance(hand, Hand) or self._embedder is None:
            return _without_capture(frame, interest, hand, times)

        crop = cut_palm(frame, hand)
        times.end("crop")

        quality = assess(frame, hand, crop, self._tracked.previous)
        self._tracked.judged(hand)
        times.end("quality")

        floor_q = thresholds.enrol_quality_q if interest is Interest.ENROLMENT else thresholds.quality_q
        good = quality.quality_q >= floor_q and interest is not Interest.PREVIEW
        capture, match, store_fault = None, None, ""
        first = not self._tracked.known
        if good and first:
            # Until now another hand may have been there, which no vector would have told from this one.
            self._liveness.forget_sharp()
        checking = self._second_core.submit(self._liveness.check, frame, hand, quality.detail)
        try:
            if good:
                vector = self._embedder.embed(crop[np.newaxis])[0]
                times.end("vector")
                if self._tracked.hold(vector, quality.quality_q, self._same_hand_cosine):
                    # Another hand, or a picture of one, in the same place: what was seen before is no
                    # evidence for it.
                    checking.result()
                    self._liveness.reset()
                    first = True
                    checking = self._second_core.submit(self._liveness.check, frame, hand, quality.detail)
            if good and not first and interest is Interest.PASSAGE:
                probe = self._tracked.probe()
                match = self._search(crop, probe, thresholds, live=lambda: checking.result().res == "pass")
                times.end("match")
        except StoreError as error:
            # A hand is in view, and it is unknown whether the gallery knows it.
            good, store_fault = False, str(error)
        finally:
            pad = checking.result()
        times.end("liveness")

        if good and interest is Interest.ENROLMENT:
            # The runtime's buffers hold the vector's intermediate values until a black crop overwrites
            # them; then only the capture's copy is left, which enrolment overwrites.
            self._embedder.embed(np.zeros_like(crop)[np.newaxis])
            capture = PalmCapture(hand.handedness, vector, quality.quality_q, pad, frame.at_ms)
        sighting = Sighting(
            hand_present=True,
            at_ms=frame.at_ms,
            hint=_hint(quality.hint or hand.hint),
            quality_q=quality.quality_q,
            pad=pad,
            score=match.score if match and match.best else None,
            margin=match.margin if match else None,
            candidate=_candidate(match),
            good=good,
            gallery=_mark(match),
            stage_ms=times.stage_ms,
        )
        return Look(interest, frame.number, sighting, hand.handedness, capture, hand, quality, store_fault)

    def forget(self) -> None:
        """The frames were interrupted, and the hand in view may have left; or an enrolment has ended."""
        self._tracked.forget()
        self._liveness.reset()

    def _note_enrolment(self, enrolling: bool) -> None:
        if self._enrolling and not enrolling:
            self.forget()  # no vector outlives the enrolment, though the hand may stay
        self._enrolling = enrolling

    def _search(
        self,
        crop: npt.NDArray[np.uint8],
        probe: npt.NDArray[np.float32],
        thresholds: Thresholds,
        *,
        live: Callable[[], bool],
    ) -> Match | None:
        """Search with the probe; while the result is not settled, also with shifted crops, towards the
        nearest.

        A capture that is not known to be live decides no identity, so it is not searched further. A hand's
        first one is not searched at all: a hand is not known to be live before its second.
        """
        embedder, gallery = self._embedder, self._gallery()
        if gallery is None or embedder is None:
            return None
        slips, probes = [STILL], probe[np.newaxis]
        match = gallery.search(probes)
        while match.best is not None and not _settled(match, thresholds) and live():
            fresh = next_slips(slips, match.probe)
            if not fresh:
                break
            more = embedder.embed(probe_crops(crop, fresh))
            found, probes = gallery.search(more), np.concatenate([probes, more])
            # A person may have been erased in between, and must not be found by the earlier search.
            moved = found.position != match.position
            match = gallery.search(probes) if moved else joined(match, found, len(slips))
            slips += fresh
        return match


def _settled(match: Match, thresholds: Thresholds) -> bool:
    """Whether the match is clear, so that shifted crops need not be searched."""
    sure = match.score * 10_000 >= thresholds.accept_q
    return sure and (match.margin is None or match.margin * 10_000 >= thresholds.margin_q)


def _without_capture(
    frame: CameraFrame, interest: Interest, hand: Hand | PartialHand | None, times: StageTimes
) -> Look:
    """Nothing to capture: no hand, a hand that does not show its palm, or no interest in a capture."""
    hint = _hint(hand.hint) if hand is not None else None
    sighting = Sighting(hand is not None, frame.at_ms, hint, stage_ms=times.stage_ms)
    handedness = hand.handedness if isinstance(hand, Hand) else None
    return Look(interest, frame.number, sighting, handedness, seen=hand)


def _hint(word: str | None) -> GuideHint | None:
    return GuideHint(word) if word is not None else None


def _candidate(match: Match | None) -> MatchedPerson | None:
    if match is None or match.best is None:
        return None
    return MatchedPerson(match.best.subject_ref, match.best.hand, match.best.onboard_ref)


def _mark(match: Match | None) -> GalleryMark | None:
    """The state that was searched, which the verdict names even if pages were applied since."""
    if match is None:
        return None
    position = match.position
    return GalleryMark(position.stream, position.epoch, position.seq, position.head16)
