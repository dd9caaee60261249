"""One string makes a board a device: `palmctl cloud device invite` at a real server over TLS, and
`palmctl provision` with what it printed, typed, piped, or held before the camera."""

import json
import os
import pty
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from click.testing import CliRunner

from device.config.config import load_config
from device.provisioning.invitation import Invitation, read_invitation
from device.trust.trust import load_trust
from models.frames import CameraFrame
from models.qr import read_qr
from tests.authorities import Authority
from tests.palmctl import PALMCTL, printed, ran
from tests.until import until
from tools.cloud.pack_invitation import pack_invitation
from tools.palmctl.camera_string import confinement
from tools.palmctl.main import main


@dataclass(frozen=True)
class Service:
    """The reference server of a tenant, over TLS with an authority of its own."""

    data: Path
    url: str
    tenant: str
    root_kid: str
    authority: Authority

    def invite(self, device_id: str, *more: str) -> list[str]:
        return [
            *("cloud", "device", "invite", "--data", str(self.data), "--tenant", self.tenant),
            *("--mode", "live", "--device-id", device_id, "--gate-id", "gate-7", "--dbd-id", "dbd-7"),
            *("--url", self.url, "--ca-file", str(self.authority.file), *more),
        ]

    def string(self, device_id: str, *more: str) -> str:
        return str(printed(*self.invite(device_id, *more))["string"])


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("service")
    authority = Authority.made(folder, "authority")
    cert, key = authority.server()
    data = ("--data", str(folder / "cloud"), "--json")
    tenant = printed("cloud", "tenant", "create", "Metro", *data)["tenant_id"]
    serve = [*PALMCTL, "cloud", "serve", *data, "--port", "0", "--no-admin"]
    with subprocess.Popen(
        [*serve, "--tls-cert", str(cert), "--tls-key", str(key)], stdout=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        url = json.loads(server.stdout.readline())["url"]
        root_kid = printed("cloud", "root", "show", *data)["kid"]
        yield Service(folder / "cloud", url, tenant, root_kid, authority)
        server.terminate()
        server.wait(30)


def on_board(folder: Path, *way: str, given: str = "") -> "subprocess.CompletedProcess[str]":
    """`palmctl provision` in a process of its own, its files in `folder`."""
    return ran("provision", *way, *places(folder), input=given, timeout_s=100)


def places(folder: Path) -> list[str]:
    return [
        *("--config", str(folder / "etc/device.toml"), "--state-dir", str(folder / "state")),
        *("--runtime-dir", str(folder / "run")),
    ]


def refused(folder: Path, way: str, given: str, monkeypatch: pytest.MonkeyPatch) -> tuple[int, str]:
    """As `on_board`, in this process; the service is asked once."""
    monkeypatch.setattr("device.provisioning.online.TRY_FOR_S", 0.0)
    done = CliRunner().invoke(main, ["provision", way, *places(folder)], input=given)
    return done.exit_code, done.stderr


def test_the_string_alone_makes_a_device_that_believes_this_service(service: Service, tmp_path: Path) -> None:
    string = service.string("gate-7-left", "--passage-sensor")
    done = on_board(tmp_path, "--string-stdin", "--json", "--camera", "/dev/video2", given=string + "\n")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["root_kid"] == service.root_kid
    config = load_config(tmp_path / "etc/device.toml")
    assert config.cloud is not None and config.cloud.url == service.url
    assert (config.device.id, config.device.gate_id, config.device.dbd_id) == (
        "gate-7-left",
        "gate-7",
        "dbd-7",
    )
    assert config.camera.source == "/dev/video2"
    assert load_trust(config.trust_path).passage_sensor
    doctor = CliRunner().invoke(main, ["doctor", "server", "--config", str(tmp_path / "etc/device.toml")])
    assert "✓ server" in doctor.stdout, doctor.output
    token = read_invitation(string).token
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert [path for path in kept if token.encode() in path.read_bytes()] == []
    assert token not in done.stderr + done.stdout
    again = on_board(tmp_path, "--string-stdin", given=string)
    assert again.returncode == 0, "the same string goes on where an interruption stopped it"


def test_the_board_takes_what_the_operators_command_printed(service: Service, tmp_path: Path) -> None:
    invited = CliRunner().invoke(main, service.invite("gate-9-left"))
    assert len(invited.stdout.splitlines()) > 1
    as_saved = "\ufeff" + invited.stdout.replace("\n", "\r\n")  # by an editor of Windows
    done = on_board(tmp_path, "--string-stdin", "--json", given=as_saved)
    assert done.returncode == 0, done.stderr
    assert load_config(tmp_path / "etc/device.toml").device.id == "gate-9-left"


@pytest.mark.parametrize(("stream", "exit_code"), [("stdout", 1), ("stderr", 0)])
def test_output_that_cannot_be_written_costs_the_device_nothing(
    service: Service, tmp_path: Path, stream: str, exit_code: int
) -> None:
    string = service.string(f"gate-mute-{stream}")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*PALMCTL, "provision", "--string-stdin", *places(tmp_path)],
            input=string, text=True, check=False, timeout=100,
            stdout=full if stream == "stdout" else subprocess.PIPE,
            stderr=full if stream == "stderr" else subprocess.PIPE,
        )  # fmt: skip
    assert done.returncode == exit_code, done.stderr
    cloud = load_config(tmp_path / "etc/device.toml").cloud
    assert cloud is not None and cloud.ca_file is not None and cloud.ca_file.exists()


def test_typed_at_a_terminal_it_is_not_shown(service: Service, tmp_path: Path) -> None:
    string = service.string("gate-typed")
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PALMCTL, "provision", "--string-stdin", *places(tmp_path)],
        stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True,
    ) as board:  # fmt: skip
        os.close(theirs)
        shown = _until(ours, "string: ")
        os.write(ours, string.encode() + b"\n")
        shown += _until(ours, "")
        assert board.wait(60) == 0, shown
    os.close(ours)
    assert "is a device of tenant" in shown
    assert string[:40] not in shown and string[-40:] not in shown


def _until(terminal: int, wanted: str) -> str:
    """What is shown there up to `wanted`, or to the end of the program."""
    shown = b""
    while not wanted or wanted.encode() not in shown:
        try:
            shown += os.read(terminal, 4096)
        except OSError:
            break
    return shown.decode()


def test_the_operators_terminal_shows_a_code_that_a_board_reads(service: Service) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*PALMCTL, *service.invite("gate-shown")],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"},
    ) as operator:  # fmt: skip
        os.close(theirs)
        shown = _until(ours, "")
        assert operator.wait(60) == 0, shown
    os.close(ours)
    lines = [
        line.split("\x1b[30;107m")[1].split("\x1b[0m")[0] for line in shown.splitlines() if "\x1b[30" in line
    ]
    halves = {"█": (0, 0), "▀": (0, 255), "▄": (255, 0), " ": (255, 255)}
    rows = [[halves[half][row] for half in line] for line in lines for row in (0, 1)]
    code = np.asarray(rows, dtype=np.uint8).repeat(6, axis=0).repeat(6, axis=1)
    string = read_qr(CameraFrame.from_pixels(code))
    assert string is not None and f"string: {string}" in shown.replace("\r", "")


def picture(text: str) -> "np.ndarray[Any, np.dtype[np.uint8]]":
    """A code on paper before a camera of 640 x 480, a little turned."""
    code = cv2.resize(
        cv2.QRCodeEncoder.create().encode(text), None, fx=6, fy=6, interpolation=cv2.INTER_NEAREST
    )
    scene = np.full((480, 640), 90, dtype=np.uint8)
    side = code.shape[0]
    scene[20 : 20 + side, 60 : 60 + side] = code
    turned = cv2.warpAffine(
        scene, cv2.getRotationMatrix2D((300.0, 240.0), 4.0, 1.0), (640, 480), borderMode=cv2.BORDER_REPLICATE
    )
    return np.asarray(cv2.GaussianBlur(turned, (3, 3), 0), dtype=np.uint8)


def test_held_before_the_camera_among_other_codes(service: Service, tmp_path: Path) -> None:
    string = service.string("gate-seen")
    # The reader is not this user: it sees what every user may see.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="palm-codes-") as name:
        Path(name).chmod(0o755)
        for number, text in enumerate(("https://other.example", "PAL", string)):
            cv2.imwrite(str(Path(name, f"{number}.png")), picture(text))
        done = on_board(tmp_path, "--string-camera", "--camera", f"file:{name}", "--camera-fps", "10")
    assert done.returncode == 0, done.stderr
    assert "hold the QR code before" in done.stderr
    assert load_config(tmp_path / "etc/device.toml").device.id == "gate-seen"


def test_a_camera_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    done = on_board(tmp_path, "--string-camera", "--camera", "/dev/video99")
    assert done.returncode == 1
    assert "/dev/video99" in done.stderr and "--string-stdin" in done.stderr
    assert not (tmp_path / "state").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give privileges away")
def test_the_process_that_sees_the_code_may_do_nothing() -> None:
    look = (
        "import os, socket; print(*[line.split()[1] for line in open('/proc/self/status') "
        "if line.startswith(('Uid', 'CapEff', 'CapBnd', 'NoNewPrivs'))], *os.getgroups(), "
        "*[name for _, name in socket.if_nameindex()])"
    )
    done = subprocess.run(
        [*confinement("file:/nowhere"), sys.executable, "-I", "-c", look],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["65534", "0" * 16, "0" * 16, "1", "lo"]


def test_a_command_that_is_killed_leaves_the_camera_free(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="palm-codes-") as name:
        Path(name).chmod(0o755)
        cv2.imwrite(str(Path(name, "0.png")), picture("https://other.example"))
        words = ("provision", "--string-camera", "--camera", f"file:{name}", "--state-dir", str(tmp_path))
        with subprocess.Popen(
            [*PALMCTL, *words, "--config", str(tmp_path / "device.toml")],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        ) as command:  # fmt: skip
            children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
            until(lambda: "string_reader" in "".join(map(words_of, children.read_text().split())))
            reader = children.read_text().strip()
            command.kill()
        until(lambda: "string_reader" not in words_of(reader))


def test_a_reader_whose_command_ended_before_it_began_ends_too(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "0.png"), picture("https://other.example"))
    words = ("device.provisioning.string_reader", f"file:{tmp_path}", "10", str(os.getppid()))
    done = subprocess.run(
        [sys.executable, "-I", "-m", *words], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1 and done.stderr == "the command that asked for the code has ended\n"


def words_of(pid: str) -> str:
    """The command line of a process; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def test_an_expired_token_is_said_to_be_expired(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    string = service.string("gate-late", "--expires-in-s", "1")
    time.sleep(2.1)
    code, said = refused(tmp_path, "--string-stdin", string, monkeypatch)
    assert code == 1
    assert "expired at" in said and "palmctl cloud device invite" in said
    assert not (tmp_path / "etc/device.toml").exists()


def test_a_service_with_another_root_gets_no_device(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said_by = read_invitation(service.string("gate-misled"))
    code, said = refused(
        tmp_path, "--string-stdin", pack_invitation(replace(said_by, root_kid="0" * 32)), monkeypatch
    )
    assert code == 1
    assert f"expected the service root {'0' * 32}, found the service's: {service.root_kid}" in said
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [], (
        "no key, no trust, no configuration"
    )


def test_a_device_with_another_root_is_not_moved(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    string = service.string("gate-settled")
    assert on_board(tmp_path, "--string-stdin", given=string).returncode == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = replace(read_invitation(string), root_kid="0" * 32, authority=b"")
    code, said = refused(tmp_path, "--string-stdin", pack_invitation(other), monkeypatch)
    assert code == 1 and "the one pinned here" in said
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_device_is_not_moved_by_another_string(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(tmp_path, "--string-stdin", service.string("gate-moved"), monkeypatch)[0] == 0
    pinned = [tmp_path / name for name in ("etc/device.toml", "state/trust.json")]
    before = [path.read_bytes() for path in pinned]
    elsewhere = service.string("gate-moved", "--gate-id", "gate-9")
    code, said = refused(tmp_path, "--string-stdin", elsewhere, monkeypatch)
    assert code == 1 and "device.gate_id differs" in said
    assert "to move a device run `palmctl factory-reset`" in said
    assert [path.read_bytes() for path in pinned] == before


def test_a_server_of_another_authority_is_not_believed(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Authority.made(tmp_path, "authority")
    (tmp_path / "board").mkdir()
    said_by = replace(read_invitation(service.string("gate-x")), authority=other.packed())
    code, said = refused(tmp_path / "board", "--string-stdin", pack_invitation(said_by), monkeypatch)
    assert code == 3, said
    assert "--ca-file" in said and "clock" in said and "when the service answers" not in said
    assert list(tmp_path.joinpath("board/etc").iterdir()) == []


@pytest.mark.parametrize(
    "way",
    [
        ("--string-stdin", "--string-camera"),
        ("--string-stdin", "--token-stdin"),
        ("--string-camera", "--offline-bundle", "stick.json"),
        ("--string-stdin", "--server", "https://cloud.example"),
        ("--string-stdin", "--device-id", "gate-7-left"),
    ],
)
def test_two_ways_at_once_are_wrong_usage(way: tuple[str, ...], tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["provision", *way, *places(tmp_path)])
    assert done.exit_code == 2
    assert not (tmp_path / "state").exists()


def test_without_a_way_all_of_them_are_said(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["provision", *places(tmp_path)])
    assert done.exit_code == 2
    for way in ("--string-stdin", "--string-camera", "--token-stdin", "--offline-bundle"):
        assert way in done.stderr


def test_what_a_board_would_refuse_the_operator_is_told(service: Service) -> None:
    for wrong in (
        ("--url", "http://cloud.example"),
        ("--url", "https://cloud..example"),
        ("--url", "https://cloud. example"),
        ("--url", "https://xn--.example"),
        ("--gate-id", "a gate"),
        ("--ca-file", __file__),
    ):
        done = CliRunner().invoke(main, [*service.invite("gate-9"), *wrong])
        assert done.exit_code in (1, 2) and wrong[0] in done.stderr, done.output


def test_an_authority_too_large_for_a_code_is_told(service: Service, tmp_path: Path) -> None:
    large = Authority.made(tmp_path, "large", path_length=1)
    told = printed(*service.invite("gate-10", "--ca-file", str(large.file)))
    said: Invitation = read_invitation(told["string"])
    assert said.authority == large.packed() and len(told["string"]) > 512
