"""What a technician asks of updates over the control socket: status, a release from a stick, the way back."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from device.errors import IpcRefused, StateError, TrustError, UpdateRefused
from device.platform.ipc import Packet, reply
from device.updates.desk import UpdateDesk
from device.updates.manifest import MAX_MANIFEST_BYTES, Manifest
from device.updates.state import SHIPPED, GalleryFacts, UpdateState
from link1.canonical import JsonObject, b64_encode, read_strict
from link1.errors import FormatError

if TYPE_CHECKING:
    from device.platform.control import Operation


def update_operations(
    desk: UpdateDesk, facts: Callable[[], Awaitable[GalleryFacts | None]]
) -> "dict[str, Operation]":
    """`facts`: what the gallery is of."""

    async def status(_request: Packet) -> Packet:
        return reply(updates=told(desk))

    async def manifest(request: Packet) -> Packet:
        wrapper = read_strict(request.payload, max_bytes=MAX_MANIFEST_BYTES)
        taken = await desk.take_manifest(wrapper)
        return reply(release_seq=taken.release_seq, updates=told(desk))

    async def chunk(request: Packet) -> Packet:
        header = request.header
        body = {"release_seq": header.get("release_seq"), "index": header.get("index")}
        await desk.take_chunk(body | {"data_b64": b64_encode(request.payload)})
        return reply(have=desk.have)

    async def rollback(_request: Packet) -> Packet:
        await desk.roll_back(await facts())
        return reply(updates=told(desk))

    return {
        "update.status": status,
        "update.manifest": _refusing(manifest),
        "update.chunk": _refusing(chunk),
        "update.rollback": _refusing(rollback),
    }


def told(desk: UpdateDesk) -> JsonObject:
    """Where updates stand, for a person or a program."""
    state = desk.state
    if state is None:
        return {"usable": False, "fault": desk.fault, "software": desk.software}
    failed = state.failed
    return {
        "usable": True,
        "software": desk.software,
        "release_seq": state.release_seq,
        "receiving": None if state.receiving is None else _receiving(state.receiving, desk.have),
        "app_waiting": None if state.app is None else _named(state.app),
        "model": {
            "model_id": desk.model_id,
            "release_seq": state.model,
            "on_trial": state.trial is not None,
            "waiting": _slot(state, state.waiting),
            "previous": _slot(state, state.previous),
        },
        "failed": None
        if failed is None
        else {
            "release_seq": failed.release_seq,
            "kind": str(failed.kind),
            "version": failed.version,
            "code": failed.code,
        },
    }


def _named(manifest: Manifest) -> JsonObject:
    return {
        "release_seq": manifest.release_seq,
        "kind": str(manifest.kind),
        "name": manifest.name,
        "version": manifest.version,
    }


def _receiving(manifest: Manifest, have: int) -> JsonObject:
    return _named(manifest) | {"chunks": have, "chunk_count": manifest.chunk_count, "size": manifest.size}


def _slot(state: UpdateState, release_seq: int | None) -> JsonObject | None:
    if release_seq is None:
        return None
    slot = state.slot(release_seq)
    if slot is None or release_seq == SHIPPED:
        return {"release_seq": SHIPPED, "version": "shipped", "model_id": None}
    return {"release_seq": slot.release_seq, "version": slot.version, "model_id": slot.model_id}


def _refusing(operation: "Operation") -> "Operation":
    async def guarded(request: Packet) -> Packet:
        try:
            return await operation(request)
        except UpdateRefused as error:
            raise IpcRefused(error.code, str(error)) from error
        except TrustError as error:
            raise IpcRefused("untrusted", str(error)) from error
        except StateError as error:
            raise IpcRefused("store", str(error)) from error
        except FormatError as error:
            raise IpcRefused("malformed", str(error)) from error

    return guarded
