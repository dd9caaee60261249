"""The operating point of a model: what a score, a margin, a quality and a liveness score must reach."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from link1 import members
from link1.members import NAME


@dataclass(frozen=True, slots=True)
class Thresholds:
    """The thresholds of one model. Each set of values has a name, `thr_id`.

    accept_q and margin_q: cosine × 10000. quality_q and enrol_quality_q: 0..100. pad_q: 0..10000.
    """

    thr_id: str
    accept_q: int
    margin_q: int
    quality_q: int
    pad_q: int
    enrol_quality_q: int

    @classmethod
    def from_obj(cls, obj: Mapping[str, Any]) -> "Thresholds":
        """Parse the `thresholds` of a signed configuration or of a model manifest; raises FormatError."""
        return cls(
            thr_id=members.text(obj, "thr_id", NAME),
            accept_q=members.integer(obj, "accept_q", 0, 10_000),
            margin_q=members.integer(obj, "margin_q", 0, 20_000),
            quality_q=members.integer(obj, "quality_q", 0, 100),
            pad_q=members.integer(obj, "pad_q", 0, 10_000),
            enrol_quality_q=members.integer(obj, "enrol_quality_q", 0, 100),
        )
