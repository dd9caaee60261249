"""`palmctl provision`: options, exit codes, and what it prints."""

import json
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from click.testing import CliRunner, Result

from device.config.config import load_config
from device.journal.journal import Journal
from device.platform.clock import SystemClock
from device.trust.keystore import KeyStore
from tests.device.core_makers import DBD_KEY, ROOT_KEY
from tests.device.provisioning.provisioning_setting import (
    ASKED,
    TOKEN,
    Registrar,
    registrar,
    respond,
)
from tools.palmctl.main import main

__all__ = ["registrar"]


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.manifest.load_manifest", lambda _dir: SimpleNamespace(model_id="m-test"))
    monkeypatch.setattr("models.manifest.shipped_model_dir", lambda: Path("/nowhere"))


def run(folder: Path, *more: str, token: str = TOKEN + "\n", server: str = "http://127.0.0.1:8710") -> Result:
    arguments = ["--server", server, "--token-stdin", "--config", str(folder / "device.toml")]
    arguments += ["--device-id", ASKED.device_id, "--gate-id", ASKED.gate_id, "--dbd-id", ASKED.dbd_id]
    arguments += ["--state-dir", str(folder / "state"), "--runtime-dir", str(folder / "run"), *more]
    return CliRunner().invoke(main, ["provision", *arguments], input=token)


def test_json_is_one_object_on_stdout_and_nothing_else(tmp_path: Path, registrar: Registrar) -> None:
    options = (
        "--passage-sensor",
        "--camera",
        "/dev/video2",
        "--camera-fps",
        "12",
        "--link-port",
        "/dev/ttyUSB1",
    )
    done = run(tmp_path, "--json", *options)
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    keys = KeyStore.open(tmp_path / "state" / "keys")
    assert told["verdict_key"] == {
        "kid": keys.verdict.kid,
        "alg": "ed25519",
        "pub_b64": keys.verdict.public.b64,
    }
    assert (told["root_kid"], told["dbd_kids"], told["keys_made"]) == (ROOT_KEY.kid, [DBD_KEY.kid], True)
    config = load_config(tmp_path / "device.toml")
    assert (config.camera.source, config.camera.fps, config.link.port) == ("/dev/video2", 12, "/dev/ttyUSB1")
    assert json.loads(registrar.bodies[0])["passage_sensor"] is True
    assert json.loads(registrar.bodies[0])["model_id"] == "m-test"
    for secret in (TOKEN, keys.verdict.seed.hex(), keys.http.seed.hex()):
        assert secret not in done.output


def test_run_again_it_changes_nothing_that_no_option_names(tmp_path: Path, registrar: Registrar) -> None:
    del registrar
    assert run(tmp_path, "--passage-sensor", "--camera", "/dev/video2").exit_code == 0
    before = (tmp_path / "device.toml").read_bytes()
    again = run(tmp_path, "--passage-sensor", "--json")
    assert again.exit_code == 0
    assert json.loads(again.stdout)["keys_made"] is False
    assert (tmp_path / "device.toml").read_bytes() == before


def test_a_person_is_told_what_to_give_to_the_validator(tmp_path: Path, registrar: Registrar) -> None:
    del registrar
    done = run(tmp_path, "--passage-sensor")
    assert KeyStore.open(tmp_path / "state" / "keys").verdict.public.b64 in done.stdout


@pytest.mark.parametrize(
    "wrong",
    [
        {"more": ("--device-id", "self")},
        {"more": ("--gate-id", "a gate")},
        {"more": ("--camera", "webcam")},
        {"more": ("--link-port", "COM3")},
        {"more": ("--camera-fps", "0")},
        {"more": ("--root-kid", ROOT_KEY.kid)},
        {"server": "http://cloud.example"},
        {"server": "https://user:pw@cloud.example"},
        {"token": "\n"},
        {"more": ("--runtime-dir", "/" + "x" * 200)},
    ],
)
def test_wrong_usage_is_2_and_makes_nothing(
    tmp_path: Path, registrar: Registrar, wrong: dict[str, object]
) -> None:
    done = run(tmp_path, *wrong.pop("more", ()), **wrong)  # type: ignore[arg-type, misc]
    assert done.exit_code == 2
    assert registrar.bodies == [] and not (tmp_path / "state").exists()
    assert "pw" not in done.output.replace("device", "")


def test_a_refusal_is_1(tmp_path: Path, registrar: Registrar) -> None:
    registrar.script = {
        0: lambda _request: respond(401, {"code": "unauthenticated"}, "application/problem+json")
    }
    done = run(tmp_path)
    assert (done.exit_code, done.stdout) == (1, "")
    assert "token" in done.stderr and TOKEN not in done.stderr


def test_a_device_id_that_was_wrong_at_first_leaves_nothing_behind(
    tmp_path: Path, registrar: Registrar
) -> None:
    registrar.script = {
        0: lambda _request: respond(401, {"code": "unauthenticated"}, "application/problem+json")
    }
    assert run(tmp_path, "--device-id", "gate-6-left").exit_code == 1
    assert run(tmp_path, "--passage-sensor").exit_code == 0
    keys = KeyStore.open(tmp_path / "state" / "keys")
    journal = load_config(tmp_path / "device.toml").journal_path
    Journal(
        journal,
        device_id=ASKED.device_id,
        verdict_kid=keys.verdict.kid,
        data_key=keys.data_key,
        clock=SystemClock(),
    ).close()


def test_a_service_that_cannot_be_reached_is_3(
    tmp_path: Path, registrar: Registrar, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut(_request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    registrar.script = dict.fromkeys(range(9), cut)
    monkeypatch.setattr("device.provisioning.online.TRY_FOR_S", 0.0)
    done = run(tmp_path)
    assert (done.exit_code, done.stdout) == (3, "")
    assert "same command again" in done.stderr


def test_an_existing_configuration_that_is_wrong_is_named_and_left_alone(
    tmp_path: Path, registrar: Registrar
) -> None:
    (tmp_path / "device.toml").write_text("[device]\nid = 7\n")
    done = run(tmp_path)
    assert done.exit_code == 1
    assert "device.toml" in done.stderr
    assert registrar.bodies == []


def test_relative_paths_are_those_of_the_caller(
    tmp_path: Path, registrar: Registrar, monkeypatch: pytest.MonkeyPatch
) -> None:
    del registrar
    monkeypatch.chdir(tmp_path)
    done = run(tmp_path, "--state-dir", "here/state", "--camera", "file:frames/here")
    assert done.exit_code == 0, done.stderr
    config = load_config(tmp_path / "device.toml")
    assert config.device.state_dir == tmp_path / "here" / "state"
    assert config.camera.source == f"file:{tmp_path}/frames/here"


def test_a_folder_with_other_files_is_refused_before_anything_is_made(
    tmp_path: Path, registrar: Registrar
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "letters").mkdir()
    done = run(tmp_path)
    assert done.exit_code == 1
    assert f"{state} holds files that are not a device's" in done.stderr and "--state-dir" in done.stderr
    assert [path.name for path in state.iterdir()] == ["letters"] and not (tmp_path / "device.toml").exists()
    (state / "letters").rename(state / "lost+found")
    (state / ".provision-cut-off").mkdir()
    assert run(tmp_path).exit_code == 0
