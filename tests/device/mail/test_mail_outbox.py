"""What an outbox record holds, when a report is due, and which chunk answers a pull."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from cloud_client.reference_server.contract.sealed import check_outbox_record
from device.journal.mail import OutboxEntry
from device.mail.outbox import (
    REPORT_APART_MS,
    REPORT_EVERY_MS,
    OutboxType,
    OutboxWindow,
    ReportClock,
    ReportedState,
    Sender,
    chunk_of,
    fitting,
)
from device.values.status import RefusedMail
from link1.bodies import MAX_CHUNK_BYTES, MailPull
from link1.canonical import read_strict
from link1.keys import SealKey, SigningKey
from link1.sealed import OUTBOX_CT_MAX_BYTES, open_record
from tests.device.status_makers import some_report

KEY = SigningKey.from_seed(b"\x01" * 32)
SEAL = SealKey.from_seed(b"\x02" * 32)
SENDER = Sender("dev-1", KEY, lambda: SEAL.public)
STANDING = ReportedState(some_report(health=("KEY_UNATTESTED",)), None)


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=100))
def test_as_many_items_as_fit_are_put_into_a_record(sizes: list[int]) -> None:
    items = [{"x": "y" * size} for size in sizes]
    count = fitting(items)
    assert 1 <= count <= len(items)
    record = SENDER.seal(1, OutboxType.VERDICTS, {"items": items[:count]}, created_ms=1)
    assert read_strict(record.data, max_bytes=1 << 20)["post"]["ct_len"] <= OUTBOX_CT_MAX_BYTES
    if count < len(items):
        assert sum(len(item["x"]) for item in items[: count + 1]) > OUTBOX_CT_MAX_BYTES - 2_000


def test_a_record_opens_with_the_key_of_the_service_and_is_signed_by_the_device() -> None:
    sealed = SENDER.seal(7, OutboxType.WIPED, {"wipe_id": "w1"}, created_ms=5)
    record = read_strict(sealed.data, max_bytes=1 << 20)
    post, ciphertext = check_outbox_record(record, device_id="dev-1", signer=KEY.public)
    assert (post.seq, post.src, post.dst, post.created_ms) == (7, "dev-1", "svc", 5)
    assert "signer_cert_b64" not in record
    assert open_record(record, ciphertext, SEAL) == ("svc.device.wiped", {"wipe_id": "w1"})


def test_a_report_has_the_members_of_the_network_and_where_the_mail_has_stopped() -> None:
    standing = replace(STANDING, refused=RefusedMail(9, "bad_signature"))
    assert standing.to_body(8) == STANDING.report.to_obj() | {
        "refused": [{"seq": 9, "code": "bad_signature"}],
        "mail": {"in_applied_seq": 8},
    }


def test_a_report_is_due_at_first_after_changes_and_every_now_and_then() -> None:
    clock = ReportClock()
    assert clock.due(STANDING, 0)
    clock.made(STANDING, 0)
    assert not clock.due(STANDING, REPORT_EVERY_MS - 1)
    assert clock.due(STANDING, REPORT_EVERY_MS)
    later = replace(STANDING.report, uptime_s=99, at_ms=0, counters={"frames": 9})
    assert not clock.due(replace(STANDING, report=later), REPORT_EVERY_MS - 1)
    changed = replace(STANDING, report=replace(STANDING.report, health=()))
    assert not clock.due(changed, REPORT_APART_MS - 1)
    assert clock.due(changed, REPORT_APART_MS)
    clock.want()
    assert clock.due(STANDING, REPORT_APART_MS)
    clock.made(STANDING, REPORT_APART_MS)
    assert not clock.due(STANDING, 2 * REPORT_APART_MS)


@given(st.binary(min_size=1, max_size=3 * MAX_CHUNK_BYTES))
def test_chunks_give_the_record_back_and_nothing_lies_beyond_its_end(data: bytes) -> None:
    record, got = OutboxEntry(3, data), b""
    while (chunk := chunk_of(record, len(got))) is not None:
        assert (chunk.seq, chunk.offset, chunk.total) == (3, len(got), len(data))
        got += chunk.data
    assert got == data


def test_the_window_answers_only_for_the_record_it_shows() -> None:
    window, record = OutboxWindow(), OutboxEntry(5, b"data")
    assert window.record_for(MailPull(4, 0)) is None
    window.show(record, 2)
    assert [window.record_for(MailPull(after, 0)) for after in range(1, 6)] == [
        None,
        record,
        record,
        record,
        None,
    ]
    window.clear()
    assert window.record_for(MailPull(4, 0)) is None
