"""The disk of the virtual machine: Debian's packages, the built package, the films and the agent.

Everything that is downloaded ends in one archive under build/hil, which is made once; from it, every run
unpacks a root, installs the package in it as `apt` would, and makes a file system out of it with `mke2fs -d`.
No loop device and no mount is needed.
"""

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tools.rig.hil.errors import HilError

SUITE = "bookworm"
SOURCES = (
    f"deb http://deb.debian.org/debian {SUITE} main",
    f"deb http://deb.debian.org/debian-security {SUITE}-security main",
)
PACKAGES = (
    *("systemd-sysv", "udev", "kmod", "dbus", "linux-image-amd64", "initramfs-tools", "zstd"),
    *("python3", "ca-certificates", "init-system-helpers", "libstdc++6", "v4l-utils", "procps"),
    *("openssl", "tpm2-tools", "libtpm2-pkcs11-1", "libtpm2-pkcs11-tools", "libtss2-tcti-device0"),
)
MODULES_AT_BOOT = ("virtio_blk", "virtio_pci", "ext4")
"""All that the first root needs; with `most` the start alone would take a minute here."""
SIZE_MIB = 3_072
_NEEDED = ("mmdebstrap", "mke2fs", "tar", "chroot")

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Image:
    """What qemu starts: a kernel, its first root and the disk."""

    kernel: Path
    initrd: Path
    disk: Path


def base_archive(cache: Path, tell: Tell) -> Path:
    """Debian's part of the root as one archive; downloaded when it is not in `cache` yet."""
    configure = (
        'mkdir -p "$1/etc/initramfs-tools/conf.d"; echo MODULES=list > "$1/etc/initramfs-tools/conf.d/hil"'
    )
    modules = f'echo {" ".join(MODULES_AT_BOOT)} | tr " " "\\n" > "$1/etc/initramfs-tools/modules"'
    return debian_archive(cache, PACKAGES, tell, setup=f"{configure}; {modules}")


def debian_archive(
    cache: Path, packages: Sequence[str], tell: Tell, *, arch: str = "amd64", setup: str = "true"
) -> Path:
    """A root of Debian's packages as one archive; `setup` is a command before they are unpacked."""
    recipe = repr((SUITE, SOURCES, packages, setup, arch))
    archive = cache / f"base-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}.tar"
    if archive.exists():
        return archive
    missing = [name for name in _NEEDED if shutil.which(name) is None]
    if missing:
        raise HilError(f"{', '.join(missing)} not found; apt install mmdebstrap e2fsprogs")
    tell("downloading Debian's packages (once)")
    cache.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(".part.tar")
    do(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", '--aptopt=Apt::Install-Recommends "false"'),
            *(f"--architectures={arch}", f"--include={','.join(packages)}", f"--setup-hook={setup}"),
            *(SUITE, str(unfinished), *SOURCES),
        ]
    )
    unfinished.rename(archive)
    return archive


def make_image(cache: Path, packages: Sequence[Path], files: Path, tell: Tell) -> Image:
    """A disk with the packages installed; `files` is laid over the root. Needs root, as chroot does."""
    if os.geteuid() != 0:
        raise HilError("the package is installed with chroot: run this as root")
    archive = base_archive(cache, tell)
    root, disk = cache / "root", cache / "disk.img"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    do(["tar", "-C", str(root), "-xf", str(archive)])
    for package in packages:
        tell(f"installing {package.name}")
        install_package(root, package)
    shutil.copytree(files, root, symlinks=True, dirs_exist_ok=True)
    do(["chroot", str(root), "install", "-d", "-m", "0700", "-o", "palm-access", "/var/lib/palm-access"])
    do(["chroot", str(root), "chown", "-R", "palm-access:", "/var/lib/palm-access"])
    kernel, initrd = (only(root / "boot", name) for name in ("vmlinuz-*", "initrd.img-*"))
    image = Image(cache / "kernel", cache / "initrd", disk)
    shutil.copy(kernel, image.kernel)
    shutil.copy(initrd, image.initrd)
    tell("making the disk")
    disk.unlink(missing_ok=True)
    do(["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", str(root), str(disk), f"{SIZE_MIB}M"])
    shutil.rmtree(root)
    return image


def install_package(root: Path, package: Path) -> None:
    """Install a package in a root, as root."""
    shutil.copy(package, root / "package.deb")
    # No service is started in there; what the package sets up, it sets up as on any machine.
    policy = root / "usr/sbin/policy-rc.d"
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    do(["chroot", str(root), "dpkg", "--install", "/package.deb"])
    policy.unlink()
    (root / "package.deb").unlink()


def only(folder: Path, pattern: str) -> Path:
    """The one file of that pattern. Raises HilError."""
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise HilError(f"expected one {pattern} in {folder}, found {len(found)}")
    return found[0]


def do(command: Sequence[str]) -> None:
    """Run a program to its end. Raises HilError when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()[-800:]
        raise HilError(f"{command[0]} failed ({done.returncode}): {said}")
