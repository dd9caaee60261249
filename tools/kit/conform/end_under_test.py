"""The end under test as every rule sees it: a peer, two identities, and the steps to a proven session."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from link1.canonical import JsonObject, b64_encode
from link1.envelope import ABOUT_MESSAGE, Role
from link1.errors import FormatError, SignatureError, TransportError
from link1.keys import PublicKey, SigningKey
from link1.members import version_1
from link1.objects import AppVersion, DeviceStatus, GalleryMark, MailMarks
from link1.signed import Kind, sign_object, verify_object
from tools.kit.conform.counters import Counters
from tools.kit.conform.peer import ANSWER_MS, Broken, ConformancePeer, Heard, NotTried

T = TypeVar("T")

PROOF_MS = 3_000
"""A machine that signs with a small processor is given so long for its proof."""
HOOK_POLL_MS = 50
SETTLE_MS = 100
"""What a frame calls for comes behind the PONG of a PING that was sent after it: this much later at most."""
QUIET_MS = 300
"""How long silence is listened to before it counts as no answer."""


NO_MAIL = MailMarks(0, 0, 0)


class HandSource(Protocol):
    """Where hands come from when a device is tested: a person, a machine, or a picture before a camera."""

    @property
    def tireless(self) -> bool:
        """True for what may be asked for dozens of hands."""
        ...

    @property
    def settles_ms(self) -> int:
        """How long after `show` a hand is surely there."""
        ...

    def show(self) -> None:
        """Let a palm appear and be held; returns at once."""
        ...

    def away(self) -> Callable[[], bool]:
        """Begin to take it away; what is returned answers True once it is gone."""
        ...


class Deed(StrEnum):
    """What only its owner can do to the end under test; the words that a hook program is called with."""

    RESTART = "restart"
    CLOCK_BACK = "clock-back"
    CLOCK_AHEAD = "clock-ahead"
    CLOCK_RIGHT = "clock-right"
    CANCEL = "cancel"
    REPLACE = "replace"
    REVOKE = "revoke"
    ADD_AGAIN = "add-again"


DEEDS = {
    Deed.RESTART: "restart the end under test",
    Deed.CLOCK_BACK: "set its clock ten years back",
    Deed.CLOCK_AHEAD: "set its clock ten years ahead",
    Deed.CLOCK_RIGHT: "set its clock right",
    Deed.CANCEL: "let the validator cancel its open request",
    Deed.REPLACE: "let the validator ask again while its request is open",
    Deed.REVOKE: "revoke the key that we play with, as the service does",
    Deed.ADD_AGAIN: "add the revoked key to the pinned ones again",
}
"""What each deed asks of a person."""


class Hook(Protocol):
    """Does to the end under test what the cable cannot; a person or a program."""

    def begin(self, deed: Deed) -> Callable[[], bool | None]:
        """Begin; what is returned answers None until it is done, then True, or False if it cannot be done
        here."""
        ...


@dataclass(frozen=True, slots=True)
class Setup:
    """Who we play (`role`), with which key, and what is known of the other end.

    `peer_id` None takes the id of its hello. `hand` None leaves untried what needs a hand, `hook` None what
    needs a `Deed`, `revoked` None what needs a key of ours that the other end knows to be revoked.
    `wait_ms`: how long a person, a restart, or a validator's next request is waited for.
    """

    role: Role
    own_id: str
    gate_id: str
    key: SigningKey
    peer_key: PublicKey
    peer_id: str | None = None
    passage_sensor: bool = False
    hand: HandSource | None = None
    hook: Hook | None = None
    revoked: SigningKey | None = None
    wait_ms: int = 30_000


@dataclass
class EndUnderTest:
    """One end under test. Rules run one after the other on the same bench, each in its own sessions."""

    setup: Setup
    peer: ConformancePeer
    counters: Counters
    wall_ms: Callable[[], int]
    stranger: SigningKey
    own_nonce_b64: str = ""
    hello: JsonObject = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    """What one rule found and a later rule needs, so that no hand is shown twice for it."""
    txn_ids: set[str] = field(default_factory=set)
    """Of every request of this run whose signature holds: the only ones that an error may name."""

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

    def prove(self, mail: MailMarks = NO_MAIL, at_ms: int | None = None) -> int:
        """A new proven session: both hellos, both proofs, then `status` (which says `mail`, `at_ms`) or
        `ready`. Returns the mark of what was heard before our proof."""
        self.greet()
        self.peer.say("hello", self.own_hello())
        mark = self.peer.say("prove", self.own_proof())
        heard = self.peer.message("prove", PROOF_MS, 0)
        if heard is None:
            refused = self.error(0, 0)
            why = f"; it said error {said(refused.body)}; {PAIRING}" if refused else ""
            raise Broken(f"no prove within {PROOF_MS} ms of our hello{why}")
        try:
            self.judge_proof(heard.body)
        except (FormatError, SignatureError) as error:
            raise Broken(f"its prove does not hold: {error}") from None
        self.introduce(mail, at_ms)
        return mark

    def introduce(self, mail: MailMarks = NO_MAIL, at_ms: int | None = None) -> None:
        """What follows our proof: `status`, or `ready`."""
        if self.setup.role is Role.DEVICE:
            self.peer.say("status", self.own_status(mail, at_ms))
        else:
            self.peer.say("ready", {"passage_sensor": self.setup.passage_sensor})

    def judge_proof(self, wrapper: JsonObject) -> None:
        """Raises SignatureError or FormatError unless this is the other end's proof of this session."""
        obj = verify_object(Kind.HELLO, wrapper, self.setup.peer_key)
        version_1(obj)
        wanted: JsonObject = {
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

    def own_status(self, mail: MailMarks = NO_MAIL, at_ms: int | None = None) -> JsonObject:
        """What we say about ourselves where we play the device."""
        status = DeviceStatus(
            device_id=self.setup.own_id,
            nonce_b64=str(self.hello.get("nonce_b64")),
            serving=True,
            health=(),
            app=AppVersion("palm-access-device", "conform"),
            model_id="conform",
            thr_id="conform",
            gallery=GALLERY,
            last=self.counters.last,
            mail=mail,
            at_ms=self.wall_ms() if at_ms is None else at_ms,
        )
        return sign_object(Kind.STATUS, status.to_obj(), self.setup.key)

    def first_status(self) -> DeviceStatus:
        """A new proven session, and what the device says first in it."""
        heard = self.peer.message("status", ANSWER_MS, self.prove())
        if heard is None:
            raise Broken(f"no status within {ANSWER_MS} ms of the proofs")
        return self.verified(Kind.STATUS, heard.body, DeviceStatus.from_obj)

    # ---- looking

    def verified(self, kind: Kind, wrapper: JsonObject, read: Callable[[JsonObject], T]) -> T:
        """What the other end signed. Raises Broken where the signature or a member does not hold."""
        try:
            return read(verify_object(kind, wrapper, self.setup.peer_key))
        except (FormatError, SignatureError) as error:
            raise Broken(f"{name_of(kind)}: {error}") from None

    def barrier(self) -> int:
        """Frames sent before have been looked at, and what they call for has had time to come: a PING was
        answered behind them. Returns the mark of what was heard before."""
        mark = self.peer.mark
        self.peer.ping()
        self.peer.listen(SETTLE_MS)
        return mark

    def error(self, since: int, within_ms: int = ANSWER_MS) -> Heard | None:
        """The first error from `since` on."""
        return self.peer.message("error", within_ms, since)

    def want_error(
        self,
        since: int,
        codes: str | tuple[str, ...],
        within_ms: int = ANSWER_MS,
        *,
        about: str | None = None,
        txn_id: str | None = None,
    ) -> JsonObject:
        """An error with one of these codes; its body. Raises Broken with those that came instead.

        `about` is the type that it answers, for which `message` is as good; it must carry `txn_id`.
        Errors about other things may come before it: messages cross.
        """
        taken = (codes,) if isinstance(codes, str) else codes

        def wanted(heard: Heard) -> bool:
            body = heard.body
            return (
                heard.type == "error"
                and body.get("code") in taken
                and (about is None or body.get("about") in (about, ABOUT_MESSAGE))
                and (txn_id is None or body.get("txn_id") == txn_id)
            )

        heard = self.peer.wait(wanted, within_ms, since)
        if heard is not None:
            return heard.body
        others = [f"error {said(h.body)}" for h in self.peer.heard[since:] if h.type == "error"]
        raise Broken("; ".join(others) or f"no error within {within_ms} ms")

    def want_quiet(self, types: tuple[str, ...], since: int, for_ms: int = QUIET_MS) -> None:
        """None of these messages comes."""
        heard = self.peer.wait(lambda h: h.type in types, for_ms, since)
        if heard is not None:
            raise Broken(f"{heard.type} {said(heard.body)}")

    def want_no_error(self, txn_id: str, since: int) -> None:
        """No error comes that could be about this request; the end of another one may cross it."""
        heard = self.peer.wait(
            lambda h: h.type == "error" and h.body.get("txn_id") in (None, txn_id), QUIET_MS, since
        )
        if heard is not None:
            raise Broken(f"error {said(heard.body)}")

    def need_hand(self) -> HandSource:
        if self.setup.hand is None:
            raise NotTried("needs a hand; run again with --hand or --hand-source")
        return self.setup.hand

    def take_hand_away(self) -> None:
        """The session is kept alive while a machine takes its time."""
        gone = self.need_hand().away()
        while not gone():
            self.peer.listen(HOOK_POLL_MS)

    def do(self, deed: Deed) -> None:
        """Have something done to the end under test. Raises NotTried where this is not possible."""
        finished = None if self.setup.hook is None else self.setup.hook.begin(deed)
        done = None if finished else False
        while finished is not None and (done := finished()) is None:
            try:
                self.peer.listen(HOOK_POLL_MS)
            except TransportError:
                time.sleep(HOOK_POLL_MS / 1000)  # a USB port goes away with the end behind it
        if not done:
            raise NotTried(f"{DEEDS[deed]}: run again with --hook PROGRAM that does it at `{deed}`, or --ask")

    def restart(self) -> None:
        """Restart the end under test; ends in a session without a handshake."""
        self.do(Deed.RESTART)
        self.peer.line.reopen(self.setup.wait_ms)
        self.peer.open(within_ms=self.setup.wait_ms)


PAIRING = "has it pinned this key, and are the ids those that it knows?"
"""What a person looks at first where every proof fails."""
GALLERY = GalleryMark("conform", 1, 1, "0" * 16)


def read_body(heard: Heard, read: Callable[[JsonObject], T]) -> T:
    """What a message that is not signed says. Raises Broken where a member does not hold."""
    try:
        return read(heard.body)
    except FormatError as error:
        raise Broken(f"{heard.type}: {error}") from None


def name_of(kind: Kind) -> str:
    """The message that carries it."""
    return kind.member.removesuffix("_obj")


def said(body: JsonObject) -> str:
    """The plain members of a body, for a report."""
    return ", ".join(f"{name}={value}" for name, value in body.items() if isinstance(value, str | int))
