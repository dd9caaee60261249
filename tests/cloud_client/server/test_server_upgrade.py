"""A database of schema version 2, brought up with what is in it: CPFs, verdicts, late decisions."""

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cloud_client.reference_server.domain.tenancy import persons
from cloud_client.reference_server.errors import OperatorError, ServerError
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.engines import open_store
from cloud_client.reference_server.store.vault import Vault, unseal
from tests.cloud_client.server.server_database import cluster
from tests.cloud_client.server.server_harness import Cloud, code_of, decision
from tests.cloud_client.server.test_server_verdicts import item

CPF = "52998224725"
_BACK_TO_4 = (
    "DROP INDEX devices_revoked",
    "DROP INDEX inbox_palms",
    "DROP INDEX sessions_waiting",
    "DROP INDEX erasures_unsettled",
    "ALTER TABLE erasures DROP COLUMN devices_total",
    "ALTER TABLE erasures DROP COLUMN devices_done",
    "DROP TABLE last_sweep",
    "ALTER TABLE erasure_devices DROP COLUMN registration_no",
    "DROP TABLE chain_marks",
    "DROP TABLE key_marks",
    "ALTER TABLE inbox DROP COLUMN listed",
    "DROP INDEX verdicts_received",
    "DROP VIEW gallery_templates",
    "DROP INDEX templates_by_id",
    "ALTER TABLE streams DROP COLUMN kept_epoch",
    "DROP TABLE wrapping_keys",
    "ALTER TABLE signers DROP COLUMN published_ms",
    *(
        f"DROP TABLE {table}"
        for table in (
            "rollout_verdicts",
            "rollout_devices",
            "rollouts",
            "release_chunks",
            "releases",
            "device_reports",
            "attested_leaves",
        )
    ),
    "DROP INDEX inbox_undelivered",
    "ALTER TABLE inbox DROP COLUMN release_seq",
    *(
        f"ALTER TABLE devices DROP COLUMN {name}"
        for name in (
            "attested_ms",
            "attested_until_ms",
            "attested_ca",
            "network_ms",
            "mail_ms",
        )
    ),
    "ALTER TABLE devices ADD COLUMN attest_level TEXT NOT NULL DEFAULT 'x509'",
    "ALTER TABLE devices ADD COLUMN attest_verified INTEGER NOT NULL DEFAULT 1",
    """UPDATE devices SET health = '["KEY_UNATTESTED", "CABLE_DOWN"]'""",
    "ALTER TABLE tenants DROP COLUMN offline_after_s",
    "DELETE FROM schema_version WHERE version > 4",
)
_BACK = (
    *_BACK_TO_4,
    "DROP TABLE upgrade_steps",
    "DROP INDEX verdicts_changes",
    "DROP INDEX templates_removed",
    *(f"DROP INDEX devices_by_{name}" for name in ("status", "gate_id", "kind")),
    "DROP INDEX subjects_by_status",
    *(
        f"DROP INDEX verdicts_by_{name}"
        for name in ("device_id", "gate_id", "decision", "reconciliation", "subject_id")
    ),
    "ALTER TABLE verdicts DROP COLUMN change_no",
    "ALTER TABLE streams DROP COLUMN verdict_change_no",
    "CREATE INDEX verdicts_device ON verdicts (tenant_id, device_id, decided_ms)",
    "CREATE INDEX verdicts_subject ON verdicts (subject_id) WHERE subject_id IS NOT NULL",
    """CREATE INDEX verdicts_conflicts ON verdicts (tenant_id, livemode, decided_ms, verdict_id)
        WHERE reconciliation = 'conflict'""",
    """CREATE TABLE dbd_keys AS
        SELECT tenant_id, livemode, dbd_id, kid, pub, not_before_ms, not_after_ms FROM dbd_windows""",
    "DROP TABLE dbd_windows",
    "DELETE FROM schema_version WHERE version > 2",
)


def as_of_version_2(tx: Tx, vault: Vault) -> None:
    """Undo what later versions do, the sealing of CPFs included."""
    for row in tx.all("SELECT * FROM subjects WHERE cpf_ct IS NOT NULL"):
        context = f"cpf {row['subject_id']}".encode()
        cpf = unseal(persons.key_of_row(vault, row), row["cpf_ct"], context)
        tx.run(
            "UPDATE subjects SET cpf_ct = :ct WHERE subject_id = :id",
            ct=vault.kms.wrap(tx, cpf, context),
            id=row["subject_id"],
        )
    tx.run("UPDATE verdicts SET reconciliation = 'outcome_unknown' WHERE outcome_unknown = 1")
    for statement in _BACK:
        tx.run(statement)


@pytest.mark.parametrize("engine", ["sqlite", "postgresql"])
def test_an_upgrade_with_people_and_verdicts(tmp_path: Path, engine: str) -> None:
    database = f"sqlite:///{tmp_path / 'cloud.db'}" if engine == "sqlite" else cluster().new_database()
    cloud = Cloud(tmp_path, database=database)
    tenant = cloud.new_tenant()
    partner, gate, key = tenant.partner(), tenant.device(passage_sensor=True), tenant.add_dbd()
    with_cpf, without = partner.person(cpf=CPF), partner.person()
    for late in (True, False):
        verdict = gate.verdict()
        cloud.clock.forward(s=1)
        gate.upload(item(verdict, outcome_unknown=late, decided=decision(verdict, key)))
    waited_for = partner.delete(f"/v1/subjects/{partner.person()['subject_id']}")
    over = partner.delete(f"/v1/subjects/{partner.person()['subject_id']}")

    def back(tx: Tx, vault: Vault, _: int) -> None:
        """The gate was registered again since the second erasure."""
        tx.run("UPDATE erasures SET erased_ms = 1 WHERE receipt_id = :id", id=over["receipt_id"])
        as_of_version_2(tx, vault)

    cloud.operate(back)
    cloud.restart()
    receipts = [
        partner.get(f"/v1/erasure-receipts/{receipt['receipt_id']}") for receipt in (waited_for, over)
    ]
    assert [receipt["propagation"]["status"] for receipt in receipts] == ["pending", "complete"]

    def row(tx: Tx, *_: object) -> Any:
        return tx.one("SELECT * FROM subjects WHERE cpf_ct IS NOT NULL")

    vault = cloud.api.service.vault
    sealed = cloud.operate(row)
    person_key = persons.key_of_row(vault, sealed)
    assert sealed["subject_id"] == with_cpf["subject_id"]
    assert unseal(person_key, sealed["cpf_ct"], f"cpf {with_cpf['subject_id']}".encode()) == CPF.encode()
    assert cloud.operate(lambda tx, *_: tx.exists("SELECT 1 FROM upgrade_steps")) is False
    # It is still found by its HMAC, and said to be on file.
    again = partner.send("POST", "/v1/subjects", {"external_ref": "other", "cpf": CPF})
    assert code_of(again) == "cpf_conflict"
    for person, on_file in ((with_cpf, True), (without, False)):
        assert partner.get(f"/v1/subjects/{person['subject_id']}")["kyc"] == {"cpf_on_file": on_file}
    changes = partner.get("/v1/verdict-changes", limit=1)
    rest = partner.get("/v1/verdict-changes", cursor=changes["next_cursor"])
    assert [record["verdict_seq"] for record in changes["data"] + rest["data"]] == [1, 2]
    assert {record["reconciliation"] for record in changes["data"] + rest["data"]} == {"awaiting_passage"}
    cloud.clock.forward(s=1)
    gate.upload(item(gate.verdict()))
    new = partner.get("/v1/verdict-changes", cursor=rest["next_cursor"])["data"]
    assert [record["verdict_seq"] for record in new] == [3]
    erased = partner.send("DELETE", f"/v1/subjects/{with_cpf['subject_id']}").json()
    assert "cpf_ciphertext" in erased["signed_receipt"]["receipt"]["erased"]
    # A device that was attested then has to be again; what it says of itself is kept.
    (listed,) = partner.get("/v1/devices")["data"]
    assert listed["health"] == ["CABLE_DOWN", "KEY_UNATTESTED"]
    assert listed["trust"] == {"attest_level": "none", "verified": False}
    cloud.clock.forward(s=900)
    assert "OFFLINE" in partner.get("/v1/devices")["data"][0]["health"]
    cloud.close()


def test_a_store_of_before_takes_the_keys_that_it_is_started_with(own_cloud: Cloud) -> None:
    """From then on others are refused."""
    server_key = own_cloud.data.path / "secrets" / "server.key"

    def forget(tx: Tx, *_: object) -> None:
        tx.run("DELETE FROM key_marks")

    own_cloud.operate(forget)
    server_key.write_bytes(bytes(32))
    own_cloud.restart()
    server_key.write_bytes(bytes([1]) * 32)
    with pytest.raises(OperatorError, match=r"secrets/server\.key"):
        own_cloud.operate(forget)
    server_key.write_bytes(bytes(32))
    own_cloud.restart()


def test_a_cpf_is_sealed_under_the_persons_key(cloud: Cloud) -> None:
    """Neither the key-management key nor another person's key opens it."""
    partner = cloud.new_tenant().partner()
    people = [partner.person(cpf=cpf) for cpf in (CPF, "11144477735")]
    with closing(open_store(cloud.data.database)) as store, store.reading() as tx:
        rows = [
            tx.one("SELECT * FROM subjects WHERE subject_id = :id", id=person["subject_id"])
            for person in people
        ]
    vault = cloud.api.service.vault
    one, other = rows
    assert one is not None and other is not None
    context = f"cpf {one['subject_id']}".encode()
    assert unseal(persons.key_of_row(vault, one), one["cpf_ct"], context) == CPF.encode()
    with pytest.raises(ServerError, match="does not open"):
        unseal(persons.key_of_row(vault, other), one["cpf_ct"], context)
    with pytest.raises(ServerError, match="does not open"):
        vault.kms.unwrap(one["cpf_ct"], context)
