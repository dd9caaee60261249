"""The OpenAPI 3.1 document, made from the operation table."""

import json
import re
from functools import cache
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from cloud_client.contract import (
    IDEMPOTENCY_KEY_HEADER,
    JSON_TYPE,
    NAME_64,
    PROBLEM_TYPE,
    SERVER_TIME_HEADER,
)
from cloud_client.reference_server.contract.answers import ProblemDocument
from cloud_client.reference_server.contract.parameters import CURSOR_PARAMETER
from cloud_client.reference_server.contract.problems import KINDS, ProblemCode
from cloud_client.reference_server.contract.words import (
    CONTRACT_VERSION,
    IDEMPOTENCY_KEY,
    IDEMPOTENT_REPLAYED_HEADER,
    REQUEST_ID_HEADER,
)
from cloud_client.reference_server.contract.written import encode
from cloud_client.reference_server.web.api.operation import Keyed, Operation, Surface

_REF = "#/components/schemas/{model}"
_A_REF = re.compile(r'"#/components/schemas/(\w+)"')
_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_SECURITY: Final[dict[Surface, list[dict[str, list[str]]]]] = {
    Surface.PUBLIC: [],
    Surface.PARTNER: [{"apiKey": []}],
    Surface.DEVICE: [{"deviceSignature": []}],
    Surface.REGISTRATION: [{"provisioningToken": []}],
}
_TAGS: Final = {
    Surface.PUBLIC: "public",
    Surface.PARTNER: "partner",
    Surface.DEVICE: "device",
    Surface.REGISTRATION: "device",
}


@cache
def document(operations: tuple[Operation, ...]) -> dict[str, Any]:
    """The whole document as a JSON object, which is made once for each table: change nothing in it."""
    listed = [operation for operation in operations if operation.answers]
    paths: dict[str, dict[str, Any]] = {}
    for operation in listed:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    return {
        "openapi": "3.1.0",
        "jsonSchemaDialect": _DIALECT,
        "info": {
            "title": "Palm-Recognition Turnstile Service",
            "version": CONTRACT_VERSION,
            "description": "Partner API v1 and the device surface behind it.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in ("public", "partner", "device")],
        "paths": paths,
        "components": {
            "schemas": _schemas(listed),
            "securitySchemes": {
                "apiKey": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "svc_<live|test>_<key_id>_<secret>",
                },
                "deviceSignature": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Signature",
                    "description": "RFC 9421 with the device's http key; see the device surface.",
                },
                "provisioningToken": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "Provisioning <token>, and a signature by the http key in the body.",
                },
            },
        },
    }


@cache
def encoded_document(operations: tuple[Operation, ...]) -> bytes:
    """The same in the bytes that go out."""
    return encode(document(operations))


def _operation(operation: Operation) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "operationId": operation.operation_id,
        "summary": operation.summary,
        "tags": [_TAGS[operation.surface]],
        "security": _SECURITY[operation.surface],
        "parameters": _parameters(operation),
        "responses": _answers(operation) | _problems(operation),
    }
    if operation.note:
        shown["description"] = operation.note
    if operation.scope is not None:
        shown["x-scope"] = operation.scope.value
    if operation.retirement is not None:
        shown["deprecated"] = True
    if operation.referenced:
        shown["x-contract"] = "referenced"
    if operation.added:
        shown["x-contract"] = "added"
    if operation.bodies:
        refs = [_ref(model) for model in operation.bodies]
        schema = refs[0] if len(refs) == 1 else {"oneOf": refs}
        shown["requestBody"] = {"required": True, "content": {JSON_TYPE: {"schema": schema}}}
    return shown


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    shown = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "string", "pattern": f"^({rule.pattern.pattern})$"},
        }
        for name, rule in operation.paths.items()
    ]
    shown += [
        {
            "name": parameter.name,
            "in": "query",
            "required": parameter.required,
            "schema": parameter.schema,
        }
        for parameter in operation.query
    ]
    shown.append(
        {
            "name": REQUEST_ID_HEADER,
            "in": "header",
            "required": False,
            "schema": {"type": "string", "pattern": f"^{NAME_64.pattern}$"},
        }
    )
    if operation.keyed is not Keyed.NO:
        shown.append(
            {
                "name": IDEMPOTENCY_KEY_HEADER,
                "in": "header",
                "required": operation.keyed is Keyed.REQUIRED,
                "schema": {"type": "string", "pattern": f"^{IDEMPOTENCY_KEY.pattern}$"},
            }
        )
    return shown


def _common_headers(operation: Operation, *, success: bool) -> dict[str, Any]:
    """Of an answer. A request that failed before its credential has no RateLimit-*."""
    request_id = {"type": "string", "pattern": f"^{NAME_64.pattern}$"}
    headers = _rate_headers(required=success)
    headers[REQUEST_ID_HEADER] = {"schema": request_id, "required": True}
    if operation.surface in (Surface.DEVICE, Surface.REGISTRATION) or (success and operation.dated):
        time = {"type": "string", "format": "date-time"}
        headers[SERVER_TIME_HEADER] = {"schema": time, "required": success}
    if operation.keyed is not Keyed.NO:
        headers[IDEMPOTENT_REPLAYED_HEADER] = {"schema": {"type": "string", "enum": ["true", "false"]}}
    return headers


def _rate_headers(*, required: bool) -> dict[str, Any]:
    count = {"type": "integer", "minimum": 0}
    return {
        f"RateLimit-{word}": {"schema": count, "required": required}
        for word in ("Limit", "Remaining", "Reset")
    }


def _answers(operation: Operation) -> dict[str, Any]:
    headers = _common_headers(operation, success=True)
    if operation.conditional:
        headers["ETag"] = {"schema": {"type": "string"}, "required": True}
    if operation.located:
        headers["Location"] = {"schema": {"type": "string"}, "required": True}
    shown: dict[str, Any] = {}
    for status, model in operation.answers.items():
        answer: dict[str, Any] = {"description": operation.summary, "headers": headers}
        if model is not None:
            answer["content"] = {JSON_TYPE: {"schema": _ref(model)}}
        shown[str(status)] = answer
    if operation.conditional:
        shown["304"] = {"description": "Not changed since the ETag given", "headers": headers}
    return shown


def codes_of(operation: Operation) -> set[ProblemCode]:
    """Every code that an operation can answer with."""
    codes = {
        *operation.problems,
        ProblemCode.INVALID_REQUEST,
        ProblemCode.PAYLOAD_TOO_LARGE,
        ProblemCode.RATE_LIMITED,
        ProblemCode.INTERNAL_ERROR,
        ProblemCode.SERVICE_UNAVAILABLE,
    }
    if operation.surface is not Surface.PUBLIC:
        codes.add(ProblemCode.UNAUTHENTICATED)
    if operation.scope is not None:
        codes.add(ProblemCode.INSUFFICIENT_SCOPE)
    if operation.keyed is not Keyed.NO:
        codes |= {ProblemCode.IDEMPOTENCY_IN_PROGRESS, ProblemCode.IDEMPOTENCY_KEY_MISMATCH}
    if operation.keyed is Keyed.REQUIRED:
        codes.add(ProblemCode.IDEMPOTENCY_KEY_REQUIRED)
    if operation.bodies:
        codes |= {
            ProblemCode.MALFORMED_JSON,
            ProblemCode.UNSUPPORTED_MEDIA_TYPE,
            ProblemCode.VALIDATION_FAILED,
        }
    if operation.paths:
        # A value with a slash, or an empty one, makes another path.
        codes |= {ProblemCode.ROUTE_NOT_FOUND, *(rule.missing for rule in operation.paths.values())}
        if operation.scope is not None:
            codes.add(ProblemCode.LIVEMODE_MISMATCH)
    if CURSOR_PARAMETER in operation.query:
        codes.add(ProblemCode.INVALID_CURSOR)
    if operation.access_only:
        codes.add(ProblemCode.FORBIDDEN)
    return codes


def _problems(operation: Operation) -> dict[str, Any]:
    by_status: dict[int, list[str]] = {}
    for code in sorted(codes_of(operation)):
        by_status.setdefault(KINDS[code].status, []).append(code.value)
    return {str(status): _problem(operation, status, codes) for status, codes in sorted(by_status.items())}


def _problem(operation: Operation, status: int, codes: list[str]) -> dict[str, Any]:
    headers = _common_headers(operation, success=False)
    if status == 401:
        headers["WWW-Authenticate"] = {"schema": {"type": "string"}, "required": True}
    if status == 429:
        headers |= _rate_headers(required=True)
    if status in (429, 503):
        headers["Retry-After"] = {"schema": {"type": "integer", "minimum": 1}, "required": True}
    # Generators of clients narrow a member only where it repeats its type, and an integer only by an enum.
    narrowed = {
        "code": {"type": "string", "enum": codes},
        "status": {"type": "integer", "enum": [status]},
    }
    one_of_these = {"type": "object", "properties": narrowed}
    return {
        "description": ", ".join(codes),
        "headers": headers,
        "content": {PROBLEM_TYPE: {"schema": {"allOf": [_ref(ProblemDocument), one_of_these]}}},
    }


def _schemas(operations: list[Operation]) -> dict[str, Any]:
    models: dict[type[BaseModel], None] = {ProblemDocument: None}
    for operation in operations:
        models |= dict.fromkeys(operation.bodies)
        models |= dict.fromkeys(model for model in operation.answers.values() if model is not None)
    _, schema = models_json_schema([(model, "validation") for model in models], ref_template=_REF)
    titles = {name: part["title"] for name, part in schema["$defs"].items()}
    text = _A_REF.sub(lambda ref: f'"{_REF.format(model=titles[ref[1]])}"', json.dumps(schema["$defs"]))
    parts = {titles[name]: part for name, part in json.loads(text).items()}
    shown: dict[str, Any] = _without_null_defaults(dict(sorted(parts.items())))
    sent = {_schema_name(model) for operation in operations for model in operation.bodies}
    for name in set(shown) - _with_parts(shown, sent):
        # A member that a later version adds to an answer must not break anyone who validates by this.
        shown[name].pop("additionalProperties", None)
    return shown


def _with_parts(schemas: dict[str, Any], names: set[str]) -> set[str]:
    """``names`` and every schema that those refer to."""
    found: set[str] = set()
    pending = set(names)
    while pending:
        found |= pending
        text = json.dumps([schemas[name] for name in pending])
        pending = set(_A_REF.findall(text)) - found
    return found


def _without_null_defaults(value: Any) -> Any:
    """A member that may be left out is not a member that may be null."""
    if isinstance(value, list):
        return [_without_null_defaults(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "default" in value and value["default"] is None and "anyOf" in value:
        (left,) = [item for item in value["anyOf"] if item != {"type": "null"}]
        rest = {name: item for name, item in value.items() if name not in {"anyOf", "default", "title"}}
        return _without_null_defaults({**left, **rest})
    return {name: _without_null_defaults(item) for name, item in value.items() if not _is_title(name, item)}


def _is_title(name: str, item: Any) -> bool:
    return name == "title" and isinstance(item, str) and re.fullmatch(r"[A-Z][A-Za-z0-9 ]*", item) is not None


def _schema_name(model: type[BaseModel]) -> str:
    """The title that the model gives where its class is named otherwise."""
    return model.model_config.get("title") or model.__name__


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": _REF.format(model=_schema_name(model))}
