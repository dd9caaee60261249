"""Memory: how much is left, and whether the kernel has killed a program for lack of it."""

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, ok, skip, warn
from device.doctor.reading import text_of

NAME = "memory"
_LEAST_MIB = 64
_FEW_MIB = 160


def check(case: Case) -> Finding:
    info = dict(
        line.split(":", 1)
        for line in (text_of(case.system("/proc/meminfo")) or "").splitlines()
        if ":" in line
    )
    if "MemAvailable" not in info:
        return skip(NAME, "this machine does not report it")
    left_mib, all_mib = (int(info[name].split()[0]) // 1024 for name in ("MemAvailable", "MemTotal"))
    detail = f"{left_mib:,} MiB available of {all_mib:,}"
    if left_mib < _LEAST_MIB:
        return fail(
            NAME, detail, "see what uses it: ps -eo rss,comm --sort -rss | head; end what is not the device's"
        )
    killed = next(
        (
            int(line.split()[1])
            for line in (text_of(case.system("/proc/vmstat")) or "").splitlines()
            if line.startswith("oom_kill ")
        ),
        0,
    )
    if killed:
        return warn(
            NAME,
            f"{detail}; {killed} programs were killed for lack of it since the start",
            "dmesg | grep -i oom",
        )
    if left_mib < _FEW_MIB:
        return warn(NAME, detail, "see what uses it: ps -eo rss,comm --sort -rss | head")
    return ok(NAME, detail)
