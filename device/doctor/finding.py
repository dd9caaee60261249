"""The finding of a check of the doctor."""

from dataclasses import dataclass
from enum import StrEnum

from link1.canonical import JsonObject


class CheckResult(StrEnum):
    """`skip`: there is nothing to check here, which is not a fault. `not_checked`: this user may not look, so
    the result is unknown."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """`detail`: what was found. `todo`: the next step; empty when there is none."""

    result: CheckResult
    detail: str
    todo: str = ""

    def to_obj(self, name: str) -> JsonObject:
        """One item of `palmctl doctor --json`; `name`: of the check."""
        return {"name": name, "result": str(self.result), "detail": self.detail, "todo": self.todo}


def ok(detail: str) -> Finding:
    return Finding(CheckResult.OK, detail)


def warn(detail: str, todo: str) -> Finding:
    return Finding(CheckResult.WARN, detail, todo)


def fail(detail: str, todo: str) -> Finding:
    return Finding(CheckResult.FAIL, detail, todo)


def skip(detail: str, todo: str = "") -> Finding:
    return Finding(CheckResult.SKIP, detail, todo)


def not_checked(detail: str) -> Finding:
    """For what this user may not read. The advice to run as root is printed once, above all findings."""
    return Finding(CheckResult.NOT_CHECKED, detail)
