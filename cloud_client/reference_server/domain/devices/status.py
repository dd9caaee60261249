"""Routes about the device itself: status and wiped (attest is in attestation.py)."""

from cloud_client.reference_server.contract.bodies import Wiped
from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.devices.records import mark_wiped, row_by_id
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import Tx


async def device_status(call: Call, store: AsyncStore) -> ApiAnswer:
    """``GET /v1/devices/self/status``; a revoked device gets its signed wipe here, each time it asks."""

    def work(tx: Tx) -> ApiAnswer:
        device = row_by_id(tx, call.environment, call.caller.device_id)
        return ApiAnswer(200, device_config.signed_status(tx, call.vault, device, call.now_ms))

    return await store.write(work, durable=False, lock=call.environment.tenant_id)


def acknowledge_wipe(call: Call, tx: Tx) -> ApiAnswer:
    """``POST /v1/devices/self/wiped``: from here on the keys open nothing."""
    body: Wiped = call.body
    device = row_by_id(tx, call.environment, call.caller.device_id)
    if not mark_wiped(tx, device, body.wipe_id):
        raise Problem(ProblemCode.DEVICE_STATE_CONFLICT)
    return ApiAnswer(204)
