"""The result of a search: the nearest person, and their lead over the second."""

from dataclasses import dataclass, replace

from gallery.index import Candidate
from gallery.records import Position


@dataclass(frozen=True, slots=True)
class Match:
    """The answer to one search, and the position of the gallery that gave it.

    `score` is a cosine, −1..1, and 0.0 when nothing was scored (then `best` is None). `margin` is the lead
    over the best other person, None when there is none. `probe` is the row of the probes that was nearest.
    """

    best: Candidate | None
    score: float
    margin: float | None
    position: Position
    probe: int = 0


def joined(first: Match, second: Match, rows: int) -> Match:
    """The answer to the probes of two searches at one position, where `rows` probes were in the first.

    Nothing is scanned again: the second person of both is the first or the second of one of them.
    """
    ahead, behind = first, replace(second, probe=rows + second.probe)
    if behind.score > ahead.score:
        ahead, behind = behind, ahead
    if ahead.best is None or behind.best is None:
        return behind if ahead.best is None else ahead
    others = [m.score - m.margin for m in (ahead, behind) if m.margin is not None]
    if behind.best.subject_ref != ahead.best.subject_ref:
        others.append(behind.score)
    return replace(ahead, margin=ahead.score - max(others) if others else None)
