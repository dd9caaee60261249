"""Tables of the verdict journal.

Personal data (verdicts, decisions, passages, evidence) is only in `sealed` columns; the plain columns are
random identifiers, sequence numbers and flags. `operating_ms` is the time this device has run since the
journal was made. It does not depend on the clock, so a wrong clock never makes the device forget; it never
falls from one verdict to the next.

A commit writes every page that it touches, and a passage has three (docs/explanation/DURABILITY.md). So what
changes (`verdicts`) is apart from what is long and never changes; both answers of a verdict find room on one
page; the indexes of what is open and of what is due hold a few rows; and the index of all txn_ids, which are
random and must be found for 30 days, begins again with each 1,024 verdicts: those of some minutes are on at
most four blocks of the card, and a search looks into some 150 such stretches after 30 days of 5,000.
"""

from typing import Final

from sqlite_utils import Database

APPLICATION_ID = 0x50414A31
"""`PAJ1`: identifies the program of this database (PRAGMA application_id)."""
VERSION: Final = 4
"""PRAGMA user_version. Version 3 is understood (`device.journal.migration`). It rises with what the software
before cannot go on with, which takes two releases (docs/decisions/28-the-way-back.md)."""

VERDICTS: Final = """
CREATE TABLE verdicts (
    seq INTEGER PRIMARY KEY,
    ref TEXT NOT NULL,
    txn_id BLOB NOT NULL,                   -- 16 bytes, of which `append_verdict` lets none come twice
    request_ref TEXT NOT NULL,
    operating_ms INTEGER NOT NULL,
    open INTEGER NOT NULL DEFAULT 1,        -- a decision is awaited or, when decided, the passage after it
    decided INTEGER NOT NULL DEFAULT 0,     -- a decision has come
    unknown INTEGER NOT NULL DEFAULT 0,     -- what it awaited did not come in time
    revision INTEGER NOT NULL DEFAULT 1,    -- rises with everything that an upload should say
    due INTEGER NOT NULL DEFAULT 1          -- the service does not have this revision
);
CREATE INDEX verdicts_txn ON verdicts (seq >> 10, substr(txn_id, 1, 4));
CREATE INDEX verdicts_open ON verdicts (ref) WHERE open;
CREATE INDEX verdicts_due ON verdicts (seq) WHERE due;
CREATE VIEW whole_verdicts AS               -- one whose object is gone is damage, and does not look like none
    SELECT v.*, coalesce(o.sealed, x'') AS sealed FROM verdicts v LEFT JOIN verdict_objects o USING (seq);
"""
OBJECTS: Final = """
CREATE TABLE verdict_objects (
    seq INTEGER PRIMARY KEY,
    sealed BLOB NOT NULL
);
CREATE TABLE answers (
    id INTEGER PRIMARY KEY,                 -- 2 * seq of the verdict for its decision, 1 more for its passage
    sealed BLOB NOT NULL
);
"""
_OTHER_TABLES: Final = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE evidence (
    id INTEGER PRIMARY KEY,
    ref TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    seq INTEGER,                            -- of the verdict it claims to answer, if there is one
    txn_id TEXT,
    backing TEXT NOT NULL,                  -- so that forged messages never displace signed ones
    sealed BLOB NOT NULL,
    operating_ms INTEGER NOT NULL,
    uploaded INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX evidence_by_txn ON evidence (txn_id);
CREATE INDEX evidence_by_backing ON evidence (backing, id);
CREATE INDEX evidence_to_upload ON evidence (id) WHERE uploaded = 0;
CREATE TABLE ended (
    txn_id TEXT PRIMARY KEY,
    request_ref TEXT NOT NULL,
    code TEXT NOT NULL,                     -- expired or cancelled
    operating_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX ended_by_age ON ended (operating_ms);
CREATE TABLE outbox (                       -- records sealed to the service, which are not sealed again
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


def make_tables(db: Database) -> None:
    """All tables, or none, in an empty database."""
    with db.atomic():
        run(db, VERDICTS + OBJECTS + _OTHER_TABLES)
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")


def run(db: Database, statements: str) -> None:
    """Inside the caller's transaction, which `executescript` would end."""
    for statement in statements.split(";")[:-1]:
        db.execute(statement)
