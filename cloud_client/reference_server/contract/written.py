"""How an answer is written."""

import json
from collections.abc import Mapping
from typing import Any

from cloud_client.reference_server.contract.answers import AnswerObject

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode(body: AnswerObject | Mapping[str, Any]) -> bytes:
    """Compact UTF-8 JSON."""
    if isinstance(body, AnswerObject):
        return body.__pydantic_serializer__.to_json(body, exclude_unset=True)
    return _encoder.encode(body).encode()
