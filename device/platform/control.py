"""The technician's socket: what `palmctl` asks the core.

`palmd` hands in the operations by name; `status` is the first of them. Framing: `device.platform.ipc`.
"""

from collections.abc import Awaitable, Callable, Mapping

from device.errors import IpcRefused, Refused, StateError, TrustError
from device.platform.ipc import Handler, Packet
from link1.errors import FormatError

Operation = Callable[[Packet], Awaitable[Packet]]
"""Answers one request of a technician. Runs on the loop; may raise IpcRefused."""


def refusing(operations: Mapping[str, Operation]) -> dict[str, Operation]:
    """`operations`, with their errors as refusals."""

    def guarded(operation: Operation) -> Operation:
        async def answer(request: Packet) -> Packet:
            try:
                return await operation(request)
            except Refused as error:
                raise IpcRefused(error.code, str(error)) from error
            except TrustError as error:
                raise IpcRefused("untrusted", str(error)) from error
            except StateError as error:
                raise IpcRefused("store", str(error)) from error
            except FormatError as error:
                raise IpcRefused("malformed", str(error)) from error

        return answer

    return {name: guarded(operation) for name, operation in operations.items()}


def control_handler(operations: Mapping[str, Operation]) -> Handler:
    """The core's side: each operation under the name by which it is asked for."""

    async def handle(request: Packet) -> Packet:
        operation = operations.get(str(request.header.get("op")))
        if operation is None:
            known = ", ".join(sorted(operations))
            raise IpcRefused("unknown_op", f"the operation is not one of: {known}")
        return await operation(request)

    return handle
