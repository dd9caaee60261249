"""Verdicts as the partner sees them: the list and the proof."""

import json
from typing import Final

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.problems import FieldError, Problem, ProblemCode
from cloud_client.reference_server.contract.times import DAY_MS, LATEST_MS, months_before, rfc3339
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.devices.registration import key_object
from cloud_client.reference_server.domain.pages import Listed, Position, list_page, read_cursor
from cloud_client.reference_server.domain.tenancy import persons
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.domain.tenancy.rows import own_row
from cloud_client.reference_server.domain.verdicts.expiry import VERDICT_MONTHS
from cloud_client.reference_server.store.base import Row, Tx
from cloud_client.reference_server.store.vault import Vault
from link1.keys import PublicKey
from link1.signed import Kind

_PREFIXES: Final = shown.Prefixes(
    verdict=Kind.VERDICT.prefix, decision=Kind.DECISION.prefix, passage=Kind.PASSAGE.prefix
)
_WRAPPERS: Final = ("signed_verdict", "signed_decision", "signed_passage")

_FILTERS: Final = ("device_id", "gate_id", "subject_id", "decision", "reconciliation")
_COLUMNS: Final = """tenant_id, verdict_id, txn_id, device_id, gate_id, dbd_id, verdict_seq, decision, result,
    pad_res, quality_q, model_id, decided_ms, received_ms, reconciliation, hand, subject_id, signed_decision,
    signed_passage, change_no"""
"""What a record is made of: not the signed verdict, which is most of a row."""
CHANGES_CURSOR_MS: Final = VERDICT_MONTHS * 30 * DAY_MS
"""A back office that was away for longer may have missed a record that is deleted already."""


def list_verdicts(call: Call, tx: Tx) -> ApiAnswer:
    """listVerdicts: by decided_at, newest first unless asked otherwise."""
    query = call.query
    if query["from"] is not None and query["to"] is not None and query["from"] > query["to"]:
        raise Problem(ProblemCode.INVALID_REQUEST, errors=[FieldError("/from", "after_to")])
    after = read_cursor(call, "verdicts", max_age_ms=None)
    # A gate whose clock is years behind has records there that are young.
    if (
        after is not None
        and after[0] < months_before(call.now_ms, VERDICT_MONTHS)
        and not tx.exists("SELECT 1 FROM verdicts WHERE verdict_id = :verdict_id", verdict_id=after[1])
    ):
        raise Problem(ProblemCode.CURSOR_EXPIRED)
    listed = Listed(
        "verdicts",
        "verdicts",
        "decided_ms",
        "verdict_id",
        shown.VerdictPage,
        {name: query[name] for name in _FILTERS if query[name] is not None},
        rising=query["order"] == "asc",
        since=query["from"],
        until=query["to"],
        columns=_COLUMNS,
    )
    return _page(call, tx, listed, after)


def list_verdict_changes(call: Call, tx: Tx) -> ApiAnswer:
    """listVerdictChanges: records in the order in which they came or changed last."""
    after = read_cursor(call, "verdict-changes", max_age_ms=CHANGES_CURSOR_MS) or (0, "")
    listed = Listed(
        "verdict-changes",
        "verdicts",
        "change_no",
        "verdict_id",
        shown.VerdictChangesPage,
        {},
        rising=True,
        endless=True,
        columns=_COLUMNS,
    )
    return _page(call, tx, listed, after)


def _page(call: Call, tx: Tx, listed: Listed, after: Position | None) -> ApiAnswer:
    names: dict[str, str | None] = {}
    return list_page(call, tx, listed, after, lambda row: record_object(tx, call.vault, row, names))


def get_verdict(call: Call, tx: Tx) -> ApiAnswer:
    """getVerdict: the record with everything that proves it."""
    missing = ProblemCode.VERDICT_NOT_FOUND
    row = own_row(tx, call.environment, "verdicts", missing, verdict_id=call.path["verdict_id"])
    signer = tx.one("SELECT pub FROM device_keys WHERE kid = :kid", kid=row["signer_kid"])
    dbd_key = _dbd_key(tx, call.environment, row, call.now_ms)
    wrappers = {name: row[name] and json.loads(row[name]) for name in _WRAPPERS}
    verification = shown.VerificationAnswer(
        verdict_ref=row["verdict_id"],
        device_verdict_key=None if signer is None else key_object(PublicKey(signer["pub"])),
        dbd_sign_key=None if dbd_key is None else key_object(dbd_key),
        prefixes=_PREFIXES,
    )
    record = record_object(tx, call.vault, row, {})
    return ApiAnswer(200, shown.VerdictProof.of(row, record=record, verification=verification, **wrappers))


def _dbd_key(tx: Tx, environment: Environment, row: Row, now_ms: int) -> PublicKey | None:
    """The validator's key that verified its decision; else the one valid then, else the one valid now."""
    decided_ms = now_ms
    if row["signed_decision"] is not None:
        decision = json.loads(row["signed_decision"])
        if row["decision_verified"]:
            pub = tx.scalar(
                """SELECT pub FROM dbd_windows WHERE tenant_id = :tenant_id AND livemode = :livemode
                   AND dbd_id = :dbd_id AND kid = :kid""",
                dbd_id=row["dbd_id"],
                kid=decision["signer_kid"],
                **environment.params,
            )
            if pub is not None:
                return PublicKey(pub)
        decided_ms = decision["decision_obj"]["decided_at_ms"]
    return device_config.dbd_key_at(tx, environment, row["dbd_id"], decided_ms) or device_config.dbd_key_at(
        tx, environment, row["dbd_id"], now_ms
    )


def record_object(tx: Tx, vault: Vault, row: Row, names: dict[str, str | None]) -> shown.VerdictAnswer:
    """The Verdict record of the contract; ``names`` keeps what persons of the same answer are called."""
    subject_id, dbd, passage = row["subject_id"], None, None
    if subject_id is not None and subject_id not in names:
        subject = tx.one("SELECT * FROM subjects WHERE subject_id = :id", id=subject_id)
        names[subject_id] = None if subject is None else persons.load(vault, subject).external_ref
    external_ref = names.get(subject_id)
    if row["signed_decision"] is not None:
        decision = json.loads(row["signed_decision"])["decision_obj"]
        dbd = shown.DbdDecision.of(decision, decided_at=_shown(decision["decided_at_ms"]))
    if row["signed_passage"] is not None:
        passage_obj = json.loads(row["signed_passage"])["passage"]
        passage = shown.PassageOfVerdict.of(passage_obj, at=_shown(passage_obj["at_ms"]))
    return shown.VerdictAnswer.of(
        row,
        subject_id=subject_id if external_ref is not None else None,
        external_ref=external_ref,
        dbd=dbd,
        passage=passage,
    )


def _shown(at_ms: int) -> str:
    """A time that a validator signed, whose clock may be wrong by any amount: the calendar ends with 9999."""
    return rfc3339(min(at_ms, LATEST_MS))
