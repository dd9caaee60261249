"""The operating point of a model: what a score, a margin, a quality and a liveness score must reach."""

from typing import Annotated

from link1.objects import Name
from link1.wire import Between, WireObject


class Thresholds(WireObject):
    """The thresholds of one model, as a signed configuration has them; `thr_id` names the set of values.

    accept_q and margin_q: cosine × 10000. quality_q and enrol_quality_q: 0..100. pad_q: 0..10000.
    """

    thr_id: Name
    accept_q: Annotated[int, Between(0, 10_000)]
    margin_q: Annotated[int, Between(0, 20_000)]
    quality_q: Annotated[int, Between(0, 100)]
    pad_q: Annotated[int, Between(0, 10_000)]
    enrol_quality_q: Annotated[int, Between(0, 100)]
