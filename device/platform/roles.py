"""Which role may ask the core for what: one folder and socket for each role, and one table of operations.

    /run/palm-access/    folder and socket belong to palm-access and to the group
      carrier/sock         palm-syncd     the carrier
      control/sock         palm-access    the technician
      totem/sock           palm-totem     the screen at which people enrol
      control.sock         palm-access    the installer of an update from a version that knows only this path

1. Folder and socket admit only their group (0750 and 0660); root passes everywhere. The package creates the
   folders with their groups. Where they are absent the core creates them as its user, so that without a
   service manager everything works as one user.
2. A socket refuses every operation that its role does not have, whichever user asks.
3. Destructive operations are for root alone, and the request names the device. A core that was not started by
   a service manager accepts its own user in root's place, as on a developer's machine.
"""

import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from enum import StrEnum
from pathlib import Path
from typing import Final

from device.errors import NOT_ROOT, IpcError, IpcRefused, Refused, StateError, TrustError
from device.platform.ipc import Handler, IpcServer, Packet
from link1.errors import FormatError


class SocketRole(StrEnum):
    """The role of the clients at a socket. The value names the socket in messages."""

    CARRIER = "carrier"
    TECHNICIAN = "control"
    TOTEM = "totem"
    INSTALLER = "installer"


_SCREEN: Final = frozenset(
    {
        "enrolment.state",
        "enrolment.begin",
        "enrolment.terms",
        "enrolment.accept",
        "enrolment.refuse",
        "enrolment.cancel",
    }
)
OPERATIONS: Final[Mapping[SocketRole, frozenset[str]]] = {
    SocketRole.CARRIER: frozenset(
        {
            "hello",
            "http_key",
            "gallery.deltas",
            "gallery.snapshot",
            "verdicts.next",
            "verdicts.done",
            "enrolment.next",
            "enrolment.done",
            "redeem.next",
            "redeem.done",
            "status",
            "wiped",
            "keys",
            "time",
            "link_state",
            "report.next",
            "updates",
            "updates.wanted",
            "updates.chunk",
            "updates.gone",
            "attest",
            "attested",
        }
    ),
    SocketRole.TECHNICIAN: _SCREEN
    | {
        "status",
        "measure_picture",
        "preview.frame",
        "pass.next",
        "pass.rehearse",
        "update.status",
        "update.manifest",
        "update.chunk",
        "update.rollback",
        "factory_reset",
    },
    SocketRole.TOTEM: _SCREEN,
    SocketRole.INSTALLER: frozenset({"status"}),
}
DESTRUCTIVE: Final = frozenset({"factory_reset", "update.rollback"})
"""For root alone, with the member device_id."""

_PATHS: Final[Mapping[SocketRole, str]] = {
    SocketRole.CARRIER: "carrier/sock",
    SocketRole.TECHNICIAN: "control/sock",
    SocketRole.TOTEM: "totem/sock",
    SocketRole.INSTALLER: "control.sock",
}
LONGEST_PATH: Final = max(_PATHS.values(), key=len)
_STARTED_AS_UNIT: Final = "RUNTIME_DIRECTORY"
"""Set by the service manager for a unit with a runtime directory, such as the core's."""


def socket_path(runtime_dir: Path, role: SocketRole) -> Path:
    return runtime_dir / _PATHS[role]


async def serve_roles(
    runtime_dir: Path, device_id: str, stack: AsyncExitStack, *, carrier: Handler, technician: Handler
) -> None:
    """Listen for every role; `technician` answers all but the carrier. `stack` ends it. Raises IpcError."""
    for role in SocketRole:
        path, answer = socket_path(runtime_dir, role), carrier if role is SocketRole.CARRIER else technician
        if path.parent != runtime_dir:
            _make_folder(path.parent)
        server = await IpcServer.start(path, admitting(role, answer, device_id))
        stack.push_async_callback(server.close)


def refusing(operations: Mapping[str, Handler]) -> dict[str, Handler]:
    """`operations`, with their errors as refusals."""

    def guarded(operation: Handler) -> Handler:
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


def control_handler(operations: Mapping[str, Handler]) -> Handler:
    """The core's side: each operation under the name by which it is asked for."""

    async def handle(request: Packet) -> Packet:
        operation = operations.get(str(request.header.get("op")))
        if operation is None:
            known = ", ".join(sorted(operations))
            raise IpcRefused("unknown_op", f"the operation is not one of: {known}")
        return await operation(request)

    return handle


def admitting(
    role: SocketRole, handler: Handler, device_id: str, environ: Mapping[str, str] = os.environ
) -> Handler:
    """`handler`, restricted to the operations of `role`."""
    rulers = {0} if _STARTED_AS_UNIT in environ else {0, os.geteuid()}

    async def handle(request: Packet) -> Packet:
        op = request.header.get("op")
        if not isinstance(op, str):
            op = ""
        if op not in OPERATIONS[role]:
            raise _not_here(role, op)
        if op in DESTRUCTIVE:
            if request.peer_uid not in rulers:
                raise IpcRefused(NOT_ROOT, f"{op} is for root alone; run the command with sudo")
            if request.header.get("device_id") != device_id:
                raise IpcRefused(
                    "wrong_device", f"{op} must name this device in device_id; found another name, or none"
                )
        return await handler(request)

    return handle


def _not_here(role: SocketRole, op: str) -> IpcRefused:
    others = [other for other in OPERATIONS if op in OPERATIONS[other] and other is not SocketRole.INSTALLER]
    if not others:
        known = ", ".join(sorted(OPERATIONS[role]))
        return IpcRefused("unknown_op", f"the operation is not one of: {known}")
    places = " or ".join(_PATHS[other] for other in others)
    return IpcRefused("wrong_socket", f"{op} is not for the {role} socket; it is asked at {places}")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o750, parents=True)
        folder.chmod(0o750)  # regardless of the umask
    except FileExistsError:
        if not folder.is_dir():
            raise IpcError(f"{folder} exists and is no folder; remove it") from None
    except OSError as error:
        raise IpcError(
            f"{folder} cannot be made ({error.strerror}); check [device] runtime_dir, and who owns its parent"
        ) from error
