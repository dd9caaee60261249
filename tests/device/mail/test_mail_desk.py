"""Mail from end to end over a cable in memory: the real desk, journal and gallery, a real validator's end."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from device.errors import JournalError
from device.journal.witness import JournalWitness, Numbers
from device.mail import outbox
from link1.bodies import MailNone, MailPull, MailState
from link1.canonical import b64_encode, canonical_bytes
from link1.events import Backing
from link1.keys import SealKey, SigningKey
from link1.signed import Kind, sign_object
from tests.device.mail.mail_setting import DEVICE_ID, POST_KEY, Living, Mailed, sealed, status_wrapper
from tests.link1.cable import mixed_faults


@asynccontextmanager
async def life(mailed: Mailed) -> AsyncIterator[Living]:
    async with mailed.running() as living:
        await living.carry()
        yield living


def content_of_journal(folder: Path) -> bytes:
    """The bytes of its files, one after the other."""
    return b"".join(path.read_bytes() for path in folder.glob("journal.db*"))


@pytest.fixture
def mailed(tmp_path: Path) -> Mailed:
    return Mailed(tmp_path)


async def test_a_device_without_network_gets_its_gallery_and_says_where_it_stands(mailed: Mailed) -> None:
    office = mailed.office
    for person in range(1, 8):
        office.stream.enrol(person)

    async with life(mailed) as living:
        await living.carry_until(lambda: bool(office.reports()))
        assert office.reports()[0]["gallery"] == {"stream": "t1.test", "epoch": 1, "seq": 0}
        office.post_deltas(0, limit=3)
        office.post_deltas(3)
        await living.carry_until(lambda: living.gallery.position.seq == 7)
        await living.carry_until(lambda: office.reports()[-1]["gallery"]["seq"] == 7)
        office.stream.tombstone(3)
        office.post_head()
        await living.carry_until(lambda: living.desk.position.in_applied_seq == 3)
        # A head that is ahead of the gallery makes the device say where it stands, at once.
        reports = len(office.reports())
        await living.carry_until(lambda: len(office.reports()) > reports, rounds=8)
        office.post_deltas(7)
        office.post_receipt()
        await living.carry_until(lambda: living.desk.position.in_applied_seq == 5)
        assert living.gallery.count == 6
        assert living.desk.position.out_acked_seq == office.applied_seq


async def test_one_write_that_fails_after_a_record_was_noted_does_not_stop_the_mail(
    mailed: Mailed, monkeypatch: pytest.MonkeyPatch
) -> None:
    office, keep = mailed.office, JournalWitness.keep_numbers
    refused: list[Numbers] = []

    def refuse_once(witness: JournalWitness, numbers: Numbers) -> None:
        if numbers.in_applied_seq == 2 and not refused:
            refused.append(numbers)
            raise JournalError("Input/output error")
        keep(witness, numbers)

    monkeypatch.setattr(JournalWitness, "keep_numbers", refuse_once)

    async with life(mailed) as living:
        await living.carry_until(lambda: bool(office.reports()))
        for _ in range(3):
            office.post_receipt()
        await living.carry_until(lambda: living.desk.position.in_applied_seq == 3, rounds=40)
        assert [settled.state for settled in living.settled] == [MailState.APPLIED] * 3
        assert len(refused) == 1


async def test_a_snapshot_comes_in_pages(mailed: Mailed) -> None:
    async with life(mailed) as living:
        office = living.office
        for person in range(1, 5):
            office.stream.enrol(person)
        for page in office.stream.snapshot_objs(2, 2_000_000_000_000):
            office.post("svc.gallery.snapshot.page", page)
        await living.carry_until(lambda: living.gallery.position.seq == 4)
        assert living.gallery.count == 4
        assert living.ears.gallery_changes == 1


async def test_verdicts_go_out_once_and_stay_until_the_receipt(mailed: Mailed) -> None:
    async with life(mailed) as living:
        office = living.office
        for number in range(1, 6):
            await living.decide(number)
        await living.carry_until(lambda: office.verdict_seqs() == [1, 2, 3, 4, 5])
        await living.carry(20)
        assert office.verdict_seqs() == [1, 2, 3, 4, 5], "nothing goes twice"
        assert await living.pending_uploads() == 5
        assert not await living.outbox_is_empty()
        office.post_receipt()
        await living.carry_until(lambda: living.desk.position.out_acked_seq == office.applied_seq)
        assert await living.pending_uploads() == 0
        assert await living.outbox_is_empty()


async def test_a_receipt_settles_what_it_covers_and_no_more(mailed: Mailed) -> None:
    async with life(mailed) as living:
        office = living.office
        await living.carry_until(lambda: office.applied_seq == 1)
        await living.decide(1)
        await living.carry_until(lambda: office.applied_seq == 2)
        office.post_receipt(1)
        await living.carry_until(lambda: living.desk.position.out_acked_seq == 1)
        assert await living.pending_uploads() == 1
        office.post_receipt(77)
        await living.carry_until(lambda: living.desk.position.in_applied_seq == 2)
        assert living.desk.position.out_acked_seq == living.desk.position.out_seq
        assert await living.pending_uploads() == 0


async def test_forged_evidence_fills_the_outbox_to_a_bound_and_holds_back_no_verdict(
    mailed: Mailed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_UNSETTLED", 3)

    async with life(mailed) as living:
        office, journal = living.office, living.journal
        await living.decide(1)
        await living.carry_until(lambda: office.verdict_seqs() == [1])
        for number in range(6):
            forged = {"decision_obj": {"txn_id": f"{1:032x}", "number": number}}
            keep = partial(journal.record_evidence, "decision", forged, f"{1:032x}", Backing.UNSIGNED)
            await living.threads[0].do(keep)
            await living.carry(4)
        assert living.desk.position.out_seq == 3
        await living.decide(2)
        await living.carry_until(lambda: 2 in office.verdict_seqs())
        assert living.desk.position.out_seq == 4
        office.post_receipt()
        await living.carry_until(lambda: living.desk.position.out_seq > 4)


async def test_while_the_network_carries_verdicts_the_mail_does_not(mailed: Mailed) -> None:
    mailed.online = True

    async with life(mailed) as living:
        await living.decide(1)
        await living.carry(10)
        assert living.office.read == {}
        mailed.online = False
        await living.carry_until(lambda: living.office.verdict_seqs() == [1])


async def test_no_verdict_is_mailed_before_it_is_known_whether_the_network_carries_it(mailed: Mailed) -> None:
    mailed.network_awaited = True

    async with life(mailed) as living:
        await living.decide(1)
        # The report does not wait: the service answers it with the head that a gate may need to serve.
        await living.carry_until(lambda: bool(living.office.reports()))
        await living.carry(10)
        assert living.office.verdict_seqs() == []
        mailed.network_awaited = False
        await living.carry_until(lambda: living.office.verdict_seqs() == [1])


async def test_a_large_backlog_goes_in_records_of_64_kib(mailed: Mailed) -> None:
    async with life(mailed) as living:
        padding = "x" * 1_200

        def build_with(number: int) -> None:
            living.journal.append_verdict(
                f"{number:032x}",
                "0" * 32,
                lambda seq, prev_ref: sign_object(
                    Kind.VERDICT,
                    {
                        "v": 1,
                        "txn_id": f"{number:032x}",
                        "verdict_seq": seq,
                        "prev_ref": prev_ref,
                        "padding": padding,
                    },
                    SigningKey.from_seed(b"d" * 32),
                ),
            )

        for number in range(1, 101):
            await living.threads[0].do(partial(build_with, number))
        await living.threads[0].do(living.journal.close_open_outcomes)
        await living.carry_until(lambda: len(living.office.verdict_seqs()) == 100)
        assert living.office.verdict_seqs() == list(range(1, 101))
        batches = [type_ for type_, _ in living.office.read.values() if type_ == "svc.verdicts.batch"]
        assert len(batches) == 3


async def test_a_revocation_by_mail_reaches_the_core(mailed: Mailed) -> None:
    async with life(mailed) as living:
        order = status_wrapper(9_000, status="revoked", wipe={"wipe_id": "w1", "reason": "stolen"})
        living.office.post("svc.device.revoke", order)
        living.office.post("svc.device.revoke", status_wrapper(8_000))
        await living.carry_until(lambda: living.desk.position.in_applied_seq == 2)
        assert [status.wipe_id for status in living.ears.statuses] == ["w1"], "the older one says nothing new"


async def test_configuration_and_bundle_go_to_the_core(mailed: Mailed) -> None:
    async with life(mailed) as living:
        living.office.post("svc.config", {"some": "wrapper"})
        living.office.post("svc.trust.bundle", {"other": "wrapper"})
        await living.carry_until(lambda: living.desk.position.in_applied_seq == 2)
        assert living.ears.configs == [{"some": "wrapper"}]
        assert living.ears.bundles == [{"other": "wrapper"}]
        assert len(living.ears.times) == living.desk.position.in_applied_seq, "when each was made is heard"


STRANGER = SigningKey.from_seed(b"\x66" * 32)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"signer": STRANGER}, "unknown_signer"),
        ({"root": STRANGER}, "unknown_signer"),
        ({"not_after_ms": 1}, "unknown_signer"),
        ({"dst": "another"}, "wrong_destination"),
        ({"src": "another"}, "wrong_source"),
        ({"seq": 9}, "seq_conflict"),
        ({"to": SealKey.from_seed(b"\x55" * 32).public}, "malformed"),
        ({"type_": "svc.update.chunk"}, "unsupported_type"),
        ({"type_": "svc.of.tomorrow"}, "unsupported_type"),
        ({"type_": "svc.gallery.head"}, "malformed"),
        ({"type_": "svc.post.receipt", "body": {"device_id": "another", "acked_upto_seq": 1}}, "malformed"),
        ({"type_": "svc.device.revoke", "body": status_wrapper(device_id="another")}, "untrusted"),
    ],
)
async def test_a_wrong_record_stops_the_line_is_reported_and_gives_way(
    mailed: Mailed, changed: dict[str, object], code: str
) -> None:
    async with life(mailed) as living:
        office = living.office
        given = {"seq": 1, "type_": "svc.post.receipt", "body": {}} | changed
        office.inbox.append(canonical_bytes(sealed(**given)))  # type: ignore[arg-type]
        office.post_receipt(0)
        await living.carry_until(lambda: bool(living.settled))
        assert (living.settled[0].state, living.settled[0].code) == (MailState.REFUSED, code)
        await living.carry_until(lambda: office.reports()[-1]["refused"] == [{"seq": 1, "code": code}])
        assert living.desk.position.in_applied_seq == 0
        office.inbox[0] = canonical_bytes(
            sealed(1, "svc.post.receipt", {"device_id": DEVICE_ID, "acked_upto_seq": 0})
        )
        assert living.mail.offer(1, office.inbox[0])
        await living.carry_until(lambda: living.desk.position.in_applied_seq == 2)
        assert living.desk.position.refused is None
        await living.carry_until(lambda: office.reports()[-1]["refused"] == [])


async def test_a_record_of_a_revoked_signer_is_refused(mailed: Mailed) -> None:
    mailed.revoked = (POST_KEY.kid,)
    async with life(mailed) as living:
        living.office.post_receipt(0)
        await living.carry_until(lambda: bool(living.settled))
        assert (living.settled[0].state, living.settled[0].code) == (MailState.REFUSED, "unknown_signer")


async def test_bytes_that_are_no_record_are_refused(mailed: Mailed) -> None:
    async with life(mailed) as living:
        living.office.inbox.append(b"\x00" * 5_000)
        await living.carry_until(lambda: bool(living.settled))
        assert (living.settled[0].state, living.settled[0].code) == (MailState.REFUSED, "malformed")


async def test_a_refusal_is_remembered_over_a_restart(mailed: Mailed) -> None:
    async with life(mailed) as living:
        living.office.inbox.append(canonical_bytes(sealed(1, "svc.post.receipt", {}, dst="another")))
        await living.carry_until(lambda: living.desk.position.refused is not None)
    async with life(mailed) as living:
        refused = living.desk.position.refused
        assert refused is not None
        assert (refused.seq, refused.code) == (1, "wrong_destination")


async def test_a_page_that_leads_on_from_elsewhere_is_refused_and_an_old_one_is_passed_over(
    mailed: Mailed,
) -> None:
    async with life(mailed) as living:
        office = living.office
        for person in range(1, 5):
            office.stream.enrol(person)
        office.post_deltas(0, limit=2)
        office.post_deltas(0, limit=1)
        office.post_deltas(3)
        await living.carry_until(lambda: living.desk.position.refused is not None)
        refused = living.desk.position.refused
        assert refused is not None
        assert (refused.seq, refused.code) == (3, "gap")
        assert living.gallery.position.seq == 2


async def test_a_transfer_goes_on_where_a_reset_cut_it(mailed: Mailed) -> None:
    async with life(mailed) as living:
        office, sent = living.office, []
        for person in range(1, 40):
            office.stream.enrol(person)
        office.post_deltas(0)
        end = mailed.validator.end if mailed.validator else None
        assert end is not None
        send = end.send_mail

        def counting(chunk: object) -> bool:
            sent.append(chunk)
            return send(chunk)  # type: ignore[arg-type]

        end.send_mail = counting  # type: ignore[method-assign]
        living.cable.to_right = living.cable.to_left = cut_after(30_000)
        await living.carry(4)
        living.cable.mend()
        await living.carry_until(lambda: living.gallery.position.seq == 39)
        chunks = -(-len(office.inbox[0]) // 2880)
        assert len(sent) <= chunks + 3, "only what was on its way is said again"


def cut_after(count: int) -> Callable[[bytes], list[bytes]]:
    left = count

    def manipulate(data: bytes) -> list[bytes]:
        nonlocal left
        left -= len(data)
        return [data] if left > 0 else []

    return manipulate


@pytest.mark.parametrize("seed", range(6))
def test_through_faults_power_cuts_and_replays_nothing_is_lost_or_applied_twice(
    mailed: Mailed, seed: int
) -> None:
    """Enrolments, erasures, verdicts, receipts; a cable with faults; the power goes at any step."""
    rng, office = random.Random(seed), mailed.office
    people: list[int] = []
    posted_upto = verdicts = 0

    async def one_life(*, last: bool) -> None:
        nonlocal posted_upto, verdicts
        async with mailed.running() as living:
            await living.carry(2)
            applied = living.desk.position.in_applied_seq
            for _ in range(rng.randrange(1, 4)):
                person = office.stream.seq + 1
                office.stream.enrol(person)
                people.append(person)
                if rng.random() < 0.3:
                    office.stream.tombstone(people.pop(rng.randrange(len(people))))
                verdicts += 1
                await living.decide(verdicts)
            office.post_deltas(posted_upto)
            posted_upto = office.stream.seq
            office.post_head()
            office.post_receipt()
            if not last:
                living.fuse.steps, living.fuse.after = rng.randrange(1, 30), rng.random() < 0.5
            living.cable.to_left, living.cable.to_right = (
                mixed_faults(seed, 0.03),
                mixed_faults(seed + 50, 0.03),
            )
            living.mail.pull_again()
            for _ in range(rng.randrange(2, 12)):
                await living.carry()
                if living.fuse.blown:
                    break
            assert living.desk.position.in_applied_seq >= applied
            if last:
                living.cable.mend()
                await living.carry_until(lambda: set(office.verdict_seqs()) == set(range(1, verdicts + 1)))
                office.post_receipt()
                await living.carry_until(lambda: living.desk.position.in_applied_seq == len(office.inbox))
                assert living.gallery.position.seq == office.stream.seq
                assert living.gallery.count == len(people)
                assert await living.pending_uploads() == 0
                assert sorted(office.read) == list(range(1, max(office.read) + 1))
                assert living.desk.position.refused is None

    for number in range(8):
        asyncio.run(one_life(last=number == 7))


async def test_a_flood_of_questions_about_the_outbox_is_one_look_at_it(mailed: Mailed) -> None:
    """While the disk hangs a cheating carrier can ask thousands of times a second; the newest is answered."""
    busy = threading.Event()
    async with life(mailed) as living:
        waiting = asyncio.create_task(living.threads[0].do(busy.wait))
        with patch.object(living.desk.end, "send_mail_none") as send_mail_none:
            before = len(asyncio.all_tasks())
            for number in range(1_000):
                living.desk.pulled(MailPull(1_000 + number, 0))
            more = len(asyncio.all_tasks()) - before
            busy.set()
            await living.desk.finish()
        assert more <= 1
        assert await waiting
        send_mail_none.assert_called_once_with(MailNone(1_999))


async def test_everything_that_lies_in_the_outbox_is_sealed(mailed: Mailed, tmp_path: Path) -> None:
    async with life(mailed) as living:
        await living.decide(0xABCDEF)
        await living.carry_until(lambda: bool(living.office.verdict_seqs()))
    stored = content_of_journal(tmp_path)
    assert b"svc.verdicts.batch" in stored
    assert b"signed_verdict" not in stored
    assert b64_encode(b"signed_verdict").encode()[:16] not in stored
