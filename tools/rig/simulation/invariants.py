"""What must hold in every run, over all parties at once: one check for each sentence of the contract.

LINK: docs/reference/LINK1.md. SURFACE: docs/reference/DEVICE_SURFACE.md. DURABILITY, GALLERY:
docs/explanation. A check is called when its kind of fact appears, before the fact is noted in the history,
and returns what is wrong.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from device.core.gate import MAX_ASKING
from device.health import HealthWord
from device.mail import outbox
from link1.canonical import JsonObject
from link1.signed import object_ref
from tools.rig.simulation.history import History, Place, SeenVerdict
from tools.rig.simulation.service import TTL_MS

FRESHNESS_SLACK_S: Final = 0.5
"""A frame is examined, and clocks run at their own rates."""
_MOST_WAITING: Final = MAX_ASKING + 48
"""What else waits: writes of answers and ends, the mail, the uploads."""
_DESTROYED: Final = ("keys/verdict", "keys/seal", "keys/data", "gallery/", "journal.db")
"""By a wipe. The http key goes when the service has confirmed it."""


class On(StrEnum):
    """The kinds of facts."""

    VERDICT_SENT = "verdict sent"
    VERDICT_DURABLE = "verdict durable"
    ERROR_SENT = "error sent"
    STATUS_SENT = "status sent"
    MAIL_ACK_SENT = "mail_ack sent"
    DECISION_SENT = "decision sent"
    PASSAGE_SENT = "passage sent"
    UNKNOWN_SENT = "unknown sent"
    ACKNOWLEDGED = "acknowledged"
    MESSAGE_BEGUN = "message begun"
    VALIDATOR_PROVEN = "validator proven"
    VERDICT_HEARD = "verdict heard"
    ACTUATED = "actuated"
    CORE_STARTED = "core started"
    VALIDATOR_STARTED = "validator started"
    OUTBOX_COLLECTED = "outbox collected"
    UPLOAD_ANSWERED = "upload answered"
    DELTAS_ASKED = "deltas asked"
    POWER_COULD_GO = "power could go"
    STEP = "step"
    WORK_WAITS = "work waits"
    OUTBOX_GREW = "outbox grew"
    END = "end"


@dataclass(frozen=True, slots=True)
class Started:
    """What a device's core found on its disk at a start."""

    last_seq: int
    last_ref: str
    position: tuple[int, int] | None
    """None where the disk did not let it be opened."""
    head16: str
    in_applied_seq: int
    refs: dict[int, str]
    ended: dict[str, str]
    still_there: frozenset[str]
    """Who was erased and has rows in the gallery's store; none where the disk refuses to delete any."""


@dataclass(frozen=True, slots=True)
class MadeVerdict:
    """The gate calls a verdict durable."""

    seq: int
    decision: str


@dataclass(frozen=True, slots=True)
class AtTheEnd:
    """Everything at rest after all troubles were over. `rows`: the service's records by verdict_ref."""

    rows: dict[str, JsonObject]
    device_refs: dict[int, str]
    pending_uploads: int
    position: tuple[int, int]
    service_position: tuple[int, int]
    proven: bool
    last_passage_opened: bool | None
    health: tuple[str, ...]
    state_files: frozenset[str]
    refused_uploads: dict[str, int]
    device_decisions: dict[str, str]
    """verdict_ref to object_ref of the decision in the device's journal."""
    still_there: frozenset[str]
    """Who was erased and has rows in the gallery's store."""
    wipe_is_known: bool
    """Whether the service knows that the device is wiped, or hears nothing of it but by mail."""
    signed_evidence: int
    """How many wrong decisions and passages, signed by the validator, the device has kept."""


@dataclass(frozen=True, slots=True)
class Invariant:
    name: str
    sentence: str
    on: On
    check: Callable[[History, Any], str | None]


INVARIANTS: Final[list[Invariant]] = []


def holds(
    on: On, sentence: str
) -> Callable[[Callable[[History, Any], str | None]], Callable[[History, Any], str | None]]:
    """Make a function the check of a sentence of the contract."""

    def add(check: Callable[[History, Any], str | None]) -> Callable[[History, Any], str | None]:
        INVARIANTS.append(Invariant(check.__name__.replace("_", " "), sentence, on, check))
        return check

    return add


@dataclass(frozen=True, slots=True)
class Violation:
    """A sentence of the contract that does not hold, and what was found."""

    name: str
    sentence: str
    what: str


@dataclass
class Checks:
    """All invariants over one history. The first violation is kept, and ends the run."""

    history: History
    violation: Violation | None = None
    counted: int = 0
    _by_kind: dict[On, list[Invariant]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for invariant in INVARIANTS:
            self._by_kind.setdefault(invariant.on, []).append(invariant)

    def check(self, on: On, fact: Any) -> None:
        """Hold a fact against every invariant of its kind."""
        for invariant in self._by_kind.get(on, ()):
            self.counted += 1
            what = invariant.check(self.history, fact)
            if what is not None:
                self.broken(invariant.name, invariant.sentence, what)

    def broken(self, name: str, sentence: str, what: str) -> None:
        """Note what does not hold."""
        if self.violation is None:
            self.violation = Violation(name, sentence, what)
            self.history.say("INVARIANT", f"{name}: {what}")


# ---- verdicts


@holds(
    On.VERDICT_SENT,
    "LINK: a verdict that you can prove later to anyone; verdict_seq rises by 1 and is used once.",
)
def a_verdict_seq_is_used_once(history: History, verdict: SeenVerdict) -> str | None:
    known = history.verdict_at.get(verdict.seq)
    return (
        f"verdict_seq {verdict.seq} is {known} and {verdict.ref}"
        if known not in (None, verdict.ref)
        else None
    )


@holds(
    On.VERDICT_SENT,
    "LINK §4: prev_ref is the verdict_ref of the verdict before; the first one's is all zeros.",
)
def the_chain_of_prev_ref_holds(history: History, verdict: SeenVerdict) -> str | None:
    before = history.verdict_at.get(verdict.seq - 1) if verdict.seq > 1 else "0" * 32
    named = verdict.body["prev_ref"]
    return (
        f"verdict {verdict.seq} names {named}, before it is {before}" if before not in (None, named) else None
    )


@holds(On.VERDICT_SENT, "LINK: never two verdicts for one request.")
def one_verdict_for_a_txn_id(history: History, verdict: SeenVerdict) -> str | None:
    known = history.verdict_of.get(verdict.txn_id)
    return f"txn {verdict.txn_id} has {known} and {verdict.ref}" if known not in (None, verdict.ref) else None


@holds(On.VERDICT_SENT, "LINK: never a verdict that you did not ask for.")
def only_what_was_asked_is_answered(history: History, verdict: SeenVerdict) -> str | None:
    return None if verdict.txn_id in history.asked else f"nobody asked for {verdict.txn_id}"


@holds(
    On.VERDICT_SENT,
    "LINK §4: txn_id, gate_id, dbd_id, nonce_b64, issued_at_ms, ttl_ms (all as you sent them).",
)
def a_verdict_repeats_its_request(history: History, verdict: SeenVerdict) -> str | None:
    asked = history.asked.get(verdict.txn_id)
    if asked is None:
        return None
    wrong = [name for name, value in asked.body.items() if name != "v" and verdict.body.get(name) != value]
    return f"verdict {verdict.seq} has other {', '.join(wrong)}" if wrong else None


@holds(
    On.VERDICT_SENT,
    "LINK §4: ended txn_ids are remembered like verdicts: a replayed request never burns a verdict.",
)
def an_ended_request_gets_no_verdict(history: History, verdict: SeenVerdict) -> str | None:
    code = history.ended.get(verdict.txn_id)
    if history.ended_unkept.get(verdict.txn_id, history.incarnation) != history.incarnation:
        return None  # a disk that cannot be written remembers nothing over a restart
    return f"{verdict.txn_id} ended as {code} and has verdict {verdict.seq}" if code else None


@holds(On.VERDICT_SENT, "DURABILITY: a verdict is durable before its first byte leaves.")
def a_sent_verdict_is_durable(history: History, verdict: SeenVerdict) -> str | None:
    if verdict.seq > history.durable_last:
        return f"verdict {verdict.seq} leaves, the journal ends at {history.durable_last}"
    return None


@holds(
    On.POWER_COULD_GO, "DURABILITY: a verdict that has left is on the disk, if the power goes at that moment."
)
def what_left_is_on_the_disk(_history: History, found: tuple[SeenVerdict, str | None]) -> str | None:
    verdict, ref = found
    return None if ref == verdict.ref else f"verdict {verdict.seq} has left, on the disk its txn has {ref}"


@holds(On.VERDICT_DURABLE, "SURFACE: numbers of verdicts have no gap.")
def verdicts_are_numbered_without_a_gap(history: History, made: MadeVerdict) -> str | None:
    left_out = made.seq - history.durable_last - 1
    fits = 0 <= left_out <= history.witness_failures
    return None if fits else f"{made.seq} follows {history.durable_last}"


@holds(On.VERDICT_DURABLE, "LINK §4: one hand, one verdict: a hand answers one request at most.")
def one_hand_one_verdict(history: History, made: MadeVerdict) -> str | None:
    earlier = history.visits.get((history.visit, history.incarnation), [])
    # On a slow disk a verdict may become durable while the next hand is there already.
    if made.decision == "abstain" or not earlier or history.slow_s:
        return None
    return f"the hand of visit {history.visit} has verdicts {earlier} and {made.seq}"


@holds(
    On.VERDICT_SENT,
    "LINK §4: accept MATCH means a live hand, a good capture, this person; subject_ref in accepts only.",
)
def only_an_accept_names_a_person(_history: History, verdict: SeenVerdict) -> str | None:
    names = "subject_ref" in verdict.body
    return (
        None
        if names == (verdict.body["decision"] == "accept")
        else f"verdict {verdict.seq} names a person wrongly"
    )


@holds(
    On.VERDICT_SENT,
    "SURFACE: a tombstone removes every palm of a person; suspend takes a person out of the match set.",
)
def who_is_not_in_the_gallery_is_not_recognised(history: History, verdict: SeenVerdict) -> str | None:
    if verdict.body["decision"] != "accept":
        return None
    at = verdict.body["gallery"]
    step = history.step_at(at["epoch"], at["seq"])
    if step is None:
        return f"verdict {verdict.seq} names gallery {at['epoch']}/{at['seq']}, which never was"
    subject = verdict.body["subject_ref"]
    return None if subject in step.live else f"{subject} is not to be recognised at {at['epoch']}/{at['seq']}"


@holds(
    On.VERDICT_SENT, "LINK §4: gallery {stream, epoch, seq, head16} is how far the device's gallery has come."
)
def a_verdict_names_a_gallery_of_the_service(history: History, verdict: SeenVerdict) -> str | None:
    at = verdict.body["gallery"]
    step = history.step_at(at["epoch"], at["seq"])
    if at["seq"] == 0:
        return None
    if step is None or step.head16 != at["head16"]:
        return (
            f"verdict {verdict.seq} names {at}, the service has {step.head16 if step else 'no such position'}"
        )
    return None


@holds(
    On.VERDICT_SENT,
    "GALLERY: past its time to live the gallery recognises no one, whatever is withheld or replayed; a clock"
    " that is set back at a reboot stretches that by the time since the device last noted it.",
)
def past_the_ttl_no_one_is_recognised(history: History, verdict: SeenVerdict) -> str | None:
    if verdict.body["decision"] != "accept":
        return None
    at = verdict.body["gallery"]
    old_s = history.superseded_at_s(at["epoch"], at["seq"])
    since_s = min(history.newest_head_at_s, old_s if old_s is not None else history.newest_head_at_s)
    # It may wait for a slow disk after that, and be sent by the next start.
    age_s = history.left_open_at_s.get(verdict.txn_id, verdict.at_s) - since_s
    counted_s = since_s
    if history.clock_was_wrong:  # then a head that was held back may look like a new one, once
        counted_s = max(since_s, history.held_since_s(since_s))
    hidden_s = sum(hidden_s for at_s, hidden_s in history.hidden_s.values() if at_s >= counted_s)
    slack_s = FRESHNESS_SLACK_S + history.slow_s + counted_s - since_s + hidden_s
    return (
        f"verdict {verdict.seq} recognises by a gallery {age_s:.1f} s old"
        if age_s > TTL_MS / 1000 + slack_s
        else None
    )


@holds(On.VERDICT_DURABLE, "LINK §4: NOT_READY: … or the device was revoked.")
def a_revoked_device_recognises_no_one(history: History, made: MadeVerdict) -> str | None:
    return f"verdict {made.seq} after the wipe began" if history.wiped and made.decision == "accept" else None


# ---- ends, status


@holds(
    On.ERROR_SENT,
    "LINK §4: txn_id is present in `expired`, `cancelled`, `txn_conflict` of a request whose signature held.",
)
def an_error_names_a_known_request(history: History, error: JsonObject) -> str | None:
    txn_id = error.get("txn_id")
    return (
        None
        if txn_id is None or txn_id in history.asked
        else f"{error['code']} names {txn_id}, which nobody sent"
    )


@holds(On.ERROR_SENT, "LINK §4: if the device has decided already you get the stored verdict, not an end.")
def a_decided_request_does_not_end(history: History, error: JsonObject) -> str | None:
    if error["code"] not in ("expired", "cancelled") or error["about"] != "request":
        return None
    ref = history.verdict_of.get(error.get("txn_id", ""))
    return f"{error['txn_id']} has verdict {ref} and ends as {error['code']}" if ref else None


@holds(
    On.ERROR_SENT,
    "LINK: an honest validator's messages are neither malformed nor badly signed, and no evidence.",
)
def no_honest_message_is_refused(history: History, error: JsonObject) -> str | None:
    bad = error["code"] in ("malformed", "bad_signature", "wrong_gate", "bad_decision", "txn_conflict")
    if error["code"] == "bad_decision" and history.complaints < history.forged:
        return None
    # A pull beyond a record that a receipt has taken away is answered so (LINK §5).
    return f"{error['code']} about {error['about']}" if bad and error["about"] != "mail_pull" else None


@holds(On.STATUS_SENT, "LINK §4: last is never behind what you have acted on.")
def a_status_is_not_behind_what_was_acted_on(history: History, status: JsonObject) -> str | None:
    last = status["last"]["verdict_seq"] if status["last"] else 0
    return (
        f"last is {last}, acted on {history.highest_actuated_seq}"
        if last < history.highest_actuated_seq
        else None
    )


@holds(
    On.STATUS_SENT, "GALLERY 2: the position never moves to a smaller epoch, nor to a smaller seq inside one."
)
def the_named_position_never_falls(history: History, status: JsonObject) -> str | None:
    at = (status["gallery"]["epoch"], status["gallery"]["seq"])
    absent = at[1] == 0 and "STORE_FAULT" in status["health"]  # its disk did not let it be opened
    fallen = at < history.in_status and not history.wiped and not absent
    return f"{at} after {history.in_status}" if fallen else None


@holds(On.DELTAS_ASKED, "SURFACE: after_seq is also the acknowledgement of everything up to it.")
def nothing_is_acknowledged_before_it_is_applied(history: History, at: tuple[int, int]) -> str | None:
    return f"{at} acknowledged, the device is at {history.position}" if at > history.position else None


@holds(On.STEP, "GALLERY 1: position and contents belong together; the position never falls.")
def the_position_never_falls(history: History, at: tuple[int, int]) -> str | None:
    return f"{at} after {history.position}" if at < history.position else None


@holds(
    On.WORK_WAITS,
    "CHANGELOG: at most 96 messages of the cable wait for the memory of the journal.",
)
def what_waits_for_the_journal_is_bounded(_history: History, count: int) -> str | None:
    return f"{count} pieces of work wait for one thread" if count > _MOST_WAITING else None


@holds(On.OUTBOX_GREW, "DURABILITY: of reports and batches of evidence 256 wait for a receipt.")
def evidence_waits_for_receipts(_history: History, grew: tuple[int, set[str]]) -> str | None:
    unsettled, carries = grew
    beyond = unsettled > outbox.MAX_UNSETTLED and carries and "verdicts" not in carries
    return f"with {unsettled} unsettled records one of {carries} is made" if beyond else None


# ---- the validator


@holds(
    On.VALIDATOR_PROVEN,
    "LINK §3: a key that the service has revoked never counts again. Otherwise a key counts while now lies in"
    " its span.",
)
def only_a_key_that_counts_proves_itself(_history: History, proven: tuple[str, bool]) -> str | None:
    kid, counts = proven
    return None if counts else f"{kid} proved itself, and does not count"


@holds(On.ACTUATED, "LINK §4: you may open only for the first copy.")
def a_verdict_opens_once(history: History, verdict: JsonObject) -> str | None:
    return f"{verdict['ref']} opens again" if verdict["ref"] in history.actuated else None


@holds(
    On.ACTUATED,
    "LINK §4: … equal those of your own request that is open now: not cancelled, not replaced, not answered.",
)
def only_an_open_request_opens(history: History, verdict: JsonObject) -> str | None:
    why = history.closed.get(verdict["txn_id"])
    if verdict["txn_id"] not in history.asked:
        return "a request that was never sent"
    return f"{verdict['txn_id']} was over: {why}" if why else None


@holds(
    On.ACTUATED,
    "LINK §4: not more than ttl_ms + 2 s have passed, on your monotonic clock, since its last sending.",
)
def no_late_verdict_opens(history: History, verdict: JsonObject) -> str | None:
    late_ms = verdict["now_ms"] - history.last_sent_ms.get(verdict["txn_id"], 0) - verdict["ttl_ms"] - 2_000
    return f"{late_ms} ms too late" if late_ms > 0 else None


@holds(On.ACTUATED, "LINK §4: verdict_seq is above the highest that you have acted on.")
def only_a_newer_verdict_opens(history: History, verdict: JsonObject) -> str | None:
    seq = verdict["seq"]
    return f"{seq} after {history.highest_actuated_seq}" if seq <= history.highest_actuated_seq else None


@holds(On.ACTUATED, "LINK: open only for accept.")
def only_an_accept_opens(_history: History, verdict: JsonObject) -> str | None:
    return None if verdict["decision"] == "accept" else f"{verdict['decision']} opens"


@holds(
    On.DECISION_SENT,
    "LINK §4: a copy of a verdict that you have answered gets the same decision, byte for byte.",
)
def one_decision_for_a_verdict(history: History, wrapper: JsonObject) -> str | None:
    known = history.decisions.get(wrapper["decision_obj"]["verdict_ref"])
    return (
        f"two decisions on {wrapper['decision_obj']['verdict_ref']}" if known not in (None, wrapper) else None
    )


@holds(On.VERDICT_HEARD, "LINK §1: a mid already delivered: ACK again, do not deliver again.")
def a_message_is_delivered_once(history: History, _ref: str) -> str | None:
    heard, said = history.verdicts_heard, history.verdicts_said
    return f"{heard} verdicts arrived, {said} were sent" if heard > said else None


@holds(
    On.VERDICT_HEARD, "LINK §1: a channel is in order: what is acknowledged was delivered before the next."
)
def no_message_is_missing_before_another(history: History, ref: str) -> str | None:
    said = history.said_in_session
    missing = said[: said.index(ref)] if ref in said else []
    return f"{ref} arrived, and not what was sent before it: {missing}" if missing else None


@holds(On.ACKNOWLEDGED, "LINK §1: a message is acknowledged when all of its slices have come.")
def what_is_acknowledged_has_come(_history: History, found: tuple[Place, set[Place]]) -> str | None:
    place, whole = found
    return None if place in whole else f"ACK of {place}, which has not come whole"


@holds(On.MESSAGE_BEGUN, "LINK §1: stop and wait: the next message begins when this one is acknowledged.")
def one_message_is_in_flight(_history: History, found: tuple[Place, set[Place]]) -> str | None:
    before, acks = found
    return None if before in acks else f"the message after {before} begins, which was not acknowledged"


@holds(On.UNKNOWN_SENT, "LINK §4: unknown is for those that you know you have not acted on and never will.")
def what_was_acted_on_is_not_unknown(history: History, refs: list[str]) -> str | None:
    acted_on = [ref for ref in refs if ref in history.actuated]
    return f"unknown, and the turnstile opened for it: {acted_on}" if acted_on else None


@holds(
    On.DECISION_SENT,
    "LINK §4: make decision_seq durable before you open; it rises by 1 and survives restarts.",
)
def a_decision_seq_is_used_once(history: History, wrapper: JsonObject) -> str | None:
    seq = wrapper["decision_obj"]["decision_seq"]
    return (
        f"decision_seq {seq} twice"
        if history.decision_at.get(seq) not in (None, object_ref(wrapper))
        else None
    )


@holds(On.PASSAGE_SENT, "LINK §4: so does dbd_event_seq for passages.")
def a_dbd_event_seq_is_used_once(history: History, wrapper: JsonObject) -> str | None:
    seq = wrapper["passage"]["dbd_event_seq"]
    return (
        f"dbd_event_seq {seq} twice"
        if history.passage_at.get(seq) not in (None, object_ref(wrapper))
        else None
    )


@holds(
    On.VALIDATOR_STARTED, "LINK §4: decision_seq and that highest verdict_seq are durable before you open."
)
def the_validators_counters_survive(history: History, memory: Any) -> str | None:
    used = max(history.decision_at, default=0)
    if memory.decision_seq < used:
        return f"decision_seq is {memory.decision_seq}, {used} was used"
    acted = history.highest_actuated_seq
    return (
        f"highest_verdict_seq is {memory.highest_verdict_seq}, {acted} was acted on"
        if memory.highest_verdict_seq < acted
        else None
    )


# ---- after a restart of the device


@holds(On.CORE_STARTED, "DURABILITY: nothing that left the device is missing after a power cut.")
def every_sent_verdict_survives(history: History, started: Started) -> str | None:
    for seq, ref in history.verdict_at.items():
        if started.refs.get(seq) != ref:
            return f"verdict {seq} was {ref}, after the start it is {started.refs.get(seq)}"
    return None


@holds(
    On.CORE_STARTED,
    "DURABILITY: the end of a request is durable before it is said, on a disk that can be written.",
)
def every_told_end_survives(history: History, started: Started) -> str | None:
    for txn_id, code in history.ended.items():
        if txn_id not in history.ended_unkept and started.ended.get(txn_id) != code:
            return f"{txn_id} ended as {code}, after the start it is {started.ended.get(txn_id)}"
    return None


@holds(On.CORE_STARTED, "SURFACE: what was acknowledged was applied, and stays so.")
def the_acknowledged_gallery_survives(history: History, started: Started) -> str | None:
    lost = started.position is not None and started.position < history.acknowledged
    return f"{started.position} after {history.acknowledged}" if lost else None


@holds(On.CORE_STARTED, "GALLERY: after power loss a page is there whole, or not at all.")
def the_gallery_is_one_of_the_services(history: History, started: Started) -> str | None:
    if started.position is None:
        return None
    step = history.step_at(*started.position)
    if started.position[1] == 0 or (step is not None and step.head16 == started.head16):
        return None
    return f"{started.position} has head {started.head16}, the service's is {step.head16 if step else 'none'}"


@holds(On.CORE_STARTED, "GALLERY: beyond a tombstone no power cut leaves anything of that person.")
def who_is_erased_is_gone_after_a_start(history: History, started: Started) -> str | None:
    at = started.position
    left = {ref for ref in started.still_there if at is not None and at >= history.erased[ref]}
    return f"at {at} there are rows of {sorted(left)}" if left else None


@holds(On.END, "GALLERY: nothing of a person who was erased stays in the files.")
def who_is_erased_is_gone_at_the_end(_history: History, end: AtTheEnd) -> str | None:
    return f"there are rows of {sorted(end.still_there)}" if end.still_there else None


@holds(On.CORE_STARTED, "LINK §5: applied: this seq is done with, durably.")
def an_applied_record_stays_applied(history: History, started: Started) -> str | None:
    found, told = started.in_applied_seq, history.settled_inbox
    return f"in_applied_seq is {found}, {told} was called applied" if found < told else None


@holds(On.MAIL_ACK_SENT, "LINK §5: the device takes the next seq and no other.")
def the_inbox_advances_by_one(history: History, ack: JsonObject) -> str | None:
    if ack["applied_seq"] < history.settled_inbox:
        return f"applied_seq {ack['applied_seq']} after {history.settled_inbox}"
    return None


@holds(On.OUTBOX_COLLECTED, "SURFACE: the same record under a seq; another one under it is a conflict.")
def an_outbox_seq_is_used_once(history: History, record: tuple[int, bytes]) -> str | None:
    known = history.outbox.get(record[0])
    return f"outbox record {record[0]} has other bytes" if known not in (None, record[1]) else None


# ---- the service


@holds(
    On.UPLOAD_ANSWERED,
    "SURFACE: what is refused names a code; an honest device's verdicts are never refused.",
)
def no_honest_upload_is_refused(history: History, answer: JsonObject) -> str | None:
    forged = "bad_decision" if history.forged else None  # which the device passes on
    refused = [item for item in answer["rejected"] if item["code"] != forged]
    return f"refused: {refused}" if refused else None


@holds(On.END, "SURFACE: every durable verdict reaches the service exactly once in the end.")
def every_verdict_reaches_the_service(history: History, end: AtTheEnd) -> str | None:
    missing = [seq for seq, ref in end.device_refs.items() if ref not in end.rows and ref not in history.lost]
    if history.revoked:
        return None
    return (
        f"the service lacks {missing}, {end.pending_uploads} uploads wait"
        if missing or end.pending_uploads
        else None
    )


@holds(On.END, "SURFACE: the service knows no verdict that the device does not.")
def the_service_knows_no_other_verdict(history: History, end: AtTheEnd) -> str | None:
    known = set(end.device_refs.values()) | set(history.verdicts) | history.durable_refs
    strange = [ref for ref in end.rows if ref not in known]
    return f"{strange} are of nobody" if len(strange) > history.witness_failures else None


@holds(On.END, "SURFACE: conflict is for signed objects that do not agree, and for a gap.")
def no_record_is_in_conflict(history: History, end: AtTheEnd) -> str | None:
    if history.revoked:
        return None
    seqs = {row["verdict_seq"] for row in end.rows.values()}
    bad = [
        ref
        for ref, row in end.rows.items()
        if row["reconciliation"] == "conflict"
        and not (history.lost and row["verdict_seq"] - 1 not in seqs)  # a restore has left the gap
    ]
    return f"{bad} are in conflict" if bad else None


@holds(On.END, "SURFACE: what a later item adds is taken: a decision that the device has, the service has.")
def every_decision_reaches_the_service(history: History, end: AtTheEnd) -> str | None:
    if history.revoked:
        return None
    missing = [
        ref
        for ref, decision in end.device_decisions.items()
        if end.rows.get(ref, {}).get("decision_ref") != decision and ref not in history.lost
    ]
    return f"the service lacks the decisions on {missing}" if missing else None


@holds(On.END, "LINK §4: an opened turnstile has its decision: resolve asks until it is known.")
def every_opening_is_accounted_for(history: History, end: AtTheEnd) -> str | None:
    if history.revoked:
        return None
    lost = [ref for ref in history.actuated if ref not in end.device_decisions]
    return f"the turnstile opened for {lost}, and the device never heard" if lost else None


@holds(On.END, "SURFACE: the device follows the gallery: at rest it is where the service is.")
def the_gallery_catches_up(history: History, end: AtTheEnd) -> str | None:
    if history.revoked:
        return None
    return (
        None
        if end.position == end.service_position
        else f"the device is at {end.position}, the service at {end.service_position}"
    )


@holds(
    On.END,
    "LINK §3: what completes something under the key that proved itself is no evidence, whatever it names.",
)
def nothing_of_an_honest_validators_is_evidence(_history: History, end: AtTheEnd) -> str | None:
    return f"{end.signed_evidence} of its messages are kept as wrong" if end.signed_evidence else None


@holds(On.END, "LINK §1: the cable comes back by itself.")
def the_session_comes_back(history: History, end: AtTheEnd) -> str | None:
    return None if end.proven or history.revoked else "no session, long after the last trouble"


@holds(On.END, "LINK §4: a palm in the gallery opens the gate when nothing is wrong.")
def a_passage_succeeds_at_the_end(history: History, end: AtTheEnd) -> str | None:
    if history.revoked or end.last_passage_opened is not False:
        return None
    return f"nothing is wrong and the gate stays shut; health: {' '.join(end.health) or 'empty'}"


@holds(
    On.END,
    "SURFACE: the journal halts (ROLLED_BACK) only when its storage went back, and a crash is not that.",
)
def an_honest_disk_never_halts_the_journal(_history: History, end: AtTheEnd) -> str | None:
    return "ROLLED_BACK after nothing but power cuts" if HealthWord.ROLLED_BACK in end.health else None


@holds(On.END, "SURFACE: a wiped device has no keys left, and the service knows that it is wiped.")
def a_revoked_device_ends_wiped(history: History, end: AtTheEnd) -> str | None:
    if not history.revoked:
        return None
    left = sorted(name for name in end.state_files if name.startswith(_DESTROYED))
    return f"left behind: {left}" if left else None


@holds(On.END, "SURFACE: the http key goes last, after the 204 or 401 of `wiped`.")
def the_service_knows_of_the_wipe(history: History, end: AtTheEnd) -> str | None:
    return "the service has heard of no wipe" if history.revoked and not end.wipe_is_known else None
