"""Rules for a device that need a hand: verdicts, and what becomes of them (LINK/1 §4).

A person shows a hand three times and no more: two passages are played once, what happens is written down in a
`TwoPassages`, and each rule looks at its part of it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from link1.bodies import MAX_REFS
from link1.canonical import JsonObject, canonical_bytes
from link1.channels import MAX_WAITING
from link1.envelope import ABOUT_MESSAGE
from link1.keys import SigningKey
from link1.members import WORD, text
from link1.objects import Decision, Passage, Request, Verdict
from link1.signed import Kind, object_ref, sign_object
from link1.validator.events import ResolveReceived
from tools.kit.conform.common_frames import strange
from tools.kit.conform.device_asking import LONG_TTL_MS, PASSAGE_SECTION, make_request, signed, withdraw
from tools.kit.conform.end_under_test import QUIET_MS, SETTLE_MS, Deed, EndUnderTest, read_body, said
from tools.kit.conform.peer import ANSWER_MS, Broken, Heard, NotTried
from tools.kit.conform.rules import ConformanceRule

HAND_TTL_MS = 60_000
SAME_HAND_MS = 1_500
CROWDED_MS = 800
"""Five hints in a second that were held up on their way may arrive so close together."""
BEFORE_VERDICT = 3
"""Messages that may come before a verdict that found a full queue: that in flight, and one for each ACK that
crosses it."""
MANY, MANY_MS = MAX_REFS + 1, 3_000
VERDICT_SECTION = "§4 What a verdict says"


@dataclass
class TwoPassages:
    """What happened at the two passages; None where it did not come so far."""

    asked: list[Request] = field(default_factory=list)
    verdicts: list[JsonObject] = field(default_factory=list)
    guides: list[Heard] = field(default_factory=list)
    same_again: list[JsonObject] = field(default_factory=list)
    """Verdicts heard after the first copy, each after the request was repeated once."""
    conflict: JsonObject | None = None
    after_cancel: Heard | None = None
    same_hand: Heard | None = None
    """A verdict on another request while the hand that had answered was still there."""
    full_queue: list[Heard] = field(default_factory=list)
    """Messages from when we acknowledge again after a full queue, up to the verdict asked for meanwhile."""
    complaints: dict[str, list[JsonObject]] = field(default_factory=dict)
    """Errors after each wrong decision of `WRONG_DECISIONS` and wrong passage, and after the first of the
    decisions again (`again`)."""
    pushed: bool = False
    """A verdict came by itself in the session after a reset."""
    resolved: list[list[str]] = field(default_factory=list)
    """verdict_refs of `resolve` in the session after the reset, and in the one after the decision."""
    restarted: bool = False
    resolved_after_restart: list[str] = field(default_factory=list)
    same_after_restart: list[JsonObject] = field(default_factory=list)
    answer_refused: JsonObject | None = None
    """An error to a right decision or passage."""
    unanswered: str = ""
    """Why the story ended early."""


def story_of(bench: EndUnderTest) -> TwoPassages:
    """Play the two passages the first time they are asked for."""
    if "story" not in bench.notes:
        bench.need_hand()
        story = TwoPassages()
        bench.notes["story"] = story
        try:
            _first_passage(bench, story)
            _second_passage(bench, story)
        except Broken as broken:
            story.unanswered = str(broken)
    story = bench.notes["story"]
    assert isinstance(story, TwoPassages)  # noqa: S101 (narrows what only this function puts there)
    return story


def _verdict(bench: EndUnderTest, story: TwoPassages) -> None:
    """One armed request, one hand, one verdict."""
    hand = bench.need_hand()
    request = make_request(bench, HAND_TTL_MS)
    mark = bench.peer.say("request", signed(bench, request))
    hand.show()

    def answers(heard: Heard) -> bool:
        body = heard.body
        about = body.get("about") in ("request", ABOUT_MESSAGE)
        ended = heard.type == "error" and about and body.get("txn_id") in (None, request.txn_id)
        return heard.type == "verdict" or ended

    heard = bench.peer.wait(answers, bench.setup.wait_ms, mark)
    story.guides += [h for h in bench.peer.heard[mark:] if h.type == "guide"]
    if heard is None:
        raise Broken(f"a hand was shown, and no verdict came within {bench.setup.wait_ms} ms")
    if heard.type != "verdict":
        raise Broken(f"a hand was shown, and the answer was error {said(heard.body)}")
    bench.verified(Kind.VERDICT, heard.body, Verdict.from_obj)
    story.asked.append(request)
    story.verdicts.append(heard.body)


def _first_passage(bench: EndUnderTest, story: TwoPassages) -> None:
    bench.prove()
    _verdict(bench, story)
    request, wrapper = story.asked[0], story.verdicts[0]
    ask_again = signed(bench, request)
    story.same_again += _verdicts_now(bench, bench.peer.say("request", ask_again))
    changed = signed(bench, replace(request, issued_at_ms=request.issued_at_ms + 1))
    mark = bench.peer.say("request", changed)
    error = bench.error(mark)
    story.conflict = error.body if error else None
    mark = bench.peer.say("cancel", {"txn_id": request.txn_id})
    story.after_cancel = bench.peer.wait(lambda h: h.type in ("error", "verdict"), QUIET_MS, mark)
    story.same_hand = _same_hand(bench)
    wrong = {name: make(bench, wrapper) for name, make in WRONG_DECISIONS.items()}
    for name, decision in [*wrong.items(), ("again", wrong["signature"])]:
        _complaint(bench, story, name, "decision", decision)
    if bench.setup.revoked is not None:
        _complaint(bench, story, "revoked", "decision", _signed_decision(bench, wrapper, bench.setup.revoked))
    story.full_queue = _full_queue(bench, ask_again)
    bench.take_hand_away()
    # A reset with the verdict unanswered: it is asked about, and not pushed.
    bench.prove()
    story.resolved.append(_resolved(bench, object_ref(wrapper)))
    story.pushed = any(h.type == "verdict" for h in bench.peer.heard)
    story.same_again += _verdicts_now(bench, bench.peer.say("request", ask_again))
    try:
        bench.restart()
    except NotTried:
        bench.prove()
    else:
        bench.prove()
        story.restarted = True
        story.resolved_after_restart = _resolved(bench, object_ref(wrapper))
        story.pushed = story.pushed or any(h.type == "verdict" for h in bench.peer.heard)
        again = bench.peer.say("request", ask_again)
        story.same_after_restart = _verdicts_now(bench, again)
    _answer(bench, story, wrapper, at_ms=0)
    bench.prove()
    story.resolved.append(_resolved(bench, object_ref(wrapper)))


def _same_hand(bench: EndUnderTest) -> Heard | None:
    """Another request while the hand that has answered is still there: it answers no second one."""
    request = make_request(bench)
    mark = bench.peer.say("request", signed(bench, request))
    heard = bench.peer.wait(
        lambda h: h.type == "verdict" and _txn_of(h) == request.txn_id, SAME_HAND_MS, mark
    )
    if heard is None:
        withdraw(bench, request.txn_id)
    return heard


def _txn_of(heard: Heard) -> object:
    verdict = heard.body.get("verdict")
    return verdict.get("txn_id") if isinstance(verdict, dict) else None


def _complaint(bench: EndUnderTest, story: TwoPassages, name: str, type_: str, wrapper: JsonObject) -> None:
    """Send something wrong, and note the errors that it calls for."""
    mark = bench.peer.say(type_, wrapper)
    bench.error(mark, QUIET_MS if name == "again" else ANSWER_MS)
    bench.peer.listen(QUIET_MS)
    story.complaints[name] = [h.body for h in bench.peer.heard[mark:] if h.type == "error"]


def _full_queue(bench: EndUnderTest, request: JsonObject) -> list[Heard]:
    """We acknowledge nothing while more errors are called for than may wait, then ask for the verdict again,
    and acknowledge again: what comes, up to the verdict."""
    peer = bench.peer
    peer.listen(QUIET_MS)
    peer.auto_ack = False
    for _ in range(MAX_WAITING + 4):
        peer.say_bytes(strange())
    peer.say("request", request)
    peer.listen(SETTLE_MS)
    mark = peer.mark
    peer.resume_acks()
    peer.message("verdict", ANSWER_MS, mark)
    return [h for h in peer.heard[mark:] if h.type]


def _second_passage(bench: EndUnderTest, story: TwoPassages) -> None:
    bench.prove()
    _verdict(bench, story)
    wrapper = story.verdicts[1]
    if bench.setup.passage_sensor:
        for name, make in WRONG_PASSAGES.items():
            _complaint(bench, story, f"passage {name}", "passage", make(bench, wrapper))
    _answer(bench, story, wrapper, at_ms=2**53 - 1)
    bench.take_hand_away()


def _verdicts_now(bench: EndUnderTest, mark: int) -> list[JsonObject]:
    """The one verdict that comes now, and those that come right behind it."""
    bench.peer.message("verdict", ANSWER_MS, mark)
    bench.peer.listen(100)
    return [h.body for h in bench.peer.heard[mark:] if h.type == "verdict"]


def _resolved(bench: EndUnderTest, wanted: str) -> list[str]:
    """The refs of every `resolve` of this session, until one names `wanted` or no more come. Messages
    about other verdicts may come first: to those we stay silent, like a validator that has forgotten them."""
    mark = 0
    while (heard := bench.peer.message("resolve", ANSWER_MS, mark)) is not None:
        mark = bench.peer.heard.index(heard) + 1
        if wanted in _refs(heard):
            break
    return [ref for h in bench.peer.heard if h.type == "resolve" for ref in _refs(h)]


def _refs(heard: Heard) -> tuple[str, ...]:
    return read_body(heard, ResolveReceived.from_obj).verdict_refs


def _decision(bench: EndUnderTest, wrapper: JsonObject) -> Decision:
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


def _signed_decision(
    bench: EndUnderTest, wrapper: JsonObject, key: SigningKey | None = None, **changes: Any
) -> JsonObject:
    decision = replace(_decision(bench, wrapper), **changes)
    return sign_object(Kind.DECISION, decision.to_obj(), key or bench.setup.key)


def _answer(bench: EndUnderTest, story: TwoPassages, wrapper: JsonObject, *, at_ms: int) -> None:
    """The right decision, actuated where a turn sensor shall report, and then what it reports; both are good
    however wrong our clock is (`at_ms`)."""
    sensor = bench.setup.passage_sensor
    decision = _signed_decision(bench, wrapper, actuated=sensor, decided_at_ms=at_ms)
    mark = bench.peer.say("decision", decision)
    if sensor:
        bench.peer.say("passage", _signed_passage(bench, wrapper, at_ms=at_ms))
    heard = bench.error(mark, QUIET_MS)
    story.answer_refused = story.answer_refused or (heard.body if heard else None)


def _signed_passage(
    bench: EndUnderTest, wrapper: JsonObject, key: SigningKey | None = None, **changes: Any
) -> JsonObject:
    verdict = wrapper["verdict"]
    passage = Passage(
        txn_id=verdict["txn_id"],
        dbd_id=verdict["dbd_id"],
        gate_id=verdict["gate_id"],
        verdict_ref=object_ref(wrapper),
        passed=True,
        cause="giro",
        at_ms=bench.wall_ms(),
        dbd_event_seq=bench.counters.next_event_seq(),
    )
    return sign_object(Kind.PASSAGE, replace(passage, **changes).to_obj(), key or bench.setup.key)


WRONG_DECISIONS: dict[str, Callable[[EndUnderTest, JsonObject], JsonObject]] = {
    "signature": lambda bench, wrapper: (
        _signed_decision(bench, wrapper, bench.stranger) | {"signer_kid": bench.setup.key.kid}
    ),
    "ref": lambda bench, wrapper: _signed_decision(bench, wrapper, verdict_ref="0" * 32),
    "nonce": lambda bench, wrapper: _signed_decision(bench, wrapper, nonce_b64="A" * 22 + "=="),
    "ids": lambda bench, wrapper: _signed_decision(bench, wrapper, gate_id="another-gate"),
}
"""What may be wrong with a decision, and such a one for a verdict."""

WRONG_PASSAGES: dict[str, Callable[[EndUnderTest, JsonObject], JsonObject]] = {
    "signature": lambda bench, wrapper: (
        _signed_passage(bench, wrapper, bench.stranger) | {"signer_kid": bench.setup.key.kid}
    ),
    "ref": lambda bench, wrapper: _signed_passage(bench, wrapper, verdict_ref="0" * 32),
    "ids": lambda bench, wrapper: _signed_passage(bench, wrapper, gate_id="another-gate"),
}
"""The same of a passage."""


# ---- what each rule looks at


def _parsed(bench: EndUnderTest, number: int) -> tuple[Verdict, str]:
    """The verdict of a passage and its ref; raises what is wrong with the story or with it."""
    story = story_of(bench)
    if len(story.verdicts) <= number:
        raise NotTried(story.unanswered)
    wrapper = story.verdicts[number]
    return bench.verified(Kind.VERDICT, wrapper, Verdict.from_obj), object_ref(wrapper)


def _so_far(bench: EndUnderTest) -> TwoPassages:
    """The story, if it holds everything up to the second passage."""
    story = story_of(bench)
    if len(story.resolved) < 2:
        raise NotTried(story.unanswered)
    return story


def _comes(bench: EndUnderTest) -> None:
    story = story_of(bench)
    if len(story.verdicts) < 2:
        raise Broken(story.unanswered)


def _fits(bench: EndUnderTest) -> None:
    story = story_of(bench)
    for number, asked in enumerate(story.asked):
        verdict, _ = _parsed(bench, number)
        names = ("txn_id", "gate_id", "dbd_id", "nonce_b64", "issued_at_ms", "ttl_ms")
        wrong = [name for name in names if getattr(verdict, name) != getattr(asked, name)]
        if verdict.device_id != bench.hello.get("id"):
            wrong.append("device_id")
        if wrong:
            raise Broken(f"other than in the request: {', '.join(wrong)}")


def _chain(bench: EndUnderTest) -> None:
    first, first_ref = _parsed(bench, 0)
    second, _ = _parsed(bench, 1)
    if second.verdict_seq != first.verdict_seq + 1:
        raise Broken(f"verdict_seq {second.verdict_seq} after {first.verdict_seq}")
    if second.prev_ref != first_ref:
        raise Broken("prev_ref is not the verdict_ref of the verdict before")


def _byte_for_byte(bench: EndUnderTest) -> None:
    story = _so_far(bench)
    if len(story.same_again) != 2:
        raise Broken(f"the request was repeated twice, and {len(story.same_again)} verdicts came")
    if any(canonical_bytes(again) != canonical_bytes(story.verdicts[0]) for again in story.same_again):
        raise Broken("another verdict came for the same txn_id")


def _conflict(bench: EndUnderTest) -> None:
    story = _so_far(bench)
    wanted = {"code": "txn_conflict", "about": "request", "txn_id": story.asked[0].txn_id}
    found = story.conflict
    if found not in (wanted, wanted | {"about": ABOUT_MESSAGE}):
        raise Broken("no error" if found is None else f"error {said(found)}")


def _cancel(bench: EndUnderTest) -> None:
    answer = _so_far(bench).after_cancel
    if answer is not None:
        raise Broken(f"{answer.type} {said(answer.body)}")


def _complains(name: str) -> Callable[[EndUnderTest], None]:
    def check(bench: EndUnderTest) -> None:
        _judge_complaint(_so_far(bench).complaints[name], "decision")

    return check


def _judge_complaint(errors: list[JsonObject], about: str) -> None:
    good = len(errors) == 1 and errors[0].get("code") == "bad_decision"
    if not good or errors[0].get("about") not in (about, ABOUT_MESSAGE):
        raise Broken("; ".join(f"error {said(error)}" for error in errors) or "no error")


def _complains_once(bench: EndUnderTest) -> None:
    if _so_far(bench).complaints["again"]:
        raise Broken("bad_decision was said again about the same message")


def _later_words(bench: EndUnderTest) -> None:
    """A second decision about a verdict is kept, whatever words and members it has."""
    _parsed(bench, 0)
    wrapper = _so_far(bench).verdicts[0]
    bench.prove()
    later = _decision(bench, wrapper).to_obj() | {
        "reason": "of_a_later_version",
        "outcome": "OF_A_LATER_VERSION",
        "of_a_later_version": {"a": 1},
    }
    mark = bench.peer.say("decision", sign_object(Kind.DECISION, later, bench.setup.key))
    heard = bench.error(mark, QUIET_MS)
    if heard is not None and heard.body.get("code") == "malformed":
        raise Broken(f"error {said(heard.body)}")


def _complains_of_revoked(bench: EndUnderTest) -> None:
    story = _so_far(bench)
    if "revoked" not in story.complaints:
        raise NotTried("give --revoked-key-file: a key of ours that was pinned there and has been revoked")
    _judge_complaint(story.complaints["revoked"], "decision")


def _need_sensor(bench: EndUnderTest) -> None:
    if not bench.setup.passage_sensor:
        raise NotTried("needs a gate registered with a turn sensor, and --passage-sensor")


def _complains_of_passage(name: str) -> Callable[[EndUnderTest], None]:
    def check(bench: EndUnderTest) -> None:
        _need_sensor(bench)
        _parsed(bench, 1)
        complaints = story_of(bench).complaints
        if f"passage {name}" not in complaints:
            raise NotTried(story_of(bench).unanswered)
        _judge_complaint(complaints[f"passage {name}"], "passage")

    return check


def _passage_completes(bench: EndUnderTest) -> None:
    """After decision and passage nothing is asked about any more."""
    _need_sensor(bench)
    _, ref = _parsed(bench, 1)
    story = _so_far(bench)
    if story.answer_refused is not None:
        raise Broken(f"error {said(story.answer_refused)}")
    bench.prove()
    if ref in _resolved(bench, ref):
        raise Broken("a verdict with its decision and its passage is still asked about")


def _clock(bench: EndUnderTest) -> None:
    _parsed(bench, 1)
    refused = _so_far(bench).answer_refused
    if refused is not None:
        raise Broken(f"error {said(refused)} to a decision of 1970 or of the far future")


def _one_hand(bench: EndUnderTest) -> None:
    again = _so_far(bench).same_hand
    if again is not None:
        raise Broken("a second verdict came for a hand that was never seen to leave")


def _queue(bench: EndUnderTest) -> None:
    came = _so_far(bench).full_queue
    before = [h for h in came if h.type == "error"]
    if not came or came[-1].type != "verdict":
        raise Broken(f"no verdict within {ANSWER_MS} ms of our acknowledging again")
    if len({h.frame.mid for h in before}) > BEFORE_VERDICT:
        raise Broken(f"{len(before)} errors that had waited came before the verdict")


def _restart(bench: EndUnderTest) -> TwoPassages:
    story = _so_far(bench)
    if not story.restarted:
        bench.do(Deed.RESTART)  # says what to do
    return story


def _restart_resolves(bench: EndUnderTest) -> None:
    story = _restart(bench)
    if object_ref(story.verdicts[0]) not in story.resolved_after_restart:
        raise Broken("the unanswered verdict is not in resolve after the restart")


def _restart_same(bench: EndUnderTest) -> None:
    story = _restart(bench)
    if [canonical_bytes(again) for again in story.same_after_restart] != [canonical_bytes(story.verdicts[0])]:
        raise Broken(f"{len(story.same_after_restart)} verdicts came, or another one")


def _restart_chain(bench: EndUnderTest) -> None:
    _restart(bench)
    _chain(bench)


def _resolves_many(bench: EndUnderTest) -> None:
    """More verdicts than one `resolve` may name: they are all asked about, message by message."""
    hand = bench.need_hand()
    if not hand.tireless:
        raise NotTried(f"needs {MANY} hands; run again with --hand-source")
    story = TwoPassages()
    bench.prove()
    for _ in range(MANY):
        _verdict(bench, story)
        bench.take_hand_away()
    open_refs = {object_ref(wrapper): wrapper for wrapper in story.verdicts}
    bench.prove()
    mark = 0
    while open_refs and (heard := bench.peer.message("resolve", MANY_MS, mark)) is not None:
        mark = bench.peer.heard.index(heard) + 1
        for ref in [ref for ref in _refs(heard) if ref in open_refs]:
            _answer(bench, story, open_refs.pop(ref), at_ms=bench.wall_ms())
    if open_refs:
        raise Broken(f"{len(open_refs)} of {MANY} unanswered verdicts were not asked about")


def _resolves(bench: EndUnderTest) -> None:
    story = _so_far(bench)
    ref = object_ref(story.verdicts[0])
    if ref not in story.resolved[0]:
        raise Broken("the unanswered verdict is not in resolve after the handshake")
    if ref in story.resolved[1]:
        raise Broken("an answered verdict is still asked about")


def _not_pushed(bench: EndUnderTest) -> None:
    if _so_far(bench).pushed:
        raise Broken("the verdict of an earlier session came without being asked for")


def _guides(bench: EndUnderTest) -> None:
    story = story_of(bench)
    _parsed(bench, 0)
    for heard in story.guides:
        if heard.body.get("txn_id") not in [a.txn_id for a in story.asked]:
            raise Broken(f"guide {said(heard.body)}")
        read_body(heard, lambda body: text(body, "hint", WORD))
    times = [heard.at_ms for heard in story.guides]
    crowded = [begun for begun in times if sum(begun <= at < begun + CROWDED_MS for at in times) > 5]
    if crowded:
        raise Broken("more than 5 hints in a second")


def _nobody_asked(bench: EndUnderTest) -> None:
    """Needs no hand: nothing is open, so nothing comes."""
    bench.need_hand()
    bench.prove()
    request = make_request(bench, LONG_TTL_MS)
    bench.peer.say("request", signed(bench, request))
    mark = bench.peer.say("cancel", {"txn_id": request.txn_id})
    bench.want_error(mark, "cancelled", about="cancel")
    hand = bench.need_hand()
    hand.show()
    bench.want_quiet(("verdict",), mark, hand.settles_ms)
    bench.take_hand_away()


def _rule(id_: str, sentence: str, expected: str, check: Callable[[EndUnderTest], None]) -> ConformanceRule:
    return ConformanceRule(f"verdict.{id_}", PASSAGE_SECTION, sentence, expected, check)


_COUNTERS = "verdict_seq … rises by exactly 1, across restarts and power loss"
_EVIDENCE = (
    "a wrong one (signature, ids, nonce, ref) gets error bad_decision (once for each distinct message)"
)

HAND_RULES = (
    ConformanceRule(
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
    ConformanceRule(
        "decision.later_words",
        PASSAGE_SECTION,
        "outcome, reason, cause: all three are extensible",
        "no error malformed to a decision with words and a member of a later version",
        _later_words,
    ),
    _rule(
        "revoked_decision",
        "evidence of a revoked key completes nothing and is kept",
        "error bad_decision for one by a key that was revoked",
        _complains_of_revoked,
    ),
    *(
        ConformanceRule(
            f"passage.wrong_{name}",
            PASSAGE_SECTION,
            "only with a turn sensor; a wrong one is treated as a wrong decision",
            f"error bad_decision for a wrong {name}",
            _complains_of_passage(name),
        )
        for name in WRONG_PASSAGES
    ),
    ConformanceRule(
        "passage.completes",
        PASSAGE_SECTION,
        "passage: only with a turn sensor",
        "no error, and the verdict is asked about no more",
        _passage_completes,
    ),
    ConformanceRule(
        "clock.decision",
        "§3 Handshake",
        "Evidence is valid under the key that proved itself in the session …, at any decided_at_ms",
        "no error to a decision (and passage) of 1970 or of the far future",
        _clock,
    ),
    _rule(
        "one_hand",
        "One hand, one verdict. A hand answers at most one request",
        "no verdict on a second request while the hand is still there",
        _one_hand,
    ),
    ConformanceRule(
        "verdict.full_queue",
        "§1 Reliable, ordered messages",
        "a verdict … that finds no room goes out in this session as soon as an ACK makes room",
        "the verdict, before the errors that wait",
        _queue,
    ),
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
    ConformanceRule(
        "restart.resolve",
        PASSAGE_SECTION,
        "A verdict that a restart … finds journaled and unacknowledged … is listed in resolve",
        "the unanswered verdict is listed after a restart",
        _restart_resolves,
    ),
    ConformanceRule(
        "restart.again",
        PASSAGE_SECTION,
        "…, and given again when its request is repeated",
        "the same verdict, byte for byte",
        _restart_same,
    ),
    ConformanceRule(
        "restart.chain",
        PASSAGE_SECTION,
        _COUNTERS,
        "the verdict after a restart follows the one before it",
        _restart_chain,
    ),
    ConformanceRule(
        "resolve.many",
        PASSAGE_SECTION,
        "resolve {verdict_refs:[1..32]}: after a handshake",
        f"{MANY} unanswered verdicts are asked about, at most {MAX_REFS} in a message",
        _resolves_many,
    ),
    _rule(
        "only_asked",
        "A verdict answers a hand, at most one request",
        "a hand without an open request gets no verdict",
        _nobody_asked,
    ),
)
