"""A device's life in a nutshell, run as a program of its own while every change on its disk is recorded.

    python power_workload.py STATE MARKS [--broken HOW]

The device's own code provisions, opens, journals, mails, fills and switches galleries, replaces trust,
forgets and is wiped. After everything that somebody outside learns, a mark says what they were told. HOW
breaks the code in a way that a power cut must bring to light: the test of the test.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from device.core.opening import Opened
from device.journal.journal import MEMORY_MS, Journal
from device.journal.upload import UploadBatch
from device.mail.outbox import OutboxType, Sender
from device.passage.decision import build_verdict
from device.trust.keystore import KeyStore
from device.trust.known_time import gallery_now
from device.trust.trust import reread, save_trust
from device.values.transactions import StoredVerdict
from device.wipe.wipe import Wipe, WipeStage, begin_wipe, confirm_wipe, finish_wipe
from gallery.gallery import Gallery
from link1.canonical import JsonObject, read_strict
from link1.objects import ErrorCode
from link1.signed import Kind, object_ref, sign_object
from tests.device.core_makers import (
    DEVICE_ID,
    GALLERY,
    MAIL_SEAL_KEY,
    NOW_MS,
    REJECTED,
    THRESHOLDS,
    HandClock,
    config_obj,
    make_decision,
    make_passage,
    make_request,
    signed_config,
)
from tests.device.trust.pinned_makers import registered
from tests.gallery.gallery_service import Service
from tests.power.power_breakage import BROKEN, BROKEN_WITH_DAMAGE, break_it
from tests.power.power_device import config_of, entry, opened, service


class Marks:
    """The outside world's memory: one line for each thing it was told."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def tell(self, what: str, **said: Any) -> None:
        os.write(self._descriptor, json.dumps({"what": what, **said}).encode() + b"\n")


class Life:
    def __init__(self, state: Path, marks: Marks, broken: str) -> None:
        self.config = config_of(state)
        self._marks = marks
        self.broken = broken
        self.clock = HandClock()
        self.random = random.Random(5)
        self.verdicts = 0
        self.config_seq = 1
        self.stream = service()

    def tell(self, what: str, **said: Any) -> None:
        self._marks.tell(what, at_ms=self.clock.now_ms, **said)

    # A device is made

    def provision(self) -> None:
        keys = KeyStore.create(self.config.keys_dir)
        Journal.create(
            self.config.journal_path,
            device_id=DEVICE_ID,
            verdict_kid=keys.verdict.kid,
            data_key=keys.data_key,
        )
        save_trust(self.config.trust_path, registered(passage_sensor=True))
        self.tell("provisioned", kid=keys.verdict.kid)

    @contextlib.contextmanager
    def running(self) -> Iterator["Run"]:
        with opened(self.config.device.state_dir, self.clock) as device:
            assert device.gallery is not None, device.gallery_fault
            yield Run(self, device, device.gallery)


class Run:
    """One life of the program."""

    def __init__(self, life: Life, device: Opened, gallery: Gallery) -> None:
        self.life = life
        self.tell = life.tell
        self.device = device
        self.journal = device.journal
        self.gallery = gallery
        self.inbox_seq = device.mail.in_applied_seq
        self.sender = Sender(DEVICE_ID, device.keys.verdict, lambda: MAIL_SEAL_KEY.public)

    # The cable

    def verdict(self) -> StoredVerdict:
        self.life.verdicts += 1
        name = f"verdict {self.life.verdicts}"
        request, wrapper = make_request(name)
        self.tell("asked", name=name)

        def build(seq: int, prev_ref: str) -> JsonObject:
            verdict = build_verdict(
                request,
                REJECTED,
                device_id=DEVICE_ID,
                verdict_seq=seq,
                prev_ref=prev_ref,
                decided_at_ms=NOW_MS,
                model_id="none",
                thr_id=THRESHOLDS.thr_id,
                gallery=GALLERY,
            )
            signed = sign_object(Kind.VERDICT, verdict.to_obj(), self.device.keys.verdict)
            if self.life.broken == "told-early":
                self.tell("verdict", name=name, seq=seq, ref=object_ref(signed))
            return signed

        stored = self.journal.append_verdict(request.txn_id, object_ref(wrapper), build)
        self.tell("verdict", name=name, seq=stored.seq, ref=stored.ref)
        self.life.clock.now_ms += 1_000
        return stored

    def passage(self) -> None:
        """A verdict and what comes of it."""
        stored = self.verdict()
        chance = self.life.random.random()
        if chance < 0.1:
            return
        if chance < 0.25:
            self.journal.record_outcome_unknown(stored.ref)
            self.tell("unknown", seq=stored.seq)
        if chance < 0.2:
            self.journal.record_disowned([stored.ref])
            return
        _, decision = make_decision(stored)
        self.journal.record_decision(stored.ref, decision, awaits_passage=True)
        self.tell("decision", seq=stored.seq, ref=object_ref(decision))
        if chance > 0.4:
            _, passed = make_passage(stored)
            self.journal.record_passage(stored.ref, passed)
            self.tell("passage", seq=stored.seq, ref=object_ref(passed))
        if chance > 0.8:
            _, other = make_decision(stored, reason="other")
            self.journal.record_evidence("decision", other, stored.wrapper["verdict"]["txn_id"])
            self.tell("evidence", ref=object_ref(other), seq=stored.seq)
        if chance > 0.9:
            name = f"ended {stored.seq}"
            request, wrapper = make_request(name)
            self.journal.remember_end(request.txn_id, object_ref(wrapper), ErrorCode.EXPIRED)
            self.tell("ended", name=name)

    # The cloud, and the mail in its place

    def upload(self, limit: int = 20) -> None:
        batch = self.journal.next_upload(limit)
        self.tell("served", items=contents(batch))
        self.journal.uploaded(batch.tickets)

    def mail_out(self) -> None:
        boxes = self.journal.mail
        batch = boxes.unmailed(8)
        seq = boxes.position().out_seq + 1
        record = self.sender.seal(seq, OutboxType.VERDICTS, {"items": list(batch.items)}, created_ms=NOW_MS)
        self.tell("sealing", seq=seq, items=contents(batch))
        boxes.append(record, OutboxType.VERDICTS.value, batch.tickets)
        self.tell("outbox", seq=seq, sha256=hashlib.sha256(record.data).hexdigest())

    def mail_in(self, *, receipt: bool = False) -> None:
        """An inbox record whose effect is durable already, or a receipt for all that is out."""
        boxes, upto = self.journal.mail, 0
        if receipt:
            upto = boxes.position().out_seq
            self.tell("receipt", upto=upto)
        self.inbox_seq += 1
        if self.life.random.random() < 0.3:
            boxes.refused(self.inbox_seq, "malformed")
        boxes.applied(self.inbox_seq, acked_upto_seq=upto)
        self.tell("inbox", seq=self.inbox_seq)

    # The gallery

    def deltas(self, limit: int) -> None:
        stream = self.life.stream
        at = self.gallery.position.seq
        self.expect(min(stream.seq, at + limit))
        self.gallery.apply_deltas(stream.deltas(at, limit, NOW_MS), gallery_now(self.life.clock))
        self.applied()

    def head(self) -> None:
        stream = self.life.stream
        self.gallery.apply_head(stream.head(stream.seq, NOW_MS), gallery_now(self.life.clock))

    def snapshot(self, size: int, *, pages: int | None = None) -> None:
        """`pages`: no more than so many of it, as when the line is cut."""
        self.expect(self.life.stream.seq)
        for page in self.life.stream.snapshot(size, NOW_MS)[:pages]:
            if self.gallery.apply_snapshot_page(page, gallery_now(self.life.clock)).done:
                self.applied()

    def expect(self, seq: int) -> None:
        """What the service's gallery is at `seq`; known before the device may hold it."""
        stream = self.life.stream
        self.tell(
            "stream", epoch=stream.epoch, seq=seq, head=stream.heads[seq].hex(), holds=held(stream, seq)
        )

    def applied(self) -> None:
        position = self.gallery.position
        self.tell("page", epoch=position.epoch, seq=position.seq)

    # The rest

    def new_config(self) -> None:
        self.life.config_seq += 1
        wrapper = signed_config(config_obj(config_seq=self.life.config_seq))
        save_trust(self.life.config.trust_path, reread(self.device.trust, {"config": wrapper}))
        self.tell("config", seq=self.life.config_seq)

    def wipe(self) -> None:
        """As `device.core.running_wipe` does it."""
        state, trust = self.life.config.device.state_dir, self.device.trust
        seq = self.journal.mail.position().out_seq + 1
        body = {"wipe_id": "wipe-1"}
        record = self.sender.seal(seq, OutboxType.WIPED, body, created_ms=NOW_MS)
        self.tell("wipe_ordered")
        begin_wipe(
            state,
            Wipe(
                WipeStage.ERASING,
                "wipe-1",
                trust.device_id,
                trust.gate_id,
                trust.dbd_id,
                read_strict(record.data, max_bytes=65_536),
            ),
        )
        self.tell("wipe_begun")
        self.gallery.destroy()
        self.journal.leave_disk()
        finish_wipe(state)
        self.tell("erased")
        confirm_wipe(state)
        self.tell("confirmed")


def contents(batch: UploadBatch) -> list[list[Any]]:
    """What an upload tells the service: number, and which answers it has."""
    return [
        [item["signed_verdict"]["verdict"]["verdict_seq"], sorted(name for name in item if name != "v")]
        for item in batch.items
    ]


def held(stream: Service, seq: int) -> dict[str, str]:
    """Template number to person after delta `seq`: this workload's logs hold upserts and tombstones only."""
    holds: dict[str, str] = {}
    for delta in stream.log[:seq]:
        if delta.entry is not None:
            holds[str(int(delta.entry.template_id, 16))] = delta.entry.subject_ref
        elif delta.subject_ref is not None:
            holds = {number: ref for number, ref in holds.items() if ref != delta.subject_ref}
    return holds


def live(life: Life, rounds: int) -> None:
    life.provision()
    people = 0

    def enrol(count: int) -> None:
        nonlocal people
        life.stream.upsert(*(entry(people + one, people + one) for one in range(count)))
        people += count

    with life.running() as run:
        enrol(12)
        run.deltas(5)
        for _ in range(rounds):
            run.passage()
        run.deltas(20)
        run.upload()
        run.new_config()
        run.journal.maintain()
        for _ in range(rounds):
            run.passage()
            run.upload(3)
        run.head()
        life.clock.now_ms += 61_000
        run.gallery.remember_time(gallery_now(life.clock))

    with life.running() as run:
        run.mail_out()
        run.mail_in()
        for _ in range(rounds):
            run.passage()
        life.stream.tombstone(3)
        enrol(4)
        run.deltas(20)
        run.mail_out()
        run.mail_in(receipt=True)
        enrol(6)
        run.snapshot(7, pages=2)
        for _ in range(rounds):
            run.passage()
        run.new_config()
        run.journal.maintain()

    with life.running() as run:
        run.snapshot(7)
        for _ in range(rounds):
            run.passage()
            if life.random.random() < 0.3:
                run.mail_out()
                run.mail_in()
        run.mail_in(receipt=True)
        while run.journal.pending_uploads():
            run.upload()
        run.verdict()
        life.clock.now_ms += MEMORY_MS + 1_000
        run.passage()
        run.tell("may_forget", upto=run.journal.last().verdict_seq - 2)  # type: ignore[union-attr]
        run.journal.maintain()
        for _ in range(rounds):
            run.passage()
        run.journal.maintain()

    life.stream = service(epoch=2)
    people = 100
    enrol(15)
    with life.running() as run:
        run.snapshot(6)
        run.passage()
        enrol(2)
        run.deltas(20)
        run.new_config()
        run.wipe()


def live_on(state: Path, marks: Path) -> None:
    """Go on where the last life was cut off, until this one is."""
    life = Life(state, Marks(marks), "")
    life.verdicts = marks.read_bytes().count(b'"asked"')
    life.random.seed(life.verdicts)
    life.stream.upsert(*(entry(number, number) for number in range(200)))
    with life.running() as run:
        life.config_seq = run.device.policy.config_seq
        acts = (
            run.passage,
            run.passage,
            lambda: run.deltas(2),
            lambda: run.upload(5),
            run.mail_out,
            run.mail_in,
            lambda: run.mail_in(receipt=True),
            run.new_config,
            run.journal.maintain,
            run.head,
        )
        while True:
            life.random.choice(acts)()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("state", type=Path)
    parser.add_argument("marks", type=Path)
    parser.add_argument("--broken", choices=(*BROKEN, BROKEN_WITH_DAMAGE), default="")
    parser.add_argument("--rounds", type=int, default=6)
    arguments = parser.parse_args()
    break_it(arguments.broken)
    live(Life(arguments.state, Marks(arguments.marks), arguments.broken), arguments.rounds)


if __name__ == "__main__":
    main()
