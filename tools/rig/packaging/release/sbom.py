"""The bill of materials of an artefact, as CycloneDX 1.6: every file belongs to exactly one component.

A component names its files as occurrences. Components are the artefact itself (what is in nothing else), the
Debian packages of an image, the distributions of an environment, the shared libraries that their wheels bring
in folders `*.libs`, the shipped models and the published weights. What is compiled into a library has no
file: its licences are among those of the distribution, which also refers to the wheel's own bill where it has
one (PEP 770).
"""

import csv
import io
import json
import posixpath
import re
import subprocess
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.component_evidence import ComponentEvidence, Occurrence
from cyclonedx.model.license import DisjunctiveLicense, LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from tools.rig.packaging.documents import LICENCE_FILE
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.release.distributions import sha256

_READ = re.compile(
    r"(.*\.dist-info/(METADATA|RECORD)|var/lib/dpkg/(status|info/.*\.list)|usr/share/doc/[^/]+/copyright)$"
)
"""Files whose contents are looked at."""
_BYTE_CODE = re.compile(r"(.*/)?__pycache__/([^/]+)\.cpython-\d+\.pyc$")
_LIBRARY = re.compile(
    r".*\.libs/(lib[^/]*?)-[0-9a-f]{8}(?:-[0-9a-f]{8})?(?:\.([0-9][^/]*?))?\.so(?:\.([0-9][^/]*))?$"
)
_MODEL = re.compile(r"(?:.*/)?(?:models/shipped/([^/]+)|share/palm-access/(hand-weights))/")
_DEP5_LICENCE = re.compile(r"^License: *(\S.*)$", re.MULTILINE)


@dataclass(slots=True)
class Contents:
    """The files of an artefact and its links, without the first slash. `texts`: of those in _READ."""

    files: set[str] = field(default_factory=set)
    texts: dict[str, str] = field(default_factory=dict)


def contents_of(artefact: Path) -> Contents:
    """What is in a wheel, a source distribution, a Debian package or an image. Raises PackagingError."""
    found = Contents()
    if artefact.suffix == ".whl":
        with zipfile.ZipFile(artefact) as archive:
            for name in archive.namelist():
                found.files.add(name)
                if _READ.match(name):
                    found.texts[name] = archive.read(name).decode()
    elif artefact.name.endswith(".tar.gz"):
        with tarfile.open(artefact) as archive:
            _take(archive, found)
    elif artefact.suffix == ".deb":
        with (
            subprocess.Popen(["dpkg-deb", "--fsys-tarfile", artefact], stdout=subprocess.PIPE) as unpacking,
            tarfile.open(fileobj=unpacking.stdout, mode="r|") as archive,
        ):
            _take(archive, found)
    elif artefact.name.endswith(".oci.tar"):
        with tarfile.open(artefact) as image:
            for member in image.getmembers():
                with image.extractfile(member) or io.BytesIO() as blob:
                    if blob.read(2) == b"\x1f\x8b":
                        blob.seek(0)
                        with tarfile.open(fileobj=blob) as layer:
                            _take(layer, found)
    else:
        raise PackagingError(f"{artefact.name}: expected .whl, .tar.gz, .deb or .oci.tar")
    return found


def _take(archive: tarfile.TarFile, found: Contents) -> None:
    for member in archive:
        name = member.name.removeprefix("./")
        if not member.isdir():
            found.files.add(name)
            if member.isfile() and _READ.match(name) and (file := archive.extractfile(member)):
                found.texts[name] = file.read().decode(errors="replace")


@dataclass(frozen=True, slots=True)
class Artefact:
    """What a bill is about."""

    path: Path
    name: str
    version: str
    epoch: int
    """Time of the release, seconds since 1970."""


def write_sbom(artefact: Artefact, out: Path) -> None:
    """Write the bill of `artefact`. Raises PackagingError for what names no licence, or for a file of two."""
    found, digest = contents_of(artefact.path), sha256(artefact.path)
    components = components_of(found, artefact.name)
    owned = {one.location for component in components for one in _evidence(component).occurrences}
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"sha256:{digest}"),  # one artefact always gets the same number
        components=components,
    )
    bom.metadata.timestamp = datetime.fromtimestamp(artefact.epoch, UTC)
    whole = bom.metadata.component = Component(
        name=artefact.name,
        version=artefact.version,
        type=ComponentType.APPLICATION,
        bom_ref=artefact.path.name,
        licenses=[LicenseExpression("Apache-2.0")],
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        evidence=_files(found.files - owned),
    )
    bom.register_dependency(whole, components)
    bill = json.loads(make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string())
    for component in [bill["metadata"]["component"], *bill.get("components", [])]:
        # The library leaves occurrences in the order of a set.
        component["evidence"]["occurrences"].sort(key=lambda one: one["location"])
    out.write_text(f"{json.dumps(bill, indent=1, sort_keys=True)}\n")


def components_of(found: Contents, itself: str = "") -> list[Component]:
    """The components in an artefact, with their files; `itself`: its own distribution, if it is one, is none.

    Raises PackagingError.
    """
    owner: dict[str, str] = {}
    components: list[Component] = []
    for component, names in _claims(found, itself):
        reference = str(component.bom_ref.value)
        mine = {name for name in names if name in found.files}
        if taken := sorted(name for name in mine if name in owner):
            raise PackagingError(f"{taken[0]} is of two components: {owner[taken[0]]} and {reference}")
        if mine:
            components.append(component)
            owner.update(dict.fromkeys(mine, reference))
    for name in found.files - owner.keys():
        source = _BYTE_CODE.sub(r"\1\2.py", name)
        if source in owner:
            owner[name] = owner[source]
    for component in components:
        component.evidence = _files(name for name, one in owner.items() if one == component.bom_ref.value)
    return components


def _claims(found: Contents, itself: str) -> Iterator[tuple[Component, Iterable[str]]]:
    """Each component, and the files that are its own where they are there; byte code is not named."""
    table = tomllib.loads((Path(__file__).parent / "licences.toml").read_text())
    apart: set[str] = set()
    for name in sorted(found.files):
        if match := _LIBRARY.match(name):
            apart.add(name)
            yield _library(match, name, table["libraries"]), [name]
    models: dict[str, list[str]] = {}
    for name in sorted(found.files):
        if match := _MODEL.match(name):
            apart.add(name)
            models.setdefault(match[1] or match[2], []).append(name)
    for model, names in models.items():
        yield _model(model, table["models"]), names
    for place in sorted(name for name in found.texts if name.endswith(".dist-info/RECORD")):
        told = HeaderParser().parsestr(found.texts[f"{posixpath.dirname(place)}/METADATA"])
        if canonicalize_name(told["Name"]) != itself:
            listed = [name for name in _recorded(place, found.texts[place]) if name not in apart]
            yield _distribution(told, listed, table), listed
    for told, listed in _debian_packages(found.texts):
        yield _debian_package(told, found.texts), listed


def _recorded(place: str, text: str) -> Iterator[str]:
    """The files that the RECORD at `place` names, as paths in the artefact."""
    root = posixpath.dirname(posixpath.dirname(place))
    for row in csv.reader(io.StringIO(text)):
        if row:
            yield posixpath.normpath(posixpath.join(root, row[0]))


def _distribution(told: Message, listed: Sequence[str], table: Mapping[str, Mapping[str, str]]) -> Component:
    name, version = canonicalize_name(told["Name"]), told["Version"]
    licence = told["License-Expression"] or table["distributions"].get(name)
    if not licence:
        raise PackagingError(
            f"{name} {version}: expected License-Expression in its metadata, found none; "
            "read its licence and add it to licences.toml"
        )
    more = table["compiled_in"].get(name)
    bills = [one for one in listed if ".dist-info/sboms/" in one]
    texts = [one for one in listed if LICENCE_FILE.match(posixpath.basename(one)) or "/licenses/" in one]
    return Component(
        name=name,
        version=version,
        bom_ref=f"pypi:{name}",
        purl=PackageURL("pypi", None, name, version),
        licenses=[LicenseExpression(f"({licence}) AND {more}" if more else licence)],
        external_references=[
            ExternalReference(type=ExternalReferenceType.BOM, url=XsUri(one)) for one in sorted(bills)
        ],
        properties=[Property(name="palm-access:licence-text", value=one) for one in sorted(texts)],
    )


def _library(match: re.Match[str], place: str, libraries: Mapping[str, tuple[str, str]]) -> Component:
    name, version = match[1], match[2] or match[3] or ""
    if name not in libraries:
        raise PackagingError(f"{place}: a wheel's library without a licence; add {name} to licences.toml")
    licence, origin = libraries[name]
    return Component(
        name=name,
        version=version,
        bom_ref=place,
        purl=PackageURL("generic", None, name, version or None),
        licenses=[LicenseExpression(licence)],
        external_references=[ExternalReference(type=ExternalReferenceType.WEBSITE, url=XsUri(origin))],
    )


def _model(name: str, models: Mapping[str, tuple[str, str]]) -> Component:
    if name not in models:
        raise PackagingError(f"{name}: a model without a licence; add it to licences.toml")
    licence, origin = models[name]
    return Component(
        name=name,
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=f"model:{name}",
        description=origin,
        licenses=[LicenseExpression(licence)],
    )


def _debian_packages(texts: Mapping[str, str]) -> Iterator[tuple[Message, list[str]]]:
    """Each Debian package of an image, and its files without the first slash."""
    for entry in texts.get("var/lib/dpkg/status", "").strip().split("\n\n"):
        if entry:
            told = HeaderParser().parsestr(entry)
            place = f"var/lib/dpkg/info/{told['Package']}.list"
            yield told, [line.removeprefix("/") for line in texts[place].splitlines()]


def _debian_package(told: Message, texts: Mapping[str, str]) -> Component:
    name, version = told["Package"], told["Version"]
    place = f"usr/share/doc/{name}/copyright"
    # A package may link its folder to that of another one, which is of the same source.
    licences = sorted(set(_DEP5_LICENCE.findall(texts.get(place, "")))) or [f"see {place}"]
    return Component(
        name=name,
        version=version,
        bom_ref=f"deb:{name}",
        purl=PackageURL("deb", "debian", name, version, {"arch": told["Architecture"]}),
        licenses=[DisjunctiveLicense(name=licence) for licence in licences],
    )


def _files(names: Iterable[str]) -> ComponentEvidence:
    return ComponentEvidence(occurrences=[Occurrence(location=name) for name in sorted(names)])


def _evidence(component: Component) -> ComponentEvidence:
    if component.evidence is None:
        raise TypeError(f"{component.name} has no files")
    return component.evidence
