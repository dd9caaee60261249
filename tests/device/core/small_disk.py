"""Disks that fill up, refuse or wear out. All but the limit on file sizes are mounted, which takes root."""

import os
import resource
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[Path]:
    """A tmpfs of that size in a new folder; skips the test where that is not possible."""
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m,mode=0700", "tmpfs", str(folder)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(words, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path, *, leave_bytes: int = 0) -> Path:
    """Fill the disk but for so much; returns the ballast, to be unlinked."""
    ballast = folder / "ballast"
    status = os.statvfs(folder)
    left = status.f_bavail * status.f_frsize - leave_bytes
    with ballast.open("ab", buffering=0) as file:
        while left > 0:
            try:
                left -= file.write(bytes(min(left, 65_536)))
            except OSError:
                break
    return ballast


@contextmanager
def no_file_may_grow_beyond(size_bytes: int) -> Iterator[None]:
    """For this whole process; a write beyond it fails as on a broken disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def refusing(process: "subprocess.Popen[str]") -> Iterator[None]:
    """The process can write to no file inside, as on a full disk."""
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))


@contextmanager
def card(folder: Path, image: Path, mebibytes: int) -> Iterator[Path]:
    """A real file system on a loop device, which turns read-only at an error as a worn-out card does."""
    folder.mkdir()
    with image.open("wb") as file:
        file.truncate(mebibytes * 1024 * 1024)
    if os.geteuid() != 0 or not shutil.which("mke2fs") or not shutil.which("mount"):
        pytest.skip("a loop device is for root, and needs mke2fs")
    subprocess.run(["mke2fs", "-q", "-t", "ext4", str(image)], check=True)
    try:
        insert(folder, image)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def insert(folder: Path, image: Path) -> None:
    """Mount it; skips the test where loop devices are not to be had."""
    words = ["mount", "-o", "loop,errors=remount-ro", str(image), str(folder)]
    if subprocess.run(words, check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("this machine has no loop devices")
    folder.chmod(0o700)


def wear_out(folder: Path) -> None:
    """Let the kernel find an error on the card: it turns read-only with everything open on it."""
    words = ["findmnt", "-n", "-o", "SOURCE", str(folder)]
    device = Path(subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()).name
    assert device.startswith("loop"), device
    Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")


def repair(folder: Path, image: Path) -> None:
    """What a restart of the machine does: check and mount again."""
    subprocess.run(["umount", str(folder)], check=True)
    subprocess.run(["e2fsck", "-p", str(image)], check=False, capture_output=True)
    insert(folder, image)
