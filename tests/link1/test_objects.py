"""Signed objects: what each member may be, to the last value (LINK/1 §4)."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from link1.canonical import JsonObject, b64_encode
from link1.errors import FormatError
from link1.objects import (
    PREV_REF_OF_FIRST,
    Decision,
    DeviceStatus,
    LastVerdict,
    Passage,
    Request,
    Verdict,
    VerdictResult,
)
from tests.link1.cable import decision_for, device_status, passage_for, request, verdict_for

REF = "ab" * 16
VERDICT = verdict_for(request())
READERS: dict[str, tuple[Callable[[JsonObject], Any], JsonObject]] = {
    "request": (Request.from_obj, request().to_obj()),
    "verdict": (Verdict.from_obj, VERDICT.to_obj()),
    "rejection": (Verdict.from_obj, verdict_for(request(), accept=False).to_obj()),
    "decision": (Decision.from_obj, decision_for(VERDICT, REF).to_obj()),
    "passage": (Passage.from_obj, passage_for(VERDICT, REF).to_obj()),
    "status": (
        DeviceStatus.from_obj,
        device_status(last=LastVerdict(1, REF), nonce_b64=b64_encode(bytes(32))).to_obj(),
    ),
}
RANGES = [
    ("request", "nonce_b64", [b64_encode(bytes(16)), b64_encode(bytes(32))]),
    ("request", "ttl_ms", [500, 60_000]),
    ("request", "issued_at_ms", [0, 2**53 - 1]),
    ("verdict", "verdict_seq", [1, 2**53 - 1]),
    ("verdict", "score_q", [-10_000, 10_000]),
    ("verdict", "margin_q", [0, 20_000]),
    ("verdict", "quality_q", [0, 100]),
    ("verdict", "attempts", [0, 1_000]),
    ("decision", "decision_seq", [1, 2**53 - 1]),
    ("passage", "dbd_event_seq", [1, 2**53 - 1]),
    ("status", "health", [[], ["A"] * 32]),
    ("status", "at_ms", [0, 2**53 - 1]),
]
"""The lowest and the highest value; what lies beyond is refused."""


@pytest.mark.parametrize("kind", READERS)
def test_an_object_is_read_and_written_back(kind: str) -> None:
    read, obj = READERS[kind]
    assert read(obj).to_obj() == obj
    assert read(obj | {"later": {}}).to_obj() == obj


def test_the_first_verdict_names_none_before_it() -> None:
    read, obj = READERS["verdict"]
    assert read(obj | {"prev_ref": PREV_REF_OF_FIRST}).prev_ref == "0" * 32


def _places(obj: JsonObject) -> Iterator[tuple[JsonObject, str]]:
    """Every member, of inner objects too, with the object that holds it."""
    for name, value in obj.items():
        yield obj, name
        if isinstance(value, dict):
            yield from _places(value)


@pytest.mark.parametrize("kind", READERS)
def test_every_member_has_to_be_there_and_of_its_type(kind: str) -> None:
    read, obj = READERS[kind]
    for holder, name in list(_places(obj)):
        honest = holder.pop(name)
        others: list[Any] = [None, 1.5, [1], {}, "\n", True]
        for value in others:
            if not (value is None and name == "last") and not (value is True and isinstance(honest, bool)):
                holder[name] = value
                with pytest.raises(FormatError):
                    read(obj)
                del holder[name]
        with pytest.raises(FormatError):
            read(obj)
        holder[name] = honest
    assert read(obj).to_obj()


@pytest.mark.parametrize("kind", READERS)
def test_another_version_is_refused(kind: str) -> None:
    read, obj = READERS[kind]
    for version in (0, 2, "1"):
        with pytest.raises(FormatError):
            read(obj | {"v": version})


@pytest.mark.parametrize(("kind", "name", "ends"), RANGES)
def test_a_range_ends_where_the_contract_says(kind: str, name: str, ends: list[Any]) -> None:
    read, obj = READERS[kind]
    for value in ends:
        assert read(obj | {name: value}).to_obj()[name] == value
    lowest, highest = ends
    beyond: list[Any]
    match lowest, highest:
        case int(), int():
            beyond = [lowest - 1, highest + 1]
        case str(), str():
            beyond = [b64_encode(bytes(15)), b64_encode(bytes(33))]
        case _:
            beyond = [[*highest, "A"], ["A", 1], ["A", "x y"]]
    for value in beyond:
        with pytest.raises(FormatError):
            read(obj | {name: value})


DECISIONS = {
    "MATCH": "accept",
    "NO_MATCH": "reject",
    "AMBIGUOUS": "reject",
    "SPOOF": "reject",
    "POOR_CAPTURE": "abstain",
    "GALLERY_EXPIRED": "abstain",
    "NOT_READY": "abstain",
}


def test_each_result_has_one_decision() -> None:
    assert {result.value: result.decision.value for result in VerdictResult} == DECISIONS
    accepted = VERDICT.to_obj()
    for decision in ("reject", "abstain"):
        with pytest.raises(FormatError, match="do not belong together"):
            Verdict.from_obj(accepted | {"decision": decision})


@pytest.mark.parametrize("result", [name for name in DECISIONS if name != "MATCH"])
def test_only_an_accept_verdict_names_a_person(result: str) -> None:
    rejected = verdict_for(request(), accept=False).to_obj() | {
        "result": result,
        "decision": DECISIONS[result],
    }
    assert Verdict.from_obj(rejected).to_obj() == rejected
    persons: list[JsonObject] = [{"subject_ref": REF}, {"hand": "L"}, {"onboard_ref": "ticket-1"}]
    for person in persons:
        with pytest.raises(FormatError, match="only an accept verdict"):
            Verdict.from_obj(rejected | person)
        with pytest.raises(FormatError, match="accept verdict"):
            verdict_for(request(), accept=False, result=VerdictResult(result), **person)


@pytest.mark.parametrize("person", [{"subject_ref": None}, {"hand": None}])
def test_an_accept_verdict_names_a_person(person: JsonObject) -> None:
    with pytest.raises(FormatError, match="an accept verdict has"):
        verdict_for(request(), **person)
