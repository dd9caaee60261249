"""OpenPGP signatures by gpg: of the apt repository, the sums and the provenance, all by one key.

The key is a file with a secret key, or the fingerprint of one that the user's own gpg reaches (a smart card).
A signature bears the time of the release instead of the clock's, so that building again gives the same bytes.
"""

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.process import run


@dataclass(frozen=True, slots=True)
class Signer:
    """A key ready to sign. `epoch`: seconds since 1970 that signatures bear."""

    fingerprint: str
    home: Path | None
    """gpg's folder; None for the user's own."""
    epoch: int

    def detached(self, path: Path, suffix: str = ".asc") -> Path:
        """Sign a file; returns the signature next to it, armoured."""
        out = path.with_name(path.name + suffix)
        self._gpg("--armor", "--detach-sign", "--output", out, path)
        return out

    def clear(self, path: Path, out: Path) -> None:
        """Write a text with its signature round it."""
        self._gpg("--clearsign", "--output", out, path)

    def public_key(self) -> str:
        """The public key, armoured."""
        return run([*self._command, "--armor", "--export", self.fingerprint])

    @property
    def _command(self) -> list[object]:
        return ["gpg", "--batch", *(("--homedir", self.home) if self.home else ())]

    def _gpg(self, *arguments: object) -> None:
        time = datetime.fromtimestamp(self.epoch, UTC).strftime("%Y%m%dT%H%M%S!")
        run(
            [
                *(*self._command, "--yes", "--pinentry-mode", "loopback", "--local-user", self.fingerprint),
                *("--digest-algo", "SHA512", "--faked-system-time", time, *arguments),
            ]
        )


@contextlib.contextmanager
def signer(key: str, epoch: int) -> Iterator[Signer]:
    """The signer for `key`: the path of an exported secret key without passphrase, or a fingerprint.

    Raises PackagingError.
    """
    if not Path(key).is_file():
        yield Signer(
            _fingerprint(run(["gpg", "--batch", "--with-colons", "--list-secret-keys", key])), None, epoch
        )
        return
    with tempfile.TemporaryDirectory(prefix="gpg-") as folder:
        home = Path(folder)
        command = ["gpg", "--batch", "--homedir", home]
        try:
            run([*command, "--import", key])
            listed = run([*command, "--with-colons", "--list-secret-keys"])
            yield Signer(_fingerprint(listed), home, epoch)
        finally:
            run(["gpgconf", "--homedir", home, "--kill", "all"])


def _fingerprint(listed: str) -> str:
    for line in listed.splitlines():
        if line.startswith("fpr:"):
            return line.split(":")[9]
    raise PackagingError(
        "the signing key: expected a file with a secret OpenPGP key or a fingerprint, found none"
    )
