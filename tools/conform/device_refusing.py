"""Rules for a device that need no hand: what it refuses, and mail (LINK/1 §2, §4, §5)."""

from collections.abc import Callable
from typing import Any

from link1.canonical import JsonObject, b64_encode
from link1.signed import Kind, sign_object
from tools.conform.bench import Bench, said
from tools.conform.device_asking import PASSAGE_SECTION, make_request, signed, withdraw
from tools.conform.peer import ANSWER_MS, Broken
from tools.conform.rules import Rule

MAIL_SECTION = "§5 Mail over the cable"


def _refused(code: str, make: Callable[[Bench], JsonObject], names_txn: bool) -> Callable[[Bench], None]:
    """A check that a request is answered with this error, and that txn_id stands in it only if signed."""

    def check(bench: Bench) -> None:
        bench.prove()
        wrapper = make(bench)
        mark = bench.peer.say("request", wrapper)
        body = bench.want_error(mark, code, about="request")
        if names_txn and body.get("txn_id") != wrapper["request"]["txn_id"]:
            raise Broken("the error does not name the txn_id, whose signature held")
        if not names_txn and "txn_id" in body:
            raise Broken("the error names a txn_id whose signature does not hold")

    return check


def _stranger(bench: Bench) -> JsonObject:
    wrong_gate = make_request(bench, gate_id="another-gate")
    return sign_object(Kind.REQUEST, wrong_gate.to_obj(), bench.stranger) | {
        "signer_kid": bench.setup.key.kid
    }


def _stranger_kid(bench: Bench) -> JsonObject:
    return sign_object(Kind.REQUEST, make_request(bench).to_obj(), bench.stranger)


def _other_prefix(bench: Bench) -> JsonObject:
    """The right key, but over the prefix of another kind of object."""
    obj = make_request(bench).to_obj()
    signature = sign_object(Kind.DECISION, obj, bench.setup.key)["sig_b64"]
    return sign_object(Kind.REQUEST, obj, bench.setup.key) | {"sig_b64": signature}


def _extra_member(bench: Bench) -> JsonObject:
    return signed(bench, make_request(bench)) | {"extra": 1}


def _noncanonical_base64(bench: Bench) -> JsonObject:
    wrapper = signed(bench, make_request(bench))
    return wrapper | {"sig_b64": str(wrapper["sig_b64"]).rstrip("=")}


def _with(**changes: Any) -> Callable[[Bench], JsonObject]:
    def make(bench: Bench) -> JsonObject:
        obj = make_request(bench).to_obj() | changes
        return sign_object(Kind.REQUEST, obj, bench.setup.key)

    return make


def _unknown_member_is_signed(bench: Bench) -> None:
    bench.prove()
    obj = make_request(bench).to_obj() | {"of_a_later_version": {"a": 1}}
    mark = bench.peer.say("request", sign_object(Kind.REQUEST, obj, bench.setup.key))
    bench.want_quiet(("error",), mark)
    withdraw(bench, obj["txn_id"])


def _wrong_way(bench: Bench) -> None:
    """A type that only devices send."""
    bench.prove()
    mark = bench.peer.say("resolve", {"verdict_refs": ["0" * 32]})
    bench.want_error(mark, "unsupported_type", about="resolve")


def _wrong_decision(bench: Bench) -> None:
    """A decision about a verdict that there never was."""
    bench.prove()
    obj = {
        "v": 1,
        "txn_id": bench.peer.random(16).hex(),
        "gate_id": bench.setup.gate_id,
        "dbd_id": bench.setup.own_id,
        "nonce_b64": b64_encode(bench.peer.random(16)),
        "verdict_ref": bench.peer.random(16).hex(),
        "reason": "ok",
        "outcome": "LIBERAR",
        "actuated": True,
        "decision_seq": bench.counters.next_decision_seq(),
        "decided_at_ms": bench.wall_ms(),
    }
    wrapper = sign_object(Kind.DECISION, obj, bench.setup.key)
    mark = bench.peer.say("decision", wrapper)
    bench.want_error(mark, "bad_decision", about="decision")
    again = bench.peer.say("decision", wrapper)
    bench.want_quiet(("error",), again)


def _mail_pull(bench: Bench) -> None:
    bench.prove()
    mark = bench.peer.say("mail_pull", {"box": "out", "after_seq": 2**40, "offset": 0}, 1)
    heard = bench.peer.wait(lambda h: h.type in ("mail_none", "mail", "error"), ANSWER_MS, mark)
    if heard is None:
        raise Broken(f"no answer within {ANSWER_MS} ms")
    if heard.type != "mail_none" or heard.body != {"box": "out", "after_seq": 2**40}:
        raise Broken(f"{heard.type} {said(heard.body)}")
    if heard.frame.chan != 1:
        raise Broken("the answer came on the control channel")


def _mail_gap(bench: Bench) -> None:
    bench.prove()
    chunk = {"box": "in", "seq": 2**40, "offset": 0, "total": 4, "data_b64": b64_encode(b"mail")}
    mark = bench.peer.say("mail", chunk, 1)
    heard = bench.peer.wait(lambda h: h.type in ("mail_ack", "error"), ANSWER_MS, mark)
    if heard is None:
        raise Broken(f"no mail_ack within {ANSWER_MS} ms")
    if heard.body.get("state") != "gap" or heard.body.get("next_offset") != 0:
        raise Broken(f"{heard.type} {said(heard.body)}")


_ORDER = (
    "Order of checks on a request: wrapper (malformed), signature (bad_signature), contract (malformed), …"
)


def _rule(id_: str, sentence: str, expected: str, check: Callable[[Bench], None]) -> Rule:
    return Rule(f"request.{id_}", PASSAGE_SECTION, sentence, expected, check)


REFUSING_RULES = (
    _rule(
        "bad_signature",
        _ORDER,
        "error bad_signature without txn_id, before wrong_gate",
        _refused("bad_signature", _stranger, False),
    ),
    _rule(
        "unknown_signer",
        _ORDER,
        "error bad_signature for another key's kid",
        _refused("bad_signature", _stranger_kid, False),
    ),
    _rule(
        "other_prefix",
        "signed bytes: prefix ‖ 0x00 ‖ RFC 8785 bytes of the object",
        "error bad_signature for a signature over another prefix",
        _refused("bad_signature", _other_prefix, False),
    ),
    _rule(
        "extra_member",
        "a signed wrapper has no other members",
        "error malformed",
        _refused("malformed", _extra_member, False),
    ),
    _rule(
        "base64",
        "standard base64 with padding, no other spelling of the same bytes",
        "error malformed for a signature without padding",
        _refused("malformed", _noncanonical_base64, False),
    ),
    _rule(
        "ttl_range",
        "ttl_ms (500..60000)",
        "error malformed with txn_id",
        _refused("malformed", _with(ttl_ms=499), True),
    ),
    _rule(
        "nonce_length",
        "nonce_b64 (16..32 bytes)",
        "error malformed with txn_id",
        _refused("malformed", _with(nonce_b64=b64_encode(bytes(15))), True),
    ),
    _rule(
        "object_version", "request {v, …}", "error malformed for v 2", _refused("malformed", _with(v=2), True)
    ),
    _rule(
        "wrong_gate",
        "wrong_gate (gate_id or dbd_id not of this session's)",
        "error wrong_gate with txn_id",
        _refused("wrong_gate", _with(gate_id="another-gate"), True),
    ),
    _rule(
        "wrong_dbd",
        "wrong_gate (gate_id or dbd_id not of this session's)",
        "error wrong_gate with txn_id",
        _refused("wrong_gate", _with(dbd_id="another-dbd"), True),
    ),
    _rule(
        "unknown_member",
        "inside a signed object they stay under its signature",
        "a request with an unknown member is armed",
        _unknown_member_is_signed,
    ),
    Rule(
        "envelope.wrong_way",
        "§2 Envelope",
        "Unknown type: error unsupported_type",
        "error unsupported_type to a type that devices send",
        _wrong_way,
    ),
    Rule(
        "decision.without_verdict",
        PASSAGE_SECTION,
        "a wrong one (signature, ids, nonce, ref) gets error bad_decision (once for each distinct message)",
        "error bad_decision once, for a decision about no verdict",
        _wrong_decision,
    ),
    Rule(
        "mail.nothing",
        MAIL_SECTION,
        "mail_none when there is nothing after it",
        "mail_none on channel 1",
        _mail_pull,
    ),
    Rule(
        "mail.gap",
        MAIL_SECTION,
        "gap when it is beyond applied_seq + 1",
        "mail_ack gap with next_offset 0",
        _mail_gap,
    ),
)
