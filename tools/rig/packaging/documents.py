"""What a package says about itself: manual pages, completion, changelog, third parties."""

import csv
import io
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from models.hand_landmarks import WEIGHTS_FOLDER
from tools.palmctl.language import choose_language
from tools.rig.packaging import manual
from tools.rig.packaging.debian_package import gzipped
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.tree import PREFIX, below

if TYPE_CHECKING:
    import click

COMPLETIONS = {
    "bash": "/usr/share/bash-completion/completions/palmctl",
    "zsh": "/usr/share/zsh/vendor-completions/_palmctl",
    "fish": "/usr/share/fish/vendor_completions.d/palmctl.fish",
}

LICENCE_FILE = re.compile(r"(?i)(licen[cs]es?|copying|notices?|third.?party.*)([-._].*)?$")
_THIRD_PARTY = """\
The Python distributions and published weights in this package, as their own metadata and files name their
licences. Each entry ends with the licence files that it brings, notices about what is compiled into it among
them; they lie below /opt/palm-access/current. Of this project itself: the file `copyright` in this folder.

"""


@dataclass(frozen=True, slots=True)
class About:
    """The package that the documents are about. `epoch`: seconds since 1970."""

    source: Path
    package: str
    version: str
    maintainer: str
    epoch: int
    locked: frozenset[str]
    """The distributions that must be in it."""


def write_all(root: Path, about: About) -> None:
    """Write every document below `root`; the installed packages are there already."""
    documents = Path("/usr/share/doc") / about.package
    for name, text in manual_pages(about.version, about.epoch).items():
        _write(root, Path("/usr/share/man/man1") / f"{name}.gz", gzipped(text))
    for name, text in portuguese_pages(about.version, about.epoch).items():
        _write(root, Path("/usr/share/man/pt_BR/man1") / f"{name}.gz", gzipped(text))
    _write(
        root,
        Path("/usr/share/man/man8/palm-access-rollback.8.gz"),
        gzipped((Path(__file__).parent / "debian/palm-access-rollback.8").read_text()),
    )
    for shell, place in COMPLETIONS.items():
        _write(root, Path(place), completion(shell).encode())
    _write(root, documents / "changelog.gz", gzipped((about.source / "CHANGELOG.md").read_text()))
    date = datetime.fromtimestamp(about.epoch, UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")
    _write(
        root,
        documents / "changelog.Debian.gz",
        gzipped(
            f"{about.package} ({about.version}) stable; urgency=medium\n\n"
            "  * What changed is in changelog.gz.\n\n"
            f" -- {about.maintainer}  {date}\n"
        ),
    )
    _write(
        root, documents / "THIRD-PARTY", third_parties(below(root, PREFIX / "package"), about.locked).encode()
    )
    _write(root, documents / "README.md", (about.source / "README.md").read_bytes())
    pages = about.source / "docs"
    for path in sorted(pages.rglob("*.md")):
        _write(root, documents / path.relative_to(pages), path.read_bytes())


def command_line() -> "click.Command":
    """The root of `palmctl`."""
    from tools.palmctl.main import main

    return main


def manual_pages(version: str, epoch: int) -> Mapping[str, str]:
    """{file name: text} of every command and both daemons."""
    from device.core import palmd
    from device.syncd import main as syncd

    return {
        **manual.of_click(command_line(), "palmctl", version, epoch),
        **manual.of_argparse(palmd.parser(), version, epoch),
        **manual.of_argparse(syncd.parser(), version, epoch),
    }


def portuguese_pages(version: str, epoch: int) -> Mapping[str, str]:
    """{file name: text} of every command, in Portuguese."""
    before = os.environ.get("LANGUAGE")
    choose_language("pt-BR", as_json=False)
    try:
        return manual.of_click(command_line(), "palmctl", version, epoch)
    finally:
        choose_language(None, as_json=True)
        os.environ.pop("LANGUAGE")
        if before is not None:
            os.environ["LANGUAGE"] = before


def completion(shell: str) -> str:
    """The script that lets `shell` ask palmctl itself what can come next."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"click knows no completion for {shell}")
    asking = kind(command_line(), {}, "palmctl", "_PALMCTL_COMPLETE")
    # Not `source()`: for bash it starts the builder's own bash to look at its version.
    return asking.source_template % asking.source_vars()


def locked_names(lock: str) -> frozenset[str]:
    """The distributions that the text of a lock pins."""
    return frozenset(
        canonicalize_name(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", lock, re.MULTILINE)
    )


def third_parties(environment: Path, locked: frozenset[str]) -> str:
    """Every distribution installed in `environment`: name, version, licence, origin, and its licence files.

    Raises PackagingError where one of `locked` is not there, or says nowhere what its licence is.
    """
    entries = {}
    for metadata in environment.glob("lib/python*/site-packages/*.dist-info/METADATA"):
        told = HeaderParser().parsestr(metadata.read_text(encoding="utf-8"))
        entries[canonicalize_name(told["Name"])] = _entry(told, metadata.parent, environment)
    missing = sorted(locked - entries.keys())
    if missing:
        raise PackagingError(f"not installed, and so without a licence to list: {', '.join(missing)}")
    return _THIRD_PARTY + "".join(entries[name] for name in sorted(entries)) + _weights(environment)


def _weights(environment: Path) -> str:
    """The entry of the published hand weights, where `environment` has them."""
    folder = environment / WEIGHTS_FOLDER
    if not folder.is_dir():
        return ""
    model_id = json.loads((folder / "manifest.json").read_text())["model_id"]
    files = "".join(f"    {WEIGHTS_FOLDER / name}\n" for name in ("LICENSE", "NOTICE"))
    return f"{model_id}: Apache-2.0\n    https://github.com/google-ai-edge/mediapipe\n{files}\n"


def _entry(told: Message, dist_info: Path, environment: Path) -> str:
    record = csv.reader(io.StringIO((dist_info / "RECORD").read_text(encoding="utf-8")))
    files = sorted(
        path
        for row in record
        if LICENCE_FILE.match(Path(row[0]).name) and (path := dist_info.parent / row[0]).is_file()
    )
    licence = told["License-Expression"] or told["License"] or _classified(told)
    if not licence and files:
        licence = files[0].read_text(encoding="utf-8", errors="replace")
    if not licence:
        raise PackagingError(f"{told['Name']} {told['Version']} names no licence and brings no licence file")
    lines = [f"{told['Name']} {told['Version']}: {licence.strip().splitlines()[0].strip()}"]
    lines += [f"    {url}" for url in _origins(told)[:1]]
    lines += [f"    {path.relative_to(environment)}" for path in files]
    return "\n".join(lines) + "\n\n"


def _classified(told: Message) -> str:
    kinds = (value for value in told.get_all("Classifier", []) if value.startswith("License"))
    return ", ".join(value.rpartition(" :: ")[2] for value in kinds)


def _origins(told: Message) -> list[str]:
    """Where the distribution comes from, the best first."""
    named = [value.partition(",") for value in told.get_all("Project-URL", [])]
    sources = [url.strip() for label, _, url in named if "source" in label.lower() or "repo" in label.lower()]
    return [*sources, *filter(None, [told["Home-page"]]), *(url.strip() for _, _, url in named)]


def _write(root: Path, place: Path, content: bytes) -> None:
    goal = below(root, place)
    goal.parent.mkdir(parents=True, exist_ok=True)
    goal.write_bytes(content)
