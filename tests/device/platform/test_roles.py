"""Which operation is answered at which socket, and what destroys something is asked for by root, by name."""

import asyncio
import os
import stat
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from device.errors import IpcRefused
from device.platform.ipc import IpcClient, Packet, reply
from device.platform.roles import (
    DESTRUCTIVE,
    OPERATIONS,
    SocketRole,
    admitting,
    control_handler,
    serve_roles,
    socket_path,
)

EVERY_OPERATION = sorted(frozenset[str]().union(*OPERATIONS.values()))
ROOT = 0
NOBODY = 65_534
AS_UNIT = {"RUNTIME_DIRECTORY": "/run/palm-access"}


async def done(_request: Packet) -> Packet:
    return reply()


def ask(role: SocketRole, request: Packet, environ: dict[str, str] | None = None) -> Packet:
    return asyncio.run(_ask(role, request, environ or {}))


async def _ask(role: SocketRole, request: Packet, environ: dict[str, str]) -> Packet:
    return await admitting(role, done, "gate-7", environ)(request)


def refusal_of(role: SocketRole, request: Packet, environ: dict[str, str] | None = None) -> IpcRefused:
    with pytest.raises(IpcRefused) as refused:
        ask(role, request, environ)
    return refused.value


@pytest.mark.parametrize("role", list(SocketRole))
def test_each_socket_answers_its_own_operations_and_names_the_place_of_others(role: SocketRole) -> None:
    for op in EVERY_OPERATION:
        request = Packet({"op": op, "device_id": "gate-7"}, peer_uid=ROOT)
        if op in OPERATIONS[role]:
            assert ask(role, request).header == {"ok": True}
        else:
            error = refusal_of(role, request)
            assert error.code == "wrong_socket"
            assert "/sock" in str(error)


@pytest.mark.parametrize("op", ["", "nonsense", None, 7, ["status"], {"op": "status"}])
def test_what_no_role_has_is_unknown_everywhere(op: object) -> None:
    for role in SocketRole:
        assert refusal_of(role, Packet({"op": op}, peer_uid=ROOT)).code == "unknown_op"


def test_the_screen_and_the_carrier_share_nothing_and_destroy_nothing() -> None:
    assert not OPERATIONS[SocketRole.TOTEM] & OPERATIONS[SocketRole.CARRIER]
    for role in (SocketRole.TOTEM, SocketRole.CARRIER, SocketRole.INSTALLER):
        assert not OPERATIONS[role] & DESTRUCTIVE
    assert all(op.startswith(("enrolment.", "preview.")) for op in OPERATIONS[SocketRole.TOTEM])


@pytest.mark.parametrize("op", sorted(DESTRUCTIVE))
def test_what_destroys_is_for_root_and_names_the_device(op: str) -> None:
    named = {"op": op, "device_id": "gate-7"}
    assert ask(SocketRole.TECHNICIAN, Packet(named, peer_uid=ROOT), AS_UNIT).header == {"ok": True}
    for uid in (NOBODY, os.geteuid() + 1, None):
        assert refusal_of(SocketRole.TECHNICIAN, Packet(named, peer_uid=uid), AS_UNIT).code == "not_root"
    for header in ({"op": op}, {"op": op, "device_id": "gate-8"}, {"op": op, "device_id": None}):
        assert (
            refusal_of(SocketRole.TECHNICIAN, Packet(header, peer_uid=ROOT), AS_UNIT).code == "wrong_device"
        )


def test_the_cores_own_user_counts_as_root_only_without_a_service_manager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    request = Packet({"op": "factory_reset", "device_id": "gate-7"}, peer_uid=1000)
    assert ask(SocketRole.TECHNICIAN, request).header == {"ok": True}
    assert refusal_of(SocketRole.TECHNICIAN, request, AS_UNIT).code == "not_root"


def test_folders_of_the_package_are_kept_and_absent_ones_are_the_cores_alone(tmp_path: Path) -> None:
    given = socket_path(tmp_path, SocketRole.CARRIER).parent
    given.mkdir()
    given.chmod(0o2710)

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            answer = control_handler({})
            await serve_roles(tmp_path, "gate-7", stack, carrier=answer, technician=answer)
            for role in SocketRole:
                path = socket_path(tmp_path, role)
                assert stat.S_IMODE(path.stat().st_mode) == 0o660
                client = await IpcClient.connect(path)
                with pytest.raises(IpcRefused, match="not one of"):
                    await client.call("nonsense", timeout_s=5)
                client.close()
            assert stat.S_IMODE(given.stat().st_mode) == 0o2710
            for role in (SocketRole.TECHNICIAN, SocketRole.TOTEM):
                assert stat.S_IMODE(socket_path(tmp_path, role).parent.stat().st_mode) == 0o750

    asyncio.run(scenario())
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []
