"""Rules for a device that need no hand: what it refuses (LINK/1 §2, §4)."""

from collections.abc import Callable
from typing import Any

from link1.canonical import JsonObject, b64_encode
from link1.signed import Kind, sign_object
from tools.kit.conform.device_asking import PASSAGE_SECTION, make_request, signed, withdraw
from tools.kit.conform.end_under_test import EndUnderTest
from tools.kit.conform.peer import Broken
from tools.kit.conform.rules import ConformanceRule

_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_NEXT_DIGIT = dict(zip(_DIGITS, _DIGITS[1:] + "A", strict=True))


def _refused(*codes: str, make: Callable[[EndUnderTest], JsonObject]) -> Callable[[EndUnderTest], None]:
    """A check that a request is answered with one of these errors and not armed.

    These may name the txn_id, but only where the signature over it holds; `error.txn_id` sees to that.
    """

    def check(bench: EndUnderTest) -> None:
        bench.prove()
        wrapper = make(bench)
        mark = bench.peer.say("request", wrapper)
        body = bench.want_error(mark, codes, about="request")
        if body.get("txn_id", wrapper["request"]["txn_id"]) != wrapper["request"]["txn_id"]:
            raise Broken("the error names another txn_id than the request's")

    return check


def _stranger(bench: EndUnderTest) -> JsonObject:
    wrong_gate = make_request(bench, gate_id="another-gate")
    return sign_object(Kind.REQUEST, wrong_gate.to_obj(), bench.stranger) | {
        "signer_kid": bench.setup.key.kid
    }


def _stranger_kid(bench: EndUnderTest) -> JsonObject:
    return sign_object(Kind.REQUEST, make_request(bench).to_obj(), bench.stranger)


def _other_prefix(bench: EndUnderTest) -> JsonObject:
    """The right key, but over the prefix of another kind of object."""
    obj = make_request(bench).to_obj()
    signature = sign_object(Kind.DECISION, obj, bench.setup.key)["sig_b64"]
    return sign_object(Kind.REQUEST, obj, bench.setup.key) | {"sig_b64": signature}


def _extra_member(bench: EndUnderTest) -> JsonObject:
    return signed(bench, make_request(bench)) | {"extra": 1}


def _noncanonical_base64(bench: EndUnderTest) -> JsonObject:
    wrapper = _unnamed(bench)
    return wrapper | {"sig_b64": str(wrapper["sig_b64"]).rstrip("=")}


def _other_spelling(bench: EndUnderTest) -> JsonObject:
    """The same 64 bytes in base64 whose last digit has bits that belong to no byte."""
    wrapper = _unnamed(bench)
    digits = str(wrapper["sig_b64"])
    return wrapper | {"sig_b64": digits[:-3] + _NEXT_DIGIT[digits[-3]] + "=="}


def _unnamed(bench: EndUnderTest) -> JsonObject:
    """A signed request that an error must not name once its signature is spoilt."""
    return sign_object(Kind.REQUEST, make_request(bench).to_obj(), bench.setup.key)


def _with(**changes: Any) -> Callable[[EndUnderTest], JsonObject]:
    def make(bench: EndUnderTest) -> JsonObject:
        obj = make_request(bench).to_obj() | changes
        bench.txn_ids.add(obj["txn_id"])
        return sign_object(Kind.REQUEST, obj, bench.setup.key)

    return make


def _both_malformed(
    low: Callable[[EndUnderTest], JsonObject], high: Callable[[EndUnderTest], JsonObject]
) -> Callable[[EndUnderTest], None]:
    def check(bench: EndUnderTest) -> None:
        for make in (low, high):
            _refused("malformed", make=make)(bench)

    return check


def _armed(bench: EndUnderTest, wrapper: JsonObject) -> None:
    """It is taken, and ends by our cancel."""
    bench.prove()
    txn_id = wrapper["request"]["txn_id"]
    mark = bench.peer.say("request", wrapper)
    bench.want_no_error(txn_id, mark)
    withdraw(bench, txn_id)


def _largest(bench: EndUnderTest) -> None:
    _armed(bench, _with(ttl_ms=60_000, nonce_b64=b64_encode(bytes(32)))(bench))


def _unknown_member_is_signed(bench: EndUnderTest) -> None:
    _armed(bench, _with(of_a_later_version={"a": 1})(bench))


def _wrong_decision(bench: EndUnderTest) -> None:
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
    body = bench.want_error(mark, "bad_decision", about="decision")
    if "txn_id" in body:
        raise Broken("the error names a txn_id that no request had")
    again = bench.peer.say("decision", wrapper)
    bench.want_quiet(("error",), again)


_ORDER = (
    "Order of checks on a request: wrapper (malformed), signature (bad_signature), contract (malformed), …"
)


def _rule(id_: str, sentence: str, expected: str, check: Callable[[EndUnderTest], None]) -> ConformanceRule:
    return ConformanceRule(f"request.{id_}", PASSAGE_SECTION, sentence, expected, check)


REFUSING_RULES = (
    _rule(
        "bad_signature",
        _ORDER,
        "error bad_signature, before wrong_gate",
        _refused("bad_signature", make=_stranger),
    ),
    _rule(
        "unknown_signer",
        _ORDER,
        "error bad_signature for another key's kid",
        _refused("bad_signature", make=_stranger_kid),
    ),
    _rule(
        "other_prefix",
        "signed bytes: prefix ‖ 0x00 ‖ RFC 8785 bytes of the object",
        "error bad_signature for a signature over another prefix",
        _refused("bad_signature", make=_other_prefix),
    ),
    _rule(
        "extra_member",
        "a signed wrapper has no other members",
        "error malformed",
        _refused("malformed", make=_extra_member),
    ),
    _rule(
        "base64",
        "standard base64 with padding, no other spelling of the same bytes",
        "error malformed or bad_signature for a signature without padding",
        _refused("malformed", "bad_signature", make=_noncanonical_base64),
    ),
    _rule(
        "base64_spelling",
        "standard base64 with padding, no other spelling of the same bytes",
        "error malformed or bad_signature for another spelling of a good signature",
        _refused("malformed", "bad_signature", make=_other_spelling),
    ),
    _rule(
        "ttl_range",
        "ttl_ms (500..60000)",
        "error malformed",
        _both_malformed(_with(ttl_ms=499), _with(ttl_ms=60_001)),
    ),
    _rule(
        "nonce_length",
        "nonce_b64 (16..32 bytes)",
        "error malformed",
        _both_malformed(_with(nonce_b64=b64_encode(bytes(15))), _with(nonce_b64=b64_encode(bytes(33)))),
    ),
    _rule(
        "largest",
        "nonce_b64 (16..32 bytes), issued_at_ms, ttl_ms (500..60000)",
        "a request with the largest nonce_b64 and ttl_ms is armed",
        _largest,
    ),
    _rule(
        "object_version",
        "request {v, …}",
        "error malformed or unsupported_version for v 2",
        _refused("malformed", "unsupported_version", make=_with(v=2)),
    ),
    _rule(
        "wrong_gate",
        "wrong_gate (gate_id or dbd_id not of this session's)",
        "error wrong_gate",
        _refused("wrong_gate", make=_with(gate_id="another-gate")),
    ),
    _rule(
        "wrong_dbd",
        "wrong_gate (gate_id or dbd_id not of this session's)",
        "error wrong_gate",
        _refused("wrong_gate", make=_with(dbd_id="another-dbd")),
    ),
    _rule(
        "unknown_member",
        "inside a signed object they stay under its signature",
        "a request with an unknown member is armed",
        _unknown_member_is_signed,
    ),
    ConformanceRule(
        "decision.without_verdict",
        PASSAGE_SECTION,
        "a wrong one (signature, ids, nonce, ref) gets error bad_decision (once for each distinct message)",
        "error bad_decision once, for a decision about no verdict",
        _wrong_decision,
    ),
)
