"""A technician's operations on the whole device over the control socket: status, factory reset, measurements
of a picture, and updates: a release from a stick, rollback."""

import asyncio
from collections.abc import Awaitable, Callable

from device.doctor.measured_picture import PICTURE_OP, MeasuredAnswer, measure
from device.errors import IpcRefused
from device.platform.ipc import Handler, Packet, finishing, reply, reply_with
from device.platform.roles import refusing
from device.updates.desk import UpdateDesk
from device.updates.manifest import MAX_MANIFEST_BYTES, Manifest, ReleaseKind
from device.updates.state import SHIPPED, GalleryFacts, ModelSlot, ReleaseNote, UpdateState
from device.values import status
from device.values.control import ChunkGiven, UpdatesAnswer
from device.vision.capture import FrameSlot
from link1.canonical import b64_encode, read_strict
from models.hand_landmarks import HandLandmarks


def device_operations(
    whole_status: Callable[[], status.CoreStatus],
    factory_reset: Handler,
    slot: FrameSlot,
    landmarks: HandLandmarks | None,
    *,
    desk: UpdateDesk,
    facts: Callable[[], Awaitable[GalleryFacts | None]],
) -> dict[str, Handler]:
    """The operations by name. `slot`: holds the camera's newest picture. `landmarks`: find the hand in it.
    `facts`: epoch and model of the gallery."""

    async def answer_status(_request: Packet) -> Packet:
        return reply_with(status.StatusAnswer(whole_status()))

    async def measure_picture(_request: Packet) -> Packet:
        frame = slot.latest
        if frame is None:
            raise IpcRefused("no_picture", "the camera gives no picture now; see the line `camera`")
        measured = await asyncio.to_thread(measure, frame, landmarks)
        return reply_with(MeasuredAnswer(measured))

    async def update_status(_request: Packet) -> Packet:
        return reply_with(UpdatesAnswer(updates_status(desk)))

    async def manifest(request: Packet) -> Packet:
        wrapper = read_strict(request.payload, max_bytes=MAX_MANIFEST_BYTES)
        await desk.take_manifest(wrapper)
        return reply_with(UpdatesAnswer(updates_status(desk)))

    async def chunk(request: Packet) -> Packet:
        given = ChunkGiven.from_obj(request.header)
        await desk.take_chunk(given.to_obj() | {"data_b64": b64_encode(request.payload)})
        return reply()

    async def rollback(_request: Packet) -> Packet:
        await desk.roll_back(await facts())
        return reply_with(UpdatesAnswer(updates_status(desk)))

    updates = {
        "update.status": update_status,
        "update.manifest": manifest,
        "update.chunk": chunk,
        "update.rollback": rollback,
    }
    return {
        "status": answer_status,
        "factory_reset": finishing(factory_reset),
        PICTURE_OP: measure_picture,
        **refusing({name: finishing(operation) for name, operation in updates.items()}),
    }


def updates_status(desk: UpdateDesk) -> status.UpdatesStatus:
    state = desk.state
    if state is None:
        return status.UpdatesStatus(usable=False, software=desk.software, fault=desk.fault)
    receiving, app, failed = state.receiving, state.app, state.failed
    in_force = status.UpdatesInForce(
        release_seq=state.release_seq,
        receiving=None
        if receiving is None
        else status.ReceivingStatus(
            receiving.release_seq,
            str(receiving.kind),
            receiving.name,
            receiving.version,
            chunks=desk.have,
            chunk_count=receiving.chunk_count,
            size=receiving.size,
        ),
        app_waiting=None
        if app is None
        else status.ReleaseStatus(app.release_seq, str(app.kind), app.name, app.version),
        model=status.ModelStatus(
            desk.model_id,
            release_seq=state.model,
            on_trial=state.trial is not None,
            waiting=_slot(state, state.waiting) or _newer(desk),
            previous=_slot(state, state.previous),
        ),
        failed=None
        if failed is None
        else status.FailedRelease(failed.release_seq, str(failed.kind), failed.version, failed.code),
        releases=release_states(desk),
    )
    return status.UpdatesStatus(usable=True, software=desk.software, state=in_force)


def release_states(desk: UpdateDesk) -> tuple[status.ReportedRelease, ...]:
    """The releases that this device holds, runs, or has given up, as it reports them."""
    state = desk.state
    if state is None:
        return ()
    found = []
    if (installed := state.installed) is not None:
        # A technician, or a package, may have put another version in its place since.
        runs = desk.software == installed.version
        found.append(_reported(installed, "running") if runs else _reported(installed, "failed", "replaced"))
    if (app := state.app) is not None:
        found.append(_reported(app, "trial" if desk.software == app.version else "verified"))
    if (model := state.slot(state.model)) is not None:
        found.append(_reported_model(model, "running" if state.trial is None else "trial"))
    if state.waiting is not None and (waiting := state.slot(state.waiting)) is not None:
        found.append(_reported_model(waiting, "verified"))
    if (receiving := state.receiving) is not None:
        found.append(_reported(receiving, "verified" if desk.is_verified else "receiving"))
    found += [_reported(note, "withdrawn") for note in state.withdrawn]
    if (failed := state.failed) is not None:
        found.append(_reported(failed, "failed", failed.code))
    return tuple(found)


def _reported(release: Manifest | ReleaseNote, state: str, code: str = "") -> status.ReportedRelease:
    return status.ReportedRelease(str(release.kind), release.name, release.release_seq, state, code)


def _reported_model(slot: ModelSlot, state: str) -> status.ReportedRelease:
    return status.ReportedRelease(str(ReleaseKind.MODEL), slot.name, slot.release_seq, state)


def _slot(state: UpdateState, release_seq: int | None) -> status.ModelOnDisk | None:
    if release_seq is None:
        return None
    slot = state.slot(release_seq)
    if slot is None or release_seq == SHIPPED:
        return status.ModelOnDisk(SHIPPED, "shipped", None)
    return status.ModelOnDisk(slot.release_seq, slot.version, slot.model_id)


def _newer(desk: UpdateDesk) -> status.ModelOnDisk | None:
    """The model that came with newer software, while it waits."""
    newer_id = desk.opened.newer_id
    return None if newer_id is None else status.ModelOnDisk(SHIPPED, "shipped", newer_id)
