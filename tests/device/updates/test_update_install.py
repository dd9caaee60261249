"""Root's part of a software update: real environments, the real daemon, and a folder in the place of /opt."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device.platform.ipc import ask_core
from device.updates.archive import APP_LIMITS, unpack
from device.updates.install import main, recover
from device.updates.manifest import Manifest
from device.updates.room import KEEP_FREE_BYTES
from device.updates.versions import Installation, Versions
from tests.device.core.small_disk import fill, small_disk
from tests.device.updates.installed_board import (
    NEW,
    NEW_SAYS,
    OLD,
    OLD_SAYS,
    OLDER,
    Board,
    environment,
    linked,
)
from tests.device.updates.update_setting import signed
from tests.palmctl import ran
from tools.cloud.pack_release import pack_app, pack_files, write_release


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return pack_app(environment(tmp_path_factory.mktemp("good") / "whole", NEW))


@pytest.fixture(scope="module")
def dies(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return pack_app(
        environment(tmp_path_factory.mktemp("dies") / "small", NEW, fault="sys.exit(9)", small=True)
    )


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Board]:
    """Its versions find the packages where this test does."""
    (tmp_path / "device").mkdir()
    with ExitStack() as stack:
        one = Board(tmp_path, small=True)
        stack.callback(one.stop)
        yield one


@pytest.fixture
def whole_board(tmp_path: Path) -> Iterator[Board]:
    (tmp_path / "device").mkdir()
    with ExitStack() as stack:
        one = Board(tmp_path)
        stack.callback(one.stop)
        yield one


@pytest.mark.long
def test_a_good_version_serves_and_a_broken_one_is_put_back_by_itself(
    whole_board: Board, good: bytes, dies: bytes
) -> None:
    whole_board.stage(dies, 7)
    whole_board.trial = replace(whole_board.trial, within_s=5.0)
    outcome = whole_board.install()
    assert outcome is not None
    assert (outcome.code, outcome.trial) == ("no_start", False)
    assert whole_board.versions.current == OLD
    assert not whole_board.versions.folder(NEW).exists()
    assert (whole_board.prefix / "previous").readlink().name == OLDER  # as before
    assert whole_board.install() is None  # that release_seq is used up

    whole_board.start()  # its palmd, which knows of no release, has cleared up before the next one is staged
    whole_board.stage(good, 8)
    whole_board.trial = replace(whole_board.trial, within_s=30.0)
    outcome = whole_board.install()
    assert outcome is not None
    assert outcome.code == ""
    assert (whole_board.versions.current, whole_board.running_version()) == (NEW, NEW_SAYS)
    assert (whole_board.prefix / "previous").readlink().name == OLD
    assert {path.name for path in (whole_board.prefix / "versions").iterdir()} == {OLD, NEW}  # two are kept


@pytest.mark.long
def test_a_software_from_a_stick_goes_all_the_way(whole_board: Board, good: bytes) -> None:
    """palmctl → palmd → its state directory → root's installer → the new palmd, which clears up."""
    payload = good
    whole_board.start()
    assert whole_board.running_version() == OLD_SAYS
    stick = whole_board.prefix / "release.palm"
    write_release(stick, signed(whole_board.release(payload, 9), whole_board.device.board.root_key), payload)
    done = ran("update", "apply", str(stick), "--config", str(whole_board.config_path))
    assert done.returncode == 0, done.stderr
    staged = whole_board.config.device.state_dir / "updates" / "app" / "manifest.json"
    while not staged.exists():
        assert updates(whole_board)["failed"] is None
    outcome = whole_board.install()
    assert outcome is not None
    assert outcome.code == ""
    while updates(whole_board)["app_waiting"] is not None or staged.exists():
        pass
    assert whole_board.running_version() == NEW_SAYS


def updates(board: Board) -> dict[str, Any]:
    told = ask_core(board.config.control_socket, "update.status").header["updates"]
    assert isinstance(told, dict)
    return told


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"sha256": "0" * 64}, "bad_hash"),
        ({"version": OLD}, "version_in_use"),
        ({"version": "9.2.0"}, "bad_version"),
        ({"version": "../x"}, "bad_version"),
        ({"kind": "model"}, "wrong_kind"),
    ],
)
def test_what_palmd_staged_is_judged_anew(
    board: Board, dies: bytes, changed: dict[str, Any], code: str
) -> None:
    board.stage(dies, 7, **changed)
    outcome = board.install()
    assert outcome is not None
    assert outcome.code == code
    assert board.versions.current == OLD
    assert not (board.prefix / "incoming").exists()


@pytest.mark.parametrize("is_cut", [False, True], ids=["to the end", "power cut after it was placed"])
def test_a_release_of_the_version_before_that_fails_leaves_that_version_the_way_back(
    board: Board, tmp_path: Path, is_cut: bool
) -> None:
    made = environment(tmp_path / "again", OLDER, small=True)
    palmd = board.prefix / "previous" / "bin" / "palmd"
    before = palmd.read_text()
    (made / "bin" / "palmd").write_text("#!/bin/sh\nexit 1\n")
    payload = pack_app(made)
    if is_cut:
        (tmp_path / "payload").write_bytes(payload)
        manifest = Manifest.from_obj({"manifest_obj": board.release(payload, 7) | {"version": OLDER}})
        board.versions.place(manifest, tmp_path / "payload")
        assert palmd.read_text() != before
    board.stage(payload, 7, version=OLDER)
    outcome = board.install()
    assert outcome is not None
    assert outcome.code == "self_test"
    assert palmd.read_text() == before
    assert {path.name for path in (board.prefix / "versions").iterdir()} == {OLD, OLDER}


@pytest.mark.parametrize("spoilt", ["bin/python3", "bin", "VERSION/1", "pyvenv.cfg/1"])
def test_an_archive_that_is_no_environment_is_refused_once(board: Board, tmp_path: Path, spoilt: str) -> None:
    """Noted, or the path unit would have it unpacked for ever, and no later release would come."""
    contents = {"bin/palmd": "", "VERSION": f"{NEW}\n", "pyvenv.cfg": "version = 3.11\n"}
    contents = {name: text for name, text in contents.items() if not name.startswith(spoilt[:7])}
    for name, text in (contents | {spoilt: "not a program"}).items():
        (tmp_path / "spoilt" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "spoilt" / name).write_text(text)
    board.stage(pack_files(tmp_path / "spoilt", sorted(contents | {spoilt: ""})), 7)
    outcome = board.install()
    assert outcome is not None
    assert outcome.code == "bad_archive"
    assert board.install() is None
    assert {path.name for path in (board.prefix / "versions").iterdir()} == {OLDER, OLD}


def test_a_version_whose_self_test_says_no_text_is_refused_once(board: Board, tmp_path: Path) -> None:
    """A library in it may print anything before it dies."""
    broken = environment(tmp_path / "broken", NEW, small=True)
    (broken / "bin" / "palmd").write_text("#!/bin/sh\nprintf '\\377\\n' >&2\nexit 1\n")
    board.stage(pack_app(broken), 7)
    outcome = board.install()
    assert outcome is not None
    assert outcome.code == "self_test"
    assert board.install() is None


def test_an_environment_copied_without_its_links_is_packed_as_one_with_them(tmp_path: Path) -> None:
    """`scp -r` puts the interpreter itself into the place of each link to it."""
    kept = environment(tmp_path / "kept", NEW, small=True)
    copied = Path(shutil.copytree(kept, tmp_path / "copied"))
    linked(kept)
    (copied / "bin" / "python3.11").write_text("the program")
    assert pack_app(copied) == pack_app(kept)


def test_roots_that_palmd_writes_count_for_nothing(board: Board, good: bytes) -> None:
    from link1.keys import SigningKey

    (board.prefix / "roots.json").write_text(json.dumps({"roots": [SigningKey.generate().public.b64]}))
    board.stage(good, 7)
    with pytest.raises(Exception, match=r"roots\.json"):
        board.install()
    assert board.versions.current == OLD


def test_software_that_is_withdrawn_while_it_is_tested_is_not_switched_to(
    board: Board, dies: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    board.stage(dies, 7)
    staged = board.config.device.state_dir / "updates" / "app" / "manifest.json"
    place = Versions.place

    def withdrawn_meanwhile(versions: Versions, manifest: Manifest, payload: Path, **room: int) -> Path:
        staged.unlink()
        return place(versions, manifest, payload, **room)

    monkeypatch.setattr(Versions, "place", withdrawn_meanwhile)
    assert board.install() is None
    assert (board.versions.current, board.versions.newest()) == (OLD, None)
    assert not board.versions.folder(NEW).exists()


def test_nothing_is_installed_while_a_package_is(
    board: Board,
    dies: bytes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It ends; what it runs from may be gone. The path unit starts it again, from what is in use then."""
    monkeypatch.setattr("device.updates.install.SETTLED_WITHIN_S", 0.1)
    board.stage(dies, 7, version="../x")
    words = ["--config", str(board.config_path), "--prefix", str(board.prefix)]
    (board.versions.folder(".9.3.0.new")).mkdir()
    other, lock = ExitStack(), fcntl.flock

    def until_the_other_ends(descriptor: int, how: int) -> None:
        if not how & fcntl.LOCK_NB:
            other.close()
        lock(descriptor, how)

    with other:
        other.enter_context(board.versions.locked())
        monkeypatch.setattr(fcntl, "flock", until_the_other_ends)
        assert main(words) == 1
    assert "another installation was at work" in capsys.readouterr().err
    assert board.versions.folder(".9.3.0.new").exists()
    assert board.versions.newest() is None
    assert main(words) == 1
    newest = board.versions.newest()
    assert newest is not None
    assert newest.code == "bad_version"


def test_another_version_that_comes_during_a_trial_stays(board: Board, dies: bytes) -> None:
    """By a package or a technician, who end the trial first."""
    stays = "9.5.0-1"
    restart = board.prefix / "restart"
    restart.write_text(
        f"#!/bin/sh -e\ncd {board.prefix}\nrm back\n"
        f"cp -r versions/{OLD} versions/{stays}\nln -sfn versions/{stays} current\n"
    )
    restart.chmod(0o755)
    board.trial = replace(board.trial, restart=str(restart), within_s=0.5)
    board.stage(dies, 7)
    outcome = board.install()
    assert outcome is not None
    assert outcome.code == "no_start"
    assert board.versions.current == stays
    assert board.versions.folder(stays).exists()


def test_a_way_back_that_is_gone_is_not_taken(board: Board) -> None:
    environment(board.versions.folder(NEW), NEW, small=True)
    board.versions.note(Installation(7, NEW, "9.0.1-1", trial=True))
    (board.prefix / "back").symlink_to("versions/9.0.1-1")
    (board.prefix / "current").unlink()
    (board.prefix / "current").symlink_to(Path("versions") / NEW)
    assert recover(board.versions) is False
    assert board.versions.current == NEW
    assert not (board.prefix / "back").is_symlink()


def test_a_full_disk_refuses_a_release_once(tmp_path: Path, good: bytes) -> None:
    """Noted, or the path unit would have it unpacked again and again."""
    (tmp_path / "device").mkdir()
    with small_disk(tmp_path / "opt", 16):
        board = Board(tmp_path, small=True)
        fill(board.prefix, leave_bytes=len(good) + 200_000)
        board.stage(good, 7)
        outcome = board.install()
        assert outcome is not None
        assert outcome.code == "no_space"
        assert {path.name for path in (board.prefix / "versions").iterdir()} == {OLDER, OLD}
        assert board.install() is None


@pytest.mark.parametrize("zeros_mib", [0, 40], ids=["of the usual kind", "much larger unpacked"])
def test_a_release_leaves_the_journal_its_room(tmp_path: Path, good: bytes, zeros_mib: int) -> None:
    """Root may fill a disk to its last block, and then no verdict can be written."""
    payload, room = good, 4 * len(good)
    if zeros_mib:
        large = environment(tmp_path / "large", NEW, small=True)
        (large / "lib" / "zeros").write_bytes(bytes(zeros_mib * 2**20))
        payload, room = pack_app(large), (zeros_mib - 10) * 2**20
    (tmp_path / "device").mkdir()
    with small_disk(tmp_path / "opt", 160):
        board = Board(tmp_path, small=True)
        fill(board.prefix, leave_bytes=KEEP_FREE_BYTES + room)
        board.stage(payload, 7)
        outcome = board.install()
        assert outcome is not None
        assert outcome.code == "no_space"
        assert {path.name for path in (board.prefix / "versions").iterdir()} == {OLDER, OLD}


def test_a_trial_that_ends_on_a_full_disk_leaves_the_version_before_running(
    tmp_path: Path, dies: bytes
) -> None:
    (tmp_path / "device").mkdir()
    with small_disk(tmp_path / "opt", 128):
        board = Board(tmp_path, small=True)
        restart, restarts = tmp_path / "restart", tmp_path / "restarts"
        restart.write_text(
            f"#!/bin/sh\ncd {board.prefix}\nreadlink current >>{restarts}\ncat /dev/zero >>ballast\n"
        )
        board.trial = replace(board.trial, within_s=0.5)
        board.stage(dies, 7)
        outcome = board.install()  # its note has the room of the version that failed
        assert restarts.read_text().split() == [f"versions/{NEW}", f"versions/{OLD}"]
        assert outcome == board.versions.newest() == Installation(7, NEW, OLD, trial=False, code="no_start")


def test_a_trial_that_was_cut_off_is_ended_on_a_full_disk_and_noted_later(tmp_path: Path) -> None:
    """True, so that the daemons are restarted from the version on trial."""
    (tmp_path / "device").mkdir()
    with small_disk(tmp_path / "opt", 16):
        board = Board(tmp_path, small=True)
        environment(board.versions.folder(NEW), NEW, small=True)
        board.versions.note(Installation(7, NEW, OLD, trial=True))
        board.versions.try_out(NEW)
        ballast = fill(board.prefix)
        assert recover(board.versions) is True
        assert board.versions.current == OLD
        ballast.unlink()
        assert recover(board.versions) is False
        assert board.versions.newest() == Installation(7, NEW, OLD, trial=False, code="died_on_trial")


def test_the_packed_environment_holds_no_links(tmp_path: Path, good: bytes) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(good)
    (tmp_path / "out").mkdir()
    unpack(payload, tmp_path / "out", APP_LIMITS)
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]
