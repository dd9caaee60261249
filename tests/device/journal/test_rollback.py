"""What must never go back does not, over restarts too; and one absurd date shuts no door."""

import json
from pathlib import Path
from typing import Any

import pytest

from device.core.service_news import ServiceNews
from device.errors import JournalError, Outdated, SequenceHalted
from device.health import Health, HealthWord
from device.platform.clock import has_kept_time
from device.platform.threads import StoreThread
from device.trust.bundle import with_bundle
from device.trust.service_status import StatusReader
from device.trust.trust import DbdKey, Trust, load_trust, save_trust, with_dbd_keys, with_service_keys
from link1.keys import SigningKey
from link1.signed import Kind, sign_object
from tests.device.carrier_setting import (
    DEVICE_ID,
    SERVICE_KEY,
    device_status,
    service_key,
)
from tests.device.core.small_disk import no_file_may_grow_beyond
from tests.device.core_makers import DBD_KEY, GALLERY_KEY, NOW_MS
from tests.device.journal.journal_makers import make_journal
from tests.device.mail.mail_setting import Mailed
from tests.device.trust.pinned_makers import bundle
from tests.device.trust.test_trust_bundle import public, trust

HOUR = 3_600_000
YEAR = 365 * 24 * HOUR
_ = trust  # the fixture


def status(issued_at_ms: int) -> Any:
    return json.loads(device_status(issued_at_ms))


def test_an_absurd_status_does_not_shut_out_the_right_ones() -> None:
    reader = StatusReader(DEVICE_ID, service_key, known_ms=lambda: NOW_MS)
    reader.read(status(NOW_MS + 50 * YEAR))
    assert reader.read(status(NOW_MS - HOUR)).issued_at_ms == NOW_MS - HOUR
    for old in (NOW_MS - 2 * HOUR, NOW_MS - YEAR):
        with pytest.raises(Outdated):
            reader.read(status(old))


def test_a_clock_that_is_hours_behind_brings_no_old_status_back() -> None:
    """As on a board whose clock has local time: each status seems to lie ahead, and none is absurd."""
    reader = StatusReader(DEVICE_ID, service_key, known_ms=lambda: NOW_MS - 3 * HOUR)
    reader.read(status(NOW_MS))
    with pytest.raises(Outdated):
        reader.read(status(NOW_MS - HOUR))


def test_a_clock_set_back_brings_no_old_status_back() -> None:
    known = [NOW_MS]
    reader = StatusReader(DEVICE_ID, service_key, known_ms=lambda: known[0])
    reader.read(status(NOW_MS))
    known[0] = 5_000  # 1970
    with pytest.raises(Outdated):
        reader.read(status(NOW_MS - HOUR))


def test_what_the_trust_stands_for_is_remembered_through_a_restart(trust: Trust, tmp_path: Path) -> None:
    key = {"dbd_id": trust.dbd_id, "kid": DBD_KEY.kid, "pub_b64": DBD_KEY.public.b64}
    ended = [DbdKey.from_obj(key | {"not_before_ms": 0, "not_after_ms": NOW_MS})]
    changed = with_dbd_keys(trust, ended, NOW_MS)
    assert with_dbd_keys(changed, ended, NOW_MS + 1) is changed, "a status a minute writes nothing"
    save_trust(tmp_path / "trust.json", changed)
    again = load_trust(tmp_path / "trust.json")
    reader = StatusReader(DEVICE_ID, service_key, at_least_ms=lambda: again.status_at_ms)
    with pytest.raises(Outdated):
        reader.read(status(NOW_MS - 1))
    assert reader.read(status(NOW_MS)).issued_at_ms == NOW_MS


def test_no_status_from_before_a_bundle_brings_a_revoked_validator_back(trust: Trust) -> None:
    revoked = with_bundle(trust, bundle(revoked_kids=[DBD_KEY.kid]), now_ms=NOW_MS)
    reader = StatusReader(DEVICE_ID, service_key, at_least_ms=lambda: revoked.status_at_ms)
    with pytest.raises(Outdated):
        reader.read(status(NOW_MS - 1))


def test_a_key_counts_until_its_end_by_the_time_that_is_known(trust: Trust) -> None:
    new = SigningKey.from_seed(b"\x31" * 32)
    times = {"not_before": "2030-01-01T00:00:00.000Z", "not_after": "2031-01-01T00:00:00.000Z"}
    later = with_service_keys(trust, [public(new, use=["gallery"], **times)], NOW_MS)
    assert later.gallery_key(new.kid, NOW_MS) == new.public
    a_year_after_it_ended_ms = 1_924_992_000_000 + YEAR
    assert later.gallery_key(new.kid, a_year_after_it_ended_ms) is None
    assert later.gallery_key(new.kid) == new.public, "where no time is known, its end does not count"
    assert later.gallery_key(GALLERY_KEY.kid, a_year_after_it_ended_ms) == GALLERY_KEY.public


def test_an_end_that_has_passed_is_not_taken_over(trust: Trust) -> None:
    """Else one forged answer of GET /v1/keys ended every key at once."""
    item = next(key for key in trust.obj["keys"] if key["kid"] == GALLERY_KEY.kid)
    forged = with_service_keys(trust, [item | {"not_after": "1971-01-01T00:00:00.000Z"}], NOW_MS)
    assert forged.gallery_key(GALLERY_KEY.kid, NOW_MS) == GALLERY_KEY.public


def test_a_key_that_has_ended_is_not_brought_back_by_a_list(trust: Trust) -> None:
    """A carrier may hold such a list: GET /v1/keys is not signed."""
    new = SigningKey.from_seed(b"\x31" * 32)
    item = public(new, use=["gallery"], not_before="2030-01-01T00:00:00.000Z", not_after=None)
    end, later_end = "2031-01-01T00:00:00.000Z", "2033-01-01T00:00:00.000Z"
    trust = with_service_keys(trust, [item | {"not_after": end}], NOW_MS)
    ended_ms = 1_924_992_000_000
    for listed in (None, later_end):
        again = with_service_keys(trust, [item | {"not_after": listed}], ended_ms)
        assert again.gallery_key(new.kid, ended_ms) is None
        put_off = with_service_keys(trust, [item | {"not_after": listed}], ended_ms - 1)
        assert put_off.gallery_key(new.kid, ended_ms) == new.public


def build(seq: int, prev_ref: str) -> Any:
    verdict = {"v": 1, "txn_id": "0a" * 16, "verdict_seq": seq, "prev_ref": prev_ref}
    return sign_object(Kind.VERDICT, verdict, SERVICE_KEY)


def test_a_halted_journal_numbers_nothing_not_after_a_restart_either(tmp_path: Path) -> None:
    journal = make_journal(tmp_path)
    journal.halt("the service knows more")
    journal.halt("another reason")
    for _again in range(2):
        assert journal.halted == "the service knows more"
        with pytest.raises(SequenceHalted, match="knows more"):
            journal.append_verdict("0a" * 16, "0" * 32, build)
        assert journal.last() is None
        journal.close()
        journal = make_journal(tmp_path)
    journal.close()


async def test_a_device_that_knows_that_it_went_back_numbers_nothing_although_its_disk_does_not_take_it(
    tmp_path: Path,
) -> None:
    thread, health = StoreThread("journal"), Health(lambda _words: None)
    journal = await thread.do(lambda: make_journal(tmp_path))
    not_used: Any = None
    parts = {"pinning": not_used, "wipe": not_used, "gallery": not_used, "validator_status": not_used}
    news = ServiceNews(journal=journal, journal_thread=thread, health=health, **parts)
    with no_file_may_grow_beyond(0), pytest.raises(JournalError):
        await news.rolled_back("the service knows more")
    assert health.words == (HealthWord.ROLLED_BACK,)
    with pytest.raises(SequenceHalted, match="knows more"):
        await thread.do(lambda: journal.append_verdict("0a" * 16, "0" * 32, build))
    await news.rolled_back("the service knows more")
    await thread.do(journal.close)
    thread.close()
    again = make_journal(tmp_path)
    assert again.halted == "the service knows more"
    again.close()


async def test_a_receipt_for_records_that_were_never_made_shows_an_old_card(tmp_path: Path) -> None:
    mailed = Mailed(tmp_path)
    async with mailed.running() as living:
        mailed.office.post_receipt(0)
        await living.carry_until(lambda: living.desk.position.in_applied_seq == 1)
        assert mailed.ears.rollbacks == []
        mailed.office.post_receipt(7)
        await living.carry_until(lambda: living.desk.position.in_applied_seq == 2)
        assert len(mailed.ears.rollbacks) == 1


def test_only_a_clock_that_the_kernel_took_the_time_from_counts(tmp_path: Path) -> None:
    assert not has_kept_time(tmp_path / "none")
    for name, content in (("rtc0", "0\n"), ("rtc1", "1\n")):
        assert not has_kept_time(tmp_path)
        (tmp_path / name).mkdir()
        (tmp_path / name / "hctosys").write_text(content)
    assert has_kept_time(tmp_path)
