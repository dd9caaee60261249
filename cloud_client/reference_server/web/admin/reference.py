"""The reference page's chapters, read out of the OpenAPI document: what is served is what is described."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from cloud_client.reference_server.contract.problems import KINDS, ProblemCode
from cloud_client.reference_server.contract.words import REQUEST_ID_HEADER, UUID

_TONES: Final = {"get": "good", "post": "warn", "delete": "bad"}
_PARTNER_CHAPTERS: Final = {
    "health": "Service",
    "keys": "Service",
    "problems": "Service",
    "subjects": "People and consents",
    "erasure-receipts": "People and consents",
    "enrollment-sessions": "Enrollment",
    "devices": "Devices and mail",
    "verdicts": "Verdicts",
}
DEVICE_CHAPTER: Final = "Device surface"
_CREDENTIALS: Final = {
    "apiKey": "API key",
    "deviceSignature": "device signature (RFC 9421)",
    "provisioningToken": "provisioning token and signature",
}


@dataclass(frozen=True, slots=True)
class Member:
    """A parameter or a member of a body; ``members`` are those of an object or of a list's items."""

    name: str
    type: str
    required: bool
    members: list["Member"]


@dataclass(frozen=True, slots=True)
class SuccessAnswer:
    status: str
    members: list[Member]
    example: str


@dataclass(frozen=True, slots=True)
class OperationEntry:
    """One operation as the page shows it."""

    operation_id: str
    method: str
    tone: str
    path: str
    summary: str
    note: str
    credential: str
    scope: str
    parameters: list[tuple[str, list[Member]]]
    body: list[Member]
    request: str
    results: list[SuccessAnswer]
    problems: list[tuple[int, str, str]]


@dataclass(frozen=True, slots=True)
class Chapter:
    """Operations that belong together."""

    title: str
    anchor: str
    entries: list[OperationEntry]


def chapters(description: Mapping[str, Any]) -> list[Chapter]:
    """The page's content, in the order of the document."""
    schemas = description["components"]["schemas"]
    found: dict[str, list[OperationEntry]] = {}
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            found.setdefault(_chapter(path, operation), []).append(_entry(path, method, operation, schemas))
    # The device surface comes last, after all that a back office needs.
    titles = sorted(found, key=lambda title: title == DEVICE_CHAPTER)
    return [Chapter(title, title.lower().replace(" ", "-"), found[title]) for title in titles]


def _chapter(path: str, operation: Mapping[str, Any]) -> str:
    if "device" in operation["tags"]:
        return DEVICE_CHAPTER
    return _PARTNER_CHAPTERS.get(path.removeprefix("/v1").split("/")[1], "More")


def _entry(
    path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]
) -> OperationEntry:
    credentials = [_CREDENTIALS[name] for need in operation["security"] for name in need]
    body_schema = _json_schema(operation.get("requestBody", {}))
    body = None if body_schema is None else example(body_schema, schemas)
    # What every operation takes is said once, at the top of the page.
    parameters = [item for item in operation["parameters"] if item["name"] != REQUEST_ID_HEADER]
    return OperationEntry(
        operation_id=operation["operationId"],
        method=method.upper(),
        tone=_TONES.get(method, "quiet"),
        path=path,
        summary=operation["summary"],
        note=operation.get("description", ""),
        credential=credentials[0] if credentials else "none",
        scope=operation.get("x-scope", ""),
        parameters=[
            (place, members)
            for place in ("path", "query", "header")
            if (members := [_parameter(item) for item in parameters if item["in"] == place])
        ],
        body=[] if body_schema is None else _members(body_schema, schemas),
        request=_curl(path, method, operation, body),
        results=list(_results(operation, schemas)),
        problems=list(_problems(operation)),
    )


def _json_schema(holder: Mapping[str, Any]) -> dict[str, Any] | None:
    schema: dict[str, Any] | None = holder.get("content", {}).get("application/json", {}).get("schema")
    return schema


def _results(operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[SuccessAnswer]:
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            schema = _json_schema(answer)
            members = [] if schema is None else _members(schema, schemas)
            text = "" if schema is None else json.dumps(example(schema, schemas), indent=2)
            yield SuccessAnswer(status, members, text)


def _problems(operation: Mapping[str, Any]) -> Iterator[tuple[int, str, str]]:
    for status, answer in operation["responses"].items():
        if status[0] in "45":
            for code in answer["description"].split(", "):
                yield int(status), code, KINDS[ProblemCode(code)].title


def _parameter(parameter: Mapping[str, Any]) -> Member:
    return Member(parameter["name"], _type(parameter["schema"], {}), parameter["required"], [])


def _members(schema: Mapping[str, Any], schemas: Mapping[str, Any], depth: int = 0) -> list[Member]:
    """The members of an object, or of the objects in a list; of several alternatives those of all."""
    if "$ref" in schema:
        return _members(schemas[schema["$ref"].rpartition("/")[2]], schemas, depth)
    if schema.get("type") == "array":
        return _members(schema.get("items", {}), schemas, depth)
    if "properties" not in schema:
        every = [_members(inner, schemas, depth) for inner in schema.get("anyOf", schema.get("oneOf", []))]
        return list({member.name: member for members in every for member in members}.values())
    required = schema.get("required", ())
    either = [name for names in _exclusive(schema) for name in names]
    note = f"; exactly one of {' and '.join(either)}"
    return [
        Member(
            name,
            _type(inner, schemas) + (note if name in either else ""),
            name in required,
            _members(inner, schemas, depth + 1),
        )
        for name, inner in schema["properties"].items()
    ]


def _exclusive(schema: Mapping[str, Any]) -> list[list[str]]:
    """The members that exclude one another, by alternative."""
    ways = [way for rule in schema.get("allOf", ()) for way in rule.get("oneOf", ())]
    return [way.get("required", []) for way in ways]


def _type(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:  # noqa: PLR0911 - a row a kind
    if "$ref" in schema:
        return "object"
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(dict.fromkeys(_type(inner, schemas) for inner in schema[word]))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(str(word) for word in schema["enum"])
    kind = str(schema.get("type", "any"))
    if kind == "array":
        return f"array of {_type(schema.get('items', {}), schemas)}"
    if kind in ("integer", "number"):
        return _range(schema, kind)
    notes = [schema["format"]] if "format" in schema else []
    if "pattern" in schema and not notes:
        notes.append("uuid" if schema["pattern"].strip("^()$") == UUID.pattern else schema["pattern"])
    if "default" in schema:
        notes.append(f"default {json.dumps(schema['default'])}")
    return ", ".join([kind, *notes])


def _range(schema: Mapping[str, Any], kind: str) -> str:
    words = [kind]
    if "minimum" in schema and "maximum" in schema:
        words.append(f"{schema['minimum']} to {schema['maximum']}")
    if "default" in schema:
        words.append(f"default {schema['default']}")
    return ", ".join(words)


def _curl(path: str, method: str, operation: Mapping[str, Any], body: Any) -> str:
    needs = [name for need in operation["security"] for name in need]
    target = re.sub(r"\{(\w+)\}", lambda found: f"${found[1].upper()}", path)
    required = [
        f"{item['name']}={example(item['schema'], {})}"
        for item in operation["parameters"]
        if item["in"] == "query" and item["required"]
    ]
    target += "?" * bool(required) + "&".join(required)
    words = [] if method == "get" else [f"-X {method.upper()}"]
    words.append(f'"$BASE{target}"')
    lines = [" ".join(["curl", *words])]
    if needs == ["apiKey"]:
        lines.append('-H "Authorization: Bearer $API_KEY"')
    elif needs == ["provisioningToken"]:
        lines.append('-H "Authorization: Provisioning $TOKEN"')
    if needs and needs != ["apiKey"]:
        lines.append("-H 'Signature-Input: sig1=…' -H 'Signature: sig1=…'")
    if any(item["name"] == "Idempotency-Key" and item["required"] for item in operation["parameters"]):
        lines.append(f"-H 'Idempotency-Key: {operation['operationId']}-1'")
    if body is not None:
        lines.append("-H 'Content-Type: application/json'")
        lines.append(f"-d '{json.dumps(body, indent=2)}'")
    return " \\\n  ".join(lines)


def example(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:  # noqa: PLR0911 - one a kind
    """A value that fits ``schema``: the example that its model gives, else the plainest.

    ``schemas`` are the document's components.
    """
    if "$ref" in schema:
        return example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "examples" in schema:
        return schema["examples"][0]
    if "properties" in schema or schema.get("type") == "object":
        # Of members that exclude one another the first alternative's are shown.
        others = {name for names in _exclusive(schema)[1:] for name in names}
        members = schema.get("properties", {}).items()
        return {name: example(inner, schemas) for name, inner in members if name not in others}
    if ways := schema.get("anyOf") or schema.get("oneOf"):
        return example(ways[0], schemas)
    for word in ("const", "default"):
        if word in schema:
            return schema[word]
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "array":
        inner = schema.get("items", {})
        return list(inner.get("enum", [])) or [example(inner, schemas)]
    plain = {"integer": max(1, schema.get("minimum", 1)), "boolean": False, "string": "text"}
    return plain.get(schema.get("type", ""), {})
