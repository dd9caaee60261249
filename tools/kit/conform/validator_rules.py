"""Rules for a validator: what it asks, when it opens, what it answers (LINK/1 §4).

The operator of the test keeps the validator asking for hands; the rules wait for its next request.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from link1.bodies import MAX_REFS
from link1.canonical import JsonObject, b64_encode, canonical_bytes
from link1.channels import MAX_WAITING
from link1.events import UnknownReceived
from link1.frames import FrameKind
from link1.keys import SigningKey
from link1.objects import Decision, Pad, Passage, Request, Verdict, VerdictResult
from link1.signed import Kind, object_ref, sign_object
from tools.kit.conform.common_frames import strange, want_strange_error
from tools.kit.conform.end_under_test import (
    GALLERY,
    QUIET_MS,
    Deed,
    EndUnderTest,
    name_of,
    read_body,
    said,
)
from tools.kit.conform.peer import ANSWER_MS, Broken, Heard, NotTried
from tools.kit.conform.rules import ConformanceRule

PASSAGE_SECTION = "§4 One passage"
DECISION_MS = 5_000
LATE_AFTER_TTL_MS = 2_000
LONGEST_LATE_MS = 8_000
"""A ttl that would make the rule on late verdicts take longer is not waited for."""


def next_request(bench: EndUnderTest, at_ms: int | None = None) -> tuple[Request, Heard]:
    """A proven session (whose status says `at_ms`) with an open request of the validator's, good in every
    member."""
    bench.prove(at_ms=at_ms)
    return heard_request(bench, 0)


def heard_request(bench: EndUnderTest, since: int, but: str | None = None) -> tuple[Request, Heard]:
    """The first request from `since` on whose txn_id is not `but`."""

    def wanted(heard: Heard) -> bool:
        inner = heard.body.get("request")
        other = but is None or not isinstance(inner, dict) or inner.get("txn_id") != but
        return heard.type == "request" and other

    heard = bench.peer.wait(wanted, bench.setup.wait_ms, since)
    if heard is None:
        raise NotTried(f"no request within {bench.setup.wait_ms} ms; keep the validator asking")
    return bench.verified(Kind.REQUEST, heard.body, Request.from_obj), heard


def verdict_for(
    bench: EndUnderTest, asked: Request, later: JsonObject | None = None, **changes: Any
) -> JsonObject:
    """The next verdict of our chain, an accept, signed; `changes` are members that shall be otherwise,
    `later` those of a later version."""
    counters = bench.counters
    verdict = Verdict(
        txn_id=asked.txn_id,
        gate_id=asked.gate_id,
        dbd_id=asked.dbd_id,
        nonce_b64=asked.nonce_b64,
        issued_at_ms=asked.issued_at_ms,
        ttl_ms=asked.ttl_ms,
        decided_at_ms=bench.wall_ms(),
        device_id=bench.setup.own_id,
        result=VerdictResult.MATCH,
        verdict_seq=counters.verdict_seq + 1,
        prev_ref=counters.prev_ref,
        score_q=8_000,
        margin_q=4_000,
        quality_q=80,
        pad=Pad("pass", "conform", 9_000),
        attempts=1,
        model_id="conform",
        thr_id="conform",
        gallery=GALLERY,
        subject_ref="5" * 32,
        hand="L",
    )
    obj = replace(verdict, **changes).to_obj() | (later or {})
    wrapper = sign_object(Kind.VERDICT, obj, bench.setup.key)
    if "verdict_seq" not in changes:
        counters.verdict_signed(object_ref(wrapper))
    return wrapper


def naming(
    bench: EndUnderTest, kind: Kind, wrapper: JsonObject, since: int, within_ms: int = DECISION_MS
) -> Heard | None:
    """The first decision, or passage, that names this verdict."""
    ref = object_ref(wrapper)

    def wanted(heard: Heard) -> bool:
        inner = heard.body.get(kind.member)
        return heard.type == name_of(kind) and isinstance(inner, dict) and inner.get("verdict_ref") == ref

    return bench.peer.wait(wanted, within_ms, since)


def good_decision(bench: EndUnderTest, wrapper: JsonObject, mark: int) -> tuple[Decision, JsonObject]:
    """The decision on a verdict, judged in every member that ties it to the verdict."""
    heard = naming(bench, Kind.DECISION, wrapper, mark)
    if heard is None:
        raise Broken(f"no decision within {DECISION_MS} ms of the verdict")
    bench.notes["decision_ms"] = max(
        bench.notes.get("decision_ms", 0), heard.at_ms - bench.peer.heard[mark].at_ms
    )
    decision = bench.verified(Kind.DECISION, heard.body, Decision.from_obj)
    verdict = wrapper["verdict"]
    names = ("txn_id", "gate_id", "dbd_id", "nonce_b64")
    wrong = [name for name in names if getattr(decision, name) != verdict[name]]
    if wrong:
        raise Broken(f"the decision differs from the verdict in {', '.join(wrong)}")
    return decision, heard.body


def _opened(bench: EndUnderTest) -> tuple[JsonObject, Decision, JsonObject]:
    """A passage as it should be: verdict, decision, and the decision as signed."""
    asked, _ = next_request(bench)
    wrapper = verdict_for(bench, asked)
    mark = bench.peer.say("verdict", wrapper)
    decision, signed = good_decision(bench, wrapper, mark)
    if not decision.actuated:
        raise NotTried(
            f"the validator did not open for an accept ({decision.outcome}, {decision.reason}), so it cannot "
            "be seen when it wrongly would; let its rules open for subject_ref 555…"
        )
    return wrapper, decision, signed


def _needs_opening(bench: EndUnderTest) -> None:
    """Rules on not opening mean something only when it does open otherwise."""
    if "opens" not in bench.notes:
        try:
            _opened(bench)
            bench.notes["opens"] = ""
        except (Broken, NotTried) as reason:
            bench.notes["opens"] = str(reason)
    if bench.notes["opens"]:
        raise NotTried(bench.notes["opens"])


def not_opened(bench: EndUnderTest, wrapper: JsonObject, mark: int, *, answered: bool) -> None:
    """No decision on this verdict says actuated true; with `answered`, one says actuated false.

    Without it, none is waited for twice as long as the slowest decision of this run took: one that saves for
    half a second before it opens takes as long to open wrongly."""
    slow_ms = max(ANSWER_MS, 2 * int(bench.notes.get("decision_ms", 0)))
    heard = naming(bench, Kind.DECISION, wrapper, mark, DECISION_MS if answered else slow_ms)
    if heard is None:
        if answered:
            raise Broken(f"no decision within {DECISION_MS} ms; every verdict is answered")
        return
    inner = heard.body.get("decision_obj", {})
    if inner.get("actuated") is not False:
        raise Broken(f"it opened: {said(inner)}")


# ---- what each rule tries


def _ready(bench: EndUnderTest) -> None:
    mark = bench.prove()
    heard = bench.peer.message("ready", ANSWER_MS, mark)
    if heard is None:
        raise Broken(f"no ready within {ANSWER_MS} ms of the proofs")
    sensor = heard.body.get("passage_sensor")
    if not isinstance(sensor, bool):
        raise Broken("ready without passage_sensor true or false")
    if bench.setup.passage_sensor and not sensor:
        raise Broken("ready says that there is no turn sensor, and --passage-sensor was given")


def _request(bench: EndUnderTest) -> None:
    asked, _ = next_request(bench)
    if (asked.gate_id, asked.dbd_id) != (bench.setup.gate_id, bench.hello.get("id")):
        raise Broken("request for another gate_id or dbd_id than this session's")


def _request_again(bench: EndUnderTest) -> None:
    was, first = next_request(bench)
    asked, second = next_request(bench)
    if was.txn_id != asked.txn_id:
        if second.at_ms - first.at_ms >= was.ttl_ms + LATE_AFTER_TTL_MS - ANSWER_MS:
            raise NotTried(
                f"its request was over before it could come again; let its ttl_ms be over {was.ttl_ms}"
            )
        raise Broken("another txn_id after a reset, while the first request was open")
    if first.data != second.data:
        raise Broken("the same txn_id with other bytes after a reset")


def _asks_anew(bench: EndUnderTest) -> None:
    """After `expired` the validator asks again, and not with the txn_id that has ended."""
    asked, _ = next_request(bench)
    mark = bench.peer.say("error", {"code": "expired", "about": "request", "txn_id": asked.txn_id})
    heard = bench.peer.message("request", bench.setup.wait_ms, mark)
    if heard is None:
        raise NotTried(
            f"no request within {bench.setup.wait_ms} ms of error expired; keep the validator asking"
        )
    inner = heard.body.get("request")
    if isinstance(inner, dict) and inner.get("txn_id") == asked.txn_id:
        raise Broken("the txn_id that has ended was asked for again")


def _other_end(bench: EndUnderTest) -> None:
    """The end of an older request is not that of the open one."""
    _needs_opening(bench)
    asked, _ = next_request(bench)
    older = bench.peer.random(16).hex()
    bench.peer.say("error", {"code": "cancelled", "about": "request", "txn_id": older})
    _opens_for(bench, asked)


def _opens_for(bench: EndUnderTest, asked: Request, **changes: Any) -> None:
    wrapper = verdict_for(bench, asked, **changes)
    mark = bench.peer.say("verdict", wrapper)
    decision, _ = good_decision(bench, wrapper, mark)
    if not decision.actuated:
        raise Broken(f"it did not open ({decision.outcome}, {decision.reason})")


def _closed_for(bench: EndUnderTest, asked: Request, **changes: Any) -> None:
    wrapper = verdict_for(bench, asked, **changes)
    not_opened(bench, wrapper, bench.peer.say("verdict", wrapper), answered=True)


def _opens_at(decided_at_ms: int) -> Callable[[EndUnderTest], None]:
    """A check that it opens however wrong the device's clock is."""

    def check(bench: EndUnderTest) -> None:
        _needs_opening(bench)
        asked, _ = next_request(bench, at_ms=decided_at_ms)
        _opens_for(bench, asked, decided_at_ms=decided_at_ms)

    return check


def _opens_with_own_clock(deed: Deed) -> Callable[[EndUnderTest], None]:
    def check(bench: EndUnderTest) -> None:
        _needs_opening(bench)
        bench.do(deed)
        try:
            asked, _ = next_request(bench)
            _opens_for(bench, asked)
        finally:
            bench.do(Deed.CLOCK_RIGHT)

    return check


def _cancelled(bench: EndUnderTest) -> None:
    """A verdict that crosses the cancel of its request."""
    _needs_opening(bench)
    asked, _ = next_request(bench)
    mark = bench.peer.mark
    bench.do(Deed.CANCEL)
    heard = bench.peer.wait(
        lambda h: h.type == "cancel" and h.body.get("txn_id") == asked.txn_id, bench.setup.wait_ms, mark
    )
    if heard is None:
        raise Broken(f"no cancel of the open request within {bench.setup.wait_ms} ms")
    _closed_for(bench, asked)


def _replaced(bench: EndUnderTest) -> None:
    """A verdict that crosses the request which replaces its own; the newer one is open."""
    _needs_opening(bench)
    asked, _ = next_request(bench)
    mark = bench.peer.mark
    bench.do(Deed.REPLACE)
    newer, _ = heard_request(bench, mark, but=asked.txn_id)
    _closed_for(bench, asked)
    _opens_for(bench, newer)


def _decides(bench: EndUnderTest) -> None:
    _opened(bench)


def _decision_seq_once(bench: EndUnderTest) -> None:
    """Looks at every decision of the run."""
    refs: dict[int, str] = {}
    for body in bench.peer.decisions:
        inner = body.get("decision_obj")
        if not isinstance(inner, dict):
            continue
        seq, ref = inner.get("decision_seq"), str(inner.get("verdict_ref"))
        if isinstance(seq, int) and refs.setdefault(seq, ref) != ref:
            raise Broken(f"decision_seq {seq} is used in decisions about two verdicts")


def _full_queue(bench: EndUnderTest) -> None:
    """We acknowledge nothing while more errors are called for than may wait, then comes the verdict."""
    asked, _ = next_request(bench)
    peer, begun = bench.peer, bench.peer.mark
    peer.listen(QUIET_MS)
    peer.auto_ack = False
    for _ in range(MAX_WAITING + 4):
        peer.say_bytes(strange())
    wrapper = verdict_for(bench, asked)
    mark = peer.say("verdict", wrapper)
    peer.resume_acks()
    good_decision(bench, wrapper, mark)
    if any(h.frame.kind is FrameKind.RST for h in peer.heard[begun:]):
        raise Broken("the session did not survive")


def _decision_seq(bench: EndUnderTest) -> None:
    _needs_opening(bench)
    _, first, _ = _opened(bench)
    _, second, _ = _opened(bench)
    if second.decision_seq != first.decision_seq + 1:
        raise Broken(f"decision_seq {second.decision_seq} after {first.decision_seq}")


def _first_copy(bench: EndUnderTest) -> None:
    _needs_opening(bench)
    wrapper, _, signed = _opened(bench)
    mark = bench.peer.say("verdict", wrapper)
    heard = naming(bench, Kind.DECISION, wrapper, mark)
    if heard is None:
        raise Broken("no decision on the second copy; every verdict is answered")
    if canonical_bytes(heard.body) != canonical_bytes(signed) and heard.body["decision_obj"]["actuated"]:
        raise Broken("the second copy of a verdict was acted on again")


def _refuses(
    make: Callable[[EndUnderTest, Request], JsonObject], *, answered: bool
) -> Callable[[EndUnderTest], None]:
    """A check that the validator does not open for the verdict that `make` makes of its open request."""

    def check(bench: EndUnderTest) -> None:
        _needs_opening(bench)
        asked, _ = next_request(bench)
        wrapper = make(bench, asked)
        mark = bench.peer.say("verdict", wrapper)
        if answered:
            not_opened(bench, wrapper, mark, answered=True)
        want_strange_error(bench, bench.peer.say_bytes(strange()))
        if not answered:
            not_opened(bench, wrapper, mark, answered=False)

    return check


def _stranger(bench: EndUnderTest, asked: Request) -> JsonObject:
    return sign_object(Kind.VERDICT, verdict_for(bench, asked)["verdict"], bench.stranger)


def _forged(bench: EndUnderTest, asked: Request) -> JsonObject:
    return _stranger(bench, asked) | {"signer_kid": bench.setup.key.kid}


def _with(**changes: Any) -> Callable[[EndUnderTest, Request], JsonObject]:
    return lambda bench, asked: verdict_for(bench, asked, **changes)


def _other_ttl(bench: EndUnderTest, asked: Request) -> JsonObject:
    return verdict_for(bench, asked, ttl_ms=60_000 if asked.ttl_ms != 60_000 else 59_000)


def _old_seq(bench: EndUnderTest) -> None:
    """A fresh verdict on a fresh request, but with the number of the one just acted on."""
    _needs_opening(bench)
    acted_on, _, _ = _opened(bench)
    asked, _ = next_request(bench)
    _closed_for(bench, asked, verdict_seq=acted_on["verdict"]["verdict_seq"])


def _answered_request(bench: EndUnderTest) -> None:
    """A second, different verdict for a request that has its decision."""
    _needs_opening(bench)
    wrapper, _, _ = _opened(bench)
    _closed_for(bench, Request.from_obj(wrapper["verdict"]))


def _late(bench: EndUnderTest) -> None:
    _needs_opening(bench)
    asked, _ = next_request(bench)
    bench.peer.listen(_late_after_ms(asked) + 300)
    _closed_for(bench, asked)


def _late_after_ms(asked: Request) -> int:
    """How long after its last sending the request may still be answered."""
    late_ms = asked.ttl_ms + LATE_AFTER_TTL_MS
    if late_ms > LONGEST_LATE_MS:
        raise NotTried(
            f"its ttl_ms is {asked.ttl_ms}; let it ask with at most {LONGEST_LATE_MS - LATE_AFTER_TTL_MS}"
        )
    return late_ms


def _ttl_again(bench: EndUnderTest) -> None:
    """A verdict that is late after the first sending of its request, and not after the last."""
    _needs_opening(bench)
    asked, _ = next_request(bench)
    half_ms = _late_after_ms(asked) // 2
    bench.peer.listen(half_ms + 300)
    again, _ = next_request(bench)
    if again.txn_id != asked.txn_id:
        raise NotTried("it gave the request up before ttl_ms + 2 s were over")
    bench.peer.listen(half_ms)
    _opens_for(bench, again)


def _onboard(bench: EndUnderTest) -> None:
    _needs_opening(bench)
    asked, _ = next_request(bench)
    _opens_for(bench, asked, onboard_ref="a:b/c+d=")


def _later_members(bench: EndUnderTest) -> None:
    _needs_opening(bench)
    asked, _ = next_request(bench)
    _opens_for(bench, asked, later={"of_a_later_version": {"a": [1]}})


def _other_status(bench: EndUnderTest, key: SigningKey | None = None, **changes: Any) -> int:
    """A second status in a proven session; the mark of what was heard before it."""
    bench.prove()
    wrapper = sign_object(Kind.STATUS, bench.own_status()["status_obj"] | changes, key or bench.setup.key)
    return bench.peer.say("status", wrapper | {"signer_kid": bench.setup.key.kid})


def _later_status(bench: EndUnderTest) -> None:
    mark = _other_status(bench, health=["OF_A_LATER_VERSION"], of_a_later_version={"a": 1})
    bench.want_quiet(("error",), mark)


def _status_of_another_session(bench: EndUnderTest) -> None:
    mark = _other_status(bench, nonce_b64=b64_encode(bytes(32)))
    bench.want_error(mark, "malformed", about="status")


def _forged_status(bench: EndUnderTest) -> None:
    mark = _other_status(bench, bench.stranger)
    bench.want_error(mark, "bad_signature", about="status")


def _resolve_known(bench: EndUnderTest) -> None:
    _needs_opening(bench)
    wrapper, _, signed = _opened(bench)
    _sent_again(bench, Kind.DECISION, wrapper, signed, DECISION_MS)


def _sent_again(
    bench: EndUnderTest, kind: Kind, wrapper: JsonObject, signed: JsonObject, within_ms: int
) -> None:
    """Asked about this verdict, it sends what it signed about it before."""
    bench.prove()
    mark = bench.peer.say("resolve", {"verdict_refs": [object_ref(wrapper)]})
    heard = naming(bench, kind, wrapper, mark, within_ms)
    if heard is None:
        raise Broken(f"the {name_of(kind)} was not sent again")
    if canonical_bytes(heard.body) != canonical_bytes(signed):
        raise Broken(f"another {name_of(kind)} than the first was sent")


def _resolve_unknown(bench: EndUnderTest) -> None:
    """While a request is open, a verdict that it has not seen may belong to it: no `unknown` yet."""
    next_request(bench)
    mark = bench.peer.say("resolve", {"verdict_refs": [bench.peer.random(16).hex()]})
    bench.want_quiet(("unknown", "decision"), mark, 500)


def _resolve_then_verdict(bench: EndUnderTest) -> None:
    """A reset cut the verdict off: it is asked about, and comes when its request is repeated. `unknown` would
    be said once no request is open; so the next one, if it comes, is ended."""
    _needs_opening(bench)
    asked, _ = next_request(bench)
    wrapper = verdict_for(bench, asked)
    mark = bench.peer.say("resolve", {"verdict_refs": [object_ref(wrapper)]})
    bench.peer.say("verdict", wrapper)
    _, signed = good_decision(bench, wrapper, mark)
    later = bench.peer.message("request", ANSWER_MS, mark)
    if later is not None:
        txn_id = bench.verified(Kind.REQUEST, later.body, Request.from_obj).txn_id
        bench.peer.say("error", {"code": "expired", "about": "request", "txn_id": txn_id})
    bench.peer.listen(ANSWER_MS)
    for heard in bench.peer.heard[mark:]:
        _judge_resolved(bench, heard, {object_ref(wrapper): signed})


def _resolve_many(bench: EndUnderTest) -> None:
    """More answers than one `resolve` asks about. A forgotten one is met with silence; `unknown` says that it
    was not acted on, which of the first is not true."""
    _needs_opening(bench)
    wrapper, _, signed = _opened(bench)
    answers = {object_ref(wrapper): signed}
    for _ in range(MAX_REFS):
        asked = _never_asked(bench)
        wrapper = verdict_for(bench, asked)
        mark = bench.peer.say("verdict", wrapper)
        _, answers[object_ref(wrapper)] = good_decision(bench, wrapper, mark)
    refs = list(answers)
    bench.prove()
    mark = bench.peer.say("resolve", {"verdict_refs": refs[:MAX_REFS]})
    bench.peer.listen(2 * ANSWER_MS)
    bench.peer.say("resolve", {"verdict_refs": refs[MAX_REFS:]})
    bench.peer.listen(2 * ANSWER_MS)
    if not bench.peer.heard[mark:]:
        raise Broken("the session did not survive")
    for heard in bench.peer.heard[mark:]:
        _judge_resolved(bench, heard, answers)


def _judge_resolved(bench: EndUnderTest, heard: Heard, answers: dict[str, JsonObject]) -> None:
    """A decision about one of these verdicts is the first one; `unknown` names none that was acted on."""
    if heard.type == "decision":
        first = answers.get(bench.verified(Kind.DECISION, heard.body, Decision.from_obj).verdict_ref)
        if first is not None and canonical_bytes(first) != canonical_bytes(heard.body):
            raise Broken("another decision than the first was sent")
    if heard.type == "unknown":
        acted_on = [ref for ref, signed in answers.items() if signed["decision_obj"]["actuated"]]
        if set(acted_on) & set(read_body(heard, UnknownReceived.from_obj).verdict_refs):
            raise Broken("unknown about a verdict that was acted on")


def _never_asked(bench: EndUnderTest) -> Request:
    return Request(
        txn_id=bench.peer.random(16).hex(),
        gate_id=bench.setup.gate_id,
        dbd_id=str(bench.hello.get("id")),
        nonce_b64="A" * 22 + "==",
        issued_at_ms=bench.wall_ms(),
        ttl_ms=1_000,
    )


def _turned(bench: EndUnderTest) -> tuple[JsonObject, Passage, JsonObject]:
    """A passage with a turn sensor: verdict, what the sensor reported, and that as signed."""
    _needs_opening(bench)
    wrapper, _, _ = _opened(bench)
    ready = bench.peer.message("ready", 0, 0)
    if ready is None or ready.body.get("passage_sensor") is not True:
        raise NotTried("needs a validator with a turn sensor, whose ready says so")
    heard = naming(bench, Kind.PASSAGE, wrapper, 0, bench.setup.wait_ms)
    if heard is None:
        raise Broken(f"it opened, and no passage came within {bench.setup.wait_ms} ms")
    passage = bench.verified(Kind.PASSAGE, heard.body, Passage.from_obj)
    verdict = wrapper["verdict"]
    wrong = [name for name in ("txn_id", "gate_id", "dbd_id") if getattr(passage, name) != verdict[name]]
    if wrong:
        raise Broken(f"the passage differs from the verdict in {', '.join(wrong)}")
    return wrapper, passage, heard.body


def _passage_signed(bench: EndUnderTest) -> None:
    _turned(bench)


def _passage_seq(bench: EndUnderTest) -> None:
    _, first, _ = _turned(bench)
    _, second, _ = _turned(bench)
    if second.dbd_event_seq != first.dbd_event_seq + 1:
        raise Broken(f"dbd_event_seq {second.dbd_event_seq} after {first.dbd_event_seq}")


def _passage_resolved(bench: EndUnderTest) -> None:
    wrapper, _, signed = _turned(bench)
    _sent_again(bench, Kind.PASSAGE, wrapper, signed, ANSWER_MS)


def _passage_only_after_opening(bench: EndUnderTest) -> None:
    bench.prove()
    wrapper = verdict_for(bench, _never_asked(bench))
    mark = bench.peer.say("verdict", wrapper)
    good_decision(bench, wrapper, mark)
    if naming(bench, Kind.PASSAGE, wrapper, mark, ANSWER_MS) is not None:
        raise Broken("a passage came for a verdict that it did not open for")


def _restart_seq(bench: EndUnderTest) -> None:
    _needs_opening(bench)
    _, before, _ = _opened(bench)
    bench.restart()
    _, after, _ = _opened(bench)
    if after.decision_seq != before.decision_seq + 1:
        raise Broken(f"decision_seq {after.decision_seq} after a restart, {before.decision_seq} before it")


def _restart_highest(bench: EndUnderTest) -> None:
    _needs_opening(bench)
    acted_on, _, _ = _opened(bench)
    bench.restart()
    asked, _ = next_request(bench)
    _closed_for(bench, asked, verdict_seq=acted_on["verdict"]["verdict_seq"])


def _restart_resolves(bench: EndUnderTest) -> None:
    """What was acted on before a restart is decided as it was, or met with silence."""
    _needs_opening(bench)
    wrapper, _, signed = _opened(bench)
    bench.restart()
    bench.prove()
    mark = bench.peer.say("resolve", {"verdict_refs": [object_ref(wrapper)]})
    bench.peer.listen(ANSWER_MS)
    for heard in bench.peer.heard[mark:]:
        _judge_resolved(bench, heard, {object_ref(wrapper): signed})


def _restart_event_seq(bench: EndUnderTest) -> None:
    _, before, _ = _turned(bench)
    bench.restart()
    _, after, _ = _turned(bench)
    if after.dbd_event_seq != before.dbd_event_seq + 1:
        raise Broken(f"dbd_event_seq {after.dbd_event_seq} after a restart, {before.dbd_event_seq} before it")


def _bad_hint(bench: EndUnderTest) -> None:
    bench.prove()
    mark = bench.peer.mark
    body = {"v": 1, "type": "guide", "body": {"txn_id": "0" * 32, "hint": "of_a_later_version"}}
    bench.peer.frame(8, payload=canonical_bytes(body))
    bench.peer.frame(8, payload=b"{")
    bench.want_quiet(("error",), mark)
    bench.barrier()


def _rule(id_: str, sentence: str, expected: str, check: Callable[[EndUnderTest], None]) -> ConformanceRule:
    return ConformanceRule(id_, PASSAGE_SECTION, sentence, expected, check)


_ACTUATES = "The validator actuates only for its own open, uncancelled, unreplaced txn …: "
_CLOSED = "a decision with actuated false"
_UNSIGNED = "no decision with actuated true, and the session goes on"


def _refusal(
    id_: str, what: str, make: Callable[[EndUnderTest, Request], JsonObject], *, answered: bool = True
) -> ConformanceRule:
    expected = f"{what}: {_CLOSED if answered else _UNSIGNED}"
    return ConformanceRule(
        f"opens.{id_}", PASSAGE_SECTION, _ACTUATES + what, expected, _refuses(make, answered=answered)
    )


_CLOCKS = (
    "within ttl_ms + 2 s of its last sending by its monotonic clock; no clock at either end closes a gate"
)
_SURVIVES = "the highest it has acted on (which survives its restarts, like decision_seq and dbd_event_seq)"

VALIDATOR_RULES = (
    ConformanceRule(
        "ready.after_proof", "§3 Handshake", "the validator ready {passage_sensor: bool}", "ready", _ready
    ),
    _rule(
        "request.signed",
        "request {v, txn_id, gate_id, dbd_id, nonce_b64, issued_at_ms, ttl_ms}",
        "a signed request in bounds",
        _request,
    ),
    _rule(
        "request.again",
        "RST drops an armed request; the validator sends it again",
        "the identical bytes",
        _request_again,
    ),
    _rule(
        "decision.answers", "every verdict is answered", "a signed decision that fits the verdict", _decides
    ),
    _rule(
        "decision.seq",
        "decision_seq … likewise (rises by exactly 1)",
        "one more than the last",
        _decision_seq,
    ),
    _rule(
        "opens.first_copy",
        _ACTUATES + "on the first copy of the verdict",
        "the same decision again, or actuated false",
        _first_copy,
    ),
    _refusal("wrong_key", "the signature good (another key)", _stranger, answered=False),
    _refusal(
        "wrong_signature", "the signature good (another key's, under the pinned kid)", _forged, answered=False
    ),
    _refusal("wrong_gate", "gate_id equal", _with(gate_id="another-gate"), answered=False),
    _refusal("wrong_dbd", "dbd_id equal", _with(dbd_id="another-dbd"), answered=False),
    _refusal("wrong_device", "device_id equal", _with(device_id="another-device"), answered=False),
    _refusal("never_asked", "its own open txn", _with(txn_id="f" * 32)),
    _refusal("wrong_nonce", "nonce_b64 equal", _with(nonce_b64="A" * 22 + "==")),
    _refusal("wrong_issued_at", "issued_at_ms equal", _with(issued_at_ms=1)),
    _refusal("wrong_ttl", "ttl_ms equal", _other_ttl),
    _rule(
        "opens.old_seq",
        "it refuses a verdict_seq at or below the highest it has acted on",
        _CLOSED,
        _old_seq,
    ),
    _rule(
        "opens.once",
        _ACTUATES + "its own open txn",
        f"a second verdict for an answered request: {_CLOSED}",
        _answered_request,
    ),
    _rule(
        "opens.late",
        _ACTUATES + "within ttl_ms + 2 s of its last sending",
        f"a verdict after that: {_CLOSED}",
        _late,
    ),
    _rule(
        "opens.ttl_again",
        "RST drops an armed request; the validator sends it again and ttl starts again",
        "it opens for a verdict within ttl_ms + 2 s of the last sending",
        _ttl_again,
    ),
    _rule(
        "opens.onboard_ref",
        "onboard_ref … stand only in accept",
        "it opens for an accept with onboard_ref",
        _onboard,
    ),
    ConformanceRule(
        "opens.later_members",
        "§2 Envelope",
        "Unknown members …; inside a signed object they stay under its signature",
        "it opens for a verdict with a member of a later version, and the decision has its verdict_ref",
        _later_members,
    ),
    _rule(
        "status.later_words",
        "status_obj {…, health:[…], …}: Unknown members …; the words of health are extensible",
        "no error to a status with a health word and a member of a later version",
        _later_status,
    ),
    _rule(
        "status.other_nonce",
        "status_obj {v, device_id, nonce_b64 (the validator's hello nonce), …}",
        "error malformed to a status that has another nonce",
        _status_of_another_session,
    ),
    _rule(
        "status.bad_signature",
        "status: signed status_obj",
        "error bad_signature to a status that another key signed",
        _forged_status,
    ),
    _rule(
        "resolve.known",
        "resolve: the validator re-sends decision and passage",
        "the same decision, byte for byte",
        _resolve_known,
    ),
    _rule(
        "resolve.open",
        "unknown …: not while a request of its own for that txn is open",
        "no unknown while a request is open",
        _resolve_unknown,
    ),
    _rule(
        "resolve.then_verdict",
        "unknown {verdict_refs} for what it knows that it has not acted on and never will",
        "no unknown about a verdict that it opened for after it was asked",
        _resolve_then_verdict,
    ),
    _rule(
        "guide.unknown",
        "HINT: never acknowledged, never repeated, never waited for",
        "a hint of a later version is not answered",
        _bad_hint,
    ),
    _rule(
        "request.after_expired",
        "txn_id …; Ended txn_ids are remembered like verdicts",
        "another txn_id after error expired",
        _asks_anew,
    ),
    _rule(
        "request.other_end",
        "txn_id stands in …, so that an end of the older request is not taken for one of the newer",
        "error cancelled about another txn_id does not end the open request",
        _other_end,
    ),
    _rule("clock.status_and_verdict_past", _CLOCKS, "it opens for a verdict of 1970", _opens_at(0)),
    _rule(
        "clock.status_and_verdict_future",
        _CLOCKS,
        "it opens for a verdict of the far future",
        _opens_at(2**53 - 1),
    ),
    _rule(
        "clock.own_behind",
        _CLOCKS,
        "it opens with its clock set back",
        _opens_with_own_clock(Deed.CLOCK_BACK),
    ),
    _rule(
        "clock.own_ahead",
        _CLOCKS,
        "it opens with its clock set ahead",
        _opens_with_own_clock(Deed.CLOCK_AHEAD),
    ),
    _rule(
        "cancel.crossed", _ACTUATES + "uncancelled", f"a verdict that crossed a cancel: {_CLOSED}", _cancelled
    ),
    _rule(
        "replace.crossed",
        _ACTUATES + "unreplaced",
        f"a verdict for the older of two requests: {_CLOSED}; it opens for the newer",
        _replaced,
    ),
    ConformanceRule(
        "decision.full_queue",
        "§1 Reliable, ordered messages",
        "anything else waits at its source",
        "the decision comes although more errors waited than may",
        _full_queue,
    ),
    _rule(
        "resolve.many",
        "resolve {verdict_refs:[1..32]}: …; one that has forgotten stays silent",
        "the first decisions or silence, and no unknown about what was acted on",
        _resolve_many,
    ),
    _rule(
        "passage.signed",
        "passage {v, txn_id, dbd_id, gate_id, verdict_ref, passed, cause, at_ms, dbd_event_seq}",
        "a signed passage that fits the verdict, after it opened",
        _passage_signed,
    ),
    _rule(
        "passage.seq", "dbd_event_seq likewise (rises by exactly 1)", "one more than the last", _passage_seq
    ),
    _rule(
        "passage.resolve",
        "resolve: the validator re-sends decision and passage",
        "the same passage, byte for byte",
        _passage_resolved,
    ),
    _rule(
        "passage.only_after_opening",
        "passage: only with a turn sensor",
        "no passage for a verdict that it did not open for",
        _passage_only_after_opening,
    ),
    _rule("restart.decision_seq", _SURVIVES, "one more than before the restart", _restart_seq),
    _rule("restart.verdict_seq", _SURVIVES, f"the number acted on before it: {_CLOSED}", _restart_highest),
    _rule(
        "restart.resolve",
        "resolve: the validator re-sends …; one that has forgotten stays silent",
        "the same decision, or silence; no unknown",
        _restart_resolves,
    ),
    _rule("restart.dbd_event_seq", _SURVIVES, "one more than before the restart", _restart_event_seq),
    _rule(
        "decision.seq_once",
        "decision_seq … likewise (rises by exactly 1)",
        "no two verdicts of this run have the same decision_seq",
        _decision_seq_once,
    ),
)
