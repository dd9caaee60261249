"""Software that comes with another model than the software before it: the gallery's stays until its epoch."""

import asyncio
import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from device.config.config import DeviceConfig, ModelSection
from device.core.served_gallery import ServedGallery
from device.core.update_watch import UpdateWatch
from device.health import Health, HealthWord
from device.platform.clock import SystemClock
from device.updates import models
from device.updates.desk import UpdateDesk
from device.updates.models import OpenedModel, OpenedUpdates, open_models
from device.updates.state import GalleryFacts, ModelSlot, ModelTrial, UpdateState
from device.updates.store import UpdateStore
from models.manifest import shipped_model_dir
from tests.device.provisioning.provisioning_setting import settings
from tests.device.trust.pinned_makers import registered
from tests.device.updates.update_fuse import Fuse, PowerCut, power
from tests.device.updates.update_setting import GalleryOf, open_desk, shipped_id
from tests.republished import republish

OLD, NEW = "palm-old", shipped_id()

Start = Callable[[str, GalleryFacts | None], tuple[OpenedModel, OpenedUpdates]]


@pytest.fixture
def config(tmp_path: Path) -> DeviceConfig:
    config = settings(tmp_path)
    config.device.state_dir.mkdir(parents=True)
    return config


@pytest.fixture
def start(config: DeviceConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Start:
    """A start of the software that comes with this model, over a gallery."""
    packages = {OLD: tmp_path / "package", NEW: shipped_model_dir()}
    republish(shipped_model_dir(), OLD, packages[OLD])

    def start(package: str, facts: GalleryFacts | None) -> tuple[OpenedModel, OpenedUpdates]:
        monkeypatch.setattr(models, "shipped_model_dir", lambda: packages[package])
        return open_models(config, facts, 0)

    return start


def in_force(start: Start, package: str, facts: GalleryFacts | None) -> str:
    model, updates = start(package, facts)
    assert model.embedder is not None, model.fault
    assert model.model_id == updates.shipped_id
    return model.model_id


def test_the_model_of_the_gallery_stays_until_an_epoch_of_the_newer_one(
    start: Start, config: DeviceConfig
) -> None:
    assert in_force(start, OLD, GalleryFacts(1, None)) == OLD
    assert in_force(start, NEW, GalleryFacts(1, OLD)) == OLD
    assert in_force(start, NEW, GalleryFacts(1, None)) == OLD
    _, updates = start(NEW, GalleryFacts(1, OLD))
    desk = open_desk(config.device.state_dir, opened=updates)
    assert updates.newer_id == NEW
    assert [
        desk.wants_other_model(facts)
        for facts in (GalleryFacts(1, OLD), GalleryFacts(1, None), GalleryFacts(2, OLD))
    ] == [False, False, False]
    assert desk.wants_other_model(GalleryFacts(2, None))
    assert desk.wants_other_model(GalleryFacts(1, NEW))
    assert in_force(start, NEW, GalleryFacts(2, None)) == NEW
    _, updates = start(NEW, GalleryFacts(2, None))
    assert updates.newer_id is None


def test_a_copy_stays_until_the_first_template_of_another_model(start: Start, config: DeviceConfig) -> None:
    assert in_force(start, OLD, GalleryFacts(1, OLD)) == OLD
    assert in_force(start, NEW, GalleryFacts(2, None)) == NEW
    _, updates = start(NEW, GalleryFacts(2, None))
    desk = open_desk(config.device.state_dir, opened=updates)
    assert desk.wants_other_model(GalleryFacts(2, OLD)), "the epoch was one of the older model"
    assert not desk.wants_other_model(GalleryFacts(2, NEW))
    assert in_force(start, NEW, GalleryFacts(2, OLD)) == OLD
    _, updates = start(NEW, GalleryFacts(3, None))
    desk = open_desk(config.device.state_dir, opened=updates)
    for facts, kept in ((GalleryFacts(3, None), OLD), (GalleryFacts(3, NEW), NEW)):
        asyncio.run(desk.keep_shipped(facts))
        assert models.model_id_of(UpdateStore(config.device.state_dir).kept_model) == kept
    asyncio.run(desk.finish())
    assert in_force(start, OLD, GalleryFacts(3, NEW)) == NEW


def test_older_software_keeps_the_model_of_its_gallery_too(start: Start) -> None:
    assert in_force(start, NEW, GalleryFacts(1, NEW)) == NEW
    assert in_force(start, OLD, GalleryFacts(1, NEW)) == NEW


def test_a_device_without_a_gallery_takes_what_comes_with_its_software(start: Start) -> None:
    assert in_force(start, OLD, None) == OLD
    assert in_force(start, NEW, None) == NEW


def test_a_model_whose_gallery_is_gone_for_good_is_not_kept(start: Start, config: DeviceConfig) -> None:
    in_force(start, OLD, GalleryFacts(1, OLD))
    in_force(start, NEW, GalleryFacts(2, NEW))
    assert in_force(start, OLD, GalleryFacts(3, OLD)) == OLD
    assert sorted(path.name for path in (config.device.state_dir / "models").iterdir()) == ["shipped"]


def test_a_configured_model_is_the_one(start: Start, config: DeviceConfig) -> None:
    in_force(start, OLD, GalleryFacts(1, OLD))
    pinned = replace(config, model=ModelSection(shipped_model_dir()))
    model, updates = open_models(pinned, GalleryFacts(1, OLD), 0)
    assert (model.model_id, updates.newer_id) == (NEW, None)


def test_with_a_damaged_state_the_model_of_the_gallery_is_still_taken(
    start: Start, config: DeviceConfig
) -> None:
    in_force(start, OLD, GalleryFacts(1, OLD))
    state = config.device.state_dir / "updates" / "state.json"
    state.write_bytes(b"{")
    model, updates = start(NEW, GalleryFacts(1, OLD))
    assert (model.model_id, updates.state) == (OLD, None)
    assert state.read_bytes() == b"{"


def test_a_damaged_copy_is_no_model(start: Start, config: DeviceConfig) -> None:
    in_force(start, OLD, GalleryFacts(1, OLD))
    (config.device.state_dir / "models" / "shipped" / "palm-embedding.onnx").write_bytes(b"torn")
    assert in_force(start, NEW, GalleryFacts(1, OLD)) == NEW


def test_a_pipe_in_the_copy_stops_no_start_and_the_copy_is_made_again(
    start: Start, config: DeviceConfig
) -> None:
    in_force(start, OLD, GalleryFacts(1, OLD))
    manifest = UpdateStore(config.device.state_dir).kept_model / "manifest.json"
    manifest.unlink()
    os.mkfifo(manifest)
    assert in_force(start, OLD, GalleryFacts(1, OLD)) == OLD
    assert manifest.is_file()


def test_a_disk_that_refuses_the_copy_stops_no_start(
    start: Start, config: DeviceConfig, caplog: pytest.LogCaptureFixture
) -> None:
    (config.device.state_dir / "models").write_bytes(b"")
    assert in_force(start, OLD, GalleryFacts(1, OLD)) == OLD
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize("goes", [True, False])
def test_what_lies_beside_the_models_leaves_a_release_in_force(
    start: Start, config: DeviceConfig, monkeypatch: pytest.MonkeyPatch, goes: bool
) -> None:
    store = UpdateStore(config.device.state_dir)
    republish(shipped_model_dir(), "palm-next", store.model_folder(7))
    store.save(UpdateState(model_seq=7, slots=(ModelSlot(7, "2.0", "palm-next"),), model=7, home_epoch=1))
    stray = config.device.state_dir / "models" / "notes.txt"
    stray.write_text("a technician's")
    if not goes:
        monkeypatch.setattr(shutil, "rmtree", refuse)
        monkeypatch.setattr(Path, "unlink", refuse)
    model, updates = start(NEW, GalleryFacts(1, "palm-next"))
    assert (model.model_id, updates.state is not None) == ("palm-next", True)
    assert stray.exists() is not goes


@pytest.mark.parametrize(
    ("before", "facts", "in_force_now", "due"),
    [
        # The gallery has begun an epoch: nothing but its number is to be noted.
        (UpdateState(model=7, home_epoch=1), GalleryFacts(2, "palm-next"), 7, None),
        # Another model may take its place; its starts cannot be counted.
        (UpdateState(model=7, waiting=8, home_epoch=1), GalleryFacts(1, "palm-next"), 7, 8),
        # It died on its trial.
        (
            UpdateState(model=8, previous=7, trial=ModelTrial(8, 7, 1), home_epoch=1),
            GalleryFacts(1, "palm-next"),
            7,
            None,
        ),
        # The model on trial cannot be opened.
        (
            UpdateState(model=9, previous=7, trial=ModelTrial(9, 7, 0), home_epoch=1),
            GalleryFacts(1, "palm-next"),
            7,
            None,
        ),
    ],
    ids=["epoch", "waiting", "died", "no-start"],
)
def test_a_disk_that_refuses_the_state_leaves_the_model_in_force(
    start: Start,
    config: DeviceConfig,
    monkeypatch: pytest.MonkeyPatch,
    before: UpdateState,
    facts: GalleryFacts,
    in_force_now: int,
    due: int | None,
) -> None:
    store = UpdateStore(config.device.state_dir)
    for number in (7, 8):
        republish(shipped_model_dir(), "palm-next", store.model_folder(number))
    slots = tuple(ModelSlot(number, "2.0", "palm-next") for number in (7, 8, 9))
    before = replace(before, model_seq=9, slots=slots)
    store.save(before)
    with monkeypatch.context() as full:
        full.setattr("device.updates.store.replace_synced", refuse)
        model, updates = start(NEW, facts)
        assert (model.model_id, model.embedder is not None) == ("palm-next", True), model.fault
        assert updates.state is not None and updates.state.model == in_force_now
        assert "state.json cannot be written" in updates.unsaved
        assert store.load(1) == before and store.model_folder(8).is_dir()
        desk = UpdateDesk(
            updates,
            roots=tuple,
            revoked=tuple,
            now_ms=lambda: 0,
            app_version="0.1.0",
            model_pinned=False,
        )
        asyncio.run(desk.save_again())
        assert desk.unsaved and not desk.wants_other_model(facts)
    asyncio.run(desk.save_again())
    assert (desk.unsaved, store.load(1)) == ("", updates.state)
    assert desk.wants_other_model(facts) is (due is not None)
    asyncio.run(desk.finish())
    _, updates = start(NEW, facts)
    assert updates.state is not None and updates.state.model == (due or in_force_now)
    assert (updates.unsaved, updates.state.trial is not None) == ("", due is not None)


async def test_a_state_that_is_not_on_the_disk_is_reported_and_saved_when_there_is_room(
    start: Start, config: DeviceConfig, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = UpdateStore(config.device.state_dir)
    republish(shipped_model_dir(), "palm-next", store.model_folder(7))
    store.save(UpdateState(model_seq=7, slots=(ModelSlot(7, "2.0", "palm-next"),), model=7, home_epoch=1))
    changed = asyncio.Event()
    health = Health(lambda _words: changed.set())
    with monkeypatch.context() as full:
        full.setattr("device.updates.store.replace_synced", refuse)
        _, updates = start(NEW, GalleryFacts(2, "palm-next"))
        desk = open_desk(config.device.state_dir, opened=updates)
        watch = UpdateWatch(
            desk=desk,
            gallery=cast("ServedGallery", GalleryOf(GalleryFacts(2, "palm-next"))),
            health=health,
            clock=SystemClock(),
            stages=(),
            wiped=lambda: False,
            idle=lambda: True,
            trust=registered,
            prefix=tmp_path,
        )
        watching = asyncio.create_task(watch.run())
        await changed.wait()
        assert "the model in force stays" in health.details[HealthWord.UPDATE_FAILED]
        assert store.load(1).home_epoch == 1
        changed.clear()
    await changed.wait()
    assert HealthWord.UPDATE_FAILED not in health.words
    assert store.load(1).home_epoch == 2
    assert not watching.done(), "nothing asks for a restart"
    watching.cancel()
    await desk.finish()


def refuse(*_: Any, **__: Any) -> None:
    raise PermissionError(errno.EPERM, "refused")


@pytest.mark.parametrize("torn", [False, True])
@pytest.mark.parametrize(
    "every", [pytest.param(4, id="share"), pytest.param(1, id="whole", marks=pytest.mark.long)]
)
def test_the_power_may_go_at_any_step_of_keeping_a_model(
    start: Start, config: DeviceConfig, torn: bool, every: int
) -> None:
    steps = 0
    for cut in range(1, 100, every):
        in_force(start, OLD, GalleryFacts(cut, OLD))
        fuse = Fuse(config.device.state_dir, cut, torn=torn)
        try:
            with power(fuse):
                start(NEW, GalleryFacts(cut + 1, NEW))
        except PowerCut:
            steps += 1
        assert in_force(start, NEW, GalleryFacts(cut + 1, NEW)) == NEW
        assert in_force(start, OLD, GalleryFacts(cut + 1, NEW)) == NEW
        if not fuse.blown:
            break
    assert steps > 10 // every
