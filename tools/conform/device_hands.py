"""Rules for a device that need a hand: verdicts, and what becomes of them (LINK/1 §4).

A person shows a hand twice and no more: two passages are played once, what happens is written down in a
`Story`, and each rule looks at its part of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from link1.canonical import JsonObject, canonical_bytes
from link1.errors import FormatError, SignatureError
from link1.objects import Decision, Passage, Request, Verdict
from link1.signed import Kind, object_ref, sign_object, verify_object
from tools.conform.bench import QUIET_MS, Bench, said
from tools.conform.device_asking import LONG_TTL_MS, PASSAGE_SECTION, make_request, signed
from tools.conform.peer import ANSWER_MS, Broken, Heard, Skipped
from tools.conform.rules import Rule

HAND_TTL_MS = 60_000
VERDICT_SECTION = "§4 What a verdict says"


@dataclass
class Story:
    """What happened at the two passages; None where it did not come so far."""

    asked: list[Request] = field(default_factory=list)
    verdicts: list[JsonObject] = field(default_factory=list)
    guides: list[Heard] = field(default_factory=list)
    same_again: list[JsonObject] = field(default_factory=list)
    """Verdicts heard after the first copy, each after the request was repeated once."""
    conflict: JsonObject | None = None
    after_cancel: Heard | None = None
    complaints: list[list[JsonObject]] = field(default_factory=list)
    """Errors after each wrong decision of `WRONG_DECISIONS`, and after the first of them again."""
    pushed: bool = False
    """A verdict came by itself in the session after a reset."""
    resolved: list[list[str]] = field(default_factory=list)
    """verdict_refs of `resolve` in the session after the reset, and in the one after the decision."""
    unanswered: str = ""
    """Why the story ended early."""


def story_of(bench: Bench) -> Story:
    """Play the two passages the first time they are asked for."""
    if "story" not in bench.notes:
        bench.need_hand()
        story = Story()
        bench.notes["story"] = story
        try:
            _first_passage(bench, story)
            _second_passage(bench, story)
        except Broken as broken:
            story.unanswered = str(broken)
    story = bench.notes["story"]
    assert isinstance(story, Story)  # noqa: S101 (narrows what only this function puts there)
    return story


def _verdict(bench: Bench, story: Story) -> None:
    """One armed request, one hand, one verdict."""
    hand = bench.need_hand()
    request = make_request(bench, HAND_TTL_MS)
    mark = bench.peer.say("request", signed(bench, request))
    hand.show()
    heard = bench.peer.wait(
        lambda h: h.type == "verdict" or (h.type == "error" and h.body.get("about") == "request"),
        bench.setup.wait_ms,
        mark,
    )
    story.guides += [h for h in bench.peer.heard[mark:] if h.type == "guide"]
    if heard is None:
        raise Broken(f"a hand was shown, and no verdict came within {bench.setup.wait_ms} ms")
    if heard.type != "verdict":
        raise Broken(f"a hand was shown, and the answer was error {said(heard.body)}")
    story.asked.append(request)
    story.verdicts.append(heard.body)


def _first_passage(bench: Bench, story: Story) -> None:
    bench.prove()
    _verdict(bench, story)
    request, wrapper = story.asked[0], story.verdicts[0]
    ask_again = signed(bench, request)
    story.same_again += _heard_bodies(bench, "verdict", bench.peer.say("request", ask_again))
    changed = signed(bench, replace(request, issued_at_ms=request.issued_at_ms + 1))
    mark = bench.peer.say("request", changed)
    error = bench.error(mark)
    story.conflict = error.body if error else None
    mark = bench.peer.say("cancel", {"txn_id": request.txn_id})
    story.after_cancel = bench.peer.wait(lambda h: h.type in ("error", "verdict"), QUIET_MS, mark)
    wrong = [make(bench, wrapper) for make in WRONG_DECISIONS.values()]
    for decision in [*wrong, wrong[0]]:
        mark = bench.peer.say("decision", decision)
        bench.error(mark, QUIET_MS)
        bench.peer.listen(QUIET_MS)
        story.complaints.append([h.body for h in bench.peer.heard[mark:] if h.type == "error"])
    bench.need_hand().away()
    # A reset with the verdict unanswered: it is asked about, and not pushed.
    bench.prove()
    story.resolved.append(_resolved(bench))
    story.pushed = any(h.type == "verdict" for h in bench.peer.heard)
    story.same_again += _heard_bodies(bench, "verdict", bench.peer.say("request", ask_again))
    _answer(bench, wrapper)
    bench.prove()
    story.resolved.append(_resolved(bench))


def _second_passage(bench: Bench, story: Story) -> None:
    bench.prove()
    _verdict(bench, story)
    _answer(bench, story.verdicts[1])
    bench.need_hand().away()


def _heard_bodies(bench: Bench, type_: str, mark: int) -> list[JsonObject]:
    """The one message of this type that comes now, and those that come right behind it."""
    bench.peer.message(type_, ANSWER_MS, mark)
    bench.peer.listen(100)
    return [h.body for h in bench.peer.heard[mark:] if h.type == type_]


def _resolved(bench: Bench) -> list[str]:
    heard = bench.peer.message("resolve", ANSWER_MS, 0)
    return [str(ref) for ref in heard.body.get("verdict_refs", [])] if heard else []


def _decision(bench: Bench, wrapper: JsonObject) -> Decision:
    verdict = wrapper["verdict"]
    return Decision(
        txn_id=verdict["txn_id"],
        gate_id=verdict["gate_id"],
        dbd_id=verdict["dbd_id"],
        nonce_b64=verdict["nonce_b64"],
        verdict_ref=object_ref(wrapper),
        reason="stale",
        outcome="BLOQUEAR",
        actuated=False,
        decision_seq=bench.counters.next_decision_seq(),
        decided_at_ms=bench.wall_ms(),
    )


def _answer(bench: Bench, wrapper: JsonObject) -> None:
    """The right decision, actuated where a turn sensor shall report, and then what it reports."""
    sensor = bench.setup.passage_sensor
    decision = replace(_decision(bench, wrapper), actuated=sensor)
    mark = bench.peer.say("decision", sign_object(Kind.DECISION, decision.to_obj(), bench.setup.key))
    if sensor:
        passage = Passage(
            txn_id=decision.txn_id,
            dbd_id=decision.dbd_id,
            gate_id=decision.gate_id,
            verdict_ref=decision.verdict_ref,
            passed=True,
            cause="giro",
            at_ms=bench.wall_ms(),
            dbd_event_seq=bench.counters.next_event_seq(),
        )
        bench.peer.say("passage", sign_object(Kind.PASSAGE, passage.to_obj(), bench.setup.key))
    bench.want_quiet(("error",), mark, QUIET_MS)


def _signed_decision(bench: Bench, wrapper: JsonObject, **changes: Any) -> JsonObject:
    decision = replace(_decision(bench, wrapper), **changes)
    return sign_object(Kind.DECISION, decision.to_obj(), bench.setup.key)


WRONG_DECISIONS: dict[str, Callable[[Bench, JsonObject], JsonObject]] = {
    "signature": lambda bench, wrapper: (
        sign_object(Kind.DECISION, _decision(bench, wrapper).to_obj(), bench.stranger)
        | {"signer_kid": bench.setup.key.kid}
    ),
    "ref": lambda bench, wrapper: _signed_decision(bench, wrapper, verdict_ref="0" * 32),
    "nonce": lambda bench, wrapper: _signed_decision(bench, wrapper, nonce_b64="A" * 22 + "=="),
    "ids": lambda bench, wrapper: _signed_decision(bench, wrapper, gate_id="another-gate"),
}
"""What may be wrong with a decision, and such a one for a verdict."""


# ---- what each rule looks at


def _parsed(bench: Bench, number: int) -> tuple[Verdict, str]:
    """The verdict of a passage and its ref; raises what is wrong with the story or with it."""
    story = story_of(bench)
    if len(story.verdicts) <= number:
        raise Skipped(story.unanswered)
    wrapper = story.verdicts[number]
    try:
        return Verdict.from_obj(verify_object(Kind.VERDICT, wrapper, bench.setup.peer_key)), object_ref(
            wrapper
        )
    except (FormatError, SignatureError) as error:
        raise Broken(f"verdict: {error}") from None


def _so_far(bench: Bench) -> Story:
    """The story, if it holds everything up to the second passage."""
    story = story_of(bench)
    if len(story.resolved) < 2:
        raise Skipped(story.unanswered)
    return story


def _comes(bench: Bench) -> None:
    story = story_of(bench)
    if len(story.verdicts) < 2:
        raise Broken(story.unanswered)


def _fits(bench: Bench) -> None:
    story = story_of(bench)
    for number, asked in enumerate(story.asked):
        verdict, _ = _parsed(bench, number)
        names = ("txn_id", "gate_id", "dbd_id", "nonce_b64", "issued_at_ms", "ttl_ms")
        wrong = [name for name in names if getattr(verdict, name) != getattr(asked, name)]
        if verdict.device_id != bench.hello.get("id"):
            wrong.append("device_id")
        if wrong:
            raise Broken(f"other than in the request: {', '.join(wrong)}")


def _chain(bench: Bench) -> None:
    first, first_ref = _parsed(bench, 0)
    second, _ = _parsed(bench, 1)
    if second.verdict_seq != first.verdict_seq + 1:
        raise Broken(f"verdict_seq {second.verdict_seq} after {first.verdict_seq}")
    if second.prev_ref != first_ref:
        raise Broken("prev_ref is not the verdict_ref of the verdict before")


def _byte_for_byte(bench: Bench) -> None:
    story = _so_far(bench)
    if len(story.same_again) != 2:
        raise Broken(f"the request was repeated twice, and {len(story.same_again)} verdicts came")
    if any(canonical_bytes(again) != canonical_bytes(story.verdicts[0]) for again in story.same_again):
        raise Broken("another verdict came for the same txn_id")


def _conflict(bench: Bench) -> None:
    story = _so_far(bench)
    wanted = {"code": "txn_conflict", "about": "request", "txn_id": story.asked[0].txn_id}
    if story.conflict != wanted:
        raise Broken("no error" if story.conflict is None else f"error {said(story.conflict)}")


def _cancel(bench: Bench) -> None:
    answer = _so_far(bench).after_cancel
    if answer is not None:
        raise Broken(f"{answer.type} {said(answer.body)}")


def _complains(name: str) -> Callable[[Bench], None]:
    def check(bench: Bench) -> None:
        errors = _so_far(bench).complaints[list(WRONG_DECISIONS).index(name)]
        if [(error.get("code"), error.get("about")) for error in errors] != [("bad_decision", "decision")]:
            raise Broken("; ".join(f"error {said(error)}" for error in errors) or "no error")

    return check


def _complains_once(bench: Bench) -> None:
    if _so_far(bench).complaints[-1]:
        raise Broken("bad_decision was said again about the same message")


def _resolves(bench: Bench) -> None:
    story = _so_far(bench)
    ref = object_ref(story.verdicts[0])
    if ref not in story.resolved[0]:
        raise Broken("the unanswered verdict is not in resolve after the handshake")
    if ref in story.resolved[1]:
        raise Broken("an answered verdict is still asked about")


def _not_pushed(bench: Bench) -> None:
    if _so_far(bench).pushed:
        raise Broken("the verdict of an earlier session came without being asked for")


def _guides(bench: Bench) -> None:
    story = story_of(bench)
    _parsed(bench, 0)
    for heard in story.guides:
        if set(heard.body) < {"txn_id", "hint"} or heard.body["txn_id"] not in [
            a.txn_id for a in story.asked
        ]:
            raise Broken(f"guide {said(heard.body)}")
    times = [heard.at_ms for heard in story.guides]
    crowded = [begun for begun in times if sum(begun <= at < begun + 950 for at in times) > 5]
    if crowded:
        raise Broken("more than 5 hints in a second")


def _nobody_asked(bench: Bench) -> None:
    """Needs no hand of its own: nothing is open, so nothing comes."""
    bench.need_hand()
    bench.prove()
    request = make_request(bench, LONG_TTL_MS)
    bench.peer.say("request", signed(bench, request))
    mark = bench.peer.say("cancel", {"txn_id": request.txn_id})
    bench.want_error(mark, "cancelled")
    hand = bench.need_hand()
    hand.show()
    bench.want_quiet(("verdict",), mark, hand.settles_ms)
    hand.away()


def _rule(id_: str, sentence: str, expected: str, check: Callable[[Bench], None]) -> Rule:
    return Rule(f"verdict.{id_}", PASSAGE_SECTION, sentence, expected, check)


_EVIDENCE = (
    "a wrong one (signature, ids, nonce, ref) gets error bad_decision (once for each distinct message)"
)

HAND_RULES = (
    Rule(
        "verdict.comes",
        VERDICT_SECTION,
        "A verdict answers a hand.",
        "one verdict for each of two hands",
        _comes,
    ),
    _rule(
        "fits",
        "txn_id, gate_id, dbd_id, nonce_b64, issued_at_ms, ttl_ms and device_id equal",
        "the request's members",
        _fits,
    ),
    _rule(
        "guides",
        "guide {txn_id, hint}: HINT; at most 5 a second",
        "hints of the open request, at most 5 a second",
        _guides,
    ),
    _rule(
        "chain",
        "verdict_seq starts at 1 and rises by exactly 1 …; prev_ref is the verdict_ref before",
        "the second verdict follows the first",
        _chain,
    ),
    _rule(
        "again",
        "The identical request again: the stored verdict, byte for byte",
        "the same verdict, also in the next session",
        _byte_for_byte,
    ),
    _rule(
        "conflict", "A known txn_id with any difference: error txn_conflict.", "error txn_conflict", _conflict
    ),
    _rule("cancel", "cancel: a verdict that crossed it stands, is not answered again", "no answer", _cancel),
    *(
        _rule(f"wrong_decision_{name}", _EVIDENCE, f"error bad_decision for a wrong {name}", _complains(name))
        for name in WRONG_DECISIONS
    ),
    _rule("wrong_decision_once", _EVIDENCE, "no second error about the same message", _complains_once),
    _rule(
        "resolve",
        "resolve {verdict_refs}: after a handshake: what became of these?",
        "the unanswered verdict is listed after a reset, and no longer after its decision",
        _resolves,
    ),
    _rule(
        "not_pushed",
        "A verdict that … a reset finds journaled and unacknowledged is never pushed",
        "no verdict before its request is repeated",
        _not_pushed,
    ),
    _rule(
        "only_asked",
        "A verdict answers a hand, at most one request",
        "a hand without an open request gets no verdict",
        _nobody_asked,
    ),
)
