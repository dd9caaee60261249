"""The Debian package of the reference server: its environment under /opt, a user, units, a daily backup.

Debian's own Python makes the byte code when the package is installed, so any Python can build the package.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.rig.packaging import documents, tree
from tools.rig.packaging.debian_package import MAINTAINER, gzipped, pack, write_control
from tools.rig.packaging.release.distributions import LOCK, wheel_of
from tools.rig.packaging.release.environment import NOT_ON_A_SERVER, for_target, install_environment
from tools.rig.packaging.wheels import NOT_ON_A_BOARD, BuildTarget

PACKAGE = "palm-access-cloud"
PREFIX = Path("/opt/palm-access-cloud")
FILES = {
    "palm-access-cloud": "/usr/bin/palm-access-cloud",
    "backup": "/usr/libexec/palm-access-cloud/backup",
    "palm-access-cloud.service": "/usr/lib/systemd/system/palm-access-cloud.service",
    "palm-access-cloud-backup.service": "/usr/lib/systemd/system/palm-access-cloud-backup.service",
    "palm-access-cloud-backup.timer": "/usr/lib/systemd/system/palm-access-cloud-backup.timer",
    "sysusers.conf": "/usr/lib/sysusers.d/palm-access-cloud.conf",
    "server.env": "/etc/palm-access-cloud/server.env",
    "copyright": f"/usr/share/doc/{PACKAGE}/copyright",
}
_PAGES = ("OPERATIONS", "CAPACITY")
_EXECUTABLES = frozenset(
    {Path(FILES["palm-access-cloud"]), Path(FILES["backup"]), PREFIX / "bin" / "palmctl"}
)
_MAINTAINER_SCRIPTS = ("postinst", "prerm", "postrm")
_CONTROL = """\
Package: {package}
Version: {version}
Architecture: {arch}
Maintainer: {maintainer}
Installed-Size: @KIB@
Depends: python{python}, libc6 (>= 2.28), libstdc++6, systemd (>= 252)
Suggests: postgresql, postgresql-client
Section: net
Priority: optional
Description: reference server of the cloud of palm access devices
 The service that palm access devices keep step with: the partner API, the
 devices' gallery, verdicts and mail, an operator's page.
 .
 It serves on the loopback address, for a TLS proxy on the same machine or
 with a certificate of its own, and keeps its data in SQLite or PostgreSQL.
"""


@dataclass(frozen=True, slots=True)
class ServerBuild:
    """One package to be made."""

    source: Path
    """Root of a checkout."""
    wheels: Path
    """The folder of our own wheels."""
    target: BuildTarget
    version: str
    epoch: int
    """Time of every file, seconds since 1970."""
    cache: Path
    out: Path

    @property
    def path(self) -> Path:
        return self.out / f"{PACKAGE}_{self.version}_{self.target.debian_arch}.deb"


def build_server_deb(order: ServerBuild, lock_text: str | None = None) -> Path:
    """Make the package; returns its path. `lock_text` replaces the text of LOCK. Raises PackagingError."""
    order.out.mkdir(parents=True, exist_ok=True)
    order.cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=order.cache, prefix="server-") as scratch:
        root, lock = Path(scratch, "root"), Path(scratch, "lock.txt")
        text = (order.source / LOCK).read_text() if lock_text is None else lock_text
        lock.write_text(for_target(text, order.target, NOT_ON_A_BOARD | NOT_ON_A_SERVER))
        install_environment(
            root,
            PREFIX,
            order.target,
            lock=lock,
            cache=order.cache / f"wheels-{order.target.debian_arch}-{order.target.python}",
            own=[wheel_of(order.wheels, name) for name in ("palm_access_device", "palm_access_cloud")],
        )
        scripts = order.source / "tools/rig/packaging/cloud/debian"
        tree.copy_tree(scripts, root, FILES)
        _write_documents(root, order, documents.locked_names(lock.read_text()))
        control = _CONTROL.format(
            package=PACKAGE,
            version=order.version,
            arch=order.target.debian_arch,
            maintainer=MAINTAINER,
            python=order.target.python,
        )
        maintaining = {name: (scripts / name).read_text() for name in _MAINTAINER_SCRIPTS}
        write_control(root, control, maintaining)
        tree.normalise(root, order.epoch, _EXECUTABLES)
        tree.below(root, Path(FILES["server.env"])).chmod(0o600)  # it may name a database's password
        pack(root, maintaining, order.epoch, order.path)
    return order.path


def _write_documents(root: Path, order: ServerBuild, locked: frozenset[str]) -> None:
    folder = tree.below(root, Path("/usr/share/doc") / PACKAGE)
    for name in _PAGES:
        (folder / f"{name}.md").write_bytes((order.source / f"docs/howto/{name}.md").read_bytes())
    (folder / "changelog.gz").write_bytes(gzipped((order.source / "CHANGELOG.md").read_text()))
    third = documents.third_parties(tree.below(root, PREFIX), locked)
    (folder / "THIRD-PARTY").write_text(third.replace("/opt/palm-access/current", str(PREFIX)))
    manual = tree.below(root, Path("/usr/share/man/man8"))
    manual.mkdir(parents=True)
    page = order.source / "tools/rig/packaging/cloud/debian/palm-access-cloud.8"
    (manual / "palm-access-cloud.8.gz").write_bytes(gzipped(page.read_text()))
