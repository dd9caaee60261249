"""The service's operators: they start and stop it, and change who may pass, which keys count and what is
known."""

import asyncio
import contextlib
import json
import shutil
from typing import TYPE_CHECKING, Final

import httpx

from cloud_client.client import CloudClient, ServerAddress
from cloud_client.errors import CloudError
from cloud_client.reference_server.domain.mailbox.kinds import MailKind
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops import mail_send
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.vault import Vault
from device.updates.models import NO_MODEL_ID
from tools.rig.simulation.loop import SimulatedProcess
from tools.rig.simulation.machines import true_ms
from tools.rig.simulation.plan import Act, PlannedAct
from tools.rig.simulation.service import (
    DBD_ID,
    DBD_KEYS,
    DEVICE_ID,
    DRAWN,
    ORIGIN,
    DirectTransport,
    PartnerOffice,
    RunningService,
    copied,
    enrolment_body,
)

if TYPE_CHECKING:
    from tools.rig.simulation.world import SimulatedWorld

_HEARS_WITHIN_S: Final = 150.0
"""A status comes each minute, and the mail's pauses are no longer."""
_HANDSHAKE_S: Final = 0.02
_MAIL_TRIES, _MAIL_S = 16, 15.0
"""A device without a network mails a report each 30 s, and one without a carrier notices that after 180 s."""


class Operators:
    """Of one run's service. `server`: its process and program; None while it is down."""

    def __init__(self, world: "SimulatedWorld") -> None:
        self._world, self._start, self._history = world, world.start, world.history
        self.server: tuple[SimulatedProcess, RunningService] | None = None
        self._cloud = copied(world.start, world.folder / "cloud")
        self._backup = world.folder / "backup"
        self._gone: set[int] = set()

    def start_server(self) -> None:
        if self.server is None:
            process = SimulatedProcess("service")
            now_ms, now_s = lambda: true_ms(self._world.loop), lambda: self._world.loop.now_s
            service = self._world.loop.within(process, lambda: RunningService(self._cloud, now_ms, now_s))
            self.server = process, service
            self._world.loop.spawn(process, service.follow_changes())

    def stop_server(self) -> None:
        if self.server is not None:
            process, service = self.server
            self.server = None
            process.kill()
            service.store.close()

    async def enrol(self, person: int) -> None:
        """At another device of the operator's, whose network is good."""
        if person in self._gone or self.server is None or self._history.revoked:
            return
        transport = DirectTransport(self.server[1])
        office = PartnerOffice(transport, self._start.api_key)
        key, address = self._start.http_key, ServerAddress.parse(ORIGIN)
        desk = CloudClient(address, key, lambda: true_ms(self._world.loop), transport=transport)
        try:
            token = await office.session(self._start.subjects[person])
            await desk.enroll(
                enrolment_body(token, DRAWN.hands(person), DRAWN.model_id),
                f"enrol-{person}-{self._world.loop.steps}",
            )
        except (CloudError, RuntimeError, httpx.HTTPError) as error:
            self._history.say("OPERATOR", f"person {person} is not enrolled: {error}")
            return
        self._history.say("OPERATOR", f"person {person} is enrolled")
        self._world.onlooker.note_stream()

    @property
    def backed_up(self) -> bool:
        return self._backup.exists()

    def back_up(self) -> None:
        """What the service has on its disk now; it is between two commits."""
        shutil.copytree(self._cloud, self._backup)

    async def restore(self) -> None:
        """The service is what it was at the backup, and its operators do what their page says."""
        world, environment = self._world, self._start.environment
        if self.server is None:
            return
        rows, seen = world.onlooker.service_rows(), self.server[1].state_of_stream(environment).epoch
        self.stop_server()
        self._cloud = self._backup
        self.start_server()
        service = self.server[1]
        self._history.say("OPERATOR", "the service is restored from its backup")
        self._history.erased.clear()  # some of them are there again
        self._history.lost |= {ref for ref in rows if world.onlooker.service_rows().get(ref) != rows[ref]}
        while service.state_of_stream(environment).epoch <= seen:
            service.operate(lambda tx, _vault, now: operator.new_epoch(tx, environment, NO_MODEL_ID, now))
        world.onlooker.note_stream()
        for _ in range(_MAIL_TRIES if world.lives_on_mail else 0):
            await asyncio.sleep(_MAIL_S)
            with contextlib.suppress(OperatorError):
                service.operate(
                    lambda tx, vault, now: mail_send.resume(tx, vault, environment, DEVICE_ID, now_ms=now)
                )
                self._history.say("OPERATOR", "the mail goes on")
                return

    async def rotate_key(self) -> None:
        """The validator's key is another from now on, and the validator begins sessions until the device has
        heard of it: the old key may count at the `hello` and not at the `prove`."""
        world, key, until_s = self._world, DBD_KEYS[2], self._world.loop.now_s + _HEARS_WITHIN_S
        if self.server is None:
            return
        environment, chance = self._start.environment, world.disk_chance

        def add(tx: Tx, vault: Vault, now: int) -> None:
            operator.add_dbd(tx, environment, DBD_ID, key.public.b64, now)
            bundle = mail_send.trust_bundle(tx, vault, environment, now)
            body = MailKind.TRUST_BUNDLE.value, json.dumps(bundle).encode()
            mail_send.send(tx, vault, environment, DEVICE_ID, body, now_ms=now)

        self.server[1].operate(add)
        self._history.say("OPERATOR", "the validator's key is another")
        while world.loop.now_s < until_s and not world.onlooker.counts(key.public.kid):
            if world.onlooker.status_under_way and not world.lives_on_mail:
                world.validator.reset()
            await asyncio.sleep(chance.uniform(0.5, 1.5) * _HANDSHAKE_S)
        await asyncio.sleep(0.5)
        world.validator.kill()
        world.validator.key = key
        world.validator.power_on()

    async def operate(self, act: PlannedAct) -> None:
        if self.server is None:
            return
        service, person, environment = self.server[1], act.extra, self._start.environment
        subject_id = self._start.subjects[person]
        office = PartnerOffice(DirectTransport(service), self._start.api_key)
        try:
            match act.act:
                case Act.ERASE:
                    if person in self._gone:
                        return
                    await office.delete(f"/v1/subjects/{subject_id}")
                    self._gone.add(person)
                    state = service.state_of_stream(environment)
                    self._history.erased[self._start.refs[person]] = state.epoch, state.seq
                case Act.BLOCK:
                    service.operate(
                        lambda tx, vault, now: operator.block_subject(
                            tx, vault, environment, subject_id, reason="lost", now_ms=now
                        )
                    )
                case Act.UNBLOCK:
                    service.operate(
                        lambda tx, vault, now: operator.unblock_subject(
                            tx, vault, environment, subject_id, now_ms=now
                        )
                    )
                case Act.EPOCH:
                    service.operate(
                        lambda tx, _vault, now: operator.new_epoch(tx, environment, NO_MODEL_ID, now)
                    )
                case _:
                    await office.post(f"/v1/devices/{DEVICE_ID}/revoke", {"reason": "lost"})
                    self._history.revoked = True
        except Exception as error:  # noqa: BLE001 - an operator's mistake is no fault of the system
            self._history.say("OPERATOR", f"{act.act} of person {person} is refused: {type(error).__name__}")
        self._world.onlooker.note_stream()
