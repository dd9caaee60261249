"""A journal as it was before, brought to this one in one transaction: a power cut leaves the old or the new.

The first of version 4 had one index of all txn_ids; software that made it goes on with this one. Version 3
had each verdict and its changing flags in one row, answers by their ref, and objects unpacked.
"""

from typing import Final

from sqlite_utils import Database

from device.journal.rows import Rows
from device.journal.schema import OBJECTS, VERDICTS, VERSION, run
from device.journal.seal import RowSeal, SealBroken
from link1.canonical import JsonObject, read_strict
from link1.signed import Kind

FORMER: Final = 3
"""What is older than this is not understood."""

_ASIDE_OF_FIRST: Final = """
DROP VIEW whole_verdicts;
DROP INDEX verdicts_open;
DROP INDEX verdicts_due;
ALTER TABLE verdicts RENAME TO former_verdicts;
"""
_BACK: Final = """
INSERT INTO verdicts SELECT * FROM former_verdicts;
DROP TABLE former_verdicts;
"""
_ASIDE: Final = """
DROP INDEX verdicts_to_upload;
DROP INDEX verdicts_open;
DROP INDEX verdicts_by_age;
ALTER TABLE verdicts RENAME TO former_verdicts;
ALTER TABLE answers RENAME TO former_answers;
"""
_ROWS: Final = """
SELECT seq, ref, sealed, request_ref, operating_ms, awaits IS NOT NULL, decided, unknown, revision,
uploaded < revision FROM former_verdicts
"""
_GONE: Final = """
DROP TABLE former_verdicts;
DROP TABLE former_answers;
"""
_KINDS: Final = {"decision": Kind.DECISION, "passage": Kind.PASSAGE}
_LARGEST: Final = 64 * 1024
"""No object in a journal is nearly as large."""


def migrate(db: Database, seal: RowSeal) -> None:
    """Does nothing where nothing is to be done. Raises SealBroken or FormatError where a row is not what this
    device wrote."""
    with db.atomic():
        if db.execute("PRAGMA user_version").fetchone()[0] == FORMER:
            _seal_again(db, seal)
            db.execute(f"PRAGMA user_version = {VERSION}")
        elif not db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'verdicts_txn'").fetchone():
            run(db, _ASIDE_OF_FIRST + VERDICTS + _BACK)


def _seal_again(db: Database, seal: RowSeal) -> None:
    """Everything is opened, packed and sealed for its new place."""
    rows = Rows(db, seal)

    def former(sealed: bytes, table: str, row_id: str, seq: int) -> JsonObject:
        plain = seal.open(sealed, table=table, row_id=row_id, seq=seq)
        return read_strict(plain, max_bytes=_LARGEST)

    run(db, _ASIDE + VERDICTS + OBJECTS)
    for seq, ref, sealed, *rest in db.execute(_ROWS):
        verdict = former(sealed, "verdicts", ref, seq)
        row = (seq, ref, bytes.fromhex(verdict["verdict"]["txn_id"]), *rest)
        db.execute("INSERT INTO verdicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
        again = rows.sealed(verdict, "verdicts", ref, seq)
        db.execute("INSERT INTO verdict_objects VALUES (?, ?)", (seq, again))
        answers = db.execute("SELECT kind, ref, sealed FROM former_answers WHERE seq = ?", (seq,))
        for kind, answer_ref, answer in answers.fetchall():
            if kind not in _KINDS:
                raise SealBroken("an answer of another kind than this device writes")
            rows.insert_answer(_KINDS[kind], seq, verdict, former(answer, "answers", answer_ref, seq))
    for number, ref, seq, sealed in db.execute("SELECT id, ref, seq, sealed FROM evidence").fetchall():
        again = rows.sealed(former(sealed, "evidence", ref, seq or 0), "evidence", ref, seq or 0)
        db.execute("UPDATE evidence SET sealed = ? WHERE id = ?", (again, number))
    run(db, _GONE)
