"""The tables, as numbered migrations (a released one is never edited, only followed by another).

Times are epoch milliseconds (``*_ms``), keys and ciphertexts BLOBs. ``livemode`` is 1 in the live
environment and 0 in the test environment of a tenant. Columns named ``*_ct`` are AES-256-GCM (vault.py):
under the person's own key where the row is about a person, so that erasure destroys them all at once.
"""

from collections.abc import Mapping
from typing import Final

_TENANTS = (
    """CREATE TABLE tenants (
        tenant_id TEXT PRIMARY KEY,
        name TEXT NOT NULL,
        tenant_key_ct BLOB NOT NULL,
        terms_version TEXT NOT NULL,
        duplicate_cosine REAL NOT NULL,
        created_ms BIGINT NOT NULL)""",
    """CREATE TABLE api_keys (
        key_id TEXT PRIMARY KEY,
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        scopes TEXT NOT NULL,
        secret_sha256 BLOB NOT NULL,
        created_ms BIGINT NOT NULL,
        revoked_ms BIGINT)""",
    """CREATE TABLE signers (
        kid TEXT PRIMARY KEY,
        use_word TEXT NOT NULL,
        pub BLOB NOT NULL,
        seed_ct BLOB NOT NULL,
        not_before_ms BIGINT NOT NULL,
        not_after_ms BIGINT)""",
    """CREATE TABLE idempotency (
        scope_hash BLOB NOT NULL,
        key_mac BLOB NOT NULL,
        body_mac BLOB NOT NULL,
        started_ms BIGINT NOT NULL,
        answer_ct BLOB,
        subject_id TEXT,
        PRIMARY KEY (scope_hash, key_mac))""",
    "CREATE INDEX idempotency_started ON idempotency (started_ms)",
    "CREATE INDEX idempotency_subject ON idempotency (subject_id) WHERE subject_id IS NOT NULL",
    """CREATE TABLE nonces (
        kid TEXT NOT NULL,
        nonce TEXT NOT NULL,
        expires_ms BIGINT NOT NULL,
        PRIMARY KEY (kid, nonce))""",
    "CREATE INDEX nonces_expires ON nonces (expires_ms)",
)

_SUBJECTS = (
    """CREATE TABLE subjects (
        subject_id TEXT PRIMARY KEY,
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        subject_ref TEXT NOT NULL,
        status TEXT NOT NULL,
        external_ref_mac BLOB NOT NULL,
        cpf_mac BLOB,
        cpf_ct BLOB,
        person_key_ct BLOB NOT NULL,
        refs_ct BLOB NOT NULL,
        has_onboard_ref INTEGER NOT NULL,
        model_id TEXT,
        hands TEXT,
        enrolled_ms BIGINT,
        gallery_seq BIGINT,
        suspended INTEGER NOT NULL DEFAULT 0,
        operator_block_reason TEXT,
        operator_blocked_ms BIGINT,
        created_ms BIGINT NOT NULL,
        updated_ms BIGINT NOT NULL)""",
    "CREATE UNIQUE INDEX subjects_external_ref ON subjects (tenant_id, livemode, external_ref_mac)",
    "CREATE UNIQUE INDEX subjects_cpf ON subjects (tenant_id, livemode, cpf_mac) WHERE cpf_mac IS NOT NULL",
    "CREATE UNIQUE INDEX subjects_ref ON subjects (tenant_id, livemode, subject_ref)",
    "CREATE INDEX subjects_page ON subjects (tenant_id, livemode, created_ms, subject_id)",
    """CREATE TABLE consents (
        consent_id TEXT PRIMARY KEY,
        subject_id TEXT NOT NULL REFERENCES subjects ON DELETE CASCADE,
        purpose TEXT NOT NULL,
        status TEXT NOT NULL,
        terms_version TEXT NOT NULL,
        method TEXT NOT NULL,
        evidence_sha256 TEXT,
        granted_ms BIGINT NOT NULL,
        revoked_ms BIGINT,
        recorded_no INTEGER NOT NULL)""",
    "CREATE INDEX consents_subject ON consents (subject_id, purpose, recorded_no)",
    "CREATE UNIQUE INDEX consents_current ON consents (subject_id, purpose) WHERE status = 'granted'",
    """CREATE TABLE sessions (
        session_id TEXT PRIMARY KEY,
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        subject_id TEXT NOT NULL REFERENCES subjects ON DELETE CASCADE,
        status TEXT NOT NULL,
        failure_code TEXT,
        hands_required TEXT NOT NULL,
        device_id TEXT,
        completed_by_device_id TEXT,
        enrollment_id TEXT,
        token_hash BLOB,
        token_ct BLOB,
        short_code_mac BLOB,
        dataset_collection INTEGER NOT NULL,
        review_ct BLOB,
        expires_ms BIGINT NOT NULL,
        created_ms BIGINT NOT NULL,
        completed_ms BIGINT)""",
    "CREATE UNIQUE INDEX sessions_token ON sessions (token_hash) WHERE token_hash IS NOT NULL",
    """CREATE UNIQUE INDEX sessions_short_code ON sessions (tenant_id, short_code_mac)
        WHERE short_code_mac IS NOT NULL""",
    "CREATE INDEX sessions_subject ON sessions (subject_id)",
    "CREATE INDEX sessions_expires ON sessions (expires_ms) WHERE status = 'open'",
)

_DEVICES = (
    """CREATE TABLE provisioning_tokens (
        token_hash BLOB PRIMARY KEY,
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        device_id TEXT NOT NULL,
        expires_ms BIGINT NOT NULL,
        keys_digest BLOB)""",
    """CREATE TABLE devices (
        tenant_id TEXT NOT NULL REFERENCES tenants,
        device_id TEXT NOT NULL,
        livemode INTEGER NOT NULL,
        kind TEXT NOT NULL,
        status TEXT NOT NULL,
        gate_id TEXT NOT NULL,
        dbd_id TEXT NOT NULL,
        passage_sensor INTEGER NOT NULL,
        app_pkg TEXT NOT NULL,
        app_version TEXT NOT NULL,
        model_id TEXT NOT NULL,
        seal_pub BLOB NOT NULL,
        attest_level TEXT NOT NULL,
        attest_verified INTEGER NOT NULL,
        health TEXT NOT NULL,
        acked_epoch BIGINT NOT NULL DEFAULT 0,
        acked_seq BIGINT NOT NULL DEFAULT 0,
        synced_ms BIGINT,
        last_seen_ms BIGINT NOT NULL,
        registered_ms BIGINT NOT NULL,
        registration_no INTEGER NOT NULL,
        revoked_ms BIGINT,
        revoke_reason TEXT,
        wipe_id TEXT,
        PRIMARY KEY (tenant_id, device_id))""",
    "CREATE INDEX devices_page ON devices (tenant_id, livemode, registered_ms, device_id)",
    """CREATE TABLE device_keys (
        kid TEXT PRIMARY KEY,
        tenant_id TEXT NOT NULL,
        device_id TEXT NOT NULL,
        purpose TEXT NOT NULL,
        pub BLOB NOT NULL,
        registration_no INTEGER NOT NULL,
        created_ms BIGINT NOT NULL,
        FOREIGN KEY (tenant_id, device_id) REFERENCES devices)""",
    "CREATE INDEX device_keys_device ON device_keys (tenant_id, device_id)",
    """CREATE TABLE challenges (
        tenant_id TEXT NOT NULL,
        device_id TEXT NOT NULL,
        challenge BLOB NOT NULL,
        expires_ms BIGINT NOT NULL,
        PRIMARY KEY (tenant_id, device_id))""",
    """CREATE TABLE dbd_keys (
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        dbd_id TEXT NOT NULL,
        kid TEXT NOT NULL,
        pub BLOB NOT NULL,
        not_before_ms BIGINT NOT NULL,
        not_after_ms BIGINT,
        PRIMARY KEY (tenant_id, livemode, dbd_id, kid))""",
)

_GALLERY = (
    """CREATE TABLE streams (
        stream TEXT PRIMARY KEY,
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        epoch BIGINT NOT NULL,
        seq BIGINT NOT NULL,
        head BLOB NOT NULL,
        count BIGINT NOT NULL,
        model_id TEXT)""",
    "CREATE UNIQUE INDEX streams_environment ON streams (tenant_id, livemode)",
    # subject_id is there for entries that speak of a living person only; compaction clears it.
    """CREATE TABLE deltas (
        stream TEXT NOT NULL REFERENCES streams,
        epoch BIGINT NOT NULL,
        seq BIGINT NOT NULL,
        op TEXT NOT NULL,
        digest BLOB NOT NULL,
        head BLOB NOT NULL,
        salt BLOB,
        subject_id TEXT,
        subject_ref TEXT,
        entry_ct BLOB,
        created_ms BIGINT NOT NULL,
        PRIMARY KEY (stream, epoch, seq))""",
    "CREATE INDEX deltas_subject ON deltas (subject_id) WHERE subject_id IS NOT NULL",
    "CREATE INDEX deltas_created ON deltas (created_ms)",
    """CREATE TABLE templates (
        template_id TEXT PRIMARY KEY,
        stream TEXT NOT NULL REFERENCES streams,
        epoch BIGINT NOT NULL,
        subject_id TEXT NOT NULL REFERENCES subjects ON DELETE CASCADE,
        hand TEXT NOT NULL,
        model_id TEXT NOT NULL,
        vector_ct BLOB NOT NULL,
        entry_digest BLOB NOT NULL,
        added_seq BIGINT NOT NULL,
        removed_seq BIGINT)""",
    "CREATE INDEX templates_page ON templates (stream, epoch, template_id)",
    "CREATE INDEX templates_subject ON templates (subject_id)",
    # From which seq to which a person was suspended: a snapshot shows the state at its own seq.
    """CREATE TABLE suspensions (
        stream TEXT NOT NULL REFERENCES streams,
        epoch BIGINT NOT NULL,
        subject_id TEXT NOT NULL REFERENCES subjects ON DELETE CASCADE,
        from_seq BIGINT NOT NULL,
        to_seq BIGINT,
        PRIMARY KEY (stream, epoch, subject_id, from_seq))""",
    "CREATE INDEX suspensions_subject ON suspensions (subject_id)",
    """CREATE TABLE snapshots (
        snapshot_id TEXT PRIMARY KEY,
        stream TEXT NOT NULL REFERENCES streams,
        epoch BIGINT NOT NULL,
        seq BIGINT NOT NULL,
        head BLOB NOT NULL,
        count BIGINT NOT NULL,
        state BLOB NOT NULL,
        expires_ms BIGINT NOT NULL)""",
    """CREATE TABLE erasures (
        receipt_id TEXT PRIMARY KEY,
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        subject_id TEXT NOT NULL,
        epoch BIGINT NOT NULL,
        seq BIGINT NOT NULL,
        erased_ms BIGINT NOT NULL,
        signed_receipt TEXT NOT NULL)""",
    """CREATE TABLE erasure_devices (
        receipt_id TEXT NOT NULL REFERENCES erasures,
        device_id TEXT NOT NULL,
        PRIMARY KEY (receipt_id, device_id))""",
)

_VERDICTS = (
    """CREATE TABLE verdicts (
        verdict_id TEXT PRIMARY KEY,
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        device_id TEXT NOT NULL,
        signer_kid TEXT NOT NULL,
        verdict_seq BIGINT NOT NULL,
        prev_ref TEXT NOT NULL,
        txn_id TEXT NOT NULL,
        gate_id TEXT NOT NULL,
        dbd_id TEXT NOT NULL,
        decision TEXT NOT NULL,
        result TEXT NOT NULL,
        hand TEXT,
        pad_res TEXT,
        quality_q BIGINT,
        model_id TEXT NOT NULL,
        subject_id TEXT,
        decided_ms BIGINT NOT NULL,
        received_ms BIGINT NOT NULL,
        passage_sensor INTEGER NOT NULL,
        signed_verdict TEXT NOT NULL,
        signed_decision TEXT,
        decision_verified INTEGER NOT NULL DEFAULT 0,
        signed_passage TEXT,
        passage_verified INTEGER NOT NULL DEFAULT 0,
        outcome_unknown INTEGER NOT NULL DEFAULT 0,
        chain_broken INTEGER NOT NULL DEFAULT 0,
        disputed INTEGER NOT NULL DEFAULT 0,
        reconciliation TEXT NOT NULL)""",
    "CREATE INDEX verdicts_page ON verdicts (tenant_id, livemode, decided_ms, verdict_id)",
    "CREATE UNIQUE INDEX verdicts_seq ON verdicts (signer_kid, verdict_seq)",
    "CREATE INDEX verdicts_device ON verdicts (tenant_id, device_id, decided_ms)",
    "CREATE INDEX verdicts_subject ON verdicts (subject_id) WHERE subject_id IS NOT NULL",
    # Conflicts are few, and looked for among all.
    """CREATE INDEX verdicts_conflicts ON verdicts (tenant_id, livemode, decided_ms, verdict_id)
        WHERE reconciliation = 'conflict'""",
    # Signed objects that do not agree with the record kept: not shown, kept as evidence.
    """CREATE TABLE verdict_evidence (
        evidence_ref TEXT NOT NULL,
        verdict_id TEXT NOT NULL REFERENCES verdicts ON DELETE CASCADE,
        code TEXT NOT NULL,
        wrapper TEXT NOT NULL,
        received_ms BIGINT NOT NULL,
        PRIMARY KEY (verdict_id, evidence_ref))""",
    """CREATE TABLE events (
        event_id TEXT PRIMARY KEY,
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        kind TEXT NOT NULL,
        verdict_id TEXT,
        subject_id TEXT,
        created_ms BIGINT NOT NULL)""",
    "CREATE INDEX events_created ON events (created_ms)",
    "CREATE INDEX events_subject ON events (subject_id) WHERE subject_id IS NOT NULL",
)

_MAIL = (
    # One row a device. `first_seq` is the inbox seq that its registration begins with;
    # `outbox_seq` is received without a gap and applied; (`mailed_epoch`, `mailed_seq`) is where the gallery
    # records that are on their way will have brought the device.
    """CREATE TABLE mail_boxes (
        tenant_id TEXT NOT NULL,
        device_id TEXT NOT NULL,
        first_seq BIGINT NOT NULL DEFAULT 1,
        inbox_seq BIGINT NOT NULL DEFAULT 0,
        applied_seq BIGINT NOT NULL DEFAULT 0,
        outbox_seq BIGINT NOT NULL DEFAULT 0,
        mailed_epoch BIGINT NOT NULL DEFAULT 0,
        mailed_seq BIGINT NOT NULL DEFAULT 0,
        refused TEXT NOT NULL DEFAULT '[]',
        PRIMARY KEY (tenant_id, device_id),
        FOREIGN KEY (tenant_id, device_id) REFERENCES devices)""",
    "INSERT INTO mail_boxes (tenant_id, device_id) SELECT tenant_id, device_id FROM devices",
    # `body` is what a record is sealed from again when a device refuses it; none for pages and chunks.
    """CREATE TABLE inbox (
        tenant_id TEXT NOT NULL,
        device_id TEXT NOT NULL,
        seq BIGINT NOT NULL,
        kind TEXT NOT NULL,
        record TEXT NOT NULL,
        ct BLOB NOT NULL,
        body TEXT,
        reissues INTEGER NOT NULL DEFAULT 0,
        created_ms BIGINT NOT NULL,
        acked_ms BIGINT,
        PRIMARY KEY (tenant_id, device_id, seq),
        FOREIGN KEY (tenant_id, device_id) REFERENCES mail_boxes)""",
    "CREATE INDEX inbox_acked ON inbox (acked_ms) WHERE acked_ms IS NOT NULL",
    # `record` goes once it is applied; the digest stays, to know it again.
    """CREATE TABLE outbox (
        tenant_id TEXT NOT NULL,
        device_id TEXT NOT NULL,
        seq BIGINT NOT NULL,
        digest BLOB NOT NULL,
        record TEXT,
        received_ms BIGINT NOT NULL,
        PRIMARY KEY (tenant_id, device_id, seq),
        FOREIGN KEY (tenant_id, device_id) REFERENCES mail_boxes)""",
    "CREATE INDEX outbox_applied ON outbox (received_ms) WHERE record IS NULL",
    # `last_seq` is the highest config_seq ever signed for the environment, `config_seq` that of `config`.
    """CREATE TABLE device_configs (
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        config_seq BIGINT NOT NULL,
        last_seq BIGINT NOT NULL,
        config TEXT NOT NULL,
        PRIMARY KEY (tenant_id, livemode))""",
    """CREATE TABLE factory_cas (
        fingerprint TEXT PRIMARY KEY,
        certificate BLOB NOT NULL,
        added_ms BIGINT NOT NULL)""",
)

_DBD_WINDOWS = (
    # A key that is added again counts in another window and keeps its earlier ones.
    """CREATE TABLE dbd_windows (
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        dbd_id TEXT NOT NULL,
        kid TEXT NOT NULL,
        pub BLOB NOT NULL,
        not_before_ms BIGINT NOT NULL,
        not_after_ms BIGINT,
        PRIMARY KEY (tenant_id, livemode, dbd_id, kid, not_before_ms))""",
    """INSERT INTO dbd_windows (tenant_id, livemode, dbd_id, kid, pub, not_before_ms, not_after_ms)
        SELECT tenant_id, livemode, dbd_id, kid, pub, not_before_ms, not_after_ms FROM dbd_keys""",
    "DROP TABLE dbd_keys",
)
# The other filters come last: a page with several is found without looking into the table.
_VERDICT_FILTERS = "device_id, gate_id, subject_id, decision, reconciliation"

_LISTS = (
    # Every filter of a list has an index in which the columns of the list's order come next (pages.py).
    "DROP INDEX verdicts_device",
    "DROP INDEX verdicts_subject",
    "DROP INDEX verdicts_conflicts",
    *(
        f"""CREATE INDEX verdicts_by_{name}
            ON verdicts (tenant_id, livemode, {name}, decided_ms, verdict_id, {_VERDICT_FILTERS})"""
        for name in ("device_id", "gate_id", "decision", "reconciliation")
    ),
    f"""CREATE INDEX verdicts_by_subject_id
        ON verdicts (tenant_id, livemode, subject_id, decided_ms, verdict_id, {_VERDICT_FILTERS})
        WHERE subject_id IS NOT NULL""",
    """CREATE INDEX subjects_by_status ON subjects (tenant_id, livemode, status, created_ms, subject_id)""",
    *(
        f"CREATE INDEX devices_by_{name} ON devices (tenant_id, livemode, {name}, registered_ms, device_id)"
        for name in ("status", "gate_id", "kind")
    ),
    # What listVerdictChanges goes by: see uploads.py. Records of before come in the order they were received.
    "ALTER TABLE streams ADD COLUMN verdict_change_no BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE verdicts ADD COLUMN change_no BIGINT NOT NULL DEFAULT 0",
    "UPDATE verdicts SET change_no = received_ms * 1000",
    "CREATE INDEX verdicts_changes ON verdicts (tenant_id, livemode, change_no, verdict_id)",
    """UPDATE streams SET verdict_change_no = coalesce(
           (SELECT max(v.change_no) FROM verdicts v
            WHERE v.tenant_id = streams.tenant_id AND v.livemode = streams.livemode), 0)""",
    # A decision has come for these, however late.
    """UPDATE verdicts SET reconciliation = 'awaiting_passage'
        WHERE reconciliation = 'outcome_unknown' AND signed_decision IS NOT NULL""",
    "CREATE INDEX templates_removed ON templates (removed_seq) WHERE removed_seq IS NOT NULL",
    # Steps of an upgrade that need the keys; each goes when it is done (persons.py).
    "CREATE TABLE upgrade_steps (step TEXT PRIMARY KEY)",
    """INSERT INTO upgrade_steps (step)
        SELECT 'seal_cpf' WHERE EXISTS (SELECT 1 FROM subjects WHERE cpf_ct IS NOT NULL)""",
)

_FLEET = (
    "ALTER TABLE tenants ADD COLUMN offline_after_s BIGINT NOT NULL DEFAULT 900",
    # When something that the device signed came last, by each way. `health` has the device's own words only.
    "ALTER TABLE devices ADD COLUMN network_ms BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE devices ADD COLUMN mail_ms BIGINT NOT NULL DEFAULT 0",
    "UPDATE devices SET network_ms = last_seen_ms",
    # Attested until then, under the CA named. Who was attested before has to be again: until when is unknown.
    "ALTER TABLE devices ADD COLUMN attested_ms BIGINT",
    "ALTER TABLE devices ADD COLUMN attested_until_ms BIGINT NOT NULL DEFAULT 0",
    "ALTER TABLE devices ADD COLUMN attested_ca TEXT",
    "ALTER TABLE devices DROP COLUMN attest_level",
    "ALTER TABLE devices DROP COLUMN attest_verified",
    # SHA-256 of the leaf keys that have attested a device, until it is wiped.
    """CREATE TABLE attested_leaves (
        leaf BLOB PRIMARY KEY,
        tenant_id TEXT NOT NULL,
        device_id TEXT NOT NULL,
        FOREIGN KEY (tenant_id, device_id) REFERENCES devices)""",
    "CREATE INDEX attested_leaves_device ON attested_leaves (tenant_id, device_id)",
    # The newest report of a device. `earlier_boots` are the boot_ids before the report's, the latest first;
    # `boot_counters` the last values since its boot, `counters` the totals; `stopped_ms` when it first said
    # that it does not serve any more; `app_seq` and `model_seq` the highest release that ran or failed.
    """CREATE TABLE device_reports (
        tenant_id TEXT NOT NULL,
        device_id TEXT NOT NULL,
        report TEXT,
        received_ms BIGINT,
        stopped_ms BIGINT,
        earlier_boots TEXT NOT NULL,
        boot_counters TEXT NOT NULL,
        counters TEXT NOT NULL,
        app_seq BIGINT NOT NULL DEFAULT 0,
        model_seq BIGINT NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant_id, device_id),
        FOREIGN KEY (tenant_id, device_id) REFERENCES devices)""",
    """CREATE TABLE releases (
        tenant_id TEXT NOT NULL REFERENCES tenants,
        livemode INTEGER NOT NULL,
        release_seq BIGINT NOT NULL,
        kind TEXT NOT NULL,
        model_id TEXT,
        manifest TEXT NOT NULL,
        created_ms BIGINT NOT NULL,
        PRIMARY KEY (tenant_id, livemode, release_seq))""",
    """CREATE TABLE release_chunks (
        tenant_id TEXT NOT NULL,
        livemode INTEGER NOT NULL,
        release_seq BIGINT NOT NULL,
        chunk_index INTEGER NOT NULL,
        data BLOB NOT NULL,
        PRIMARY KEY (tenant_id, livemode, release_seq, chunk_index),
        FOREIGN KEY (tenant_id, livemode, release_seq) REFERENCES releases)""",
    # `wave` counts from 1; `looked_ms` is when the rollout was judged last.
    """CREATE TABLE rollouts (
        tenant_id TEXT NOT NULL,
        livemode INTEGER NOT NULL,
        release_seq BIGINT NOT NULL,
        state TEXT NOT NULL,
        reason TEXT,
        waves TEXT NOT NULL,
        wave INTEGER NOT NULL,
        started_ms BIGINT NOT NULL,
        opened_ms BIGINT NOT NULL,
        looked_ms BIGINT NOT NULL,
        soak_s BIGINT NOT NULL,
        silence_s BIGINT NOT NULL,
        mail_after_s BIGINT NOT NULL,
        PRIMARY KEY (tenant_id, livemode, release_seq),
        FOREIGN KEY (tenant_id, livemode, release_seq) REFERENCES releases)""",
    """CREATE INDEX rollouts_under_way ON rollouts (tenant_id, livemode)
        WHERE state IN ('running', 'paused')""",
    # Who was offered a release, in which wave. `state` is what the device reports of it, `took_ms` since
    # when it reports any; `mailed` counts the records of it that were put into the device's inbox.
    """CREATE TABLE rollout_devices (
        tenant_id TEXT NOT NULL,
        livemode INTEGER NOT NULL,
        release_seq BIGINT NOT NULL,
        device_id TEXT NOT NULL,
        wave INTEGER NOT NULL,
        state TEXT,
        took_ms BIGINT,
        served_before INTEGER NOT NULL DEFAULT 0,
        left_out INTEGER NOT NULL DEFAULT 0,
        mailed INTEGER NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant_id, livemode, release_seq, device_id),
        FOREIGN KEY (tenant_id, livemode, release_seq) REFERENCES rollouts,
        FOREIGN KEY (tenant_id, device_id) REFERENCES devices)""",
    "CREATE INDEX rollout_devices_device ON rollout_devices (tenant_id, device_id)",
    # Verdicts while a release is rolled out, by the hour they were decided in: of devices that had taken it
    # (`took` 1), and of the others.
    """CREATE TABLE rollout_verdicts (
        tenant_id TEXT NOT NULL,
        livemode INTEGER NOT NULL,
        release_seq BIGINT NOT NULL,
        hour BIGINT NOT NULL,
        took INTEGER NOT NULL,
        decided BIGINT NOT NULL,
        accepted BIGINT NOT NULL,
        PRIMARY KEY (tenant_id, livemode, release_seq, hour, took),
        FOREIGN KEY (tenant_id, livemode, release_seq) REFERENCES rollouts)""",
    # Mail that carries a release, so that what is halted can be taken back.
    "ALTER TABLE inbox ADD COLUMN release_seq BIGINT",
    "CREATE INDEX inbox_release ON inbox (tenant_id, release_seq) WHERE release_seq IS NOT NULL",
)

_WRAPPING = (
    # The key-management keys of secrets/ since the first rotation: `next`, `in_force` or `retiring`.
    "CREATE TABLE wrapping_keys (key_id TEXT PRIMARY KEY, state TEXT NOT NULL)",
    "CREATE UNIQUE INDEX wrapping_keys_state ON wrapping_keys (state)",
    # When a signing key was made, and published from then on; NULL for keys of before.
    "ALTER TABLE signers ADD COLUMN published_ms BIGINT",
)

_EPOCHS = (
    # A new epoch rewrites no template. Those of epochs before `kept_epoch` were made with another model and
    # are no longer part of the gallery; those of later ones are, from the beginning of the current epoch on.
    # The sweep deletes the first, by templates_page.
    "ALTER TABLE streams ADD COLUMN kept_epoch BIGINT NOT NULL DEFAULT 0",
    """CREATE VIEW gallery_templates AS
        SELECT t.template_id, t.stream, t.subject_id, t.hand, t.model_id, t.vector_ct, t.entry_digest,
               CASE WHEN t.epoch = s.epoch THEN t.added_seq ELSE 0 END AS added_seq, t.removed_seq
        FROM templates t JOIN streams s ON s.stream = t.stream WHERE t.epoch >= s.kept_epoch""",
    "CREATE INDEX templates_by_id ON templates (stream, template_id)",
)

_RECEIVED = (
    # The sweep deletes verdicts by it.
    "CREATE INDEX verdicts_received ON verdicts (received_ms)",
    # Whether a record has been given out since it was last sealed: a refusal before that is of another copy.
    "ALTER TABLE inbox ADD COLUMN listed INTEGER NOT NULL DEFAULT 1",
    # By what server.key and root.key are known again; noted at the first start that finds none.
    "CREATE TABLE key_marks (name TEXT PRIMARY KEY, mark TEXT NOT NULL)",
)

_CHAINS = (
    # The last verdict of a key that the sweep deleted: what the next one in the chain names.
    """CREATE TABLE chain_marks (
        signer_kid TEXT PRIMARY KEY,
        verdict_seq BIGINT NOT NULL,
        verdict_id TEXT NOT NULL)""",
)

_RECEIPTS = (
    # Which registration of the device was to apply an erasure; 0: one of before, which is over.
    "ALTER TABLE erasure_devices ADD COLUMN registration_no INTEGER NOT NULL DEFAULT 0",
    """UPDATE erasure_devices SET registration_no = coalesce(
           (SELECT d.registration_no FROM erasures r
            JOIN devices d ON d.tenant_id = r.tenant_id AND d.device_id = erasure_devices.device_id
            WHERE r.receipt_id = erasure_devices.receipt_id AND d.kind = 'access'
              AND d.registered_ms <= r.erased_ms), 0)""",
)

_RESUMED = (
    # Only verdicts since then are counted.
    "ALTER TABLE rollouts ADD COLUMN resumed_ms BIGINT",
)

_UNDELIVERED = (
    # What is taken back of a halted release is found, and in its order, among what is not delivered yet.
    "DROP INDEX inbox_release",
    """CREATE INDEX inbox_undelivered ON inbox (tenant_id, release_seq, device_id, seq)
        WHERE release_seq IS NOT NULL AND acked_ms IS NULL""",
)

_SWEPT = (
    # When a server swept last, by its clock.
    "CREATE TABLE last_sweep (at_ms BIGINT PRIMARY KEY)",
)

_FIGURES = (
    # Of an erasure that is complete: how many devices were to apply it, and had. They are not listed then.
    "ALTER TABLE erasures ADD COLUMN devices_total INTEGER",
    "ALTER TABLE erasures ADD COLUMN devices_done INTEGER",
    "CREATE INDEX erasures_unsettled ON erasures (receipt_id) WHERE devices_total IS NULL",
    # Looked for after each commit: one of them may be waiting for a change.
    "CREATE INDEX devices_revoked ON devices (tenant_id, device_id) WHERE status = 'revoked'",
    # Mail that carries palms: an erasure looks for it in all inboxes.
    """CREATE INDEX inbox_palms ON inbox (tenant_id, device_id, seq)
        WHERE kind IN ('svc.gallery.deltas', 'svc.gallery.snapshot.page')""",
    # Few sessions wait, of all there ever were.
    "CREATE INDEX sessions_waiting ON sessions (status, expires_ms) WHERE status IN ('open', 'review')",
)

MIGRATIONS: Final = (
    (*_TENANTS, *_SUBJECTS, *_DEVICES, *_GALLERY, *_VERDICTS),
    _MAIL,
    _DBD_WINDOWS,
    _LISTS,
    _FLEET,
    _WRAPPING,
    _EPOCHS,
    _RECEIVED,
    _CHAINS,
    _RECEIPTS,
    _RESUMED,
    _UNDELIVERED,
    _SWEPT,
    _FIGURES,
)

ENGINE_MIGRATIONS: Final[Mapping[str, Mapping[int, tuple[str, ...]]]] = {
    "sqlite": {},
    "postgresql": {
        # Token buckets that several server processes share; what a crash of the database loses is only that
        # they are full again. A bucket's name is a MAC: of an address or a token.
        1: (
            """CREATE UNLOGGED TABLE rate_buckets (
                bucket BYTEA PRIMARY KEY,
                tokens DOUBLE PRECISION NOT NULL,
                at_s DOUBLE PRECISION NOT NULL,
                granted BOOLEAN NOT NULL) WITH (fillfactor = 50)""",
        ),
    },
}
"""What one engine needs in addition, in its dialect, with the version it came with."""
