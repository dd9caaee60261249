"""Provisioning from beginning to end: where it may stop, what it may meet, what it never shows."""

import asyncio
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest

from cloud_client.errors import CloudUnreachable
from device.config.config import (
    load_config,
)
from device.errors import DeviceError, ProvisioningError
from device.journal.journal import Journal
from device.platform.clock import SystemClock
from device.provisioning import online as provisioning
from device.provisioning.online import RegistrationFacts, Surroundings, provision
from device.trust.credentials import encrypt_keys, run_tool
from device.trust.keystore import KeyStore
from device.trust.trust import load_trust, reread, save_trust
from link1.canonical import canonical_bytes
from link1.keys import SigningKey
from tests.device.core_makers import DBD_KEY, GALLERY_KEY, ROOT_KEY
from tests.device.provisioning.provisioning_setting import (
    ASKED,
    NOW_MS,
    TOKEN,
    Registrar,
    carry_out,
    registrar,
    respond,
    settings,
    spelt,
)

__all__ = ["registrar"]


def test_a_device_becomes_provisioned_and_everything_can_be_read_back(
    tmp_path: Path, registrar: Registrar
) -> None:
    done = carry_out(tmp_path)
    assert done.keys_made
    config = load_config(tmp_path / "etc" / "device.toml")
    assert config == settings(tmp_path)
    trust = load_trust(config.trust_path)
    assert trust == done.trust
    assert (trust.roots, trust.gallery, trust.passage_sensor) == ((ROOT_KEY.public,), ("stream-1", 1), True)
    assert trust.dbd_key(DBD_KEY.kid, 0) == DBD_KEY.public
    keys = KeyStore.open(config.keys_dir)
    Journal(
        config.journal_path,
        device_id=ASKED.device_id,
        verdict_kid=keys.verdict.kid,
        data_key=keys.data_key,
        clock=SystemClock(),
    ).close()
    assert registrar.bodies[0] == canonical_bytes(json.loads(registrar.bodies[0]))


STEPS = ("KeyStore.create", "Journal.create", "_register", "check_registration", "save_trust", "write_config")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interruption_anywhere_is_made_good_by_the_same_command(
    tmp_path: Path, registrar: Registrar, monkeypatch: pytest.MonkeyPatch, step: str, when: str
) -> None:
    class PowerCut(Exception):
        pass

    owner_name, _, name = step.rpartition(".")
    owner = getattr(provisioning, owner_name) if owner_name else provisioning
    real = getattr(owner, name)

    def cut(*args: Any, **options: Any) -> Any:
        # The configuration is also written aside, to see whether it can be.
        if name == "write_config" and args[0].parent.name != "etc":
            return real(*args, **options)
        if when == "after":
            result = real(*args, **options)
            if asyncio.iscoroutine(result):
                result.close()
        raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, staticmethod(cut) if owner_name else cut)
        with pytest.raises(PowerCut):
            carry_out(tmp_path)
    done = carry_out(tmp_path)
    assert load_trust(tmp_path / "state" / "trust.json") == done.trust
    assert load_config(tmp_path / "etc" / "device.toml") == settings(tmp_path)
    assert (tmp_path / "state" / "journal.db").exists()
    assert len(set(registrar.bodies)) == 1
    assert not [path for path in (tmp_path / "state").iterdir() if path.name.startswith(".provision")]


def test_a_lost_journal_of_a_registered_device_is_not_papered_over(
    tmp_path: Path, registrar: Registrar
) -> None:
    del registrar
    carry_out(tmp_path)
    (tmp_path / "state" / "journal.db").unlink()
    carry_out(tmp_path)
    assert not (tmp_path / "state" / "journal.db").exists()


@pytest.mark.parametrize("also_lost", ["nothing", "trust.json", "journal.db"])
def test_no_new_keys_are_put_next_to_what_only_the_lost_ones_open(
    tmp_path: Path, registrar: Registrar, also_lost: str
) -> None:
    """Registered under new keys, the device would never start: its journal is of the old ones."""
    carry_out(tmp_path)
    shutil.rmtree(tmp_path / "state" / "keys")
    (tmp_path / "state" / also_lost).unlink(missing_ok=True)
    asked = len(registrar.bodies)
    with pytest.raises(ProvisioningError, match="of a device whose keys are gone; restore them, or run"):
        carry_out(tmp_path)
    assert not (tmp_path / "state" / "keys").exists() and len(registrar.bodies) == asked


def test_a_flaky_service_is_asked_again_with_the_same_key_and_body(
    tmp_path: Path, registrar: Registrar
) -> None:
    def cut(_request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("cut")

    def overloaded(_request: httpx.Request) -> httpx.Response:
        return respond(503, {"code": "service_unavailable", "retryable": True}, "application/problem+json")

    registrar.script = {0: cut, 1: overloaded}
    carry_out(tmp_path)
    assert len(registrar.bodies) == 3
    assert len(set(registrar.bodies)) == 1


def test_a_service_that_stays_away_is_given_up_and_nothing_is_lost(
    tmp_path: Path, registrar: Registrar
) -> None:
    def cut(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    registrar.script = dict.fromkeys(range(50), cut)

    class Impatient(SystemClock):
        def __init__(self) -> None:
            self.now_ms = 0

        def monotonic_ms(self) -> int:
            self.now_ms += 4_000
            return self.now_ms

    async def no_wait(_seconds: float) -> None:
        return None

    around = Surroundings(Impatient(), lambda: 0.0, sleep=no_wait)
    with pytest.raises(CloudUnreachable):
        asyncio.run(provision(settings(tmp_path), tmp_path / "etc" / "device.toml", ASKED, TOKEN, around))
    kept = (tmp_path / "state" / "keys" / "verdict.key").read_bytes()
    registrar.script = {}
    carry_out(tmp_path)
    assert (tmp_path / "state" / "keys" / "verdict.key").read_bytes() == kept


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (401, "unauthenticated", "token"),
        (404, "", "address"),
        (409, "device_state_conflict", "factory-reset"),
        (422, "validation_failed", "options"),
    ],
)
def test_a_refusal_says_what_to_do_and_never_shows_the_token(
    tmp_path: Path,
    registrar: Registrar,
    caplog: pytest.LogCaptureFixture,
    status: int,
    code: str,
    advice: str,
) -> None:
    caplog.set_level(logging.DEBUG)
    problem = {"code": code, "retryable": False}
    registrar.script = {0: lambda _request: respond(status, problem, "application/problem+json")}
    with pytest.raises(ProvisioningError, match=advice) as caught:
        carry_out(tmp_path)
    shown = str(caught.value) + caplog.text
    secrets = [TOKEN] + [(path.read_bytes().hex()) for path in (tmp_path / "state" / "keys").iterdir()]
    assert not [secret for secret in secrets if secret in shown]
    assert not (tmp_path / "state" / "trust.json").exists()
    assert not (tmp_path / "etc" / "device.toml").exists()


def test_no_secret_is_in_any_result_or_file_but_the_key_files(tmp_path: Path, registrar: Registrar) -> None:
    del registrar
    done = carry_out(tmp_path)
    secrets = [path.read_bytes() for path in (tmp_path / "state" / "keys").iterdir()]
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.parent.name != "keys"]
    assert len(secrets) >= 3 and {"device.toml", "trust.json"} <= {path.name for path in files}
    for secret in (*secrets, TOKEN.encode()):
        assert repr(secret) not in repr(done)
        for text in spelt(secret):
            assert text not in repr(done).encode()
            assert [path for path in files if text in path.read_bytes()] == []


def test_a_second_root_for_a_pinned_device_is_refused(
    tmp_path: Path, registrar: Registrar, monkeypatch: pytest.MonkeyPatch
) -> None:
    del registrar
    carry_out(tmp_path)
    monkeypatch.setattr(
        "tests.device.provisioning.provisioning_setting.ROOT_KEY", SigningKey.from_seed(bytes([99]) * 32)
    )
    with pytest.raises(ProvisioningError, match="another root"):
        carry_out(tmp_path)
    assert load_trust(tmp_path / "state" / "trust.json").roots == (ROOT_KEY.public,)


def test_a_state_directory_of_another_device_is_left_alone(tmp_path: Path, registrar: Registrar) -> None:
    carry_out(tmp_path)
    other = RegistrationFacts("gate-8", ASKED.gate_id, ASKED.dbd_id, True, "0.1.0", "m-test")
    with pytest.raises(ProvisioningError, match="another device"):
        carry_out(tmp_path, asked=other)
    assert len(registrar.bodies) == 1


@pytest.mark.parametrize("token", ["", "short", "with space in it", "t" * 513, "tök-en-12345"])
def test_what_cannot_be_a_token_is_refused_before_anything_is_made(tmp_path: Path, token: str) -> None:
    with pytest.raises(ProvisioningError) as caught:
        carry_out(tmp_path, token=token)
    assert token == "" or token not in str(caught.value)
    assert not (tmp_path / "state").exists()


def test_a_place_that_cannot_be_written_is_found_before_registering(
    tmp_path: Path, registrar: Registrar
) -> None:
    (tmp_path / "etc").write_text("a file where the folder should be")
    with pytest.raises(DeviceError):
        carry_out(tmp_path)
    assert registrar.bodies == []


def test_a_refused_registration_is_asked_again_when_its_reason_is_gone(
    tmp_path: Path, registrar: Registrar
) -> None:
    problem = {"code": "device_state_conflict", "retryable": False}
    registrar.script = {0: lambda _request: respond(409, problem, "application/problem+json")}
    with pytest.raises(ProvisioningError, match="revoked, then run this again"):
        carry_out(tmp_path)
    carry_out(tmp_path)
    assert registrar.bodies[0] == registrar.bodies[1]
    assert registrar.keys[0] != registrar.keys[1], "the service would repeat its refusal"


def test_registering_again_brings_nothing_back_that_was_revoked(tmp_path: Path, registrar: Registrar) -> None:
    del registrar
    carry_out(tmp_path)
    path = tmp_path / "state" / "trust.json"
    window = {"not_before_ms": 5, "not_after_ms": 9, "dbd_id": "dbd-7"}
    told = {
        "bundle_seq": 2,
        "status_at_ms": NOW_MS + 1,
        "service_ms": NOW_MS + 2,
        "revoked_kids": [GALLERY_KEY.public.kid],
        "keys": [],
        "dbd_keys": [{"kid": ROOT_KEY.public.kid, "pub_b64": ROOT_KEY.public.b64, **window}],
    }
    save_trust(path, reread(load_trust(path), told))
    carry_out(tmp_path)
    trust = load_trust(path)
    assert (trust.bundle_seq, trust.status_at_ms, trust.service_ms) == (2, NOW_MS + 1, NOW_MS + 2)
    assert (
        trust.revoked_kids == {GALLERY_KEY.public.kid} and trust.gallery_key(GALLERY_KEY.public.kid) is None
    )
    assert {key.public.kid: key.not_after_ms for key in trust.dbd_keys} == {
        ROOT_KEY.public.kid: 9,
        DBD_KEY.public.kid: None,
    }


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("systemd-creds") is None, reason="needs root and systemd"
)
def test_a_device_with_encrypted_keys_is_registered_again(tmp_path: Path, registrar: Registrar) -> None:
    del registrar
    first = carry_out(tmp_path)
    run_tool(["systemd-creds", "setup"], b"")
    encrypt_keys(tmp_path / "state" / "keys", with_key="host", credstore=tmp_path / "credstore")
    assert carry_out(tmp_path).keys.verdict == first.keys.verdict
