"""What this repository builds: only the product lies on a gate, and every module is in one distribution."""

import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.packaging.installed import link_installed
from tools.palmctl.commands.bench import bench
from tools.palmctl.groups import ExtendedGroup
from tools.palmctl.main import main
from tools.rig.packaging.deb import SOURCE
from tools.rig.packaging.documents import locked_names
from tools.rig.packaging.kit_copy import PALMCTL as PALMCTL_OF_KIT
from tools.rig.packaging.kit_copy import copy_kit
from tools.rig.packaging.wheels import NOT_ON_A_BOARD, OWN_NOT_ON_A_BOARD, without

PACKAGING = SOURCE / "tools/rig/packaging"
PROJECTS = {"device": SOURCE, "cloud": PACKAGING / "cloud", "rig": PACKAGING / "rig"}
MOST_LINES, MOST_BYTES = 39_500, 12 << 20
IMPORT_EACH = """
import sys
from importlib import import_module
from pathlib import Path

sys.path[:0] = sys.argv[1:]
for file in sorted(Path(sys.argv[1]).rglob("*.py")):
    import_module(".".join(file.relative_to(sys.argv[1]).with_suffix("").parts).removesuffix(".__init__"))
print(len(sys.modules))
"""
PALMCTL = """
import sys

sys.path[:0] = sys.argv[1:3]
del sys.argv[1:3]
from tools.palmctl.main import main

main(prog_name="palmctl")
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("wheels")
    for folder in PROJECTS.values():
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return {name: next(out.glob(f"palm_access_{name}-*.whl")) for name in PROJECTS}


@pytest.fixture(scope="module")
def gate(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What a gate's interpreter finds: the device's wheel, and the distributions of its lock alone."""
    own, libraries = tmp_path_factory.mktemp("gate"), tmp_path_factory.mktemp("libraries")
    with zipfile.ZipFile(wheels["device"]) as wheel:
        wheel.extractall(own)
    lock = (PACKAGING / "lock/device.txt").read_text()
    link_installed(locked_names(without(lock, NOT_ON_A_BOARD)), libraries)
    return [str(own), str(libraries)]


def on_the_gate(gate: list[str], code: str, *words: str) -> "subprocess.CompletedProcess[str]":
    # -I and -S: neither the folder it runs in nor the environment of the tests is looked at.
    command = [sys.executable, "-I", "-S", "-c", code, *gate, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", timeout=100)


def modules_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if name.endswith(".py")}


def test_the_devices_wheel_holds_the_product_alone(wheels: dict[str, Path]) -> None:
    with zipfile.ZipFile(wheels["device"]) as archive:
        names = archive.namelist()
        lines = sum(archive.read(name).count(b"\n") for name in names if name.endswith(".py"))
        size = sum(item.file_size for item in archive.infolist())
    assert [name for name in names if name.startswith(OWN_NOT_ON_A_BOARD)] == []
    assert "device/core/main.py" in names
    assert [name for name in names if "/locale/" in name] == [
        "tools/palmctl/locale/pt_BR/LC_MESSAGES/palmctl.mo"
    ]
    assert lines <= MOST_LINES
    assert size <= MOST_BYTES


def test_every_module_of_it_imports_with_nothing_but_its_lock(gate: list[str]) -> None:
    done = on_the_gate(gate, IMPORT_EACH)
    assert done.returncode == 0, done.stderr


def test_every_module_is_in_one_wheel(wheels: dict[str, Path]) -> None:
    tracked = subprocess.run(
        ["git", "ls-files", *("cloud_client", "device", "gallery", "link1", "models", "tools")],
        cwd=SOURCE, check=True, capture_output=True, text=True,
    ).stdout.split()  # fmt: skip
    held = [name for wheel in wheels.values() for name in modules_of(wheel)]
    assert sorted(held) == sorted(name for name in tracked if name.endswith(".py"))


def test_palmctl_offers_what_is_there(gate: list[str]) -> None:
    done = on_the_gate(gate, PALMCTL, "--help")
    listed = set(re.findall(r"^  ([a-z-]+)  ", done.stdout.partition("Commands:")[2], re.MULTILINE))
    assert {"bench", "status", "update"} <= listed
    assert listed.isdisjoint({"cloud", "dbd", "demo", "evaluate", "link", "playground"})


def test_palmctl_speaks_portuguese_there(gate: list[str]) -> None:
    done = on_the_gate(gate, PALMCTL, "--lang", "pt-BR", "--help")
    assert done.stdout.startswith("Uso: palmctl") and "Comandos:" in done.stdout


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("cloud", "serve"), "the reference server"),
        (("dbd", "simulate"), "the validator kit"),
        (("demo",), "the test rig"),
        (("bench", "cloud"), "the test rig"),
    ],
)
def test_palmctl_says_what_is_missing(gate: list[str], words: tuple[str, ...], part: str) -> None:
    done = on_the_gate(gate, PALMCTL, *words)
    assert done.returncode == 1
    assert done.stderr.startswith(f"palmctl: this command belongs to {part}, which is not installed here")
    assert "from a checkout of the project" in done.stderr
    assert "palm-access" not in done.stderr, "it names what no index has"


def test_the_kit_runs_next_to_the_package(gate: list[str], tmp_path: Path) -> None:
    copy_kit(tmp_path)
    kit = PALMCTL_OF_KIT.parent
    script = (tmp_path / PALMCTL_OF_KIT.relative_to("/")).read_text()
    here = script.replace(str(kit), str(tmp_path / kit.relative_to("/")))
    code = f"import sys\nsys.path[:0] = sys.argv[1:3]\ndel sys.argv[1:3]\n{here}"
    done = on_the_gate(gate, code, "dbd", "key", "--generate", "--key-file", str(tmp_path / "validator.key"))
    assert done.returncode == 0, done.stderr
    assert "pub_b64" in done.stdout


def test_an_unknown_command_has_a_suggestion_there(gate: list[str]) -> None:
    done = on_the_gate(gate, PALMCTL, "clout")
    assert done.returncode == 2
    assert "Did you mean 'cloud'?" in done.stderr


@pytest.mark.parametrize(("group", "name"), [(main, "palmctl.commands"), (bench, "palmctl.bench")])
def test_here_every_added_command_is_installed(group: ExtendedGroup, name: str) -> None:
    assert group.added_commands() == sorted(group.added_by) == sorted(entry_points(group=name).names)


def test_the_distributions_have_one_version_and_go_to_no_index() -> None:
    described = {
        name: tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        for name, folder in PROJECTS.items()
    }
    version = described["device"]["version"]
    for name in ("cloud", "rig"):
        assert described[name]["version"] == version
        assert f"palm-access-device=={version}" in described[name]["dependencies"]
        assert "Private :: Do Not Upload" in described[name]["classifiers"]
