"""The technician's socket: what `palmctl` asks the core, and how it asks.

Operations (framing: `device.ipc`):

    status  → status: one object, everything that `palmctl status` shows
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

from device.errors import IpcRefused
from device.ipc import Handler, IpcClient, Packet, reply
from link1.canonical import JsonObject

_ANSWER_WITHIN_S = 5.0


def control_handler(status: Callable[[], JsonObject]) -> Handler:
    """The core's side. `status` is called on the loop for each question."""

    async def handle(request: Packet) -> Packet:
        if request.header.get("op") != "status":
            raise IpcRefused("unknown_op", "the operation is not one of: status")
        return reply(status=status())

    return handle


def read_status(control_socket: Path) -> JsonObject:
    """Ask a running core what it is doing; raises IpcUnreachable when none answers."""
    return asyncio.run(_ask(control_socket))


async def _ask(control_socket: Path) -> JsonObject:
    client = await IpcClient.connect(control_socket, _ANSWER_WITHIN_S)
    try:
        answer = await client.call("status", timeout_s=_ANSWER_WITHIN_S)
    finally:
        client.close()
    status = answer.header.get("status")
    if not isinstance(status, dict):
        raise IpcRefused(
            "malformed", "the core answered without a status; are palmctl and palmd of one version?"
        )
    return status
