"""Batches of verdicts with what their validator made of them, each taken in one transaction.

Order does not matter and repeating is safe. What is signed but does not agree with what is held is never
written over it: it is kept as evidence and the record becomes ``conflict``.

Every record carries the number of the upload, or the erasure, that made it or changed it last
(``change_no``), which is what listVerdictChanges goes by. An environment's numbers rise in the order in which
these are committed.
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.bodies import VerdictBatch
from cloud_client.reference_server.contract.times import LATEST_MS
from cloud_client.reference_server.contract.words import BatchCode
from cloud_client.reference_server.domain.call import ApiAnswer, Call, why_refused
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.devices import rollouts
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.verdicts.expiry import deleted_before
from cloud_client.reference_server.domain.verdicts.reconcile import Facts, reconcile
from cloud_client.reference_server.store.base import Row, Tx
from link1.canonical import JsonObject, canonical_bytes
from link1.errors import FormatError, SignatureError
from link1.keys import PublicKey
from link1.objects import PREV_REF_OF_FIRST, Decision, Passage, Verdict, VerdictDecision
from link1.signed import Kind, object_ref, signer_kid_of, verify_object

_ITEM_MEMBERS = frozenset({"signed_verdict", "signed_decision", "signed_passage", "outcome_unknown"})
V = TypeVar("V", Decision, Passage)


class _RefusedItem(Exception):
    """An item, or a part of it, is not taken; ``why`` quotes nothing of it."""

    def __init__(self, code: BatchCode, why: object = "") -> None:
        super().__init__(f"{code.value}: {why}" if why else code.value)
        self.code = code


def upload_verdicts(call: Call, tx: Tx) -> ApiAnswer:
    """``POST /v1/verdicts/batch``."""
    taken, refusals = take_batch(tx, call.environment, call.caller.device_id, call.body, call.now_ms)
    return ApiAnswer(200, taken, reason=why_refused(call.caller.device_id, refusals))


def take_batch(
    tx: Tx, environment: Environment, device_id: str, batch: VerdictBatch, now_ms: int
) -> tuple[shown.BatchResult, list[str]]:
    """Take the batch of a device, whichever way it came; each item is judged alone.

    The answer, and for the log what is refused and why.
    """
    take = _Upload(tx, environment, device_id, now_ms, next_change_no(tx, environment, now_ms))
    result = shown.BatchResult(accepted=[], duplicates=[], rejected=[])
    refusals: list[str] = []
    for index, item in enumerate(batch.items):
        try:
            verdict_id, new = _take_verdict(take, item)
        except _RefusedItem as refusal:
            refused = [(refusal.code, str(refusal))]
        else:
            (result.accepted if new else result.duplicates).append(verdict_id)
            refused = _take_outcome(take, verdict_id, item)
            _refresh(take, verdict_id)
        result.rejected += [shown.Rejected(index=index, code=code.value) for code, _ in refused]
        refusals += [f"item {index} {why}" for _, why in refused]
    return result, refusals


@dataclass(frozen=True, slots=True)
class _Upload:
    """One batch's work on the records of its environment."""

    tx: Tx
    environment: Environment
    device_id: str
    now_ms: int
    change_no: int


def next_change_no(tx: Tx, environment: Environment, now_ms: int) -> int:
    """The number of a change: above every earlier one of the environment.

    Microseconds of the clock wherever that is ahead of the last number: so a database that was restored from
    a backup gives no number again that a back office has a cursor of.
    """
    number: int = tx.scalar(
        """UPDATE streams SET verdict_change_no =
               CASE WHEN verdict_change_no < :now_us THEN :now_us ELSE verdict_change_no + 1 END
           WHERE stream = :stream RETURNING verdict_change_no""",
        stream=environment.stream,
        now_us=now_ms * 1000,
    )
    return number


def _take_verdict(take: _Upload, item: Any) -> tuple[str, bool]:
    """(verdict_id, whether it is new)."""
    tx = take.tx
    if (
        not isinstance(item, dict)
        or not set(item) <= _ITEM_MEMBERS
        or not isinstance(item.get("outcome_unknown", False), bool)
    ):
        raise _RefusedItem(BatchCode.MALFORMED, f"an item has at most {', '.join(sorted(_ITEM_MEMBERS))}")
    wrapper: JsonObject = item.get("signed_verdict", {})
    try:
        kid = signer_kid_of(Kind.VERDICT, wrapper)
        key = _verdict_key(take, kid)
        verdict = Verdict.from_obj(verify_object(Kind.VERDICT, wrapper, key))
        verdict_id = object_ref(wrapper)
    except FormatError as error:
        raise _RefusedItem(BatchCode.MALFORMED, error) from None
    except SignatureError as error:
        raise _RefusedItem(BatchCode.BAD_SIGNATURE, error) from None
    if verdict.device_id != take.device_id:
        raise _RefusedItem(BatchCode.WRONG_DEVICE)
    if verdict.decided_at_ms > LATEST_MS:
        raise _RefusedItem(BatchCode.MALFORMED, "decided_at_ms is after the year 9999")
    if tx.exists("SELECT 1 FROM verdicts WHERE verdict_id = :verdict_id", verdict_id=verdict_id):
        return verdict_id, False
    rival = tx.one(
        "SELECT verdict_id FROM verdicts WHERE signer_kid = :kid AND verdict_seq = :seq",
        kid=kid,
        seq=verdict.verdict_seq,
    )
    if rival is not None:
        _keep_evidence(take, rival["verdict_id"], BatchCode.SEQ_CONFLICT, wrapper)
        raise _RefusedItem(BatchCode.SEQ_CONFLICT)
    _insert(take, verdict_id, verdict, wrapper)
    return verdict_id, True


def _verdict_key(take: _Upload, kid: str) -> PublicKey:
    """The device's verdict key of a kid, of this registration or an archived one."""
    row = take.tx.one(
        "SELECT pub, tenant_id, device_id FROM device_keys WHERE kid = :kid AND purpose = 'verdict'", kid=kid
    )
    # A key of another tenant counts as unknown.
    if row is None or row["tenant_id"] != take.environment.tenant_id:
        raise _RefusedItem(BatchCode.UNKNOWN_SIGNER)
    if row["device_id"] != take.device_id:
        raise _RefusedItem(BatchCode.WRONG_DEVICE)
    return PublicKey(row["pub"])


def _insert(take: _Upload, verdict_id: str, verdict: Verdict, wrapper: JsonObject) -> None:
    tx, subject_id = take.tx, None
    if verdict.subject_ref is not None:
        subject_id = tx.scalar(
            """SELECT subject_id FROM subjects
               WHERE tenant_id = :tenant_id AND livemode = :livemode AND subject_ref = :subject_ref""",
            subject_ref=verdict.subject_ref,
            **take.environment.params,
        )
    tx.run(
        """INSERT INTO verdicts (verdict_id, tenant_id, livemode, device_id, signer_kid, verdict_seq,
                                 prev_ref, txn_id, gate_id, dbd_id, decision, result, hand, pad_res,
                                 quality_q, model_id, subject_id, decided_ms, received_ms, passage_sensor,
                                 signed_verdict, chain_broken, reconciliation, change_no)
           SELECT :verdict_id, :tenant_id, :livemode, :device_id, :kid, :seq,
                  :prev_ref, :txn_id, :gate_id, :dbd_id, :decision, :result, :hand, :pad_res,
                  :quality_q, :model_id, :subject_id, :decided_ms, :now_ms, passage_sensor,
                  :wrapper, 0, 'awaiting_decision', :change_no
           FROM devices WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        verdict_id=verdict_id,
        device_id=verdict.device_id,
        kid=wrapper["signer_kid"],
        seq=verdict.verdict_seq,
        prev_ref=verdict.prev_ref,
        txn_id=verdict.txn_id,
        gate_id=verdict.gate_id,
        dbd_id=verdict.dbd_id,
        decision=verdict.decision.value,
        result=verdict.result.value,
        hand=verdict.hand,
        pad_res=verdict.pad.res,
        quality_q=verdict.quality_q,
        model_id=verdict.model_id,
        subject_id=subject_id,
        decided_ms=verdict.decided_at_ms,
        now_ms=take.now_ms,
        wrapper=_text(wrapper),
        change_no=take.change_no,
        **take.environment.params,
    )
    tx.run(
        """INSERT INTO events (event_id, tenant_id, livemode, kind, verdict_id, subject_id, created_ms)
           VALUES (:event_id, :tenant_id, :livemode, 'verdict.recorded', :verdict_id, :subject_id,
                   :now_ms)""",
        event_id=str(uuid.uuid4()),
        verdict_id=verdict_id,
        subject_id=subject_id,
        now_ms=take.now_ms,
        **take.environment.params,
    )
    rollouts.count_verdict(
        tx,
        take.environment,
        take.device_id,
        decided_ms=verdict.decided_at_ms,
        accepted=verdict.decision is VerdictDecision.ACCEPT,
        now_ms=take.now_ms,
    )
    _link_chain(take, wrapper["signer_kid"], verdict.verdict_seq)


def _link_chain(take: _Upload, kid: str, seq: int) -> None:
    """Judge the chain at a verdict that has just come, and at the one after it."""
    tx = take.tx
    rows = {
        row["verdict_seq"]: row
        for row in tx.all(
            """SELECT verdict_id, verdict_seq, prev_ref, chain_broken FROM verdicts
               WHERE signer_kid = :kid AND verdict_seq BETWEEN :low AND :high""",
            kid=kid,
            low=seq - 1,
            high=seq + 1,
        )
    }
    for row in (rows.get(seq), rows.get(seq + 1)):
        if row is None:
            continue
        if row["verdict_seq"] == 1:
            broken = row["prev_ref"] != PREV_REF_OF_FIRST
        else:
            before = rows.get(row["verdict_seq"] - 1) or deleted_before(tx, kid, row["verdict_seq"])
            broken = before is None or before["verdict_id"] != row["prev_ref"]
        if broken != row["chain_broken"]:
            tx.run(
                "UPDATE verdicts SET chain_broken = :broken WHERE verdict_id = :verdict_id",
                broken=int(broken),
                verdict_id=row["verdict_id"],
            )
            _refresh(take, row["verdict_id"])


@dataclass(frozen=True, slots=True)
class _Part(Generic[V]):
    """How one of the two signed answers of a validator is read and stored."""

    kind: Kind
    member: str
    verified: str
    read: Callable[[JsonObject], V]
    at_ms: Callable[[V], int]
    bad: BatchCode


_DECISION = _Part(
    Kind.DECISION,
    "signed_decision",
    "decision_verified",
    Decision.from_obj,
    lambda decision: decision.decided_at_ms,
    BatchCode.BAD_DECISION,
)
_PASSAGE = _Part(
    Kind.PASSAGE,
    "signed_passage",
    "passage_verified",
    Passage.from_obj,
    lambda passage: passage.at_ms,
    BatchCode.BAD_PASSAGE,
)


def _take_outcome(take: _Upload, verdict_id: str, item: JsonObject) -> list[tuple[BatchCode, str]]:
    """The outcome of a verdict; the codes of the refused parts, and why."""
    if item.get("outcome_unknown"):
        take.tx.run("UPDATE verdicts SET outcome_unknown = 1 WHERE verdict_id = :id", id=verdict_id)
    refused = []
    try:
        _take_part(take, verdict_id, item, _DECISION)
    except _RefusedItem as refusal:
        refused.append((refusal.code, str(refusal)))
    try:
        _take_part(take, verdict_id, item, _PASSAGE)
    except _RefusedItem as refusal:
        refused.append((refusal.code, str(refusal)))
    return refused


def _take_part(take: _Upload, verdict_id: str, item: JsonObject, part: _Part[V]) -> None:
    if part.member not in item:
        return
    wrapper = item[part.member]
    row = _row(take.tx, verdict_id)
    try:
        verified = _verified(take, row["dbd_id"], wrapper, part)
        text = _text(wrapper)
    except (FormatError, SignatureError) as error:
        raise _RefusedItem(part.bad, error) from None
    held: str | None = row[part.member]
    # What was kept unverified is verified once the validator's key is known and it is sent again.
    replaces = held is None or (verified and not row[part.verified])
    if replaces:
        take.tx.run(
            f"""UPDATE verdicts SET {part.member} = :text, {part.verified} = :verified,
                       change_no = :change_no
                WHERE verdict_id = :verdict_id""",  # noqa: S608 - two fixed column names
            text=text,
            verified=int(verified),
            change_no=take.change_no,
            verdict_id=verdict_id,
        )
    if held is not None and held != text:
        _keep_evidence(take, verdict_id, part.bad, json.loads(held) if replaces else wrapper)


def _verified(take: _Upload, dbd_id: str, wrapper: object, part: _Part[V]) -> bool:
    """True when a known key of the validator signed it, False when the key is not known.

    A key is good when it counts at the object's own time or at the time of receipt: a validator whose clock
    is wrong has still opened the gate. FormatError or SignatureError when the contents or the
    signature are wrong.
    """
    kid = signer_kid_of(part.kind, wrapper)
    obj: JsonObject = wrapper[part.kind.member]  # type: ignore[index]
    value = part.read(obj)
    key = next(
        (
            found
            for at_ms in (part.at_ms(value), take.now_ms)
            if (found := device_config.dbd_key_by_kid(take.tx, take.environment, dbd_id, kid, at_ms))
        ),
        None,
    )
    if key is None:
        return False
    verify_object(part.kind, wrapper, key)
    return True


def _keep_evidence(take: _Upload, verdict_id: str, code: BatchCode, wrapper: JsonObject) -> None:
    take.tx.run(
        """INSERT INTO verdict_evidence (evidence_ref, verdict_id, code, wrapper, received_ms)
           VALUES (:ref, :verdict_id, :code, :wrapper, :now_ms) ON CONFLICT DO NOTHING""",
        ref=object_ref(wrapper),
        verdict_id=verdict_id,
        code=code.value,
        wrapper=_text(wrapper),
        now_ms=take.now_ms,
    )
    take.tx.run("UPDATE verdicts SET disputed = 1 WHERE verdict_id = :verdict_id", verdict_id=verdict_id)
    _refresh(take, verdict_id)


def _refresh(take: _Upload, verdict_id: str) -> None:
    """Bring ``reconciliation`` of a record in line with what is known."""
    row = _row(take.tx, verdict_id)
    decision, passage = row["signed_decision"], row["signed_passage"]
    facts = Facts(
        verdict_ref=verdict_id,
        verdict=Verdict.from_obj(json.loads(row["signed_verdict"])["verdict"]),
        decision=None if decision is None else Decision.from_obj(json.loads(decision)["decision_obj"]),
        decision_verified=bool(row["decision_verified"]),
        passage=None if passage is None else Passage.from_obj(json.loads(passage)["passage"]),
        passage_verified=bool(row["passage_verified"]),
        outcome_unknown=bool(row["outcome_unknown"]),
        passage_sensor=bool(row["passage_sensor"]),
        chain_broken=bool(row["chain_broken"]),
        disputed=bool(row["disputed"]),
    )
    reconciliation = reconcile(facts).value
    if reconciliation != row["reconciliation"]:
        take.tx.run(
            """UPDATE verdicts SET reconciliation = :reconciliation, change_no = :change_no
               WHERE verdict_id = :verdict_id""",
            reconciliation=reconciliation,
            change_no=take.change_no,
            verdict_id=verdict_id,
        )


def _row(tx: Tx, verdict_id: str) -> Row:
    return tx.row("SELECT * FROM verdicts WHERE verdict_id = :verdict_id", verdict_id=verdict_id)


def _text(wrapper: JsonObject) -> str:
    return canonical_bytes(wrapper).decode()
