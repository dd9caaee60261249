"""Routes about the device itself: status, wiped, attest."""

import json

from cloud_client.contract import ProblemCode
from cloud_client.reference_server import device_config
from cloud_client.reference_server.bodies import Attest, Wiped
from cloud_client.reference_server.context import Answer, Call
from cloud_client.reference_server.devices import row_by_id
from cloud_client.reference_server.problems import Problem, invalid
from cloud_client.reference_server.store import AsyncStore, Tx


async def device_status(call: Call, store: AsyncStore) -> Answer:
    """``GET /v1/devices/self/status``; a revoked device gets its signed wipe here, each time it asks."""

    def work(tx: Tx) -> Answer:
        device = row_by_id(tx, call.environment, call.caller.device_id)
        return Answer(200, device_config.signed_status(tx, call.vault, device, call.now_ms))

    return await store.write(work, durable=False)


def acknowledge_wipe(call: Call, tx: Tx) -> Answer:
    """``POST /v1/devices/self/wiped``: from here on the keys open nothing."""
    body: Wiped = call.body
    wiped = tx.run(
        """UPDATE devices SET status = 'wiped'
           WHERE tenant_id = :tenant_id AND device_id = :device_id AND status = 'revoked'
             AND wipe_id = :wipe_id""",
        tenant_id=call.environment.tenant_id,
        device_id=call.caller.device_id,
        wipe_id=body.wipe_id,
    )
    if not wiped:
        raise Problem(ProblemCode.DEVICE_STATE_CONFLICT)
    return Answer(204)


def attest_device(call: Call, tx: Tx) -> Answer:
    """``POST /v1/devices/attest``. No factory CA is configured, so only ``none`` can be attested."""
    body: Attest = call.body
    if body.level == "x509":
        raise invalid("/level", "no_factory_ca_configured")
    if body.evidence is not None:
        raise invalid("/evidence", "type")
    device = row_by_id(tx, call.environment, call.caller.device_id)
    health = sorted({*json.loads(device["health"]), "KEY_UNATTESTED"})
    tx.run(
        """UPDATE devices SET attest_level = 'none', attest_verified = 0, health = :health
           WHERE tenant_id = :tenant_id AND device_id = :device_id""",
        health=json.dumps(health),
        tenant_id=call.environment.tenant_id,
        device_id=call.caller.device_id,
    )
    return Answer(200, {"trust": {"attest_level": "none", "verified": False}})
