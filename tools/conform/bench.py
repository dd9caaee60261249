"""What every rule stands on: a peer, two identities, and the steps that lead to a proven session."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from link1.canonical import JsonObject, b64_encode
from link1.envelope import Role
from link1.errors import FormatError, SignatureError
from link1.frames import FrameKind
from link1.keys import PublicKey, SigningKey
from link1.objects import DeviceStatus, GalleryMark, MailMarks
from link1.signed import Kind, sign_object, verify_object
from tools.conform.counters import Counters
from tools.conform.peer import ANSWER_MS, Broken, Heard, Peer, Skipped

PROOF_MS = 3_000
"""A machine that signs with a small processor is given so long for its proof."""
QUIET_MS = 300
"""How long silence is listened to before it counts as no answer."""


class Hand(Protocol):
    """Where hands come from when a device is tested: a person, a machine, or a picture before a camera."""

    @property
    def settles_ms(self) -> int:
        """How long after `show` a hand is surely there."""
        ...

    def show(self) -> None:
        """Let a palm appear and be held; returns at once."""
        ...

    def away(self) -> None:
        """Take it away; returns when it is gone."""
        ...


@dataclass(frozen=True, slots=True)
class Setup:
    """Who we play (`role`), with which key, and what is known of the other end.

    `peer_id` None takes the id of its hello. `hand` None skips what needs a hand. `wait_ms`: how long a
    person, or a validator's next request, is waited for.
    """

    role: Role
    own_id: str
    gate_id: str
    key: SigningKey
    peer_key: PublicKey
    peer_id: str | None = None
    passage_sensor: bool = False
    hand: Hand | None = None
    wait_ms: int = 30_000


@dataclass
class Bench:
    """One end under test. Rules run one after the other on the same bench, each in sessions of its own."""

    setup: Setup
    peer: Peer
    counters: Counters
    wall_ms: Callable[[], int]
    stranger: SigningKey
    own_nonce_b64: str = ""
    hello: JsonObject = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    """What one rule found out and another builds upon, so that nobody shows a hand twice for it."""

    # ---- sessions

    def greet(self) -> JsonObject:
        """A new session, up to the other end's hello, to which we say nothing yet."""
        self.peer.open()
        heard = self.peer.message("hello", PROOF_MS, 0)
        if heard is None:
            raise Broken(f"no hello within {PROOF_MS} ms of the session")
        self.hello = heard.body
        return heard.body

    def own_hello(self, **changes: Any) -> JsonObject:
        self.own_nonce_b64 = b64_encode(self.peer.random(32))
        me = self.setup
        return {
            "role": me.role.value,
            "id": me.own_id,
            "gate_id": me.gate_id,
            "kid": me.key.kid,
            "nonce_b64": self.own_nonce_b64,
        } | changes

    def own_proof(self, key: SigningKey | None = None, **changes: Any) -> JsonObject:
        obj: JsonObject = {
            "v": 1,
            "role": self.setup.role.value,
            "id": self.setup.own_id,
            "gate_id": self.setup.gate_id,
            "peer_id": self.hello.get("id"),
            "own_nonce_b64": self.own_nonce_b64,
            "peer_nonce_b64": self.hello.get("nonce_b64"),
        }
        return sign_object(Kind.HELLO, obj | changes, key or self.setup.key)

    def prove(self) -> int:
        """A new proven session: both hellos, both proofs, then `status` or `ready`. Returns the mark of
        what was heard before our proof."""
        self.greet()
        self.peer.say("hello", self.own_hello())
        mark = self.peer.say("prove", self.own_proof())
        heard = self.peer.message("prove", PROOF_MS, 0)
        if heard is None:
            raise Broken(f"no prove within {PROOF_MS} ms of our hello")
        try:
            self.judge_proof(heard.body)
        except (FormatError, SignatureError) as error:
            raise Broken(f"its prove does not hold: {error}") from None
        if self.setup.role is Role.DEVICE:
            self.peer.say("status", self.own_status())
        else:
            self.peer.say("ready", {"passage_sensor": self.setup.passage_sensor})
        return mark

    def judge_proof(self, wrapper: JsonObject) -> None:
        """Raises SignatureError or FormatError unless this is the other end's proof of this session."""
        obj = verify_object(Kind.HELLO, wrapper, self.setup.peer_key)
        wanted: JsonObject = {
            "v": 1,
            "role": self.setup.role.peer.value,
            "id": self.hello.get("id"),
            "gate_id": self.setup.gate_id,
            "peer_id": self.setup.own_id,
            "own_nonce_b64": self.hello.get("nonce_b64"),
            "peer_nonce_b64": self.own_nonce_b64,
        }
        wrong = [name for name, value in wanted.items() if obj.get(name) != value]
        if wrong:
            raise FormatError(f"wrong members: {', '.join(wrong)}")

    def own_status(self) -> JsonObject:
        """What we say about ourselves where we play the device."""
        status = DeviceStatus(
            device_id=self.setup.own_id,
            nonce_b64=str(self.hello.get("nonce_b64")),
            serving=True,
            health=(),
            app_pkg="palm-access-device",
            app_version="conform",
            model_id="conform",
            thr_id="conform",
            gallery=GALLERY,
            last=self.counters.last,
            mail=MailMarks(0, 0, 0),
            at_ms=self.wall_ms(),
        )
        return sign_object(Kind.STATUS, status.to_obj(), self.setup.key)

    # ---- looking

    def barrier(self) -> int:
        """Everything sent before has been dealt with: a PING was answered behind it. Returns the mark of
        what was heard before."""
        mark = self.peer.mark
        self.peer.frame(FrameKind.PING)
        if self.peer.wait(lambda h: h.frame.kind is FrameKind.PONG, ANSWER_MS, mark) is None:
            raise Broken(f"a PING in the session is not answered within {ANSWER_MS} ms")
        return mark

    def error(self, since: int, within_ms: int = ANSWER_MS) -> Heard | None:
        """The first error from `since` on."""
        return self.peer.message("error", within_ms, since)

    def want_error(self, since: int, code: str, within_ms: int = ANSWER_MS, **members: Any) -> JsonObject:
        """An error with this code and these members; raises Broken for another or none."""
        heard = self.error(since, within_ms)
        if heard is None:
            raise Broken(f"no error within {within_ms} ms")
        found = {name: heard.body.get(name) for name in members}
        if heard.body.get("code") != code or found != members:
            raise Broken(f"error {said(heard.body)}")
        return heard.body

    def want_quiet(self, types: tuple[str, ...], since: int, for_ms: int = QUIET_MS) -> None:
        """None of these messages comes."""
        heard = self.peer.wait(lambda h: h.type in types, for_ms, since)
        if heard is not None:
            raise Broken(f"{heard.type} {said(heard.body)}")

    def need_hand(self) -> Hand:
        if self.setup.hand is None:
            raise Skipped("needs a hand; run again with --hand or --hand-source")
        return self.setup.hand


GALLERY = GalleryMark("conform", 1, 1, "0" * 16)


def said(body: JsonObject) -> str:
    """The plain members of a body, for a report."""
    return ", ".join(f"{name}={value}" for name, value in body.items() if isinstance(value, str | int))
