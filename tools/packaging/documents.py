"""What a package says about itself: manual pages, completion, changelog, third parties."""

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.parser import HeaderParser
from pathlib import Path
from typing import TYPE_CHECKING

from tools.packaging import manual
from tools.packaging.tree import PREFIX, below

if TYPE_CHECKING:
    import click

COMPLETIONS = {
    "bash": "/usr/share/bash-completion/completions/palmctl",
    "zsh": "/usr/share/zsh/vendor-completions/_palmctl",
    "fish": "/usr/share/fish/vendor_completions.d/palmctl.fish",
}


@dataclass(frozen=True, slots=True)
class About:
    """The package that the documents are about. `epoch`: seconds since 1970."""

    source: Path
    package: str
    version: str
    maintainer: str
    epoch: int


def write_all(root: Path, about: About) -> None:
    """Write every document below `root`; the installed packages are there already."""
    documents = Path("/usr/share/doc") / about.package
    for name, text in manual_pages(about.version, about.epoch).items():
        _write(root, Path("/usr/share/man/man1") / f"{name}.gz", _gzip(text))
    _write(
        root,
        Path("/usr/share/man/man8/palm-access-rollback.8.gz"),
        _gzip((Path(__file__).parent / "debian/palm-access-rollback.8").read_text()),
    )
    for shell, place in COMPLETIONS.items():
        _write(root, Path(place), completion(shell).encode())
    _write(root, documents / "changelog.gz", _gzip((about.source / "CHANGELOG.md").read_text()))
    date = datetime.fromtimestamp(about.epoch, UTC).strftime("%a, %d %b %Y %H:%M:%S +0000")
    _write(
        root,
        documents / "changelog.Debian.gz",
        _gzip(
            f"{about.package} ({about.version}) stable; urgency=medium\n\n"
            "  * What changed stands in changelog.gz.\n\n"
            f" -- {about.maintainer}  {date}\n"
        ),
    )
    _write(root, documents / "THIRD-PARTY", third_parties(below(root, PREFIX / "about.package")).encode())
    for path in (about.source / "README.md", *sorted((about.source / "docs").glob("*.md"))):
        _write(root, documents / path.name, path.read_bytes())


def command_line() -> "click.Command":
    """The root of `palmctl`."""
    from tools.palmctl import main

    return main


def manual_pages(version: str, epoch: int) -> Mapping[str, str]:
    """{file name: text} of every command and both daemons."""
    from device import palmd, syncd

    return {
        **manual.of_click(command_line(), "palmctl", version, epoch),
        **manual.of_argparse(palmd.parser(), version, epoch),
        **manual.of_argparse(syncd.parser(), version, epoch),
    }


def completion(shell: str) -> str:
    """The script that lets `shell` ask palmctl itself what can come next."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    if kind is None:
        raise ValueError(f"click knows no completion for {shell}")
    asking = kind(command_line(), {}, "palmctl", "_PALMCTL_COMPLETE")
    # Not `source()`: for bash it starts the builder's own bash to look at its version.
    return asking.source_template % asking.source_vars()


def third_parties(environment: Path) -> str:
    """Name, version and licence of every installed package, a line each."""
    lines = []
    for path in sorted(environment.glob("lib/python*/site-packages/*.dist-info/METADATA")):
        told = HeaderParser().parsestr(path.read_text(encoding="utf-8"))
        licence = (
            told["License-Expression"]
            or told["License"]
            or ", ".join(
                value.rpartition(" :: ")[2]
                for value in told.get_all("Classifier", [])
                if value.startswith("License")
            )
        )
        first_line = (licence or "see its METADATA").strip().splitlines()[0]
        lines.append(f"{told['Name']} {told['Version']}: {first_line}")
    return "\n".join(lines) + "\n"


def _gzip(text: str) -> bytes:
    return gzip.compress(text.encode(), compresslevel=9, mtime=0)


def _write(root: Path, place: Path, content: bytes) -> None:
    goal = below(root, place)
    goal.parent.mkdir(parents=True, exist_ok=True)
    goal.write_bytes(content)
