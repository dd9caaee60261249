"""A search for what an attacker in the cable can do: handshake, request, verdict and decision of LINK/1.

The attacker of Dolev and Yao: every message goes through the attacker's hands, who delivers, keeps, repeats
and sends it to another end or into another session, and makes up what is not signed. Signatures of keys that
the attacker does not hold cannot be made. There are two devices and two validators. One operator runs both
validators with one key, the hardest case: only ids, gates and nonces distinguish them. The attacker holds a
former key of the validators and one of the devices.

`search` visits every state within its bounds and returns what the attacker achieved: `Power`s, which LINK/1
admits, and `Breach`es, which it excludes. A `Flaw` is what an end may leave out; each leads to a breach.

Symbolic: a signature is a value with its key and its fields. Nothing is said about Ed25519, JSON or time.

Source: D. Dolev, A. Yao, On the security of public key protocols, IEEE Trans. Inf. Theory 29 (1983).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple


class Power(StrEnum):
    """What LINK/1 admits besides delay and loss, which the search does throughout."""

    RESET = "reset a session that both ends would keep"
    REPLAY_REQUEST = "have a request served again that its validator does not wait for any more"
    FORGE_CANCEL = "withdraw a request that the validator keeps open"
    FORGE_ERROR = "end a request that the device keeps armed"
    FORGE_RESOLVE = "ask the validator about a verdict"
    FORGE_UNKNOWN = "say `unknown` of a verdict that the validator never disowned"
    READ_PSEUDONYM = "read the pseudonym in a verdict"


class Breach(StrEnum):
    """What LINK/1 excludes."""

    OPENED_WITHOUT_VERDICT = "a turnstile opens without this device's verdict on this open request"
    OPENED_TWICE = "a turnstile opens twice for one request"
    SERVED_UNASKED = "a device serves a request that its validator never made for it"
    SERVED_UNPROVEN = "a device serves a session in which no proof of its validator was checked"
    FALSE_VALIDATOR = "a device takes a session for its validator's that is not"
    FALSE_DEVICE = "a validator takes a session for its device's that is not"
    FALSE_DECISION = "a device records a decision that its validator did not make on this verdict"
    OLD_STATUS = "a validator takes a status of another session for one of this"


class Flaw(StrEnum):
    """What an end may leave out."""

    DEVICE_NONCE_NOT_COMPARED = "the device does not compare its own nonce in the proof"
    VALIDATOR_NONCE_NOT_COMPARED = "the validator does not compare its own nonce in the proof"
    PEER_NONCE_NOT_COMPARED = "no end compares the peer's nonce in the proof with its hello"
    NONCE_USED_AGAIN = "an end says hello with the same nonce in every session"
    IDS_NOT_SIGNED = "the proof covers nonces, and neither ids nor gate"
    REVOKED_KEY_COUNTS = "the device accepts a revoked key of its validator"
    OLD_DEVICE_KEY_COUNTS = "the validator accepts the key that the device had before"
    SERVES_BEFORE_PROOFS = "the device serves requests before the proofs"
    REQUEST_NOT_VERIFIED = "the device does not verify a request's signature"
    GATE_NOT_COMPARED = "the device does not compare gate and validator of a request"
    VERDICT_NOT_VERIFIED = "the validator does not verify a verdict's signature"
    NONCE_NOT_IN_VERDICT = "the validator compares neither txn_id nor nonce of a verdict"
    DEVICE_NOT_IN_VERDICT = "the validator accepts a verdict of any device of the operator, of any gate"
    STAYS_OPEN = "a request stays open when it was answered, and a copy of a verdict is judged again"
    DECISION_NOT_BOUND = "the device compares neither txn_id nor verdict_ref of a decision"
    STATUS_NONCE_NOT_COMPARED = "the validator does not compare the nonce of a status"


class EndSession(NamedTuple):
    """One session of one end. Its nonce is its own, unless an end uses one again."""

    who: str
    number: int


class SignedTerm(NamedTuple):
    """A signed object. What no end sees: who really signed, and the peer's session that it answers."""

    kind: str
    key: str
    fields: tuple[object, ...]
    by: str
    answers: EndSession | None = None


class Greeting(NamedTuple):
    """A hello as an end took it: unsigned, so the attacker chooses kid and nonce."""

    key: str
    nonce: EndSession
    of: EndSession
    """The session that the nonce was made in, which no end sees."""


class CableParty(NamedTuple):
    """A device or validator: its id, gate and key, and the peer's id and key. The attacker holds `former`, a
    former key of the peer."""

    who: str
    gate: str
    key: str
    peer: str
    peer_key: str
    former: str


DEVICES: Final = (
    CableParty("device-1", "gate-1", "device-key-1", "validator-1", "operator-key", "former-operator-key"),
    CableParty("device-2", "gate-2", "device-key-2", "validator-2", "operator-key", "former-operator-key"),
)
VALIDATORS: Final = (
    CableParty("validator-1", "gate-1", "operator-key", "device-1", "device-key-1", "former-device-key"),
    CableParty("validator-2", "gate-2", "operator-key", "device-2", "device-key-2", "former-device-key"),
)
ATTACKER: Final = "attacker"


class DeviceKnows(NamedTuple):
    """A device's state: its session, and its journal."""

    session: int = 1
    heard: Greeting | None = None
    proven: bool = False
    armed: SignedTerm | None = None
    ended: frozenset[SignedTerm] = frozenset()
    verdicts: tuple[SignedTerm, ...] = ()
    closed: frozenset[SignedTerm] = frozenset()
    """Verdicts that have a decision."""


class ValidatorKnows(NamedTuple):
    """A validator's state: its session, its requests, and what it opened for."""

    session: int = 1
    heard: Greeting | None = None
    proven: bool = False
    requests: int = 0
    open: SignedTerm | None = None
    answered: frozenset[SignedTerm] = frozenset()
    opened: frozenset[SignedTerm] = frozenset()
    highest: int = 0


class Situation(NamedTuple):
    """The state of everything, and what the attacker has seen."""

    devices: tuple[DeviceKnows, ...]
    validators: tuple[ValidatorKnows, ...]
    seen: frozenset[SignedTerm]


@dataclass(frozen=True, slots=True)
class AttackBound:
    """How far a search goes, for pair 1 and pair 2: sessions of device and validator, requests."""

    device_sessions: tuple[int, int]
    validator_sessions: tuple[int, int]
    requests: tuple[int, int]


SMALL: Final = (AttackBound((2, 0), (2, 0), (1, 0)), AttackBound((1, 0), (1, 1), (1, 1)))
"""One pair over two sessions each; one device between two validators."""
LARGE: Final = (*SMALL, AttackBound((2, 0), (2, 0), (2, 0)), AttackBound((1, 1), (1, 1), (1, 1)))
"""Two requests as well, and two pairs at once."""
LARGEST: Final = (*LARGE, AttackBound((2, 1), (2, 1), (1, 1)))
"""Two pairs, one of them over two sessions: half a minute."""

Effect = Power | Breach


@dataclass(frozen=True, slots=True)
class Achieved:
    """The outcome of a search: states visited, and what the attacker achieved in any of them."""

    states: int
    powers: frozenset[Power]
    breaches: frozenset[Breach]


def search(
    bounds: tuple[AttackBound, ...], flaws: frozenset[Flaw] = frozenset(), *, until_breach: bool = False
) -> Achieved:
    """Visit every state within these bounds of ends with these flaws; a breach ends its branch.

    `until_breach`: return with the first breach.
    """
    states, achieved = 0, set[Effect]()
    for bound in bounds:
        first = Situation((DeviceKnows(), DeviceKnows()), (ValidatorKnows(), ValidatorKnows()), frozenset())
        visited, waiting = {first}, [first]
        while waiting:
            for world, effects in _Rules(bound, flaws, waiting.pop()).steps():
                achieved.update(effects)
                if until_breach and any(isinstance(effect, Breach) for effect in effects):
                    waiting.clear()
                elif world not in visited and not any(isinstance(effect, Breach) for effect in effects):
                    visited.add(world)
                    waiting.append(world)
        states += len(visited)
        if until_breach and any(isinstance(effect, Breach) for effect in achieved):
            break
    return Achieved(
        states,
        frozenset(effect for effect in achieved if isinstance(effect, Power)),
        frozenset(effect for effect in achieved if isinstance(effect, Breach)),
    )


class _Rules:
    """What can happen next in one state."""

    def __init__(self, bound: AttackBound, flaws: frozenset[Flaw], world: Situation) -> None:
        self._bound = bound
        self._flaws = flaws
        self._world = world

    def steps(self) -> Iterator[tuple[Situation, tuple[Effect, ...]]]:
        """Every next state, and what the attacker achieves by the step to it."""
        world = self._world
        for place in (0, 1):
            if self._bound.device_sessions[place]:
                for device, said, effects in self._device_steps(place):
                    devices = (*world.devices[:place], device, *world.devices[place + 1 :])
                    yield world._replace(devices=devices, seen=world.seen | said), effects
            if self._bound.validator_sessions[place]:
                for validator, said, effects in self._validator_steps(place):
                    validators = (*world.validators[:place], validator, *world.validators[place + 1 :])
                    yield world._replace(validators=validators, seen=world.seen | said), effects

    # ---- both ends: hello and prove

    def _nonce(self, session: EndSession) -> EndSession:
        return session._replace(number=0) if Flaw.NONCE_USED_AGAIN in self._flaws else session

    def _counting_keys(self, me: CableParty) -> tuple[str, ...]:
        device = me in DEVICES
        flaw = Flaw.REVOKED_KEY_COUNTS if device else Flaw.OLD_DEVICE_KEY_COUNTS
        return (me.peer_key, me.former) if flaw in self._flaws else (me.peer_key,)

    def _greetings(self, me: CableParty) -> Iterator[Greeting]:
        """Hellos that `me` takes: ids are as it expects them, key and nonce are the attacker's choice."""
        begun = [EndSession(ATTACKER, 1)]
        latest = [device.session for device in self._world.devices]
        latest += [validator.session for validator in self._world.validators]
        for party, last in zip((*DEVICES, *VALIDATORS), latest, strict=True):
            begun += [EndSession(party.who, number) for number in range(1, last + 1)]
        for key in self._counting_keys(me):
            for session in begun:
                yield Greeting(key, self._nonce(session), session)

    def _ids(self, who: str, gate: str, peer: str) -> tuple[str, ...]:
        return () if Flaw.IDS_NOT_SIGNED in self._flaws else (who, gate, peer)

    def _proof(self, me: CableParty, session: int, heard: Greeting) -> frozenset[SignedTerm]:
        own = self._nonce(EndSession(me.who, session))
        fields = (*self._ids(me.who, me.gate, me.peer), own, heard.nonce)
        return frozenset({SignedTerm("hello", me.key, fields, me.who, heard.of)})

    def _accepted_proofs(self, me: CableParty, session: int, heard: Greeting) -> Iterator[SignedTerm]:
        """Proofs that `me` accepts now: of those that were seen, and those of the attacker's keys."""
        flaws, own = self._flaws, self._nonce(EndSession(me.who, session))
        ids = self._ids(me.peer, me.gate, me.who)
        made = SignedTerm("hello", me.former, (*ids, heard.nonce, own), ATTACKER)
        compares_own = (
            Flaw.DEVICE_NONCE_NOT_COMPARED if me in DEVICES else Flaw.VALIDATOR_NONCE_NOT_COMPARED
        ) not in flaws
        for proof in (*self._world.seen, made):
            if proof.kind != "hello" or proof.key != heard.key or proof.fields[:-2] != ids:
                continue
            if compares_own and proof.fields[-1] != own:
                continue
            if Flaw.PEER_NONCE_NOT_COMPARED not in flaws and proof.fields[-2] != heard.nonce:
                continue
            yield proof

    def _false(self, me: CableParty, session: int, heard: Greeting, proof: SignedTerm) -> bool:
        """Whether the peer did not prove itself in this session of `me`, with the nonce that `me` heard."""
        return (
            proof.by != me.peer
            or proof.answers != EndSession(me.who, session)
            or proof.fields[-2] != heard.nonce
        )

    # ---- the device

    def _device_steps(
        self, place: int
    ) -> Iterator[tuple[DeviceKnows, frozenset[SignedTerm], tuple[Effect, ...]]]:
        me, it, none = DEVICES[place], self._world.devices[place], frozenset[SignedTerm]()
        if it.session < self._bound.device_sessions[place]:
            again = it._replace(session=it.session + 1, heard=None, proven=False, armed=None)
            yield again, none, (Power.RESET,)
        if it.heard is None:
            for heard in self._greetings(me):
                yield it._replace(heard=heard), self._proof(me, it.session, heard), ()
        elif not it.proven:
            for proof in self._accepted_proofs(me, it.session, it.heard):
                false = self._false(me, it.session, it.heard, proof)
                status = SignedTerm("status", me.key, (me.who, it.heard.nonce), me.who, it.heard.of)
                effects = (Breach.FALSE_VALIDATOR,) if false else ()
                yield it._replace(proven=True), frozenset({status}), effects
        if it.proven or Flaw.SERVES_BEFORE_PROOFS in self._flaws:
            for request in self._accepted_requests(me, it):
                ended = it.ended | ({it.armed} if it.armed else set())
                yield it._replace(armed=request, ended=ended), none, self._of_serving(me, it, request)
        yield from self._armed_steps(me, it, self._world.validators[place])
        yield from self._closing_steps(me, it)

    def _accepted_requests(self, me: CableParty, it: DeviceKnows) -> Iterator[SignedTerm]:
        compares = Flaw.GATE_NOT_COMPARED not in self._flaws
        known = {verdict.fields[0] for verdict in it.verdicts} | {request.fields for request in it.ended}
        requests = [one for one in self._world.seen if one.kind == "request"]
        if Flaw.REQUEST_NOT_VERIFIED in self._flaws:
            fields = ("made up", "made up", me.gate, me.peer)
            requests.append(SignedTerm("request", me.peer_key, fields, ATTACKER))
        for request in requests:
            meant_for_me = request.fields[2:] == (me.gate, me.peer)
            fresh = request != it.armed and request.fields not in known
            if request.key == me.peer_key and fresh and (meant_for_me or not compares):
                yield request

    def _of_serving(self, me: CableParty, it: DeviceKnows, request: SignedTerm) -> tuple[Effect, ...]:
        effects: list[Effect] = []
        if request.by != me.peer or request.fields[2:] != (me.gate, me.peer):
            effects.append(Breach.SERVED_UNASKED)
        if not it.proven:
            effects.append(Breach.SERVED_UNPROVEN)
        if request not in [validator.open for validator in self._world.validators]:
            effects.append(Power.REPLAY_REQUEST)
        return tuple(effects)

    def _armed_steps(
        self, me: CableParty, it: DeviceKnows, validator: ValidatorKnows
    ) -> Iterator[tuple[DeviceKnows, frozenset[SignedTerm], tuple[Effect, ...]]]:
        """A hand comes; or a cancel that is not the validator's."""
        if it.armed is None:
            return
        fields = (it.armed.fields, me.who, len(it.verdicts) + 1, "pseudonym")
        verdict = SignedTerm("verdict", me.key, fields, me.who)
        decided = it._replace(armed=None, verdicts=(*it.verdicts, verdict))
        yield decided, frozenset({verdict}), (Power.READ_PSEUDONYM,)
        forged = (Power.FORGE_CANCEL,) if validator.open == it.armed else ()
        yield it._replace(armed=None, ended=it.ended | {it.armed}), frozenset(), forged

    def _closing_steps(
        self, me: CableParty, it: DeviceKnows
    ) -> Iterator[tuple[DeviceKnows, frozenset[SignedTerm], tuple[Effect, ...]]]:
        """A decision comes, in whichever session; or an `unknown` that is not the validator's."""
        for verdict in it.verdicts:
            if verdict in it.closed:
                continue
            yield it, frozenset(), (Power.FORGE_UNKNOWN,)
            for decision in self._world.seen:
                bound = decision.kind == "decision" and decision.fields[0] == verdict
                if decision.kind != "decision" or decision.key != me.peer_key:
                    continue
                if bound or Flaw.DECISION_NOT_BOUND in self._flaws:
                    effects = () if bound and decision.by == me.peer else (Breach.FALSE_DECISION,)
                    yield it._replace(closed=it.closed | {verdict}), frozenset(), effects

    # ---- the validator

    def _validator_steps(
        self, place: int
    ) -> Iterator[tuple[ValidatorKnows, frozenset[SignedTerm], tuple[Effect, ...]]]:
        me, it, none = VALIDATORS[place], self._world.validators[place], frozenset[SignedTerm]()
        if it.session < self._bound.validator_sessions[place]:
            yield it._replace(session=it.session + 1, heard=None, proven=False), none, (Power.RESET,)
        if it.heard is None:
            for heard in self._greetings(me):
                yield it._replace(heard=heard), self._proof(me, it.session, heard), ()
            return
        if not it.proven:
            for proof in self._accepted_proofs(me, it.session, it.heard):
                false = self._false(me, it.session, it.heard, proof)
                yield it._replace(proven=True), none, (Breach.FALSE_DEVICE,) if false else ()
            return
        yield it, none, (Power.FORGE_RESOLVE, *self._of_status(me, it))
        if it.requests < self._bound.requests[place]:
            number = it.requests + 1
            fields = (f"{me.who} txn {number}", f"{me.who} nonce {number}", me.gate, me.who)
            request = SignedTerm("request", me.key, fields, me.who)
            yield it._replace(requests=number, open=request), frozenset({request}), ()
        if it.open is not None:
            armed = self._world.devices[place].armed == it.open
            yield it._replace(open=None), none, (Power.FORGE_ERROR,) if armed else ()
        for verdict in self._accepted_verdicts(me, it):
            yield self._answered(me, it, verdict)

    def _of_status(self, me: CableParty, it: ValidatorKnows) -> tuple[Effect, ...]:
        own = self._nonce(EndSession(me.who, it.session))
        for status in self._world.seen:
            if status.kind != "status" or status.key != me.peer_key:
                continue
            taken = Flaw.STATUS_NONCE_NOT_COMPARED in self._flaws or status.fields[1] == own
            if taken and status.answers != EndSession(me.who, it.session):
                return (Breach.OLD_STATUS,)
        return ()

    def _accepted_verdicts(self, me: CableParty, it: ValidatorKnows) -> Iterator[SignedTerm]:
        """Verdicts that pass the checks before the decision, and have no answer yet."""
        verdicts = [one for one in self._world.seen if one.kind == "verdict"]
        keys = set(self._counting_keys(me))
        if Flaw.DEVICE_NOT_IN_VERDICT in self._flaws:
            keys |= {device.key for device in DEVICES}
        if it.open is not None:
            unverified = (me.peer_key,) if Flaw.VERDICT_NOT_VERIFIED in self._flaws else ()
            fields = (it.open.fields, me.peer, it.highest + 1, "made up")
            verdicts += [SignedTerm("verdict", key, fields, ATTACKER) for key in (me.former, *unverified)]
        for verdict in verdicts:
            about: tuple[object, ...] = verdict.fields[0]  # type: ignore[assignment]
            mine = about[2:] == (me.gate, me.who) and verdict.fields[1] == me.peer
            new = verdict not in it.answered or Flaw.STAYS_OPEN in self._flaws
            if verdict.key in keys and new and (mine or Flaw.DEVICE_NOT_IN_VERDICT in self._flaws):
                yield verdict

    def _answered(
        self, me: CableParty, it: ValidatorKnows, verdict: SignedTerm
    ) -> tuple[ValidatorKnows, frozenset[SignedTerm], tuple[Effect, ...]]:
        flaws, seq = self._flaws, int(str(verdict.fields[2]))
        fits = it.open is not None and (
            verdict.fields[0] == it.open.fields
            or bool(flaws & {Flaw.NONCE_NOT_IN_VERDICT, Flaw.DEVICE_NOT_IN_VERDICT})
        )
        opens = fits and (seq > it.highest or Flaw.STAYS_OPEN in flaws)
        decision = SignedTerm("decision", me.key, (verdict, opens), me.who)
        after = it._replace(answered=it.answered | {verdict})
        if it.open is None or not opens:
            return after, frozenset({decision}), ()
        effects: list[Effect] = []
        if verdict.by != me.peer or verdict.fields[0] != it.open.fields:
            effects.append(Breach.OPENED_WITHOUT_VERDICT)
        if it.open in it.opened:
            effects.append(Breach.OPENED_TWICE)
        after = after._replace(
            open=it.open if Flaw.STAYS_OPEN in flaws else None,
            opened=it.opened | {it.open},
            highest=max(seq, it.highest),
        )
        return after, frozenset({decision}), tuple(effects)
