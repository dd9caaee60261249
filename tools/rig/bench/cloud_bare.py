"""The baseline of `palmctl bench cloud`: a Starlette app with nothing but the SQL of two operations.

It runs the statements that the reference server runs for getSubject and createSubject, in the same number of
transactions and on a store made by the same migrations, and reads and writes JSON. It checks nothing and
encrypts nothing. Reads run on the loop and writes in one thread, as in the reference server, for a commit
waits for the disk; a second route writes on the loop, which a server must not do, but which is the least that
the work can cost.
"""

import asyncio
import os
import socket
import sqlite3
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from cloud_client.reference_server.store.engines import open_store

_INSERT_SUBJECT = """INSERT INTO subjects (subject_id, tenant_id, livemode, subject_ref, status,
    external_ref_mac, person_key_ct, refs_ct, has_onboard_ref, created_ms, updated_ms)
    VALUES (:subject_id, 'bare', 0, :subject_ref, 'pending_enrollment', :mac, :key_ct, :refs_ct, 0, 1, 1)"""
_SUBJECT = "SELECT * FROM subjects WHERE subject_id = :subject_id AND tenant_id = 'bare'"
_CONSENTS = "SELECT purpose, status FROM consents WHERE subject_id = :subject_id ORDER BY recorded_no"
_KEY = "SELECT tenant_id, livemode, scopes, secret_sha256, revoked_ms FROM api_keys WHERE key_id = 'bare'"

ON_LOOP = "/v1/subjects-on-loop"


class Bare:
    """Two routes over one connection."""

    def __init__(self, path: Path) -> None:
        open_store(path).close()
        self._writer = ThreadPoolExecutor(1, "writer")
        self._reads, self._writes = _connected(path), _connected(path)
        with self._writes:
            self._writes.execute(
                """INSERT INTO tenants (tenant_id, name, tenant_key_ct, terms_version, duplicate_cosine,
                                        created_ms) VALUES ('bare', 'bare', x'00', 'v1', 0.6, 1)"""
            )
            self._writes.execute(
                """INSERT INTO api_keys (key_id, tenant_id, livemode, scopes, secret_sha256, created_ms)
                   VALUES ('bare', 'bare', 0, '', x'00', 1)"""
            )

    async def get_subject(self, request: Request) -> JSONResponse:
        """The SQL of an authenticated getSubject."""
        execute = self._reads.execute
        self._authenticate()
        execute("BEGIN")
        subject = _subject(self._reads, request.path_params["subject_id"])
        execute("COMMIT")
        return JSONResponse(subject)

    async def create_subject(self, request: Request) -> JSONResponse:
        """The SQL of a createSubject with its Idempotency-Key, the write in the one thread for writes."""
        body = await request.json()
        self._authenticate()
        loop = asyncio.get_running_loop()
        subject = await loop.run_in_executor(self._writer, self._create, body)
        return JSONResponse(subject, 201, {"Location": f"/v1/subjects/{subject['subject_id']}"})

    async def create_subject_on_loop(self, request: Request) -> JSONResponse:
        """The same with the commit on the loop."""
        body = await request.json()
        self._authenticate()
        subject = self._create(body)
        return JSONResponse(subject, 201, {"Location": f"/v1/subjects/{subject['subject_id']}"})

    def _authenticate(self) -> None:
        execute = self._reads.execute
        execute("BEGIN")
        execute(_KEY).fetchone()
        execute("COMMIT")

    def _create(self, body: object) -> dict[str, object]:
        execute = self._writes.execute
        key = {"scope": os.urandom(32), "mac": os.urandom(32)}
        execute("BEGIN IMMEDIATE")
        execute(
            """INSERT INTO idempotency (scope_hash, key_mac, body_mac, started_ms)
               VALUES (:scope, :mac, :mac, 1) ON CONFLICT DO NOTHING""",
            key,
        )
        execute(
            "SELECT 1 FROM subjects WHERE tenant_id = 'bare' AND livemode = 0 AND external_ref_mac = :mac",
            key,
        ).fetchone()
        execute("SELECT * FROM tenants WHERE tenant_id = 'bare'").fetchone()
        subject_id = str(uuid.uuid4())
        values = {
            "subject_id": subject_id,
            "subject_ref": subject_id[:32],
            "mac": key["mac"],
            "key_ct": bytes(60),
            "refs_ct": str(body).encode(),
        }
        execute(_INSERT_SUBJECT, values)
        subject = _subject(self._writes, subject_id)
        execute(
            """UPDATE idempotency SET answer_ct = :answer, subject_id = :subject_id
               WHERE scope_hash = :scope AND key_mac = :mac AND started_ms = 1""",
            {"answer": bytes(700), "subject_id": subject_id, **key},
        )
        execute("COMMIT")
        return subject


def _connected(path: Path) -> sqlite3.Connection:
    # Made on the main thread, used by the writer's alone.
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.row_factory = sqlite3.Row
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON", "foreign_keys=ON"):
        database.execute(f"PRAGMA {pragma}")
    return database


def _subject(database: sqlite3.Connection, subject_id: str) -> dict[str, object]:
    row = database.execute(_SUBJECT, {"subject_id": subject_id}).fetchone()
    consents = database.execute(_CONSENTS, {"subject_id": subject_id}).fetchall()
    subject: dict[str, object] = {
        name: row[name]
        for name in ("subject_id", "subject_ref", "status", "gallery_seq", "created_ms", "updated_ms")
    }
    return subject | {"consents": [dict(consent) for consent in consents]}


def main(database: str) -> None:
    """Print the port and serve until killed; uvicorn as the reference server runs it."""
    bare = Bare(Path(database))
    routes = [
        Route("/v1/subjects", bare.create_subject, methods=["POST"]),
        Route(ON_LOOP, bare.create_subject_on_loop, methods=["POST"]),
        Route("/v1/subjects/{subject_id}", bare.get_subject),
    ]
    config = uvicorn.Config(Starlette(routes=routes), http="h11", log_config=None, access_log=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        uvicorn.Server(config).run([listening])


if __name__ == "__main__":
    main(*sys.argv[1:])
