"""Two honest ends and a cable that does everything that a cable can do, for as long as one likes.

Pieces are lost, doubled, cut short, spoilt; what was said in an earlier session comes again; the plug is
pulled, the device restarts and remembers only what it keeps durably; requests, cancellations and mail go on
meanwhile. Throughout: one turn of the turnstile for a request, no counter goes back, mail arrives whole, in
order and once. At the end, on a good cable, everything that is owed is settled.
"""

import random
from typing import Any

from link1.bodies import Box, MailAck, MailChunk, MailNone, MailPull, MailState
from link1.canonical import JsonObject
from link1.events import (
    DecisionReceived,
    Proven,
    RequestReceived,
    UnknownReceived,
)
from link1.objects import MailMarks
from link1.signed import Kind, object_ref, sign_object
from link1.validator.mail import OutboxCollected
from tests.link1.cable import DEVICE_KEY, Cable, device_status, make_device, verdict_for
from tests.link1.fuzz_validator import Gate

MAX_CHUNK = 2_880
SETTLE_MS = 60_000


class HonestDevice:
    """What a device keeps durably, and the end that it has just now."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._verdicts: dict[str, JsonObject] = {}
        self._open: set[str] = set()
        self.inbox: list[bytes] = []
        self._partial = b""
        self.outbox = [rng.randbytes(rng.choice((1, MAX_CHUNK, 7_000))) for _ in range(3)]
        self.decisions: dict[str, set[bool]] = {}
        self.end = make_device(seed=rng.randrange(1 << 30))

    def restart(self) -> None:
        """A partly received record survives a reset, not a restart."""
        self._partial = b""
        self.end = make_device(seed=self._rng.randrange(1 << 30))

    @property
    def unsettled(self) -> set[str]:
        return self._open

    def follow(self, event: Any) -> None:
        end = self.end
        match event:
            case Proven():
                end.send_status(device_status(mail=MailMarks(len(self.inbox), len(self.outbox), 0)))
                if self._open:
                    end.send_resolve(sorted(self._open)[:32])
            case RequestReceived(asked):
                if asked.txn_id not in self._verdicts:
                    verdict = verdict_for(asked, len(self._verdicts) + 1)
                    wrapper = sign_object(Kind.VERDICT, verdict.to_obj(), DEVICE_KEY)
                    self._verdicts[asked.txn_id] = wrapper
                    self._open.add(object_ref(wrapper))
                end.send_verdict(self._verdicts[asked.txn_id])
            case DecisionReceived(decision):
                said = self.decisions.setdefault(decision.verdict_ref, set())
                said.add(decision.actuated)
                assert len(said) == 1, "two decisions on one verdict contradict each other"
                self._open.discard(decision.verdict_ref)
            case UnknownReceived(refs):
                self._open -= set(refs)
            case MailChunk() as chunk:
                end.send_mail_ack(self._take(chunk))
            case MailPull() as pull:
                if pull.after_seq >= len(self.outbox):
                    end.send_mail_none(MailNone(pull.after_seq))
                    return
                record = self.outbox[pull.after_seq]
                piece = record[pull.offset : pull.offset + MAX_CHUNK]
                end.send_mail(MailChunk(Box.OUT, pull.after_seq + 1, pull.offset, len(record), piece))
            case _:
                pass

    def _take(self, chunk: MailChunk) -> MailAck:
        applied = len(self.inbox)
        if chunk.seq <= applied:
            return MailAck(chunk.seq, 0, MailState.APPLIED, applied)
        if chunk.seq > applied + 1:
            return MailAck(chunk.seq, 0, MailState.GAP, applied)
        if chunk.offset == len(self._partial):
            self._partial += chunk.data
        if len(self._partial) < chunk.total:
            return MailAck(chunk.seq, len(self._partial), MailState.MORE, applied)
        self.inbox.append(self._partial)
        self._partial = b""
        return MailAck(chunk.seq, 0, MailState.APPLIED, applied + 1)


class BadCable:
    """A manipulator for both directions: also says again what was said in an earlier session."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.share = 0.0
        self.cut = False
        self.carried = 0
        self._heard: list[bytes] = []

    def __call__(self, frame: bytes) -> list[bytes]:
        rng = self._rng
        self.carried += 1
        if rng.random() < 0.05:
            self._heard = [*self._heard[-63:], frame]
        if self.cut:
            return []
        if rng.random() >= self.share:
            return [frame]
        at = rng.randrange(len(frame))
        match rng.randrange(7):
            case 0:
                return []
            case 1:
                return [frame, frame]
            case 2:
                return [frame[:at]]
            case 3:
                return [frame[at:]]
            case 4:
                return [rng.choice(self._heard), frame] if self._heard else [frame]
            case 5:
                return [frame[:at] + rng.randbytes(min(64, len(frame) - at)) + frame[at + 64 :]]
            case _:
                return [frame[:at] + bytes([frame[at] ^ (1 << rng.randrange(8))]) + frame[at + 1 :]]


class Story:
    """One life of the two, from the first plug to a settled end."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.device = HonestDevice(rng)
        self.gate = Gate(rng.randrange(1 << 30))
        self.records = [rng.randbytes(rng.choice((1, MAX_CHUNK, 9_000))) for _ in range(3)]
        self.collected: dict[int, bytes] = {}
        self.bad = BadCable(rng)
        self.cable = Cable(self.device.end, self.gate, to_left=self.bad, to_right=self.bad)
        self.cable.on_left = self.device.follow
        self.cable.on_right = self._note
        self.cable.open()

    def _note(self, event: Any) -> None:
        if isinstance(event, OutboxCollected):
            assert event.data == self.device.outbox[event.seq - 1], "mail was changed on its way"
            self.collected[event.seq] = event.data

    def step(self) -> None:
        """Something happens, then a while passes."""
        rng, cable = self._rng, self.cable
        match rng.randrange(12):
            case 0 | 1 | 2:
                self.gate.arm(cable.now_ms)
            case 3:
                self.gate.desk.cancel()
            case 4:
                self.bad.cut = not self.bad.cut
            case 5:
                self.bad.share = rng.choice((0.0, 0.01, 0.1, 0.4))
            case 6:
                self.device.restart()
                cable.left = self.device.end
                cable.left_events.clear()
                cable.left_events += cable.left.port_opened(cable.now_ms)
            case 7:
                # Ports are opened again in the middle of a conversation.
                for event in self.gate.port_opened(cable.now_ms):
                    self._note(event)
            case 8 | 9:
                self._offer()
            case 10:
                self.gate.mail.pull_again()
            case _:
                pass
        cable.run(rng.choice((5, 20, 100, 250, 700, 2_500)))
        del cable.left_events[:], cable.right_events[:]
        assert self.device.inbox == self.records[: len(self.device.inbox)], (
            "mail came changed or out of order"
        )

    def _offer(self) -> None:
        for seq, record in enumerate(self.records, 1):
            self.gate.mail.offer(seq, record)

    def settle(self) -> None:
        """On a good cable what is owed is paid."""
        self.bad.cut, self.bad.share = False, 0.0
        self._offer()
        self.gate.arm(self.cable.now_ms)
        self.cable.run(SETTLE_MS)
        assert self.gate.end.proven
        assert self.device.end.proven
        assert self.gate.desk.open_txn_id is None, "the last request got its verdict"
        assert not self.device.unsettled, "every verdict is settled"
        assert self.device.inbox == self.records, "all mail has arrived"
        assert self.collected == dict(enumerate(self.device.outbox, 1)), "all mail was collected"


def fuzz_both(rng: random.Random, count: int) -> None:
    """Stories until so many frames went over the cable."""
    carried = 0
    while carried < count:
        story = Story(rng)
        for _ in range(rng.randrange(5, 40)):
            story.step()
        story.settle()
        carried += story.bad.carried
