"""The board: disk, flash memory, clock, heat, memory, and what the runtime of the networks wrote."""

import contextlib
import ctypes
import os
import pwd
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cloud_client.contract import SIGNATURE_SKEW_S
from device.doctor.case import Case, Finding, fail, is_there, number_of, ok, skip, text_of, warn
from device.journal.reserve import LOW_DISK_BYTES
from device.platform.heat import HOT_C

_FEW_BYTES = 4 * LOW_DISK_BYTES
_FEW_INODES = 1_000


def storage(case: Case) -> Finding:
    """Free space for the state directory, and whether it can be written."""
    state_dir = case.settings.device.state_dir
    try:
        room = os.statvfs(state_dir)
    except FileNotFoundError:
        return fail(f"{state_dir} is absent", "run `palmctl provision`, or name the right state_dir")
    free, inodes = room.f_bavail * room.f_frsize, room.f_favail
    detail = f"{free // 2**20:,} MiB free of {room.f_blocks * room.f_frsize // 2**20:,} at {state_dir}"
    if room.f_flag & os.ST_RDONLY:
        return fail(
            f"{state_dir} is mounted read-only, as after errors of its disk",
            "look at `dmesg`; replace the card if it has errors, then mount it read-write again",
        )
    if free < LOW_DISK_BYTES:
        return fail(
            detail, f"make room: {LOW_DISK_BYTES // 2**20} MiB are the least (du -xh / | sort -h | tail)"
        )
    errors = _ext4_errors(case, state_dir.stat().st_dev)
    if errors:
        return fail(f"the file system has counted {errors} errors", "save the logs and replace the card")
    if free < _FEW_BYTES or (room.f_files and inodes < _FEW_INODES):
        return warn(f"{detail}, {inodes:,} files may still be made", "make room before it is short")
    return ok(detail)


def _ext4_errors(case: Case, device: int) -> int:
    """The errors counted by ext4 on the partition of `device`; 0 for another file system."""
    name = text_of(case.system(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/uevent")) or ""
    partition = next((line[8:] for line in name.splitlines() if line.startswith("DEVNAME=")), "")
    counted = text_of(case.system(f"/sys/fs/ext4/{partition}/errors_count")) if partition else None
    return int(counted) if counted and counted.isdigit() else 0


_WORN_TENTHS = 8
_END_TENTHS = 10
_PRE_EOL = {1: "normal", 2: "warning", 3: "urgent"}


def wear(case: Case) -> Finding:
    """Wear of the flash memory, as it reports it (JEDEC eMMC 5.0: life_time in tenths, pre_eol_info)."""
    cards, worst, urgent = [], 0, False
    for card in sorted(case.system("/sys/block").glob("mmcblk*")):
        tenths = [int(word, 16) for word in (text_of(card / "device/life_time") or "").split()]
        if not tenths or not any(tenths):
            continue
        spare = int(text_of(card / "device/pre_eol_info") or "0", 16)
        worst, urgent = max(worst, *tenths), urgent or spare >= 3
        blocks = _PRE_EOL.get(spare, "unknown")
        cards.append(f"{card.name}: up to {max(tenths) * 10} % of its life used, spare blocks {blocks}")
    if not cards:
        return skip("no memory here reports its wear (SD cards and virtual disks do not)")
    if worst > _END_TENTHS or urgent:
        return fail(
            "; ".join(cards),
            "replace the card now: palmctl factory-reset, have it revoked, new card, provision",
        )
    if worst >= _WORN_TENTHS:
        return warn("; ".join(cards), "plan to replace the card at the next visit")
    return ok("; ".join(cards))


_RELEASED_MS = 1_767_225_600_000
"""2026-01-01: a correct clock does not show an earlier time."""
_SET_IT = "set it: timedatectl set-ntp true; without a network: timedatectl set-time; fit a clock battery"
_TIMEX_BYTES = 208
_TIME_ERROR = 5
"""adjtimex(2): the kernel's clock is not synchronised."""


def clock(case: Case) -> Finding:
    """This device's clock: is it set, and is it synchronised?"""
    now_ms = case.clock.wall_ms()
    detail = _utc(now_ms)
    pinned_ms = case.trust.pinned_at_ms if case.trust else 0
    if now_ms < max(_RELEASED_MS, pinned_ms):
        registered = pinned_ms > _RELEASED_MS
        why = "before this device was registered" if registered else "before this device was made"
        return fail(f"{detail}: that is {why}", _SET_IT)
    service_ms = case.service_time_ms
    if now_ms < service_ms - SIGNATURE_SKEW_S * 1000:
        return fail(f"{detail}: the service signed something as late as {_utc(service_ms)}", _SET_IT)
    counting = case.trust.dbd_keys_now(now_ms, service_ms) if case.trust else ()
    if counting and not any(key.holds(max(now_ms, service_ms)) for key in counting):
        return fail(f"{detail}: no pinned key of the validator has a window around it", _SET_IT)
    if case.config is not None and case.config.cloud is None:
        return ok(f"{detail}; without a network nothing sets it: compare it at each visit")
    if not _synchronised(case):
        return warn(f"{detail}; nothing keeps it right", "timedatectl set-ntp true, and let UDP port 123 out")
    return ok(f"{detail}, kept right by NTP")


def _synchronised(case: Case) -> bool:
    if text_of(case.system("/run/systemd/timesync/synchronized")) is not None:
        return True
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes = 0: read, change nothing
    state: int = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    return 0 <= state < _TIME_ERROR


def _utc(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


WARM_C = 70
_PI_THROTTLED = "/sys/devices/platform/soc/soc:firmware/get_throttled"
_UNDER_VOLTAGE, _FREQUENCY_CAPPED, _THROTTLED = 0x1, 0x2, 0x4
_SINCE_START_SHIFT = 16


def temperature(case: Case) -> Finding:
    """Heat: the sensors, and whether the board has throttled itself."""
    zones = [
        (milli_c // 1000, text_of(zone / "type") or zone.name)
        for zone in sorted(case.system("/sys/class/thermal").glob("thermal_zone*"))
        if (milli_c := number_of(zone / "temp")) is not None and 0 < milli_c < 150_000
    ]
    flags = number_of(case.system(_PI_THROTTLED), 16) or 0
    if flags & _UNDER_VOLTAGE:
        return fail("the supply voltage is too low now", "use the board's own power supply and a short cable")
    if not zones:
        return skip("this machine reports no temperature")
    hottest, sensor = max(zones)
    detail = f"{hottest} °C ({sensor})"
    if hottest >= HOT_C or flags & (_THROTTLED | _FREQUENCY_CAPPED):
        return fail(
            f"{detail}; the board slows itself down", "shade it, clear its air way, fit a heat sink or fan"
        )
    counts = case.system("/sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
    slowed = any((number_of(path) or 0) > 0 for path in counts)
    if slowed or flags >> _SINCE_START_SHIFT & (_UNDER_VOLTAGE | _THROTTLED):
        return warn(
            f"{detail}; since the start it was too hot or its supply too low at times",
            "look at it at the hottest hour of the day; check supply and air way",
        )
    if hottest >= WARM_C:
        return warn(detail, "check its air way before summer")
    return ok(detail)


_LEAST_MIB = 64
_FEW_MIB = 160


def memory(case: Case) -> Finding:
    """Memory: how much is left, and whether the kernel has killed a program for lack of it."""
    info = _numbers(case.system("/proc/meminfo"))
    if "MemAvailable:" not in info:
        return skip("this machine does not report it")
    left_mib, all_mib = info["MemAvailable:"] // 1024, info["MemTotal:"] // 1024
    detail = f"{left_mib:,} MiB available of {all_mib:,}"
    if left_mib < _LEAST_MIB:
        return fail(
            detail, "see what uses it: ps -eo rss,comm --sort -rss | head; end what is not the device's"
        )
    if killed := _numbers(case.system("/proc/vmstat")).get("oom_kill", 0):
        return warn(
            f"{detail}; {killed} programs were killed for lack of it since the start", "dmesg | grep -i oom"
        )
    if left_mib < _FEW_MIB:
        return warn(detail, "see what uses it: ps -eo rss,comm --sort -rss | head")
    return ok(detail)


def _numbers(path: Path) -> dict[str, int]:
    """The first word of each line of a kernel's table, and the number after it."""
    rows = (line.split() for line in (text_of(path) or "").splitlines())
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}


_TRACE = Path(".cache/Microsoft")
"""Where onnxruntime 1.29 and later keep what they would send."""
_USER = "palm-access"


def telemetry(case: Case) -> Finding:
    """Telemetry: the inference runtime must not have written any."""
    try:
        runtime = version("onnxruntime")
    except PackageNotFoundError:
        return skip("no onnxruntime is installed")
    homes = {case.system("/var/lib/palm-access")}
    if case.config is not None:
        homes.add(case.config.device.state_dir)
    with contextlib.suppress(KeyError):  # a development machine has no such user
        homes.add(Path(pwd.getpwnam(_USER).pw_dir))
    found = sorted(str(home / _TRACE) for home in homes if is_there(home / _TRACE))
    if found:
        return fail(
            f"onnxruntime has kept telemetry in {', '.join(found)}",
            "remove it; make sure that palmd.service has Environment=ORT_DISABLE_TELEMETRY=1",
        )
    return ok(f"off; onnxruntime {runtime} has written nothing")
