"""A registration over a stick, from both ends: the real device's steps and the real service's command."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from device.config.config import MEMBERS, load_config
from device.journal.journal import Journal
from device.platform.clock import SystemClock
from device.provisioning.offline import PENDING_NAME
from device.trust.keystore import KeyStore
from device.trust.trust import load_trust, reread, save_trust
from link1.keys import SigningKey
from models.manifest import shipped_model_dir
from tests.device.provisioning.provisioning_setting import spelt
from tests.palmctl import printed
from tests.until import until
from tools.palmctl.main import main

IDS = ("--device-id", "gate-7", "--gate-id", "g7", "--dbd-id", "d7")


class Stick:
    """Both places, and the file between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "stick.json"
        self.config = folder / "device.toml"
        self.state = folder / "state"
        self.tenant = self.cloud("tenant", "create", "acme")["tenant_id"]
        self.root_kid = self.cloud("root", "show")["kid"]

    def cloud(self, *words: str) -> Any:
        return printed("cloud", *words, "--data", str(self.folder / "cloud"))

    def provision(self, *words: str) -> Result:
        places = ("--config", str(self.config), "--state-dir", str(self.state), "--json")
        return CliRunner().invoke(
            main, ["provision", "--offline-bundle", str(self.file), *places, *words], input=""
        )

    def request(self) -> dict[str, Any]:
        done = self.provision(*IDS, "--passage-sensor", "--link-port", "/dev/ttyUSB3")
        assert done.exit_code == 0, done.output
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def create(self, kid: str, *more: str) -> Result:
        place = ("--data", str(self.folder / "cloud"), "--tenant", self.tenant, "--mode", "live", "--json")
        words = [
            "cloud",
            "bundle",
            "create",
            "--request",
            str(self.file),
            "--verdict-kid",
            kid,
            *place,
            *more,
        ]
        return CliRunner().invoke(main, words, input="")

    def answer(self) -> None:
        assert self.create(self.request()["verdict_key"]["kid"]).exit_code == 0


@pytest.fixture
def stick(tmp_path: Path) -> Stick:
    return Stick(tmp_path)


def test_a_request_under_a_wrong_device_id_is_made_again_under_the_right_one(stick: Stick) -> None:
    assert stick.provision(*IDS, "--device-id", "gate-6").exit_code == 0
    stick.file.unlink()
    stick.answer()
    assert stick.provision("--root-kid", stick.root_kid).exit_code == 0
    keys = KeyStore.open(stick.state / "keys")
    Journal(
        stick.state / "journal.db",
        device_id="gate-7",
        verdict_kid=keys.verdict.kid,
        data_key=keys.data_key,
        clock=SystemClock(),
    ).close()


def test_a_root_that_is_named_before_there_is_an_answer_is_an_error(stick: Stick) -> None:
    stick.request()
    asked = stick.file.read_bytes()
    early = stick.provision("--root-kid", stick.root_kid)
    assert early.exit_code == 1 and "no answer" in early.stderr
    stick.file.unlink()
    mistyped = stick.provision("--root-kid", stick.root_kid)
    assert mistyped.exit_code == 1 and "no answer" in mistyped.stderr
    assert not stick.file.exists()
    assert stick.provision().exit_code == 0 and stick.file.read_bytes() == asked


def test_two_walks_with_a_stick_make_a_device(stick: Stick) -> None:
    told = stick.request()
    assert not (stick.state / "trust.json").exists()
    answered = stick.create(told["verdict_key"]["kid"])
    assert answered.exit_code == 0, answered.output
    assert json.loads(answered.stdout)["root_kid"] == stick.root_kid
    done = stick.provision("--root-kid", stick.root_kid)
    assert done.exit_code == 0, done.output
    pinned = load_trust(stick.state / "trust.json")
    assert (pinned.device_id, pinned.gate_id, pinned.passage_sensor) == ("gate-7", "g7", True)
    assert [root.kid for root in pinned.roots] == [stick.root_kid]
    config = load_config(stick.config)
    assert (config.link.port, config.cloud) == ("/dev/ttyUSB3", None)
    assert not (stick.state / PENDING_NAME).exists()
    again = stick.provision("--root-kid", stick.root_kid)
    assert again.exit_code == 1 and "a FILE that does not exist yet" in again.stderr
    assert stick.provision(*IDS).stderr == again.stderr


EVERY_MEMBER = f"""
[device]
id = "gate-7"
gate_id = "g7"
dbd_id = "d7"
state_dir = "state"
runtime_dir = "run"
[camera]
source = "/dev/video7"
fps = 17
loop = true
look = "nir"
[link]
port = "/dev/ttyUSB7"
baud = 115200
[cloud]
url = "http://127.0.0.1:8710"
ca_file = "ca.pem"
[model]
dir = "{shipped_model_dir()}"
hand_weights = false
[liveness]
model_dir = "liveness"
[enrolment]
hands = ["R"]
consent = "service"
terms_dir = "terms"
terms_version = "v7"
[attest]
chain_file = "chain.pem"
signer = "credential:attest"
"""
"""None as it is by default; `camera.nir` can be another only where `look` is not."""


def test_what_the_configuration_says_and_no_option_does_stays(stick: Stick) -> None:
    stick.config.write_text(EVERY_MEMBER)
    before = load_config(stick.config)
    held = {(of, name): getattr(getattr(before, of), name) for of, names in MEMBERS.items() for name in names}
    same = [(of, name) for (of, name), value in held.items() if value == MEMBERS[of][name].default]
    assert same == [("camera", "nir")]
    done = stick.provision(*IDS)
    assert done.exit_code == 0, done.stderr
    assert load_config(stick.config) == before


def test_each_step_can_be_done_again(stick: Stick) -> None:
    first, content = stick.request(), stick.file.read_bytes()
    second = stick.request()
    assert stick.file.read_bytes() == content
    assert (first["keys_made"], second["keys_made"]) == (True, False)
    kid = first["verdict_key"]["kid"]
    aside = str(stick.folder / "answer.json")
    assert json.loads(stick.create(kid, "--out", aside).stdout)["registered_again"] is False
    assert json.loads(stick.create(kid).stdout)["registered_again"] is True
    assert stick.provision("--root-kid", stick.root_kid.upper()).exit_code == 0


def test_without_the_validators_key_the_steps_are_done_again(stick: Stick) -> None:
    """Mail comes through the validator, so the key of the first one cannot come by mail."""
    validator, place = SigningKey.generate().public, ("--config", str(stick.config))
    stick.answer()
    words = ("provision", "--offline-bundle", str(stick.file), *place, "--root-kid", stick.root_kid)
    shown = CliRunner().invoke(main, words)
    assert shown.exit_code == 0 and "do all three steps again" in shown.stdout
    examined = CliRunner().invoke(main, ["doctor", "validator", *place])
    assert examined.exit_code == 1 and "register again over a stick" in examined.stdout
    tenant = ("--tenant", stick.tenant, "--mode", "live")
    stick.cloud("dbd", "add", "--dbd-id", "d7", "--pub-b64", validator.b64, *tenant)
    stick.file.unlink()
    stick.answer()
    done = stick.provision("--root-kid", stick.root_kid)
    assert json.loads(done.stdout)["dbd_kids"] == [validator.kid]
    examined = CliRunner().invoke(main, ["doctor", "validator", *place])
    assert examined.exit_code == 0 and validator.kid in examined.stdout


def test_a_pipe_in_the_place_of_the_request_is_named(stick: Stick) -> None:
    stick.request()
    (stick.state / PENDING_NAME).unlink()
    os.mkfifo(stick.state / PENDING_NAME)
    done = stick.provision()
    assert done.exit_code == 1 and "found a FIFO" in done.stderr


def test_a_palmd_that_runs_is_to_be_restarted(stick: Stick) -> None:
    """It knows what was pinned when it started: another validator would wait before it for ever."""
    folders = ("--runtime-dir", str(stick.folder / "run"), "--camera", f"file:{stick.folder}")
    assert stick.provision(*IDS, *folders).exit_code == 0
    stick.answer()
    done = stick.provision("--root-kid", stick.root_kid)
    assert done.exit_code == 0 and "systemctl restart" not in done.stderr
    stick.file.unlink()
    stick.answer()
    words = [sys.executable, "-m", "device.core.main", "--config", str(stick.config)]
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as palmd:
        try:
            until((stick.folder / "run/control/sock").exists)
            done = stick.provision("--root-kid", stick.root_kid)
        finally:
            palmd.terminate()
    assert done.exit_code == 0 and "systemctl restart palmd" in done.stderr
    assert json.loads(done.stdout)["device_id"] == "gate-7"


def test_no_secret_is_on_the_stick_or_printed(stick: Stick) -> None:
    told = stick.request()
    asked = stick.file.read_bytes()
    answered = stick.create(told["verdict_key"]["kid"])
    done = stick.provision("--root-kid", stick.root_kid)
    seen = asked + stick.file.read_bytes() + f"{told}{answered.output}{done.output}".encode()
    secrets = [text for path in (stick.state / "keys").iterdir() for text in spelt(path.read_bytes())]
    assert len(secrets) >= 3 * 4
    assert [text for text in secrets if text in seen] == []
    KeyStore.open(stick.state / "keys")


def test_the_operator_takes_in_the_device_that_was_looked_at(stick: Stick) -> None:
    stick.request()
    done = stick.create("0" * 32)
    assert done.exit_code == 1 and "another device" in done.stderr
    assert json.loads(stick.file.read_bytes())["type"].endswith("request")


def test_a_request_that_was_changed_on_its_way_is_said_to_be_so(stick: Stick) -> None:
    """Nothing is active with other keys: no device is to be revoked for it."""
    kid = stick.request()["verdict_key"]["kid"]
    request = json.loads(stick.file.read_bytes())
    request["body"]["gate_id"] = "g8"
    stick.file.write_text(json.dumps(request))
    done = stick.create(kid)
    assert done.exit_code == 1 and "not what its device signed" in done.stderr
    assert "revoke" not in done.stderr


@pytest.mark.parametrize("kid", ["0" * 32, "12"])
def test_another_root_is_not_believed(stick: Stick, kid: str) -> None:
    stick.answer()
    assert stick.provision("--root-kid", kid).exit_code == 1
    assert not (stick.state / "trust.json").exists()
    assert stick.provision().exit_code == 2  # there is no terminal to ask for it


def test_an_answer_that_lay_on_the_stick_takes_nothing_back(stick: Stick) -> None:
    path, place = stick.state / "trust.json", ("--tenant", stick.tenant, "--mode", "live")
    stick.answer()
    assert stick.provision("--root-kid", stick.root_kid).exit_code == 0
    stick.file.unlink()
    kid = stick.request()["verdict_key"]["kid"]
    aside = stick.folder / "aside.json"
    assert stick.create(kid, "--out", str(aside)).exit_code == 0
    # Meanwhile the service goes on, and the validator's mail brings it.
    stick.cloud("config", "set", "--attempts", "5", *place)
    rotated = stick.cloud("signer", "rotate", "--use", "gallery", "--in-s", "0")["kid"]
    assert stick.create(kid).exit_code == 0
    mailed = json.loads(stick.file.read_bytes())["signed"]["registered_obj"]["answer"]
    came = {"config": mailed["config"], "keys": mailed["keys"], "bundle_seq": 1}
    save_trust(path, reread(load_trust(path), came))
    before = load_trust(path)
    assert before.gallery_key(rotated) is not None
    stick.file.write_bytes(aside.read_bytes())
    assert stick.provision("--root-kid", stick.root_kid).exit_code == 0
    after = load_trust(path)
    assert (after.config, after.bundle_seq) == (before.config, 1)
    assert set(after.keys) == set(before.keys)


def changed(value: Any) -> list[Any]:
    """Every copy of an object of JSON in which one leaf is another."""
    if isinstance(value, dict):
        return [{**value, name: other} for name, item in value.items() for other in changed(item)]
    if isinstance(value, list):
        return [
            [*value[:at], other, *value[at + 1 :]] for at, item in enumerate(value) for other in changed(item)
        ]
    if isinstance(value, str):
        return [("B" if value[:1] == "A" else "A") + value[1:]]
    return [not value] if isinstance(value, bool) else [1 if value is None else value + 1]


def test_an_answer_changed_anywhere_pins_nothing(stick: Stick) -> None:
    stick.answer()
    good = json.loads(stick.file.read_bytes())
    copies = changed(good)
    assert len(copies) > 60
    for copy in copies:
        stick.file.write_text(json.dumps(copy))
        assert stick.provision("--root-kid", stick.root_kid).exit_code == 1, copy
        assert not (stick.state / "trust.json").exists()
    stick.file.write_text(json.dumps(good))
    assert stick.provision("--root-kid", stick.root_kid).exit_code == 0


@pytest.mark.parametrize("option", ["--device-id", "--gate-id", "--dbd-id"])
def test_an_answer_is_not_taken_for_other_ids_than_were_asked_for(stick: Stick, option: str) -> None:
    stick.answer()
    done = stick.provision("--root-kid", stick.root_kid, option, "other")
    assert done.exit_code == 1 and "the request was for device gate-7" in done.stderr
    assert not (stick.state / "trust.json").exists()
    assert stick.provision("--root-kid", stick.root_kid, *IDS).exit_code == 0
    assert load_config(stick.config).device.gate_id == "g7"


def test_an_answer_to_another_request_is_refused(stick: Stick, tmp_path: Path) -> None:
    stick.answer()
    answer = stick.file.read_bytes()
    (tmp_path / "other").mkdir()
    other = Stick(tmp_path / "other")
    other.request()
    other.file.write_bytes(answer)
    done = other.provision("--root-kid", stick.root_kid)
    assert done.exit_code == 1 and "another request" in done.stderr
    assert "compare the root" not in done.stderr, "the root is the right one"


def test_a_file_that_is_not_ours_is_left_alone(stick: Stick) -> None:
    stick.request()
    theirs = stick.file.read_bytes().replace(b"gate-7", b"gate-8")
    stick.file.write_bytes(theirs)
    assert stick.provision(*IDS).exit_code == 1
    stick.file.write_bytes(b"\x00 holiday pictures")
    assert stick.provision(*IDS).exit_code == 1
    assert stick.file.read_bytes() == b"\x00 holiday pictures"


@pytest.mark.skipif(sys.platform != "linux", reason="a terminal of Linux")
def test_the_code_of_the_fingerprint_is_read_by_a_reader() -> None:
    import cv2
    import numpy as np

    from models.frames import CameraFrame
    from models.qr import read_qr
    from tools.palmctl.live_terminal import qr_lines

    text = "palm-access:verdict-key:857666d8f8cf39614cc80be69c7f74d9"
    halves = {"█": (0, 0), "▀": (0, 255), "▄": (255, 0), " ": (255, 255)}
    rows = []
    for line in qr_lines(text):
        letters = [halves[letter] for letter in line if letter in halves]
        rows += [[upper for upper, _ in letters], [lower for _, lower in letters]]
    picture = cv2.resize(np.array(rows, np.uint8), None, fx=8, fy=8, interpolation=cv2.INTER_NEAREST)
    assert read_qr(CameraFrame.from_pixels(picture)) == text
