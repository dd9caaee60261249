"""What the invariants are shown: what leaves an end, what a program settled, what the service took."""

import json
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import httpx

from cloud_client.reference_server.store.base import Tx
from device.core.opening import Opened
from device.errors import JournalError
from device.journal.journal import Journal
from device.platform.clock import Clock
from device.values.status import MailStatus, VerdictSummary
from gallery.records import Position
from link1.canonical import JsonObject
from link1.objects import LastVerdict
from link1.signed import object_ref
from link1.validator.desk import DeskEvent, RequestEnded, RequestSent, VerdictAnswered
from link1.validator.mail import OutboxCollected
from link1.validator.memory import DeskMemory
from tools.rig.simulation.attacker import FORGED_SIGNATURE
from tools.rig.simulation.history import Arrivals, AskedRequest, StreamStep, Tap, short
from tools.rig.simulation.invariants import AtTheEnd, MadeVerdict, On, Started
from tools.rig.simulation.service import DEVICE_ID, START_MS, config_of

if TYPE_CHECKING:
    from tools.rig.simulation.world import SimulatedWorld

_NOTED_WITHIN_S: Final = 70.0
"""The core notes the time each minute; its disk may refuse that for a few seconds."""
_CLOCK_TOLERANCE_S: Final = 120.0
"""How far before the last time known `gallery.freshness` believes a wall clock after a reboot."""
_STATUS: Final = "/v1/devices/self/status"
_WHAT_IF: Final = 0.1
"""The share of verdicts at which a power cut is tried on the side."""


class Onlooker:
    """Looks at a world: writes its history and holds the invariants against it.

    It leaves the world as it is; only whether to try a power cut on the side is drawn from the disk's lots.
    """

    def __init__(self, world: "SimulatedWorld") -> None:
        self.world, self.history, self.checks = world, world.history, world.checks
        self._taps = {"device": Tap(), "validator": Tap()}
        self._arrivals = {"device": Arrivals(), "validator": Arrivals()}
        self._log_seq = (0, 0)
        self._last_noted: LastVerdict | None = None
        self._position_noted: Position | None = None
        self._head_noted_ms = 0
        self._open_txn_id: str | None = None
        self._proven: str | None = None
        self._most_waiting = 0
        self._mail_noted: MailStatus | None = None
        self.status_under_way = False
        """Whether the device has asked the service for a status."""
        self._core_since_s = self._time_noted_s = self.wall_ahead_s = 0.0
        """When the core started; until when the device has certainly noted the time; the most that its wall
        clock has been ahead."""

    def note_stream(self) -> None:
        """Take over what the service's log says now, before anything of it is compacted."""
        if self.world.server is None:
            return
        environment, history = self.world.start.environment, self.history
        state = self.world.server[1].state_of_stream(environment)
        if history.steps and (state.epoch, state.seq) == self._log_seq:
            return

        def read(tx: Tx) -> tuple[list[Any], set[str]]:
            rows = tx.all(
                "SELECT d.seq, d.op, d.head, d.subject_ref, s.subject_ref AS known FROM deltas d"
                " LEFT JOIN subjects s ON s.subject_id = d.subject_id"
                " WHERE d.stream = :s AND d.epoch = :e ORDER BY d.seq",
                s=environment.stream,
                e=state.epoch,
            )
            live = tx.all(
                "SELECT DISTINCT s.subject_ref FROM templates t JOIN subjects s USING (subject_id)"
                " WHERE t.stream = :s AND t.removed_seq IS NULL AND s.suspended = 0",
                s=environment.stream,
            )
            return rows, {row["subject_ref"] for row in live}

        rows, live_now = self.world.server[1].store.read_now(read)
        now_s = self.world.loop.now_s
        if history.steps and state.epoch != self._log_seq[0]:
            history.steps.append(
                StreamStep(now_s, state.epoch, 0, state.head.hex()[:16], frozenset(live_now))
            )
            self._log_seq = (state.epoch, 0)
        live = set(history.steps[-1].live) if history.steps else set()
        for row in rows:
            if (state.epoch, row["seq"]) <= self._log_seq:
                continue
            subject = row["subject_ref"] or row["known"]
            match row["op"]:
                case "upsert" | "resume":
                    live.add(subject)
                case "tombstone" | "suspend":
                    live.discard(subject)
            if row["seq"] == state.seq:
                live = set(live_now)
            step = StreamStep(now_s, state.epoch, row["seq"], row["head"].hex()[:16], frozenset(live))
            history.steps.append(step)
        self._log_seq = (state.epoch, state.seq)

    def note_device(self) -> None:
        history, palmd, opened = self.history, self.world.device.palmd, self.world.device.opened
        if palmd is None or opened is None:
            self._open_txn_id = None
            return
        self._note_request(palmd.gate.open_txn_id)
        kid, self._proven = self._proven, palmd.gate.validator_kid
        if self._proven not in (None, kid):
            self.checks.check(On.VALIDATOR_PROVEN, (self._proven, self.counts(str(self._proven))))
        last = palmd.gate.last
        if last is not None and last is not self._last_noted and (said := palmd.gate.last_said) is not None:
            self._last_noted = last
            if last.verdict_seq > history.durable_last:
                self._note_verdict(last, said)
        gallery = opened.gallery
        if gallery is not None and gallery.position is not self._position_noted and not palmd.wipe.begun:
            self._position_noted = gallery.position
            at = (gallery.position.epoch, gallery.position.seq)
            if at != history.position:
                self.checks.check(On.STEP, at)
                history.say("device", f"gallery at {at[0]}/{at[1]}")
                history.position = at
        if gallery is not None and gallery.newest_head_ms != self._head_noted_ms:
            self._head_noted_ms = gallery.newest_head_ms
            history.heads.setdefault(self._issued_s(self._head_noted_ms), history.now_s)
        self._note_what_waits(opened)
        noted_s = history.now_s - _NOTED_WITHIN_S - 3 * history.slow_s
        if noted_s > self._core_since_s:
            self._time_noted_s = noted_s
        if palmd.wipe.begun:
            history.wiped = True

    def _note_request(self, open_txn_id: str | None) -> None:
        if open_txn_id == self._open_txn_id:
            return
        if self._open_txn_id is not None:
            self.history.left_open_at_s[self._open_txn_id] = self.history.now_s
        self._open_txn_id = open_txn_id

    def _note_what_waits(self, opened: Opened) -> None:
        palmd, most = self.world.device.palmd, self.world.loop.most_waiting
        if most > self._most_waiting:
            self._most_waiting = most
            self.checks.check(On.WORK_WAITS, most)
        position = palmd.mail.position if palmd is not None else None
        if position is None or position is self._mail_noted:
            return
        grew = self._mail_noted is not None and position.out_seq > self._mail_noted.out_seq
        self._mail_noted = position
        if grew and not self.history.wiped:
            unsettled = position.out_seq - position.out_acked_seq
            self.checks.check(On.OUTBOX_GREW, (unsettled, _carried(opened.journal, position.out_seq)))

    def counts(self, kid: str) -> bool:
        """Whether a validator's key counts now, by all that the device has been told."""
        device = self.world.device
        if device.opened is None:
            return False
        return device.opened.pinned.validator_key(kid, device.clock.wall_ms()) is not None

    def _note_verdict(self, last: LastVerdict, said: VerdictSummary) -> None:
        history, made = self.history, MadeVerdict(last.verdict_seq, said.decision)
        self.checks.check(On.VERDICT_DURABLE, made)
        history.durable_last = last.verdict_seq
        history.durable_refs.add(last.verdict_ref)
        if made.decision != "abstain":
            history.visits.setdefault((history.visit, history.incarnation), []).append(made.seq)
        history.say("device", f"verdict {made.seq} is durable: {said.decision} {said.result}")

    def core_started(self) -> None:
        self.world.loop.within_world(self._examine_start)

    def _examine_start(self) -> None:
        history, opened = self.history, self.world.device.opened
        if opened is None:
            return
        history.incarnation = self.world.device.incarnation
        self._note_time_hidden()
        refs = journal_refs(opened, history.asked)[0]
        history.durable_refs.update(refs.values())
        last, gallery = opened.journal.last(), opened.gallery
        ended = {txn_id: opened.journal.find_txn(txn_id) for txn_id in history.ended}
        position = gallery.position if gallery is not None else None
        if position is None:
            why = opened.gallery_fault.replace(f"{self.world.folder}/", "")  # it has another name in each run
            history.say("device", f"starts without its gallery: {why}")
        started = Started(
            last_seq=last.verdict_seq if last else 0,
            last_ref=last.verdict_ref if last else "",
            position=(position.epoch, position.seq) if position else None,
            head16=position.head16 if position else "",
            in_applied_seq=opened.mail.in_applied_seq,
            refs=refs,
            ended={txn_id: str(memory.ended) for txn_id, memory in ended.items() if memory and memory.ended},
            still_there=_still_there(None if self.world.disk_trouble else opened, history.erased),
        )
        history.say(
            "device", f"starts: last verdict {started.last_seq}, gallery {started.position or 'absent'}"
        )
        self.checks.check(On.CORE_STARTED, started)
        history.durable_last = started.last_seq
        if started.position is not None:
            history.position = started.position

    def _note_time_hidden(self) -> None:
        """A core starts: how much of the time that the device has not noted does its wall clock hide?"""
        now_s, clock = self.world.loop.now_s, self.world.device.clock
        self._core_since_s = now_s
        off_s = clock.wall_off_ms / 1000
        noted_since_boot = self._time_noted_s > now_s - clock.boottime_ms() / 1000
        # Where it is far before the beginning of all that the device has known, nothing is fresh.
        if not noted_since_boot and self.world.device.clock_kept and now_s + off_s > -_CLOCK_TOLERANCE_S:
            hidden_s = min(now_s - self._time_noted_s, max(0.0, self.wall_ahead_s - off_s))
            self.history.hidden_s[self.world.device.boots] = now_s, hidden_s

    def validator_started(self, memory: DeskMemory) -> None:
        history = self.history
        history.say("validator", f"starts: decision_seq {memory.decision_seq}")
        self.checks.check(On.VALIDATOR_STARTED, memory)
        for txn_id in history.asked:
            history.closed.setdefault(txn_id, "the validator started again")

    def heard(self, side: str, data: bytes) -> None:
        """Bytes leave an end."""
        self.history.now_s = self.world.loop.now_s
        if side == "device":
            self.note_device()
        tap, arrivals = self._taps[side], self._arrivals[side]
        messages = tap.feed(data)
        for place in tap.acks:
            self.checks.check(On.ACKNOWLEDGED, (place, arrivals.whole))
        for channel, session, mid in tap.begun:
            if mid > 0:
                self.checks.check(On.MESSAGE_BEGUN, ((channel, session, mid - 1), arrivals.acks))
        for message in messages:
            self.world.loop.within_world(partial(self._said, side, message))

    def reached(self, side: str, data: bytes) -> None:
        """Bytes are read at an end; none: it has opened its port."""
        if data:
            self._arrivals[side].feed(data)
        else:
            self._arrivals[side].port_opened()
            self._taps[side].port_opened()

    def _said(self, side: str, message: JsonObject) -> None:  # noqa: C901, PLR0912, PLR0915 - a case a message
        history, check, body = self.history, self.checks.check, message["body"]
        match side, message["type"]:
            case "device", "verdict":
                history.verdicts_said += 1
                history.said_in_session.append(object_ref(body))
                verdict, new = history.see_verdict(body)
                check(On.VERDICT_SENT, verdict)
                history.verdict_at.setdefault(verdict.seq, verdict.ref)
                history.verdict_of.setdefault(verdict.txn_id, verdict.ref)
                history.say(
                    "device",
                    f"→ verdict {verdict.seq} {body['verdict']['result']} on {short(verdict.txn_id)}",
                )
                if new and not history.wiped and self.world.disk_chance.random() < _WHAT_IF:
                    check(On.POWER_COULD_GO, (verdict, self._on_disk(verdict.txn_id)))
            case "device", "hello":
                history.said_in_session.clear()
                history.say("device", "→ hello")
            case "device", "error":
                check(On.ERROR_SENT, body)
                history.complaints += body["code"] == "bad_decision"
                history.say(
                    "device", f"→ error {body['code']} about {body['about']} {short(body.get('txn_id'))}"
                )
                if (
                    body["code"] in ("expired", "cancelled")
                    and "txn_id" in body
                    and body["about"] == "request"
                ):
                    history.ended.setdefault(body["txn_id"], body["code"])
                    if self.world.disk_trouble:
                        history.ended_unkept.setdefault(body["txn_id"], history.incarnation)
            case "device", "status":
                status = body["status_obj"]
                check(On.STATUS_SENT, status)
                if not history.wiped:
                    at = (status["gallery"]["epoch"], status["gallery"]["seq"])
                    history.in_status = max(history.in_status, at)
                    history.acknowledged = max(history.acknowledged, at)
                history.say("device", f"→ status {' '.join(status['health']) or 'well'}")
            case "device", "mail_ack":
                check(On.MAIL_ACK_SENT, body)
                history.settled_inbox = max(history.settled_inbox, body["applied_seq"])
                if body["state"] != "more":
                    history.say("device", f"→ mail_ack {body['seq']} {body['state']}")
            case "validator", "decision" if body["sig_b64"] == FORGED_SIGNATURE:
                history.forged += 1
            case "validator", "decision":
                check(On.DECISION_SENT, body)
                obj = body["decision_obj"]
                history.decisions.setdefault(obj["verdict_ref"], body)
                history.decision_at.setdefault(obj["decision_seq"], object_ref(body))
                history.say("validator", f"→ decision {obj['decision_seq']} {obj['outcome']} {obj['reason']}")
            case "validator", "unknown":
                check(On.UNKNOWN_SENT, body["verdict_refs"])
                history.say("validator", f"→ unknown {len(body['verdict_refs'])}")
            case "validator", "passage":
                check(On.PASSAGE_SENT, body)
                history.passage_at.setdefault(body["passage"]["dbd_event_seq"], object_ref(body))
                history.say("validator", f"→ passage {body['passage']['dbd_event_seq']}")
            case _, kind:
                if kind not in ("mail", "mail_pull", "mail_none", "guide"):
                    history.say(side, f"→ {kind}")

    def _on_disk(self, txn_id: str) -> str | None:
        """The verdict that a power cut at this moment would leave for a txn_id."""
        with tempfile.TemporaryDirectory(dir=self.world.folder) as name:
            folder = Path(name)
            config, chance = config_of(folder), self.world.disk_chance
            only = config.journal_path.name
            self.world.device_disk.what_if(None if chance.random() < 0.5 else chance, folder, only=only)
            try:
                journal = Journal(
                    config.journal_path,
                    device_id=DEVICE_ID,
                    verdict_kid=self.world.start.verdict_key.kid,
                    data_key=self.world.start.data_key,
                    clock=cast("Clock", self.world.device.clock),
                )
            except JournalError as error:
                return str(error)
            memory = journal.find_txn(txn_id)
            journal.close()
        return memory.verdict.ref if memory is not None and memory.verdict is not None else None

    def desk_event(self, event: DeskEvent) -> None:
        history = self.history
        match event:
            case RequestSent(request, again):
                history.asked.setdefault(request.txn_id, AskedRequest(request.txn_id, request.to_obj()))
                history.last_sent_ms[request.txn_id] = self.world.validator.clock.monotonic_ms()
                history.say("validator", f"asks {short(request.txn_id)}{' again' if again else ''}")
            case RequestEnded(txn_id, why):
                history.closed[txn_id] = why
                history.say("validator", f"ends {short(txn_id)}: {why}")
            case VerdictAnswered(verdict, ref, choice, refused, _):
                self.world.decided()
                history.verdicts_heard += 1
                self.checks.check(On.VERDICT_HEARD, ref)
                if ref in history.said_in_session:
                    del history.said_in_session[: history.said_in_session.index(ref) + 1]
                if choice.actuated and refused is None:
                    fact = {
                        "ref": ref,
                        "txn_id": verdict.txn_id,
                        "seq": verdict.verdict_seq,
                        "ttl_ms": verdict.ttl_ms,
                        "decision": verdict.decision.value,
                        "now_ms": self.world.validator.clock.monotonic_ms(),
                    }
                    self.checks.check(On.ACTUATED, fact)
                    history.actuated[ref] = self.world.loop.now_s
                    history.highest_actuated_seq = max(history.highest_actuated_seq, verdict.verdict_seq)
                    history.say("validator", f"OPENS for verdict {verdict.verdict_seq}")
                if refused != "repeat":
                    history.closed.setdefault(verdict.txn_id, "answered")
            case OutboxCollected(seq, data):
                self.checks.check(On.OUTBOX_COLLECTED, (seq, data))
                history.outbox.setdefault(seq, data)
                history.say("validator", f"has outbox record {seq}")

    def device_asks(self, request: httpx.Request) -> None:
        if request.url.path == _STATUS:
            self.status_under_way = True
        if request.url.path == "/v1/gallery/deltas":
            at = (int(request.url.params["epoch"]), int(request.url.params["after_seq"]))
            self.checks.check(On.DELTAS_ASKED, at)
            self.history.acknowledged = max(self.history.acknowledged, at)

    def device_gets(self, request: httpx.Request, status: int, body: bytes) -> None:
        if request.url.path == _STATUS:
            self.status_under_way = False
        if status != 200:
            return
        if request.url.path.startswith("/v1/gallery/"):
            head = json.loads(body)["head"]
            obj = next(value for value in head.values() if isinstance(value, dict))
            self._heard_head(obj["issued_at_ms"])
        if request.url.path == "/v1/verdicts/batch":
            answer = json.loads(body)
            self.checks.check(On.UPLOAD_ANSWERED, answer)
            self.history.say(
                "service", f"takes {len(answer['accepted'])} verdicts, knows {len(answer['duplicates'])}"
            )

    def office_gets(self, request: httpx.Request, status: int, body: bytes) -> None:
        if status == 200 and request.url.path.endswith("/inbox"):
            for record in json.loads(body)["data"]:
                self._heard_head(record["post"]["created_ms"])

    def _heard_head(self, issued_at_ms: int) -> None:
        self.history.newest_head_at_s = max(self.history.newest_head_at_s, self._issued_s(issued_at_ms))

    def _issued_s(self, issued_at_ms: int) -> float:
        """The simulation's time at which something was signed."""
        return (issued_at_ms - START_MS) / 1000

    def judge_end(self) -> None:
        device, history = self.world.device, self.history
        opened, palmd = device.opened, device.palmd
        rows = self.service_rows()
        names = frozenset(
            str(path.relative_to(self.world.device_disk.state))
            for path in self.world.device_disk.state.rglob("*")
            if path.is_file()
        )
        if opened is None or palmd is None or opened.gallery is None or self.world.server is None:
            if not history.revoked:
                self.checks.broken(
                    "the device serves at the end", "A core that is down is started.", "it does not run"
                )
            else:
                self._check_end(rows, {}, {}, names, None)
            return
        refs, decisions = journal_refs(opened, history.asked)
        self._check_end(rows, refs, decisions, names, palmd)

    def _check_end(
        self,
        rows: dict[str, JsonObject],
        refs: dict[int, str],
        decisions: dict[str, str],
        names: frozenset[str],
        palmd: Any,
    ) -> None:
        opened, server = self.world.device.opened, self.world.server
        state = None if server is None else server[1].state_of_stream(self.world.start.environment)
        gallery = None if opened is None else opened.gallery
        at = None if gallery is None else gallery.position
        self.checks.check(
            On.END,
            AtTheEnd(
                rows=rows,
                device_refs=refs,
                pending_uploads=0 if opened is None else opened.journal.pending_uploads(),
                position=(at.epoch, at.seq) if at else (0, 0),
                service_position=(state.epoch, state.seq) if state else (0, 0),
                proven=palmd is not None and palmd.gate.validator_kid is not None,
                last_passage_opened=self.world.people.opened_last,
                health=() if palmd is None else tuple(str(word) for word in palmd.health.words),
                state_files=names,
                refused_uploads={} if palmd is None else dict(palmd.carrier.refused_uploads),
                device_decisions=decisions,
                still_there=_still_there(None if self.history.wiped else opened, self.history.erased),
                wipe_is_known=self.world.lives_on_mail or self.wipe_is_known(),
                signed_evidence=0 if opened is None else _signed_evidence(opened.journal),
            ),
        )

    def wipe_is_known(self) -> bool:
        """Whether the service has the device's word that it is wiped."""
        if self.world.server is None:
            return False
        query = "SELECT status FROM devices WHERE device_id = :device_id"
        row = self.world.server[1].store.read_now(lambda tx: tx.one(query, device_id=DEVICE_ID))
        return row is not None and row["status"] == "wiped"

    def service_rows(self) -> dict[str, JsonObject]:
        """The service's records by verdict_ref."""
        if self.world.server is None:
            return {}
        rows = self.world.server[1].store.read_now(
            lambda tx: tx.all("SELECT verdict_id, verdict_seq, reconciliation, signed_decision FROM verdicts")
        )
        return {
            row["verdict_id"]: {
                "verdict_seq": row["verdict_seq"],
                "reconciliation": row["reconciliation"],
                "decision_ref": None
                if row["signed_decision"] is None
                else object_ref(json.loads(row["signed_decision"])),
            }
            for row in rows
        }


def _carried(journal: Journal, seq: int) -> set[str]:
    """What an outbox record carries; nothing in a report."""
    rows = journal._rows  # noqa: SLF001 - no program asks this
    return {kind for (kind,) in rows.execute("SELECT kind FROM outbox_items WHERE out_seq = ?", (seq,))}


def _signed_evidence(journal: Journal) -> int:
    rows = journal._rows  # noqa: SLF001 - no program asks this
    (count,) = rows.execute("SELECT count(*) FROM evidence WHERE backing = 'signed'").fetchone()
    return int(count)


def _still_there(opened: Opened | None, erased: Iterable[str]) -> frozenset[str]:
    """Who of the people who were erased has rows in the store of the gallery, in use or not."""
    if opened is None or opened.gallery is None:
        return frozenset()
    store = opened.gallery._store  # noqa: SLF001 - no program asks this
    people = {person for (person,) in store._db.execute("SELECT DISTINCT person FROM template")}  # noqa: SLF001
    return frozenset(ref for ref in erased if store._sealer.person(bytes.fromhex(ref)) in people)  # noqa: SLF001


def journal_refs(opened: Opened, asked: Iterable[str]) -> tuple[dict[int, str], dict[str, str]]:
    """verdict_seq to verdict_ref, and verdict_ref to the ref of its decision, of the txn_ids ``asked``."""
    refs, decisions = {}, {}
    for txn_id in asked:
        memory = opened.journal.find_txn(txn_id)
        if memory is not None and memory.verdict is not None:
            refs[memory.verdict.seq] = memory.verdict.ref
            if memory.decision_ref is not None:
                decisions[memory.verdict.ref] = memory.decision_ref
    return refs, decisions
