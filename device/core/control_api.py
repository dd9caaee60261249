"""Operations of `palmctl` on the whole device: status, factory reset, measurements of a picture."""

import asyncio
from collections.abc import Callable, Mapping

from device.doctor.measured_picture import PICTURE_OP, MeasuredAnswer, measure
from device.errors import IpcRefused
from device.platform.control import Operation
from device.platform.ipc import Packet
from device.values.status import CoreStatus, StatusAnswer
from device.values.wire import reply_with
from device.vision.capture import FrameSlot
from models.hand_landmarks import HandLandmarks


def control_operations(
    status: Callable[[], CoreStatus],
    factory_reset: Operation,
    slot: FrameSlot,
    landmarks: HandLandmarks | None,
) -> Mapping[str, Operation]:
    """The operations by name. `slot`: holds the camera's newest picture. `landmarks`: find the hand in it."""

    async def answer_status(_request: Packet) -> Packet:
        return reply_with(StatusAnswer(status()))

    async def measure_picture(_request: Packet) -> Packet:
        frame = slot.latest
        if frame is None:
            raise IpcRefused("no_picture", "the camera gives no picture now; see the line `camera`")
        measured = await asyncio.to_thread(measure, frame, landmarks)
        return reply_with(MeasuredAnswer(measured))

    return {"status": answer_status, "factory_reset": factory_reset, PICTURE_OP: measure_picture}
