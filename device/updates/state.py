"""The state of updates as one value, with all its changes. Sans-I/O; `store` keeps it in updates/state.json,
replaced as a whole.

    none ─manifest─▶ receiving ─all chunks, hash, self-test─▶ waiting ─switch─▶ trial ─healthy─▶ in force
                         │                                       ▲                │
                         └─▶ failed, not tried again     a model: for its         └─▶ failed, not tried again;
                                                         gallery epoch                the previous one is back

1. `release_seq` never decreases, and is on the disk before anything of its release is used.
2. A waiting model takes effect only together with a gallery of its model_id (device surface §6). The content
   of the gallery determines the model (`model_for`), so the gallery's transaction is the one durable step
   that switches both: after a power cut at any point, the next start chooses the same model.
3. A model on trial that was started before, and ended without proving itself, gives way to the previous one.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from device.errors import UpdateRefused
from device.updates.manifest import Manifest, ReleaseKind, read_again
from link1 import members
from link1.canonical import JsonObject
from link1.members import NAME, WORD

SHIPPED: Final = 0
"""Takes the place of a release_seq for the model that came with the software."""
STARTS_WHERE_THE_OLD_ONE_SERVES: Final = 1
STARTS_WHERE_IT_DOES_NOT: Final = 3
"""With the gallery of a new epoch the previous model recognises no one, and a power cut does not prove a
fault."""
_MAX_SLOTS: Final = 8


@dataclass(frozen=True, slots=True)
class ModelSlot:
    """A model on the disk that has passed its self-test."""

    release_seq: int
    version: str
    model_id: str


@dataclass(frozen=True, slots=True)
class ModelTrial:
    """A model in force that has not proved itself; `starts` counts the program starts with it."""

    release_seq: int
    back_to: int
    starts: int


@dataclass(frozen=True, slots=True)
class FailedUpdate:
    """The newest release that failed; reported until a newer one is accepted."""

    release_seq: int
    kind: ReleaseKind
    version: str
    code: str


@dataclass(frozen=True, slots=True)
class GalleryFacts:
    """The gallery's epoch, and the model of its templates, None while there are none."""

    epoch: int
    model_id: str | None


@dataclass(frozen=True, slots=True)
class UpdateState:
    """See the module. `receiving` and `app` are manifests; `model`, `previous` and `waiting` name slots by
    release_seq. `home_epoch`: the last gallery epoch known to fit the model in force."""

    release_seq: int = 0
    receiving: Manifest | None = None
    app: Manifest | None = None
    slots: tuple[ModelSlot, ...] = ()
    model: int = SHIPPED
    previous: int | None = None
    waiting: int | None = None
    home_epoch: int = 0
    trial: ModelTrial | None = None
    failed: FailedUpdate | None = None

    def slot(self, release_seq: int) -> ModelSlot | None:
        return next((slot for slot in self.slots if slot.release_seq == release_seq), None)

    def model_id(self, release_seq: int, shipped_id: str) -> str:
        """The model_id of a slot; that of the shipped model for 0."""
        slot = self.slot(release_seq)
        return shipped_id if slot is None else slot.model_id

    def to_obj(self) -> JsonObject:
        return {
            "v": 1,
            "release_seq": self.release_seq,
            "receiving": self.receiving and self.receiving.wrapper,
            "app": self.app and self.app.wrapper,
            "slots": [asdict(slot) for slot in self.slots],
            "model": self.model,
            "previous": self.previous,
            "waiting": self.waiting,
            "home_epoch": self.home_epoch,
            "trial": self.trial and asdict(self.trial),
            "failed": self.failed and asdict(self.failed),
        }

    @classmethod
    def from_obj(cls, obj: JsonObject) -> "UpdateState":
        """Raises FormatError, UpdateRefused."""
        members.version_1(obj)
        slots = tuple(_slot(item) for item in members.array(obj, "slots", 0, _MAX_SLOTS))
        return cls(
            release_seq=members.integer(obj, "release_seq"),
            receiving=_manifest(obj, "receiving"),
            app=_manifest(obj, "app"),
            slots=slots,
            model=members.integer(obj, "model"),
            previous=_optional_integer(obj, "previous"),
            waiting=_optional_integer(obj, "waiting"),
            home_epoch=members.integer(obj, "home_epoch"),
            trial=None if members.member(obj, "trial") is None else _trial(members.nested(obj, "trial")),
            failed=None if members.member(obj, "failed") is None else _failed(members.nested(obj, "failed")),
        )


def offered(state: UpdateState, manifest: Manifest) -> UpdateState:
    """A verified manifest has arrived; the same value when it is being received or was received before.

    Raises UpdateRefused.
    """
    if manifest.release_seq < state.release_seq:
        raise UpdateRefused(
            "release_rollback",
            f"release {manifest.release_seq} is older than release {state.release_seq}, which was accepted "
            "before; give the release a higher release_seq",
        )
    if manifest.release_seq == state.release_seq:
        known = state.receiving
        if known is not None and known.sha256 != manifest.sha256:
            raise UpdateRefused(
                "release_conflict",
                f"another release {manifest.release_seq} is being received; give this one a higher "
                "release_seq",
            )
        return state
    return replace(state, release_seq=manifest.release_seq, receiving=manifest)


def model_tested(state: UpdateState, manifest: Manifest, model_id: str) -> UpdateState:
    """The received model is in its slot and has passed its self-test: it waits."""
    slot = ModelSlot(manifest.release_seq, manifest.version, model_id)
    keep = {state.model, state.previous}
    slots = tuple(held for held in state.slots if held.release_seq in keep)
    return replace(state, receiving=None, slots=(*slots, slot), waiting=slot.release_seq, failed=None)


def app_verified(state: UpdateState, manifest: Manifest) -> UpdateState:
    """The received software is complete: `palm-update.service` continues."""
    return replace(state, receiving=None, app=manifest, failed=None)


def app_settled(state: UpdateState, code: str) -> UpdateState:
    """`palm-update.service` has finished the software; `code` is empty when it is in force."""
    app = state.app
    if app is None:
        return state
    failed = FailedUpdate(app.release_seq, app.kind, app.version, code) if code else state.failed
    return replace(state, app=None, failed=failed)


def given_up(state: UpdateState, code: str) -> UpdateState:
    """The received release is unusable; its release_seq stays used."""
    manifest = state.receiving
    if manifest is None:
        return state
    failed = FailedUpdate(manifest.release_seq, manifest.kind, manifest.version, code)
    return replace(state, receiving=None, failed=failed)


def model_for(state: UpdateState, facts: GalleryFacts | None, shipped_id: str) -> int:
    """The model that belongs to the gallery; `facts` is None for a device without one."""
    present = state.model_id(state.model, shipped_id)
    waiting = state.slot(state.waiting) if state.waiting is not None else None
    if waiting is not None:
        if facts is None or waiting.model_id == (facts.model_id or present):
            return waiting.release_seq
        # Empty, and of a later epoch than the present model's: nothing in it belongs to the present model.
        if facts.model_id is None and facts.epoch > state.home_epoch:
            return waiting.release_seq
    if facts is None or facts.model_id in (None, present):
        return state.model
    fitting = [slot.release_seq for slot in state.slots if slot.model_id == facts.model_id]
    if shipped_id == facts.model_id:
        fitting.append(SHIPPED)
    return max(fitting, default=state.model)


def starting(state: UpdateState, facts: GalleryFacts | None, shipped_id: str) -> UpdateState:
    """The state at a start: a failed trial is settled, and the model fits the gallery."""
    trial = state.trial
    if trial is not None and trial.starts >= _starts_allowed(state, trial, shipped_id):
        state = returned(state, "died_on_trial")
    wanted = model_for(state, facts, shipped_id)
    switches = wanted != state.model
    if switches:
        state = replace(
            state,
            model=wanted,
            previous=state.model,
            waiting=None if state.waiting == wanted else state.waiting,
            trial=ModelTrial(wanted, state.model, 0) if wanted != SHIPPED else None,
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
        failed=FailedUpdate(trial.release_seq, ReleaseKind.MODEL, slot.version if slot else "", code),
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


def _manifest(obj: Mapping[str, Any], name: str) -> Manifest | None:
    return None if members.member(obj, name) is None else read_again(members.nested(obj, name))


def _optional_integer(obj: Mapping[str, Any], name: str) -> int | None:
    return None if members.member(obj, name) is None else members.integer(obj, name)


def _slot(item: object) -> ModelSlot:
    obj = members.nested({"slot": item}, "slot")
    return ModelSlot(
        members.integer(obj, "release_seq", 1), str(obj.get("version")), members.text(obj, "model_id", NAME)
    )


def _trial(obj: JsonObject) -> ModelTrial:
    return ModelTrial(
        members.integer(obj, "release_seq", 1),
        members.integer(obj, "back_to"),
        members.integer(obj, "starts"),
    )


def _failed(obj: JsonObject) -> FailedUpdate:
    kind = ReleaseKind(members.one_of(obj, "kind", frozenset(ReleaseKind)))
    version = str(members.member(obj, "version"))
    return FailedUpdate(
        members.integer(obj, "release_seq", 1), kind, version, members.text(obj, "code", WORD)
    )
