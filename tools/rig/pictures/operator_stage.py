"""A believable day at a transport operator, written straight into a store.

For looking at the operator's page: nothing here is signed or enrolled.
"""

import json
import os
import random
import uuid
from typing import Any, Final

from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.vault import Vault

_S: Final = 1000
_MIN: Final = 60 * _S
_H: Final = 60 * _MIN
_STATIONS: Final = ("airport", "central-n", "central-s", "harbour", "museum", "university")
_STREAM_SEQ: Final = 4127


def fill(tx: Tx, vault: Vault, now_ms: int) -> str:
    """Make a tenant with devices, verdicts, sessions and erasures; an API key for its test environment."""
    tenant_id = operator.create_tenant(tx, vault, "Porto Metro", now_ms)["tenant_id"]
    environment = Environment(tenant_id, livemode=False)
    chance = random.Random(7)  # noqa: S311 - the same picture every time
    tx.run(
        "UPDATE streams SET seq = :seq, count = 3981 WHERE stream = :stream",
        seq=_STREAM_SEQ,
        stream=environment.stream,
    )
    device_ids = _devices(tx, environment, now_ms)
    _verdicts(tx, environment, now_ms, device_ids, chance)
    _sessions(tx, environment, now_ms, device_ids)
    _erasures(tx, environment, now_ms, device_ids)
    scopes = ["subjects:read", "devices:read", "verdicts:read"]
    key: str = operator.create_key(tx, environment, scopes, now_ms)["api_key"]
    return key


def _insert(tx: Tx, table: str, **columns: Any) -> None:
    names = ", ".join(columns)
    values = ", ".join(f":{name}" for name in columns)
    tx.run(f"INSERT INTO {table} ({names}) VALUES ({values})", **columns)  # noqa: S608 - our own names


def _devices(tx: Tx, environment: Environment, now_ms: int) -> list[str]:
    stories: list[tuple[str, str, int, int, list[str]]] = [
        # status, kind, deltas behind, last seen before, health
        ("active", "access", 0, 12 * _S, []),
        ("active", "access", 0, 3 * _S, []),
        ("active", "access", 3, 8 * _S, []),
        ("active", "access", 0, 41 * _S, ["KEY_UNATTESTED"]),
        ("active", "access", 212, 2 * _H + 14 * _MIN, ["KEY_UNATTESTED", "CAMERA_FAULT"]),
        ("active", "access", 0, 19 * _S, []),
        ("active", "access", 1876, 26 * _H, []),
        ("active", "totem", 0, 33 * _S, []),
        ("active", "access", 0, 27 * _S, []),
        ("revoked", "access", 640, 3 * _H, []),
        ("wiped", "access", 900, 40 * 24 * _H, []),
    ]
    device_ids = []
    for number, (status, kind, behind, seen, health) in enumerate(stories, 1):
        gate = f"{_STATIONS[number % len(_STATIONS)]}-{number % 4 + 1}"
        device_id = f"{'kiosk' if kind == 'totem' else 'palm'}-{1040 + number * 7}"
        device_ids.append(device_id)
        _insert(
            tx,
            "devices",
            device_id=device_id,
            kind=kind,
            status=status,
            gate_id=gate,
            dbd_id=f"dbd-{number:02d}",
            passage_sensor=1,
            app_pkg="palm-access-device",
            app_version="0.1.0",
            model_id="palm-gen-4",
            seal_pub=os.urandom(32),
            health=json.dumps(health),
            acked_epoch=1 if kind == "access" else 0,
            acked_seq=_STREAM_SEQ - behind if kind == "access" else 0,
            synced_ms=now_ms - seen if kind == "access" else None,
            last_seen_ms=now_ms - seen,
            network_ms=now_ms - seen,
            registered_ms=now_ms - (30 + number) * 24 * _H,
            registration_no=1,
            revoked_ms=None if status == "active" else now_ms - seen,
            **environment.params,
        )
    return device_ids


def _verdicts(
    tx: Tx, environment: Environment, now_ms: int, device_ids: list[str], chance: random.Random
) -> None:
    at_ms = now_ms
    for number in range(90):
        at_ms -= chance.randrange(2 * _S, 50 * _S)
        conflict = {6: "chain_broken", 31: "decision", 58: "disputed"}.get(number)
        accepted = conflict is not None or chance.random() < 0.82
        waiting = conflict is None and number < 2
        unknown = number == 17
        outcome = "LIBERAR" if accepted else "NEGAR"
        decided = not (waiting or unknown)
        word = "complete"
        if conflict:
            word = "conflict"
        elif not decided:
            word = "outcome_unknown" if unknown else "awaiting_decision"
        elif number == 3 and accepted:
            word = "awaiting_passage"
        passed = decided and accepted and word != "awaiting_passage"
        gate = chance.randrange(6) + 1
        device_id = device_ids[gate - 1]
        _insert(
            tx,
            "verdicts",
            verdict_id=chance.randbytes(16).hex(),
            device_id=device_id,
            signer_kid=device_id,
            verdict_seq=8200 - number,
            prev_ref=chance.randbytes(16).hex(),
            txn_id=chance.randbytes(16).hex(),
            gate_id=f"{_STATIONS[gate % len(_STATIONS)]}-{gate % 4 + 1}",
            dbd_id=f"dbd-{gate:02d}",
            decision="accept" if accepted else "reject",
            result="MATCH" if accepted else "NO_MATCH",
            model_id="palm-gen-4",
            decided_ms=at_ms,
            received_ms=at_ms + 700,
            passage_sensor=1,
            signed_verdict="{}",
            signed_decision=json.dumps({"decision_obj": {"outcome": outcome}}) if decided else None,
            decision_verified=int(conflict != "decision"),
            signed_passage=json.dumps({"passage": {"passed": True}}) if passed else None,
            passage_verified=1,
            chain_broken=int(conflict == "chain_broken"),
            disputed=int(conflict == "disputed"),
            reconciliation=word,
            **environment.params,
        )


def _sessions(tx: Tx, environment: Environment, now_ms: int, device_ids: list[str]) -> None:
    stories = [
        ("open", 40 * _S, '["L", "R"]', None),
        ("review", 9 * _MIN, '["L", "R"]', None),
        ("completed", 22 * _MIN, '["R"]', None),
        ("failed", 51 * _MIN, '["L", "R"]', "capture_rejected"),
        ("completed", 2 * _H, '["L", "R"]', None),
        ("expired", 5 * _H, '["L"]', None),
        ("cancelled", 26 * _H, '["L", "R"]', None),
    ]
    for status, before, hands, failure in stories:
        subject_id = str(uuid.uuid4())
        _insert(
            tx,
            "subjects",
            subject_id=subject_id,
            subject_ref=os.urandom(16).hex(),
            status="pending_enrollment",
            external_ref_mac=os.urandom(32),
            person_key_ct=b"",
            refs_ct=b"",
            has_onboard_ref=0,
            created_ms=now_ms - before,
            updated_ms=now_ms - before,
            **environment.params,
        )
        _insert(
            tx,
            "sessions",
            session_id=str(uuid.uuid4()),
            subject_id=subject_id,
            status=status,
            failure_code=failure,
            hands_required=hands,
            device_id=device_ids[7] if status != "open" else None,
            dataset_collection=0,
            expires_ms=now_ms - before + 5 * _MIN,
            created_ms=now_ms - before,
            **environment.params,
        )


def _erasures(tx: Tx, environment: Environment, now_ms: int, device_ids: list[str]) -> None:
    access = [device_id for device_id in device_ids[:9] if not device_id.startswith("kiosk")]
    for seq, before in ((_STREAM_SEQ, 30 * _S), (_STREAM_SEQ - 60, 3 * _H), (_STREAM_SEQ - 2200, 50 * _H)):
        receipt_id = str(uuid.uuid4())
        _insert(
            tx,
            "erasures",
            receipt_id=receipt_id,
            subject_id=str(uuid.uuid4()),
            epoch=1,
            seq=seq,
            erased_ms=now_ms - before,
            signed_receipt="{}",
            **environment.params,
        )
        for device_id in access:
            _insert(tx, "erasure_devices", receipt_id=receipt_id, device_id=device_id, registration_no=1)
