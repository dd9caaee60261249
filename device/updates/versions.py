"""The versions of the software under /opt/palm-access, as root's installer sees them.

    versions/VERSION    an environment; `.VERSION.old`: as it was before a release of that version is tried
    current             a link to the one in use
    previous            a link to the version before it
    back                a link to the version that ran, while `current` is on trial
    update.json         the outcome of the last installation, or that one is on trial; replaced as a whole
    roots.json          the roots that must vouch for releases: root's copy, which palmd cannot write
    incoming/           root's copy of what palmd staged
    lock                held (flock) by who changes any of it: the installer, a package's postinst,
                        palm-access-rollback; no other user may open it

`back` is there before `current` is switched, so a trial ends by one rename, for which a full disk has room:
onto `previous`, or back onto `current`. At each start `palm-access-rollback --recover` ends what a power cut
left, as update.json says and without Python: the new version may be what does not work.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Final

from device.errors import StateError, UpdateRefused
from device.platform.files import replace_synced
from device.trust.bundle import followed_roots
from device.trust.trust import Trust
from device.updates.archive import APP_LIMITS, unpack
from device.updates.manifest import Manifest
from device.updates.room import check_room, unpacking_bytes
from link1 import members
from link1.canonical import read_strict
from link1.errors import FormatError
from link1.keys import PublicKey
from link1.plain_file import sync_folder
from link1.wire import WireObject

_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+~-]{0,63}")
_PYTHON = re.compile(r"^version = (3\.[0-9]{1,2})$", re.MULTILINE)
_MAX_FILE_BYTES: Final = 64 * 1024
_NO_ENVIRONMENT: Final = (
    *(FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError),
    UnicodeDecodeError,
)
"""What reading a payload's files, and linking the interpreter, meets where it holds something else."""


class Installation(WireObject):
    """The newest installation. `code` is empty when it is in force; `back_to` is the version that ran. Where
    the links say otherwise, the power went between the two, and this counts."""

    release_seq: int
    version: str
    back_to: str
    trial: bool
    code: str = ""


class Versions:
    """Everything below one prefix. Raises OSError when the disk fails."""

    def __init__(self, prefix: Path) -> None:
        self._prefix = prefix

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock. Raises StateError when another held it, once it is free: what this program runs from
        may be gone by then, and who started it starts another. One that ended at once would be started again
        and again meanwhile, until systemd gives up."""
        flags = os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self._prefix / "lock", flags, 0o600)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                raise StateError(f"another installation was at work in {self._prefix}") from error
            yield
        finally:
            os.close(descriptor)

    @property
    def incoming(self) -> Path:
        return self._prefix / "incoming"

    def folder(self, version: str) -> Path:
        return self._prefix / "versions" / version

    @property
    def current(self) -> str:
        return (self._prefix / "current").readlink().name

    def _aside(self, version: str) -> Path:
        return self.folder(f".{version}.old")

    def newest(self) -> Installation | None:
        """The content of update.json. Raises UpdateRefused when it is damaged."""
        path = self._prefix / "update.json"
        try:
            return Installation.from_obj(read_strict(path.read_bytes(), max_bytes=_MAX_FILE_BYTES))
        except FileNotFoundError:
            return None
        except FormatError as error:
            raise UpdateRefused(
                "updates_unusable", f"{path} is damaged ({error}); check `current`, then remove the file"
            ) from error

    def note(self, installation: Installation) -> None:
        """Write update.json durably."""
        text = json.dumps(asdict(installation)).encode("ascii")
        replace_synced(self._prefix / "update.json", text, mode=0o644)

    def check_room(self, manifest: Manifest, keep_free_bytes: int) -> None:
        """Raises UpdateRefused `no_space` where a payload and its version do not fit."""
        check_room(self._prefix, unpacking_bytes(manifest), keep_free_bytes)

    def place(self, manifest: Manifest, payload: Path, *, keep_free_bytes: int = 0) -> Path:
        """Unpack a payload into its folder, next to the version in use. Raises UpdateRefused."""
        version = manifest.version
        if _VERSION.fullmatch(version) is None:
            raise UpdateRefused("bad_version", "the version cannot be the name of a folder; name it 1.2.3")
        if version == self.current:
            raise UpdateRefused("version_in_use", f"{version} is in use; give the release another version")
        fresh = self.folder(f".{version}.new")
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o755, parents=True)
        try:
            unpack(payload, fresh, APP_LIMITS, keep_free_bytes=keep_free_bytes)
            self._link_python(fresh)
            if (fresh / "VERSION").read_text(encoding="ascii").strip() != version:
                raise UpdateRefused("bad_version", f"the payload is not version {version}; pack it again")
        except UpdateRefused:
            shutil.rmtree(fresh)
            raise
        except _NO_ENVIRONMENT as error:
            shutil.rmtree(fresh)
            raise UpdateRefused("bad_archive", f"the payload is not an environment ({error})") from error
        folder = self.folder(version)
        if folder.is_dir():  # the version before, which stays the way back where this one does not serve
            folder.rename(self._aside(version))
        fresh.rename(folder)
        sync_folder(folder.parent)
        return folder

    def try_out(self, version: str) -> None:
        """Switch `current` to that version, durably, with the way back laid before."""
        self._link("back", self.current)
        self._link("current", version)

    @property
    def is_on_trial(self) -> bool:
        """Whether there is a way back; a technician or a package that ends a trial takes it away."""
        return (self._prefix / "back").is_symlink()

    def keep(self) -> bool:
        """The version on trial stays, and the version that ran is the previous one. False without a trial."""
        return self._end_trial("previous")

    def put_back(self) -> bool:
        """The version that ran is back. False without a trial, or when that version is gone."""
        return self._end_trial("current")

    def _end_trial(self, name: str) -> bool:
        back = self._prefix / "back"
        if not self.is_on_trial:
            return False
        if not back.is_dir():
            back.unlink()
            return False
        back.rename(self._prefix / name)
        sync_folder(self._prefix)
        return True

    def tidy(self) -> None:
        """Remove every version but the one in use, the one before it and the one to go back to, and what an
        installation left that was cut off. The version before is as it was before a release that failed."""
        links = [self._prefix / name for name in ("current", "back", "previous")]
        *used, before = (link.readlink().name if link.is_symlink() else "" for link in links)
        if before not in used and self._aside(before).is_dir():
            shutil.rmtree(self.folder(before), ignore_errors=True)
            self._aside(before).rename(self.folder(before))
            sync_folder(self.folder(before).parent)
        kept = {*used, before}
        for folder in (self._prefix / "versions").iterdir():
            if folder.name not in kept:
                shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(self.incoming, ignore_errors=True)

    def roots(self, trust: Trust) -> tuple[PublicKey, ...]:
        """As `vouched_roots`; root's copy is updated."""
        good, path = self.vouched_roots(trust), self._prefix / "roots.json"
        text = json.dumps({"roots": [root.b64 for root in good]}).encode("ascii")
        if not path.exists() or path.read_bytes() != text:
            replace_synced(path, text, mode=0o644)
        return good

    def vouched_roots(self, trust: Trust) -> tuple[PublicKey, ...]:
        """The roots of `trust` that root's copy vouches for. Without a copy the roots pinned by provisioning
        are taken. Raises UpdateRefused `untrusted`."""
        path = self._prefix / "roots.json"
        try:
            held = read_strict(path.read_bytes(), max_bytes=_MAX_FILE_BYTES)
            known = [PublicKey.from_b64(text) for text in members.array(held, "roots", 1, 64)]
        except FileNotFoundError:
            return trust.roots
        except FormatError as error:
            raise UpdateRefused("untrusted", f"{path} is damaged ({error}); restore it") from error
        followed = followed_roots(trust, known)
        good = tuple(root for root in trust.roots if root in followed)
        if not good:
            raise UpdateRefused(
                "untrusted",
                f"no root that this device trusts is in {path}; if it was provisioned with another service "
                "on purpose, remove that file as root",
            )
        return good

    def _link_python(self, folder: Path) -> None:
        """Make the links to the system's interpreter, which a release does not contain."""
        found = _PYTHON.search((folder / "pyvenv.cfg").read_text(encoding="utf-8"))
        if found is None or not Path(f"/usr/bin/python{found[1]}").exists():
            raise UpdateRefused(
                "other_python", "the release needs a version of Python that this system does not have"
            )
        name = f"python{found[1]}"
        for link, goal in ((name, f"/usr/bin/{name}"), ("python3", name), ("python", name)):
            (folder / "bin" / link).symlink_to(goal)
        sync_folder(folder / "bin")

    def _link(self, name: str, version: str) -> None:
        fresh = self._prefix / f".{name}.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(Path("versions") / version)
        fresh.rename(self._prefix / name)
        sync_folder(self._prefix)
