"""The validator's end under the same fire as the device's: a desk with mail, fed by a device gone mad.

The device that is played here knows its own key. So apart from garbage there are messages that are signed and
well-formed and wrong: verdicts without a request, twice, out of order, for another nonce, long after.
Whatever comes, only the declared errors come out, nothing held grows without bound, the turnstile is opened
once for a request and never for a verdict_seq that is not above the last, and the next honest device is
served.
"""

import random
from dataclasses import replace
from typing import Any

from link1.canonical import JsonObject, b64_encode
from link1.channels import MAX_WAITING
from link1.envelope import MessageType, encode_message
from link1.events import RequestReceived
from link1.link_states import LinkState
from link1.objects import Request
from link1.signed import Kind, object_ref, sign_object
from link1.validator.desk import MAX_HELD_ANSWERS, RequestSent, ValidatorDesk, VerdictAnswered, accept_all
from link1.validator.mail import MAX_OFFERED, ValidatorMail
from link1.validator.memory import MAX_ANSWERED, DeskMemory
from tests.link1.cable import (
    DEVICE_KEY,
    NONCE,
    Cable,
    Script,
    device_status,
    hello,
    make_device,
    make_validator,
    request,
    seeded,
    verdict_for,
)

TTL_MS = 15_000


class Gate:
    """A desk with everything a validator has, and what its turnstile did."""

    def __init__(self, seed: int, now_ms: int = 1_000) -> None:
        end = make_validator(seed=seed, passage_sensor=True)
        self.end = end
        self.mail = ValidatorMail(end)
        self.now_ms = now_ms
        self.opened: list[tuple[str, int]] = []
        """txn_id and verdict_seq of every time the turnstile was opened."""
        self.saved = DeskMemory()
        self.desk = ValidatorDesk(
            end,
            decide=accept_all,
            memory=self.saved,
            save=self._save,
            wall_ms=lambda: 1_700_000_000_000,
            random=seeded(seed + 1),
            turn_after_ms=300,
            mail=self.mail,
        )
        self.asked: list[Request] = []

    def _save(self, memory: DeskMemory) -> None:
        assert memory.decision_seq >= self.saved.decision_seq, "a counter went back"
        assert memory.dbd_event_seq >= self.saved.dbd_event_seq, "a counter went back"
        self.saved = memory

    # Driven like the desk, so that it can be the end of a Script or a Cable.
    def port_opened(self, now_ms: int) -> list[Any]:
        return self._note(self.desk.port_opened(now_ms))

    def port_closed(self, now_ms: int) -> list[Any]:
        return self._note(self.desk.port_closed(now_ms))

    def receive(self, data: bytes, now_ms: int) -> list[Any]:
        return self._note(self.desk.receive(data, now_ms))

    def tick(self, now_ms: int) -> list[Any]:
        return self._note(self.desk.tick(now_ms))

    def sent(self, count: int, now_ms: int, in_port: int = 0) -> list[Any]:
        return self._note(self.desk.sent(count, now_ms, in_port))

    def next_deadline_ms(self) -> int | None:
        return self.desk.next_deadline_ms()

    def data_to_send(self, now_ms: int, max_bytes: int = 4096) -> bytes:
        return self.desk.data_to_send(now_ms, max_bytes)

    def arm(self, now_ms: int) -> None:
        self._note(self.desk.arm(TTL_MS, now_ms))

    def _note(self, events: list[Any]) -> list[Any]:
        for event in events:
            if isinstance(event, RequestSent):
                self.asked = [*self.asked[-7:], event.request]
            elif isinstance(event, VerdictAnswered) and event.refused is None and event.choice.actuated:
                self.opened.append((event.verdict.txn_id, event.verdict.verdict_seq))
                txns = [txn_id for txn_id, _ in self.opened]
                seqs = [seq for _, seq in self.opened]
                assert len(set(txns)) == len(txns), "opened twice for one request"
                assert seqs == sorted(set(seqs)), "opened for an old verdict_seq"
                assert self.saved.highest_verdict_seq == event.verdict.verdict_seq, (
                    "opened before it was kept"
                )
                del self.opened[:-64]
        self.check_bounds()
        return events

    def check_bounds(self) -> None:
        """Nothing that a peer can fill is without an end."""
        link, desk, mail = self.end.link, self.desk, self.mail
        assert all(waiting <= MAX_WAITING for waiting in link.waiting.values())
        assert desk.held_answers <= MAX_HELD_ANSWERS
        assert len(desk.memory.answered) <= MAX_ANSWERED
        assert mail.room <= MAX_OFFERED


def device_hello() -> JsonObject:
    return hello(role="device", id="dev-1", kid=DEVICE_KEY.kid)


def device_proof(validator_hello: JsonObject) -> JsonObject:
    hello_obj: JsonObject = {
        "v": 1,
        "role": "device",
        "id": "dev-1",
        "gate_id": "gate-1",
        "peer_id": "dbd-1",
        "own_nonce_b64": NONCE,
        "peer_nonce_b64": validator_hello["nonce_b64"],
    }
    return sign_object(Kind.HELLO, hello_obj, DEVICE_KEY)


class MadDevice:
    """Speaks for the device, by hand; has what its validator asked, and says what it likes."""

    def __init__(self, rng: random.Random, stage: str) -> None:
        self._rng = rng
        self.gate = Gate(rng.randrange(1 << 30))
        self.script = Script(self.gate)
        self._verdicts: list[JsonObject] = []
        self._seq = 0
        self.script.open()
        if stage == "untouched":
            return
        said = dict(self.script.take_messages())
        self._nonce_b64 = said["hello"]["nonce_b64"]
        if stage == "greeted":
            return
        self.script.send("hello", device_hello())
        self.script.send("prove", device_proof(said["hello"]))
        self._say_status()
        for seq in range(1, rng.randrange(4)):
            self.gate.mail.offer(seq, rng.randbytes(rng.choice((1, 2_880, 9_000))))
        self.gate.arm(self.script.now_ms)
        self.script.pump()

    def _say_status(self) -> None:
        status = device_status(nonce_b64=self._nonce_b64)
        self.script.send("status", sign_object(Kind.STATUS, status.to_obj(), DEVICE_KEY))

    def say_something_signed(self) -> None:
        """A verdict as the device could sign it: mostly for the newest request, mostly next in line."""
        rng, gate = self._rng, self.gate
        match rng.randrange(6):
            case 0 if self._verdicts:
                wrapper = rng.choice(self._verdicts)
            case 1:
                wrapper = self._verdict(request(rng.randrange(1, 9)))
            case _ if gate.asked:
                asked = rng.choice(gate.asked) if rng.random() < 0.3 else gate.asked[-1]
                if rng.random() < 0.2:
                    asked = replace(asked, nonce_b64=b64_encode(rng.randbytes(16)))
                wrapper = self._verdict(asked)
            case _:
                return
        self._verdicts = [*self._verdicts[-15:], wrapper]
        self.script.send("verdict", wrapper)
        if rng.random() < 0.5:
            gate.arm(self.script.now_ms)
        self.script.pump()

    def _verdict(self, asked: Request) -> JsonObject:
        rng = self._rng
        self._seq = max(0, self._seq + (1 if rng.random() < 0.8 else rng.choice((-3, 0, 5, 1 << 30))))
        seq = min(max(1, self._seq), (1 << 53) - 1)
        verdict = verdict_for(asked, seq, accept=rng.random() < 0.8)
        return sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY)

    def ask_again(self) -> None:
        """`resolve` about verdicts of this device, and about others."""
        rng = self._rng
        refs = [object_ref(wrapper) for wrapper in self._verdicts] or ["0" * 32]
        self.script.send("resolve", {"verdict_refs": [rng.choice(refs) for _ in range(rng.randrange(1, 33))]})


def messages_of_a_device() -> list[bytes]:
    """One honest message of every type that a device sends."""
    verdict = sign_object(Kind.VERDICT, verdict_for(request()).to_obj(), DEVICE_KEY)
    ref = "0" * 32
    bodies: dict[MessageType, Any] = {
        MessageType.HELLO: device_hello(),
        MessageType.PROVE: device_proof({"nonce_b64": NONCE}),
        MessageType.STATUS: sign_object(Kind.STATUS, device_status(nonce_b64=NONCE).to_obj(), DEVICE_KEY),
        MessageType.VERDICT: verdict,
        MessageType.RESOLVE: {"verdict_refs": [ref]},
        MessageType.GUIDE: {"txn_id": ref, "hint": "closer"},
        MessageType.ERROR: {"code": "expired", "about": "request", "txn_id": ref},
        MessageType.MAIL: {"box": "out", "seq": 1, "offset": 0, "total": 3, "data_b64": "AAAA"},
        MessageType.MAIL_NONE: {"box": "out", "after_seq": 0},
        MessageType.MAIL_ACK: {
            "box": "in", "seq": 1, "next_offset": 2_880, "state": "more", "applied_seq": 0
        },
    }  # fmt: skip
    return [encode_message(type_, body) for type_, body in bodies.items()]


def serves_again(rng: random.Random, gate: Gate, now_ms: int) -> None:
    """The next honest device is proven."""
    cable = Cable(make_device(seed=rng.randrange(1 << 30)), gate, now_ms=now_ms)
    cable.open()
    cable.run(7_000)
    assert gate.end.link.state is LinkState.UP
    assert gate.end.proven, "the next honest device is served"


def answers_a_verdict(gate: Gate, now_ms: int) -> None:
    """And a request of the desk's gets its one verdict and decision."""
    device = make_device(seed=3)
    cable = Cable(device, gate, now_ms=now_ms)

    def answer(event: Any) -> None:
        if isinstance(event, RequestReceived):
            verdict = verdict_for(event.request, gate.saved.highest_verdict_seq + 1)
            device.send_verdict(sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY))

    cable.on_left = answer
    before = len(gate.opened)
    cable.open()
    gate.arm(now_ms)
    cable.run(7_000)
    assert gate.saved.highest_verdict_seq >= (1 << 53) - 1 or gate.opened[before:], "the request was decided"
