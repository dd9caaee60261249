"""What root writes in a state directory becomes its owner's; what it writes on a stick stays on the stick."""

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from device.platform.files import hand_over, replace_named, replace_within, write_on_stick

OWNER = 65_532


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_that_vanishes_meanwhile_leaves_no_other_with_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As state.json.partial of a palmd that runs."""
    state = tmp_path / "state"
    for folder in (state / "journal", state / "updates"):
        folder.mkdir(parents=True)
        for name in ("kept", "state.json.partial"):
            (folder / name).write_text("")
    os.chown(state, OWNER, OWNER)
    chown = os.chown

    def with_palmd_at_work(name: str, user: int, group: int, **where: Any) -> None:
        if name.endswith(".partial"):
            os.unlink(name, dir_fd=where["dir_fd"])
        chown(name, user, group, **where)

    monkeypatch.setattr(os, "chown", with_palmd_at_work)
    hand_over(state)
    entries = [path for path in state.rglob("*") if path.exists()]
    assert sorted(path.name for path in entries) == ["journal", "kept", "kept", "updates"]
    assert {path.stat().st_uid for path in entries} == {OWNER}


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_stick_that_brings_the_name_leads_root_nowhere_else(tmp_path: Path, kind: str) -> None:
    stick, victim = tmp_path / "stick", tmp_path / "victim"
    stick.mkdir()
    victim.write_text("theirs")
    if kind == "link":
        (stick / "reg.json.partial").symlink_to(victim)
    else:
        os.mkfifo(stick / "reg.json.partial")
    write_on_stick(stick / "reg.json", b"ours")
    assert [(path.name, path.is_symlink()) for path in stick.iterdir()] == [("reg.json", False)]
    assert (victim.read_text(), (stick / "reg.json").read_text()) == ("theirs", "ours")


def in_its_folder(path: Path, data: bytes) -> None:
    opened = os.open(path.parent, os.O_RDONLY)
    try:
        replace_within(opened, path.name, data, mode=0o600, user=os.geteuid(), group=os.getegid())
    finally:
        os.close(opened)


@pytest.mark.parametrize("write", [write_on_stick, partial(replace_named, mode=0o600), in_its_folder])
def test_what_is_full_holds_what_it_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Path, bytes], None]
) -> None:
    (tmp_path / "reg.json").write_text("earlier")

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write(tmp_path / "reg.json", b"ours")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"reg.json": "earlier"}
