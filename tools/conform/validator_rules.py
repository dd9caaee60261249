"""Rules for a validator: what it asks, when it opens, what it answers (LINK/1 §4).

Whoever runs this keeps the validator asking for hands; the rules wait for its next request.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from link1.canonical import JsonObject, canonical_bytes
from link1.errors import FormatError, SignatureError
from link1.objects import Decision, Pad, Request, Verdict, VerdictResult
from link1.signed import Kind, object_ref, sign_object, verify_object
from tools.conform.bench import GALLERY, QUIET_MS, Bench, said
from tools.conform.common_frames import strange
from tools.conform.peer import ANSWER_MS, Broken, Heard, Skipped
from tools.conform.rules import Rule

PASSAGE_SECTION = "§4 One passage"
DECISION_MS = 5_000
LATE_AFTER_TTL_MS = 2_000
LONGEST_LATE_MS = 8_000
"""A ttl that would make the rule on late verdicts take longer is not waited for."""


def next_request(bench: Bench) -> tuple[Request, Heard]:
    """A proven session with an open request of the validator's, good in every member."""
    bench.prove()
    heard = bench.peer.message("request", bench.setup.wait_ms, 0)
    if heard is None:
        raise Skipped(f"no request within {bench.setup.wait_ms} ms; keep the validator asking")
    try:
        return Request.from_obj(verify_object(Kind.REQUEST, heard.body, bench.setup.peer_key)), heard
    except (FormatError, SignatureError) as error:
        raise Broken(f"request: {error}") from None


def verdict_for(bench: Bench, asked: Request, **changes: Any) -> JsonObject:
    """The next verdict of our chain, an accept, signed; `changes` are members that shall be otherwise."""
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
    wrapper = sign_object(Kind.VERDICT, replace(verdict, **changes).to_obj(), bench.setup.key)
    if "verdict_seq" not in changes:
        counters.verdict_signed(object_ref(wrapper))
    return wrapper


def decision_on(bench: Bench, wrapper: JsonObject, mark: int, within_ms: int = DECISION_MS) -> Heard | None:
    """The first decision that names this verdict."""
    ref = object_ref(wrapper)

    def wanted(heard: Heard) -> bool:
        inner = heard.body.get("decision_obj")
        return heard.type == "decision" and isinstance(inner, dict) and inner.get("verdict_ref") == ref

    return bench.peer.wait(wanted, within_ms, mark)


def good_decision(bench: Bench, wrapper: JsonObject, mark: int) -> tuple[Decision, JsonObject]:
    """The decision on a verdict, judged in every member that ties it to the verdict."""
    heard = decision_on(bench, wrapper, mark)
    if heard is None:
        raise Broken(f"no decision within {DECISION_MS} ms of the verdict")
    try:
        decision = Decision.from_obj(verify_object(Kind.DECISION, heard.body, bench.setup.peer_key))
    except (FormatError, SignatureError) as error:
        raise Broken(f"decision: {error}") from None
    verdict = wrapper["verdict"]
    names = ("txn_id", "gate_id", "dbd_id", "nonce_b64")
    wrong = [name for name in names if getattr(decision, name) != verdict[name]]
    if wrong:
        raise Broken(f"the decision differs from the verdict in {', '.join(wrong)}")
    return decision, heard.body


def _opened(bench: Bench) -> tuple[JsonObject, Decision, JsonObject]:
    """A passage as it should be: verdict, decision, and the decision as signed."""
    asked, _ = next_request(bench)
    wrapper = verdict_for(bench, asked)
    mark = bench.peer.say("verdict", wrapper)
    decision, signed = good_decision(bench, wrapper, mark)
    if not decision.actuated:
        raise Skipped(
            f"the validator did not open for an accept ({decision.outcome}, {decision.reason}), so it cannot "
            "be seen when it wrongly would; let its rules open for subject_ref 555…"
        )
    return wrapper, decision, signed


def _needs_opening(bench: Bench) -> None:
    """Rules on not opening mean something only when it does open otherwise."""
    if "opens" not in bench.notes:
        try:
            _opened(bench)
            bench.notes["opens"] = ""
        except (Broken, Skipped) as reason:
            bench.notes["opens"] = str(reason)
    if bench.notes["opens"]:
        raise Skipped(bench.notes["opens"])


def not_opened(bench: Bench, wrapper: JsonObject, mark: int, *, answered: bool) -> None:
    """No decision on this verdict says actuated true; with `answered`, one says actuated false."""
    heard = decision_on(bench, wrapper, mark, DECISION_MS if answered else QUIET_MS)
    if heard is None:
        if answered:
            raise Broken(f"no decision within {DECISION_MS} ms; every verdict is answered")
        return
    inner = heard.body.get("decision_obj", {})
    if inner.get("actuated") is not False:
        raise Broken(f"it opened: {said(inner)}")


# ---- what each rule tries


def _ready(bench: Bench) -> None:
    mark = bench.prove()
    heard = bench.peer.message("ready", ANSWER_MS, mark)
    if heard is None:
        raise Broken(f"no ready within {ANSWER_MS} ms of the proofs")
    if not isinstance(heard.body.get("passage_sensor"), bool):
        raise Broken("ready without passage_sensor true or false")


def _request(bench: Bench) -> None:
    asked, _ = next_request(bench)
    if (asked.gate_id, asked.dbd_id) != (bench.setup.gate_id, bench.hello.get("id")):
        raise Broken("request for another gate_id or dbd_id than this session's")


def _request_again(bench: Bench) -> None:
    _, first = next_request(bench)
    asked, second = next_request(bench)
    if first.body["request"]["txn_id"] != asked.txn_id:
        raise Broken("another txn_id after a reset, while the first request was open")
    if first.data != second.data:
        raise Broken("the same txn_id with other bytes after a reset")


def _decides(bench: Bench) -> None:
    wrapper, _, _ = _opened(bench)
    del wrapper


def _decision_seq(bench: Bench) -> None:
    _needs_opening(bench)
    _, first, _ = _opened(bench)
    _, second, _ = _opened(bench)
    if second.decision_seq != first.decision_seq + 1:
        raise Broken(f"decision_seq {second.decision_seq} after {first.decision_seq}")


def _first_copy(bench: Bench) -> None:
    _needs_opening(bench)
    wrapper, _, signed = _opened(bench)
    mark = bench.peer.say("verdict", wrapper)
    heard = decision_on(bench, wrapper, mark)
    if heard is None:
        raise Broken("no decision on the second copy; every verdict is answered")
    if canonical_bytes(heard.body) != canonical_bytes(signed) and heard.body["decision_obj"]["actuated"]:
        raise Broken("the second copy of a verdict was acted on again")


def _refuses(make: Callable[[Bench, Request], JsonObject], *, answered: bool) -> Callable[[Bench], None]:
    """A check that the validator does not open for the verdict that `make` makes of its open request."""

    def check(bench: Bench) -> None:
        _needs_opening(bench)
        asked, _ = next_request(bench)
        wrapper = make(bench, asked)
        mark = bench.peer.say("verdict", wrapper)
        not_opened(bench, wrapper, mark, answered=answered)
        mark = bench.peer.say_bytes(strange())
        bench.want_error(mark, "unsupported_type")

    return check


def _stranger(bench: Bench, asked: Request) -> JsonObject:
    return sign_object(Kind.VERDICT, verdict_for(bench, asked)["verdict"], bench.stranger)


def _forged(bench: Bench, asked: Request) -> JsonObject:
    return _stranger(bench, asked) | {"signer_kid": bench.setup.key.kid}


def _with(**changes: Any) -> Callable[[Bench, Request], JsonObject]:
    return lambda bench, asked: verdict_for(bench, asked, **changes)


def _other_ttl(bench: Bench, asked: Request) -> JsonObject:
    return verdict_for(bench, asked, ttl_ms=60_000 if asked.ttl_ms != 60_000 else 59_000)


def _old_seq(bench: Bench) -> None:
    """A fresh verdict on a fresh request, but with the number of the one just acted on."""
    _needs_opening(bench)
    acted_on, _, _ = _opened(bench)
    asked, _ = next_request(bench)
    wrapper = verdict_for(bench, asked, verdict_seq=acted_on["verdict"]["verdict_seq"])
    mark = bench.peer.say("verdict", wrapper)
    not_opened(bench, wrapper, mark, answered=True)


def _answered_request(bench: Bench) -> None:
    """A second, different verdict for a request that has its decision."""
    _needs_opening(bench)
    wrapper, _, _ = _opened(bench)
    verdict = wrapper["verdict"]
    asked = Request.from_obj({name: verdict[name] for name in ("v", *Request.__slots__)})
    second = verdict_for(bench, asked)
    mark = bench.peer.say("verdict", second)
    not_opened(bench, second, mark, answered=True)


def _late(bench: Bench) -> None:
    _needs_opening(bench)
    asked, _ = next_request(bench)
    late_ms = asked.ttl_ms + LATE_AFTER_TTL_MS
    if late_ms > LONGEST_LATE_MS:
        raise Skipped(
            f"its ttl_ms is {asked.ttl_ms}; let it ask with at most {LONGEST_LATE_MS - LATE_AFTER_TTL_MS}"
        )
    bench.peer.listen(late_ms + 300)
    wrapper = verdict_for(bench, asked)
    mark = bench.peer.say("verdict", wrapper)
    not_opened(bench, wrapper, mark, answered=True)


def _resolve_known(bench: Bench) -> None:
    _needs_opening(bench)
    wrapper, _, signed = _opened(bench)
    bench.prove()
    mark = bench.peer.say("resolve", {"verdict_refs": [object_ref(wrapper)]})
    heard = decision_on(bench, wrapper, mark)
    if heard is None:
        raise Broken("the decision was not sent again")
    if canonical_bytes(heard.body) != canonical_bytes(signed):
        raise Broken("another decision than the first was sent")


def _resolve_unknown(bench: Bench) -> None:
    """While a request is open, a verdict nobody has seen may be its own: no `unknown` yet."""
    next_request(bench)
    mark = bench.peer.say("resolve", {"verdict_refs": [bench.peer.random(16).hex()]})
    bench.want_quiet(("unknown", "decision"), mark, 500)


def _bad_hint(bench: Bench) -> None:
    bench.prove()
    mark = bench.peer.mark
    body = {"v": 1, "type": "guide", "body": {"txn_id": "0" * 32, "hint": "of_a_later_version"}}
    bench.peer.frame(8, payload=canonical_bytes(body))
    bench.peer.frame(8, payload=b"{")
    bench.want_quiet(("error",), mark)
    bench.barrier()


def _wrong_way(bench: Bench) -> None:
    bench.prove()
    mark = bench.peer.say("cancel", {"txn_id": "0" * 32})
    bench.want_error(mark, "unsupported_type", about="cancel")


def _rule(id_: str, sentence: str, expected: str, check: Callable[[Bench], None]) -> Rule:
    return Rule(id_, PASSAGE_SECTION, sentence, expected, check)


_ACTUATES = "The validator actuates only for its own open, uncancelled, unreplaced txn …: "
_CLOSED = "a decision with actuated false"
_UNSIGNED = "no decision with actuated true, and the session goes on"


def _refusal(
    id_: str, what: str, make: Callable[[Bench, Request], JsonObject], *, answered: bool = True
) -> Rule:
    expected = f"{what}: {_CLOSED if answered else _UNSIGNED}"
    return Rule(
        f"opens.{id_}", PASSAGE_SECTION, _ACTUATES + what, expected, _refuses(make, answered=answered)
    )


VALIDATOR_RULES = (
    Rule("ready.after_proof", "§3 Handshake", "the validator ready {passage_sensor: bool}", "ready", _ready),
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
        "guide.unknown",
        "HINT: never acknowledged, never repeated, never waited for",
        "a hint of a later version is not answered",
        _bad_hint,
    ),
    Rule(
        "envelope.wrong_way",
        "§2 Envelope",
        "Unknown type: error unsupported_type",
        "error unsupported_type to a type that validators send",
        _wrong_way,
    ),
)
