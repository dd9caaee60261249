"""`palmctl update` where something is in its way, and release files that are none."""

import errno
import json
import os
import socket
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from device.platform.ipc import Packet
from device.updates.archive import MODEL_LIMITS, unpack
from device.updates.manifest import ReleaseKind, read_manifest
from device.values.control import UpdatesAnswer
from device.values.status import (
    FailedRelease,
    ModelOnDisk,
    ModelStatus,
    ReceivingStatus,
    ReportedRelease,
    UpdatesInForce,
    UpdatesStatus,
)
from link1.keys import PublicKey
from models.manifest import load_manifest, shipped_model_dir
from tests.palmctl import printed
from tests.republished import republish
from tools.cloud.pack_release import give_name, manifest_obj, pack_app, write_release
from tools.palmctl.commands.update import under_way
from tools.palmctl.errors import ReleaseError
from tools.palmctl.main import main
from tools.palmctl.release_file import MAGIC, read_release

PAYLOAD = bytes(1000)


def release_file(folder: Path, kind: ReleaseKind = ReleaseKind.MODEL) -> Path:
    obj = manifest_obj(
        PAYLOAD,
        kind=kind,
        name="palm",
        version="1",
        min_app_version="0",
        release_seq=1,
        chunk_bytes=300,
    )
    path = folder / "release.palm"
    write_release(path, {"manifest_obj": obj}, PAYLOAD)
    return path


def configured(folder: Path) -> Path:
    config = folder / "device.toml"
    config.write_text(
        '[device]\nid = "a"\ngate_id = "b"\ndbd_id = "c"\n'
        f'state_dir = "{folder}"\nruntime_dir = "{folder}"\n'
        '[camera]\nsource = "/dev/video0"\n[link]\nport = "/dev/ttyACM0"\n'
    )
    return config


def test_a_release_file_reads_back_chunk_by_chunk(tmp_path: Path) -> None:
    release = read_release(release_file(tmp_path))
    assert [len(chunk) for _, chunk in release.chunks()] == [300, 300, 300, 100]


@pytest.mark.parametrize(
    "content", [b"", b"PALM", MAGIC, MAGIC + b"\xff\xff\xff\xff", MAGIC + b"\x00\x00\x00\x02{}", b"%PDF" * 99]
)
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(ReleaseError, match="no release file"):
        read_release(path)


@pytest.mark.parametrize("command", [("update", "apply"), ("model", "install")])
def test_a_manifest_without_a_member_is_refused_before_anything_is_asked(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    path = tmp_path / "release.palm"
    write_release(path, {"manifest_obj": {"v": 1, "size": len(PAYLOAD)}}, PAYLOAD)
    done = CliRunner().invoke(main, [*command, str(path)])
    assert done.exit_code == 1
    assert "no release file" in done.stderr


def test_a_file_that_was_copied_in_part_is_refused(tmp_path: Path) -> None:
    path = release_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ReleaseError, match="copy it again"):
        read_release(path)


def test_a_file_that_was_copied_badly_is_refused_before_a_device_has_it_as_failed(tmp_path: Path) -> None:
    path = release_file(tmp_path)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ReleaseError, match="another payload than is announced; copy it again"):
        read_release(path)


@pytest.mark.parametrize("command", [("update", "apply"), ("model", "install")], ids=" ".join)
@pytest.mark.parametrize(("failed_seq", "exit_code"), [(1, 1), (2, 0)])
def test_a_release_that_has_failed_is_exit_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    failed_seq: int,
    exit_code: int,
) -> None:
    told = UpdatesStatus(
        usable=True,
        software="0.1.0",
        state=UpdatesInForce(
            release_seq=failed_seq,
            receiving=None,
            app_waiting=None,
            model=ModelStatus("palm", 0, on_trial=False, waiting=None, previous=None),
            failed=FailedRelease(failed_seq, "model", "1", "digest"),
        ),
    )

    def answer(*_args: object, **_members: object) -> Packet:
        return Packet(UpdatesAnswer(told).to_obj())

    monkeypatch.setattr("tools.palmctl.commands.update.ask_core", answer)
    place = ["--config", str(configured(tmp_path))]
    done = CliRunner().invoke(main, [*command, str(release_file(tmp_path)), *place, "--json"])
    assert (done.exit_code, json.loads(done.stdout)) == (exit_code, told.to_obj()), done.stderr


class TakesChunks:
    """In the place of a connection to palmd."""

    @classmethod
    async def connect(cls, _socket: Path) -> "TakesChunks":
        return cls()

    async def call(self, *_words: object, **_members: object) -> None:
        """Palmd acknowledges the chunks of another release as well."""

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("kept", "exit_code"),
    [((1, "verified"), 0), ((1, "withdrawn"), 1), ((2, "receiving"), 1)],
    ids=["taken", "withdrawn", "replaced"],
)
def test_a_release_that_another_one_replaced_meanwhile_was_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: tuple[int, str], exit_code: int
) -> None:
    release_seq, state = kept
    before = UpdatesInForce(
        release_seq=1,
        receiving=ReceivingStatus(1, "model", "palm", "1", chunks=0, chunk_count=4, size=len(PAYLOAD)),
        app_waiting=None,
        model=ModelStatus("palm", 0, on_trial=False, waiting=None, previous=None),
        failed=None,
    )
    releases = (ReportedRelease("model", "palm", release_seq, state),)
    after = replace(before, release_seq=release_seq, receiving=None, releases=releases)
    answers = iter((before, after))

    def answer(*_args: object, **_members: object) -> Packet:
        told = UpdatesStatus(usable=True, software="0.1.0", state=next(answers))
        return Packet(UpdatesAnswer(told).to_obj())

    monkeypatch.setattr("tools.palmctl.commands.update.ask_core", answer)
    monkeypatch.setattr("tools.palmctl.commands.update.IpcClient", TakesChunks)
    place = ["--config", str(configured(tmp_path))]
    done = CliRunner().invoke(main, ["update", "apply", str(release_file(tmp_path)), *place])
    assert (done.exit_code, "was not taken" in done.stderr) == (exit_code, exit_code == 1), done.output


@pytest.mark.parametrize(
    ("model_id", "text"),
    [("palm", "takes effect when no one passes"), ("palm-2", "for its gallery epoch")],
)
def test_only_another_model_waits_for_a_gallery_epoch(model_id: str, text: str) -> None:
    waiting = ModelOnDisk(2, "1", model_id)
    state = UpdatesInForce(
        release_seq=2,
        receiving=None,
        app_waiting=None,
        model=ModelStatus("palm", 0, on_trial=False, waiting=waiting, previous=None),
        failed=None,
    )
    assert under_way(state) == [("waiting", f"model {model_id}, release 2: {text}")]


def software(folder: Path) -> None:
    """The least that can be released."""
    (folder / "bin").mkdir(parents=True)
    (folder / "VERSION").write_text("1.0")
    (folder / "bin" / "palmd").write_text("")


def test_a_folder_that_is_no_software_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseError, match="no installed software"):
        pack_app(tmp_path)
    software(tmp_path)
    (tmp_path / "away").symlink_to("/etc")
    with pytest.raises(ReleaseError, match="is a link"):
        pack_app(tmp_path)


def test_a_folder_that_cannot_be_read_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    software(tmp_path)
    (tmp_path / "lib").mkdir()
    listed = os.scandir

    def denied(path: str) -> Any:
        if Path(path).name == "lib":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listed(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(PermissionError, match="lib"):
        pack_app(tmp_path)


def test_a_release_file_is_on_the_stick_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a stick that is pulled out after the command has ended would hold an empty file of that name."""
    software(tmp_path / "software")
    data, stick = ("--data", str(tmp_path / "cloud")), tmp_path / "stick"
    stick.mkdir()
    place = ("--tenant", printed("cloud", "tenant", "create", "Metro", *data)["tenant_id"], "--mode", "test")
    synced: list[list[str]] = []
    sync = os.fsync

    def noted(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().is_relative_to(stick):
            synced.append([path.name for path in stick.iterdir()])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    kind = ("--kind", "app", "--from", str(tmp_path / "software"), "--out", str(stick / "palm"))
    assert CliRunner().invoke(main, ["cloud", "release", "create", *place, *data, *kind]).exit_code == 0
    assert synced == [["palm.part"], ["palm"]]

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="other"):
        give_name(stick / "palm", stick / "other")


def test_the_operator_makes_a_release_that_a_device_of_this_service_believes(tmp_path: Path) -> None:
    republish(shipped_model_dir(), "palm-next", tmp_path / "model")

    def operate(*arguments: str) -> Any:
        return printed("cloud", *arguments, "--data", str(tmp_path / "cloud"))

    place = ("--tenant", operate("tenant", "create", "Metro")["tenant_id"], "--mode", "test")
    stick = tmp_path / "palm.palm"
    told = operate(
        "release", "create", *place, "--kind", "model", "--from", str(tmp_path / "model"), "--out", str(stick)
    )
    root = PublicKey.from_b64(operate("root", "show")["pub_b64"])
    release = read_release(stick)
    manifest = read_manifest(release.manifest.wrapper, roots=[root], now_ms=time.time_ns() // 1_000_000)
    assert (manifest.release_seq, manifest.name, manifest.size) == (
        told["release_seq"],
        "palm-next",
        told["size"],
    )
    (tmp_path / "payload").write_bytes(b"".join(data for _, data in release.chunks()))
    (tmp_path / "slot").mkdir()
    unpack(tmp_path / "payload", tmp_path / "slot", MODEL_LIMITS)
    assert load_manifest(tmp_path / "slot").model_id == "palm-next"


@pytest.mark.parametrize(
    ("version", "words", "says"),
    [
        (b"1.2.3", ("--min-app-version", "0.2.0-1"), "expected numbers with dots"),
        (b"1.2.3", ("--version", "1.2.4"), "this is palm-access-device 1.2.3"),
        (b"1.2.3", ("--name", "palm-next"), "leave out --name"),
        (b"\xff", (), "/version"),
    ],
)
def test_software_that_every_device_would_refuse_is_not_released(
    tmp_path: Path, version: bytes, words: tuple[str, ...], says: str
) -> None:
    data, app = ("--data", str(tmp_path / "cloud")), tmp_path / "app"
    (app / "bin").mkdir(parents=True)
    (app / "VERSION").write_bytes(version)
    (app / "bin" / "palmd").write_text("")
    place = ("--tenant", printed("cloud", "tenant", "create", "Metro", *data)["tenant_id"], "--mode", "test")
    command = ["cloud", "release", "create", *place, *data, "--kind", "app", "--from", str(app)]
    refused = CliRunner().invoke(main, [*command, *words])
    assert (refused.exit_code in (1, 2), refused.stdout) == (True, ""), refused.output
    assert says in refused.stderr
    (app / "VERSION").write_text("1.2.3\n")
    same = ("--name", "palm-access-device", "--version", "1.2.3", "--min-app-version", "0.1")
    assert CliRunner().invoke(main, [*command, *same]).exit_code == 0


def test_a_release_that_is_not_made_leaves_no_file_of_it(tmp_path: Path) -> None:
    software(tmp_path / "software")
    data, folder = ("--data", str(tmp_path / "cloud")), tmp_path / "stick"
    folder.mkdir()
    place = ("--tenant", printed("cloud", "tenant", "create", "Metro", *data)["tenant_id"], "--mode", "test")
    kind = ("--kind", "app", "--from", str(tmp_path / "software"))
    words = ["cloud", "release", "create", *place, *data, *kind]
    done = CliRunner().invoke(main, [*words, "--out", str(folder / "palm"), "--device-id", "nobody"])
    assert (done.exit_code, done.stdout) == (1, "")
    assert "no such device" in done.stderr
    assert not list(folder.iterdir())
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    linked = CliRunner().invoke(main, [*words, "--out", str(folder / "link")])
    assert (linked.exit_code, "found a link" in linked.stderr) == (1, True), linked.output
    assert (folder / "link").is_symlink() and not (tmp_path / "elsewhere").exists()
    unnamed = CliRunner().invoke(main, [*words, "--out", ""])
    assert (unnamed.exit_code, "is empty" in unnamed.stderr) == (2, True)
    (folder / "palm.part").symlink_to(tmp_path / "elsewhere")  # as a stick may bring it
    done = CliRunner().invoke(main, [*words, "--out", str(folder / "palm")])
    assert done.exit_code == 0, done.stderr
    assert not (folder / "palm").is_symlink() and not (tmp_path / "elsewhere").exists()
    assert sorted(path.name for path in folder.iterdir()) == ["link", "palm"]


@pytest.mark.parametrize(
    "command",
    [["update", "status"], ["update", "rollback"], ["update", "apply"], ["model", "install"]],
    ids=" ".join,
)
def test_no_daemon_is_exit_3_and_says_so(tmp_path: Path, command: list[str]) -> None:
    config = configured(tmp_path)
    given = [*command, *([str(release_file(tmp_path))] if command[-1] in ("apply", "install") else [])]
    done = CliRunner().invoke(main, [*given, "--config", str(config), "--json"])
    assert done.exit_code == 3, done.stderr
    assert json.loads(done.stdout)["error"]["code"] == "not_reachable"


def test_a_daemon_that_is_stuck_holds_the_status_no_longer_than_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.palmctl.commands.update.ANSWER_WITHIN_S", 0.1)
    config = configured(tmp_path)
    (tmp_path / "control").mkdir()
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(tmp_path / "control" / "sock"))
        stuck.listen()
        done = CliRunner().invoke(main, ["update", "status", "--config", str(config)])
    assert (done.exit_code, "within 0.1 s" in done.stderr) == (3, True), done.stderr


def test_the_software_goes_back_without_a_daemon(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["update", "rollback", "--app", "--config", str(tmp_path / "none")])
    assert done.exit_code == 1
    assert "palm-access-rollback" in done.stderr


def test_a_software_is_not_installed_as_a_model(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["model", "install", str(release_file(tmp_path, ReleaseKind.APP))])
    assert done.exit_code == 1
    assert "palmctl update apply" in done.stderr


def test_a_model_folder_is_proved_as_a_device_does(tmp_path: Path) -> None:
    def check(folder: Path) -> Result:
        return CliRunner().invoke(main, ["model", "check", str(folder), "--json"])

    republish(shipped_model_dir(), "palm-next", tmp_path / "model")
    found = check(tmp_path / "model")
    assert found.exit_code == 0, found.stderr
    assert json.loads(found.stdout)["model_id"] == "palm-next"
    network = tmp_path / "model" / "palm-embedding.onnx"
    network.write_bytes(network.read_bytes()[:-1])
    cut = check(tmp_path / "model")
    assert cut.exit_code == 1
    assert "palm-embedding.onnx" in cut.stderr
    assert check(tmp_path).exit_code == 1
