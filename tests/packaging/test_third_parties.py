"""The list of third parties in a package: every distribution of the lock, with its licence."""

import re
import sys
from pathlib import Path

import pytest

from tools.rig.packaging.deb import SOURCE
from tools.rig.packaging.documents import locked_names, third_parties
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.wheels import NOT_ON_A_BOARD, without

LOCKED = locked_names(without((SOURCE / "tools/rig/packaging/lock/device.txt").read_text(), NOT_ON_A_BOARD))
HERE = Path(sys.prefix)
"""The environment of the tests holds the wheels of the board's lock as well."""


def test_every_locked_distribution_is_listed_with_its_licence() -> None:
    text = third_parties(HERE, LOCKED)
    entries = dict(re.findall(r"^([A-Za-z0-9][^ ]*) [^ :]+: (.+)$", text.partition("\n\n")[2], re.MULTILINE))
    listed = {re.sub(r"[-_.]+", "-", name).lower(): licence for name, licence in entries.items()}
    assert len(LOCKED) > 25 and set(listed) >= LOCKED
    assert listed["numpy"].startswith("BSD-3-Clause") and "MIT" in listed["faiss-cpu"]
    assert all(licence.strip() for licence in listed.values())


def test_licence_files_are_named_where_they_lie() -> None:
    text = third_parties(HERE, LOCKED)
    named = [line.strip() for line in text.splitlines() if line.startswith("    lib/")]
    assert all((HERE / name).is_file() for name in named)
    for part in ("opencv_python_headless-", "onnxruntime/ThirdPartyNotices", "faiss_cpu-", "numpy-"):
        assert any(part in name for name in named), part


def test_a_wheel_that_is_missing_stops_the_build() -> None:
    with pytest.raises(PackagingError, match="not-there"):
        third_parties(HERE, LOCKED | {"not-there"})


def test_a_wheel_without_any_licence_stops_the_build(tmp_path: Path) -> None:
    dist_info = tmp_path / "lib/python3.11/site-packages/quiet-1.dist-info"
    dist_info.mkdir(parents=True)
    (dist_info / "METADATA").write_text("Name: quiet\nVersion: 1\n")
    (dist_info / "RECORD").write_text("quiet-1.dist-info/METADATA,,\n")
    with pytest.raises(PackagingError, match="quiet 1 names no licence"):
        third_parties(tmp_path, frozenset())
