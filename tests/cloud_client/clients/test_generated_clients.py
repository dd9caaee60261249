"""Clients that other people's generators make of the served document compile, and do a back office's work.

``make clients`` installs the generators, pinned by hash, into build/clients and sets PALM_CLIENTS_TEST.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests import REPOSITORY
from tests.cloud_client.server.server_process import Board, Running, start

HERE = Path(__file__).parent
PYTHON = REPOSITORY / "build" / "clients" / "python"
NODE = REPOSITORY / "build" / "clients" / "node" / "node_modules"
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        os.environ.get("PALM_CLIENTS_TEST") != "1",
        reason="generates clients with foreign tools: make clients",
    ),
]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    """A server, whose document is in openapi.json of ``tmp_path``."""
    with start(tmp_path / "data", tmp_path / "server.log", None) as server:
        document = httpx.get(f"{server.url}/v1/openapi.json", trust_env=False).raise_for_status().content
        (tmp_path / "openapi.json").write_bytes(document)
        yield server


def test_a_python_client_walks_the_journey(service: Running, tmp_path: Path) -> None:
    where = {"PYTHONPATH": str(PYTHON), "PATH": f"{PYTHON / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    generate = ["openapi_python_client", "generate", "--path", "openapi.json", "--fail-on-warning"]
    run(tmp_path, sys.executable, "-m", *generate, "--meta", "none", "--output-path", "palm_service", **where)
    for name in ("back_office.py", "mypy.ini"):
        shutil.copy(HERE / name, tmp_path)
    run(tmp_path, sys.executable, "-m", "mypy", "back_office.py")
    where["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(PYTHON)])
    run(tmp_path, sys.executable, "back_office.py", service.url, API_KEY=back_office_key(service), **where)


@pytest.mark.skipif(shutil.which("npm") is None, reason="needs node and npm (apt install nodejs npm)")
def test_a_typescript_client_walks_the_journey(service: Running, tmp_path: Path) -> None:
    for name in ("back_office.ts", "tsconfig.json", "package.json"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "node_modules").symlink_to(NODE)
    generate = [str(NODE / ".bin" / "openapi-typescript"), "openapi.json", "--output", "service.ts"]
    run(tmp_path, *generate, "--default-non-nullable=false")
    run(tmp_path, str(NODE / ".bin" / "tsc"))
    run(tmp_path, "node", "back_office.js", service.url, API_KEY=back_office_key(service))


def back_office_key(service: Running) -> str:
    """The API key of a new customer with one gate."""
    tenant = service.palmctl("tenant", "create", "acme")["tenant_id"]
    Board(service, tenant)
    return service.partner(tenant).headers["Authorization"].removeprefix("Bearer ")


def run(folder: Path, *words: str, **environment: str) -> None:
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "NO_PROXY": "*", **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
