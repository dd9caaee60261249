"""The report of a whole device: what it counts, when it changes, and that it is about no person."""

import asyncio
import json
import re
import socket
from typing import Any

from device.mail.outbox import OutboxType
from link1.objects import VerdictResult
from link1.validator.desk import VerdictAnswered
from tests.device.core.test_mail_palmd import collected, shown
from tests.device.whole_device import (
    WITHIN_S,
    Device,
    Validator,
    answered,
    ask_carrier,
    pictures,
    validator_at,
)
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.board import DBD_ID

MEMBERS = {
    "v",
    "boot_id",
    "at_ms",
    "uptime_s",
    "serving",
    "app",
    "model_id",
    "thr_id",
    "config_seq",
    "health",
    "gallery",
    "link",
    "queues",
    "board",
    "camera",
    "counters",
    "updates",
}
COUNTER = re.compile(
    r"verdicts\.(accept|reject|abstain)\.[A-Z_]+|pad\.fail|frames|latency_ms\.le_(50|100|200|500|1000|inf)"
    r"|cable\.resets|uploads\.failed|evidence\.bad_signature"
)
BOOT_ID = re.compile(r"[0-9a-f]{32}")
STRANGER = 77


async def reported(device: Device, wait_ms: int = 0) -> dict[str, Any]:
    _, payload = await ask_carrier(device, "report.next", wait_ms=wait_ms)
    told: dict[str, Any] = json.loads(payload)
    return told


def texts(value: object) -> set[str]:
    """Every name and text of a JSON value."""
    match value:
        case dict():
            return set(value) | {text for one in value.values() for text in texts(one)}
        case list():
            return {text for one in value for text in texts(one)}
        case _:
            return {value} if isinstance(value, str) else set()


async def test_passages_are_counted_and_no_report_names_a_person(device: Device) -> None:
    async def passages(validator: Validator) -> list[VerdictAnswered]:
        said = [await shown(validator, device, 9000)]
        assert said[0].verdict.result is VerdictResult.MATCH
        said.append(await answered(device, validator, pictures(seed=STRANGER, occasion=1)))
        assert said[1].verdict.result is VerdictResult.NO_MATCH
        return said

    with PtyPair() as pair, device.running():
        port = device.plug(pair)
        before = await reported(device)
        assert (before["link"], before["counters"]["cable.resets"]) == ({"up": False, "dbd_id": None}, 0)
        async with validator_at(port, device.board) as validator:
            await validator.wait_serving()
            said = await passages(validator)
            async with asyncio.timeout(WITHIN_S):  # before a carrier takes them
                while not (await reported(device))["queues"]["verdicts"]:  # noqa: ASYNC110 - counted in another process
                    await asyncio.sleep(0.1)
        # The first report that a validator with mail takes has them all; the next is due in half a minute.
        async with validator_at(port, device.board, carries_mail=True) as validator:
            await validator.wait_serving()
            by_mail = await collected(validator, device, OutboxType.REPORT)
            assert by_mail["counters"]["verdicts.reject.NO_MATCH"] == 1
            online = await reported(device)
        assert online["link"] == {"up": True, "dbd_id": DBD_ID}
        assert online["serving"] is True
        assert online["counters"]["verdicts.accept.MATCH"] == 1
        assert online["counters"]["latency_ms.le_inf"] == 2 + online["counters"].get(
            "verdicts.abstain.POOR_CAPTURE", 0
        )
        assert online["boot_id"] == before["boot_id"]
        assert BOOT_ID.fullmatch(online["boot_id"])
        assert online["uptime_s"] >= before["uptime_s"]
        assert online["counters"]["frames"] > before["counters"]["frames"]
        assert set(by_mail) == set(online) | {"refused", "mail"}
        assert len(json.dumps(online)) < 8 * 1024
        for report in (before, online, by_mail):
            is_about_no_person(report, said)


def is_about_no_person(report: dict[str, Any], said: list[VerdictAnswered]) -> None:
    """A report has the contract's members alone, and nothing of the passages, of this host or its address."""
    assert {name for name in report if name not in ("refused", "mail")} == MEMBERS
    assert {name for name in report["counters"] if COUNTER.fullmatch(name) is None} == set()
    words = texts(report)
    for one in said:
        of_it = (one.verdict.txn_id, one.verdict.subject_ref, one.verdict.onboard_ref, one.verdict_ref)
        assert words.isdisjoint(of_it)
    assert "score" not in json.dumps(report)
    assert not any(socket.gethostname() in word or "/" in word or "127.0.0.1" in word for word in words)


async def test_a_change_ends_the_wait_for_a_report_and_a_restart_has_another_boot_id(device: Device) -> None:
    with PtyPair() as pair:
        port = device.plug(pair)
        with device.running():
            boot_id = str((await reported(device))["boot_id"])
            waiting = asyncio.create_task(reported(device, wait_ms=60_000))
            async with asyncio.timeout(20), validator_at(port, device.board) as validator:
                await validator.wait_serving()
                news = await waiting
                while not news["link"]["up"]:
                    news = await reported(device, wait_ms=60_000)
                assert "LINK_DOWN" not in news["health"]
            async with asyncio.timeout(20):
                while news["link"]["up"]:  # the validator has gone
                    news = await reported(device, wait_ms=60_000)
            assert news["boot_id"] == boot_id
        with device.running():
            assert (await reported(device))["boot_id"] != boot_id
