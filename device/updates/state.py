"""The state of updates as one value, with all its changes. Sans-I/O; `store` keeps it in updates/state.json,
replaced as a whole.

    none ─manifest─▶ receiving ─all chunks, hash, self-test─▶ waiting ─switch─▶ trial ─healthy─▶ in force
                         │                                       ▲                │
                         └─▶ failed, not tried again     a model: for its         └─▶ failed, not tried again;
                                                         gallery epoch                the previous one is back

1. The release_seq of a kind never decreases, and is on the disk before anything of its release is used.
2. A waiting model takes effect only together with a gallery of its model_id (device surface §6). The content
   of the gallery determines the model (`model_for`), so the gallery's transaction is the one durable step
   that switches both: after a power cut at any point, the next start chooses the same model.
3. A model on trial that was started before, and ended without proving itself, gives way to the previous one.
4. A release that came by network takes effect only while an offer of the last day names it (`may_switch`).
   When the service offers it no longer, it is withdrawn, and may be taken again.
5. A model that comes with newer software waits for its gallery epoch too: until then the model that was
   shipped before takes its place (`shipped_stays`).
"""

from dataclasses import dataclass, replace
from typing import Annotated, Final

from device.errors import UpdateRefused
from device.updates.manifest import Manifest, Offer, ReleaseKind, ReleaseSeq, Seq
from link1.members import NAME
from link1.wire import WireObject

SHIPPED: Final = 0
"""Takes the place of a release_seq for the model that came with the software."""
STARTS_WHERE_THE_OLD_ONE_SERVES: Final = 1
STARTS_WHERE_IT_DOES_NOT: Final = 3
"""With the gallery of a new epoch the previous model recognises no one, and a power cut does not prove a
fault."""
OFFER_HOLDS_MS: Final = 24 * 3600 * 1000
"""How long a release that came by network may take effect after the offer that names it was issued."""


class ModelSlot(WireObject):
    """A model on the disk that has passed its self-test."""

    release_seq: ReleaseSeq
    version: str
    model_id: Annotated[str, NAME]
    name: str = "model"


class ModelTrial(WireObject):
    """A model in force that has not proved itself; `starts` counts the program starts with it."""

    release_seq: ReleaseSeq
    back_to: Seq
    starts: Seq


class ReleaseNote(WireObject):
    """A release of which only its state is left to report; `code` says why it failed."""

    release_seq: ReleaseSeq
    kind: ReleaseKind
    version: str
    code: str = ""
    name: str = "release"


@dataclass(frozen=True, slots=True)
class GalleryFacts:
    """The gallery's epoch, and the model of its templates, None while there are none."""

    epoch: int
    model_id: str | None


class UpdateState(WireObject):
    """See the module. `receiving` and `app` are manifests; `model`, `previous` and `waiting` name slots by
    release_seq. `home_epoch`: the last gallery epoch known to fit the model in force. `app_seq`, `model_seq`:
    the highest release_seq accepted of each kind. `installed`: the software that came as a release.
    `failed`: the newest release that failed, until a newer one of its kind is in place. `withdrawn`: the
    release of each kind that was dropped before it took effect. `offer`: the newest one. `by_network`: the
    releases that need it. A member that the file lacks has its default."""

    app_seq: Seq = 0
    model_seq: Seq = 0
    receiving: Manifest | None = None
    app: Manifest | None = None
    slots: tuple[ModelSlot, ...] = ()
    model: Seq = SHIPPED
    previous: Seq | None = None
    waiting: Seq | None = None
    home_epoch: Seq = 0
    trial: ModelTrial | None = None
    failed: ReleaseNote | None = None
    installed: ReleaseNote | None = None
    withdrawn: tuple[ReleaseNote, ...] = ()
    offer: Offer | None = None
    by_network: tuple[ReleaseSeq, ...] = ()

    @property
    def release_seq(self) -> int:
        """The highest of both kinds."""
        return max(self.app_seq, self.model_seq)

    def newest(self, kind: ReleaseKind) -> int:
        """The highest release_seq accepted of a kind."""
        return self.app_seq if kind is ReleaseKind.APP else self.model_seq

    def may_switch(self, release_seq: int, now_ms: int) -> bool:
        """Whether a release may take effect at `now_ms` (epoch)."""
        if release_seq not in self.by_network:
            return True
        offer = self.offer
        return (
            offer is not None
            and release_seq in offer.release_seqs
            and now_ms - offer.issued_at_ms <= OFFER_HOLDS_MS
        )

    def slot(self, release_seq: int) -> ModelSlot | None:
        return next((slot for slot in self.slots if slot.release_seq == release_seq), None)

    def model_id(self, release_seq: int, shipped_id: str) -> str:
        """The model_id of a slot; that of the shipped model for 0."""
        slot = self.slot(release_seq)
        return shipped_id if slot is None else slot.model_id


def offered(state: UpdateState, manifest: Manifest, *, by_network: bool = False) -> UpdateState:
    """A verified manifest has arrived; the same value when it is being received or was received before.

    What another carrier brings needs no offer. Raises UpdateRefused.
    """
    seq, newest = manifest.release_seq, state.newest(manifest.kind)
    if seq < newest:
        raise UpdateRefused(
            "release_rollback",
            f"release {seq} is older than release {newest}, which was accepted before; give the release a "
            "higher release_seq",
        )
    if seq == newest and all(seq != note.release_seq for note in state.withdrawn):
        known = state.receiving
        if known is not None and known.release_seq == seq and known.sha256 != manifest.sha256:
            raise UpdateRefused(
                "release_conflict",
                f"another release {seq} is being received; give this one a higher release_seq",
            )
        return state if by_network else _needs_no_offer(state, seq)
    if state.receiving is not None:
        # The service offers it again; a carrier without an offer brings one release after the other.
        state = withdrawn(state, state.receiving.release_seq)
    state = _accepted(_needs_no_offer(state, seq), manifest)
    return replace(
        state, receiving=manifest, by_network=(*state.by_network, seq) if by_network else state.by_network
    )


def refused_offer(state: UpdateState, manifest: Manifest, code: str) -> UpdateState:
    """A release that was offered by network cannot be taken; its release_seq is used."""
    return replace(_accepted(state, manifest), failed=_note_of(manifest, code))


def newly_offered(state: UpdateState, offer: Offer) -> UpdateState:
    """The service has signed a new offer: what came by network and is not in it is withdrawn."""
    for release_seq in state.by_network:
        if release_seq not in offer.release_seqs:
            state = withdrawn(state, release_seq)
    return replace(state, offer=offer)


def withdrawn(state: UpdateState, release_seq: int) -> UpdateState:
    """A release that has not taken effect is dropped."""
    slot, receiving = state.slot(release_seq), state.receiving
    if receiving is not None and receiving.release_seq == release_seq:
        note = _note_of(receiving)
        state = replace(state, receiving=None)
    elif state.app is not None and state.app.release_seq == release_seq and release_seq in state.by_network:
        note = _note_of(state.app)
        state = replace(state, app=None)
    elif slot is not None and state.waiting == release_seq:
        note = ReleaseNote(release_seq, ReleaseKind.MODEL, slot.version, name=slot.name)
        state = replace(state, waiting=None, slots=tuple(held for held in state.slots if held is not slot))
    else:
        return _needs_no_offer(state, release_seq)
    others = tuple(other for other in state.withdrawn if other.kind is not note.kind)
    return replace(_needs_no_offer(state, release_seq), withdrawn=(*others, note))


def model_tested(state: UpdateState, manifest: Manifest, model_id: str) -> UpdateState:
    """The received model is in its slot and has passed its self-test: it waits."""
    slot = ModelSlot(manifest.release_seq, manifest.version, model_id, manifest.name)
    keep = {state.model, state.previous}
    slots = tuple(held for held in state.slots if held.release_seq in keep)
    return replace(
        _failure_over(state, ReleaseKind.MODEL),
        receiving=None,
        slots=(*slots, slot),
        waiting=slot.release_seq,
    )


def app_verified(state: UpdateState, manifest: Manifest) -> UpdateState:
    """The received software is complete: `palm-update.service` continues."""
    return replace(_failure_over(state, ReleaseKind.APP), receiving=None, app=manifest)


def app_switched(state: UpdateState) -> UpdateState:
    """The waiting software runs, on trial or in force: it needs no offer, and is not withdrawn."""
    return state if state.app is None else _needs_no_offer(state, state.app.release_seq)


def app_settled(state: UpdateState, code: str) -> UpdateState:
    """`palm-update.service` has finished the software; `code` is empty when it is in force."""
    app = state.app
    if app is None:
        return state
    state = app_switched(state)
    if code:
        return replace(state, app=None, failed=_note_of(app, code))
    return replace(state, app=None, installed=_note_of(app))


def given_up(state: UpdateState, code: str) -> UpdateState:
    """The received release is unusable; its release_seq stays used."""
    manifest = state.receiving
    if manifest is None:
        return state
    state = _needs_no_offer(state, manifest.release_seq)
    return replace(state, receiving=None, failed=_note_of(manifest, code))


def model_for(state: UpdateState, facts: GalleryFacts | None, shipped_id: str, now_ms: int) -> int:
    """The model that belongs to the gallery at `now_ms` (epoch); `facts` is None for a device without one."""
    present = state.model_id(state.model, shipped_id)
    held_back = state.waiting is not None and not state.may_switch(state.waiting, now_ms)
    waiting = state.slot(state.waiting) if state.waiting is not None and not held_back else None
    if waiting is not None:
        if facts is None or waiting.model_id == (facts.model_id or present):
            return waiting.release_seq
        # Empty, and of a later epoch than the present model's: nothing in it belongs to the present model.
        if facts.model_id is None and facts.epoch > state.home_epoch:
            return waiting.release_seq
    if facts is None or facts.model_id in (None, present):
        return state.model
    fitting = [
        slot.release_seq
        for slot in state.slots
        if slot.model_id == facts.model_id and not (held_back and slot.release_seq == state.waiting)
    ]
    if shipped_id == facts.model_id:
        fitting.append(SHIPPED)
    return max(fitting, default=state.model)


def shipped_stays(state: UpdateState, facts: GalleryFacts | None, shipped_id: str) -> bool:
    """Whether the gallery still belongs to a model that was shipped before, and not to that of `shipped_id`;
    `facts` is None for a device without one."""
    if facts is None or facts.model_id == shipped_id:
        return False
    return facts.model_id is not None or facts.epoch <= state.home_epoch


def shipped_at_start(
    state: UpdateState, facts: GalleryFacts | None, package_id: str, copy_id: str
) -> tuple[str, str]:
    """The model_id of the model that takes the place of the shipped one, and of the copy that is to be there.

    `package_id`, `copy_id`: of the model that came with the software, and of the copy of an earlier one.
    """
    if shipped_stays(state, facts, package_id):
        return copy_id, copy_id
    if facts is not None and facts.model_id is None:
        return package_id, copy_id  # a guess: the first template shows whose epoch it is
    return package_id, package_id


def starting(
    state: UpdateState, facts: GalleryFacts | None, shipped_id: str, now_ms: int, *, counted: bool = True
) -> UpdateState:
    """The state at a start: a failed trial is settled, and the model fits the gallery. `now_ms`: epoch.

    Where the start cannot be `counted`, because the disk refuses the state, no model begins a trial.
    """
    trial = state.trial
    if trial is not None and trial.starts >= _starts_allowed(state, trial, shipped_id):
        state = returned(state, "died_on_trial")
    wanted = model_for(state, facts, shipped_id, now_ms)
    # A model on trial that another one replaces has not proved itself: the way back does not lead to it.
    proven = state.model if state.trial is None else state.trial.back_to
    is_proven = wanted in (SHIPPED, proven)
    switches = wanted != state.model and (counted or is_proven)
    if switches:
        state = replace(
            _needs_no_offer(state, wanted),
            model=wanted,
            previous=state.model if wanted == proven else proven,
            waiting=None if state.waiting == wanted else state.waiting,
            trial=None if is_proven else ModelTrial(wanted, proven, 0),
        )
    present = state.model_id(state.model, shipped_id)
    if facts is not None and (switches or facts.model_id == present):
        state = replace(state, home_epoch=max(state.home_epoch, facts.epoch))
    if state.trial is not None:
        state = replace(state, trial=replace(state.trial, starts=state.trial.starts + 1))
    return state


def proved(state: UpdateState) -> UpdateState:
    """The model on trial has served as the previous one did."""
    return replace(state, trial=None)


def ended_on_purpose(state: UpdateState) -> UpdateState:
    """The program ends on request: this start proves nothing against the model on trial."""
    trial = state.trial
    if trial is None:
        return state
    return replace(state, trial=replace(trial, starts=max(0, trial.starts - 1)))


def returned(state: UpdateState, code: str) -> UpdateState:
    """The model on trial gives way to the previous one, permanently."""
    trial = state.trial
    if trial is None:
        return state
    slot = state.slot(trial.release_seq)
    return replace(
        state,
        model=trial.back_to,
        previous=None,
        trial=None,
        slots=tuple(held for held in state.slots if held is not slot),
        failed=ReleaseNote(
            trial.release_seq,
            ReleaseKind.MODEL,
            slot.version if slot else "",
            code,
            slot.name if slot else "model",
        ),
    )


def rolled_back(state: UpdateState, facts: GalleryFacts | None, shipped_id: str) -> UpdateState:
    """A technician wants the previous model. Raises UpdateRefused when it could not serve."""
    if state.previous is None:
        raise UpdateRefused("nothing_before", "no previous model is kept; there is nothing to do")
    before = state.model_id(state.previous, shipped_id)
    if facts is not None and facts.model_id not in (None, before):
        raise UpdateRefused(
            "other_epoch",
            f"the gallery is of model {facts.model_id}, and the previous model is {before}, which would "
            "recognise no one; the service has to begin a gallery epoch with it first",
        )
    return replace(state, model=state.previous, previous=state.model, waiting=None, trial=None)


def _starts_allowed(state: UpdateState, trial: ModelTrial, shipped_id: str) -> int:
    same = state.model_id(trial.release_seq, shipped_id) == state.model_id(trial.back_to, shipped_id)
    return STARTS_WHERE_THE_OLD_ONE_SERVES if same else STARTS_WHERE_IT_DOES_NOT


def _accepted(state: UpdateState, manifest: Manifest) -> UpdateState:
    """The release_seq is used, and what the release before it of this kind came to is no longer reported."""
    seq = manifest.release_seq
    state = replace(
        state, withdrawn=tuple(note for note in state.withdrawn if note.kind is not manifest.kind)
    )
    if manifest.kind is ReleaseKind.APP:
        return replace(state, app_seq=seq)
    return replace(state, model_seq=seq)


def _needs_no_offer(state: UpdateState, release_seq: int) -> UpdateState:
    if release_seq not in state.by_network:
        return state
    return replace(state, by_network=tuple(seq for seq in state.by_network if seq != release_seq))


def _failure_over(state: UpdateState, kind: ReleaseKind) -> UpdateState:
    over = state.failed is not None and state.failed.kind is kind
    return replace(state, failed=None) if over else state


def _note_of(manifest: Manifest, code: str = "") -> ReleaseNote:
    return ReleaseNote(manifest.release_seq, manifest.kind, manifest.version, code, manifest.name)
