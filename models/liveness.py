"""Is this a hand before the camera, or a picture of one? Weak passive cues, each of which speaks only when it
can, and the operator's own network where there is one.

- ``moire``: the pixels of a screen and the dots of a print beat with the camera's own pixels; in the spectrum
  of the palm that is a narrow peak where skin has none.
- ``tint``: the same in the difference of red and blue, where sub-pixels and inks show; needs a colour camera.
- ``glare``: a lamp's reflection across the hand's outline lies on something smooth before it.
- ``frame``: a screen or a sheet has corners; a rectangle's corners around the hand belong to no hand.
- ``parallax``: the surroundings of a hand stand still while it moves; those of a pictured hand move along.
  Speaks when the hand has moved before a ground with some pattern.
- ``nir``: what a screen or most inks show is not there in near infrared; a hand stands out in both. Needs a
  camera that gives both pictures.
- ``net-…``: the network of ``[liveness] model_dir`` (``models.pad_network``).

``mech`` names those that spoke. Evidence is gathered from the first sight of an open hand on, so that the
first good frame can be judged; what needs sharp frames counts from the first whose vector ties it to a palm.

What it is not: none of this has been measured on real attacks, and a flawless replay without an edge in view
passes a camera of one look. The figures in the tests are of simulated attacks, a regression test and no
attack error rate of ISO/IEC 30107-3 (docs/explanation/RECOGNITION.md).
"""

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from link1.objects import Pad
from models.frames import CameraFrame, as_grey
from models.hand import Hand
from models.liveness_cues import (
    Spectrum,
    corners_around,
    glare_across,
    missing_in_nir,
    moved_along,
    red_against_blue,
    small_grey,
    valleys_in_mask,
)
from models.pad_network import PadNetwork
from models.quality import HINT_BELOW

VERSION: Final = "passive3"
"""Names this set of cues at the beginning of ``pad.mech``."""

PASS_Q: Final = 5000
SHARP_ENOUGH: Final = HINT_BELOW
"""Below this ``Quality.detail`` a screen's pixels would be blurred away, so their absence says nothing."""

PEAK_LIMIT: Final = 2.6
"""Log ratio up to which a spectral peak is chance: generated hands reach 2.0, simulated screens 3.8."""

LEAST_FRAMES: Final = 2
"""Sharp frames before a hand can pass, or a network's word counts: parallax needs two, and two come while a
hand slows down."""
RECENT: Final = 5
"""Frames that count where the newest are the best."""
MOVES: Final = 8
"""Moves of the hand that count; of nothing more is kept, however long a hand stays."""

_START: Final = 3.2
"""Log odds for a hand before anything is seen: a score of 9600."""
_PEAK_WEIGHT: Final = 4.0
_CORNER_WEIGHT: Final = 2.4
_GLARE_WEIGHT: Final = 4.0
_PARALLAX_WEIGHT: Final = 1.5
_NIR_WEIGHT: Final = 4.4


class LivenessCheck:
    """Gathers evidence over one presence of one hand; ``reset`` when another hand comes."""

    def __init__(self, network: PadNetwork | None = None) -> None:
        """``network``: asked about every sharp frame. A hand passes when cues and network both say so."""
        self._network = network
        self._spectrum = Spectrum()
        self.reset()

    def reset(self) -> None:
        """Forget everything seen so far."""
        self._cues: dict[str, list[float]] = {
            name: [] for name in ("moire", "tint", "glare", "frame", "parallax", "nir")
        }
        self._asked: list[float] = []
        self._past: tuple[NDArray[np.float32], Hand] | None = None

    def forget_sharp(self) -> None:
        """Forget what only sharp frames show, so that a hand needs as many of them again; what was seen while
        it came nearer stays."""
        self._cues |= {"moire": [], "tint": []}
        self._asked = []

    def check(self, frame: CameraFrame, hand: Hand, detail: float) -> Pad:
        """Add one frame's evidence and say what all of it comes to: ``unknown`` until there is something to
        judge by; ``score_q`` 0 surely a picture .. 10000.

        Raises ``ModelFileError`` where the network's answer is no probability, and otherwise never.
        """
        grey = as_grey(frame)
        if detail >= SHARP_ENOUGH:
            self._cues["moire"].append(self._spectrum.peak(grey, hand))
            if frame.is_colour:
                self._cues["tint"].append(self._spectrum.peak(red_against_blue(frame), hand))
            asked = self._network.log_odds(frame, hand) if self._network is not None else None
            if asked is not None:
                self._asked.append(asked)
        small = small_grey(grey, hand)
        self._cues["glare"].append(float(glare_across(small, hand)))
        self._cues["frame"].append(corners_around(small, hand.mask))
        self._note_parallax(small, hand)
        missing = missing_in_nir(small, small_grey(frame.nir, hand), hand) if frame.nir is not None else None
        if missing is not None:
            self._cues["nir"].append(missing)
        for evidence in (*self._cues.values(), self._asked):
            del evidence[:-MOVES]

        odds = self._log_odds()
        asked_enough = self._network is None or len(self._asked) >= LEAST_FRAMES
        if len(self._asked) >= LEAST_FRAMES:
            odds = min(odds, float(np.median(self._asked[-RECENT:])))
        score_q = round(10_000 / (1.0 + math.exp(-max(-30.0, min(30.0, odds)))))
        if score_q < PASS_Q:
            return Pad("fail", self._mech(), score_q)
        enough = len(self._cues["moire"]) >= LEAST_FRAMES and asked_enough
        return Pad("pass" if enough else "unknown", self._mech(), score_q)

    def _log_odds(self) -> float:
        """What the cues say together."""
        cues, odds = self._cues, _START
        for peaks in (cues["moire"], cues["tint"]):
            if peaks:
                odds -= _PEAK_WEIGHT * max(0.0, float(np.median(peaks[-RECENT:])) - PEAK_LIMIT)
        glare = cues["glare"][-RECENT:]
        # A single flash is no evidence of an attack.
        odds -= _GLARE_WEIGHT * sum(glare) / max(LEAST_FRAMES, len(glare))
        odds -= _CORNER_WEIGHT * float(np.mean(cues["frame"][-RECENT:]))
        odds -= _PARALLAX_WEIGHT * sum(cues["parallax"])
        nir = cues["nir"][-RECENT:]
        odds -= _NIR_WEIGHT * sum(nir) / max(LEAST_FRAMES, len(nir))
        return odds

    def _mech(self) -> str:
        names = [name for name, evidence in self._cues.items() if evidence]
        if self._network is not None and self._asked:
            names.append(f"net-{self._network.model_id}")
        return f"{VERSION}:{'+'.join(names)}"

    def _note_parallax(self, small: NDArray[np.float32], hand: Hand) -> None:
        past, self._past = self._past, (small, hand)
        if past is None or past[0].shape != small.shape:
            return
        before, hand_before = past
        moved = (valleys_in_mask(hand) - valleys_in_mask(hand_before)).mean(axis=0)
        along = moved_along(before, small, (hand_before.mask, hand.mask), moved)
        if along is not None:
            self._cues["parallax"].append(along)
