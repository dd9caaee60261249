"""Provision this gate with the file on its boot partition, and say on the console where the gate is.

The file is used once: afterwards it is overwritten and removed (flash may keep old copies). It is TOML:

    string = "PALM1…"                      # the operator's provisioning string
    camera = "/dev/palm-camera"            # default
    link_port = "/dev/palm-validator"      # default

Exit status: 0 provisioned, or nothing to do; 1 refused; 2 the file cannot be read; 3 try again. Debian's own
python3 and its standard library run this.
"""

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BOOT = Path("/dev/disk/by-label", os.environ.get("PALM_BOOT_LABEL", "PALM-BOOT"))
MOUNTED = Path("/run/palm-image/boot")
FILE = MOUNTED / "palm-provision.toml"
CONFIG = Path("/etc/palm-access/device.toml")
DAMAGED = Path("/run/palm-image/damaged")
ISSUE = Path("/run/issue.d/palm-access.issue")
MAX_BYTES = 64 * 1024
DEFAULTS = {"camera": "/dev/palm-camera", "link_port": "/dev/palm-validator"}
HOW = f"put {FILE.name} with the operator's provisioning string on its boot partition, and restart it"


def main() -> int:
    if DAMAGED.exists():
        say(
            f"NOT SERVING. {DAMAGED.read_text().strip()} What to do: e2fsck -f the partition palm-state in "
            "another machine, or flash the card again and provision it as a new gate."
        )
        return 1
    made = ""
    try:
        with boot_partition():
            if not CONFIG.exists():
                if not FILE.exists():
                    say(f"NOT PROVISIONED. This board is no gate yet: {HOW}.")
                    return 0
                code, made = provision()
                if code != 0:
                    return code
            if FILE.exists():  # used just now, or before the power went, or not meant for this gate
                destroy()
    except (subprocess.CalledProcessError, OSError) as error:
        if not CONFIG.exists():
            say(f"NOT PROVISIONED. The boot partition cannot be used ({error}). On another machine: {HOW}.")
            return 1
        print(f"palm-access: the boot partition cannot be used: {error}", flush=True)
    # At boot, the daemons' units start only where the gate is provisioned already.
    subprocess.run(["systemctl", "start", "--no-block", "palmd", "palm-syncd"], check=False)
    # With the key for the validator: no one can log in to ask for it.
    say(f"{made}PROVISIONED. This gate starts by itself; palmctl status and palmctl doctor say how it is.")
    return 0


def provision() -> tuple[int, str]:
    """Have `palmctl` take the string of the file; the exit status, and what it printed about the device."""
    try:
        string, *options = wanted(FILE.read_bytes()[: MAX_BYTES + 1])
    except ValueError as error:
        say(f"NOT PROVISIONED. {FILE.name}: {error}. Correct it on another machine: {HOW}.")
        return 2, ""
    done = subprocess.run(
        ["palmctl", "provision", "--string-stdin", *options],
        input=string, capture_output=True, text=True, check=False,
    )  # fmt: skip
    why = done.stderr.strip().rpartition("palmctl: ")[2].rstrip(".")
    if done.returncode == 0:
        return 0, done.stdout
    if done.returncode == 3:
        say(f"NOT PROVISIONED YET. {why}. It is tried again every 20 seconds.")
        return 3, ""
    say(f"NOT PROVISIONED. {why}. With another string: {HOW}.")
    return 1, ""


def wanted(content: bytes) -> list[str]:
    """The string, and the options of `palmctl provision`. Raises ValueError with what is wrong."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"expected at most {MAX_BYTES} bytes, found more")
    try:
        said = tomllib.loads(content.decode("utf-8-sig").replace("\r\n", "\n"))
    except ValueError as error:
        raise ValueError(f"expected TOML, found something else ({error})") from None
    unknown = said.keys() - {"string", *DEFAULTS}
    if unknown or not all(isinstance(value, str) and "\n" not in value for value in said.values()):
        raise ValueError(f"expected string, camera, link_port, each a text; found {', '.join(sorted(said))}")
    if "string" not in said:
        raise ValueError('expected the line string = "PALM1…", found none')
    chosen = DEFAULTS | said
    return [said["string"], "--camera", chosen["camera"], "--link-port", chosen["link_port"]]


@contextmanager
def boot_partition() -> Iterator[None]:
    """Mounted read-only as long as it is looked at."""
    MOUNTED.mkdir(mode=0o700, parents=True, exist_ok=True)
    subprocess.run(
        ["mount", "-t", "vfat", "-o", "ro,nodev,nosuid,noexec,umask=077", BOOT, MOUNTED], check=True
    )
    try:
        yield
    finally:
        subprocess.run(["umount", MOUNTED], check=True)


def destroy() -> None:
    """Overwrite the file, then remove it: each is on the disk before the next begins."""
    subprocess.run(["mount", "-o", "remount,rw,sync", MOUNTED], check=True)
    with FILE.open("r+b") as file:
        file.write(bytes(os.fstat(file.fileno()).st_size))
        file.flush()
        os.fsync(file.fileno())
    FILE.unlink()
    os.sync()
    subprocess.run(["mount", "-o", "remount,ro", MOUNTED], check=True)


def say(text: str) -> None:
    """To the console now, and above every login prompt."""
    print(f"palm-access: {text}", flush=True)
    ISSUE.parent.mkdir(exist_ok=True)
    ISSUE.write_text(f"palm-access, {time.strftime('%Y-%m-%d %H:%M')} UTC: {text}\n\n")


if __name__ == "__main__":
    sys.exit(main())
