"""The public routes: health and signing keys; and what is announced but not there."""

import hashlib

from cloud_client.contract import SERVER_TIME_HEADER
from cloud_client.reference_server.contract import answers as shown
from cloud_client.reference_server.contract.problems import KINDS, Problem, ProblemCode
from cloud_client.reference_server.contract.times import rfc3339
from cloud_client.reference_server.contract.words import API_VERSION, CONTRACT_VERSION
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.domain.tenancy import signers
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.web.api.etags import none_matches

_STATIC = {"Cache-Control": "public, max-age=300"}


async def get_health(call: Call, store: AsyncStore) -> ApiAnswer:
    """getHealth: ok when the database can be read and written; 503 when not."""
    await call.service.health.check(store)
    health = shown.HealthAnswer(
        status="ok",
        api_version=API_VERSION,
        contract_version=CONTRACT_VERSION,
        server_time=rfc3339(call.now_ms),
    )
    return ApiAnswer(200, health, {SERVER_TIME_HEADER: health.server_time})


def list_signing_keys(call: Call, tx: Tx) -> ApiAnswer:
    """listSigningKeys, with a validator so that a client may ask often."""
    keys = shown.SigningKeys(keys=signers.published(tx, call.now_ms))
    etag = f'"{hashlib.sha256(keys.model_dump_json().encode()).hexdigest()[:32]}"'
    headers = {"ETag": etag, "Cache-Control": "public, max-age=300"}
    if not none_matches(etag, call.if_none_match):
        return ApiAnswer(304, None, headers)
    return ApiAnswer(200, keys, headers)


def list_problems(_call: Call, _tx: Tx) -> ApiAnswer:
    """listProblemTypes: every code, and what to do about it."""
    return ApiAnswer(200, shown.ProblemTypes(data=[_problem_type(code) for code in ProblemCode]), _STATIC)


def get_problem(call: Call, _tx: Tx) -> ApiAnswer:
    """getProblemType: what the ``type`` of a problem leads to."""
    try:
        return ApiAnswer(200, _problem_type(ProblemCode(call.path["code"])), _STATIC)
    except ValueError:
        raise Problem(ProblemCode.ROUTE_NOT_FOUND) from None


def _problem_type(code: ProblemCode) -> shown.ProblemType:
    kind = KINDS[code]
    return shown.ProblemType(
        code=code, status=kind.status, title=kind.title, todo=kind.todo, retryable=kind.retryable
    )


def webhooks(_call: Call, _tx: Tx) -> ApiAnswer:
    """Announced for a later version."""
    raise Problem(ProblemCode.NOT_IMPLEMENTED)
