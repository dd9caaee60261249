"""Faults planted on purpose, one at a time: whether the simulation finds what it is for.

    python -m tools.rig.simulation.planted            # all, up to 60 s of CPU each; prints the table
    python -m tools.rig.simulation.planted NAME …

A fault replaces one attribute of a module or class while the runs last, as a mistake in that place would.
What is not found is printed too.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cloud_client.reference_server.domain.mail import outbox
from cloud_client.reference_server.domain.mailbox import inbox
from cloud_client.reference_server.domain.verdicts import uploads
from device.core import gate, housekeeping, running_wipe, self_description, served_gallery
from device.core.core import Core
from device.core.gate import Gate
from device.errors import JournalError
from device.journal import journal
from device.journal import opening as journal_opening
from device.journal.mail import MailBoxes
from device.mail.desk import MailDesk
from device.passage import after_verdict, engine
from device.syncd import policy
from device.values.transactions import TxnMemory
from device.wipe import wipe
from gallery import changes, freshness
from gallery import gallery as gallery_module
from gallery import store as gallery_store
from link1 import channels, device_end, frames, handshake, sealed, session
from link1.validator import desk, memory
from tools.rig.simulation import machines
from tools.rig.simulation.plan import WIDER_FROM, plan_of
from tools.rig.simulation.shrink import shrunk
from tools.rig.simulation.start import become_simulation
from tools.rig.simulation.world import prepared, quiet, run

CPU_S: Final = 60.0
Make = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class PlantedFault:
    """`name` of the `owner` becomes what `make` returns for the right one."""

    title: str
    owner: Any
    name: str
    make: Make
    also: "tuple[PlantedFault, ...]" = ()
    """The second safeguard against the same, which falls with it."""
    first_seed: int = 1
    """Where the search begins: a rare fault is found by one seed in some tens, or in a thousand."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The fault is there inside."""
        right = self.owner.__dict__[self.name]
        function = right.__func__ if isinstance(right, classmethod | staticmethod) else right
        wrong = self.make(function.fget if isinstance(function, property) else function)
        setattr(self.owner, self.name, property(wrong) if isinstance(function, property) else wrong)
        try:
            with ExitStack() as others:
                for fault in self.also:
                    others.enter_context(fault.planted())
                yield
        finally:
            setattr(self.owner, self.name, right)


def _unsynced(right: Any) -> Any:
    def configure(db: Any) -> None:
        right(db)
        db.execute("PRAGMA synchronous = OFF")

    return configure


def _unsynced_gallery(right: Any) -> Any:
    def opened(folder: Path) -> Any:
        db = right(folder)
        db.execute("PRAGMA synchronous = OFF")
        return db

    return opened


def _saved_unsynced(_right: Any) -> Any:
    def save(path: Path, kid: str, kept: memory.DeskMemory) -> None:
        import json

        with path.open("w", encoding="utf-8") as file:
            json.dump({"dbd_kid": kid, "memory": kept.to_obj()}, file)

    return save


def _cancelled_stays_open(right: Any) -> Any:
    def cancel(self: Any) -> Any:
        still = self._open
        events = right(self)
        self._open = still
        return events

    return cancel


def _first_evidence_lost(right: Any) -> Any:
    """Acknowledged by the link, then dropped: every fifth decision or passage."""
    count = [0]

    def serve(self: Any, message: Any) -> Any:
        count[0] += 1
        return [] if count[0] % 5 == 0 else right(self, message)

    return serve


def _tried_once(_right: Any) -> Any:
    async def keep(self: Any, _about: Any, work: Any) -> None:
        await self._keep(work)

    return keep


def _told_before_kept(_right: Any) -> Any:
    async def remember(self: Any, end: Any) -> None:
        self._do(self._engine.end_remembered(end.txn_id))
        await self._keep(lambda: self.journal.remember_end(end.txn_id, end.request_ref, end.code))

    return remember


def _covers_what_came_later(_right: Any) -> Any:
    def mark(rows: Any, tickets: Any) -> None:
        for ticket in tickets:
            done = (
                "evidence SET uploaded = 1 WHERE id"
                if ticket.table == "evidence"
                else "verdicts SET due = 0 WHERE seq"
            )
            rows.execute(f"UPDATE {done} = ?", (ticket.row_id,))

    return mark


def _marked_when_offered(right: Any) -> Any:
    def next_batch(self: Any, limit: int) -> Any:
        batch = right(self, limit)
        if batch.tickets:
            self.uploaded(batch.tickets)
        return batch

    return next_batch


def _hand_not_spent(right: Any) -> Any:
    def decide(self: Any, txn: Any, outcome: Any) -> Any:
        effects = right(self, txn, outcome)
        self._hand_spent = False
        return effects

    return decide


def _age_on_schedule(right: Any) -> Any:
    def on_look(self: Any, look: Any) -> None:
        self.gallery.look = lambda: None
        try:
            right(self, look)
        finally:
            del self.gallery.look

    return on_look


def _wrong_chain(right: Any) -> Any:
    def last(self: Any) -> Any:
        found = right(self)
        return found and replace(found, verdict_ref="0" * 32)

    return last


def _age_from_arrival(right: Any) -> Any:
    def with_head(self: Any, issued_at_ms: int, now: Any, *, complete: bool) -> Any:
        held = right(self, issued_at_ms, now, complete=complete)
        return replace(held, age_ms=0, time_lost=False) if complete else held

    return with_head


def _age_by_wall_clock(right: Any) -> Any:
    def fresh(self: Any, now: Any, ttl_ms: int) -> Any:
        found = right(self, now, ttl_ms)
        if self.age_ms is None:
            return found
        left_ms = max(0, ttl_ms - max(0, now.wall_ms - (self.counted_from_ms or self.ahead_ms)))
        ok = left_ms > 0
        reason = freshness.FreshnessReason.FRESH if ok else freshness.FreshnessReason.EXPIRED
        return replace(found, fresh=ok, left_ms=left_ms, reason=reason)

    return fresh


def _ttl_not_configured(right: Any) -> Any:
    def fresh(self: Any, now: Any, _ttl_ms: int) -> Any:
        return right(self, now, freshness.MAX_TTL_MS)

    return fresh


def _any_head_counts(right: Any) -> Any:
    def with_head(self: Any, issued_at_ms: int, now: Any, *, complete: bool) -> Any:
        del complete
        return right(self, issued_at_ms, now, complete=True)

    return with_head


def _never_frozen(right: Any) -> Any:
    def with_head(self: Any, issued_at_ms: int, now: Any, *, complete: bool) -> Any:
        newest_ms = self.newest_issued_at_ms
        earlier = newest_ms is not None and issued_at_ms < newest_ms
        return right(
            replace(self, newest_issued_at_ms=None) if earlier else self, issued_at_ms, now, complete=complete
        )

    return with_head


def _always_kept(right: Any) -> Any:
    def after(self: Any, now: Any, boot_id: str, *, clock_kept: bool = True) -> Any:
        del clock_kept, boot_id
        held = right(self, now, "", clock_kept=True)
        return replace(held, age_ms=self.age_ms, time_lost=False)

    return after


def _ahead_by_one(right: Any) -> Any:
    def taken(self: Any, position: Any, elapsed_s: float) -> float:
        return float(right(self, replace(position, seq=position.seq + 1), elapsed_s))

    return taken


def _same_decision_seq(right: Any) -> Any:
    def with_decision(self: Any, verdict_ref: str, wrapper: Any, acted_on_seq: int | None) -> Any:
        kept = right(self, verdict_ref, wrapper, acted_on_seq)
        return replace(kept, decision_seq=self.decision_seq)

    return with_decision


async def _no_memory_at_the_start(self: Any) -> None:
    del self


def _repeats_delivered(right: Any) -> Any:
    def take(self: Any, frame: Any) -> Any:
        if frame.mid != self.expected_mid and frame.count == 1:
            return channels.Taken(acknowledge=True, message=frame.payload)
        return right(self, frame)

    return take


def _acknowledged_in_pieces(right: Any) -> Any:
    def take(self: Any, frame: Any) -> Any:
        return replace(right(self, frame), acknowledge=True)

    return take


def _last_slice_is_all(right: Any) -> Any:
    def acknowledged(self: Any, mid: int) -> Any:
        del mid
        return right(self, self.in_flight.mid) if self.in_flight else None

    return acknowledged


def _judged_after_the_reset(_right: Any) -> Any:
    def receive(self: Any, data: bytes, now_ms: int) -> Any:
        frames_in = self.link.frames_in(data)
        return self._follow([event for frame in frames_in for event in self._session.take(frame, now_ms)])

    return receive


def _key_of_the_hello(right: Any) -> Any:
    def judge(self: Any, body: Any) -> Any:
        keys, key = self._peer_keys, self._hello_key
        self._peer_keys = lambda _kid, _at_ms: key
        try:
            return right(self, body)
        finally:
            self._peer_keys = keys

    return judge


def _evidence_in_any_number(right: Any) -> Any:
    async def make_batch(self: Any) -> Any:
        many, self._many_unsettled = self._many_unsettled, lambda: False
        try:
            return await right(self)
        finally:
            self._many_unsettled = many

    return make_batch


def _repeat_refused(right: Any) -> Any:
    def applied(self: Any, seq: int, *, acked_upto_seq: int = 0) -> None:
        if seq == self.position().in_applied_seq:
            raise JournalError(f"inbox record {seq} does not follow itself")
        right(self, seq, acked_upto_seq=acked_upto_seq)

    return applied


def _verdict_before_end(right: Any) -> Any:
    def find(self: Any, txn_id: str) -> Any:
        memory, stored = right(self, txn_id), self._verdict_of(txn_id)
        if memory is None or memory.ended is None or stored is None:
            return memory
        return TxnMemory(txn_id, stored[0], verdict=stored[1])

    return find


def _numbers_skip(right: Any) -> Any:
    def append(self: Any, txn_id: str, request_ref: str, build: Any) -> Any:
        if (last := self.last()) is not None and last.verdict_seq % 4 == 3:
            for table in ("verdicts", "verdict_objects"):
                self._execute(f"UPDATE {table} SET seq = seq + 1 WHERE seq = ?", (last.verdict_seq,))  # noqa: S608
        return right(self, txn_id, request_ref, build)

    return append


def _never_again(_right: Any) -> Any:
    return lambda _self, _last_seq: []


def _nothing(_right: Any) -> Any:
    return lambda *_given, **_named: None


def _applied_not_kept(right: Any) -> Any:
    """The inbox position is acknowledged from memory; the disk gets it with the next one."""

    async def judge(self: Any, data: bytes) -> None:
        boxes = self.boxes
        keep, boxes.applied = boxes.applied, lambda *_given, **_named: None
        try:
            await right(self, data)
        finally:
            boxes.applied = keep

    return judge


def _as_if_fresh(right: Any) -> Any:
    def look(self: Any) -> None:
        if self.health.words == ():
            right(self)

    return look


def _outcome_of_known_dropped(right: Any) -> Any:
    def take(batch: Any, verdict_id: str, item: Any) -> Any:
        row = batch.tx.one("SELECT received_ms FROM verdicts WHERE verdict_id = :id", id=verdict_id)
        return [] if row["received_ms"] != batch.now_ms else right(batch, verdict_id, item)

    return take


def _suspended_too(_right: Any) -> Any:
    return lambda template, model_id: template.model_id == model_id


def _constant(value: Any) -> Make:
    return lambda _right: value


FAULTS: Final = (
    PlantedFault("the journal's fsync is left out", journal_opening, "_configure", _unsynced),
    PlantedFault("the gallery's fsync is left out", gallery_store, "_opened", _unsynced_gallery),
    PlantedFault("the validator's counters are not saved", machines, "save_memory", _nothing),
    PlantedFault(
        "the validator's counters are saved without fsync", machines, "save_memory", _saved_unsynced
    ),
    PlantedFault("a verdict that has its decision is not found again", memory.DeskMemory, "find", _nothing),
    PlantedFault("a cancelled request still opens", desk.ValidatorDesk, "cancel", _cancelled_stays_open),
    PlantedFault(
        "the time for a verdict is a minute too long",
        desk,
        "LATE_AFTER_TTL_MS",
        _constant(62_000),
        first_seed=151,
    ),
    PlantedFault("a decision_seq is given twice", memory.DeskMemory, "with_decision", _same_decision_seq),
    PlantedFault(
        "every fifth decision is acknowledged and dropped",
        device_end.DeviceEnd,
        "_serve_evidence",
        _first_evidence_lost,
    ),
    PlantedFault(
        "the validator is never asked again", after_verdict.AfterVerdict, "session_begins", _never_again
    ),
    PlantedFault("the end of a request is told before it is kept", Gate, "_remember_end", _told_before_kept),
    PlantedFault("an end that the disk refused is not written later", Gate, "_keep_later", _tried_once),
    PlantedFault(
        "the newest verdict is not read at the start", Gate, "start", _constant(_no_memory_at_the_start)
    ),
    PlantedFault("one hand answers two requests", engine.TransactionEngine, "_decide", _hand_not_spent),
    PlantedFault(
        "the gallery's age is looked at every five seconds alone",
        Core,
        "on_look",
        _age_on_schedule,
        (PlantedFault("the schedule", housekeeping, "EVERY_S", _constant(5.0)),),
        first_seed=15,
    ),
    PlantedFault("prev_ref is not that of the verdict before", journal.Journal, "last", _wrong_chain),
    PlantedFault("a verdict_seq is left out", journal.Journal, "append_verdict", _numbers_skip),
    PlantedFault("an upload's answer covers what came after it", journal, "mark", _covers_what_came_later),
    PlantedFault(
        "an upload counts as done when it is offered", journal.Journal, "next_upload", _marked_when_offered
    ),
    PlantedFault(
        "the service drops the decision on a known verdict",
        uploads,
        "_take_outcome",
        _outcome_of_known_dropped,
    ),
    PlantedFault("a head's age counts from its arrival", freshness.HeldTime, "with_head", _age_from_arrival),
    PlantedFault(
        "a head without its page makes the gallery fresh",
        freshness.HeldTime,
        "with_head",
        _any_head_counts,
        first_seed=33,
    ),
    PlantedFault(
        "the TTL is measured on the wall clock", freshness.HeldTime, "freshness", _age_by_wall_clock
    ),
    PlantedFault("the configured TTL is not followed", freshness.HeldTime, "freshness", _ttl_not_configured),
    PlantedFault("the time without power does not count", freshness.HeldTime, "after_restart", _always_kept),
    PlantedFault("GALLERY_STALE is not looked at", served_gallery.ServedGallery, "look", _as_if_fresh),
    PlantedFault(
        "an older position of the gallery is taken",
        gallery_module,
        "_check_not_older",
        _nothing,
        (PlantedFault("a head issued earlier is taken", freshness.HeldTime, "with_head", _never_frozen),),
        first_seed=20,
    ),
    PlantedFault("a suspended person stays in the match set", changes, "is_matchable", _suspended_too),
    PlantedFault(
        "the carrier acknowledges one delta too many", policy.GalleryCourse, "deltas_taken", _ahead_by_one
    ),
    PlantedFault(
        "a repeated message is delivered again", channels.ChannelReceiver, "take", _repeats_delivered
    ),
    PlantedFault(
        "a message is acknowledged before it is whole",
        channels.ChannelReceiver,
        "take",
        _acknowledged_in_pieces,
    ),
    PlantedFault(
        "any ACK settles the message in flight", channels.ChannelSender, "acknowledged", _last_slice_is_all
    ),
    PlantedFault(
        "the receiver does not compare the CRC",
        frames,
        "zlib",
        _constant(type("NoCrc", (), {"crc32": staticmethod(lambda _data: 0)})),
    ),
    PlantedFault("the inbox is acknowledged before it is kept", MailDesk, "_judge", _applied_not_kept),
    PlantedFault("a wipe leaves the files behind", running_wipe, "finish_wipe", _nothing),
    PlantedFault(
        "what comes in one read with a reset is judged after it",
        session.DrivenEnd,
        "receive",
        _judged_after_the_reset,
    ),
    PlantedFault(
        "a key that ended after the hello proves itself",
        handshake.Handshake,
        "judge_proof",
        _key_of_the_hello,
    ),
    PlantedFault(
        "any number of cancels waits for the journal",
        gate,
        "MAX_CANCELS_ASKING",
        _constant(1 << 30),
        (PlantedFault("the same", gate, "MAX_ASKING", _constant(1 << 30)),),
    ),
    PlantedFault(
        "a decision that forged cancels leave no room is lost",
        gate,
        "MAX_CANCELS_ASKING",
        _constant(1 << 30),
        (PlantedFault("the same", Gate, "_ask_again", _nothing),),
        first_seed=10_644,
    ),
    PlantedFault("evidence is mailed in any number", MailDesk, "_make_batch", _evidence_in_any_number),
    PlantedFault(
        "a deeply nested decision is mailed as one that the service does not read",
        device_end,
        "_UNSIGNED_DEPTH",
        _constant(99),
        (PlantedFault("records are read no deeper than messages", sealed, "CARRYING_DEPTH", _constant(16)),),
        first_seed=43,
    ),
    PlantedFault(
        "after a restore the mail waits for what is lost", outbox, "skip_missing", _nothing, first_seed=40
    ),
    PlantedFault(
        "after a restore seqs of the inbox are given out again",
        inbox,
        "go_on_after",
        _nothing,
        first_seed=93,
    ),
    PlantedFault(
        "an inbox record whose second copy failed is not taken again",
        MailBoxes,
        "applied",
        _repeat_refused,
        first_seed=110,
    ),
    PlantedFault(
        "a carrier that falls silent reaches the service for ever",
        self_description,
        "SILENT_MS",
        _constant(1 << 40),
        first_seed=WIDER_FROM,
    ),
    PlantedFault(
        "a snapshot fills the generation of one that ended",
        gallery_store.Store,
        "newest_generation",
        _constant(lambda _store: 0),
        first_seed=WIDER_FROM,
    ),
    PlantedFault(
        "rows that are no longer used stay",
        gallery_store.Store,
        "_keep_only",
        _nothing,
        first_seed=WIDER_FROM,
    ),
    PlantedFault("a wipe is reported to no one", wipe.Wipe, "unconfirmed", _constant(lambda _wipe: None)),
    PlantedFault(
        "a verdict whose witness failed, and ended, is found",
        journal.Journal,
        "find_txn",
        _verdict_before_end,
    ),
)


@dataclass(frozen=True, slots=True)
class Found:
    """How a fault was found: by which seed, None when it was not, and after how much CPU."""

    fault: PlantedFault
    seed: int | None
    cpu_s: float
    invariant: str
    acts: int = 0
    """How many acts of the seed's plan break it, where the run was made short."""


def hunt(fault: PlantedFault, *, cpu_s: float = CPU_S, shrink_s: float = 0.0) -> Found:
    """Run seed after seed with the fault until an invariant breaks; then make the run short for so long."""
    began_s, seed = time.process_time(), fault.first_seed - 1
    with fault.planted():
        while (used_s := time.process_time() - began_s) < cpu_s:
            seed += 1
            result = run(plan_of(seed))
            if result.violation is not None:
                used_s = time.process_time() - began_s
                short = shrunk(result, cpu_s=shrink_s)[1] if shrink_s else result
                return Found(fault, seed, used_s, result.violation.name, len(short.plan.acts))
    return Found(fault, None, used_s, "")


def main() -> int:
    """Exit status: how many were not found."""
    options = argparse.ArgumentParser(prog="python -m tools.rig.simulation.planted")
    options.add_argument("title", nargs="*", help="part of a fault's title (default: all)")
    options.add_argument("--cpu-s", type=float, default=CPU_S, help="how long to look for each")
    options.add_argument("--shrink-s", type=float, default=0.0, help="how long to make each found run short")
    given = options.parse_args()
    become_simulation("tools.rig.simulation.planted")
    quiet()
    prepared()
    missed = 0
    print("| planted fault | found by | seed | CPU s | acts |\n|---|---|---|---|---|")
    for fault in FAULTS:
        if given.title and not any(part in fault.title for part in given.title):
            continue
        found = hunt(fault, cpu_s=given.cpu_s, shrink_s=given.shrink_s)
        missed += found.seed is None
        print(
            f"| {fault.title} | {found.invariant or 'not found'} | {found.seed or '–'} | {found.cpu_s:.1f} |"
            f" {found.acts} |",
            flush=True,
        )
    return missed


if __name__ == "__main__":
    sys.exit(main())
