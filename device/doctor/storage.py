"""Free space for the state directory, and whether it can be written."""

import os

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, ok, warn
from device.doctor.reading import text_of
from device.journal.reserve import LOW_DISK_BYTES

NAME = "storage"
_FEW_BYTES = 4 * LOW_DISK_BYTES
_FEW_INODES = 1_000


def check(case: Case) -> Finding:
    state_dir = case.settings.device.state_dir
    try:
        room = os.statvfs(state_dir)
    except FileNotFoundError:
        return fail(NAME, f"{state_dir} is absent", "run `palmctl provision`, or name the right state_dir")
    free, inodes = room.f_bavail * room.f_frsize, room.f_favail
    detail = f"{free // 2**20:,} MiB free of {room.f_blocks * room.f_frsize // 2**20:,} at {state_dir}"
    if room.f_flag & os.ST_RDONLY:
        return fail(
            NAME,
            f"{state_dir} is mounted read-only, as after errors of its disk",
            "look at `dmesg`; replace the card if it has errors, then mount it read-write again",
        )
    if free < LOW_DISK_BYTES:
        return fail(
            NAME,
            detail,
            f"make room: {LOW_DISK_BYTES // 2**20} MiB are the least (du -xh / | sort -h | tail)",
        )
    errors = _ext4_errors(case, state_dir.stat().st_dev)
    if errors:
        return fail(
            NAME, f"the file system has counted {errors} errors", "save the logs and replace the card"
        )
    if free < _FEW_BYTES or (room.f_files and inodes < _FEW_INODES):
        return warn(NAME, f"{detail}, {inodes:,} files may still be made", "make room before it is short")
    return ok(NAME, detail)


def _ext4_errors(case: Case, device: int) -> int:
    """The errors counted by ext4 on the partition of `device`; 0 for another file system."""
    name = text_of(case.system(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/uevent")) or ""
    partition = next((line[8:] for line in name.splitlines() if line.startswith("DEVNAME=")), "")
    counted = text_of(case.system(f"/sys/fs/ext4/{partition}/errors_count")) if partition else None
    return int(counted) if counted and counted.isdigit() else 0
