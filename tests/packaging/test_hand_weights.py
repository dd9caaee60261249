"""The published hand weights: pinned, fetched once, and converted to the bytes that the manifest names."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from models.hand_landmarks import open_landmarks
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.hand_weights import CACHE, CONVERT_LOCK, LOCK, MANIFEST, make

WHEEL = CACHE / json.loads(MANIFEST.read_text())["made_from"]["wheel"]


def test_the_locks_name_no_index_and_pin_every_file() -> None:
    for lock in (LOCK, CONVERT_LOCK):
        text = lock.read_text()
        assert "http" not in text and "--index" not in text and "--find-links" not in text
        assert text.count("--hash=sha256:") >= text.count("==") > 0


@pytest.mark.skipif(not WHEEL.exists(), reason="needs the wheel that make hand-weights fetches")
def test_made_again_from_the_kept_wheel_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.setenv(name, "http://127.0.0.1:9/simple")
    make(tmp_path / "weights")
    for file in json.loads(MANIFEST.read_text())["files"]:
        data = (tmp_path / "weights" / file["name"]).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file["size"], file["sha256"])
    assert open_landmarks(tmp_path / "weights").answer().size > 80


def test_another_wheel_than_the_lock_pins_is_deleted(tmp_path: Path) -> None:
    (tmp_path / WHEEL.name).write_bytes(b"PK\x03\x04 not it")
    with pytest.raises(PackagingError, match="was not the file"):
        make(tmp_path / "weights", tmp_path)
    assert not (tmp_path / WHEEL.name).exists() and not (tmp_path / "weights").exists()


def test_without_an_index_it_says_what_is_missing_and_how_to_try_again(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; import tools.rig.packaging.hand_weights as w; "
        f"w.make.__defaults__ = (Path({str(tmp_path / 'cache')!r}),); "
        f"sys.argv[1:] = ['--into', {str(tmp_path / 'weights')!r}]; w.main()"
    )
    nowhere = {
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_CONFIG_FILE": "/dev/null",
        "PATH": "/usr/bin",
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=nowhere, cwd=Path.cwd(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "make hand-weights" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "weights").exists()
