"""What a device is offered, and the chunks of it (device surface §3)."""

import json
from typing import Final

from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.devices import attestation, rollouts
from cloud_client.reference_server.domain.devices import config as device_config
from cloud_client.reference_server.domain.devices.records import row_by_id
from cloud_client.reference_server.domain.tenancy import signers
from cloud_client.reference_server.store.base import Tx
from link1.signed import Kind

NEXT_AFTER_S: Final = 900


def list_updates(call: Call, tx: Tx) -> ApiAnswer:
    """``GET /v1/devices/self/updates``: the manifests, and the signed word that they are for this device."""
    device = row_by_id(tx, call.environment, call.caller.device_id)
    manifests = [json.loads(release["manifest"]) for release in rollouts.offered(tx, device)]
    offer = {
        "v": 1,
        "device_id": device["device_id"],
        "release_seqs": [manifest["release_seq"] for manifest in manifests],
        "issued_at_ms": call.now_ms,
    }
    return ApiAnswer(
        200,
        shown.OfferedUpdates(
            data=[
                device_config.sign_bundle(tx, call.vault, Kind.UPDATE_MANIFEST, manifest, call.now_ms)
                for manifest in manifests
            ],
            offer=signers.sign(tx, call.vault, "device_status", Kind.UPDATE_OFFER, offer, now_ms=call.now_ms),
            next_after_s=NEXT_AFTER_S,
            attest_due=attestation.is_due(tx, device, call.now_ms),
        ),
    )


def get_chunk(call: Call, tx: Tx) -> ApiAnswer:
    """``GET /v1/updates/{release_seq}/chunks/{index}``."""
    device = row_by_id(tx, call.environment, call.caller.device_id)
    release_seq, index = int(call.path["release_seq"]), int(call.path["index"])
    data = rollouts.chunk(tx, device, release_seq, index)
    if data is None:
        raise Problem(ProblemCode.UPDATE_NOT_FOUND)
    return ApiAnswer(200, shown.UpdateChunk(**rollouts.chunk_body(release_seq, index, data)))
