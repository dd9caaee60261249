"""The handshake: both ends prove who they are (LINK/1 §3).

Two rules:
1. Nothing but `hello`, `prove` and `error` is served before both proofs hold.
2. A key counts only when it is PINNED for the peer and valid now; what the peer says about itself only
   chooses among pinned keys, and is under its signature together with both nonces.

`HANDSHAKE_TABLE` is the whole machine; the picture in docs/reference/LINK1.md is made from it.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from link1.bodies import NONCE_BYTES, Hello, HelloNonce
from link1.canonical import JsonObject, b64_encode
from link1.envelope import Role
from link1.errors import FormatError, SignatureError
from link1.keys import PublicKey, SigningKey
from link1.link import RandomSource
from link1.objects import Name, SignedObject
from link1.signed import Kind, sign_object, verify_object

HANDSHAKE_MS = 5_000
"""A handshake not finished by then is reset."""
REFUSAL_MS = 1_000
"""How long nothing is served after a failed proof, so that guessing is slow."""

PeerKeys = Callable[[str, int | None], PublicKey | None]
"""(kid, at_ms) → the key pinned for the peer under that kid and valid at epoch `at_ms`; None means now."""


@dataclass(frozen=True, slots=True)
class OncePinned:
    """A key of the peer's that is or was pinned; a revoked one never counts again."""

    public: PublicKey
    revoked: bool


class HandshakeState(Enum):
    NO_SESSION = "no session"
    GREETED = "hello sent"
    PROVING = "proof sent"
    PROVEN = "proven"
    REFUSED = "refused"


class HandshakeInput(Enum):
    SESSION_UP = "session begins"
    SESSION_DOWN = "session ends"
    HELLO_GOOD = "hello, acceptable"
    HELLO_BAD = "hello, not acceptable"
    PROOF_GOOD = "prove, good"
    PROOF_BAD = "prove, bad"
    TIMEOUT = "time is over"


class HandshakeAction(Enum):
    SAY_HELLO = "hello with a fresh nonce"
    SAY_PROVE = "prove"
    SAY_UNPAIRED = "error unpaired"
    ANNOUNCE = "serve"
    RESET = "RST"


_S, _I, _A = HandshakeState, HandshakeInput, HandshakeAction

HANDSHAKE_TABLE: dict[
    tuple[HandshakeState, HandshakeInput], tuple[HandshakeState, tuple[HandshakeAction, ...]]
] = {
    (_S.NO_SESSION, _I.SESSION_UP): (_S.GREETED, (_A.SAY_HELLO,)),
    (_S.GREETED, _I.HELLO_GOOD): (_S.PROVING, (_A.SAY_PROVE,)),
    (_S.GREETED, _I.HELLO_BAD): (_S.REFUSED, (_A.SAY_UNPAIRED,)),
    (_S.GREETED, _I.PROOF_GOOD): (_S.REFUSED, (_A.SAY_UNPAIRED,)),
    (_S.GREETED, _I.PROOF_BAD): (_S.REFUSED, (_A.SAY_UNPAIRED,)),
    (_S.GREETED, _I.TIMEOUT): (_S.NO_SESSION, (_A.RESET,)),
    (_S.GREETED, _I.SESSION_DOWN): (_S.NO_SESSION, ()),
    (_S.PROVING, _I.PROOF_GOOD): (_S.PROVEN, (_A.ANNOUNCE,)),
    (_S.PROVING, _I.PROOF_BAD): (_S.REFUSED, (_A.SAY_UNPAIRED,)),
    (_S.PROVING, _I.TIMEOUT): (_S.NO_SESSION, (_A.RESET,)),
    (_S.PROVING, _I.SESSION_DOWN): (_S.NO_SESSION, ()),
    (_S.PROVEN, _I.SESSION_DOWN): (_S.NO_SESSION, ()),
    (_S.REFUSED, _I.TIMEOUT): (_S.NO_SESSION, (_A.RESET,)),
    (_S.REFUSED, _I.SESSION_DOWN): (_S.NO_SESSION, ()),
}
"""What is not in the table changes nothing: a second hello, a proof repeated."""

STATE_LASTS_MS = {_S.GREETED: HANDSHAKE_MS, _S.PROVING: None, _S.REFUSED: REFUSAL_MS}
"""How long a state may last from its beginning; the time of `proof sent` runs on from the hello."""


class HelloProof(SignedObject):
    """hello_obj: what the body of `prove` signs."""

    role: Role
    id: Name
    gate_id: Name
    peer_id: Name
    own_nonce_b64: HelloNonce
    peer_nonce_b64: HelloNonce


@dataclass(frozen=True, slots=True)
class Identity:
    """One end: its role, its id (device_id or dbd_id), its gate, and the key that proves it."""

    role: Role
    id: str
    gate_id: str
    key: SigningKey


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end, proven."""

    id: str
    kid: str
    key: PublicKey
    nonce_b64: str


class Handshake:
    """State of one handshake: own nonce, the peer's hello, and how far the proofs have come."""

    def __init__(
        self, identity: Identity, peer_id: str | None, peer_keys: PeerKeys, random: RandomSource
    ) -> None:
        """`peer_id` None takes whichever id the pinned key proves."""
        self.state = HandshakeState.NO_SESSION
        self.deadline_ms: int | None = None
        self.nonce_b64 = ""
        self.peer: Peer | None = None
        self._identity = identity
        self._expected_peer_id = peer_id
        self._peer_keys = peer_keys
        self._random = random
        self._hello: Hello | None = None
        self._hello_key: PublicKey | None = None

    def step(self, trigger: HandshakeInput, now_ms: int) -> tuple[HandshakeAction, ...]:
        """Follow the table and return what has to be done."""
        entry = HANDSHAKE_TABLE.get((self.state, trigger))
        if entry is None:
            return ()
        self.state, actions = entry
        if trigger is HandshakeInput.SESSION_UP:
            self.nonce_b64 = b64_encode(self._random(NONCE_BYTES))
        if self.state in (HandshakeState.NO_SESSION, HandshakeState.REFUSED):
            self._hello = self._hello_key = self.peer = None
        if self.state in STATE_LASTS_MS:
            lasts_ms = STATE_LASTS_MS[self.state]
            self.deadline_ms = self.deadline_ms if lasts_ms is None else now_ms + lasts_ms
        else:
            self.deadline_ms = None
        return actions

    def own_hello(self) -> Hello:
        me = self._identity
        return Hello(me.role, me.id, me.gate_id, me.key.kid, self.nonce_b64)

    def judge_hello(self, body: JsonObject) -> HandshakeInput:
        """Take the peer's hello when it may be the one we are paired with; raises FormatError."""
        hello = Hello.from_obj(body)
        key = self._peer_keys(hello.kid, None)
        acceptable = (
            key is not None
            and hello.role is self._identity.role.peer
            and hello.gate_id == self._identity.gate_id
            and self._expected_peer_id in (None, hello.id)
        )
        if not acceptable:
            return HandshakeInput.HELLO_BAD
        self._hello, self._hello_key = hello, key
        return HandshakeInput.HELLO_GOOD

    def own_proof(self) -> JsonObject:
        """The signed answer to the peer's hello; only after `judge_hello` took one."""
        if self._hello is None:
            raise FormatError("there is no hello to answer")
        me, peer = self._identity, self._hello
        proof = HelloProof(me.role, me.id, me.gate_id, peer.id, self.nonce_b64, peer.nonce_b64)
        return sign_object(Kind.HELLO, proof.to_obj(), me.key)

    def judge_proof(self, body: JsonObject) -> HandshakeInput:
        """Check the peer's proof against its hello, our nonce and the pinned key."""
        hello, key = self._hello, self._hello_key
        # Asked for again: the key may have been revoked, or its time may be over, since the hello.
        if hello is None or key is None or self._peer_keys(hello.kid, None) != key:
            return HandshakeInput.PROOF_BAD
        me = self._identity
        expected = HelloProof(hello.role, hello.id, me.gate_id, me.id, hello.nonce_b64, self.nonce_b64)
        try:
            said = HelloProof.from_obj(verify_object(Kind.HELLO, body, key))
        except (FormatError, SignatureError):
            return HandshakeInput.PROOF_BAD
        if said != expected or body["signer_kid"] != hello.kid:
            return HandshakeInput.PROOF_BAD
        self.peer = Peer(hello.id, hello.kid, key, hello.nonce_b64)
        return HandshakeInput.PROOF_GOOD
