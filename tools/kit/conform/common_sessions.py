"""Rules for both ends: sessions, envelope and handshake (LINK/1 §1 Sessions, §2, §3)."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from link1.bodies import Hello
from link1.canonical import b64_decode, b64_encode, canonical_bytes
from link1.envelope import ABOUT_MESSAGE, Role
from link1.errors import FormatError, SignatureError
from link1.frames import FrameKind
from link1.objects import Request
from link1.signed import Kind, sign_object
from tools.kit.conform.common_frames import strange, want_strange_error
from tools.kit.conform.end_under_test import PROOF_MS, QUIET_MS, EndUnderTest, read_body, said
from tools.kit.conform.peer import ANSWER_MS, Broken, Heard, NotTried
from tools.kit.conform.rules import ConformanceRule
from tools.kit.golden.vectors import UNREADABLE_MESSAGES
from tools.kit.raw_frames import raw_frame

SESSION_SECTION = "§1 Sessions"
ENVELOPE_SECTION = "§2 Envelope"
HANDSHAKE_SECTION = "§3 Handshake"
SILENCE_MS = 2_000
GROUP_ORDER = 2**252 + 27742317777372353535851937790883648493
"""L of Ed25519 (RFC 8032)."""
ALSO_SAID = {
    "v is true": ("unsupported_version",),
    "no body": ("unsupported_type",),
    "another version": ("unsupported_type",),
}
"""Other codes for what is wrong in two ways, of which an end may see either first."""
UNREADABLE_ERRORS = (
    b'{"body":{"about":"message","code":"malformed"},"type":"error","v":2}',
    b'{"body":{"about":"message","code":"malformed"},"of_later":1,"type":"error","v":1}',
    b'{"body":[],"type":"error","v":1}',
)
"""Errors all the same: two ends that answered each other's would never come to an end."""
SLACK_MS = 700
"""For a machine that is slow to be scheduled."""


def _is_rst(heard: Heard) -> bool:
    return heard.frame.kind is FrameKind.RST


# ---- sessions


def _rst_current(bench: EndUnderTest) -> None:
    bench.prove()
    peer = bench.peer
    before = peer.peer_tag
    mark = peer.mark
    peer.write(raw_frame(FrameKind.RST, payload=peer.own_tag))
    answer = peer.wait(lambda h: h.frame.kind is FrameKind.RSTACK, ANSWER_MS, mark)
    if answer is None:
        raise Broken("no RSTACK")
    if answer.frame.payload != peer.own_tag + before:
        raise Broken("an RSTACK with other tags")
    mark = peer.say_bytes(strange())
    want_strange_error(bench, mark)


def _rst_new(bench: EndUnderTest) -> None:
    bench.prove()
    peer = bench.peer
    old_tag, old_nonce = peer.peer_tag, bench.hello.get("nonce_b64")
    bench.greet()
    if peer.peer_tag[0] == old_tag[0]:
        raise Broken("its fresh tag begins with the same byte as the last one")
    if bench.hello.get("nonce_b64") == old_nonce:
        raise Broken("the same nonce in the new hello")
    hello = peer.message("hello", 0, 0)
    if hello is None or hello.frame.mid != 0:
        raise Broken("the first message of the session does not have mid 0")


def _foreign_rstack(bench: EndUnderTest) -> None:
    bench.prove()
    bench.peer.write(raw_frame(FrameKind.RSTACK, payload=b"\x66" * 16))
    mark = bench.peer.say_bytes(strange())
    want_strange_error(bench, mark)


def _silence(bench: EndUnderTest) -> None:
    """We fall silent: RST within 2 s, then every 500 ms until RSTACK, then a session again."""
    bench.prove()
    bench.peer.listen(100)
    peer = bench.peer
    peer.auto_ping = peer.auto_pong = peer.auto_ack = peer.auto_rstack = False
    begun_ms, mark, old_tag = peer.now_ms, peer.mark, peer.peer_tag
    first = peer.wait(_is_rst, SILENCE_MS + SLACK_MS, mark)
    if first is None:
        raise Broken(f"no RST within {SILENCE_MS + SLACK_MS} ms of silence")
    if first.at_ms - begun_ms < SILENCE_MS - SLACK_MS:
        raise Broken(f"RST after {first.at_ms - begun_ms} ms of silence already")
    if first.frame.payload[0] == old_tag[0]:
        raise Broken("RST with a tag that begins with the same byte as the last one")
    times = [first.at_ms]
    for _ in range(2):
        again = peer.wait(_is_rst, 500 + SLACK_MS)
        if again is None or again.frame.payload != first.frame.payload:
            raise Broken("RST does not come again with the same tag until RSTACK")
        times.append(again.at_ms)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    if not all(400 <= gap <= 750 for gap in gaps):
        raise Broken(f"RST comes again after {gaps} ms")


def _heartbeat(bench: EndUnderTest) -> None:
    """An end that has other things to say need not PING: it is only never silent for long."""
    bench.prove()
    peer = bench.peer
    peer.listen(200)
    peer.auto_ping = False  # our PINGs would be answered, and an end that answers need not send its own
    mark, begun_ms = peer.mark, peer.now_ms
    peer.listen(3 * 500 + SLACK_MS)
    times = [begun_ms, *(h.at_ms for h in peer.heard[mark:]), peer.now_ms]
    longest = max(later - earlier for earlier, later in pairwise(times))
    if longest > 500 + SLACK_MS:
        raise Broken(f"it said nothing for {longest} ms")


# ---- envelope


def _unreadable(why: str, code: str, data: bytes) -> ConformanceRule:
    def check(bench: EndUnderTest) -> None:
        bench.prove()
        mark = bench.peer.say_bytes(data)
        bench.want_error(mark, codes, about=ABOUT_MESSAGE)
        bench.barrier()

    codes = (code, *ALSO_SAID.get(why, ()))
    words = why.replace(" ", "_").replace("^", "").replace("-", "minus")
    sentence = {
        "unsupported_type": "Unknown type: error unsupported_type, the link stays up",
        "unsupported_version": "another v: unsupported_version",
    }.get(code, "An unreadable message is ACKed and answered with error malformed")
    section = ENVELOPE_SECTION if code != "malformed" else "§1 Reliable, ordered messages"
    return ConformanceRule(
        f"envelope.{words}", section, sentence, f"error {' or '.join(codes)} to: {why}", check
    )


def _error_unanswered(bench: EndUnderTest) -> None:
    bench.prove()
    bench.peer.listen(100)
    mark = bench.peer.say("error", {"code": "malformed", "about": "message"})
    bench.peer.say("error", {"code": 7})
    for text in UNREADABLE_ERRORS:
        bench.peer.say_bytes(text)
    bench.want_quiet(("error",), mark)
    bench.barrier()


def _wrong_way(bench: EndUnderTest) -> None:
    """What only the other end itself sends is not served: refused, or let go, and the session goes on."""
    bench.prove()
    bench.peer.listen(QUIET_MS)
    ours = bench.setup.role is Role.VALIDATOR
    type_, body = (
        ("resolve", {"verdict_refs": ["0" * 32]})
        if ours
        else ("cancel", {"txn_id": bench.peer.random(16).hex()})
    )
    mark = bench.peer.say(type_, body)
    bench.want_quiet(("unknown", "decision", "verdict"), mark)
    for heard in bench.peer.heard[mark:]:
        about = heard.body.get("about") in (type_, ABOUT_MESSAGE)
        if (
            heard.type == "error"
            and about
            and heard.body.get("code") not in ("unsupported_type", "malformed")
        ):
            raise Broken(f"error {said(heard.body)}")
    want_strange_error(bench, bench.peer.say_bytes(strange()))


def _canonical(bench: EndUnderTest) -> None:
    if bench.peer.not_canonical:
        raise Broken(f"not so: {', '.join(sorted(set(bench.peer.not_canonical)))}")


# ---- handshake


def _hello(bench: EndUnderTest) -> None:
    bench.greet()
    heard = next(h for h in bench.peer.heard if h.type == "hello")
    body, setup = heard.body, bench.setup
    wanted = {"role": setup.role.peer.value, "gate_id": setup.gate_id, "kid": setup.peer_key.kid}
    if setup.peer_id is not None:
        wanted["id"] = setup.peer_id
    wrong = [name for name, value in wanted.items() if body.get(name) != value]
    if wrong:
        raise Broken(f"hello with {said(body)}")
    read_body(heard, Hello.from_obj)


def _prove(bench: EndUnderTest) -> None:
    bench.prove()  # judges the proof


def _refused(break_it: Callable[[EndUnderTest], None]) -> Callable[[EndUnderTest], None]:
    """A check that after `break_it` the end serves nothing, says `error unpaired` and resets."""

    def check(bench: EndUnderTest) -> None:
        bench.greet()
        break_it(bench)
        bench.want_error(0, "unpaired")
        # RST also comes before the session, from an end that has been alone on its port.
        mark, said_ms = next((i, h.at_ms) for i, h in enumerate(bench.peer.heard) if h.type == "error")
        bench.peer.push(_request_bytes(bench))
        bench.want_quiet(("status", "ready", "request", "verdict"), 0, 500)
        reset = bench.peer.wait(_is_rst, 1_000 + SLACK_MS, mark)
        if reset is None:
            raise Broken(f"error unpaired, but no RST within {1_000 + SLACK_MS} ms")
        if reset.at_ms - said_ms < 1_000 - SLACK_MS // 2:
            raise Broken(f"RST {reset.at_ms - said_ms} ms after error unpaired already")

    return check


def _bad_hello(**changes: Any) -> Callable[[EndUnderTest], None]:
    """An end may judge the hello when it comes, or together with the proof that follows it."""

    def say(bench: EndUnderTest) -> None:
        bench.peer.say("hello", bench.own_hello(**changes))
        if bench.error(0, QUIET_MS) is None:
            bench.peer.push(prove_bytes(bench))

    def prove_bytes(bench: EndUnderTest) -> bytes:
        gate = {name: value for name, value in changes.items() if name in ("gate_id", "role")}
        return canonical_bytes({"v": 1, "type": "prove", "body": bench.own_proof(**gate)})

    return say


def _revoked_key(bench: EndUnderTest) -> None:
    """A key that was pinned and is revoked: it proves itself, and that counts for nothing."""
    key = bench.setup.revoked
    if key is None:
        raise NotTried("give --revoked-key-file: a key of ours that was pinned there and has been revoked")

    def say(bench: EndUnderTest) -> None:
        bench.peer.say("hello", bench.own_hello(kid=key.kid))
        if bench.error(0, QUIET_MS) is None:
            bench.peer.push(canonical_bytes({"v": 1, "type": "prove", "body": bench.own_proof(key)}))

    _refused(say)(bench)


def _bad_proof(stranger: bool = False, **changes: Any) -> Callable[[EndUnderTest], None]:
    def say(bench: EndUnderTest) -> None:
        bench.peer.say("hello", bench.own_hello())
        bench.peer.say("prove", bench.own_proof(bench.stranger if stranger else None, **changes))

    return say


def _stranger_with_pinned_kid(bench: EndUnderTest) -> None:
    bench.peer.say("hello", bench.own_hello())
    wrapper = bench.own_proof(bench.stranger)
    bench.peer.say("prove", wrapper | {"signer_kid": bench.setup.key.kid})


def _malleable(bench: EndUnderTest) -> None:
    """The proof with S + L for S, which a reader that is not strict reduces to S."""
    bench.peer.say("hello", bench.own_hello())
    wrapper = bench.own_proof()
    signature = b64_decode(wrapper["sig_b64"])
    s = int.from_bytes(signature[32:], "little") + GROUP_ORDER
    bench.peer.say("prove", wrapper | {"sig_b64": b64_encode(signature[:32] + s.to_bytes(32, "little"))})


def _other_role(bench: EndUnderTest) -> None:
    _bad_proof(role=bench.setup.role.peer.value)(bench)


def _reflection(bench: EndUnderTest) -> None:
    """Its own hello and its own words, given back to it."""
    bench.peer.say("hello", bench.hello)
    if bench.error(0, QUIET_MS) is None:
        bench.peer.push(canonical_bytes({"v": 1, "type": "prove", "body": bench.own_proof()}))


def _replayed_proof(bench: EndUnderTest) -> None:
    """The proof of an earlier session, over an earlier nonce of the other end."""
    bench.peer.say("hello", bench.own_hello())
    old = bench.own_proof()
    own_nonce = bench.own_nonce_b64
    bench.greet()
    bench.own_nonce_b64 = own_nonce
    bench.peer.say("hello", bench.own_hello() | {"nonce_b64": own_nonce})
    bench.peer.say("prove", old)


def _early(bench: EndUnderTest) -> None:
    bench.greet()
    mark = bench.peer.mark
    bench.peer.say_bytes(_request_bytes(bench))
    bench.peer.say_bytes(strange())
    bench.want_quiet(("status", "ready", "request", "verdict", "guide", "decision"), mark)
    for heard in bench.peer.heard[mark:]:
        if heard.type == "error" and heard.body.get("code") != "unpaired":
            raise Broken(f"error {said(heard.body)}")


def _second_hello(bench: EndUnderTest) -> None:
    bench.greet()
    bench.peer.say("hello", bench.own_hello())
    nonce = bench.own_nonce_b64
    bench.peer.say("hello", bench.own_hello())
    bench.own_nonce_b64 = nonce
    bench.peer.say("prove", bench.own_proof())
    heard = bench.peer.message("prove", PROOF_MS, 0)
    if heard is None:
        raise Broken("no prove to the first hello")
    try:
        bench.judge_proof(heard.body)
    except (FormatError, SignatureError) as error:
        raise Broken(f"its prove does not answer the first hello: {error}") from None
    _want_served(bench)


def _want_served(bench: EndUnderTest) -> None:
    """After our proof: either may wait for what the other says first, as a validator for a status."""
    bench.introduce()
    said_after = "ready" if bench.setup.role is Role.DEVICE else "status"
    if bench.peer.message(said_after, PROOF_MS, 0) is None:
        raise Broken(f"no {said_after} after both proofs")


def _later_members(bench: EndUnderTest) -> None:
    bench.greet()
    bench.peer.say("hello", bench.own_hello(of_a_later_version=[1]))
    bench.peer.say("prove", bench.own_proof(of_a_later_version={"a": 1}))
    _want_served(bench)


def _handshake_timeout(bench: EndUnderTest) -> None:
    bench.greet()
    begun_ms = bench.peer.now_ms
    reset = bench.peer.wait(_is_rst, 5_000 + SLACK_MS)
    if reset is None:
        raise Broken(f"no RST within {5_000 + SLACK_MS} ms of a hello that is not answered")
    if reset.at_ms - begun_ms < 5_000 - SLACK_MS:
        raise Broken(
            f"RST after {reset.at_ms - begun_ms} ms already: a slow machine gets no time for its proof"
        )


def _request_bytes(bench: EndUnderTest) -> bytes:
    """Something of a passage that must not be served before the proofs, from whichever end we play."""
    if bench.setup.role is Role.DEVICE:
        return canonical_bytes({"v": 1, "type": "status", "body": bench.own_status()})
    request = Request(
        txn_id=bench.peer.random(16).hex(),
        gate_id=bench.setup.gate_id,
        dbd_id=bench.setup.own_id,
        nonce_b64="AAAAAAAAAAAAAAAAAAAAAA==",
        issued_at_ms=bench.wall_ms(),
        ttl_ms=1_000,
    )
    wrapper = sign_object(Kind.REQUEST, request.to_obj(), bench.setup.key)
    return canonical_bytes({"v": 1, "type": "request", "body": wrapper})


_UNPAIRED = "error unpaired, nothing served for a second, then RST"
_CHECKS = "Each checks: a key PINNED for that peer and valid now …, {}. On any failure: error unpaired"


def _refusal(id_: str, what: str, expected: str, break_it: Callable[[EndUnderTest], None]) -> ConformanceRule:
    return ConformanceRule(
        f"handshake.{id_}",
        HANDSHAKE_SECTION,
        _CHECKS.format(what),
        f"{expected}: {_UNPAIRED}",
        _refused(break_it),
    )


SESSION_RULES = (
    ConformanceRule(
        "session.rst_current",
        SESSION_SECTION,
        "On an RST with the peer's current tag: the same RSTACK again, nothing is cleared.",
        "the same RSTACK, and the proven session goes on",
        _rst_current,
    ),
    ConformanceRule(
        "session.rst_new",
        SESSION_SECTION,
        "On an RST whose tag is not the peer's current one: clear everything …; answer RSTACK.",
        "a tag with another first byte, mid 0, a hello with a fresh nonce",
        _rst_new,
    ),
    ConformanceRule(
        "session.foreign_rstack",
        SESSION_SECTION,
        "On RSTACK with one's own outstanding tag: note the peer's.",
        "an RSTACK with other tags changes nothing",
        _foreign_rstack,
    ),
    ConformanceRule(
        "session.heartbeat",
        SESSION_SECTION,
        "an end that has sent nothing for 500 ms sends PING",
        "PING",
        _heartbeat,
    ),
    ConformanceRule(
        "session.silence",
        SESSION_SECTION,
        "an end that has received no valid frame for 2 s declares the link down … RST every 500 ms",
        "RST with a fresh tag after 2 s, and again every 500 ms",
        _silence,
    ),
)
ENVELOPE_RULES = (
    *(_unreadable(*item) for item in UNREADABLE_MESSAGES),
    ConformanceRule(
        "envelope.error_unanswered",
        "§4 Error codes",
        "an error is never answered",
        "silence",
        _error_unanswered,
    ),
    ConformanceRule(
        "envelope.wrong_way",
        ENVELOPE_SECTION,
        "Unknown type: error unsupported_type, the link stays up",
        "a type that only the end under test sends is not served; the session goes on",
        _wrong_way,
    ),
)
HANDSHAKE_RULES = (
    ConformanceRule(
        "handshake.hello",
        HANDSHAKE_SECTION,
        "Each end sends hello {role, id, gate_id, kid, nonce_b64 (32 random bytes)}.",
        "its role, the gate, and the kid of the pinned key",
        _hello,
    ),
    ConformanceRule(
        "handshake.prove",
        HANDSHAKE_SECTION,
        "Each answers the other's with prove {hello_obj …}",
        "role, id, peer_id, gate_id, both nonces, and a signature by the pinned key",
        _prove,
    ),
    _refusal("unknown_key", "chosen by hello.kid", "a kid that is not pinned", _bad_hello(kid="0" * 32)),
    _refusal("wrong_gate", "gate_id", "another gate_id", _bad_hello(gate_id="another-gate")),
    _refusal("reflection", "role", "its own hello given back to it", _reflection),
    _refusal("wrong_key", "signature", "a proof by another key", _bad_proof(stranger=True)),
    _refusal(
        "wrong_signature",
        "signature",
        "another key's signature under the pinned kid",
        _stranger_with_pinned_kid,
    ),
    _refusal("malleable", "signature (strict everywhere: S < L)", "a proof with S + L", _malleable),
    _refusal("wrong_role", "role", "the other role in the proof", _other_role),
    _refusal("wrong_peer_id", "peer_id", "a proof for another peer", _bad_proof(peer_id="somebody-else")),
    _refusal("wrong_id", "id", "another id in the proof than in the hello", _bad_proof(id="somebody-else")),
    _refusal("wrong_proof_gate", "gate_id", "another gate in the proof", _bad_proof(gate_id="another-gate")),
    _refusal(
        "wrong_nonce",
        "both nonces",
        "another nonce in the proof than in the hello",
        _bad_proof(own_nonce_b64=b64_encode(bytes(32))),
    ),
    _refusal("replayed_proof", "both nonces", "the proof of an earlier session", _replayed_proof),
    ConformanceRule(
        "handshake.early",
        HANDSHAKE_SECTION,
        "Before both proofs hold only hello, prove and error are served, anything else is dropped …",
        "nothing, or error unpaired, also to an unknown type",
        _early,
    ),
    ConformanceRule(
        "handshake.second_hello",
        HANDSHAKE_SECTION,
        "a second hello in a session is ignored",
        "a prove over the first hello's nonce, and the session is served",
        _second_hello,
    ),
    ConformanceRule(
        "handshake.later_members",
        ENVELOPE_SECTION,
        "Unknown members of a body are ignored; inside a signed object they stay under its signature",
        "hello and prove with a member of a later version are taken, and the session is served",
        _later_members,
    ),
    ConformanceRule(
        "handshake.timeout",
        SESSION_SECTION,
        "A handshake not finished in 5 s is reset.",
        "RST",
        _handshake_timeout,
    ),
)
KEY_RULE = ConformanceRule(
    "key.revoked",
    HANDSHAKE_SECTION,
    "a kid in revoked_kids never counts again",
    f"the proof of a revoked key: {_UNPAIRED}",
    _revoked_key,
)
CANONICAL_RULE = ConformanceRule(
    "envelope.canonical",
    ENVELOPE_SECTION,
    'A message is one JSON object {"v":1,"type":…,"body":…}, SENT as its RFC 8785 bytes',
    "every message heard in this run is in its RFC 8785 form",
    _canonical,
)
