"""Tables of the verdict journal and their migrations.

`user_version` counts the migrations that have run; each runs in one transaction with its count, so a power
cut leaves the old version or the new. A released migration is never edited: a change is a new one at the end.

Personal data (verdicts, decisions, passages, evidence) is only in `sealed` columns; the plain columns are
random identifiers, sequence numbers and flags. `operating_ms` is the time this device has run since the
journal was made. It does not depend on the clock, so a wrong clock never makes the device forget.
"""

from typing import Final

from sqlite_utils import Database

APPLICATION_ID = 0x50414A31
"""`PAJ1`: identifies the program of this database (PRAGMA application_id)."""


_VERSION_1: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE verdicts (
    seq INTEGER PRIMARY KEY,
    ref TEXT NOT NULL UNIQUE,
    txn_id TEXT NOT NULL UNIQUE,
    request_ref TEXT NOT NULL,
    sealed BLOB NOT NULL,
    operating_ms INTEGER NOT NULL,
    awaits TEXT DEFAULT 'decision',         -- decision, passage, or NULL when nothing more is due
    decided INTEGER NOT NULL DEFAULT 0,     -- a decision has come
    unknown INTEGER NOT NULL DEFAULT 0,     -- what it awaited did not come in time
    revision INTEGER NOT NULL DEFAULT 1,    -- rises with everything that an upload should say
    uploaded INTEGER NOT NULL DEFAULT 0,    -- the revision that the service has
    refused TEXT                            -- the code with which the service refused it
);
CREATE INDEX verdicts_to_upload ON verdicts (seq) WHERE uploaded < revision;
CREATE INDEX verdicts_open ON verdicts (seq) WHERE awaits IS NOT NULL;
CREATE INDEX verdicts_by_age ON verdicts (operating_ms);
CREATE TABLE answers (
    seq INTEGER NOT NULL,                   -- of the verdict
    kind TEXT NOT NULL,                     -- decision or passage
    ref TEXT NOT NULL,
    sealed BLOB NOT NULL,
    PRIMARY KEY (seq, kind)
) WITHOUT ROWID;
CREATE TABLE evidence (
    id INTEGER PRIMARY KEY,
    ref TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    seq INTEGER,                            -- of the verdict it claims to answer, if there is one
    sealed BLOB NOT NULL,
    operating_ms INTEGER NOT NULL,
    uploaded INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE ended (
    txn_id TEXT PRIMARY KEY,
    request_ref TEXT NOT NULL,
    code TEXT NOT NULL,                     -- expired or cancelled
    operating_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX ended_by_age ON ended (operating_ms);
"""

_VERSION_2: Final = """
CREATE TABLE outbox (
    seq INTEGER PRIMARY KEY,
    type TEXT NOT NULL,
    record BLOB NOT NULL
);
-- Key columns first: SQLite 3.40's quick_check takes any other order of a WITHOUT ROWID table for damage.
CREATE TABLE outbox_items (                 -- what of the journal a record of the outbox carries
    kind TEXT NOT NULL,                     -- verdicts or evidence
    row_id INTEGER NOT NULL,
    revision INTEGER NOT NULL,
    out_seq INTEGER NOT NULL,               -- of the record
    PRIMARY KEY (kind, row_id, revision)
) WITHOUT ROWID;
CREATE INDEX outbox_items_by_record ON outbox_items (out_seq);
CREATE TABLE mail_state (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
"""
"""Mail. Outbox records are already sealed to the service, so they are not sealed again."""

_VERSION_3: Final = """
ALTER TABLE evidence ADD COLUMN txn_id TEXT;
ALTER TABLE evidence ADD COLUMN backing TEXT NOT NULL DEFAULT 'signed';
UPDATE evidence SET txn_id = (SELECT v.txn_id FROM verdicts v WHERE v.seq = evidence.seq);
UPDATE evidence SET backing = 'unsigned' WHERE seq IS NULL;
CREATE INDEX evidence_by_txn ON evidence (txn_id);
CREATE INDEX evidence_by_backing ON evidence (backing, id);
CREATE INDEX evidence_to_upload ON evidence (id) WHERE uploaded = 0;
"""
"""Evidence records how it is backed, so that forged messages never displace signed ones."""

MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2, _VERSION_3)


def schema_version(db: Database) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def migrate(db: Database) -> None:
    """Bring the tables to the newest version, one transaction for each step."""
    for version in range(schema_version(db), len(MIGRATIONS)):
        with db.atomic():
            for statement in MIGRATIONS[version].split(";")[:-1]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version + 1}")
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
