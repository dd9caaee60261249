"""Bodies of requests: one reading only (I-JSON, RFC 7493), or 400 ``malformed_json``.

A number is an int when its value is an integer within ±(2^53 − 1), however it is written (300, 300.0, 3e2),
as in RFC 8785 and JSON Schema. Any other is a float: valid JSON, which the schema refuses with 422.
"""

import json

from cloud_client.reference_server.contract.problems import Problem, ProblemCode
from link1.canonical import MAX_DEPTH, MAX_INTEGER, object_without_duplicates, read_value, refuse_number
from link1.errors import FormatError


def read_body(data: bytes, max_depth: int = MAX_DEPTH) -> object:
    """The one JSON value in ``data``, whose size the caller has bounded. Problem 400 for anything else."""
    try:
        return read_value(data, _NUMBERS, max_depth)
    except FormatError:
        raise Problem(ProblemCode.MALFORMED_JSON) from None


def _number(text: str) -> int | float:
    value = float(text)
    return int(value) if abs(value) <= MAX_INTEGER and value.is_integer() else value


_NUMBERS = json.JSONDecoder(
    object_pairs_hook=object_without_duplicates,
    parse_int=_number,
    parse_float=_number,
    parse_constant=refuse_number,
)
