"""What a request may cost the loop, whatever is in it: little, and no more than in proportion to its bytes.

Times are of this thread's processor time, the least of five, at 1, 2 and 4 times a size in one run.
"""

import json
import time
from collections.abc import Callable
from functools import partial

import pytest

from cloud_client.http_signature import new_nonce
from cloud_client.reference_server.contract.bodies import VerdictBatch, read_model
from cloud_client.reference_server.contract.problems import Problem
from cloud_client.reference_server.contract.strict_json import read_body
from cloud_client.reference_server.contract.words import MAX_REPORT_BYTES
from cloud_client.reference_server.domain.people import sessions
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.web.api.operation import MAX_VALUES, MAX_VALUES_OF_A_BATCH
from cloud_client.reference_server.web.api.operations import OPERATIONS
from tests.cloud_client.server.server_database import on_sqlite
from tests.cloud_client.server.server_harness import Cloud

MIB = 2**20
MOST = 8.0
"""Four times the bytes take at most so many times as long: between 4, linear, and 16, quadratic."""
GRAIN_S = 0.005
SHAPES: dict[str, Callable[[int], bytes]] = {
    "wrong members": lambda n: b"{" + b",".join(b'"%x":1' % i for i in range(n // 10)) + b"}",
    "empty lists": lambda n: b'{"items":[' + b"[]," * (n // 3) + b"[]]}",
    "wrong items": lambda n: b'{"items":[' + b"{}," * (n // 3) + b"{}]}",
}


def least_s(work: Callable[[], object]) -> float:
    def once() -> float:
        begun = time.thread_time()
        work()
        return time.thread_time() - begun

    return min(once() for _ in range(5))


@on_sqlite
@pytest.mark.parametrize("shape", SHAPES)
def test_a_body_of_small_wrong_values(own_cloud: Cloud, shape: str) -> None:
    """Refused for less than as many bytes cost that are read, and in proportion to them."""
    device = own_cloud.new_tenant().device()

    def upload(content: bytes, status: int) -> Callable[[], None]:
        def work() -> None:
            headers = device.signed("POST", "/v1/verdicts/batch", "", content)
            headers |= {"Idempotency-Key": new_nonce(), "Content-Type": "application/json"}
            answer = own_cloud.send("POST", "/v1/verdicts/batch", content=content, headers=headers)
            assert answer.status_code == status
            assert status != 422 or len(answer.json()["errors"]) == 1

        return work

    took = [least_s(upload(SHAPES[shape](size * MIB - 100), 422)) for size in (1, 2, 4)]
    read = least_s(upload(b'{"items":["' + b"a" * (4 * MIB - 100) + b'"]}', 200))
    assert took[2] < MOST * took[0] + GRAIN_S
    assert took[2] < 2 * read + GRAIN_S


def test_as_many_unknown_members_as_are_read() -> None:
    """Reporting them costs less than reading them did."""
    took = []
    for size in (1, 2, 4):
        content = SHAPES["wrong members"](size * MAX_VALUES_OF_A_BATCH // 4 * 10)
        value = read_body(content)

        def report(value: object = value) -> None:
            with pytest.raises(Problem) as problem:
                read_model(VerdictBatch, value)
            places = {(error.pointer, error.code) for error in problem.value.errors}
            assert places == {("", "unknown_member"), ("/items", "required")}

        took.append(least_s(report))
        assert took[-1] < least_s(partial(read_body, content)) + GRAIN_S
    assert took[2] < MOST * took[0] + GRAIN_S


def test_real_bodies_are_well_within_the_bounds() -> None:
    """A hundred verdicts with decision and passage, written as they come, have half of the values."""
    members = {f"member_{number}": number for number in range(65)} | {"a": {}, "b": {"c": {}}, "d": []}
    content = json.dumps({"items": [members] * 100}).encode()
    assert len(content) - len(content.translate(None, b",[{")) < MAX_VALUES_OF_A_BATCH / 2
    bounds = {operation.operation_id: operation.max_values for operation in OPERATIONS}
    assert bounds.pop("uploadVerdicts") == MAX_VALUES_OF_A_BATCH
    # What a report must not have is ignored, so that only its size bounds it.
    assert bounds.pop("reportDevice") == MAX_REPORT_BYTES
    assert set(bounds.values()) == {MAX_VALUES}


@on_sqlite
def test_sessions_that_have_ended_do_not_slow_the_figures(own_cloud: Cloud) -> None:
    """They stay as long as the person; a scrape, and the operator's page, count those that wait."""
    partner = own_cloud.new_tenant().partner()
    for _ in range(2):
        partner.session(partner.person()["subject_id"])

    def ended(numbers: range) -> float:
        """So many ended sessions more; how long it takes to count the others."""

        def work(tx: Tx, _vault: object, now_ms: int) -> float:
            columns = [row["name"] for row in tx.all("PRAGMA table_info(sessions)")]
            given = {"session_id": "'session-' || i", "status": "'completed'"}
            given |= dict.fromkeys(("token_hash", "token_ct", "short_code_mac"), "NULL")
            tx.run(
                f"""WITH RECURSIVE n(i) AS
                        (SELECT {numbers[0]} UNION ALL SELECT i + 1 FROM n WHERE i < {numbers[-1]})
                    INSERT INTO sessions ({", ".join(columns)})
                    SELECT {", ".join(given.get(name, name) for name in columns)}
                    FROM (SELECT * FROM sessions LIMIT 1), n"""
            )
            assert sessions.counts(tx, now_ms) == {"open": 2, "review": 0}
            return least_s(lambda: sessions.counts(tx, now_ms))

        took_s: float = own_cloud.operate(work)
        return took_s

    few, many = ended(range(30_000)), ended(range(30_000, 120_000))
    assert many < 2 * few + GRAIN_S
