"""`palmctl dbd conform` against our own daemon: a process, generated palms, a virtual cable."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from link1.canonical import b64_encode
from link1.envelope import Role
from tests.device.whole_device import CAMERA_FPS, Device, pictures
from tools.kit.conform.command import conform
from tools.kit.conform.end_under_test import Setup
from tools.kit.conform.rules import RuleFinding, RuleResult
from tools.kit.conform.runner import chosen, rules_for
from tools.kit.ports import open_port
from tools.kit.pty_pair import PtyPair
from tools.palmctl.bench.board import DBD_ID, DEVICE_ID, GATE_ID

IN_SIMULATED_TIME = (
    *("message.six_transmissions", "session.silence", "handshake.timeout", "handshake.w", "handshake.re"),
    *("handshake.unknown_key", "request.reset_drops_armed", "cancel.ended", "envelope.a_"),
    # The daemon gives a verdict that finds a full queue in the next session; simulated ends in this one.
    "verdict.full_queue",
)
"""Rules that wait for seconds or differ in a word: simulated ends try them without waiting."""


NEEDS_MORE = {
    *("key.revoked", "key.revoked_in_use", "key.revoked_for_good", "verdict.revoked_decision"),
    *("clock.own_behind", "clock.own_ahead", "restart.ended", "restart.resolve", "restart.again"),
    *("restart.chain", "mail.restart", "resolve.many", "passage.completes"),
    *("passage.wrong_signature", "passage.wrong_ref", "passage.wrong_ids"),
    *("mail.applied", "mail.collects", "mail.past_the_end"),
}
"""Rules that need a hook, a revoked key, a turn sensor, dozens of hands, or mail sealed by the service."""


@dataclass
class FilmHand:
    """Shows a generated palm, which comes, is held and leaves at the camera's pace."""

    device: Device
    film: tuple[bytes, ...] = field(default_factory=pictures)
    gone_at_s: float = 0.0
    settles_ms: int = 2_000
    tireless: bool = False

    def show(self) -> None:
        self.device.show(self.film)
        self.gone_at_s = time.monotonic() + (len(self.film) + 3) / CAMERA_FPS + 0.3

    def away(self) -> Callable[[], bool]:
        return lambda: time.monotonic() >= self.gone_at_s


@pytest.mark.parametrize(
    "every", [pytest.param(4, id="share"), pytest.param(1, id="whole", marks=pytest.mark.long)]
)
@pytest.mark.timeout(180)
def test_our_own_daemon_passes(device: Device, tmp_path: Path, every: int) -> None:
    """Every fourth rule, or all of them."""
    key_file = tmp_path / "dbd.key"
    key_file.write_text(b64_encode(device.board.validator_key.seed))
    setup = Setup(
        Role.VALIDATOR,
        DBD_ID,
        GATE_ID,
        device.board.validator_key,
        device.board.verdict_key,
        DEVICE_ID,
        hand=FilmHand(device),
    )
    findings: list[RuleFinding] = []
    rules = chosen(rules_for(Role.DEVICE), skip=IN_SIMULATED_TIME)[::every]
    with PtyPair() as pair:
        (device.folder / "cable").symlink_to(pair.left)
        with device.running():
            tally = conform(setup, lambda: open_port(pair.right), key_file, rules, findings.append)
    assert [f"{f.rule.id}: {f.found}" for f in findings if f.result is RuleResult.FAIL] == []
    untried = {f.rule.id for f in findings if f.result is RuleResult.NOT_TRIED}
    assert tally[RuleResult.PASS] + len(untried) == len(rules)
    assert untried <= NEEDS_MORE
