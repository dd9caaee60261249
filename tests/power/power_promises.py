"""What must hold on a disk after a power cut, whatever the cut left there.

`broken_promises` opens the state with the device's own code and compares it with what the outside world was
told before the cut; then it lets the device go on, and looks again.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from device.core.opening import Opened
from device.errors import DeviceError
from device.journal.journal import Journal
from device.trust.keystore import KeyStore
from device.trust.policy import read_policy
from device.trust.trust import save_trust
from device.values.transactions import StoredVerdict
from device.wipe.wipe import Wipe, WipeStage, confirm_wipe, finish_wipe
from gallery.gallery import Gallery
from link1.canonical import JsonObject
from link1.objects import PREV_REF_OF_FIRST, ErrorCode
from link1.signed import object_ref
from tests.device.core_makers import (
    DEVICE_ID,
    NOW_MS,
    REJECTED,
    HandClock,
    make_decision,
    make_request,
    sign_verdict,
    txn_id_of,
)
from tests.device.trust.pinned_makers import registered
from tests.gallery.gallery_service import who
from tests.power.power_device import config_of, opened

Said = dict[str, Any]


@dataclass
class Promises:
    """What the outside world knows, from the marks up to the cut."""

    provisioned: bool = False
    wipe: str = ""
    """The newest word about the wipe: wipe_ordered, wipe_begun, erased, confirmed."""
    asked: list[str] = field(default_factory=list)
    verdicts: dict[int, Said] = field(default_factory=dict)
    answers: dict[tuple[int, str], str] = field(default_factory=dict)
    unknown: set[int] = field(default_factory=set)
    evidence: list[Said] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    served: dict[int, set[str]] = field(default_factory=dict)
    """What the service has: number of a verdict to the names of what came with it."""
    sealed: dict[int, list[list[Any]]] = field(default_factory=dict)
    outbox: dict[int, Said] = field(default_factory=dict)
    receipt: int = 0
    inbox: int = 0
    streams: dict[tuple[int, int], Said] = field(default_factory=dict)
    page: tuple[int, int] = (0, 0)
    config_seq: int = 1
    forgettable: int = 0

    @classmethod
    def of(cls, marks: list[Said]) -> "Promises":
        promises = cls()
        for said in marks:
            promises._learn(said)
        return promises

    def _learn(self, said: Said) -> None:  # noqa: C901 - one line for each kind of mark
        match said["what"]:
            case "provisioned":
                self.provisioned = True
            case "wipe_ordered" | "wipe_begun" | "erased" | "confirmed" as word:
                self.wipe = word
            case "asked":
                self.asked.append(said["name"])
            case "verdict":
                self.verdicts[said["seq"]] = said
            case "decision" | "passage" as kind:
                self.answers[said["seq"], kind] = said["ref"]
            case "unknown":
                self.unknown.add(said["seq"])
            case "evidence":
                self.evidence.append(said)
            case "ended":
                self.ended.append(said["name"])
            case "served":
                self._serve(said["items"])
            case "sealing":
                self.sealed[said["seq"]] = said["items"]
            case "outbox":
                self.outbox[said["seq"]] = said
            case "receipt":
                self.receipt = said["upto"]
                for seq in range(1, said["upto"] + 1):
                    self._serve(self.sealed[seq])
            case "inbox":
                self.inbox = said["seq"]
            case "stream":
                self.streams.setdefault((said["epoch"], said["seq"]), said)
            case "page":
                self.page = (said["epoch"], said["seq"])
            case "config":
                self.config_seq = said["seq"]
            case "may_forget":
                self.forgettable = said["upto"]

    def _serve(self, items: list[list[Any]]) -> None:
        for seq, names in items:
            self.served.setdefault(seq, set()).update(names)


def broken_promises(state: Path, marks: list[Said]) -> list[str]:
    """Everything that does not hold of what lies in `state`; empty when all is well."""
    promises = Promises.of(marks)
    found: list[str] = []
    if not promises.provisioned:
        return _can_be_provisioned(state)
    try:
        wipe = finish_wipe(state)  # as palmd does, before anything is opened
        if wipe is not None:
            return _check_wiped(state, wipe, promises)
        if promises.wipe not in ("", "wipe_ordered"):
            return ["a wipe that was begun is forgotten"]
        with opened(state, HandClock()) as device:
            found += _look(device, promises)
            following = _go_on(device.journal)
        with opened(state, HandClock()) as device:
            again = device.journal.find_txn(following.wrapper["verdict"]["txn_id"])
            if again is None or again.verdict != following:
                found.append("a verdict made after the cut is gone at the next start")
    except (DeviceError, AssertionError) as error:
        found.append(f"{type(error).__name__}: {error}")
    return found


def _check_wiped(state: Path, wipe: Wipe, promises: Promises) -> list[str]:
    """A wipe that was begun has finished by itself: only its own memory stays, and the key to tell of it."""
    if not promises.wipe:
        return ["a wipe that nobody ordered"]
    found = []
    if promises.wipe == "confirmed" and wipe.stage is not WipeStage.CONFIRMED:
        found.append("the service's word that it knows of the wipe is forgotten")
    left = {str(path.relative_to(state)) for path in state.rglob("*") if not path.is_dir()}
    told = wipe.stage is WipeStage.CONFIRMED
    if left != ({"wipe.json"} if told else {"wipe.json", "keys/http.key"}):
        found.append(f"a wipe at {wipe.stage} leaves {sorted(left)}")
    if not told:
        again = confirm_wipe(state)
        if again is None or again.stage is not WipeStage.CONFIRMED or (state / "keys").exists():
            found.append("the wipe cannot be confirmed")
    return found


def _can_be_provisioned(state: Path) -> list[str]:
    """Nothing was promised yet: provisioning, begun again, comes to its end."""
    config = config_of(state)
    try:
        made = not KeyStore.exists(config.keys_dir)
        keys = KeyStore.create(config.keys_dir) if made else KeyStore.open(config.keys_dir)
        if not config.journal_path.exists():
            Journal.create(
                config.journal_path,
                device_id=DEVICE_ID,
                verdict_kid=keys.verdict.kid,
                data_key=keys.data_key,
            )
        save_trust(config.trust_path, registered(passage_sensor=True))
        with opened(state, HandClock()) as device:
            _go_on(device.journal)
    except DeviceError as error:
        return [f"cannot be provisioned any more: {error}"]
    return []


def _look(device: Opened, promises: Promises) -> list[str]:
    found: list[str] = []

    def must(holds: bool, what: str) -> None:
        if not holds:
            found.append(what)

    _check_verdicts(device.journal, promises, must)
    _check_uploads(device.journal, promises, must)
    _check_mail(device.journal, promises, must)
    policy = read_policy(device.trust.config, roots=device.trust.roots, taken_at_ms=NOW_MS)
    must(policy.config_seq in (promises.config_seq, promises.config_seq + 1), "the configuration fell back")
    must(device.gallery is not None, f"the gallery does not open: {device.gallery_fault}")
    if device.gallery is not None:
        _check_gallery(device.gallery, promises, must)
    return found


Must = Callable[[bool, str], None]


def _check_verdicts(journal: Journal, promises: Promises, must: Must) -> None:
    stored = {}
    for name in promises.asked:
        memory = journal.find_txn(txn_id_of(name))
        if memory is not None and memory.verdict is not None:
            stored[memory.verdict.seq] = memory
    for seq, said in promises.verdicts.items():
        memory = stored.get(seq)
        if memory is None:
            must(seq <= promises.forgettable, f"verdict {seq}, which the validator has, is gone")
            continue
        assert memory.verdict is not None
        must(memory.verdict.ref == said["ref"], f"verdict_seq {seq} stands for another verdict than was told")
        for kind, ref in (("decision", memory.decision_ref), ("passage", memory.passage_ref)):
            told = promises.answers.get((seq, kind))
            must(told is None or ref == told, f"the {kind} on verdict {seq} is gone")
    last = journal.last()
    top = last.verdict_seq if last else 0
    must(top >= max(promises.verdicts, default=0), "the newest verdict that was told is gone")
    must(top <= len(promises.asked), "there are more verdicts than were asked for")
    prev_ref, expected = PREV_REF_OF_FIRST, 1
    for seq in sorted(stored):
        verdict = stored[seq].verdict
        assert verdict is not None
        if seq != expected:
            must(seq - 1 <= promises.forgettable, f"the chain has a hole below {seq}")
        else:
            must(
                verdict.wrapper["verdict"]["prev_ref"] == prev_ref, f"prev_ref of {seq} is not its forerunner"
            )
        prev_ref, expected = verdict.ref, seq + 1
    must(expected == top + 1, "the newest verdict is not one that was asked for")
    for name in promises.ended:
        ended = journal.find_txn(txn_id_of(name))
        must(
            (ended is not None and ended.ended is ErrorCode.EXPIRED) or promises.forgettable > 0,
            "the end of a transaction is forgotten",
        )


def _check_uploads(journal: Journal, promises: Promises, must: Must) -> None:
    """What the service lacks is waiting for it."""
    waiting: dict[int, set[str]] = {}
    batch = journal.next_upload(100_000)
    for item in batch.items:
        waiting.setdefault(item["signed_verdict"]["verdict"]["verdict_seq"], set()).update(item)
    for seq in promises.verdicts:
        wanted = {"signed_verdict"}
        wanted |= {f"signed_{kind}" for kind in ("decision", "passage") if (seq, kind) in promises.answers}
        lacking = wanted - promises.served.get(seq, set())
        must(lacking <= waiting.get(seq, set()), f"nobody will send {sorted(lacking)} of verdict {seq}")


def _check_mail(journal: Journal, promises: Promises, must: Must) -> None:
    position = journal.mail.position()
    must(position.in_applied_seq >= promises.inbox, "an inbox record that was acknowledged counts as new")
    must(position.in_applied_seq <= promises.inbox + 1, "an inbox record counts as applied that never came")
    must(position.out_seq >= max(promises.outbox, default=0), "an outbox number would be given a second time")
    must(position.out_acked_seq <= promises.receipt, "a receipt counts that never came")
    for seq, said in promises.outbox.items():
        record = journal.mail.next_record(seq - 1)
        if record is None or record.seq != seq:
            must(seq <= promises.receipt, f"outbox record {seq} is gone before its receipt")
        else:
            same = hashlib.sha256(record.data).hexdigest() == said["sha256"]
            must(same, f"outbox record {seq} is another one than was shown")


def _check_gallery(gallery: Gallery, promises: Promises, must: Must) -> None:
    at = gallery.position
    must((at.epoch, at.seq) >= promises.page, f"the gallery fell back to {(at.epoch, at.seq)}")
    if at.seq == 0:
        must(gallery.count == 0, "a gallery at the beginning of its stream holds somebody")
        return
    stream = promises.streams.get((at.epoch, at.seq))
    if stream is None:
        must(False, f"the gallery stands at {(at.epoch, at.seq)}, where no page ended")
        return
    must(at.head.hex() == stream["head"], "the gallery's head is not the stream's")
    must(gallery.count == len(stream["holds"]), f"{gallery.count} templates, {len(stream['holds'])} expected")
    numbers = {number for one in promises.streams.values() for number in one["holds"]}
    for number in numbers:
        found = who(gallery, int(number))
        must(found == stream["holds"].get(number), f"palm {number} is {found}, half a page is in force")


def _go_on(journal: Journal) -> StoredVerdict:
    """The next verdict follows the newest one, and its decision is taken."""
    last = journal.last()
    request, wrapper = make_request("after the cut")

    def build(seq: int, prev_ref: str) -> JsonObject:
        return sign_verdict(request, REJECTED, seq, prev_ref)

    stored = journal.append_verdict(request.txn_id, object_ref(wrapper), build)
    expected = (last.verdict_seq + 1, last.verdict_ref) if last else (1, PREV_REF_OF_FIRST)
    assert (stored.seq, stored.wrapper["verdict"]["prev_ref"]) == expected
    _, decision = make_decision(stored)
    journal.record_decision(stored.ref, decision, awaits_passage=False)
    return stored
