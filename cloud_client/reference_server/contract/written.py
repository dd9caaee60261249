"""How an answer is written."""

import json
from collections.abc import Mapping
from typing import Any

from cloud_client.reference_server.contract.answers import AnswerObject

_encoder = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def encode(body: AnswerObject | Mapping[str, Any]) -> bytes:
    """Compact UTF-8 JSON."""
    if isinstance(body, AnswerObject):
        return body.model_dump_json(exclude_unset=True).encode()
    return _encoder.encode(body).encode()
