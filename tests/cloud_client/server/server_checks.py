"""Every answer that a test receives is held against the operation table here."""

import re

import httpx

from cloud_client.reference_server.contract import answers as resources
from cloud_client.reference_server.contract.problems import KINDS, ProblemCode
from cloud_client.reference_server.contract.words import REQUEST_ID_HEADER
from cloud_client.reference_server.web.api.openapi import codes_of
from cloud_client.reference_server.web.api.operation import Operation
from cloud_client.reference_server.web.api.operations import OPERATIONS


def operation_of(method: str, path: str) -> Operation | None:
    """The operation that a request goes to; literal paths come before patterns, as in the table."""
    method = "GET" if method == "HEAD" else method
    for operation in OPERATIONS:
        pattern = re.sub(r"\{rest:path\}", ".*", operation.path)
        pattern = re.sub(r"\{\w+\}", "[^/]+", pattern)
        if operation.method == method and re.fullmatch(pattern, path):
            return operation
    return None


def check_answer(method: str, path: str, response: httpx.Response) -> None:
    """Hold an answer against the table."""
    assert response.headers[REQUEST_ID_HEADER]
    operation = operation_of(method, path)
    if response.status_code >= 400:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.headers["cache-control"] == "no-store"
        if method != "HEAD":
            problem = resources.ProblemDocument.model_validate_json(response.content)
            kind = KINDS[ProblemCode(problem.code)]
            assert (problem.status, problem.retryable) == (response.status_code, kind.retryable)
            if operation is not None and problem.code != ProblemCode.ROUTE_NOT_FOUND:
                assert problem.code in codes_of(operation), f"{problem.code} is not declared"
        return
    if operation is None or method in {"HEAD", "OPTIONS"} or response.status_code in {204, 304}:
        return
    model = operation.answers[response.status_code]
    assert model is not None
    assert response.headers["content-type"] == "application/json"
    model.model_validate_json(response.content)
