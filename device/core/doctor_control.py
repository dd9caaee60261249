"""What a running core measures for `palmctl doctor`: the picture in its hands, in numbers only."""

import asyncio
from collections.abc import Mapping

from device.doctor.measured_picture import PICTURE_OP, measure
from device.errors import IpcRefused
from device.platform.control import Operation
from device.platform.ipc import Packet, reply
from device.vision.capture import FrameSlot


def doctor_operations(slot: FrameSlot) -> Mapping[str, Operation]:
    """The operations of this piece, by the names under which they are asked for."""

    async def tell_picture(_request: Packet) -> Packet:
        frame = slot.latest
        if frame is None:
            raise IpcRefused("no_picture", "the camera gives no picture now; see the camera's own line")
        measured = await asyncio.to_thread(measure, frame)
        return reply(picture=measured.to_obj())

    return {PICTURE_OP: tell_picture}
