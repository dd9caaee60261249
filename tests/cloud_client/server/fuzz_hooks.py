"""What schemathesis has to know about this contract (loaded by the runs that test_server_openapi starts).

Rules that a schema cannot state are followed here for calls that are meant to be good: check digits, times
that are not in the future, cursors that only the service can make. The environment has the credential:
an API key, or the seed of a registered device's http key.
"""

import os
import time
from typing import Any
from urllib.parse import urlsplit

import requests
import schemathesis
from schemathesis import Case, GenerationMode, HookContext, Response
from schemathesis.auths import GLOBAL_AUTH_STORAGE
from schemathesis.core.failures import Failure

from cloud_client.http_signature import new_nonce, sign_request
from link1.keys import SigningKey

KEY = "Idempotency-Key"
A_CPF = "52998224725"


@schemathesis.hook
def before_call(context: HookContext, case: Case[Any], kwargs: dict[str, Any]) -> None:
    if case.meta is None or case.meta.generation.mode is not GenerationMode.POSITIVE:
        return
    if KEY in case.headers:
        # The key of another call would repeat its answer, or refuse the body.
        case.headers[KEY] = new_nonce()
    for name in ("cursor", "from", "to", "wait_s"):
        case.query.pop(name, None)
    if isinstance(case.body, dict):
        if "cpf" in case.body:
            case.body["cpf"] = A_CPF
        evidence = case.body.get("evidence")
        if isinstance(evidence, dict) and "accepted_at" in evidence:
            evidence["accepted_at"] = "2026-01-31T12:00:00.5+01:00"


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case[Any], response: Response) -> bool:
    """A request that was meant to lack its credential was given it below: no wonder it was accepted."""
    meant = "in header - violates `required`" in failure.message
    return not (meant and ("Authorization" in failure.message or "Signature" in failure.message))


class DeviceSignature(requests.auth.AuthBase):
    """Signs what is about to be sent, as a device does."""

    def __init__(self, key: SigningKey) -> None:
        self._key = key

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        assert request.url is not None
        parts = urlsplit(request.url)
        body = request.body.encode() if isinstance(request.body, str) else request.body
        assert body is None or isinstance(body, bytes)
        request.headers.update(
            sign_request(
                request.method or "GET",
                parts.netloc,
                parts.path,
                parts.query,
                body,
                key=self._key,
                created_s=int(time.time()),
                nonce=new_nonce(),
            )
        )
        return request


class Bearer(requests.auth.AuthBase):
    """The API key."""

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers["Authorization"] = f"Bearer {os.environ['PALM_FUZZ_API_KEY']}"
        return request


if "PALM_FUZZ_DEVICE_SEED" in os.environ:
    seed = bytes.fromhex(os.environ["PALM_FUZZ_DEVICE_SEED"])
    GLOBAL_AUTH_STORAGE.set_from_requests(DeviceSignature(SigningKey.from_seed(seed)))
elif "PALM_FUZZ_API_KEY" in os.environ:
    GLOBAL_AUTH_STORAGE.set_from_requests(Bearer())
