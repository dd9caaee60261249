"""The OpenAPI document: valid, true to the operation table, and what the running server does.

schemathesis makes some thousand requests out of the served document, good and bad ones, single and in
sequences, and holds every answer against it with all of its checks.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from cloud_client.reference_server.contract.words import CONTRACT_VERSION
from cloud_client.reference_server.web.admin.reference import example
from cloud_client.reference_server.web.api.openapi import document
from cloud_client.reference_server.web.api.operations import OPERATIONS
from tests import REPOSITORY
from tests.cloud_client.server.server_harness import Partner, code_of
from tests.cloud_client.server.server_process import Board, Running, new_account, start

HERE = Path(__file__).parent
WHOLE = pytest.param(10, id="whole", marks=pytest.mark.long)
A_SHARE = pytest.param(2, id="share")
"""Examples of each operation, in addition to those from the document's limits."""


def test_the_document_is_valid() -> None:
    description = document(OPERATIONS)
    OpenAPIV31SpecValidator(description).validate()
    assert description["info"]["version"] == CONTRACT_VERSION
    ids = [one["operationId"] for methods in description["paths"].values() for one in methods.values()]
    assert len(ids) == len(set(ids)) == len([operation for operation in OPERATIONS if operation.answers])


def test_answers_may_grow_and_requests_may_not() -> None:
    schemas = document(OPERATIONS)["components"]["schemas"]
    assert "additionalProperties" not in schemas["Subject"]
    assert "additionalProperties" not in schemas["Propagation"]
    assert schemas["CreateSubject"]["additionalProperties"] is False
    assert schemas["ConsentEvidence"]["additionalProperties"] is False


def test_the_examples_shown_fit_their_schemas() -> None:
    description = document(OPERATIONS)
    schemas = description["components"]["schemas"]
    whole = {"components": {"schemas": schemas}}
    for methods in description["paths"].values():
        for operation in methods.values():
            holders = [operation.get("requestBody", {}), *operation["responses"].values()]
            for holder in holders:
                schema = holder.get("content", {}).get("application/json", {}).get("schema")
                if schema is not None:
                    OAS31Validator(whole | schema).validate(example(schema, schemas))


def test_the_record_that_is_shown_for_the_outbox_comes_from_a_device() -> None:
    schemas = document(OPERATIONS)["components"]["schemas"]
    post = example(schemas["OutboxRecord"], schemas)["post"]
    assert (post["box"], post["src"], post["dst"]) == ("out", "gate-07", "svc")


@pytest.fixture(scope="module")
def generous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server without rate limits."""
    folder = tmp_path_factory.mktemp("generous")
    with start(folder / "data", folder / "server.log", None, "--rate-scale", "100000") as server:
        yield server


def test_the_server_serves_this_document(generous: Running) -> None:
    served = httpx.get(f"{generous.url}/v1/openapi.json", trust_env=False).json()
    assert served == document(OPERATIONS)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/v1/health"),
        ("GET", "/v1/keys"),
        ("GET", "/v1/subjects"),
        ("POST", "/v1/subjects"),
        ("GET", "/v1/devices/self/status"),
    ],
)
def test_the_document_has_every_header_that_is_sent(generous: Running, method: str, target: str) -> None:
    """But for those of HTTP that are in every answer."""
    described = document(OPERATIONS)["paths"][target][method.lower()]["responses"]
    tenant = generous.palmctl("tenant", "create", "acme")["tenant_id"]
    with generous.partner(tenant) as partner:
        tag = partner.get("/v1/keys").headers["ETag"]
        keyed = {"Idempotency-Key": new_account()}
        bodies = [{"external_ref": new_account()}, {}] if method == "POST" else [None]
        answers = [partner.request(method, target, headers=keyed, json=body) for body in bodies for _ in "12"]
        answers.append(partner.request(method, target, headers={"If-None-Match": tag}))
        answers.append(httpx.request(method, f"{generous.url}{target}", trust_env=False))
    unnamed = {"date", "cache-control", "content-type", "content-length"}
    for answer in answers:
        headers = described[str(answer.status_code)]["headers"]
        assert set(answer.headers) - unnamed <= {name.lower() for name in headers}
        assert {name.lower() for name, one in headers.items() if one.get("required")} <= set(answer.headers)


def test_a_public_route_has_no_answer_of_another_environment(generous: Running) -> None:
    served = httpx.get(f"{generous.url}/v1/openapi.json", trust_env=False).json()
    assert "403" not in served["paths"]["/problems/{code}"]["get"]["responses"]


@pytest.mark.parametrize("examples", [A_SHARE, WHOLE])
def test_a_back_office_finds_no_answer_outside_the_document(
    generous: Running, tmp_path: Path, examples: int
) -> None:
    tenant = generous.palmctl("tenant", "create", "acme")["tenant_id"]
    Board(generous, tenant)
    api_key = generous.partner(tenant).headers["Authorization"].split()[1]
    cases = schemathesis(generous, tmp_path, examples, ["partner", "public"], PALM_FUZZ_API_KEY=api_key)
    assert cases >= 50 * examples


@pytest.mark.parametrize("examples", [A_SHARE, WHOLE])
def test_a_device_finds_no_answer_outside_the_document(
    generous: Running, tmp_path: Path, examples: int
) -> None:
    tenant = generous.palmctl("tenant", "create", "acme")["tenant_id"]
    board = Board(generous, tenant)
    seed = board.http_key.seed.hex()
    cases = schemathesis(generous, tmp_path, examples, ["device"], PALM_FUZZ_DEVICE_SEED=seed)
    assert cases >= 30 * examples


def schemathesis(running: Running, folder: Path, examples: int, tags: list[str], **credential: str) -> int:
    """Run it over the operations of some tags; the number of requests that it made up."""
    words = [
        *("-m", "schemathesis.cli", "--config-file", str(HERE / "fuzz.toml")),
        *("run", f"{running.url}/v1/openapi.json", "--checks", "all", "--seed", "1", "--no-color"),
        *("--max-examples", str(examples)),
        *(word for tag in tags for word in ("--include-tag", tag)),
    ]
    environment = {
        **os.environ,
        "SCHEMATHESIS_HOOKS": "tests.cloud_client.server.fuzz_hooks",
        "NO_PROXY": "*",
        **credential,
    }
    environment["PYTHONPATH"] = str(REPOSITORY)
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    found = re.search(r"(\d+) generated", done.stdout)
    assert found is not None, done.stdout
    return int(found[1])


@pytest.mark.parametrize(
    ("seconds", "status"), [("300.0", 201), ("3e2", 201), ("300.5", 422), ("1e400", 422)]
)
def test_an_integer_is_one_however_it_is_written(partner: Partner, seconds: str, status: int) -> None:
    subject_id = partner.person()["subject_id"]
    content = f'{{"subject_id": "{subject_id}", "expires_in_s": {seconds}}}'
    assert partner.send("POST", "/v1/enrollment-sessions", content=content).status_code == status


@pytest.mark.parametrize("named", [[], ["subject_id", "external_ref"]])
def test_a_session_names_its_person_once(partner: Partner, named: list[str]) -> None:
    person = partner.person()
    answer = partner.send("POST", "/v1/enrollment-sessions", {name: person[name] for name in named})
    assert code_of(answer) == "validation_failed"
