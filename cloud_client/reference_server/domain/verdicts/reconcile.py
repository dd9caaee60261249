"""How far a verdict, its decision and its passage agree (partner API, Verdict record). Pure."""

from dataclasses import dataclass

from cloud_client.reference_server.contract.words import Reconciliation
from link1.objects import Decision, Passage, Verdict

_ACTUATED = {"LIBERAR": True, "BLOQUEAR": False}
"""What an outcome says of `actuated`. The words are extensible, and another one says nothing of it."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one verdict.

    ``decision_verified`` is False for one by a validator key we do not know. ``chain_broken``: verdict_seq
    before this one is missing, or prev_ref names another verdict. ``disputed``: another signed object
    contradicts one of these.
    """

    verdict_ref: str
    verdict: Verdict
    decision: Decision | None
    decision_verified: bool
    passage: Passage | None
    passage_verified: bool
    outcome_unknown: bool
    passage_sensor: bool
    chain_broken: bool
    disputed: bool


def reconcile(facts: Facts) -> Reconciliation:
    """The one value that the record is listed under."""
    if facts.disputed or facts.chain_broken or not _agree(facts):
        return Reconciliation.CONFLICT
    if facts.decision is None:
        return Reconciliation.OUTCOME_UNKNOWN if facts.outcome_unknown else Reconciliation.AWAITING_DECISION
    if facts.decision.actuated and facts.passage_sensor and facts.passage is None:
        # OUTCOME_UNKNOWN is a decision that is lost; this one has come, however late.
        return Reconciliation.AWAITING_PASSAGE
    return Reconciliation.COMPLETE


def _agree(facts: Facts) -> bool:
    decision, passage = facts.decision, facts.passage
    if decision is not None:
        verdict = facts.verdict
        named = (decision.txn_id, decision.gate_id, decision.dbd_id, decision.nonce_b64, decision.verdict_ref)
        meant = (verdict.txn_id, verdict.gate_id, verdict.dbd_id, verdict.nonce_b64, facts.verdict_ref)
        if not facts.decision_verified or named != meant:
            return False
        if decision.actuated is not _ACTUATED.get(decision.outcome, decision.actuated):
            return False
    if passage is not None:
        verdict = facts.verdict
        named_passage = (passage.txn_id, passage.gate_id, passage.dbd_id, passage.verdict_ref)
        if not facts.passage_verified or named_passage != (
            verdict.txn_id,
            verdict.gate_id,
            verdict.dbd_id,
            facts.verdict_ref,
        ):
            return False
        if passage.passed and decision is not None and not decision.actuated:
            return False
    return True
