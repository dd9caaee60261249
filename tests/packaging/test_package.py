"""A package as dpkg sees it, without the wheels of the lock: they are the index's matter and take minutes."""

import subprocess
import sys
from pathlib import Path

import pytest
from click import Group

from models.hand_landmarks import WEIGHTS_FOLDER, open_landmarks, weights_folder
from tests.hand_weights import needs_hand_weights
from tools.palmctl.groups import ExtendedGroup
from tools.rig.packaging import documents
from tools.rig.packaging.deb import MAINTAINER_SCRIPTS, PACKAGE, SOURCE, SYSTEM_FILES, Build, build
from tools.rig.packaging.debian_package import RELEASES
from tools.rig.packaging.interpreters import minor_version
from tools.rig.packaging.release.sbom import components_of, contents_of
from tools.rig.packaging.wheels import OWN_NOT_ON_A_BOARD, BuildTarget

pytestmark = pytest.mark.skipif(
    subprocess.run(["sh", "-c", "command -v dpkg-deb"], capture_output=True, check=False).returncode != 0,
    reason="needs dpkg-deb (apt install dpkg)",
)
EPOCH = 1_800_000_000
INSIDE = "./opt/palm-access/package"
PYTHON = minor_version()
TAG = f"cpython-{PYTHON.replace('.', '')}"


def order(folder: Path) -> Build:
    folder.mkdir(exist_ok=True)
    return Build(
        BuildTarget("arm64", PYTHON),
        Path(sys.executable),
        "1.2.3-4~deb12u1",
        EPOCH,
        "",
        weights_folder() if weights_folder().is_dir() else None,
        cache=folder / "cache",
        out=folder,
    )


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(order(tmp_path_factory.mktemp("deb")))


@pytest.fixture(scope="module")
def listing(package: Path) -> dict[str, str]:
    """{path: the rest of its line in `dpkg-deb --contents`}."""
    listed = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, text=True, check=True).stdout
    lines = (line.split(maxsplit=5) for line in listed.splitlines())
    return {
        name.partition(" -> ")[0]: f"{mode} {owner} {date} {time} {name}"
        for mode, owner, _, date, time, name in lines
    }


def field(package: Path, name: str) -> str:
    done = subprocess.run(["dpkg-deb", "-f", package, name], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.mark.long
def test_the_same_sources_give_the_same_bytes(package: Path, tmp_path: Path) -> None:
    assert build(order(tmp_path / "again")).read_bytes() == package.read_bytes()


def test_its_name_says_version_and_machine(package: Path) -> None:
    assert package.name == f"{PACKAGE}_1.2.3-4~deb12u1_arm64.deb"
    assert field(package, "Architecture") == "arm64"
    assert field(package, "Version") == "1.2.3-4~deb12u1"
    assert field(package, "Depends").startswith(f"python{PYTHON},")


def test_each_release_has_a_version_and_the_newer_one_upgrades() -> None:
    versions = [release.version("1.2.3", 4) for release in RELEASES]
    assert versions == ["1.2.3-4~deb12u1", "1.2.3-4~deb13u1"]
    for older, newer in (versions, ("1.2.3-3~deb13u1", versions[0])):
        subprocess.run(["dpkg", "--compare-versions", older, "lt", newer], check=True)


def test_everything_is_roots_and_of_one_time(listing: dict[str, str]) -> None:
    for line in listing.values():
        mode, owner, date, _, _ = line.split(maxsplit=4)
        assert owner == "root/root", line
        assert date == "2027-01-15", line
        assert mode[1:] in {"rwxr-xr-x", "rw-r--r--"} or mode[0] == "l", line


def test_what_runs_can_run(listing: dict[str, str]) -> None:
    executables = {path for path, line in listing.items() if line.startswith("-rwx")}
    assert executables == {
        f"{INSIDE}/bin/palmctl",
        f"{INSIDE}/bin/palmd",
        f"{INSIDE}/bin/palm-syncd",
        "./usr/sbin/palm-access-rollback",
        "./usr/libexec/palm-access/palm-kiosk",
        "./usr/libexec/palm-access/usb-gadget",
    }
    for name in ("palmctl", "palmd", "palm-syncd"):
        assert listing[f"./usr/bin/{name}"].endswith(f"-> /opt/palm-access/current/bin/{name}")
    assert listing[f"{INSIDE}/bin/python{PYTHON}"].endswith(f"-> /usr/bin/python{PYTHON}")


def test_no_code_of_the_server_the_kit_or_the_rig_is_in_it(listing: dict[str, str]) -> None:
    site = f"{INSIDE}/lib/python{PYTHON}/site-packages"
    assert f"{site}/device/core/main.py" in listing
    left_out = tuple(f"{site}/{folder}/" for folder in OWN_NOT_ON_A_BOARD)
    assert [path for path in listing if path.startswith(left_out)] == []


def test_every_unit_and_rule_is_in_it(listing: dict[str, str]) -> None:
    files = {
        str(file.relative_to(SOURCE / "systemd"))
        for file in (SOURCE / "systemd").rglob("*")
        if file.is_file()
    }
    assert files == SYSTEM_FILES.keys()
    assert {f".{place}" for place in SYSTEM_FILES.values()} <= listing.keys()


def test_byte_code_comes_with_it_and_names_its_place_on_the_board(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", package, tmp_path], check=True)
    site = tmp_path / INSIDE / f"lib/python{PYTHON}/site-packages"
    sources = set(site.rglob("*.py"))
    assert sources
    for source in sources:
        (compiled,) = (source.parent / "__pycache__").glob(f"{source.stem}.{TAG}.pyc")
        assert compiled.read_bytes()[4:8] == b"\x01\x00\x00\x00", "it is checked against its source (PEP 552)"
    assert (
        b"/opt/palm-access/versions/1.2.3-4~deb12u1/lib"
        in (site / f"device/core/__pycache__/main.{TAG}.pyc").read_bytes()
    )
    script = (tmp_path / INSIDE / "bin/palmd").read_text()
    assert script.startswith("#!/opt/palm-access/versions/1.2.3-4~deb12u1/bin/python -I\n")
    assert list(site.glob("models/shipped/**/*.onnx"))
    assert not list(tmp_path.rglob("direct_url.json"))


def test_the_list_of_third_parties_is_of_what_it_holds(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", package, tmp_path], check=True)
    listed = (tmp_path / f"usr/share/doc/{PACKAGE}/THIRD-PARTY").read_text()
    assert "palm-access-device 0.1.0: Apache-2.0\n" in listed  # the empty lock brings no other
    assert "licenses/LICENSE\n" in listed


@needs_hand_weights
def test_the_hand_weights_are_in_it_with_licence_and_notice(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", package, tmp_path], check=True)
    folder = tmp_path / INSIDE / WEIGHTS_FOLDER
    assert open_landmarks(folder).answer().size > 80
    assert "Apache License" in (folder / "LICENSE").read_text()
    assert "Changed: written as ONNX" in (folder / "NOTICE").read_text()
    listed = (tmp_path / f"usr/share/doc/{PACKAGE}/THIRD-PARTY").read_text()
    assert "mediapipe-hands-0.10.21: Apache-2.0\n" in listed and f"{WEIGHTS_FOLDER}/NOTICE\n" in listed
    (component,) = (c for c in components_of(contents_of(package)) if c.name == "hand-weights")
    assert [licence.value for licence in component.licenses] == ["Apache-2.0"]


def test_nothing_of_the_builder_is_in_it(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "-R", package, tmp_path], check=True)
    named = subprocess.run(
        ["grep", "-rlF", str(SOURCE), tmp_path], capture_output=True, text=True, check=False
    )
    assert named.stdout == ""
    for name in MAINTAINER_SCRIPTS:
        text = (tmp_path / "DEBIAN" / name).read_text()
        assert "@VERSION@" not in text
        assert "@PYTHON@" not in text
    assert (tmp_path / "DEBIAN/conffiles").read_text() == "/etc/palm-access/device.toml.example\n"
    subprocess.run(["md5sum", "--check", "--quiet", "DEBIAN/md5sums"], cwd=tmp_path, check=True)


def test_a_manual_page_for_every_command(listing: dict[str, str]) -> None:
    def commands(group: Group, path: str) -> set[str]:
        from click import Context

        found = {path}
        added = set(group.added_commands()) if isinstance(group, ExtendedGroup) else set()
        for name in set(group.list_commands(Context(group))) - added:
            command = group.get_command(Context(group), name)
            if isinstance(command, Group):
                found |= commands(command, f"{path}-{name}")
            elif command is not None and not command.hidden:
                found.add(f"{path}-{name}")
        return found

    root = documents.command_line()
    assert isinstance(root, Group)
    expected = commands(root, "palmctl") | {"palmd", "palm-syncd"}
    assert not any(name.startswith(("palmctl-cloud", "palmctl-dbd", "palmctl-demo")) for name in expected)
    pages = {Path(path).name.removesuffix(".1.gz") for path in listing if path.endswith(".1.gz")}
    assert pages == expected


def test_completion_for_three_shells(listing: dict[str, str]) -> None:
    for place in documents.COMPLETIONS.values():
        assert f".{place}" in listing
    for shell in documents.COMPLETIONS:
        assert "_PALMCTL_COMPLETE" in documents.completion(shell)
