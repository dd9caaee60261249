"""Receives releases from every carrier: the validator's mail, or a technician's stick.

    manifest → verified, release_seq on the disk → space allocated
    chunk    → at its place on the disk → acknowledged
    the last → SHA-256 of the whole from the disk → unpacked → self-test → waits for its turn

The work runs on a separate thread, a piece at a time with pauses, so that neither the loop nor a passage
waits. After a power cut the next start continues it.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from device.errors import StateError, UpdateRefused
from device.platform.threads import StoreThread
from device.updates.manifest import (
    APP_NAME,
    Manifest,
    ReleaseKind,
    check_app_version,
    read_chunk,
    read_manifest,
)
from device.updates.models import OpenedUpdates, self_test
from device.updates.state import (
    GalleryFacts,
    UpdateState,
    app_settled,
    app_verified,
    ended_on_purpose,
    given_up,
    model_for,
    model_tested,
    offered,
    proved,
    returned,
    rolled_back,
)
from link1.canonical import JsonObject
from link1.keys import PublicKey

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpdateParts:
    """`roots`: those pinned now. `now_ms`: the time for checking a signer's certificate (epoch).
    `model_pinned`: [model] dir is set, so that no model is accepted. `test_model`: tests the model in a
    folder and returns its model_id, or raises UpdateRefused."""

    opened: OpenedUpdates
    roots: Callable[[], Sequence[PublicKey]]
    now_ms: Callable[[], int]
    app_version: str
    model_pinned: bool
    test_model: Callable[[Path], str] = self_test


class UpdateDesk:
    """Methods run on the loop; disk work runs on the thread "update"."""

    def __init__(self, parts: UpdateParts) -> None:
        self._parts = parts
        self._store = parts.opened.store
        self._state = parts.opened.state
        self._thread = StoreThread("update")
        self._changing = asyncio.Lock()
        self._finishing: asyncio.Task[None] | None = None
        self.software = _installed_version() or parts.app_version
        """The running version: of the package (0.2.0-1), or of the program (0.2.0) without a package."""
        self.have = 0
        """Chunks of the release being received that are on the disk."""

    @property
    def state(self) -> UpdateState | None:
        """None when the state on the disk is unusable; `fault` says why."""
        return self._state

    @property
    def fault(self) -> str:
        return self._parts.opened.fault

    @property
    def model_id(self) -> str:
        """Of the model in force; after a rollback, of the one that the next start takes."""
        shipped_id, state = self._parts.opened.shipped_id, self._state
        if state is None or self._parts.model_pinned:
            return shipped_id
        return state.model_id(state.model, shipped_id)

    async def start(self) -> None:
        """Continue what an earlier start began."""
        state = self._state
        if state is not None and state.receiving is not None:
            manifest = state.receiving
            try:
                here = await self._thread.do(lambda: self._store.chunks_here(manifest))
            except (StateError, UpdateRefused) as error:
                _log.error("release %d cannot be continued: %s", manifest.release_seq, error)
                return
            self.have = len(here)
            if self.have == manifest.chunk_count:
                self._finish(manifest)

    async def finish(self) -> None:
        """Stop between two steps; the next start continues."""
        self._store.stop.set()
        if self._finishing is not None:
            await asyncio.gather(self._finishing, return_exceptions=True)
        if self._state is not None:
            try:
                await self._put(ended_on_purpose(self._state))
            except StateError as error:
                _log.error("%s", error)
        await asyncio.to_thread(self._thread.close)

    def abandon(self) -> None:
        """The device is being wiped: write nothing more."""
        self._store.stop.set()
        self._state = None

    # Manifests and chunks

    async def take_manifest(self, wrapper: JsonObject) -> Manifest:
        """A signed manifest. Raises TrustError, UpdateRefused, StateError."""
        parts = self._parts
        manifest = read_manifest(wrapper, roots=parts.roots(), now_ms=parts.now_ms())
        async with self._changing:
            before = self._usable()
            after = offered(before, manifest)
            if after == before:
                return manifest
            self._check_wanted(manifest)
            await self._put(after)
            self.have = 0
            await self._thread.do(lambda: self._store.tidy(after))
            try:
                await self._thread.do(lambda: self._store.begin(manifest))
            except UpdateRefused as refused:
                await self._put(given_up(after, refused.code))
                raise
        _log.info(
            "release %d (%s %s) is being received: %d chunks",
            manifest.release_seq,
            manifest.kind,
            manifest.version,
            manifest.chunk_count,
        )
        return manifest

    def _check_wanted(self, manifest: Manifest) -> None:
        if manifest.kind is ReleaseKind.APP and manifest.name != APP_NAME:
            raise UpdateRefused("wrong_name", f"it is not {APP_NAME}; send the release of this product")
        if manifest.kind is ReleaseKind.MODEL and self._parts.model_pinned:
            raise UpdateRefused(
                "model_pinned",
                "[model] dir in the configuration names the model; remove it and release again",
            )
        check_app_version(manifest, self._parts.app_version)

    async def take_chunk(self, body: JsonObject) -> None:
        """A piece of a payload, durable when this returns. Raises FormatError, UpdateRefused, StateError."""
        chunk = await self._thread.do(lambda: read_chunk(body))
        async with self._changing:
            state = self._usable()
            manifest = state.receiving
            if manifest is None or chunk.release_seq != manifest.release_seq:
                # Its manifest was refused, which is reported already, or it is complete. Refusing each of its
                # chunks as well would block the mail, and with it the gallery's freshness.
                return
            if self.have < manifest.chunk_count:
                self.have = await self._thread.do(lambda: self._store.take(manifest, chunk))
        if self.have == manifest.chunk_count:
            self._finish(manifest)

    def _finish(self, manifest: Manifest) -> None:
        if self._finishing is None or self._finishing.done():
            self._finishing = asyncio.get_running_loop().create_task(self._verify(manifest), name="update")

    async def _verify(self, manifest: Manifest) -> None:
        """All chunks are present: verify the whole, and put it where it waits for its turn."""
        try:
            change = await self._thread.do(lambda: self._prepared(manifest))
        except UpdateRefused as refused:
            _log.error("release %d is rejected: %s", manifest.release_seq, refused)
            change = partial(given_up, code=refused.code)
        except StateError as error:
            _log.error("release %d: %s; the next start tries again", manifest.release_seq, error)
            return
        async with self._changing:
            state = self._usable()
            if state.receiving is not manifest:
                return  # a newer release arrived meanwhile
            after = change(state)
            await self._put(after)
            await self._thread.do(lambda: self._store.tidy(after))
        if after.failed is None:
            _log.info("release %d is verified and waits for its turn", manifest.release_seq)

    def _prepared(self, manifest: Manifest) -> Callable[[UpdateState], UpdateState]:
        """On the update's thread: the change of the state. Raises UpdateRefused, StateError."""
        payload = self._store.check_whole(manifest)
        if manifest.kind is ReleaseKind.APP:
            self._store.hand_over_app(manifest, payload)
            return partial(app_verified, manifest=manifest)
        folder = self._store.unpack_model(manifest, payload)
        return partial(model_tested, manifest=manifest, model_id=self._parts.test_model(folder))

    # Models and software in force

    def wants_other_model(self, facts: GalleryFacts | None) -> bool:
        """Whether the gallery belongs to another model than the one in force, so that a restart is due."""
        state = self._state
        if state is None or self._parts.model_pinned:
            return False
        return model_for(state, facts, self._parts.opened.shipped_id) != state.model

    async def prove(self) -> None:
        """The model on trial serves. Raises StateError."""
        async with self._changing:
            await self._put(proved(self._usable()))

    async def give_way(self, code: str) -> None:
        """The model on trial does not serve; the next start takes the previous one. Raises StateError."""
        async with self._changing:
            await self._put(returned(self._usable(), code))

    async def app_outcome(self, release_seq: int, code: str) -> None:
        """`palm-update.service` has finished a release; an empty code means that it is in force."""
        async with self._changing:
            state = self._usable()
            if state.app is not None and state.app.release_seq == release_seq:
                after = app_settled(state, code)
                await self._put(after)
                await self._thread.do(lambda: self._store.tidy(after))

    async def roll_back(self, facts: GalleryFacts | None) -> None:
        """A technician wants the previous model. Raises UpdateRefused, StateError."""
        async with self._changing:
            await self._put(rolled_back(self._usable(), facts, self._parts.opened.shipped_id))

    def _usable(self) -> UpdateState:
        if self._state is None:
            raise UpdateRefused("updates_unusable", self.fault)
        return self._state

    async def _put(self, state: UpdateState) -> None:
        """Save the state, then put it in force."""
        if state != self._state:
            await self._thread.do(lambda: self._store.save(state))
            self._state = state


def _installed_version() -> str:
    """The version of the installed package; empty without one."""
    try:
        return (Path(sys.prefix) / "VERSION").read_text(encoding="ascii").strip()
    except OSError:
        return ""
