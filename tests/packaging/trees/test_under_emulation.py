"""The arm64 package on an arm64 Debian tree, under qemu's user emulation: correctness, never speed."""

import json
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.docs.first_hour import Learned, serve_cloud
from tests.packaging.debian_tree import (
    DEBIAN_TREES,
    EACH_RELEASE,
    emulated,
    package_of,
    unpacked,
    version_of,
)
from tools.rig.demo.programs import RunningPrograms, palmctl
from tools.rig.demo.waiting import wait_until
from tools.rig.packaging.debian_package import DebianRelease

pytestmark = [*DEBIAN_TREES, EACH_RELEASE]

CONFIG = "/etc/palm-access/device.toml"
EMULATOR = Path("/proc/sys/fs/binfmt_misc/qemu-aarch64")
LIBRARIES = (
    "cffi click cryptography cv2 faiss httpx nacl numpy onnxruntime pyhpke rfc8785 serial sqlite_utils"
)

# A known answer: what the shipped model says of a fixed picture on this very package's other architecture.
SELF_TEST = """
import json, os
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import numpy as np
from models.manifest import load_manifest, open_embedder, shipped_model_dir
manifest = load_manifest(shipped_model_dir())
crop = np.random.Generator(np.random.PCG64(7)).integers(0, 256, (1, 112, 112), dtype=np.uint8)
vector = open_embedder(manifest).embed(crop)
print(json.dumps({"model_id": manifest.model_id, "vector": [float(value) for value in np.ravel(vector)]}))
"""


AS_THE_CORE = (
    *("runuser", "-u", "palm-access", "--"),
    *("env", "-i", "PATH=/usr/bin:/bin", "ORT_DISABLE_TELEMETRY=1", "HOME=/nonexistent"),
)
ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}


class Tree:
    """An arm64 root in which programs run."""

    def __init__(self, root: Path, release: DebianRelease) -> None:
        self.root = root
        self.release = release

    def run(self, *command: str, given: str = "", fails: bool = False) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            ["chroot", self.root, *command],
            env=ENVIRONMENT,
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1500,
            check=False,
        )
        print(f"$ {' '.join(command)}\n{done.stdout}", flush=True)
        assert fails or done.returncode == 0, done.stdout
        return done


@pytest.fixture(scope="module")
def tree(release: DebianRelease) -> Iterator[Tree]:
    if platform.machine() != "aarch64" and not EMULATOR.exists() and shutil.which("update-binfmts"):
        # Where systemd does not run this machine, nobody has done it at its start.
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", EMULATOR.parent], check=False)
        subprocess.run(["update-binfmts", "--enable", "qemu-aarch64"], check=False)
    if platform.machine() != "aarch64" and not EMULATOR.exists():
        pytest.skip("needs qemu-user-static and binfmt_misc: apt install qemu-user-static binfmt-support")
    with unpacked("arm64", release, "arm64") as root, emulated(root):
        package = package_of(release, "arm64")
        (root / "root" / package.name).hardlink_to(package)
        yield Tree(root, release)


def test_01_it_installs(tree: Tree) -> None:
    tree.run("dpkg", "-i", f"/root/{package_of(tree.release, 'arm64').name}")
    assert tree.run("dpkg", "--print-architecture").stdout == "arm64\n"
    assert tree.run("readlink", "/opt/palm-access/current").stdout == f"versions/{version_of(tree.release)}\n"


def test_02_every_library_is_there(tree: Tree) -> None:
    told = tree.run(
        "env", "ORT_DISABLE_TELEMETRY=1", "/opt/palm-access/current/bin/python", "-I", "-c",
        f"import platform, importlib\nfor name in '{LIBRARIES}'.split():\n"
        "    print(name, importlib.import_module(name).__name__)\nprint(platform.machine())",
    )  # fmt: skip
    assert told.stdout.splitlines()[-1] == "aarch64"


def test_03_the_programs_answer(tree: Tree) -> None:
    assert "provision" in tree.run("palmctl", "--help").stdout
    assert tree.run("palmctl", "--version").stdout.strip() == "palmctl, version 0.1.0"
    refused = tree.run("palmd", "--check", fails=True)
    assert refused.returncode == 1
    assert "palmctl provision" in refused.stdout
    tree.run("cp", "/etc/palm-access/device.toml.example", CONFIG)
    assert "can be used" in tree.run("palmd", "--check").stdout
    tree.run("rm", CONFIG)


def test_04_the_model_says_what_it_says_here(tree: Tree) -> None:
    emulated_told = tree.run("/opt/palm-access/current/bin/python", "-I", "-c", SELF_TEST).stdout
    told = json.loads(emulated_told.splitlines()[-1])
    here = subprocess.run([sys.executable, "-c", SELF_TEST], capture_output=True, text=True, check=True)
    known = json.loads(here.stdout)
    assert told["model_id"] == known["model_id"]
    assert len(told["vector"]) == 512
    assert told["vector"] == pytest.approx(known["vector"], abs=2e-3)
    assert not (tree.root / "root/.cache").exists()


def test_05_it_becomes_a_device_and_the_core_starts(tree: Tree, tmp_path: Path) -> None:
    """No systemd runs in here: units and their sandbox are not tried, and the carrier is not started."""
    camera = tree.root / "srv/camera"
    camera.mkdir(parents=True)
    for number in range(3):
        cv2.imwrite(str(camera / f"{number}.png"), np.full((480, 640, 3), 96, np.uint8))
    learned = Learned()
    with RunningPrograms(tmp_path) as stage:
        serve_cloud(stage, tmp_path, learned)
        data = ("--data", str(tmp_path / "cloud"))
        tenant = palmctl("cloud", "tenant", "create", "emulated", *data)["tenant_id"]
        key = palmctl("dbd", "key", "--generate", "--key-file", str(tmp_path / "validator.key"))
        place = (*data, "--tenant", tenant, "--mode", "live", "--dbd-id", "dbd-7")
        palmctl("cloud", "dbd", "add", *place, "--pub-b64", key["pub_b64"])
        named = ("--device-id", "gate-7-left", "--gate-id", "gate-7", "--url", learned["SERVER"])
        string = palmctl("cloud", "device", "invite", *place, *named)["string"]
        options = ("--camera", "file:/srv/camera", "--camera-fps", "1")
        tree.run("palmctl", "provision", "--string-stdin", *options, given=f"{string}\n")
        tree.run("install", "-d", "-o", "palm-access", "-g", "palm-access", "/run/palm-access")
        stage.start("palmd", ["chroot", str(tree.root), *AS_THE_CORE, "palmd", "--config", CONFIG])

        def answers() -> bool:
            return tree.run("palmctl", "status", "--json", fails=True).returncode < 2

        wait_until("palmd to answer", 600, answers, every_s=2.0)
        told = json.loads(tree.run("palmctl", "doctor", "--json", fails=True).stdout.splitlines()[-1])
    results = {finding["name"]: finding for finding in told["findings"]}
    for name in ("configuration", "provisioned", "ownership", "camera", "server", "model", "hands"):
        assert results[name]["result"] == "ok", results[name]
    # The carrier is not started: no service confirms the gallery.
    assert results["daemon"]["detail"].startswith("palmd 0.1.0 runs"), results["daemon"]
