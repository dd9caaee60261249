"""Runs rules one after the other on one line, and says how each came out."""

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from link1.envelope import Role
from link1.keys import SigningKey
from link1.link import RandomSource
from tools.kit.conform.cable_line import CableLine
from tools.kit.conform.common_frames import FRAME_RULES
from tools.kit.conform.common_sessions import (
    CANONICAL_RULE,
    ENVELOPE_RULES,
    HANDSHAKE_RULES,
    KEY_RULE,
    SESSION_RULES,
)
from tools.kit.conform.counters import Counters, load_counters
from tools.kit.conform.device_asking import ASKING_RULES, REVOKING_RULES, TXN_ID_RULE
from tools.kit.conform.device_hands import HAND_RULES
from tools.kit.conform.device_mail import DEVICE_MAIL_RULES
from tools.kit.conform.device_refusing import REFUSING_RULES
from tools.kit.conform.end_under_test import EndUnderTest, Setup
from tools.kit.conform.peer import Broken, ConformancePeer, NotTried
from tools.kit.conform.rules import ConformanceRule, RuleFinding, RuleResult
from tools.kit.conform.validator_mail import VALIDATOR_MAIL_RULES
from tools.kit.conform.validator_rules import VALIDATOR_RULES

_COMMON = (*FRAME_RULES, *SESSION_RULES, *ENVELOPE_RULES, *HANDSHAKE_RULES, KEY_RULE)
_DEVICE = (
    *(*_COMMON, *ASKING_RULES, *REFUSING_RULES, *HAND_RULES, *DEVICE_MAIL_RULES),
    *(TXN_ID_RULE, CANONICAL_RULE, *REVOKING_RULES),
)
_VALIDATOR = (*_COMMON, *VALIDATOR_RULES, *VALIDATOR_MAIL_RULES, CANONICAL_RULE)


def rules_for(under_test: Role) -> tuple[ConformanceRule, ...]:
    """Every rule for a device, or for a validator, in the order in which they run."""
    return _DEVICE if under_test is Role.DEVICE else _VALIDATOR


def chosen(
    rules: Sequence[ConformanceRule], only: Sequence[str] = (), skip: Sequence[str] = ()
) -> list[ConformanceRule]:
    """The rules whose id begins with one of `only` (all, when that is empty) and with none of `skip`."""
    return [
        rule
        for rule in rules
        if (not only or rule.id.startswith(tuple(only))) and not (skip and rule.id.startswith(tuple(skip)))
    ]


class NobodyThere(Exception):
    """The other end does not answer RST: there is nothing to test."""


def make_bench(
    setup: Setup,
    line: CableLine,
    counters: Counters,
    wall_ms: Callable[[], int],
    random: RandomSource = os.urandom,
) -> EndUnderTest:
    """A bench on a line. `random` gives tags, nonces and txn_ids; txn_ids must never come twice."""
    stranger = SigningKey.from_seed(hashlib.sha256(b"a key that nobody pins" + setup.key.seed).digest())
    return EndUnderTest(setup, ConformancePeer(line, random), counters, wall_ms, stranger)


def counters_beside(key_file: Path) -> Counters:
    """The counters of the key that the test plays with; raises FormatError when the file is damaged."""
    return load_counters(key_file.with_name(key_file.name + ".conform.json"))


def run_rules(bench: EndUnderTest, rules: Sequence[ConformanceRule]) -> Iterator[RuleFinding]:
    """Try each rule; raises NobodyThere or TransportError when the other end cannot be reached."""
    try:
        bench.peer.open()
    except Broken as broken:
        raise NobodyThere(str(broken)) from None
    for rule in rules:
        begun_ms = bench.peer.now_ms
        try:
            rule.check(bench)
            result, found = RuleResult.PASS, "as expected"
        except Broken as broken:
            result, found = RuleResult.FAIL, str(broken)
        except NotTried as not_tried:
            result, found = RuleResult.NOT_TRIED, str(not_tried)
        yield RuleFinding(rule, result, found, bench.peer.now_ms - begun_ms)
