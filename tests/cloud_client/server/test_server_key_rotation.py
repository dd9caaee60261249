"""The key-management key is replaced while a server process serves; the rotation is killed at every step."""

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloud_client.http_signature import new_nonce
from cloud_client.reference_server.contract.times import system_now_ms
from cloud_client.reference_server.errors import OperatorError
from cloud_client.reference_server.ops import key_rotation
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.ops.key_rotation import WRAPPED, SecretRotation, prepare, rotate
from cloud_client.reference_server.store.base import CloudStore
from cloud_client.reference_server.store.vault import KeyRing, Vault
from tests.cloud_client.server.server_database import cluster, database_words
from tests.cloud_client.server.server_harness import Cloud
from tests.cloud_client.server.server_process import Running, new_account, post, start
from tests.palmctl import ran

MODULE = Path("/usr/lib/softhsm/libsofthsm2.so")


class KilledRotation(BaseException):
    """Raised where a kill would end the process."""


@contextmanager
def opened(running: Running) -> Iterator[tuple[CloudStore, Vault]]:
    """Store and keys, as a command that has just been called has them."""
    store, vault = DataDirectory.of(running.data, running.database).open(system_now_ms())
    with closing(store):
        yield store, vault


def killed() -> None:
    raise KilledRotation


def served(data: Path, database: str | None) -> Running:
    return start(data, data.with_suffix(".log"), database, "--rate-scale", "1000")


@pytest.fixture(params=["sqlite", "postgresql"])
def running(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Running]:
    database = None if request.param == "sqlite" else cluster().new_database()
    with served(tmp_path / "data", database) as server:
        yield server


class Partner:
    """A partner whose people must be readable at any time."""

    def __init__(self, running: Running) -> None:
        self.tenant = running.palmctl("tenant", "create", "acme")["tenant_id"]
        self.http: httpx.Client = running.partner(self.tenant)
        self.people: dict[str, str] = {}

    def add(self) -> None:
        account = new_account()
        made = post(self.http, "/v1/subjects", {"external_ref": account})
        assert made.status_code == 201, made.text
        self.people[made.json()["subject_id"]] = account

    def check(self) -> None:
        for subject_id, account in self.people.items():
            shown = self.http.get(f"/v1/subjects/{subject_id}")
            assert shown.status_code == 200, shown.text
            assert shown.json()["external_ref"] == account


def wrapped_rows(store: CloudStore) -> list[tuple[str, bytes]]:
    with store.reading() as tx:
        return [
            (row["id"], bytes(row["wrapped"]))
            for each in WRAPPED
            for row in tx.all(f"SELECT {each.id} AS id, {each.column} AS wrapped FROM {each.table}")
        ]


def test_a_rotation_killed_at_every_step_goes_on_while_a_server_serves(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_rotation, "ROWS", 3)
    partner = Partner(running)
    for _ in range(7):
        partner.add()
    old = (running.data / "secrets" / "kms.key").read_bytes()
    step = 0
    done: SecretRotation | None = None
    while done is None:
        with opened(running) as (store, vault):
            try:
                done = rotate(store, vault, None, killed)
            except KilledRotation:
                step += 1
        partner.check()
        partner.add()
    partner.check()
    # Note, make, put in force; 7 signers, 1 tenant and 9 people by threes; destroy.
    assert step == 3 + 3 + 1 + 3 + 1
    names = {path.name for path in (running.data / "secrets").glob("kms*")}
    assert names == {f"kms-{done.key_id}.key"}
    assert done.destroyed == ["kms.key"]
    with opened(running) as (store, vault):
        rows = wrapped_rows(store)
        assert len(rows) == 7 + 1 + len(partner.people)
        assert all(wrapped[:8].hex() == done.key_id for _, wrapped in rows)
        for row_id, wrapped in rows:
            vault.kms.unwrap(wrapped, row_id.encode())
        with store.reading() as tx:
            assert [row["state"] for row in tx.all("SELECT state FROM wrapping_keys")] == ["in_force"]
    # The old key opens nothing that is stored.
    for name in (f"kms-{done.key_id}.key", "kms.key"):
        (running.data / "secrets" / name).write_bytes(old)
    with pytest.raises(OperatorError, match="not those that this database"), opened(running):
        pass


def test_an_erased_person_is_not_brought_back_and_a_second_rotation_follows(running: Running) -> None:
    partner = Partner(running)
    partner.add()
    partner.add()
    (gone, _), *_ = partner.people.items()
    steps = 0

    def erase_before_the_people() -> None:
        nonlocal steps
        steps += 1
        if steps == 5:  # after the tenants
            erased = partner.http.delete(f"/v1/subjects/{gone}", headers={"Idempotency-Key": new_nonce()})
            assert erased.status_code == 200, erased.text
            del partner.people[gone]

    with opened(running) as (store, vault):
        first = rotate(store, vault, None, erase_before_the_people)
        assert first.rewrapped == {"signers": 7, "tenants": 1, "people": 1}
    partner.add()
    # A command of another process, and the same server.
    second = running.palmctl("secret", "rotate")
    assert second["rewrapped"] == {"signers": 7, "tenants": 1, "people": 2}
    assert second["destroyed"] == [f"kms-{first.key_id}.key"]
    partner.check()
    partner.add()


def test_servers_on_several_machines_get_the_next_key_before_it_is_used(tmp_path: Path) -> None:
    database, elsewhere = cluster().new_database(), tmp_path / "elsewhere"
    with served(tmp_path / "data", database) as running:
        partner = Partner(running)
        partner.add()
        shutil.copytree(running.data / "secrets", elsewhere / "secrets")
        with served(elsewhere, database) as other:
            _rotate_on_one_of(running, other, partner)
    with served(elsewhere, database) as other:
        partner.http.base_url = httpx.URL(other.url)
        partner.check()


def _rotate_on_one_of(running: Running, other: Running, partner: Partner) -> None:
    key_id = running.palmctl("secret", "prepare")["key_id"]
    assert running.palmctl("secret", "prepare")["key_id"] == key_id
    shutil.copy(running.data / "secrets" / f"kms-{key_id}.key", other.data / "secrets")
    assert running.palmctl("secret", "rotate")["key_id"] == key_id
    partner.check()
    partner.http.base_url = httpx.URL(other.url)
    partner.check()
    partner.add()
    (other.data / "secrets" / "kms.key").unlink()


def test_one_rotation_at_a_time_and_to_one_place(running: Running) -> None:
    with opened(running) as (store, vault):

        def second() -> None:
            with opened(running) as (store, vault), pytest.raises(OperatorError, match="at work"):
                rotate(store, vault, None)

        prepare(store, vault, None, second)
        with pytest.raises(OperatorError, match="a rotation to a key file is under way"):
            rotate(store, vault, "pkcs11:token=t;object=a?module-path=/m")
        rotate(store, vault, None)


def test_a_slow_token_holds_up_who_needs_it_alone(own_cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    partner = own_cloud.new_tenant().partner()
    subject_id = partner.person()["subject_id"]
    uri = own_cloud.data.path / "secrets" / f"kms-{'1' * 16}.uri"
    uri.write_text("pkcs11:token=t;object=a?module-path=/m")
    own_cloud.restart()
    key_ring = own_cloud.api.service.vault.kms
    unwrap, asked, answers = key_ring.unwrap, threading.Event(), threading.Event()

    def slow(wrapped: bytes, context: bytes) -> bytes:
        asked.set()
        assert answers.wait(5)
        return unwrap(wrapped, context)

    monkeypatch.setattr(key_ring, "unwrap", slow)

    async def both() -> list[int]:
        headers = {"Authorization": f"Bearer {partner.api_key}"}
        opened = asyncio.create_task(own_cloud.http.get(f"/v1/subjects/{subject_id}", headers=headers))
        await asyncio.to_thread(asked.wait, 20)
        others = [await own_cloud.http.get(path) for path in ("/problems/cursor_expired", "/v1/keys")]
        answers.set()
        return [answer.status_code for answer in (*others, await opened)]

    assert own_cloud.run(both()) == [200, 200, 200]


@pytest.fixture
def token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A token for server and command processes: SoftHSM reads where its tokens are once a process."""
    if not MODULE.exists():
        pytest.skip(f"{MODULE} is not installed (package softhsm2)")
    folder = tmp_path / "tokens"
    folder.mkdir()
    (folder / "softhsm2.conf").write_text(f"directories.tokendir = {folder}\nobjectstore.backend = file\n")
    (folder / "pin").write_text("1234\n")
    monkeypatch.setenv("SOFTHSM2_CONF", str(folder / "softhsm2.conf"))
    words = "softhsm2-util --init-token --free --label service --so-pin 5678 --pin 1234"
    subprocess.run(words.split(), check=True, capture_output=True)
    return f"pkcs11:token=service;object=NAME?module-path={MODULE}&pin-source=file:{folder / 'pin'}"


def command(running: Running, *words: str) -> subprocess.CompletedProcess[str]:
    where = ["--data", str(running.data), *database_words(running.database), "--json"]
    return ran("cloud", *words, *where)


def test_the_key_moves_into_a_token_to_another_and_back(tmp_path: Path, token: str) -> None:
    data = tmp_path / "data"
    secrets = data / "secrets"

    def rotated(running: Running, *to: str) -> dict[str, Any]:
        done = command(running, "secret", "rotate", *to)
        assert done.returncode == 0, done.stderr
        printed: dict[str, Any] = json.loads(done.stdout)
        return printed

    with served(data, None) as running:
        partner = Partner(running)
        partner.add()
        first = rotated(running, "--to", token.replace("NAME", "first"))
        assert first["in_token"]
        assert first["rewrapped"] == {"signers": 7, "tenants": 1, "people": 1}
        assert first["destroyed"] == ["kms.key"]
        # What is left here names the key, and is no key.
        (only,) = secrets.glob("kms*")
        assert only.read_text().strip() == token.replace("NAME", "first")
        partner.check()
        partner.add()
        taken = command(running, "secret", "rotate", "--to", token.replace("NAME", "first"))
        assert taken.returncode == 1
        assert "has a key of that name already" in taken.stderr
        second = rotated(running, "--to", token.replace("NAME", "second"))
        assert second["rewrapped"]["people"] == 2
        assert second["destroyed"] == [only.name]
        partner.check()
        partner.add()
    # A server that starts with the key in the token, and one that cannot reach it.
    with served(data, None) as running:
        partner.http.base_url = httpx.URL(running.url)
        partner.check()
        partner.add()
        back = rotated(running)
        assert not back["in_token"]
        assert back["rewrapped"]["people"] == 4
        partner.check()
        partner.add()
    left = tmp_path / "tokens"
    listed = subprocess.run(
        [sys.executable, "-c", _LIST, str(MODULE)], capture_output=True, text=True, check=True
    )
    assert listed.stdout.split() == [], f"the token still has keys: {left}"


def test_a_server_without_its_token_does_not_start(tmp_path: Path, token: str) -> None:
    data = tmp_path / "data"
    with served(data, None) as running:
        assert command(running, "secret", "rotate", "--to", token.replace("NAME", "k")).returncode == 0
    pin = tmp_path / "tokens" / "pin"
    for content, told in (("9999", "token cannot be reached: PinIncorrect"), (None, "PIN of the key")):
        pin.unlink()
        if content is not None:
            pin.write_text(content)
        refused = command(running, "tenant", "list")
        assert refused.returncode == 1
        assert told in refused.stderr


_LIST = """
import pkcs11, sys
token = pkcs11.lib(sys.argv[1]).get_token(token_label="service")
with token.open(user_pin="1234") as session:
    for found in session.get_objects({pkcs11.Attribute.CLASS: pkcs11.ObjectClass.SECRET_KEY}):
        print(found.label)
"""


def test_with_the_key_in_a_token_an_erasure_is_a_write(
    own_cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL refuses it in a transaction for reading; on SQLite the palms would stay in memory."""
    tenant = own_cloud.new_tenant()
    partner = tenant.partner()
    subject_id = partner.person()["subject_id"]
    forgotten: list[tuple[str, str]] = []
    monkeypatch.setattr(KeyRing, "in_token", True)
    monkeypatch.setattr(own_cloud.api.service.palms, "forget", lambda *whose: forgotten.append(whose))
    assert partner.get(f"/v1/subjects/{subject_id}")["subject_id"] == subject_id
    partner.delete(f"/v1/subjects/{subject_id}")
    assert (tenant.environment("test").stream, subject_id) in forgotten
