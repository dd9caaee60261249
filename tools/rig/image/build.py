"""From Debian's packages and the built package to an image that is written to a card as it is.

    GPT  1  palm-boot   FAT, label PALM-BOOT: systemd-boot, kernel, first root, the provisioning file
         2  palm-root   ext4 without a journal, never written: Debian, the package
         3  palm-state  ext4: keys, configuration, journal, newer software; grows with the disk

File systems are made from folders (mke2fs -d, mcopy), so no mount and no loop device is needed.
"""

import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.rig.hil.errors import HilError
from tools.rig.hil.image import Tell, debian_archive, do, install_package, only

FILES: Final = Path(__file__).parent / "files"
FIRST_BOOT: Final = Path(__file__).parent / "first_boot.py"
BOOT_MIB, STATE_MIB, SECTOR, MIB = 192, 640, 512, 1 << 20
ENTRY: Final = "loader/entries/palm.conf"
BOOT_OFFSET: Final = MIB
"""Where the boot partition begins in the image, in bytes: `mcopy -i IMAGE@@OFFSET` reaches it."""

_PACKAGES = (
    *("systemd-sysv", "systemd-resolved", "systemd-timesyncd", "systemd-boot-efi", "udev", "kmod", "dbus"),
    *("initramfs-tools", "zstd", "e2fsprogs", "python3", "ca-certificates", "init-system-helpers"),
    *("libstdc++6", "procps", "usbutils"),
)
_UNITS = (
    *("systemd-networkd.service", "systemd-resolved.service", "systemd-timesyncd.service"),
    *("palm-provision.service", "palm-grow.service"),
)
_MASKED = (
    # /etc/machine-id is mounted from the state partition: nothing is to be committed.
    "systemd-machine-id-commit.service",
    # Nothing of the root is changed by apt or by time.
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer"),
    "e2scrub_reap.service",
)
_KEPT = ("etc/palm-access", "var/lib/palm-access", "var/lib/systemd")
"""Folders of the root that lie on the state partition, with what the packages put there."""
_KEPT_EMPTY = ("etc/systemd/system/palmd.service.d", "etc/systemd/system/palm-syncd.service.d")
_README = """\
The boot partition of a palm access gate. Its first start needs one file here, palm-provision.toml:

string = "PALM1..."

with the string that the operator made: palmctl cloud device invite. The file is destroyed once it is used.
"""


@dataclass(frozen=True, slots=True)
class _Machine:
    """What differs from one architecture to the other."""

    kernel: str
    loader: str
    """Name of the boot loader, as Debian has it and as the firmware looks for it."""
    root_type: str
    """GPT type of a root partition."""
    consoles: str


_MACHINES: Final = {
    "amd64": _Machine(
        "linux-image-amd64",
        "x64",
        "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709",
        "console=tty0 console=ttyS0,115200",
    ),
    "arm64": _Machine(
        "linux-image-arm64",
        "aa64",
        "B921B045-1DF0-41C3-AF44-4C6F280D3FAE",
        "console=tty0 console=ttyAMA0,115200",
    ),
}
ARCHITECTURES: Final = tuple(_MACHINES)


def build_image(package: Path, arch: str, out: Path, cache: Path, tell: Tell) -> None:
    """Make `out` of the package. Raises HilError. Needs root, as chroot does."""
    if os.geteuid() != 0:
        raise HilError("the package is installed with chroot: run this as root")
    missing = [name for name in ("sfdisk", "mkfs.vfat", "mcopy", "mke2fs") if shutil.which(name) is None]
    if missing:
        raise HilError(f"{', '.join(missing)} not found; apt install fdisk dosfstools mtools e2fsprogs")
    machine = _MACHINES[arch]
    archive = debian_archive(cache, (*_PACKAGES, machine.kernel), tell, arch=arch)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix="tree-") as name:
        folder = Path(name)
        root, state = folder / "root", folder / "state"
        root.mkdir(mode=0o755)
        do(["tar", "-C", str(root), "-xf", str(archive)])
        tell(f"installing {package.name}")
        install_package(root, package)
        _settle(root)
        tell("making the first root")
        do(["chroot", str(root), "update-initramfs", "-u"])
        boot = _boot_partition(root, folder, machine)
        _part(root, state)
        tell("making the file systems")
        parts = (boot, _ext4(root, "palm-root", _root_mib(root)), _ext4(state, "palm-state", STATE_MIB))
        _assemble(parts, machine, out.with_suffix(".part"))
    out.with_suffix(".part").rename(out)


def _settle(root: Path) -> None:
    """Everything in the root that is the image's own, and no package's."""
    shutil.copytree(FILES, root, symlinks=True, dirs_exist_ok=True)
    shutil.copy(FIRST_BOOT, root / "usr/libexec/palm-image/first_boot.py")
    for file, text in (
        ("etc/hostname", "palm-gate\n"),
        ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n127.0.1.1 palm-gate\n"),
        (
            "etc/fstab",
            "# Everything is mounted by the first root: /etc/initramfs-tools/scripts/init-bottom\n",
        ),
        ("etc/machine-id", ""),
    ):
        (root / file).write_text(text, encoding="ascii")
    resolv = root / "etc/resolv.conf"
    resolv.unlink(missing_ok=True)
    resolv.symlink_to("/run/systemd/resolve/stub-resolv.conf")
    do(["systemctl", f"--root={root}", "enable", *_UNITS])
    do(["systemctl", f"--root={root}", "mask", *_MASKED])
    shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)


def _part(root: Path, state: Path) -> None:
    """Move what lies on the state partition out of the root, and leave the places where it is mounted."""
    for name in _KEPT:
        (root / name).mkdir(mode=0o755, parents=True, exist_ok=True)  # systemd-tmpfiles gives it its owner
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        do(["cp", "--archive", str(root / name), str(state / name)])
        shutil.rmtree(root / name)
        (root / name).mkdir()
    for name in _KEPT_EMPTY:
        for tree in (root, state):
            (tree / name).mkdir(parents=True, exist_ok=True)
    for name in ("upper", "work"):
        (state / "opt" / name).mkdir(parents=True)
    (state / "opt/upper").chmod(0o755)


def _boot_partition(root: Path, folder: Path, machine: _Machine) -> Path:
    """The file system that the firmware reads; the kernels leave the root."""
    image, boot = folder / "boot.img", root / "boot"
    do(["mkfs.vfat", "-F", "32", "-n", "PALM-BOOT", "-C", str(image), str(BOOT_MIB * 1024)])
    entry = (
        "title Palm access\nlinux /vmlinuz\ninitrd /initrd.img\n"
        f"options root=LABEL=palm-root ro quiet panic=30 systemd.gpt_auto=0 {machine.consoles}\n"
    )
    for name, text in (
        ("loader.conf", "timeout 0\n"),
        ("palm.conf", entry),
        ("README.txt", _README),
    ):
        (folder / name).write_text(text, encoding="ascii")
    into = ("-i", str(image))
    do(["mmd", *into, "::/EFI", "::/EFI/BOOT", "::/loader", "::/loader/entries"])
    loader = root / f"usr/lib/systemd/boot/efi/systemd-boot{machine.loader}.efi"
    for source, target in (
        (loader, f"EFI/BOOT/BOOT{machine.loader.upper()}.EFI"),
        (only(boot, "vmlinuz-*"), "vmlinuz"),
        (only(boot, "initrd.img-*"), "initrd.img"),
        (folder / "loader.conf", "loader/loader.conf"),
        (folder / "palm.conf", ENTRY),
        (folder / "README.txt", "README.txt"),
    ):
        do(["mcopy", *into, str(source), f"::/{target}"])
    for file in boot.iterdir():
        file.unlink()
    return image


def _root_mib(root: Path) -> int:
    """Room for what is there, with a tenth for the file system's own."""
    statuses = (path.lstat() for path in root.rglob("*"))
    inodes = {(status.st_dev, status.st_ino): status.st_blocks for status in statuses}
    return int(sum(inodes.values()) * SECTOR * 1.1 / MIB) + 64


def _ext4(tree: Path, label: str, mib: int) -> Path:
    image = tree.with_suffix(".img")
    options = ["-O", "^has_journal", "-m", "0"] if label == "palm-root" else []
    do(["mke2fs", "-q", "-t", "ext4", *options, "-L", label, "-d", str(tree), str(image), f"{mib}M"])
    return image


def _assemble(parts: Sequence[Path], machine: _Machine, out: Path) -> None:
    """The partition table, and each file system in its place."""
    types = (
        "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
        machine.root_type,
        "0FC63DAF-8483-4772-8E79-3D69D8477DE4",
    )
    lines, at = ["label: gpt"], BOOT_OFFSET
    places = []
    for part, type_, name in zip(parts, types, ("palm-boot", "palm-root", "palm-state"), strict=True):
        size = part.stat().st_size
        lines.append(f"start={at // SECTOR}, size={size // SECTOR}, type={type_}, name={name}")
        places.append(at)
        at += size
    out.unlink(missing_ok=True)
    with out.open("wb") as file:
        file.truncate(at + MIB)
    table = out.with_suffix(".table")
    table.write_text("\n".join(lines) + "\n", encoding="ascii")
    do(["sh", "-c", 'sfdisk --quiet "$1" < "$2"', "sh", str(out), str(table)])
    table.unlink()
    for part, place in zip(parts, places, strict=True):
        whole = ["bs=1M", f"seek={place // MIB}", "conv=notrunc,sparse", "status=none"]
        do(["dd", f"if={part}", f"of={out}", *whole])
