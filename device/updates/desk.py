"""Receives releases from every carrier: the network, the validator's mail, or a technician's stick.

    manifest → verified, release_seq on the disk → space allocated
    chunk    → at its place on the disk → acknowledged
    the last → SHA-256 of the whole from the disk → unpacked → self-test → waits for its turn

The work runs on a separate thread, a piece at a time with pauses, so that neither the loop nor a passage
waits. After a power cut the next start continues it.
"""

import asyncio
import logging
import sys
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from device import APP_PACKAGE
from device.errors import StateError, TrustError, UpdateRefused
from device.platform.threads import StoreThread
from device.updates.manifest import (
    Manifest,
    OfferAnswer,
    ReleaseKind,
    check_app_version,
    read_chunk,
    read_manifest,
)
from device.updates.models import OpenedUpdates, keep_shipped, self_test
from device.updates.state import (
    GalleryFacts,
    UpdateState,
    app_settled,
    app_switched,
    app_verified,
    ended_on_purpose,
    given_up,
    model_for,
    model_tested,
    newly_offered,
    offered,
    proved,
    refused_offer,
    returned,
    rolled_back,
    shipped_stays,
    withdrawn,
)
from link1.canonical import JsonObject
from link1.keys import PublicKey

UNTRUSTED: Final = "untrusted"
"""The code of a release for which no pinned root vouches, or does no longer."""
INSTALLED_WITHIN_MS: Final = 15 * 60 * 1000
"""The most that `palm-update.service` takes (TimeoutStartSec)."""
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(eq=False)
class UpdateDesk:
    """Methods run on the loop; disk work runs on the thread "update".

    `roots`: those pinned now. `revoked`: kids of signers that count no more. `now_ms`: the time for checking
    a signer's certificate (epoch). `model_pinned`: [model] dir is set, so that no model is accepted.
    `test_model`: tests the model in a folder and returns its model_id, or raises UpdateRefused, StateError.
    """

    opened: OpenedUpdates
    roots: Callable[[], Sequence[PublicKey]]
    revoked: Callable[[], Container[str]]
    now_ms: Callable[[], int]
    app_version: str
    model_pinned: bool
    test_model: Callable[[Path], str] = self_test
    have: int = field(default=0, init=False)
    """Chunks of the release being received that are on the disk."""
    is_verified: bool = field(default=False, init=False)
    """Whether the release being received is whole, and waits only for an offer that names it."""

    def __post_init__(self) -> None:
        self._store = self.opened.store
        self.state = self.opened.state
        """None when the state on the disk is unusable; `fault` says why."""
        self.fault = self.opened.fault
        self.unsaved = self.opened.unsaved
        """Why the state is not on the disk; empty when it is."""
        self._thread = StoreThread("update")
        self._is_wiped = False
        self._changing = asyncio.Lock()
        self._finishing: asyncio.Task[None] | None = None
        self.software = _installed_version() or self.app_version
        """The running version: of the package (0.2.0-1), or of the program (0.2.0) without a package."""
        if self.state is not None and self.state.app is not None and self.state.app.version == self.software:
            self.state = app_switched(self.state)
        self._fetched = -1
        self._changed: Callable[[], None] = lambda: None

    @property
    def model_id(self) -> str:
        """Of the model in force; after a rollback, of the one that the next start takes."""
        shipped_id, state = self.opened.shipped_id, self.state
        if state is None or self.model_pinned:
            return shipped_id
        return state.model_id(state.model, shipped_id)

    def when_changed(self, call: Callable[[], None]) -> None:
        """Have `call` called after each change of the state."""
        self._changed = call

    async def start(self) -> None:
        """Continue what an earlier start began. Before READY, and so before `palm-update.service` at a boot:
        software that waits for it may have been halted while the power was off."""
        state, app = self.state, None if self.state is None else self.state.app
        if state is not None and app is not None and not state.may_switch(app.release_seq, self.now_ms()):
            try:
                await self._drop(withdrawn(state, app.release_seq))
            except StateError as error:
                _log.error("release %d: %s", app.release_seq, error)
        state = self.state
        if state is not None and state.receiving is not None:
            manifest = state.receiving
            try:
                self.have = await self._find_chunks(manifest)
            except (StateError, UpdateRefused) as error:
                _log.error("release %d cannot be continued: %s", manifest.release_seq, error)
                return
            self._finish_if_whole()

    async def finish(self) -> None:
        """Stop between two steps; the next start continues."""
        self._store.stop.set()
        if self._finishing is not None:
            await asyncio.gather(self._finishing, return_exceptions=True)
        if self.state is not None:
            try:
                await self._put(ended_on_purpose(self.state))
            except StateError as error:
                _log.error("%s", error)
        await asyncio.to_thread(self._thread.close)

    def abandon(self) -> None:
        """The device is being wiped: write nothing more."""
        self._store.stop.set()
        self._is_wiped, self.state, self.fault = True, None, "this device is wiped"

    # Manifests and chunks

    async def take_manifest(self, wrapper: JsonObject) -> Manifest:
        """A signed manifest. Raises TrustError, UpdateRefused, StateError."""
        manifest = self._read(wrapper)
        finishing, state = self._finishing, self.state
        receiving = None if state is None else state.receiving
        if finishing is not None and receiving is not None and receiving.kind is not manifest.kind:
            await asyncio.wait([finishing])  # mail brings one release after the other: the whole one counts
        async with self._changing:
            await self._take(manifest, by_network=False)
        return manifest

    def _read(self, wrapper: JsonObject) -> Manifest:
        return read_manifest(wrapper, roots=self.roots(), now_ms=self.now_ms(), revoked=self.revoked())

    async def _take(self, manifest: Manifest, *, by_network: bool) -> None:
        before = self._usable()
        after = offered(before, manifest, by_network=by_network)
        if after.receiving is before.receiving:
            await self._put(after)
            self._finish_if_whole()
            return
        try:
            self._check_wanted(manifest)
        except UpdateRefused as refused:
            if by_network:
                await self._put(refused_offer(before, manifest, refused.code))
            raise
        await self._put(after)
        self._begin_again()
        await self._do(lambda: self._store.tidy(after))
        try:
            await self._do(lambda: self._store.begin(manifest))
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

    # Offers by network

    async def take_offer(self, answer: OfferAnswer) -> None:
        """A verified offer: drop what it does not name, and begin with the first release that is new.

        A manifest that no root vouches for is left out. A release that cannot be taken has failed, because
        its sender sees only reports. Raises UpdateRefused while no update is accepted, StateError.
        """
        async with self._changing:
            before = self._usable()
            await self._drop(newly_offered(before, answer.offer))
            self._finish_if_whole()
            for manifest in self._vouched(answer):
                state = self._usable()
                if state.receiving is not None or state.app is not None:
                    return  # one after the other, each to its end
                try:
                    await self._take(manifest, by_network=True)
                except UpdateRefused as refused:
                    _log.error("release %d is rejected: %s", manifest.release_seq, refused)

    def _vouched(self, answer: OfferAnswer) -> list[Manifest]:
        """The manifests that a root vouches for and the offer names, by release_seq."""
        found = []
        for wrapper in answer.manifests:
            try:
                manifest = self._read(wrapper)
            except (TrustError, UpdateRefused) as error:
                _log.error("an offered release is rejected: %s", error)
                continue
            if manifest.release_seq in answer.offer.release_seqs:
                found.append(manifest)
        return sorted(found, key=lambda manifest: manifest.release_seq)

    async def wanted_chunk(self) -> tuple[int, int] | None:
        """The release_seq and index of the chunk to fetch next; None when none is missing, or the service
        does not offer the release. Raises StateError."""
        async with self._changing:
            state = self.state
            manifest = None if state is None else state.receiving
            if state is None or manifest is None or state.offer is None or self.have == manifest.chunk_count:
                return None
            if manifest.release_seq not in state.offer.release_seqs:
                return None
            try:
                await self._find_chunks(manifest)
            except UpdateRefused as refused:
                _log.error("release %d cannot be continued: %s", manifest.release_seq, refused)
                return None
            index = await self._do(lambda: self._store.missing(manifest, self._fetched))
        return None if index is None else (manifest.release_seq, index)

    async def _find_chunks(self, manifest: Manifest) -> int:
        """How many chunks of the release being received are on the disk. Raises UpdateRefused, StateError.

        It is given up where the power failed before its space was allocated, and there is none any more."""
        try:
            return len(await self._do(lambda: self._store.chunks_here(manifest)))
        except UpdateRefused as refused:
            await self._drop(given_up(self._usable(), refused.code))
            raise

    async def withdraw(self, release_seq: int) -> None:
        """Drop a release that the service has halted, unless in force. Raises UpdateRefused, StateError."""
        async with self._changing:
            await self._drop(withdrawn(self._usable(), release_seq))

    async def _drop(self, after: UpdateState) -> None:
        """Save a state from which releases may be missing."""
        before = self._usable()
        await self._put(after)
        if after.receiving is not before.receiving:
            self._begin_again()
        if after.withdrawn != before.withdrawn:
            await self._do(lambda: self._store.tidy(after))
            _log.warning("release %d is withdrawn by the service", after.withdrawn[-1].release_seq)

    def _begin_again(self) -> None:
        self.have, self.is_verified, self._fetched = 0, False, -1

    def _check_wanted(self, manifest: Manifest) -> None:
        if manifest.kind is ReleaseKind.APP and manifest.name != APP_PACKAGE:
            raise UpdateRefused("wrong_name", f"it is not {APP_PACKAGE}; send the release of this product")
        if manifest.kind is ReleaseKind.MODEL and self.model_pinned:
            raise UpdateRefused(
                "model_pinned",
                "[model] dir in the configuration names the model; remove it and release again",
            )
        check_app_version(manifest, self.app_version)

    async def take_chunk(self, body: JsonObject) -> None:
        """A piece of a payload, durable when this returns. Raises FormatError, UpdateRefused, StateError."""
        chunk = await self._thread.do(lambda: read_chunk(body))
        async with self._changing:
            manifest = None if self.state is None else self.state.receiving
            if manifest is None or chunk.release_seq != manifest.release_seq:
                # Its manifest was refused, which is reported already, or it is complete. Refusing each of its
                # chunks as well would block the mail, and with it the gallery's freshness.
                return
            if self.have < manifest.chunk_count:
                await self._find_chunks(manifest)
                self.have = await self._do(lambda: self._store.take(manifest, chunk))
                self._fetched = chunk.index
        self._finish_if_whole()

    def _finish_if_whole(self) -> None:
        manifest = None if self.state is None else self.state.receiving
        if manifest is None or self.have < manifest.chunk_count:
            return
        if self._finishing is None or self._finishing.done():
            self._finishing = asyncio.get_running_loop().create_task(self._verify(manifest), name="update")

    async def _verify(self, manifest: Manifest) -> None:
        """All chunks are present: verify the whole, and put it where it waits for its turn."""
        try:
            payload = await self._do(lambda: self._store.check_whole(manifest))
            model_id = await self._do(lambda: self._tested(manifest, payload))
            if model_id is None:
                self._read(manifest.wrapper)  # as root's installer will: its chunks may have taken weeks
        except TrustError as error:
            _log.error("release %d is rejected: %s", manifest.release_seq, error)
            await self._settle(manifest, partial(given_up, code=UNTRUSTED))
        except UpdateRefused as refused:
            _log.error("release %d is rejected: %s", manifest.release_seq, refused)
            await self._settle(manifest, partial(given_up, code=refused.code))
        except StateError as error:
            _log.error("release %d: %s; the next start tries again", manifest.release_seq, error)
        else:
            if model_id is None:
                await self._settle(manifest, partial(app_verified, manifest=manifest), payload)
            else:
                await self._settle(manifest, partial(model_tested, manifest=manifest, model_id=model_id))

    def _tested(self, manifest: Manifest, payload: Path) -> str | None:
        """On the update's thread: the model_id of a model, now in its slot; None for software.

        Raises UpdateRefused, StateError."""
        if manifest.kind is ReleaseKind.APP:
            return None
        return self.test_model(self._store.unpack_model(manifest, payload))

    async def _settle(
        self, manifest: Manifest, change: Callable[[UpdateState], UpdateState], app: Path | None = None
    ) -> None:
        """Save the change, unless the release was withdrawn or replaced, or the device wiped, meanwhile.
        `app`: verified software, which takes effect from here on."""
        async with self._changing:
            state = self.state
            if state is None or state.receiving is not manifest:
                return
            if app is not None and not state.may_switch(manifest.release_seq, self.now_ms()):
                _log.info("release %d is whole and waits for an offer", manifest.release_seq)
                self.is_verified = True
                self._changed()
                return
            try:
                if app is not None:
                    await self._do(lambda: self._store.hand_over_app(manifest, app))
                after = change(state)
                await self._put(after)
                await self._do(lambda: self._store.tidy(after))
            except StateError as error:
                _log.error("release %d: %s; the next start tries again", manifest.release_seq, error)
                return
            except UpdateRefused:
                return  # a wipe has begun
        if after.failed is None:
            _log.info("release %d is verified and waits for its turn", manifest.release_seq)

    # Models and software in force

    def wants_other_model(self, facts: GalleryFacts | None) -> bool:
        """Whether the gallery belongs to another model than the one in force, so that a restart is due."""
        state = self.state
        if state is None or self.model_pinned or self.unsaved:  # a start that is not saved changes nothing
            return False
        shipped_id, newer_id = self.opened.shipped_id, self.opened.newer_id
        if newer_id is not None and not shipped_stays(state, facts, newer_id):
            return True
        copy_id = self.opened.copy_id
        if copy_id is not None and facts is not None and facts.model_id == copy_id != self.model_id:
            return True
        return model_for(state, facts, shipped_id, self.now_ms()) != state.model

    async def keep_shipped(self, facts: GalleryFacts | None) -> None:
        """Have a copy of the shipped model, now that the gallery shows that it is made with it."""
        copy_id, shipped_id = self.opened.copy_id, self.opened.shipped_id
        if copy_id is None or facts is None or facts.model_id != shipped_id:
            return
        self.opened = replace(self.opened, copy_id=None)
        try:
            await self._do(lambda: keep_shipped(self._store))
        except StateError as error:
            _log.error("%s; the next start tries again", error)

    async def save_again(self) -> None:
        """Try once more to save the state that this start could not."""
        async with self._changing:
            if self.state is None or not self.unsaved:
                return
            try:
                await self._put(self.state)
            except StateError as error:
                self.unsaved = str(error)
            else:
                _log.info("the state of updates is on the disk again")

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
                await self._do(lambda: self._store.tidy(after))

    async def give_up_untrusted_app(self, listed: Callable[[], Sequence[PublicKey]]) -> None:
        """Software that `palm-update.service` passes over, which notes nothing that it could not verify: its
        signer's certificate has ended, or no root in root's list vouches for it. `listed` reads those that
        the list vouches for, and raises UpdateRefused, OSError."""
        app = self._usable().app
        if app is None:
            return
        try:
            roots = await asyncio.to_thread(listed)
            # What it began while the certificate held, it may still end well.
            read_manifest(app.wrapper, roots=roots, now_ms=self.now_ms() - INSTALLED_WITHIN_MS)
        except (TrustError, UpdateRefused) as error:
            code = error.code if isinstance(error, UpdateRefused) else UNTRUSTED
            _log.error("release %d is given up: %s", app.release_seq, error)
            await self.app_outcome(app.release_seq, code)
        except OSError as error:
            _log.error("release %d: %s", app.release_seq, error)

    async def roll_back(self, facts: GalleryFacts | None) -> None:
        """A technician wants the previous model. Raises UpdateRefused, StateError."""
        async with self._changing:
            await self._put(rolled_back(self._usable(), facts, self.opened.shipped_id))

    def _usable(self) -> UpdateState:
        if self.state is None:
            raise UpdateRefused("updates_unusable", self.fault)
        return self.state

    async def _do(self, work: Callable[[], T]) -> T:
        """`work` on the thread. Raises UpdateRefused when a wipe has begun before its turn."""

        def unless_wiped() -> T:
            self._check_not_wiped()
            return work()

        return await self._thread.do(unless_wiped)

    def _check_not_wiped(self) -> None:
        if self._is_wiped:
            raise UpdateRefused("updates_unusable", self.fault)

    async def _put(self, state: UpdateState) -> None:
        """Save the state, then put it in force. Raises UpdateRefused when a wipe has begun, StateError."""
        if state != self.state or self.unsaved:
            await self._do(lambda: self._store.save(state))
            self._check_not_wiped()
            self.state, self.unsaved = state, ""
            self._changed()


def _installed_version() -> str:
    """The version of the installed package; empty without one."""
    try:
        return (Path(sys.prefix) / "VERSION").read_text(encoding="ascii").strip()
    except OSError:
        return ""
