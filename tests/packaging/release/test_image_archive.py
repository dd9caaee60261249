"""The archive of an image: what the OCI's own tools read out of it."""

import hashlib
import io
import json
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.packaging.release.conftest import EPOCH
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.release import base
from tools.rig.packaging.release.oci import USER, ContainerImage, pack_layer, write_image

IMAGE = ContainerImage("tiny:1.0", "arm64", {"User": f"{USER}:{USER}", "Entrypoint": ["/bin/run"]}, EPOCH)


def tiny_image(folder: Path) -> Path:
    """Two layers: a program with a link to it, and a folder of data."""
    first, second, out = folder / "first", folder / "second", folder / "tiny.oci.tar"
    (first / "bin").mkdir(parents=True)
    (first / "tmp").mkdir()
    (first / "bin/run").write_text("#!/bin/sh\n")
    (first / "bin/run").chmod(0o700)
    (first / "bin/link").symlink_to("run")
    (second / "data").mkdir(parents=True)
    (second / "text").write_text("text\n")
    layers = [
        pack_layer(first, folder / "0.tar.gz", EPOCH),
        pack_layer(second, folder / "1.tar.gz", EPOCH, frozenset({"data"})),
    ]
    write_image(IMAGE, layers, out)
    return out


def members(image: Path) -> dict[str, tarfile.TarInfo]:
    """Everything in the layers."""
    found: dict[str, tarfile.TarInfo] = {}
    with tarfile.open(image) as archive:
        manifest = json.load(archive.extractfile("manifest.json") or io.BytesIO())
        for name in manifest[0]["Layers"]:
            with tarfile.open(fileobj=archive.extractfile(name)) as layer:
                found |= {member.name: member for member in layer}
    return found


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    first, second = tiny_image(tmp_path / "a"), tiny_image(tmp_path / "b/at/another/path")
    assert first.read_bytes() == second.read_bytes()


def test_every_blob_has_the_sum_that_names_it(tmp_path: Path) -> None:
    with tarfile.open(tiny_image(tmp_path)) as archive:
        blobs = [member for member in archive if member.name.startswith("blobs/")]
        assert len(blobs) == 4
        for member in blobs:
            data = (archive.extractfile(member) or io.BytesIO()).read()
            assert member.name == f"blobs/sha256/{hashlib.sha256(data).hexdigest()}"


def test_owners_and_modes(tmp_path: Path) -> None:
    found = members(tiny_image(tmp_path))
    shown = {name: (one.uid, oct(one.mode), one.mtime) for name, one in found.items()}
    assert shown == {
        "bin": (0, "0o755", EPOCH),
        "bin/run": (0, "0o755", EPOCH),
        "bin/link": (0, "0o777", EPOCH),
        "tmp": (0, "0o1777", EPOCH),
        "data": (USER, "0o700", EPOCH),
        "text": (0, "0o644", EPOCH),
    }


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="needs skopeo (apt install skopeo)")
@pytest.mark.parametrize("kind", ["oci-archive", "docker-archive"])
def test_both_ways_to_load_it_read_it(kind: str, tmp_path: Path) -> None:
    image = tiny_image(tmp_path)
    done = subprocess.run(
        ["skopeo", "copy", "--override-arch", "arm64", f"{kind}:{image}", f"dir:{tmp_path / 'copied'}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = subprocess.run(
        ["skopeo", "--override-arch", "arm64", "inspect", "--config", f"{kind}:{image}"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert json.loads(shown)["config"]["User"] == "65532:65532"
    assert json.loads(shown)["architecture"] == "arm64"


def test_the_lock_of_the_base_names_the_same_packages_for_both_architectures() -> None:
    lock = (REPOSITORY / base.LOCK).read_text()
    names = [{one.name for one in base.pinned(lock, arch)} for arch in ("amd64", "arm64")]
    assert names[0] == names[1]
    assert {"base-files", f"python{base.PYTHON}-minimal", "libc6", "libstdc++6"} <= names[0]


def test_a_debian_package_with_other_bytes_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "some.deb").write_bytes(b"other bytes")
    package = base.BasePackage("amd64", "some_1_amd64.deb", "0" * 64, f"file://{tmp_path / 'some.deb'}")
    with pytest.raises(PackagingError, match="expected sha256 0000"):
        base.fetch(package, tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
