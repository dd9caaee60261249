"""Bodies of requests: one reading only (I-JSON, RFC 7493), or 400 ``malformed_json``.

A number that is no integer is valid JSON, which the schema refuses with 422.
"""

from cloud_client.contract import ProblemCode
from cloud_client.reference_server.contract.problems import Problem
from link1.canonical import read_any_number
from link1.errors import FormatError


def read_body(data: bytes) -> object:
    """The one JSON value in ``data``, whose size the caller has bounded. Problem 400 for anything else."""
    try:
        return read_any_number(data)
    except FormatError:
        raise Problem(ProblemCode.MALFORMED_JSON) from None
