"""Archives of our own, unpacked."""

import tarfile
from pathlib import Path


def unpack_kept(path: Path, folder: Path) -> None:
    """Debian 12's Python (3.11.2) has no filters; a newer one wants to be told which."""
    with tarfile.open(path) as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(folder)
