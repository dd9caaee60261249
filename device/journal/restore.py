"""At a start: compare the database with its witness, and restore what the database has lost.

- Verdicts that the database lacks are restored as they were signed; their outcomes are asked for again, as
  after any restart (`resolve`). If a verdict is in neither place, the journal halts (ROLLED_BACK).
- Numbers of the mail never go back. An inbox record whose number is restored had its durable effect elsewhere
  before it was acknowledged. A lost outbox record may have been read already, so the journal halts.
- An entry that is in the database and not yet in the witness was cut off between the two and never sent.
"""

import logging
from dataclasses import replace
from typing import Final

from device.journal.rows import Rows
from device.journal.witness import JournalWitness, Numbers, PromisedVerdict
from link1.objects import PREV_REF_OF_FIRST
from link1.signed import object_ref

_TURN: Final = "turn"
_MAIL: Final = (_TURN, "in_applied_seq", "out_seq", "out_acked_seq")

_log = logging.getLogger(__name__)


def restore(rows: Rows, witness: JournalWitness) -> None:
    """Bring database and witness to the same state, or halt. Raises sqlite3.Error, JournalError."""
    with rows.transaction():
        why = _restore_verdicts(rows, witness)
        halted = _restore_numbers(rows, witness)
        if why := halted or why:
            _log.critical("this journal went back: %s", why)
            rows.execute("INSERT OR IGNORE INTO meta VALUES ('halted', ?)", (why,))
    newest = rows.execute(
        "SELECT seq, ref, request_ref, operating_ms, sealed FROM whole_verdicts ORDER BY seq DESC LIMIT 1"
    ).fetchone()
    if newest is not None and newest[0] not in witness.verdicts:
        seq, ref, request_ref, operating_ms, sealed = newest
        wrapper = rows.opened(sealed, "verdicts", ref, seq)
        witness.keep_verdict(PromisedVerdict(seq, request_ref, operating_ms, wrapper))
    keep_numbers(rows, witness)


def keep_numbers(rows: Rows, witness: JournalWitness | None) -> None:
    """Copy the committed numbers to the witness. Raises JournalError."""
    if witness is not None and (numbers := _numbers(rows)) != witness.numbers:
        witness.keep_numbers(numbers)


def next_turn(rows: Rows) -> None:
    """Call inside every transaction that changes the mail's numbers."""
    rows.execute(
        "INSERT INTO mail_state VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET value = value + 1", (_TURN,)
    )


def _restore_verdicts(rows: Rows, witness: JournalWitness) -> str:
    """Restore verdicts missing at the end of the chain; the reason when the journal must halt."""
    row = rows.execute("SELECT seq, ref FROM verdicts ORDER BY seq DESC LIMIT 1").fetchone()
    first, ref = row or (0, PREV_REF_OF_FIRST)
    seq, top = first, max(witness.verdicts, default=0)
    while (promised := witness.verdicts.get(seq + 1)) is not None:
        verdict = promised.wrapper["verdict"]
        if verdict["prev_ref"] != ref or rows.number_of(bytes.fromhex(verdict["txn_id"])) is not None:
            break
        seq, ref = promised.seq, insert_verdict(rows, promised)
    if seq > first:
        _log.error(
            "the journal had lost verdict_seq %d to %d, as after damage to its write-ahead log; the witness"
            " restored them: check the card's health",
            first + 1,
            seq,
        )
    if seq < top:
        return f"verdict_seq {top} was assigned, and the journal's verdicts end at {seq}"
    known = rows.execute("SELECT ref FROM verdicts WHERE seq = ?", (top,)).fetchone()
    if known is not None and known[0] != object_ref(witness.verdicts[top].wrapper):
        return f"verdict_seq {top} was assigned to another verdict than the one in the journal"
    return ""


def insert_verdict(rows: Rows, promised: PromisedVerdict) -> str:
    """Insert the rows of a verdict; returns its ref. Raises sqlite3.Error."""
    ref = object_ref(promised.wrapper)
    txn_id = promised.wrapper["verdict"]["txn_id"]
    rows.execute(
        "INSERT INTO verdicts (seq, ref, txn_id, request_ref, operating_ms) VALUES (?, ?, ?, ?, ?)",
        (promised.seq, ref, bytes.fromhex(txn_id), promised.request_ref, promised.operating_ms),
    )
    rows.execute(
        "INSERT INTO verdict_objects VALUES (?, ?)",
        (promised.seq, rows.sealed(promised.wrapper, "verdicts", ref, promised.seq)),
    )
    return ref


def _restore_numbers(rows: Rows, witness: JournalWitness) -> str:
    """Correct the mail's numbers; the reason when the journal must halt."""
    found, kept = _numbers(rows), witness.numbers or _numbers(rows)
    lower = any(getattr(found, name) < getattr(kept, name) for name in _MAIL)
    # By one turn, or by more where a write of the witness had failed before.
    cut_off = found.turn > kept.turn and not lower
    right = replace(found if cut_off else kept, halted=found.halted or kept.halted)
    first, top, count = rows.execute(
        "SELECT min(seq), max(seq), count(*) FROM outbox WHERE seq > ?", (right.out_acked_seq,)
    ).fetchone()
    right = replace(right, out_seq=max(right.out_seq, top or 0))
    if right != found:
        _log.error("the mail's numbers in the journal were %s, corrected to %s", found, right)
        right = replace(right, turn=max(found.turn, kept.turn) + 1)
        for name in _MAIL:
            rows.execute("INSERT OR REPLACE INTO mail_state VALUES (?, ?)", (name, getattr(right, name)))
    if count != right.out_seq - right.out_acked_seq or (count and first != right.out_acked_seq + 1):
        return f"outbox records up to {right.out_seq} were made, and some of them are lost"
    return right.halted


def _numbers(rows: Rows) -> Numbers:
    state = dict(rows.execute("SELECT name, value FROM mail_state").fetchall())
    halted = rows.execute("SELECT value FROM meta WHERE name = 'halted'").fetchone()
    numbers = {name: int(state.get(name, 0)) for name in _MAIL}
    return Numbers(**numbers, halted=halted[0] if halted else "")
