"""What a support bundle holds: everything that helps from afar, and nothing that is secret or about a person.

    README.txt      what this is
    versions.json   program, model, Python, system
    status.json     what palmd is doing; absent daemon: why
    doctor.json     every finding
    config.json     the configuration in force (parsed: comments of the file stay on the device)
    state.json      the files of the state directory by size and mode; nothing of their content
    units.json      what systemd says about both daemons
    udev.json       camera and cable as udev knows them
    health.txt      each change of the health words, of the log
    log.txt         the last lines of both daemons

No file of the state directory is opened for it. Every text goes through `tools.palmctl.scrub`.
"""

import contextlib
import gzip
import io
import json
import os
import platform
import stat
import tarfile
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from device.camera.source import SourceKind, parse_source
from device.config.config import DeviceConfig
from device.doctor.case import Case, is_closed, text_of
from device.doctor.examine import examine
from device.doctor.sandbox import EXPECTED, show_unit
from device.platform.files import naming
from tools.palmctl.commands.config import as_obj
from tools.palmctl.errors import BundleRefused, ToolError
from tools.palmctl.scrub import Scrubber
from tools.palmctl.unit_logs import UNITS, following, journalctl

LOG_LINES: Final = 2_000
_LIBRARIES: Final = (
    "palm-access-device",
    "faiss-cpu",
    "numpy",
    "onnxruntime",
    "opencv-python-headless",
    "PyNaCl",
)
_UNIT_PROPERTIES: Final = (
    "LoadState", "ActiveState", "SubState", "Result", "NRestarts", "ExecMainStatus", "ActiveEnterTimestamp",
    "MemoryCurrent", "DropInPaths",
)  # fmt: skip
_README: Final = """A support bundle of a palm access device, made by `palmctl support-bundle`.

It holds no key, no vector, no token, and nothing about a person: the files of the state directory were not
opened, and everything in logs that looked like an identifier is replaced by [removed].
"""


def collect(case: Case, tell: Callable[[str], None]) -> dict[str, str]:
    """The files of the bundle by name, as text. `tell` is called with each step."""
    scrub = Scrubber(keep=_harmless(case))
    found = examine(case, tell=lambda name: tell(f"doctor: {name}"))
    tell("logs")
    log, health = _log()
    gathered: dict[str, object] = {
        "versions.json": _versions(case),
        "status.json": _status(case),
        "doctor.json": [finding.to_obj(name) for name, finding in found.items()],
        "config.json": as_obj(case.config) if case.config else {"problem": case.config_problem},
        "state.json": _state_files(case.config),
        "units.json": {unit: show_unit(unit, _UNIT_PROPERTIES) for unit in EXPECTED},
        "udev.json": _udev(case),
    }
    files = {
        name: json.dumps(scrub.value(content), indent=2, ensure_ascii=False) + "\n"
        for name, content in gathered.items()
    }
    return {"README.txt": _README, **files, "health.txt": scrub.lines(health), "log.txt": scrub.lines(log)}


def write_bundle(path: Path, files: Mapping[str, str]) -> None:
    """Write the archive at once, readable by its owner alone, never over a file. Raises BundleRefused."""
    check_target(path)
    prefix = path.name.removesuffix(".tar.gz")
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=".support-bundle-")  # 0600
    try:
        with naming(path), os.fdopen(descriptor, "wb") as file:
            # Without a time of its own: gzip has 32 bits for it, and a clock may be wrong.
            packed = gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0)
            with packed, tarfile.open(fileobj=packed, mode="w") as archive:
                for name, text in files.items():
                    data = text.encode("utf-8")
                    entry = tarfile.TarInfo(f"{prefix}/{name}")
                    entry.size, entry.mode, entry.mtime = len(data), 0o600, int(time.time())
                    archive.addfile(entry, io.BytesIO(data))
            file.flush()
            os.fsync(file.fileno())
        _put_in_place(Path(aside), path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(aside).unlink()


def check_target(path: Path) -> None:
    """Find out before gathering. Raises BundleRefused."""
    if not path.name.endswith(".tar.gz"):
        raise BundleRefused(f"{path}: name the bundle something.tar.gz")
    if path.exists() or path.is_symlink():
        raise BundleRefused(f"{path} is there already and is not overwritten; choose another name")
    if not path.parent.is_dir():
        raise BundleRefused(f"{path.parent} is no folder; make it, or name another place")
    if not os.access(path.parent, os.W_OK):
        raise BundleRefused(
            f"{path.parent} may not be written by this user; name another place, such as /tmp"
        )


def _put_in_place(aside: Path, path: Path) -> None:
    try:
        os.link(aside, path)  # unlike a rename, this never takes the place of a file that came meanwhile
    except FileExistsError:
        raise BundleRefused(f"{path} is there already and is not overwritten; choose another name") from None
    except OSError:  # a stick with a file system without links
        check_target(path)
        aside.rename(path)


def _harmless(case: Case) -> frozenset[str]:
    """Identifiers without which a bundle says little: this device's, its tenant's, whose keys it believes."""
    kept: set[str] = set()
    trust, config = case.trust, case.config
    if trust is not None:
        kept |= {key.kid for key in trust.roots} | {key.public.kid for key in trust.keys}
        kept |= {key.public.kid for key in trust.dbd_keys}
        kept |= {trust.tenant_id, trust.device_id, trust.gate_id, trust.dbd_id}
    if case.keys is not None:
        kept |= {case.keys.verdict.kid, case.keys.http.kid}
    if config is not None:
        kept |= {config.device.id, config.device.gate_id, config.device.dbd_id}
        kept |= set(config.link.port.split("/")) | set(config.camera.source.split("/"))
    return frozenset(kept)


def _versions(case: Case) -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _LIBRARIES:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    release = (text_of(case.system("/etc/os-release")) or "").splitlines()
    found["system"] = next(
        (line[12:].strip('"') for line in release if line.startswith("PRETTY_NAME=")), "unknown"
    )
    found["kernel"] = platform.release()
    board = text_of(case.system("/proc/device-tree/model"))
    found["board"] = board.rstrip("\0") if board else "unknown"
    return found


def _status(case: Case) -> dict[str, Any]:
    """Device status, with the subject removed from the last verdict."""
    if case.status is None:
        return {"problem": case.status_problem}
    told = {
        name: value for name, value in case.status.to_obj().items() if name not in ("txn_id", "enrolment")
    }
    last = told.get("last_verdict")
    if isinstance(last, dict):
        told["last_verdict"] = {
            name: last.get(name) for name in ("verdict_seq", "decision", "result", "quality_q")
        }
    return told


def _state_files(config: DeviceConfig | None) -> list[dict[str, Any]]:
    if config is None:
        return []
    if is_closed(config.device.state_dir):
        return [{"problem": "may not be read by the user who made this bundle"}]
    listed = []
    with contextlib.suppress(OSError):
        for path in sorted(config.device.state_dir.rglob("*"))[:500]:
            found = path.lstat()
            listed.append(
                {
                    "path": str(path.relative_to(config.device.state_dir)),
                    "bytes": found.st_size,
                    "mode": stat.filemode(found.st_mode),
                    "uid": found.st_uid,
                }
            )
    return listed


def _udev(case: Case) -> dict[str, list[str]]:
    """udev's properties of the camera and the port, but for serial numbers."""
    if case.config is None:
        return {}
    nodes = [Path(case.config.link.port)] if case.config.link.port.startswith("/") else []
    camera = parse_source(case.config.camera.source)
    if camera.kind is SourceKind.V4L2:
        nodes.append(camera.path)
    told = {}
    for node in nodes:
        with contextlib.suppress(OSError):
            found = node.stat()
            if not stat.S_ISCHR(found.st_mode):
                continue
            record = case.system(f"/run/udev/data/c{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}")
            lines = (text_of(record) or "").splitlines()
            told[str(node)] = [line for line in lines if line.startswith("E:") and "SERIAL" not in line]
    return told


def _log() -> tuple[list[str], list[str]]:
    """The last lines of the daemons, and those among them that report a change of health."""
    try:
        command = journalctl(UNITS, f"--lines={LOG_LINES}")
        with following(command) as found:
            lines = [(f"{line.at_ms} {line.unit} {line.level}", line.text) for line in found]
    except ToolError as error:
        return [str(error)], []
    log = [f"{head} {text}" for head, text in lines]
    return log, [f"{head} {text}" for head, text in lines if "health: " in text]
