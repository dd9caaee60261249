"""Rules as data: what LINK/1 says, how it is tried, and what was found."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from link1.canonical import JsonObject

if TYPE_CHECKING:
    from tools.kit.conform.end_under_test import EndUnderTest


class RuleResult(StrEnum):
    PASS = "PASS"  # noqa: S105 (a result)
    FAIL = "FAIL"
    NOT_TRIED = "NOT TRIED"


@dataclass(frozen=True, slots=True)
class ConformanceRule:
    """`section` and `sentence` are the specification's, `expected` what the end under test should do.

    `check` tries it on a bench; it raises Broken with what it found, or NotTried with what to do so that it
    can be tried.
    """

    id: str
    section: str
    sentence: str
    expected: str
    check: "Callable[[EndUnderTest], None]"


@dataclass(frozen=True, slots=True)
class RuleFinding:
    rule: ConformanceRule
    result: RuleResult
    found: str
    took_ms: int

    def to_obj(self) -> JsonObject:
        return {
            "id": self.rule.id,
            "result": self.result.value,
            "section": self.rule.section,
            "sentence": self.rule.sentence,
            "expected": self.rule.expected,
            "found": self.found,
            "took_ms": self.took_ms,
        }
