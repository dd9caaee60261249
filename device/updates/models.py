"""Chooses and opens the model of this start; the previous one replaces a model that cannot be opened."""

import logging
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from device.config.config import DeviceConfig
from device.errors import StateError, UpdateRefused
from device.updates.state import SHIPPED, GalleryFacts, UpdateState, returned, shipped_at_start, starting
from device.updates.store import UpdateStore
from gallery.errors import GalleryError
from gallery.freshness import HeldTime
from gallery.view import peek
from models.embedding import Embedder
from models.errors import ModelsError
from models.manifest import load_manifest, open_embedder, shipped_model_dir

NO_MODEL_ID = "none"
"""The model_id in verdicts and status when no model could be loaded."""
SELF_TEST_WITHIN_S: Final = 120.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class OpenedModel:
    """The model in force. `fault`: why `embedder` is None. `agree_cosine`: captures of one palm reach it."""

    model_id: str
    embedder: Embedder | None
    agree_cosine: float
    fault: str


@dataclass(frozen=True, slots=True)
class OpenedUpdates:
    """Updates at the start; `fault` says why `state` is None, and then no update is accepted.

    `shipped_id`: of the model that takes the place of the shipped one. `newer_id`: of the model that came
    with the software, while it waits for its gallery epoch. `copy_id`: of the copy of an earlier one, while
    an empty gallery leaves open whose it will be. `unsaved`: why the disk does not hold `state`."""

    store: UpdateStore
    state: UpdateState | None
    fault: str
    shipped_id: str
    newer_id: str | None = None
    copy_id: str | None = None
    unsaved: str = ""


def gallery_facts(
    config: DeviceConfig, data_key: bytes, registered: tuple[str, int] | None
) -> tuple[GalleryFacts | None, HeldTime]:
    """Epoch and model of the gallery on the disk, None for a device registered without one; and what the
    gallery knows about time."""
    nothing = HeldTime("", 0)
    if registered is None:
        return None, nothing
    try:
        found = peek(config.gallery_dir, data_key)
    except GalleryError as error:
        _log.warning("the gallery's epoch and model cannot be read: %s", error)
        found = None
    if found is None:
        return GalleryFacts(registered[1], None), nothing
    epoch, model_id, time = found
    return GalleryFacts(epoch, model_id), time


def open_models(
    config: DeviceConfig, facts: GalleryFacts | None, now_ms: int
) -> tuple[OpenedModel, OpenedUpdates]:
    """Settle the outcome of a trial, and open the model that belongs to the gallery. `now_ms`: epoch.

    A model on trial that cannot be opened is replaced by the previous one at once. Where the disk refuses the
    state, the model in force stays, and `UpdateDesk.save_again` tries it again. With `[model] dir` in the
    configuration that folder is used, regardless of updates.
    """
    store = UpdateStore(config.device.state_dir)
    try:
        state = store.load(facts.epoch if facts is not None else 0)
    except StateError as error:
        _log.error("updates: %s", error)
        shipped = _shipped(config, store, UpdateState(), facts)
        return _opened(shipped.folder), OpenedUpdates(store, None, str(error), shipped.model_id)
    shipped = _shipped(config, store, state, facts)
    unsaved = ""
    if config.model.dir is None:
        state, unsaved = _begun(store, state, facts, shipped.model_id, now_ms)
        _keep(store, state, shipped)
        opened = _opened(_folder(store, state, shipped))
        if opened.embedder is None and state.trial is not None:
            _log.error("release %d does not start: %s", state.model, opened.fault)
            state = returned(state, "no_start")
            unsaved = _not_saved(store, state)
            opened = _opened(_folder(store, state, shipped))
    else:
        opened = _opened(shipped.folder)
    if not unsaved:  # the state on the disk may name what this one does not
        try:
            store.tidy(state)
        except StateError as error:  # what is left over hinders no passage
            _log.error("updates: %s", error)
    return opened, OpenedUpdates(
        store, state, "", shipped.model_id, shipped.newer_id, shipped.copy_id, unsaved
    )


@dataclass(frozen=True, slots=True)
class _Shipped:
    """The model that takes the place of the shipped one. `newer_id`, `copy_id`: see `OpenedUpdates`."""

    folder: Path
    model_id: str
    newer_id: str | None = None
    copy_id: str | None = None


def _shipped(
    config: DeviceConfig, store: UpdateStore, state: UpdateState, facts: GalleryFacts | None
) -> _Shipped:
    """The configured folder; else what came with the software, or before, as the gallery wants it."""
    folder = config.model.dir or shipped_model_dir()
    shipped = _Shipped(folder, model_id_of(folder))
    if config.model.dir is not None or store.keeps(folder):
        return shipped
    kept_id = model_id_of(store.kept_model)
    if kept_id in (NO_MODEL_ID, shipped.model_id):
        return shipped
    model_id, copy_id = shipped_at_start(state, facts, shipped.model_id, kept_id)
    if model_id == shipped.model_id:
        return shipped if copy_id == model_id else replace(shipped, copy_id=copy_id)
    _log.warning("the model %s waits for its gallery epoch; %s stays in force", shipped.model_id, kept_id)
    return _Shipped(store.kept_model, kept_id, newer_id=shipped.model_id)


def _keep(store: UpdateStore, state: UpdateState, shipped: _Shipped) -> None:
    """Have the shipped model also when newer software comes with another one."""
    if shipped.newer_id is not None or shipped.copy_id is not None:
        return
    if shipped.model_id == NO_MODEL_ID or store.keeps(shipped.folder):
        return
    try:
        store.save(state)  # with its home_epoch, by which an empty gallery of a later one is known
        store.keep_model(shipped.folder)
    except StateError as error:
        _log.error("%s; newer software with another model would recognise no one", error)


def keep_shipped(store: UpdateStore) -> None:
    """Have a copy of the model that came with the software. Raises StateError."""
    store.keep_model(shipped_model_dir())


def _begun(
    store: UpdateStore, before: UpdateState, facts: GalleryFacts | None, shipped_id: str, now_ms: int
) -> tuple[UpdateState, str]:
    """The state of this start, and why it is not on the disk."""
    after = starting(before, facts, shipped_id, now_ms)
    unsaved = "" if after == before else _not_saved(store, after)
    if unsaved:  # what was in force serves on
        after = starting(before, facts, shipped_id, now_ms, counted=False)
    return after, unsaved


def _not_saved(store: UpdateStore, state: UpdateState) -> str:
    """Save the state; why it could not be, empty when it is."""
    try:
        store.save(state)
    except StateError as error:
        _log.error("updates: %s", error)
        return str(error)
    return ""


def _folder(store: UpdateStore, state: UpdateState, shipped: _Shipped) -> Path:
    """Of the model in force."""
    return shipped.folder if state.model == SHIPPED else store.model_folder(state.model)


def _opened(folder: Path) -> OpenedModel:
    try:
        manifest = load_manifest(folder)
    except ModelsError as error:
        return OpenedModel(NO_MODEL_ID, None, 1.0, str(error))
    agree_cosine = manifest.agree_q / 10_000
    try:
        return OpenedModel(manifest.model_id, open_embedder(manifest), agree_cosine, "")
    except ModelsError as error:
        return OpenedModel(manifest.model_id, None, agree_cosine, str(error))


def model_id_of(folder: Path) -> str:
    """Of the model in `folder`; `NO_MODEL_ID` where there is none that is whole."""
    try:
        return load_manifest(folder).model_id
    except ModelsError:
        return NO_MODEL_ID


def self_test(folder: Path) -> str:
    """Test a model in a separate process, because a broken one may crash it; returns its model_id.

    Raises UpdateRefused `self_test`, StateError when it cannot be started.
    """
    command = [sys.executable, "-I", "-m", "device.updates.models", str(folder)]
    try:
        done = subprocess.run(  # noqa: S603 - this program itself
            command,
            capture_output=True,
            text=True,
            errors="replace",  # a library may print anything before it dies
            timeout=SELF_TEST_WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UpdateRefused("self_test", f"its self-test took over {SELF_TEST_WITHIN_S:.0f} s") from None
    except OSError as error:  # no memory for a process, say: that is no fault of the model
        raise StateError(f"the model's self-test cannot be started ({error.strerror})") from error
    if done.returncode:
        why = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise UpdateRefused("self_test", f"the model failed its self-test: {why[0][:300]}")
    return done.stdout.strip()


def main(arguments: list[str]) -> int:
    """`python -m device.updates.models [FOLDER]`: test the model there, or the shipped one; print its id."""
    try:
        manifest = load_manifest(Path(arguments[0]) if arguments else shipped_model_dir())
        open_embedder(manifest)
    except ModelsError as error:
        print(error, file=sys.stderr)
        return 1
    print(manifest.model_id)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
