"""What is installed next to the tests, as another interpreter may find it."""

from collections.abc import Iterable
from importlib.metadata import distribution
from pathlib import Path


def link_installed(names: Iterable[str], folder: Path) -> None:
    """Lay links to these distributions, and to nothing else, into a folder."""
    for name in names:
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(installed.locate_file(top))).absolute())
