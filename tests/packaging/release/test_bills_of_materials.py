"""Bills of materials: every file of an artefact is in exactly one component, every component has files."""

import json
import re
import sys
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from license_expression import get_spdx_licensing  # type: ignore[import-untyped]

from models.hand_landmarks import WEIGHTS_FOLDER
from tests import REPOSITORY
from tests.packaging.release.conftest import EPOCH
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.release import sbom
from tools.rig.packaging.release.distributions import PROJECTS, sdist_of, wheel_of
from tools.rig.packaging.release.oci import ContainerImage, pack_layer, write_image
from tools.rig.packaging.release.sbom import Artefact, Contents, components_of, contents_of, write_sbom

pytestmark = pytest.mark.timeout(600)
TABLE = tomllib.loads((Path(sbom.__file__).parent / "licences.toml").read_text())
HERE = Path(sys.prefix)
"""The environment of the tests holds the wheels of the lock as well."""


def bill_of(artefact: Path, name: str, folder: Path) -> dict[str, Any]:
    """The bill of an artefact, checked against the schema and for what each bill must hold."""
    out = folder / f"{artefact.name}.cdx.json"
    write_sbom(Artefact(artefact, name, "1.0", EPOCH), out)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(out.read_text()) is None
    bill: dict[str, Any] = json.loads(out.read_text())
    check_bill(bill, contents_of(artefact).files)
    return bill


def check_bill(bill: dict[str, Any], files: set[str]) -> None:
    """Each file once, no component without a file or a licence."""
    components = [*bill.get("components", []), bill["metadata"]["component"]]
    named = [
        [one["location"] for one in component.get("evidence", {}).get("occurrences", [])]
        for component in components
    ]
    for component, names in zip(components, named, strict=True):
        assert names, f"{component['name']} has no files"
        assert component["licenses"], f"{component['name']} has no licence"
    listed = sorted(name for names in named for name in names)
    assert listed == sorted(files)


def names_in(bill: dict[str, Any]) -> set[str]:
    return {component["name"] for component in bill.get("components", [])}


@pytest.mark.parametrize("project", PROJECTS)
def test_of_our_own_distributions(wheels: Path, project: str, tmp_path: Path) -> None:
    name = project.replace("_", "-")
    expected = {path.parent.name for path in (REPOSITORY / "models/shipped").glob("*/manifest.json")}
    for artefact in (wheel_of(wheels, project), sdist_of(wheels, project)):
        assert names_in(bill_of(artefact, name, tmp_path)) == (
            expected if name == "palm-access-device" else set()
        )


def test_every_shipped_model_has_a_licence() -> None:
    shipped = {path.parent.name for path in (REPOSITORY / "models/shipped").glob("*/manifest.json")}
    assert TABLE["models"].keys() == shipped | {WEIGHTS_FOLDER.name}


def test_of_an_image_with_a_debian_package_and_a_wheel(wheels: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    site = root / "opt/app/lib/python3.13/site-packages"
    site.mkdir(parents=True)
    with zipfile.ZipFile(wheel_of(wheels, "palm_access_device")) as wheel:
        wheel.extractall(site)
    (site / "device/__pycache__").mkdir()
    (site / "device/__pycache__/errors.cpython-313.pyc").write_bytes(b"code")
    (root / "usr/share/doc/libsome").mkdir(parents=True)
    (root / "usr/share/doc/libsome/copyright").write_text(
        "Files: *\nLicense: Zlib\n\nLicense: GPL-2+\n text\n"
    )
    (root / "var/lib/dpkg/info").mkdir(parents=True)
    (root / "var/lib/dpkg/info/libsome.list").write_text("/.\n/usr\n/usr/share/doc/libsome/copyright\n")
    (root / "var/lib/dpkg/status").write_text("Package: libsome\nVersion: 1:2-3\nArchitecture: all\n\n")
    (root / "etc").mkdir()
    (root / "etc/passwd").write_text("")
    layer = pack_layer(root, tmp_path / "0.tar.gz", EPOCH)
    archive = tmp_path / "some_1.0_amd64.oci.tar"
    write_image(ContainerImage("some:1.0", "amd64", {}, EPOCH), [layer], archive)
    bill = bill_of(archive, "some", tmp_path)
    by_name = {component["name"]: component for component in bill["components"]}
    assert by_name["libsome"]["purl"] == "pkg:deb/debian/libsome@1:2-3?arch=all"
    assert [one["license"]["name"] for one in by_name["libsome"]["licenses"]] == ["GPL-2+", "Zlib"]
    own = {one["location"] for one in by_name["palm-access-device"]["evidence"]["occurrences"]}
    assert "opt/app/lib/python3.13/site-packages/device/__pycache__/errors.cpython-313.pyc" in own
    rest = {one["location"] for one in bill["metadata"]["component"]["evidence"]["occurrences"]}
    assert rest == {"etc/passwd", "var/lib/dpkg/status", "var/lib/dpkg/info/libsome.list"}
    assert {one["ref"] for one in bill["dependencies"]} >= {"deb:libsome", "pypi:palm-access-device"}


def environment() -> Contents:
    """This environment as an artefact would have it: what pip installed here, byte code and all."""
    found = Contents()
    for installed in distributions(path=[str(path) for path in HERE.glob("lib/python*/site-packages")]):
        for file in installed.files or ():
            place = Path(str(installed.locate_file(file))).resolve()
            if place.is_file() and place.is_relative_to(HERE.resolve()):
                name = str(place.relative_to(HERE.resolve()))
                found.files.add(name)
                if name.endswith((".dist-info/RECORD", ".dist-info/METADATA")):
                    found.texts[name] = place.read_text(encoding="utf-8")
    return found


def locked_contents() -> Contents:
    """Of this environment what the lock of a release names."""
    lock = (REPOSITORY / "tools/rig/packaging/lock/palmctl.txt").read_text()
    locked = set(re.findall(r"^([a-z0-9-]+)==", lock, re.MULTILINE))
    found = environment()
    for name in list(found.texts):
        if Path(name).parent.name.partition("-")[0].replace("_", "-").lower() not in locked:
            del found.texts[name]
    return found


def test_every_locked_distribution_and_each_library_in_it_has_an_spdx_licence() -> None:
    components = components_of(locked_contents())
    names = {component.name for component in components}
    assert {"numpy", "opencv-python-headless", "onnxruntime", "faiss-cpu", "psycopg-binary"} <= names
    assert {"libavcodec", "libopenblasp-r0", "libpq", "libcrypto"} <= names
    known = get_spdx_licensing()
    for component in components:
        for licence in component.licenses:
            expression = getattr(licence, "value", "")
            unknown = [
                key for key in known.unknown_license_keys(expression) if not key.startswith("LicenseRef-")
            ]
            assert expression and not unknown, (component.name, expression)


def test_the_licences_of_a_wheel_name_what_is_compiled_into_it_and_where_the_texts_are() -> None:
    (opencv,) = (one for one in components_of(locked_contents()) if one.name == "opencv-python-headless")
    expression = next(iter(opencv.licenses))
    assert "libtiff" in str(getattr(expression, "value", ""))
    texts = {one.value or "" for one in opencv.properties}
    assert any(text.endswith("LICENSE-3RD-PARTY.txt") for text in texts)


def test_a_library_without_a_licence_stops_the_build() -> None:
    with pytest.raises(PackagingError, match=r"add libnew to licences\.toml"):
        components_of(Contents({"site-packages/some.libs/libnew-0123abcd.so.1.2"}))


def test_a_model_without_a_licence_stops_the_build() -> None:
    with pytest.raises(PackagingError, match="hand-net: a model without a licence"):
        components_of(Contents({"models/shipped/hand-net/manifest.json"}))


def test_a_distribution_without_a_licence_stops_the_build() -> None:
    texts = {
        "s/quiet-1.dist-info/RECORD": "quiet.py,,\n",
        "s/quiet-1.dist-info/METADATA": "Name: quiet\nVersion: 1\n",
    }
    with pytest.raises(PackagingError, match="quiet 1: expected License-Expression"):
        components_of(Contents({"s/quiet.py"}, texts))


def test_a_file_of_two_components_stops_the_build() -> None:
    texts = {}
    for name in ("one", "two"):
        texts[f"s/{name}-1.dist-info/RECORD"] = "shared.py,,\n"
        texts[f"s/{name}-1.dist-info/METADATA"] = f"Name: {name}\nVersion: 1\nLicense-Expression: MIT\n"
    with pytest.raises(PackagingError, match=r"shared\.py is of two components: pypi:one and pypi:two"):
        components_of(Contents({"s/shared.py"}, texts))


def test_what_is_no_artefact_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PackagingError, match=r"expected \.whl"):
        contents_of(tmp_path / "some.zip")


def test_the_same_artefact_gives_the_same_bytes(wheels: Path, tmp_path: Path) -> None:
    artefact = sdist_of(wheels, "palm_access_cloud")
    for name in ("a", "b"):
        write_sbom(Artefact(artefact, "palm-access-cloud", "1.0", EPOCH), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
