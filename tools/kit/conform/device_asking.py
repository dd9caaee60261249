"""Rules for a device that need no hand: status, requests, how they end without a verdict (LINK/1 §3, §4)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from link1.canonical import JsonObject, b64_encode, canonical_bytes
from link1.frames import FrameKind
from link1.objects import Request
from link1.signed import Kind, sign_object
from tools.kit.conform.end_under_test import QUIET_MS, Deed, EndUnderTest, said
from tools.kit.conform.peer import ANSWER_MS, Broken, NotTried
from tools.kit.conform.rules import ConformanceRule

PASSAGE_SECTION = "§4 One passage"
HANDSHAKE_SECTION = "§3 Handshake"
SHORT_TTL_MS, LONG_TTL_MS = 700, 20_000
AGAIN_TTL_MS = ANSWER_MS + 500
"""A device that has forgotten the request arms it, and does not say expired in time for an answer."""
EXPIRED_MS = 1_500
"""After the end of the ttl; the contract says 200 ms before it."""


def make_request(bench: EndUnderTest, ttl_ms: int = LONG_TTL_MS, **changes: Any) -> Request:
    """A request of ours with a txn_id never used before."""
    asked = Request(
        txn_id=bench.peer.random(16).hex(),
        gate_id=bench.setup.gate_id,
        dbd_id=bench.setup.own_id,
        nonce_b64=b64_encode(bench.peer.random(16)),
        issued_at_ms=bench.wall_ms(),
        ttl_ms=ttl_ms,
    )
    return replace(asked, **changes)


def signed(bench: EndUnderTest, request: Request) -> JsonObject:
    bench.txn_ids.add(request.txn_id)
    return sign_object(Kind.REQUEST, request.to_obj(), bench.setup.key)


def ask(bench: EndUnderTest, ttl_ms: int = LONG_TTL_MS) -> tuple[Request, JsonObject, int]:
    """Send a new request: itself, its wrapper, and the mark before it."""
    request = make_request(bench, ttl_ms)
    wrapper = signed(bench, request)
    return request, wrapper, bench.peer.say("request", wrapper)


def withdraw(bench: EndUnderTest, txn_id: str) -> None:
    """End an open request, so that no hand that comes by answers it."""
    mark = bench.peer.say("cancel", {"txn_id": txn_id})
    bench.want_error(mark, "cancelled", about="cancel", txn_id=txn_id)


def _status(bench: EndUnderTest) -> None:
    status = bench.first_status()
    if status.nonce_b64 != bench.own_nonce_b64:
        raise Broken("status does not carry the nonce of our hello")
    if status.device_id != bench.hello.get("id"):
        raise Broken("status of another device_id than the hello's")
    bench.notes["serving"] = status.serving


def _expires(bench: EndUnderTest) -> None:
    bench.prove()
    begun_ms = bench.peer.now_ms
    request, _, mark = ask(bench, SHORT_TTL_MS)
    heard = bench.peer.wait(lambda h: h.type in ("error", "verdict"), SHORT_TTL_MS + EXPIRED_MS, mark)
    if heard is None:
        raise Broken(f"nothing within {SHORT_TTL_MS + EXPIRED_MS} ms")
    if heard.type == "verdict":
        raise NotTried("a verdict came: take the hand away, or the device cannot see whether one is there")
    bench.want_error(mark, "expired", about="request", txn_id=request.txn_id)
    took_ms = heard.at_ms - begun_ms
    if not SHORT_TTL_MS - 350 <= took_ms <= SHORT_TTL_MS + 400:
        raise Broken(f"error expired after {took_ms} ms, with ttl_ms {SHORT_TTL_MS}")


def _expired_again(bench: EndUnderTest) -> None:
    bench.prove()
    request, wrapper, mark = ask(bench, AGAIN_TTL_MS)
    _need_expired(bench, mark, AGAIN_TTL_MS + EXPIRED_MS)
    mark = bench.peer.say("request", wrapper)
    bench.want_error(mark, "expired", about="request", txn_id=request.txn_id)
    bench.prove()
    mark = bench.peer.say("request", wrapper)
    bench.want_error(mark, "expired", about="request", txn_id=request.txn_id)


def _need_expired(bench: EndUnderTest, mark: int, within_ms: int) -> None:
    heard = bench.peer.wait(lambda h: h.type in ("error", "verdict"), within_ms, mark)
    if heard is not None and heard.type == "verdict":
        raise NotTried("a verdict came: take the hand away")
    bench.want_error(mark, "expired", within_ms, about="request")


def _armed_again(bench: EndUnderTest) -> None:
    bench.prove()
    request, wrapper, mark = ask(bench)
    bench.peer.say("request", wrapper)
    bench.want_no_error(request.txn_id, mark)
    withdraw(bench, request.txn_id)


def _cancel(bench: EndUnderTest) -> None:
    bench.prove()
    request, _, _ = ask(bench)
    withdraw(bench, request.txn_id)
    withdraw(bench, request.txn_id)


def _cancel_unknown(bench: EndUnderTest) -> None:
    bench.prove()
    mark = bench.peer.say("cancel", {"txn_id": bench.peer.random(16).hex(), "of_a_later_version": [1]})
    body = bench.want_error(mark, "cancelled", about="cancel")
    if "txn_id" in body:
        raise Broken("the error names a txn_id that the device does not know")


def _cancel_not_remembered(bench: EndUnderTest) -> None:
    """A cancel that comes before its request does not end it."""
    bench.prove()
    request = make_request(bench)
    mark = bench.peer.say("cancel", {"txn_id": request.txn_id})
    bench.want_error(mark, "cancelled", about="cancel")
    mark = bench.peer.say("request", signed(bench, request))
    bench.want_no_error(request.txn_id, mark)
    withdraw(bench, request.txn_id)


def _cancel_ended(bench: EndUnderTest) -> None:
    bench.prove()
    request, _, mark = ask(bench, SHORT_TTL_MS)
    _need_expired(bench, mark, SHORT_TTL_MS + EXPIRED_MS)
    mark = bench.peer.say("cancel", {"txn_id": request.txn_id})
    bench.want_error(mark, "expired", about="cancel", txn_id=request.txn_id)


def _cancelled_again(bench: EndUnderTest) -> None:
    bench.prove()
    request, wrapper, _ = ask(bench)
    withdraw(bench, request.txn_id)
    mark = bench.peer.say("request", wrapper)
    bench.want_error(mark, "cancelled", about="request", txn_id=request.txn_id)


def _replaced(bench: EndUnderTest) -> None:
    bench.prove()
    older, older_wrapper, _ = ask(bench)
    newer, _, _ = ask(bench)
    mark = bench.peer.say("request", older_wrapper)
    bench.want_error(mark, "cancelled", about="request", txn_id=older.txn_id)
    withdraw(bench, newer.txn_id)


def _wrong_clock(issued_at_ms: int) -> Callable[[EndUnderTest], None]:
    """A check that a request whose time of issue is far off is armed like any other."""

    def check(bench: EndUnderTest) -> None:
        bench.prove()
        request = make_request(bench, issued_at_ms=issued_at_ms)
        mark = bench.peer.say("request", signed(bench, request))
        bench.want_no_error(request.txn_id, mark)
        withdraw(bench, request.txn_id)

    return check


def _own_clock(deed: Deed) -> Callable[[EndUnderTest], None]:
    """A check that the device proves itself, takes our proof and arms a request with its clock wrong."""

    def check(bench: EndUnderTest) -> None:
        bench.do(deed)
        try:
            bench.prove()
            request, _, mark = ask(bench)
            bench.want_no_error(request.txn_id, mark)
            withdraw(bench, request.txn_id)
        finally:
            bench.do(Deed.CLOCK_RIGHT)

    return check


def _restart_remembers(bench: EndUnderTest) -> None:
    """A request that ended stays ended, so that a recorded copy of it gets no answer."""
    bench.prove()
    request, wrapper, mark = ask(bench, AGAIN_TTL_MS)
    _need_expired(bench, mark, AGAIN_TTL_MS + EXPIRED_MS)
    bench.restart()
    bench.prove()
    mark = bench.peer.say("request", wrapper)
    bench.want_error(mark, "expired", about="request", txn_id=request.txn_id)


def _revoked_in_use(bench: EndUnderTest) -> None:
    """The last rule: with the key gone there is nothing more to try."""
    bench.prove()
    mark = bench.peer.mark
    bench.do(Deed.REVOKE)
    wanted_ms = bench.setup.wait_ms
    if bench.peer.wait(lambda h: h.frame.kind is FrameKind.RST, wanted_ms, mark) is None:
        raise Broken(f"the proven session goes on, {wanted_ms} ms after the key was revoked")
    _unpaired_now(bench)


def _revoked_for_good(bench: EndUnderTest) -> None:
    bench.do(Deed.ADD_AGAIN)
    _unpaired_now(bench)


def _unpaired_now(bench: EndUnderTest) -> None:
    """Our proof by the key that is revoked now is refused."""
    bench.greet()
    bench.peer.say("hello", bench.own_hello())
    if bench.error(0, QUIET_MS) is None:
        bench.peer.push(canonical_bytes({"v": 1, "type": "prove", "body": bench.own_proof()}))
    bench.want_error(0, "unpaired")


def _named_txn_ids(bench: EndUnderTest) -> None:
    """Looks at every error of the run."""
    for body in bench.peer.errors:
        if "txn_id" in body and str(body["txn_id"]) not in bench.txn_ids:
            raise Broken(f"error {said(body)}: no request with this txn_id was signed")


def _conflict(bench: EndUnderTest) -> None:
    bench.prove()
    request, _, _ = ask(bench)
    changed = replace(request, ttl_ms=request.ttl_ms + 1)
    mark = bench.peer.say("request", signed(bench, changed))
    bench.want_error(mark, "txn_conflict", about="request", txn_id=request.txn_id)
    withdraw(bench, request.txn_id)
    mark = bench.peer.say("request", signed(bench, changed))
    bench.want_error(mark, "txn_conflict", about="request", txn_id=request.txn_id)


def _reset_drops_armed(bench: EndUnderTest) -> None:
    """RST drops it; sent again, its ttl starts again."""
    bench.prove()
    ttl_ms = 1_800
    request, wrapper, _ = ask(bench, ttl_ms)
    bench.peer.listen(900)
    bench.prove()
    bench.want_no_error(request.txn_id, 0)
    begun_ms = bench.peer.now_ms
    mark = bench.peer.say("request", wrapper)
    _need_expired(bench, mark, ttl_ms + EXPIRED_MS)
    took_ms = bench.peer.now_ms - begun_ms
    if took_ms < ttl_ms - 600:
        raise Broken(f"expired {took_ms} ms after it was sent again, with ttl_ms {ttl_ms}")
    del request


_REPEAT = (
    "The identical request again: …; error expired or cancelled if it ended so (a replaced … as cancelled)."
)


def _rule(id_: str, sentence: str, expected: str, check: Callable[[EndUnderTest], None]) -> ConformanceRule:
    return ConformanceRule(f"request.{id_}", PASSAGE_SECTION, sentence, expected, check)


_CLOCK = "a wrong wall clock never costs a passage"
_NO_CLOCK = "So no clock at either end closes a gate"

ASKING_RULES = (
    ConformanceRule(
        "status.signed",
        HANDSHAKE_SECTION,
        "Then the device sends a signed status",
        "a status_obj over the nonce of our hello, signed by the verdict key",
        _status,
    ),
    _rule(
        "expires",
        "With no hand there is none: 200 ms before the ttl ends the device sends error expired.",
        "error expired with the txn_id, about 200 ms before the ttl ends",
        _expires,
    ),
    _rule("expired_again", _REPEAT, "error expired, also in the next session", _expired_again),
    _rule("armed_again", "nothing new while armed", "no answer to the identical request", _armed_again),
    _rule("replaced", _REPEAT, "error cancelled for the one that was replaced", _replaced),
    _rule(
        "conflict",
        "A known txn_id with any difference: error txn_conflict.",
        "error txn_conflict while armed and after its end",
        _conflict,
    ),
    _rule(
        "reset_drops_armed",
        "RST drops an armed request; the validator sends it again and its ttl starts again.",
        "nothing after the reset, and a whole ttl for the request sent again",
        _reset_drops_armed,
    ),
    ConformanceRule(
        "cancel.armed",
        PASSAGE_SECTION,
        "cancel: armed, or cancelled before: error cancelled",
        "error cancelled with txn_id, twice",
        _cancel,
    ),
    ConformanceRule(
        "cancel.unknown",
        PASSAGE_SECTION,
        "cancel: unknown: error cancelled without txn_id; Unknown members of a body are ignored",
        "error cancelled without txn_id",
        _cancel_unknown,
    ),
    ConformanceRule(
        "cancel.not_remembered",
        PASSAGE_SECTION,
        "cancel: unknown: …, not remembered",
        "its request is armed when it comes",
        _cancel_not_remembered,
    ),
    ConformanceRule(
        "cancel.ended",
        PASSAGE_SECTION,
        "cancel: ended otherwise: the code it ended with",
        "error expired",
        _cancel_ended,
    ),
    ConformanceRule("cancel.request_again", PASSAGE_SECTION, _REPEAT, "error cancelled", _cancelled_again),
    ConformanceRule(
        "clock.request_past", PASSAGE_SECTION, _CLOCK, "a request of 1970 is armed", _wrong_clock(0)
    ),
    ConformanceRule(
        "clock.request_future",
        PASSAGE_SECTION,
        _CLOCK,
        "a request of the far future is armed",
        _wrong_clock(2**53 - 1),
    ),
    ConformanceRule(
        "clock.own_behind",
        HANDSHAKE_SECTION,
        _NO_CLOCK,
        "with its clock set back it takes our proof and our request",
        _own_clock(Deed.CLOCK_BACK),
    ),
    ConformanceRule(
        "clock.own_ahead",
        HANDSHAKE_SECTION,
        _NO_CLOCK,
        "with its clock set ahead it takes our proof and our request",
        _own_clock(Deed.CLOCK_AHEAD),
    ),
    ConformanceRule(
        "restart.ended",
        PASSAGE_SECTION,
        "Ended txn_ids are remembered like verdicts",
        "error expired to a request that expired before a restart",
        _restart_remembers,
    ),
)
TXN_ID_RULE = ConformanceRule(
    "error.txn_id",
    PASSAGE_SECTION,
    "txn_id stands … about a txn_id of a request whose signature held; …, never otherwise",
    "every error of this run names a txn_id that we signed a request with, or none",
    _named_txn_ids,
)
REVOKING_RULES = (
    ConformanceRule(
        "key.revoked_in_use",
        HANDSHAKE_SECTION,
        "revoking the one in use forces RST",
        "RST, and then error unpaired to the revoked key",
        _revoked_in_use,
    ),
    ConformanceRule(
        "key.revoked_for_good",
        HANDSHAKE_SECTION,
        "a kid in revoked_kids never counts again, even if it is added again",
        "error unpaired",
        _revoked_for_good,
    ),
)
"""Run last: afterwards our key is useless."""
