"""What root writes in a state directory becomes its owner's."""

import os
from pathlib import Path
from typing import Any

import pytest

from device.platform.files import hand_over

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
