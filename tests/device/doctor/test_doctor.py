"""Each check of the doctor against a machine laid out in a folder, and all of them on a device at work."""

import asyncio
import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from device.config.config import AttestSection
from device.doctor.board import clock, memory, storage, telemetry, temperature, wear
from device.doctor.cable import cable, validator
from device.doctor.camera import judge
from device.doctor.case import Case, CheckResult, take_case
from device.doctor.examine import CHECKS, WITHOUT_CONFIGURATION, examine
from device.doctor.installation import ownership, provisioned
from device.doctor.measured_picture import MeasuredPicture, measure
from device.doctor.running import gallery, hands
from device.doctor.sandbox import sandbox, shares_network
from device.doctor.service import attest, server
from device.platform.clock import SystemClock
from device.trust.attestation import note_attested
from device.trust.keystore import CREDENTIALS_FOLDER
from device.trust.trust import reread
from device.values.carrier import CloudState
from device.values.status import CableStatus, HealthNote
from models.frames import CameraFrame
from models.hand_landmarks import installed_landmarks, weights_folder
from models.synthesis.person import make_person
from models.synthesis.render import render_frame
from models.synthesis.scene import random_pose, random_setting
from tests.cloud_client.scripted_http import http, problem, scripted
from tests.device.factory import make_board, make_ca
from tests.device.status_makers import some_status
from tests.device.whole_device import Device, make_device, validator_at
from tools.kit.pty_pair import PtyPair
from tools.palmctl.main import main


@pytest.fixture
def device(tmp_path: Path) -> Device:
    return make_device(tmp_path)


@pytest.fixture
def case(device: Device, tmp_path: Path) -> Case:
    """A provisioned device without a daemon, on an empty machine."""
    return take_case(device.board.config_path, SystemClock(), tmp_path / "root")


@pytest.fixture
def machine(tmp_path: Path) -> Case:
    """The machine alone, never configured."""
    return take_case(tmp_path / "device.toml", SystemClock(), tmp_path / "root")


def lay(case: Case, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = case.system(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_hands_with_the_published_weights_without_them_and_with_altered_ones(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installed_landmarks() is not None:
        found = hands(case)
        assert found.result is CheckResult.OK and "published weights" in found.detail
    assert case.config is not None
    off = replace(case, config=replace(case.config, model=replace(case.config.model, hand_weights=False)))
    assert hands(off).result is CheckResult.SKIP and "hand_weights is false" in hands(off).detail

    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    installed_landmarks.cache_clear()
    try:
        absent = hands(case)
        assert absent.result is CheckResult.WARN and "does not hold them" in absent.detail and absent.todo
        installed_landmarks.cache_clear()
        weights_folder().mkdir(parents=True)
        (weights_folder() / "manifest.json").write_text("{}")
        altered = hands(case)
        assert altered.result is CheckResult.WARN and "two files" in altered.detail
    finally:
        installed_landmarks.cache_clear()


THERMAL = "/sys/class/thermal/thermal_zone0"
PI = "/sys/devices/platform/soc/soc:firmware/get_throttled"


@pytest.mark.parametrize(
    ("files", "result"),
    [
        ({}, CheckResult.SKIP),
        ({f"{THERMAL}/temp": "51234\n", f"{THERMAL}/type": "cpu-thermal"}, CheckResult.OK),
        ({f"{THERMAL}/temp": "74000"}, CheckResult.WARN),
        ({f"{THERMAL}/temp": "85000"}, CheckResult.FAIL),
        ({f"{THERMAL}/temp": "51000", PI: "50000\n"}, CheckResult.WARN),
        ({f"{THERMAL}/temp": "51000", PI: "1"}, CheckResult.FAIL),
        ({f"{THERMAL}/temp": "51000", PI: "4"}, CheckResult.FAIL),
    ],
)
def test_temperature(machine: Case, files: dict[str, str], result: CheckResult) -> None:
    lay(machine, files)
    assert temperature(machine).result is result


@pytest.mark.parametrize(
    ("life_time", "pre_eol", "result"),
    [
        ("0x01 0x02", "0x01", CheckResult.OK),
        ("0x08 0x02", "0x01", CheckResult.WARN),
        ("0x01 0x01", "0x03", CheckResult.FAIL),
        ("0x0b 0x01", "0x01", CheckResult.FAIL),
        ("0x00 0x00", "0x00", CheckResult.SKIP),
    ],
)
def test_wear(machine: Case, life_time: str, pre_eol: str, result: CheckResult) -> None:
    card = "/sys/block/mmcblk0/device"
    lay(machine, {f"{card}/life_time": life_time, f"{card}/pre_eol_info": pre_eol})
    assert wear(machine).result is result


@pytest.mark.parametrize(
    ("left_kib", "killed", "result"),
    [
        (800_000, 0, CheckResult.OK),
        (100_000, 0, CheckResult.WARN),
        (800_000, 2, CheckResult.WARN),
        (20_000, 0, CheckResult.FAIL),
    ],
)
def test_memory(machine: Case, left_kib: int, killed: int, result: CheckResult) -> None:
    info = f"MemTotal: 1000000 kB\nMemAvailable: {left_kib} kB\n"
    lay(machine, {"/proc/meminfo": info, "/proc/vmstat": f"pgfault 7\noom_kill {killed}\n"})
    assert memory(machine).result is result


@pytest.mark.parametrize(
    ("mean", "bright", "hand", "look", "result"),
    [
        (120, 0, None, "rgb", CheckResult.OK),
        (120, 0, (90, 100), "rgb", CheckResult.OK),
        (120, 0, (30, 100), "rgb", CheckResult.WARN),
        (120, 0, (90, 30), "rgb", CheckResult.WARN),
        (12, 0, None, "rgb", CheckResult.FAIL),
        (12, 0, (90, 30), "rgb", CheckResult.FAIL),
        (12, 0, (90, 100), "rgb", CheckResult.OK),
        (240, 80, None, "rgb", CheckResult.FAIL),
        (240, 80, (90, 100), "rgb", CheckResult.OK),
        (12, 0, None, "nir", CheckResult.WARN),
        (240, 80, None, "nir", CheckResult.WARN),
    ],
)
def test_picture(
    mean: int, bright: int, hand: tuple[int, int] | None, look: str, result: CheckResult
) -> None:
    sharpness, exposure = hand or (None, None)
    assert judge(MeasuredPicture(mean, 0, bright, sharpness, exposure), look).result is result


def test_a_faultless_hand_in_near_infrared_is_not_too_dark() -> None:
    rng = np.random.default_rng(1)
    pose, setting = random_pose(rng), random_setting(rng, 1)
    pixels = render_frame(make_person(31_000_001), "L", pose, "nir", rng, setting=setting)
    measured = measure(CameraFrame.from_pixels(pixels), None)
    assert measured.dark_pct > 60, "without the hand this would be too dark"
    found = judge(measured, "nir")
    assert found.result is CheckResult.OK, found.detail


def test_ownership_names_what_others_could_read(device: Device, case: Case) -> None:
    assert ownership(case).result is CheckResult.OK
    key = device.config.keys_dir / "verdict.key"
    key.chmod(0o644)
    found = ownership(case)
    assert found.result is CheckResult.FAIL and str(key) in found.detail and "chmod 0600" in found.todo


def test_a_link_in_the_place_of_a_key_is_no_matter_of_its_mode(device: Device, case: Case) -> None:
    key = device.config.keys_dir / "verdict.key"
    key.rename(key.with_name("kept"))
    key.symlink_to("kept")
    assert ownership(case).result is CheckResult.OK, "no chmod changes the mode of a link"
    again = take_case(device.board.config_path, SystemClock())
    assert provisioned(again).result is CheckResult.FAIL


@pytest.mark.parametrize(
    "signer", ["file:{}", "pkcs11:token=board;object=attest?module-path=/m.so&pin-source=file:{}"]
)
def test_a_secret_of_the_attestation_that_others_may_read_is_named(
    device: Device, case: Case, tmp_path: Path, signer: str
) -> None:
    secret = tmp_path / "board.secret"
    section = AttestSection(tmp_path / "chain.pem", signer.format(secret))
    case = replace(case, config=replace(device.config, attest=section))
    assert ownership(case).result is CheckResult.OK  # absent: the check `attest` says so
    secret.touch()
    secret.chmod(0o644)
    found = ownership(case)
    assert (found.result, found.todo) == (CheckResult.FAIL, f"chmod 0600 {secret}")
    secret.chmod(0o600)
    assert ownership(case).result is CheckResult.OK


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_an_owner_without_a_name_is_put_right_by_the_command_that_is_shown(case: Case) -> None:
    state_dir, number = case.settings.device.state_dir, 54_321
    os.chown(state_dir, number, -1)
    finding = ownership(case)
    assert finding.result is CheckResult.FAIL and finding.todo == f"chown -R {number} {state_dir}"
    subprocess.run(finding.todo.split(), check=True)
    assert ownership(case).result is CheckResult.OK


def test_a_device_provisioned_by_half(device: Device, case: Case) -> None:
    assert provisioned(case).result is CheckResult.OK
    device.config.trust_path.unlink()
    half = take_case(device.board.config_path, SystemClock())
    found = provisioned(half)
    assert found.result is CheckResult.FAIL and "run `palmctl provision`" in found.todo
    assert validator(half).result is CheckResult.SKIP
    device.config.journal_path.unlink()
    assert provisioned(replace(case, status=None)).result is CheckResult.FAIL


@pytest.mark.skipif(os.geteuid() != 0, reason="systemd-creds needs root")
def test_encrypted_keys_that_do_not_open_on_this_board(device: Device, case: Case) -> None:
    folder = device.config.keys_dir.with_name(CREDENTIALS_FOLDER)
    folder.mkdir(mode=0o700)
    for key in device.config.keys_dir.iterdir():
        (folder / f"{key.stem}.cred").write_bytes(b"of another board")
        key.unlink()
    device.config.keys_dir.rmdir()
    found = provisioned(take_case(device.board.config_path, SystemClock()))
    assert found.result is CheckResult.FAIL and "does not open here" in found.detail
    assert "the TPM that encrypted it" in found.todo and "factory-reset" in found.todo


def test_a_state_directory_that_cannot_be_looked_at_is_a_fault(device: Device) -> None:
    state = device.config.device.state_dir
    state.rename(state.with_name("elsewhere"))
    state.symlink_to(state)  # no user can follow it, as none can read a card that fails
    words = ["doctor", "storage", "ownership", "--json", "--config", str(device.board.config_path)]
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1
    findings = json.loads(done.stdout)["findings"]
    assert {finding["result"] for finding in findings} == {"fail"}
    assert all("could not look" in finding["detail"] for finding in findings)


def test_a_cable_that_is_not_there(case: Case) -> None:
    found = cable(case)
    assert found.result is CheckResult.FAIL and "absent" in found.detail and "plug" in found.todo


@pytest.mark.parametrize(
    ("program", "result", "words"),
    [
        ("/opt/palm-access/current/bin/palmd", CheckResult.SKIP, "held by a palmd that does not answer"),
        ("/usr/sbin/gpsd", CheckResult.FAIL, "held by gpsd (pid 4242)"),
        ("/tmp/\x1b[2J\n✓ ok", CheckResult.FAIL, "held by ?[2J?✓ ok (pid 4242)"),
    ],
)
def test_a_port_that_a_program_holds_is_not_free(
    device: Device, tmp_path: Path, program: str, result: CheckResult, words: str
) -> None:
    place = ["--config", str(device.board.config_path)]
    assert CliRunner().invoke(main, ["config", "set", "link.port", "/dev/zero", *place]).exit_code == 0
    case = take_case(device.board.config_path, SystemClock(), tmp_path / "root")
    lay(case, {"/proc/4242/comm": Path(program).name, "/proc/4242/cmdline": f"{program}\0--config\0x"})
    case.system("/proc/4242/fd").mkdir()
    case.system("/proc/4242/fd/7").symlink_to("/dev/zero")
    found = cable(case)
    assert found.result is result and words in found.detail


@pytest.mark.parametrize(
    ("state", "kid", "result"),
    [("down", None, CheckResult.FAIL), ("up", "0" * 32, CheckResult.WARN), ("up", None, CheckResult.OK)],
)
def test_a_validator_that_has_or_has_not_proved_itself(
    case: Case, state: str, kid: str | None, result: CheckResult
) -> None:
    assert validator(case).result is CheckResult.SKIP
    told = some_status(cable=CableStatus(state, "/dev/palm", "open", kid))
    assert validator(replace(case, status=told)).result is result


def test_a_validator_with_another_key_is_not_one_without_power(case: Case) -> None:
    down = CableStatus("down", "/dev/palm", "open", None)
    why = HealthNote("LINK_DOWN", "the session with the validator ended: unpaired")
    found = validator(replace(case, status=some_status(cable=down, health=(why,))))
    assert found.result is CheckResult.FAIL and "was refused: its key" in found.detail
    assert "palmctl cloud dbd add" in found.todo


def test_a_clock_before_the_device_was_registered(case: Case) -> None:
    class Early(SystemClock):
        def wall_ms(self) -> int:
            return 86_400_000

    assert clock(replace(case, clock=Early())).result is CheckResult.FAIL
    assert clock(case).result is CheckResult.OK  # without a network nothing sets it


def test_a_clock_before_what_the_service_signed_or_outside_every_window(case: Case) -> None:
    now_ms = SystemClock().wall_ms()
    assert case.trust is not None
    later = replace(case, trust=reread(case.trust, {"service_ms": now_ms + 3_600_000}))
    found = clock(later)
    assert found.result is CheckResult.FAIL
    assert "the service signed" in found.detail
    told = replace(case, status=some_status(service_time_ms=now_ms + 3_600_000))
    assert clock(told).result is CheckResult.FAIL
    (key,) = case.trust.dbd_keys
    ended = replace(key, not_after_ms=now_ms - 1, assumed=False)
    past = replace(case, trust=reread(case.trust, {"dbd_keys": [ended.to_obj()]}))
    assert "window" in clock(past).detail
    assert validator(past).result is CheckResult.SKIP, "the key counts all the same"


def test_a_server_that_is_away(device: Device, case: Case) -> None:
    from device.config.config import CloudSection

    away = replace(device.config, cloud=CloudSection("http://127.0.0.1:9", None))
    found = server(replace(case, config=away))
    assert found.result is CheckResult.FAIL and "does not answer" in found.detail
    assert server(case).result is CheckResult.OK  # none configured


@pytest.mark.parametrize(
    ("detail", "result"),
    [("online", CheckResult.OK), ("online, but gallery.deltas refused (bad_signature)", CheckResult.WARN)],
)
async def test_a_server_whose_answers_the_core_refuses(case: Case, detail: str, result: CheckResult) -> None:
    from device.config.config import CloudSection

    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    async with scripted([http(200, {}, Svc_Server_Time=time)]) as service:
        config = replace(case.settings, cloud=CloudSection(service.origin, None))
        status = some_status(cloud=CloudState(True, detail))
        found = await asyncio.to_thread(server, replace(case, config=config, status=status))
    assert found.result is result and (result is CheckResult.OK) == (detail not in found.detail)


@pytest.mark.parametrize(
    ("answer", "todo"),
    [
        (problem(401, "unauthenticated"), "whether it was revoked"),
        (problem(503, "unavailable", retryable=True), "look again in a minute"),
        (http(502, b"<html>", "text/html"), "look again in a minute"),
        (http(302, None, Location="/login"), "is not the service, or a proxy"),
    ],
)
async def test_a_service_that_is_down_is_none_that_has_revoked_the_device(
    case: Case, answer: bytes, todo: str
) -> None:
    from device.config.config import CloudSection

    time = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    async with scripted([http(200, {}, Svc_Server_Time=time), answer]) as service:
        config = replace(case.settings, cloud=CloudSection(service.origin, None))
        found = await asyncio.to_thread(server, replace(case, config=config))
    assert found.result is CheckResult.FAIL and todo in found.todo
    assert ("does not take this device" in found.detail) == ("revoked" in todo)


def test_a_server_that_trickles_is_given_up(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    given_up = threading.Event()

    def trickle(line: socket.socket) -> None:
        with line, contextlib.suppress(OSError):
            line.sendall(b"HTTP/1.1 200 OK\r\nX-Slow: ")
            while not given_up.wait(0.05):
                line.sendall(b"a")

    monkeypatch.setattr("device.doctor.service.WHOLE_S", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=lambda: trickle(listener.accept()[0]), daemon=True)
        answering.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        words = ["config", "set", "cloud.url", url, "--config", str(device.board.config_path)]
        assert CliRunner().invoke(main, words).exit_code == 0
        found = server(take_case(device.board.config_path, SystemClock()))
        given_up.set()
        answering.join(20)
    assert found.result is CheckResult.FAIL and f"{url} does not answer (timed out)" in found.detail


def test_a_factorys_chain(device: Device, case: Case, tmp_path: Path) -> None:
    def found(signer: str = "board.key") -> tuple[CheckResult, str]:
        section = AttestSection(tmp_path / "chain.pem", f"file:{tmp_path / signer}")
        finding = attest(replace(case, config=replace(device.config, attest=section)))
        return finding.result, finding.detail

    assert attest(case).result is CheckResult.SKIP  # none configured
    assert found()[0] is CheckResult.FAIL
    make_ca(tmp_path)
    make_board(tmp_path)
    result, detail = found()
    assert result is CheckResult.WARN and "not verified by the service" in detail
    assert case.keys is not None
    note_attested(device.config.device.state_dir, case.keys, SystemClock().wall_ms())
    assert found()[0] is CheckResult.OK
    (tmp_path / "other.key").write_bytes((tmp_path / "factory-ca.key").read_bytes())
    result, detail = found("other.key")
    assert result is CheckResult.FAIL and "another key" in detail
    late = replace(
        case,
        clock=LateClock(),
        config=replace(
            device.config, attest=AttestSection(tmp_path / "chain.pem", f"file:{tmp_path / 'board.key'}")
        ),
    )
    assert "expired" in attest(late).detail


class LateClock(SystemClock):
    """Twenty years on."""

    def wall_ms(self) -> int:
        return super().wall_ms() + 20 * 365 * 24 * 3600 * 1000


def test_telemetry_that_was_written(device: Device, case: Case) -> None:
    assert telemetry(case).result is CheckResult.OK
    (device.config.device.state_dir / ".cache" / "Microsoft").mkdir(parents=True)
    assert telemetry(case).result is CheckResult.FAIL


def test_units_are_looked_at_only_where_systemd_runs(machine: Case) -> None:
    assert sandbox(machine).result is CheckResult.SKIP


def test_a_process_in_the_network_of_the_machine_is_noticed(case: Case) -> None:
    for process, namespace in (("self", 1), ("7", 1), ("8", 2)):
        folder = case.system(f"/proc/{process}/ns")
        folder.mkdir(parents=True)
        (folder / "net").symlink_to(f"net:[{namespace}]")
    assert shares_network(case, "7")
    assert not shares_network(case, "8")
    assert not shares_network(case, "9"), "a process that has ended"
    assert not shares_network(case, "0")


def test_storage_and_gallery_without_a_daemon(case: Case) -> None:
    assert storage(case).result in (CheckResult.OK, CheckResult.WARN)
    assert gallery(case).result is CheckResult.SKIP


def test_one_check_that_stumbles_hides_no_other(machine: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    def stumble(_case: Case) -> None:
        raise ZeroDivisionError

    monkeypatch.setitem(CHECKS, "memory", stumble)
    found = examine(machine, ["memory", "wear"])
    assert list(found) == ["memory", "wear"]
    assert found["memory"].result is CheckResult.WARN and "ZeroDivisionError" in found["memory"].detail


def test_every_finding_that_is_not_fine_says_what_to_do(tmp_path: Path) -> None:
    bare = take_case(tmp_path / "device.toml", SystemClock(), tmp_path)
    found = examine(bare)
    assert set(found) == set(CHECKS) and set(CHECKS) > WITHOUT_CONFIGURATION
    assert found["configuration"].result is CheckResult.FAIL
    for finding in found.values():
        if finding.result in (CheckResult.WARN, CheckResult.FAIL):
            assert finding.todo


def test_a_check_that_cannot_be_made_is_not_fine(device: Device, case: Case) -> None:
    """Scripts ask for one check, and go by the exit code."""
    revoked = replace(case, status=some_status(health=(HealthNote("REVOKED", ""),)))
    assert list(examine(revoked, ["gallery"])) == ["provisioned", "gallery"]
    device.board.config_path.write_text("[device]\n")
    done = CliRunner().invoke(main, ["doctor", "camera", "--json", "--config", str(device.board.config_path)])
    findings = {found["name"]: found["result"] for found in json.loads(done.stdout)["findings"]}
    assert (done.exit_code, findings) == (1, {"configuration": "fail", "camera": "skip"})


@pytest.fixture
def at_work(device: Device) -> Iterator[Device]:
    with PtyPair() as pair, device.running():
        (device.folder / "cable").symlink_to(pair.left)

        async def joined() -> None:
            async with validator_at(pair.right, device.board) as other:
                await other.wait_serving()
                done = await asyncio.to_thread(
                    lambda: CliRunner().invoke(
                        main, ["doctor", "--json", "--config", str(device.board.config_path)]
                    )
                )
                device.folder.joinpath("told.json").write_text(done.stdout)

        asyncio.run(joined())
        yield device


def test_all_of_it_beside_a_daemon_at_work(at_work: Device) -> None:
    told = json.loads((at_work.folder / "told.json").read_text())
    results = {item["name"]: item["result"] for item in told["findings"]}
    good = ("configuration", "provisioned", "ownership", "daemon", "camera", "picture", "cable", "validator",
            "server", "gallery", "model", "telemetry")  # fmt: skip
    assert {name: results[name] for name in good} == dict.fromkeys(good, "ok"), told


def test_only_what_stops_recognition_is_named_as_the_reason(tmp_path: Path) -> None:
    device = make_device(tmp_path, fill_camera=False)
    with device.running():
        done = CliRunner().invoke(
            main, ["doctor", "daemon", "--json", "--config", str(device.board.config_path)]
        )
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["result"] == "fail" and "CAMERA_FAULT" in finding["detail"], finding
    assert "KEY_UNATTESTED" not in finding["detail"] and "LINK_DOWN" not in finding["detail"]


def test_a_gallery_that_could_not_be_opened_is_not_blamed_on_the_network(device: Device) -> None:
    shutil.rmtree(device.config.gallery_dir)
    device.config.gallery_dir.touch()
    with device.running():
        done = CliRunner().invoke(
            main, ["doctor", "gallery", "--json", "--config", str(device.board.config_path)]
        )
    (finding,) = json.loads(done.stdout)["findings"]
    assert (finding["result"], finding["todo"]) == ("fail", "palmctl status"), finding
