"""The wipe over a state directory, cut off at every file operation, and what is left of it."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from device.errors import StateError
from device.journal.journal import Journal
from device.platform.clock import SystemClock
from device.trust.keystore import KeyStore
from device.wipe.wipe import (
    Wipe,
    WipeStage,
    WipeUnfinished,
    begin_wipe,
    confirm_wipe,
    finish_wipe,
    read_wipe,
    reset_folder,
)
from gallery.freshness import GalleryNow
from gallery.gallery import Gallery
from gallery.stream import Entry
from link1.signed import Kind, sign_object
from tests.device.carrier_setting import DEVICE_ID, MODEL_ID, STREAM, Service, service_key, vector
from tests.device.journal.journal_makers import make_journal
from tests.device.state_scan import files_of, found_in

CLOCK = SystemClock()
ORDER = Wipe(
    WipeStage.ERASING,
    "0f" * 16,
    DEVICE_ID,
    "gate-7",
    "dbd-7",
    {"post": {"seq": 4}, "ct_b64": "c2VhbGVk"},
)
IDENTITY = ("gate-7-left", "gate-7", "dbd-7")
ERASED = {"wipe.json", "keys/http.key"}
CHANGES = ("fsync", "rename", "unlink", "rmdir", "write", "open")
"""Every call by which the wipe changes a disk; `open` counts where it may write."""
PSEUDONYM = "8c31f0a2" * 4
CPF = "529.982.247-25"


class Living:
    """A device's state directory with both databases open, and the secrets that are in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        keys = KeyStore.create(folder / "keys")
        self.key_bytes = {path.name: path.read_bytes() for path in (folder / "keys").iterdir()}
        self.journal = make_journal(
            folder, CLOCK, device_id=DEVICE_ID, verdict_kid=keys.verdict.kid, data_key=keys.data_key
        )
        txn_id = "0a" * 16

        def build(seq: int, prev_ref: str) -> Any:
            numbered = {"v": 1, "txn_id": txn_id, "verdict_seq": seq, "prev_ref": prev_ref}
            person = {"subject_ref": PSEUDONYM, "onboard_ref": CPF}
            return sign_object(Kind.VERDICT, numbered | person, keys.verdict)

        self.journal.append_verdict(txn_id, "0" * 32, build)
        service, now = Service(), GalleryNow(CLOCK.boottime_ms(), CLOCK.wall_ms())
        service.upsert(Entry("5d" * 16, PSEUDONYM, "L", MODEL_ID, vector(7)))
        self.gallery = Gallery(
            folder / "gallery",
            data_key=keys.data_key,
            model_id=MODEL_ID,
            stream=STREAM,
            epoch=1,
            gallery_key=service_key,
            now=now,
        )
        self.gallery.apply_deltas(service.page(), now)
        (folder / "trust.json").write_text(json.dumps({"v": 1}))
        (folder / "updates" / "slot").mkdir(parents=True)
        (folder / "updates" / "slot" / "chunk").write_bytes(bytes(64))
        (folder / "keys.partial").mkdir()
        (folder / "keys.partial" / "data.key").write_bytes(self.key_bytes["data.key"])
        (folder / "link").symlink_to("/etc/hostname")

    def close(self) -> None:
        self.gallery.close()
        self.journal.close()

    @property
    def templates(self) -> dict[str, bytes]:
        values = np.frombuffer(vector(7), dtype="<f4")
        code = np.clip(np.rint(values * 127 / np.abs(values).max()), -127, 127).astype(np.int8)
        return {
            "the template": vector(7)[64:192],
            "its int8 code": code.tobytes()[16:80],
            "the pseudonym": bytes.fromhex(PSEUDONYM),
        }

    @property
    def keys_but_http(self) -> dict[str, bytes]:
        return {name: raw for name, raw in self.key_bytes.items() if name != "http.key"}


@pytest.fixture(scope="module")
def living(tmp_path_factory: pytest.TempPathFactory) -> Living:
    living = Living(tmp_path_factory.mktemp("wipe") / "state")
    living.close()
    return living


@pytest.fixture
def state(living: Living, tmp_path: Path) -> Path:
    return copy_of(living, tmp_path / "state")


def copy_of(living: Living, to: Path) -> Path:
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(living.folder, to, symlinks=True)
    return to


def test_while_a_device_lives_no_template_and_no_pseudonym_lies_open(tmp_path: Path) -> None:
    living = Living(tmp_path / "state")  # both databases are open, their logs not yet brought in
    assert {"journal.db-wal", "gallery/gallery.db-wal"} <= set(files_of(living.folder))
    assert found_in(living.folder, living.templates) == []
    living.close()
    assert found_in(living.folder, living.templates) == []
    assert found_in(living.folder, living.key_bytes), "the scan finds what is there"


def test_what_is_left_can_tell_the_service_and_nothing_else(living: Living, state: Path) -> None:
    begin_wipe(state, ORDER)
    wipe = finish_wipe(state)
    assert wipe is not None
    assert (wipe.stage, wipe.wipe_id, wipe.record) == (WipeStage.ERASED, ORDER.wipe_id, ORDER.record)
    assert set(files_of(state)) == ERASED
    assert found_in(state, living.keys_but_http | living.templates) == []
    assert (state / "keys/http.key").read_bytes() == living.key_bytes["http.key"]
    assert finish_wipe(state) == wipe

    confirmed = confirm_wipe(state)
    assert confirmed is not None
    assert (confirmed.stage, confirmed.record) == (WipeStage.CONFIRMED, None)
    assert set(files_of(state)) == {"wipe.json"}
    assert found_in(state, living.key_bytes | living.templates) == []
    assert confirm_wipe(state) == confirmed == finish_wipe(state) == read_wipe(state)


def test_a_technicians_reset_leaves_nothing(living: Living, state: Path) -> None:
    reset_folder(state, *IDENTITY)
    assert list(state.iterdir()) == []
    reset_folder(state, *IDENTITY)
    reset_folder(state / "nowhere", *IDENTITY)
    begin_wipe(copy_of(living, state), ORDER)
    finish_wipe(state)
    reset_folder(state, *IDENTITY)
    assert list(state.iterdir()) == []


def test_nothing_happens_where_no_wipe_was_begun(state: Path) -> None:
    before = files_of(state)
    assert finish_wipe(state) is None
    assert files_of(state) == before


def counted(at: int) -> Callable[[], int]:
    """Watch the calls that change a disk, and end the process at the `at`-th. Returns how many there were."""
    count = 0

    def watch(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal count
            if name != "open" or arguments[1] & (os.O_WRONLY | os.O_RDWR):
                count += 1
                if count == at:
                    if name == "write":
                        real(arguments[0], arguments[1][: len(arguments[1]) // 2])  # half of it arrived
                    os._exit(9)
            return real(*arguments, **named)

        return call

    for name in CHANGES:
        setattr(os, name, watch(name, getattr(os, name)))
    return lambda: count


def in_child(work: Callable[[], object], at: int) -> tuple[bool, int]:
    """Do `work` in a process that is gone at its `at`-th change of the disk: whether it came to its end, and
    then how many changes it made."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        report = os.write
        made = counted(at)
        try:
            work()
            report(write, str(made()).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with os.fdopen(read, "rb") as pipe:
        told = pipe.read()
    assert status in (0, 9)
    return status == 0, int(told or 0)


def test_killed_at_any_change_it_finishes_at_the_next_start(living: Living, tmp_path: Path) -> None:
    state = tmp_path / "state"

    def whole() -> None:
        begin_wipe(state, ORDER)
        finish_wipe(state)
        confirm_wipe(state)

    copy_of(living, state)
    ended, changes = in_child(whole, 0)
    assert ended
    assert changes > 50
    begun = confirmed = 0
    for at in range(1, changes + 1):
        copy_of(living, state)
        assert not in_child(whole, at)[0], at
        wipe = finish_wipe(state)
        if wipe is None:
            assert KeyStore.open(state / "keys").data_key == living.key_bytes["data.key"], "not begun"
            continue
        begun += 1
        left = set(files_of(state))
        assert found_in(state, living.keys_but_http | living.templates) == [], at
        if wipe.stage is WipeStage.CONFIRMED:
            confirmed += 1
            assert left == {"wipe.json"}, at
        else:
            assert left == ERASED, at
            assert wipe.record == ORDER.record
        assert confirm_wipe(state) is not None
        assert found_in(state, living.key_bytes | living.templates) == [], at
        assert set(files_of(state)) == {"wipe.json"}, at
    assert begun > 40
    assert confirmed >= 5


def test_a_reset_killed_at_any_change_finishes_too(living: Living, tmp_path: Path) -> None:
    state = tmp_path / "state"
    copy_of(living, state)
    _, changes = in_child(lambda: reset_folder(state, *IDENTITY), 0)
    for at in range(1, changes + 1):
        copy_of(living, state)
        in_child(lambda: reset_folder(state, *IDENTITY), at)
        finish_wipe(state)
        if (state / "trust.json").exists():
            assert at < 10, "it was begun long before"
            continue
        assert list(files_of(state)) == [], at


def test_a_disk_that_refuses_once_is_asked_again(
    living: Living, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    for name in ("unlink", "fsync", "rmdir"):
        begin_wipe(copy_of(living, state), ORDER)
        real, asked = getattr(os, name), 0

        def once(*arguments: Any, real: Any = real, **named: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked == 3:
                raise OSError(errno.EIO, "Input/output error")
            return real(*arguments, **named)

        with monkeypatch.context() as patched:
            patched.setattr(os, name, once)
            with pytest.raises(WipeUnfinished, match="palmctl factory-reset"):
                finish_wipe(state)
        assert read_wipe(state) == ORDER
        assert finish_wipe(state) is not None
        assert set(files_of(state)) == ERASED


def test_a_folder_that_may_not_be_listed_keeps_nothing_else_from_its_end(
    living: Living, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a technician put there as root: it is named, and all of the device's own is destroyed."""
    begin_wipe(state, ORDER)
    (state / "backup").mkdir()
    (state / "backup" / "copy").touch()
    real = os.scandir, os.listdir

    def refused(which: int) -> Callable[..., Any]:
        def listed(folder: Any = ".", *rest: Any) -> Any:
            if Path(folder).name == "backup":
                raise PermissionError(errno.EACCES, "Permission denied")
            return real[which](folder, *rest)

        return listed

    with monkeypatch.context() as patched:
        patched.setattr(os, "scandir", refused(0))
        patched.setattr(os, "listdir", refused(1))
        for _ in range(2):
            with pytest.raises(WipeUnfinished, match=r"destroy [^,]*backup;"):
                finish_wipe(state)
    assert set(files_of(state)) == {*ERASED, "backup/copy"}
    assert finish_wipe(state) is not None
    assert set(files_of(state)) == ERASED


def test_a_key_file_of_an_impossible_size_keeps_nothing_from_its_end(state: Path) -> None:
    """As on a damaged card: memory for all of it there is not."""
    os.truncate(state / "keys" / "data.key", 1 << 43)
    begin_wipe(state, ORDER)
    assert finish_wipe(state) is not None
    assert set(files_of(state)) == ERASED


def full_while(what: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has room for no file while `what` is there."""
    real = os.rename

    def full(source: Any, target: Any) -> None:
        if what.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "rename", full)


def test_a_full_disk_does_not_keep_the_keys_alive(
    living: Living, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal's reserve makes room for the order."""
    identity: dict[str, Any] = {"device_id": DEVICE_ID, "data_key": living.key_bytes["data.key"]}
    kid = KeyStore.open(state / "keys").verdict.kid
    with closing(Journal(state / "journal.db", verdict_kid=kid, clock=CLOCK, **identity)) as journal:
        assert journal.keep_reserve()
        full_while(state / "journal.db.reserve", monkeypatch)
        begin_wipe(state, ORDER)
    assert finish_wipe(state) is not None


def test_where_the_order_cannot_be_kept_nothing_is_destroyed(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then a power cut leaves a device that serves, and its gallery must not have gone back."""
    before = {path: (state / path).read_bytes() for path in files_of(state)}
    full_while(state, monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        begin_wipe(state, ORDER)
    assert finish_wipe(state) is None
    assert {path: (state / path).read_bytes() for path in before} == before


def test_a_technicians_reset_of_a_full_disk_destroys_the_gallery_first(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full_while(state / "gallery", monkeypatch)
    reset_folder(state, *IDENTITY)
    assert list(state.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b'{"v":1}', b'{"v":1,"stage":"later"}', b"x" * 70_000])
def test_a_damaged_order_is_never_taken_for_none(state: Path, content: bytes) -> None:
    (state / "wipe.json").write_bytes(content)
    with pytest.raises(StateError, match="palmctl factory-reset"):
        finish_wipe(state)
    reset_folder(state, *IDENTITY)
    assert list(state.iterdir()) == []
