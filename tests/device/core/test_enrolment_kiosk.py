"""People enrol before `palmd` itself: a process with a camera, a terminal, a service that the test plays."""

import base64
import hashlib
import json
import os
import pty
import re
import select
import subprocess
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from device.errors import IpcRefused
from device.platform.ipc import ask_core
from tests.device.enrolment.enrolment_setting import (
    COMPLETED,
    SHORT_CODE,
    SILENCE,
    TOKEN,
    Person,
    Service,
    code_film,
    make_kiosk,
    palm,
    qr_code,
    redeemed,
)
from tests.device.state_scan import found_in_memory
from tests.device.whole_device import CAMERA_FPS, FRAMES_IN, WITHIN_S, Device, until
from tests.palmctl import PALMCTL


@dataclass
class Kiosk:
    """A running device, its service, and somebody before it."""

    device: Device
    service: Service
    person: Person
    process: subprocess.Popen[str]


@contextmanager
def running(device: Device) -> Iterator[Kiosk]:
    with device.running() as process, Service(device.config.carrier_socket).running() as service:
        person = Person(device)
        person.waits_until_ready()
        yield Kiosk(device, service, person, process)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kiosk]:
    with running(make_kiosk(tmp_path_factory.mktemp("kiosk"))) as kiosk:
        yield kiosk


@pytest.fixture
def kiosk(shared: Kiosk) -> Kiosk:
    """The running device with a new session, and nobody in the middle of anything."""
    shared.person.does("enrolment.cancel")
    shared.service.redeem, shared.service.enrol = redeemed(), COMPLETED
    shared.service.codes.clear()
    shared.service.bodies.clear()
    shared.service.taken.clear()
    return shared


def hands_of(body: dict[str, Any]) -> list[str]:
    return [item["hand"] for item in body["hands"]]


def test_a_code_from_the_keypad_the_terms_both_palms_and_the_upload(kiosk: Kiosk) -> None:
    begun_ms = time.time_ns() // 1_000_000
    program = kiosk.device.palmctl("enrol", "--code", "4f7k 9qrt", "--accept-terms", "v1", "--json")
    kiosk.person.shows_both()
    said, shown = program.communicate(timeout=WITHIN_S)
    assert (program.returncode, json.loads(said)) == (0, {"status": "completed", "code": None}), shown
    assert kiosk.service.codes == ["4F7K-9QRT"]
    (body,) = kiosk.service.bodies
    assert body["token"] == TOKEN
    assert hands_of(body) == ["L"] * 3 + ["R"] * 3
    assert [(item["purpose"], item["terms_version"], item["method"]) for item in body["consents"]] == [
        ("enrollment", "v1", "device_screen"),
        ("identification", "v1", "device_screen"),
    ]
    for consent in body["consents"]:
        assert begun_ms <= consent["accepted_at_ms"] <= time.time_ns() // 1_000_000
    assert "palma esquerda" in shown and "●" in shown


@pytest.mark.parametrize(("said", "code"), [("aceito", 0), ("talvez", 1)])
def test_the_terms_are_read_and_answered_on_a_terminal(kiosk: Kiosk, said: str, code: int) -> None:
    kiosk.service.redeem = redeemed(hands_required=["L"])
    master, slave = pty.openpty()
    command = [*PALMCTL, "enrol", "--code", "4F7K-9QRT"]
    program = subprocess.Popen(
        [*command, "--config", str(kiosk.device.board.config_path)], stdin=slave, stdout=slave, stderr=slave
    )
    os.close(slave)
    shown = read_until(master, "«aceito»?")
    assert "Lei Geral de Proteção de Dados" in shown
    assert "reconhecer você na catraca pela palma" in shown
    assert kiosk.person.state()["step"] == "consent"
    os.write(master, f"{said}\n".encode())
    if code == 0:
        read_until(master, "Mostre a palma esquerda")
        kiosk.person.shows("L")
        read_until(master, "Pronto!")
    else:
        read_until(master, "Nada foi capturado")
    assert program.wait(WITHIN_S) == code
    os.close(master)
    assert len(kiosk.service.bodies) == 1 - code


def test_the_guidance_takes_the_place_of_the_one_before_on_a_narrow_terminal(kiosk: Kiosk) -> None:
    kiosk.service.redeem = redeemed(hands_required=["L"])
    master, slave = pty.openpty()
    columns = 40
    termios.tcsetwinsize(slave, (24, columns))
    command = [*PALMCTL, "enrol", "--code", "4F7K-9QRT"]
    command += ["--accept-terms", "v1", "--config", str(kiosk.device.board.config_path)]
    program = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=os.environ | {"TERM": "vt100"}
    )
    os.close(slave)
    shown = read_until(master, "Mostre a palma esquerda")
    kiosk.person.shows("L")
    shown += read_until(master, "Pronto!")
    assert program.wait(WITHIN_S) == 0
    os.close(master)
    assert shown.count("Mostre a palma esquerda") > 1
    assert rows_of(shown, columns)[0] == "Pronto!"


def rows_of(shown: str, columns: int) -> list[str]:
    """What a terminal has on its screen (ECMA-48: cursor up, erase in display and in line)."""
    rows, row, column = [""], 0, 0
    for number, command, letter in re.findall(r"\x1b\[(\d*)([A-Za-z])|(.)", shown, re.DOTALL):
        match command or letter:
            case "A" if command:
                row -= int(number)
            case "J" if command:
                rows[row:] = [rows[row][:column]]
            case "K" if command:
                rows[row] = ""
            case "\r":
                column = 0
            case "\n":
                row += 1
            case _ if letter:
                if column == columns:
                    row, column = row + 1, 0
                rows += [""] * (row + 1 - len(rows))
                rows[row] = rows[row][:column].ljust(column) + letter + rows[row][column + 1 :]
                column += 1
        rows += [""] * (row + 1 - len(rows))
    return rows


def read_until(terminal: int, text: str) -> str:
    """Everything that is shown up to `text`."""
    shown, deadline = b"", time.monotonic() + WITHIN_S
    while text not in shown.decode(errors="ignore"):
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, shown.decode(errors="replace")
        shown += os.read(terminal, 4096)
    return shown.decode(errors="ignore")


def test_nothing_is_captured_before_the_terms_are_accepted(kiosk: Kiosk) -> None:
    kiosk.person.types()
    kiosk.person.waits_for_step("consent")
    kiosk.device.show(palm(41, "L"))
    time.sleep(len(palm(41, "L")) / CAMERA_FPS)
    assert kiosk.person.state()["step"] == "consent"
    kiosk.person.does("enrolment.refuse")
    assert kiosk.person.waits_for_step("failed")["code"] == "consent_refused"
    assert kiosk.service.bodies == []


@pytest.mark.parametrize(
    ("version", "purposes", "code"),
    [
        ("v2", ["enrollment", "identification"], "other_terms"),
        ("v1", ["enrollment"], "other_purposes"),
        ("v1", ["enrollment", "identification", "dataset_collection"], "other_purposes"),
    ],
)
def test_only_what_stands_on_the_screen_can_be_accepted(
    kiosk: Kiosk, version: str, purposes: list[str], code: str
) -> None:
    kiosk.person.types()
    kiosk.person.waits_for_step("consent")
    with pytest.raises(IpcRefused) as refused:
        ask_core(kiosk.device.control_socket, "enrolment.accept", terms_version=version, purposes=purposes)
    assert refused.value.code == code
    assert kiosk.person.state()["step"] == "consent"


def test_training_data_is_asked_for_where_the_session_says_so(kiosk: Kiosk) -> None:
    kiosk.service.redeem = redeemed(dataset_collection=True, hands_required=["R"])
    kiosk.person.types()
    assert kiosk.person.waits_for_step("consent")["optional"] == ["dataset_collection"]
    kiosk.person.accepts("dataset_collection")
    kiosk.person.shows("R")
    kiosk.person.waits_for_step("done")
    (body,) = kiosk.service.bodies
    assert [item["purpose"] for item in body["consents"]] == [
        "enrollment",
        "identification",
        "dataset_collection",
    ]
    assert hands_of(body) == ["R"] * 3


def test_a_qr_code_brings_the_terms_of_the_registration(kiosk: Kiosk) -> None:
    kiosk.person.holds_code("5b4e28ba-2fa1-41d2-883f-0016d3cca427")
    assert kiosk.person.waits_for_step("consent")["terms_version"] == "v1"
    kiosk.person.accepts()
    kiosk.service.enrol = (202, "", {"status": "review"})
    kiosk.person.shows_both()
    kiosk.person.waits_for_step("review")


def test_a_palm_that_resembles_anothers_is_shown_as_held_for_review(kiosk: Kiosk) -> None:
    kiosk.service.enrol = (202, "", {"status": "review"})
    kiosk.service.redeem = redeemed(hands_required=["L"])
    program = kiosk.device.palmctl(
        "enrol", "--code", "4F7K9QRT", "--accept-terms", "v1", "--json", "--language", "en"
    )
    kiosk.person.shows("L")
    said, shown = program.communicate(timeout=WITHIN_S)
    assert (program.returncode, json.loads(said)["status"]) == (0, "review")
    assert "attendant will check" in shown


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        ((403, "enrollment_session_invalid", {}), "enrollment_session_invalid"),
        ((429, "rate_limited", {}), "rate_limited"),
        ((0, "unreachable", {}), "unreachable"),
        ((200, "", {"surprise": True}), "unreadable_answer"),
        (redeemed(terms_version="v9"), "terms_unknown"),
    ],
)
def test_a_code_that_leads_to_no_session(kiosk: Kiosk, answer: Any, code: str) -> None:
    kiosk.service.redeem = answer
    program = kiosk.device.palmctl("enrol", "--code", "4F7K-9QRT", "--accept-terms", "v1", "--json")
    said, _ = program.communicate(timeout=WITHIN_S)
    assert (program.returncode, json.loads(said)) == (1, {"status": "failed", "code": code})


def test_what_is_in_progress_is_cancelled_and_nothing_else(kiosk: Kiosk) -> None:
    def cancelled() -> tuple[int, dict[str, Any]]:
        done = kiosk.device.palmctl("enrol", "--cancel", "--json")
        said, _ = done.communicate(timeout=WITHIN_S)
        return done.returncode, json.loads(said)

    assert cancelled() == (1, {"status": "refused", "code": "idle"})
    kiosk.person.types()
    kiosk.person.waits_for_step("consent")
    assert cancelled() == (0, {"status": "cancelled", "code": None})


def test_wrong_use_is_told_apart(kiosk: Kiosk) -> None:
    no_terminal = kiosk.device.palmctl("enrol", "--code", "4F7K-9QRT")
    assert "--accept-terms" in no_terminal.communicate(timeout=WITHIN_S)[1]
    assert no_terminal.returncode == 2
    no_code = kiosk.device.palmctl("enrol", "--code", "soon", "--accept-terms", "v1", "--json")
    printed, said = no_code.communicate(timeout=WITHIN_S)
    assert json.loads(printed) == {"status": "refused", "code": "not_a_code"}
    assert said.startswith("palmctl: ") and "8 letters and digits" in said
    kiosk.person.types()
    kiosk.person.waits_for_step("consent")
    second = kiosk.device.palmctl("enrol", "--code", "4F7K-9QRT", "--accept-terms", "v1", "--json")
    assert json.loads(second.communicate(timeout=WITHIN_S)[0]) == {"status": "refused", "code": "busy"}
    assert kiosk.person.state()["step"] == "consent"


def test_ctrl_c_cancels_on_the_device_too(kiosk: Kiosk) -> None:
    program = kiosk.device.palmctl("enrol", "--code", "4F7K-9QRT", "--accept-terms", "v1")
    kiosk.person.waits_for_step("show_hand")
    program.send_signal(2)
    program.communicate(timeout=WITHIN_S)
    assert program.returncode == 130
    assert kiosk.person.state() == {"step": "failed", "code": "cancelled"}


def test_a_camera_that_fails_is_said_to_the_person_and_the_enrolment_goes_on_when_it_is_back(
    tmp_path: Path,
) -> None:
    with running(make_kiosk(tmp_path)) as kiosk:
        kiosk.service.redeem = redeemed(hands_required=["L"])
        program = kiosk.device.palmctl("enrol", "--code", "4F7K-9QRT", "--accept-terms", "v1", "--json")
        kiosk.person.waits_for_step("show_hand")
        (tmp_path / "camera").rename(tmp_path / "unplugged")
        assert program.stderr is not None
        assert any(line.startswith("Fora de serviço") for line in program.stderr)
        (tmp_path / "unplugged").rename(tmp_path / "camera")
        kiosk.person.waits_until_ready()
        kiosk.person.shows("L")
        said, shown = program.communicate(timeout=WITHIN_S)
        assert json.loads(said)["status"] == "completed"
        assert shown.startswith("Mostre a palma esquerda")


def test_a_camera_that_fails_while_a_code_is_awaited_is_said(tmp_path: Path) -> None:
    with running(make_kiosk(tmp_path)) as kiosk:
        program = kiosk.device.palmctl("enrol", "--accept-terms", "v1")
        assert program.stderr is not None
        camera, unplugged = tmp_path / "camera", tmp_path / "unplugged"
        assert program.stderr.readline().startswith("Mostre à câmera")
        camera.rename(unplugged)
        assert program.stderr.readline().startswith("Fora de serviço")
        unplugged.rename(camera)
        assert program.stderr.readline().startswith("Mostre à câmera")
        program.send_signal(2)
        assert program.wait(WITHIN_S) == 130


def test_vectors_are_gone_from_memory_once_the_service_has_them(kiosk: Kiosk) -> None:
    kiosk.service.enrol = SILENCE
    kiosk.service.redeem = redeemed(hands_required=["R"])
    kiosk.person.types()
    kiosk.person.accepts()
    kiosk.person.shows("R")
    assert kiosk.service.taken.wait(WITHIN_S)
    needles = vectors_in(kiosk.service.bodies[0])
    assert any(found_in_memory(kiosk.process.pid, needles))
    kiosk.service.enrol = COMPLETED
    kiosk.person.waits_for_step("done")
    are_gone_from_memory(kiosk.process.pid, needles)


def test_an_upload_that_is_given_up_is_overwritten(kiosk: Kiosk) -> None:
    kiosk.service.enrol = SILENCE
    kiosk.service.redeem = redeemed(hands_required=["L"])
    kiosk.person.types()
    kiosk.person.accepts()
    kiosk.person.shows("L")
    assert kiosk.service.taken.wait(WITHIN_S)
    needles = vectors_in(kiosk.service.bodies[0])
    kiosk.person.does("enrolment.cancel")
    assert kiosk.person.waits_for_step("failed")["code"] == "cancelled"
    are_gone_from_memory(kiosk.process.pid, needles)


def are_gone_from_memory(pid: int, needles: list[bytes]) -> None:
    """The screen changes before what is in other threads' hands is overwritten."""
    deadline = time.monotonic() + WITHIN_S
    while any(found := found_in_memory(pid, needles)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)


def vectors_in(body: dict[str, Any]) -> list[bytes]:
    """A stretch of each vector, as numbers and as base64."""
    texts = [str(item["vector_b64"]) for item in body["hands"]]
    return [part for text in texts for part in (base64.b64decode(text)[999:1047], text[1332:1396].encode())]


STEPS = ("consent", "one palm captured", "between the hands", "on its way", "acknowledged")


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_is_forgotten_whole(tmp_path: Path, step: str) -> None:
    device = make_kiosk(tmp_path)
    with running(device) as kiosk:
        before = contents(device)
        go_to(kiosk, step)
        kiosk.process.kill()
        kiosk.process.wait()
        bodies = list(kiosk.service.bodies)
    assert contents(device) == before
    for body in bodies:
        for needle in vectors_in(body):
            for path in device.folder.rglob("*"):
                assert not path.is_file() or needle not in path.read_bytes()
    if step == "on its way":
        with running(device) as kiosk:
            assert kiosk.person.state() == {"step": "idle"}
            assert kiosk.service.bodies == []


def go_to(kiosk: Kiosk, step: str) -> None:
    person = kiosk.person
    if step in ("on its way", "acknowledged"):
        kiosk.service.redeem = redeemed(hands_required=["L"])
    person.types()
    if step == "consent":
        person.waits_for_step("consent")
        return
    person.accepts()
    if step == "one palm captured":
        person.waits_for_step("show_hand")
        for picture in palm(41, "L")[: FRAMES_IN + CAMERA_FPS]:  # the last of them stays
            kiosk.device.writer.put(picture)
        person.waits_for(lambda state: state.get("captured", 0) > 0 or state["step"] == "remove_hand")
        return
    if step == "on its way":
        kiosk.service.enrol = SILENCE
    person.shows("L")
    if step == "between the hands":
        person.waits_for(lambda state: state.get("hand") == "R")
    elif step == "on its way":
        assert kiosk.service.taken.wait(WITHIN_S)
    else:
        person.waits_for_step("done")


def contents(device: Device) -> dict[str, str]:
    """Everything durable, by its digest."""
    state = device.config.device.state_dir
    return {
        str(path.relative_to(state)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(state.rglob("*"))
        # But SQLite's index of its log, and room that the journal sets aside while it starts.
        if path.is_file() and not path.name.endswith("-shm") and ".reserve" not in path.name
    }


def test_where_people_agree_elsewhere_nothing_is_asked_here(tmp_path: Path) -> None:
    with running(make_kiosk(tmp_path, consent="service")) as kiosk:
        kiosk.service.enrol = (422, "consent_required", {})
        kiosk.service.redeem = redeemed(hands_required=["L"])
        kiosk.person.types()
        kiosk.person.shows("L")
        assert kiosk.person.waits_for_step("failed")["code"] == "consent_required"
        assert kiosk.service.bodies[0]["consents"] == []


async def test_a_device_without_network_takes_no_codes(tmp_path: Path) -> None:
    """Neither typed nor shown: what it captured would reach no service, and the gate would see no hand."""
    device = make_kiosk(tmp_path, consent="service", has_cloud=False)
    with device.running():
        with pytest.raises(IpcRefused) as refused:
            ask_core(device.control_socket, "enrolment.begin", short_code=SHORT_CODE)
        assert refused.value.code == "no_network"
        told = ask_core(device.control_socket, "enrolment.state", after=0, wait_ms=0).header
        assert "no [cloud]" in told["unready"]
        seen = device.status().camera.examined
        with device.hand(code_film(qr_code("5b4e28ba-2fa1-41d2-883f-0016d3cca427"))):
            await until(lambda: device.status().camera.examined > seen + 30)
        assert Person(device).state()["step"] == "idle"
