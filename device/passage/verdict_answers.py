"""Whether a decision or a passage belongs to the verdict that it claims to answer (LINK/1 §4).

Their signatures have been checked when they come here; what is held against the verdict are the members
that tie them to it.
"""

from enum import Enum, auto

from device.values.transactions import StoredVerdict, TxnMemory
from link1.objects import Decision, Passage


class Belongs(Enum):
    YES = auto()
    REPEATED = auto()
    """The very message that is recorded already."""
    CONTRADICTS = auto()
    """It fits the verdict, but another one of its kind was recorded before."""
    WRONG = auto()
    """It names another verdict, or ids or a nonce that the verdict does not have."""


def judge_decision(decision: Decision, decision_ref: str, memory: TxnMemory | None) -> Belongs:
    """`decision_ref`: object_ref of the signed decision. `memory`: of its txn_id."""
    if memory is None or memory.verdict is None or not _fits_decision(decision, memory.verdict):
        return Belongs.WRONG
    return _first_or_not(decision_ref, memory.decision_ref)


def judge_passage(passage: Passage, passage_ref: str, memory: TxnMemory | None) -> Belongs:
    """`passage_ref`: object_ref of the signed passage. `memory`: of its txn_id."""
    if memory is None or memory.verdict is None or not _fits_passage(passage, memory.verdict):
        return Belongs.WRONG
    return _first_or_not(passage_ref, memory.passage_ref)


def _fits_decision(decision: Decision, stored: StoredVerdict) -> bool:
    verdict = stored.wrapper["verdict"]
    return decision.verdict_ref == stored.ref and all(
        verdict[name] == getattr(decision, name) for name in ("txn_id", "gate_id", "dbd_id", "nonce_b64")
    )


def _fits_passage(passage: Passage, stored: StoredVerdict) -> bool:
    verdict = stored.wrapper["verdict"]
    return passage.verdict_ref == stored.ref and all(
        verdict[name] == getattr(passage, name) for name in ("txn_id", "gate_id", "dbd_id")
    )


def _first_or_not(ref: str, recorded_ref: str | None) -> Belongs:
    if recorded_ref is None:
        return Belongs.YES
    return Belongs.REPEATED if recorded_ref == ref else Belongs.CONTRADICTS
