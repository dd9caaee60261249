"""The apt repository of a release, as apt itself sees it: signed it installs, tampered with it is refused."""

import functools
import http.server
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.release.conftest import EPOCH, VERSION, new_key
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.release.__main__ import Order, build_release
from tools.rig.packaging.release.apt import KEY, write_apt
from tools.rig.packaging.release.signing import signer

pytestmark = pytest.mark.skipif(
    any(shutil.which(name) is None for name in ("apt-get", "dpkg-deb", "gpg")),
    reason="needs apt, dpkg and gnupg (apt install gnupg)",
)
NAME = "palm-access-tiny"


def tiny_package(folder: Path, python: str = "3.11", text: str = "a file\n") -> Path:
    """A package of one file for this machine's architecture."""
    root = folder / f"tree-{python}"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "usr/share/doc" / NAME).mkdir(parents=True)
    (root / "usr/share/doc" / NAME / "README").write_text(text)
    arch = subprocess.run(["dpkg", "--print-architecture"], check=True, capture_output=True, text=True).stdout
    (root / "DEBIAN/control").write_text(
        f"Package: {NAME}\nVersion: 1.0-1~python{python}\nArchitecture: {arch.strip()}\n"
        f"Maintainer: test <t@example.org>\nDepends: python{python}\nDescription: one file\n and no more\n"
    )
    out = folder / f"{NAME}_1.0-1~python{python}_{arch.strip()}.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", root, out], check=True, capture_output=True)
    shutil.rmtree(root)
    return out


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_key(tmp_path_factory.mktemp("key"))


@pytest.fixture
def repository(tmp_path: Path, key: Path) -> Path:
    """Two suites with a package each."""
    folder = tmp_path / "packages"
    folder.mkdir()
    packages = [tiny_package(folder, "3.11"), tiny_package(folder, "3.13")]
    with signer(str(key), EPOCH) as by:
        write_apt(packages, tmp_path / "apt", EPOCH, by)
    return tmp_path / "apt"


@pytest.fixture
def served(repository: Path) -> Iterator[str]:
    """The repository's address over HTTP on loopback."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(repository))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class Apt:
    """apt with a state of its own, which knows one repository."""

    def __init__(self, folder: Path, address: str, key: Path, suite: str = "bookworm") -> None:
        self.cache = folder / "cache/archives"
        for part in ("etc/preferences.d", "etc/apt.conf.d", "state/lists/partial", "cache/archives/partial"):
            (folder / part).mkdir(parents=True)
        # Of what a package needs there is nothing here but that it is installed.
        installed = "".join(
            f"Package: python{version}\nStatus: install ok installed\nVersion: {version}.2\n"
            f"Architecture: all\nMaintainer: test <t@example.org>\nDescription: there\n\n"
            for version in ("3.11", "3.13")
        )
        (folder / "state/status").write_text(installed)
        (folder / "etc/tiny.sources").write_text(
            f"Types: deb\nURIs: {address}\nSuites: {suite}\nComponents: main\nSigned-By: {key}\n"
        )
        settings = {
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Dir::Etc": folder / "etc",
            "Dir::Etc::SourceList": "none.list",
            "Dir::Etc::SourceParts": folder / "etc",
            "Dir::Etc::Trusted": "none.gpg",
            "Dir::Etc::TrustedParts": "none.d",
            "Dir::State": folder / "state",
            "Dir::State::status": folder / "state/status",
            "Dir::Cache": folder / "cache",
        }
        self._command = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]

    def run(self, *words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*self._command, *words], capture_output=True, text=True, check=False)


def test_apt_takes_a_package_from_it_over_http(served: str, repository: Path, tmp_path: Path) -> None:
    apt = Apt(tmp_path / "machine", served, repository / KEY)
    updated = apt.run("update", "--error-on=any")
    assert updated.returncode == 0, updated.stderr
    taken = apt.run("install", "-y", "--download-only", NAME)
    assert taken.returncode == 0, taken.stderr
    (package,) = apt.cache.glob("*.deb")
    assert package.read_bytes() == next((repository / "pool/bookworm").iterdir()).read_bytes()


def test_each_suite_has_the_package_for_its_python(repository: Path, tmp_path: Path) -> None:
    apt = Apt(tmp_path / "machine", f"file:{repository}", repository / KEY, "trixie")
    assert apt.run("update", "--error-on=any").returncode == 0
    assert "1.0-1~python3.13" in apt.run("--simulate", "install", NAME).stdout


def test_an_index_that_was_changed_is_refused(repository: Path, tmp_path: Path) -> None:
    for release in repository.glob("dists/bookworm/*Release"):
        release.write_text(release.read_text().replace("Label: palm-access", "Label: palm-excess"))
    apt = Apt(tmp_path / "machine", f"file:{repository}", repository / KEY)
    updated = apt.run("update")
    assert updated.returncode != 0
    assert "signature" in updated.stderr + updated.stdout


def test_an_index_signed_by_another_key_is_refused(repository: Path, tmp_path: Path) -> None:
    with signer(str(new_key(tmp_path / "another")), EPOCH) as other:
        (tmp_path / "another.asc").write_text(other.public_key())
    updated = Apt(tmp_path / "machine", f"file:{repository}", tmp_path / "another.asc").run("update")
    assert updated.returncode != 0


def test_a_package_that_was_changed_is_refused(served: str, repository: Path, tmp_path: Path) -> None:
    (package,) = (repository / "pool/bookworm").iterdir()
    size = package.stat().st_size
    package.unlink()
    tiny_package(tmp_path, "3.11", "other text\n").rename(package)
    package.write_bytes(package.read_bytes()[:size].ljust(size, b"\n"))
    apt = Apt(tmp_path / "machine", served, repository / KEY)
    assert apt.run("update", "--error-on=any").returncode == 0
    taken = apt.run("install", "-y", "--download-only", NAME)
    assert taken.returncode != 0
    assert "Hash Sum mismatch" in taken.stderr


def test_the_same_packages_and_key_give_the_same_bytes(repository: Path, key: Path, tmp_path: Path) -> None:
    with signer(str(key), EPOCH) as by:
        write_apt(sorted((repository / "pool").rglob("*.deb")), tmp_path / "again", EPOCH, by)
    for path in sorted(repository.rglob("*")):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "again" / path.relative_to(repository)).read_bytes(), path


def test_without_a_key_nothing_is_signed(repository: Path, tmp_path: Path) -> None:
    write_apt(sorted((repository / "pool").rglob("*.deb")), tmp_path / "unsigned", EPOCH, None)
    names = {path.name for path in (tmp_path / "unsigned").rglob("*")}
    assert "Release" in names
    assert names.isdisjoint({"InRelease", "Release.gpg", KEY})


def test_a_package_for_an_unknown_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match=r"expected python3\.11 or python3\.13"):
        write_apt([tiny_package(tmp_path, "3.9")], tmp_path / "apt", EPOCH, None)


def test_a_file_without_a_secret_key_cannot_sign(tmp_path: Path) -> None:
    (tmp_path / "none").write_text("no key\n")
    with pytest.raises(PackagingError), signer(str(tmp_path / "none"), EPOCH):
        pass


def test_a_build_of_both_architectures_after_one_has_a_bill_for_every_package(
    tmp_path: Path, wheels: Path
) -> None:
    """What one commit's builds have finished is kept, for one architecture and for both."""

    def released(*archs: str) -> tuple[set[str], set[str]]:
        folder = build_release(Order(VERSION, "0" * 40, EPOCH, archs, tmp_path / "out"), None)
        bills = {path.name.removesuffix(".cdx.json") for path in (folder / "sbom").iterdir()}
        kept = {*(folder / "wheels").iterdir(), *folder.glob("apt/pool/*/*.deb")}
        return bills, {path.name for path in kept} - {"requirements.txt"}

    work = tmp_path / "out" / "work" / f"{'0' * 40}-{EPOCH}"
    shutil.copytree(wheels, work / "wheels")
    for arch, python in (("amd64", "3.11"), ("arm64", "3.13")):
        for step in (f"device-{arch}", f"server-{arch}", f"images-{arch}"):
            (work / step).mkdir()
        tiny_package(work / f"device-{arch}", python)
    for archs in (("amd64",), ("amd64", "arm64"), ("arm64",)):
        bills, packages = released(*archs)
        assert bills == packages
