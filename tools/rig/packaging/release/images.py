"""The images: the reference server, and the demonstration."""

import platform
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tools.rig.packaging.process import run
from tools.rig.packaging.release import base
from tools.rig.packaging.release.distributions import LOCK, PROJECTS, wheel_of
from tools.rig.packaging.release.environment import (
    NOT_ON_A_SERVER,
    for_target,
    install_environment,
    unpack_own,
)
from tools.rig.packaging.release.oci import USER, ContainerImage, pack_layer, write_image
from tools.rig.packaging.tree import below
from tools.rig.packaging.wheels import NOT_ON_A_BOARD, WHEEL_ARCHS, BuildTarget

PREFIX = Path("/opt/palm-access")
SERVER_DATA = Path("/var/lib/palm-access-cloud")
_LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
_ETC = {
    "passwd": f"root:x:0:0:root:/root:/usr/sbin/nologin\npalm:x:{USER}:{USER}:palm:/tmp:/usr/sbin/nologin\n",
    "group": f"root:x:0:\npalm:x:{USER}:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}


@dataclass(frozen=True, slots=True)
class ImageKind:
    """What an image is for. `left_out`: distributions of the lock that it does without."""

    name: str
    title: str
    projects: tuple[str, ...]
    left_out: frozenset[str]
    command: tuple[str, ...]
    """Arguments of `palmctl` where the user gives none."""
    data: Path | None = None
    """The one folder that it writes for good."""


SERVER = ImageKind(
    "palm-access-cloud",
    "Reference server of the cloud that palm access devices keep step with",
    ("palm_access_device", "palm_access_cloud"),
    NOT_ON_A_BOARD | NOT_ON_A_SERVER,
    ("cloud", "serve", "--host", "0.0.0.0", "--behind-tls-proxy"),  # noqa: S104 (of the container)
    SERVER_DATA,
)
DEMONSTRATION = ImageKind(
    "palm-access-demo",
    "One palm becomes a signed verdict on the cable, and the cloud knows it",
    tuple(PROJECTS),
    NOT_ON_A_BOARD,
    ("demo",),
)


def image_name(kind: ImageKind, version: str, arch: str) -> str:
    """The file name of an image's archive."""
    return f"{kind.name}_{version}_{arch}.oci.tar"


def build_image(
    kind: ImageKind,
    arch: str,
    *,
    source: Path,
    wheels: Path,
    version: str,
    epoch: int,
    cache: Path,
    out: Path,
) -> Path:
    """Write the image's archive into `out`, for the Debian architecture `arch`; returns its path.

    `wheels`: the folder with our own. Raises PackagingError.
    """
    out.mkdir(parents=True, exist_ok=True)
    cache.mkdir(parents=True, exist_ok=True)
    path = out / image_name(kind, version, arch)
    with tempfile.TemporaryDirectory(dir=cache, prefix="image-") as scratch:
        roots = layer_roots(kind, arch, source=source, wheels=wheels, cache=cache, into=Path(scratch))
        own = frozenset({str(kind.data.relative_to("/"))} if kind.data else ())
        layers = [
            pack_layer(root, Path(scratch, f"{number}.tar.gz"), epoch, own)
            for number, root in enumerate(roots)
        ]
        write_image(_described(kind, arch, version, epoch), layers, path)
    return path


def layer_roots(
    kind: ImageKind, arch: str, *, source: Path, wheels: Path, cache: Path, into: Path
) -> list[Path]:
    """The folders of the image's layers below `into`: Debian, third parties, and what is ours."""
    target = BuildTarget(arch, base.PYTHON)
    debian, third, ours = into / "debian", into / "third", into / "ours"
    packages = (source / base.LOCK).read_text()
    base.unpack_base(base.pinned(packages, arch), cache / "debian", debian)
    (debian / "tmp").mkdir(exist_ok=True)
    for name, text in _ETC.items():
        (debian / "etc" / name).write_text(text)
    here = platform.machine()
    python = debian
    if (
        here != target.wheel_arch
    ):  # byte code is the same on every architecture, the program that makes it is not
        python = into / "builder"
        builder = next(name for name, machine in WHEEL_ARCHS.items() if machine == here)
        base.unpack_base(base.pinned(packages, builder), cache / "debian", python)
    lock = into / "lock.txt"
    lock.write_text(for_target((source / LOCK).read_text(), target, kind.left_out))
    installed = install_environment(
        third, PREFIX, target, lock=lock, cache=cache / f"wheels-{arch}-{target.python}"
    )
    site_packages = ours / installed.relative_to(third)
    site_packages.mkdir(parents=True)
    for project in kind.projects:
        unpack_own(wheel_of(wheels, project), site_packages)
    if kind.data:
        below(ours, kind.data).mkdir(parents=True)
    _compile(python, debian / "usr/lib" / f"python{target.python}", debian)
    _compile(python, installed, third)
    _compile(python, site_packages, ours)
    return [debian, third, ours]


def _compile(python: Path, folder: Path, root: Path) -> None:
    """Byte code next to every source in `folder`, made by Debian's own Python in the tree `python`.

    The image is read only: what is not compiled here is compiled at each start.
    """
    machine = platform.machine()
    run(
        [
            *(python / _LOADERS[machine], "--library-path", python / f"usr/lib/{machine}-linux-gnu"),
            *(python / f"usr/bin/python{base.PYTHON}", "-s", "-S", "-m", "compileall", "-q", "-f"),
            *("--invalidation-mode", "unchecked-hash", "-s", root, "-p", "/", folder),
        ],
        env={"PYTHONHOME": str(python / "usr"), "PYTHONPATH": ""},
    )


def _described(kind: ImageKind, arch: str, version: str, epoch: int) -> ContainerImage:
    labels = {
        "org.opencontainers.image.title": kind.name,
        "org.opencontainers.image.description": kind.title,
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }
    environment = [f"PATH={PREFIX}/bin:/usr/bin", "HOME=/tmp", "LANG=C.UTF-8"]
    config: dict[str, object] = {
        "User": f"{USER}:{USER}",
        "Entrypoint": [f"{PREFIX}/bin/palmctl"],
        "Cmd": list(kind.command),
        "WorkingDir": "/tmp",  # noqa: S108 (of the container)
        "Labels": labels,
        "Env": environment,
    }
    if kind.data:
        config |= {
            "Env": [*environment, f"PALM_CLOUD_DATA={kind.data}"],
            "Volumes": {str(kind.data): {}},
            "ExposedPorts": {"8710/tcp": {}},
        }
    tag = version.replace("+", "-")  # a tag has no +
    return ContainerImage(f"{kind.name}:{tag}", arch, config, epoch)
