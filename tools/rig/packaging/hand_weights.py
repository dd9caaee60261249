"""Fetch the published weights that find hands, and convert them for the device.

    python -m tools.rig.packaging.hand_weights [--into FOLDER]

Out of MediaPipe's wheel for one machine, which is unpacked and never installed, come its palm detector and
hand landmarks; `tflite_onnx` converts them with packages in a folder of their own (`lock/convert.txt`). The
wheel, the networks in it and the results are each compared with a hash, and the results give the known answer
in `hand_weights.json`, which becomes their manifest. Everything fetched stays in build/hand-weights, so a
second time needs no network.
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from models.errors import ModelsError
from models.hand_landmarks import open_landmarks, weights_folder
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.process import run

_HERE = Path(__file__).parent
LOCK = _HERE / "lock/hand-weights.txt"
CONVERT_LOCK = _HERE / "lock/convert.txt"
MANIFEST = _HERE / "hand_weights.json"
CACHE = Path(__file__).parents[3] / "build/hand-weights"
# The wheel of one Python on one machine, whatever this machine is: the networks in all of them are the same.
_WHEEL_OF = (
    *("--python-version", "3.11", "--implementation", "cp", "--abi", "cp311"),
    *("--platform", "manylinux_2_28_x86_64"),
)
_PINNED = ("--only-binary", ":all:", "--no-deps", "--require-hashes")
_PIP = ("--quiet", "--disable-pip-version-check", "--no-input", "--retries", "1", "--timeout", "20")
_NOTICE = """\
{names}: converted from {wheel} of MediaPipe, Copyright The MediaPipe Authors,
https://github.com/google-ai-edge/mediapipe, under the Apache License 2.0 (the file LICENSE).

Changed: written as ONNX by palm-access-device, with PReLU(x) as x + (1 - a) * ReLU(-x). The weights are the
same.
"""


def make(into: Path, cache: Path = CACHE) -> None:
    """Put the weights with manifest, licence and notice into the folder `into`. Raises PackagingError."""
    cache.mkdir(parents=True, exist_ok=True)
    manifest = json.loads(MANIFEST.read_text())
    wheel = _wheel(manifest, cache)
    into.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=into.parent, prefix="hand-weights-") as scratch:
        made = Path(scratch, "made")
        made.mkdir()
        with zipfile.ZipFile(wheel) as archive:
            for source, file in zip(manifest["made_from"]["files"], manifest["files"], strict=True):
                network = Path(scratch, Path(source["name"]).name)
                network.write_bytes(_checked(archive.read(source["name"]), source))
                _convert(network, made / file["name"], cache)
                _checked((made / file["name"]).read_bytes(), file)
            (made / "LICENSE").write_bytes(archive.read(manifest["made_from"]["licence"]))
        names = ", ".join(file["name"] for file in manifest["files"])
        (made / "NOTICE").write_text(_NOTICE.format(names=names, wheel=manifest["made_from"]["wheel"]))
        (made / "manifest.json").write_bytes(MANIFEST.read_bytes())
        try:
            open_landmarks(made)
        except ModelsError as error:
            raise PackagingError(f"the converted hand weights do not work: {error}") from error
        shutil.rmtree(into, ignore_errors=True)
        made.rename(into)


def _wheel(manifest: dict[str, Any], cache: Path) -> Path:
    wheel = cache / str(manifest["made_from"]["wheel"])
    if not wheel.exists():
        _pip("download", *_PINNED, *_WHEEL_OF, "--dest", cache, "-r", LOCK)
    if hashlib.sha256(wheel.read_bytes()).hexdigest() not in LOCK.read_text():
        wheel.unlink()
        raise PackagingError(f"{wheel} was not the file that {LOCK} pins, and was deleted; try again")
    return wheel


def _convert(network: Path, goal: Path, cache: Path) -> None:
    packages = (
        cache / f"convert-{hashlib.sha256(CONVERT_LOCK.read_bytes()).hexdigest()[:16]}-{sys.version_info[1]}"
    )
    if not packages.exists():
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            part = Path(scratch, "packages")
            _pip("install", *_PINNED, "--target", part, "-r", CONVERT_LOCK)
            part.rename(packages)
    run([sys.executable, _HERE / "tflite_onnx.py", network, goal], env={"PYTHONPATH": str(packages)})


def _checked(data: bytes, expected: dict[str, Any]) -> bytes:
    found = hashlib.sha256(data).hexdigest()
    if found != expected["sha256"]:
        raise PackagingError(f"{expected['name']}: expected SHA-256 {expected['sha256']}, found {found}")
    return data


def _pip(command: str, *arguments: object) -> None:
    run([sys.executable, "-m", "pip", command, *_PIP, *arguments])


def main() -> None:
    """The program. Exit status: 0 made, 1 failed, 2 wrong usage."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.rig.packaging.hand_weights", description="Fetch and convert the hand weights."
    )
    parser.add_argument(
        "--into", type=Path, default=weights_folder(), help="default: this environment's share/"
    )
    given = parser.parse_args()
    try:
        make(given.into)
    except PackagingError as error:
        print(
            f"hand weights: {error}\nWithout them a device finds hands with its own networks alone, "
            "which miss more hands in real rooms; to try again: make hand-weights",
            file=sys.stderr,
        )
        sys.exit(1)
    print(f"hand weights: {given.into}")


if __name__ == "__main__":
    main()
