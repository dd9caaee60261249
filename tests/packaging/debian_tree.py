"""A Debian tree under build/trees, and a machine that is booted in it."""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.until import until
from tools.rig.packaging.deb import PACKAGE
from tools.rig.packaging.debian_package import RELEASES, DebianRelease
from tools.rig.packaging.tree import own_version

SOURCE = REPOSITORY
TREES = SOURCE / "build" / "trees"
PACKAGES = SOURCE / "build" / "deb"
_INCLUDED = "systemd,systemd-sysv,dbus,udev,kmod,procps,python{python},ca-certificates,libstdc++6"
_BOOTED_WITHIN_S = 120.0
_NEEDED = ("systemd-nspawn", "mmdebstrap", "nsenter", "dpkg-deb")

DEBIAN_TREES = [
    pytest.mark.skipif(os.environ.get("PALM_DEB_TEST") != "1", reason="boots Debian trees: make deb-test"),
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(name) is None for name in _NEEDED),
        reason="needs root and mmdebstrap, systemd-container (apt install)",
    ),
]
"""Marks of the tests that `make deb-test` runs."""

EACH_RELEASE = pytest.mark.parametrize("release", RELEASES, ids=lambda release: release.suite, scope="module")
"""Runs the tests of a module once for each Debian release."""


def version_of(release: DebianRelease) -> str:
    """The version of the package that `make deb` builds for a release."""
    return release.version(own_version(SOURCE), 1)


def package_of(release: DebianRelease, arch: str) -> Path:
    """The package that `make deb` builds for a release."""
    return PACKAGES / f"{PACKAGE}_{version_of(release)}_{arch}.deb"


@dataclass(frozen=True)
class Machine:
    """A booted tree. `pid` is its first process, as seen from outside."""

    root: Path
    pid: int
    release: DebianRelease

    def run(
        self, *command: str, given: str = "", within_s: float = 300.0, fails: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as root; checked unless it may fail. Standard error goes with the output."""
        done = subprocess.run(
            ["nsenter", "--target", str(self.pid), "--all", "--wdns=/root", *command],
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=within_s,
            check=False,
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "LC_ALL": "C.UTF-8",
                "DEBIAN_FRONTEND": "noninteractive",
            },
        )
        print(f"$ {' '.join(command)}\n{done.stdout}", flush=True)
        assert fails or done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}"
        return done

    def state_of(self, unit: str) -> str:
        return self.run("systemctl", "show", "-P", "ActiveState", unit).stdout.strip()


def archive(arch: str, release: DebianRelease) -> Path:
    """A Debian tree as one archive, made once."""
    path = TREES / f"{release.suite}-{arch}.tar"
    if not path.exists():
        TREES.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.tar")
        included = f"--include={_INCLUDED.format(python=release.python)}"
        made = ["mmdebstrap", "--quiet", "--variant=minbase", f"--arch={arch}", included]
        subprocess.run([*made, release.suite, str(part)], check=True)
        part.rename(path)
    return path


@contextlib.contextmanager
def unpacked(arch: str, release: DebianRelease, name: str) -> Iterator[Path]:
    """A fresh tree; it is removed afterwards."""
    root = TREES / f"{name}-{release.suite}"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    subprocess.run(["tar", "-C", str(root), "-xf", str(archive(arch, release))], check=True)
    try:
        yield root
    finally:
        held = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        # Below a mount that is still there lies this machine, not the tree.
        assert not [place for place in held if Path(place).is_relative_to(root)], held
        shutil.rmtree(root)


@contextlib.contextmanager
def emulated(root: Path) -> Iterator[None]:
    """What programs of another architecture need in a chroot. onnxruntime reads the processor's features from
    /proc/cpuinfo: an ARM program that finds an x86 there ends with a segmentation fault.
    """
    cpuinfo = root / "cpuinfo"
    core = (
        "BogoMIPS\t: 100.00\nFeatures\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid\n"
        "CPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: 0xd08\n"
        "CPU revision\t: 3\n"
    )
    cpuinfo.write_text("".join(f"processor\t: {number}\n{core}\n" for number in range(2)))
    places = [
        (root / "proc", ["-t", "proc", "proc"]),
        (root / "dev", ["--bind", "/dev"]),
        (root / "dev/pts", ["--bind", "/dev/pts"]),
        (root / "proc/cpuinfo", ["--bind", str(cpuinfo)]),
    ]
    mounted: list[Path] = []
    try:
        for place, what in places:
            subprocess.run(["mount", *what, place], check=True)
            mounted.append(place)
        yield
    finally:
        for place in reversed(mounted):
            subprocess.run(["umount", "--lazy", place], check=True)  # also while somebody looks into it


@contextlib.contextmanager
def booted(root: Path, release: DebianRelease, options: Sequence[str] = ()) -> Iterator[Machine]:
    """Boot the tree with its own systemd, on this machine's network."""
    with (root.parent / f"{root.name}.log").open("wb") as log:
        nspawn = subprocess.Popen(
            [
                "systemd-nspawn",
                "--register=no",
                "--keep-unit",
                "--console=pipe",
                # A manager without it leaves out PrivateNetwork= from systemd 257 on, and says so in its log.
                "--capability=CAP_NET_ADMIN",
                "-b",
                "-D",
                str(root),
                *options,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    try:
        machine = Machine(root, _first_process(nspawn), release)
        _wait_until_up(machine)
        yield machine
    finally:
        nspawn.send_signal(signal.SIGTERM)  # an orderly power-off
        try:
            nspawn.wait(60)
        except subprocess.TimeoutExpired:
            nspawn.kill()
            nspawn.wait()


def _first_process(nspawn: "subprocess.Popen[bytes]") -> int:
    children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children")
    deadline = time.monotonic() + _BOOTED_WITHIN_S
    while time.monotonic() < deadline:
        assert nspawn.poll() is None, "systemd-nspawn ended at once; see build/trees/*.log"
        for word in children.read_text().split():
            if Path(f"/proc/{word}/comm").read_text().strip() == "systemd":
                return int(word)
        time.sleep(0.1)
    raise AssertionError("no system came up in the tree; see build/trees/*.log")


def _wait_until_up(machine: Machine) -> None:
    def up() -> bool:
        state = machine.run("systemctl", "is-system-running", fails=True).stdout.strip()
        return state in {"running", "degraded"}

    until(up, _BOOTED_WITHIN_S, every_s=0.5)
