"""What a check of the doctor says."""

from dataclasses import dataclass
from enum import StrEnum

from link1.canonical import JsonObject


class Result(StrEnum):
    """How it stands. `skip`: there is nothing to look at here, which is no fault by itself. `not_checked`:
    this user may not look, which says nothing about it."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"
    NOT_CHECKED = "not_checked"


@dataclass(frozen=True, slots=True)
class Finding:
    """`detail`: what was found. `todo`: the next step; empty where nothing is to be done."""

    name: str
    result: Result
    detail: str
    todo: str = ""

    def to_obj(self) -> JsonObject:
        """One item of `palmctl doctor --json`."""
        return {"name": self.name, "result": str(self.result), "detail": self.detail, "todo": self.todo}


def ok(name: str, detail: str) -> Finding:
    return Finding(name, Result.OK, detail)


def warn(name: str, detail: str, todo: str) -> Finding:
    return Finding(name, Result.WARN, detail, todo)


def fail(name: str, detail: str, todo: str) -> Finding:
    return Finding(name, Result.FAIL, detail, todo)


def skip(name: str, detail: str, todo: str = "") -> Finding:
    return Finding(name, Result.SKIP, detail, todo)


def not_checked(name: str, detail: str) -> Finding:
    """For what this user may not look at. That root may is said once, above all findings."""
    return Finding(name, Result.NOT_CHECKED, detail)
