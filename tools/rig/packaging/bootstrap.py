"""Make a virtual environment from a lock file whose every entry is pinned by hash.

    python3 tools/rig/packaging/bootstrap.py DIRECTORY LOCK

Runs on a bare interpreter. Debian ships Python without `ensurepip` (it is in python3-venv); then the
pip wheel that the lock names is fetched from the package index, checked against the lock's hash, and
used to install itself. The index is the one pip would use: PIP_INDEX_URL, else PyPI.
"""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from html.parser import HTMLParser
from pathlib import Path


def main() -> None:
    directory, lock = Path(sys.argv[1]), Path(sys.argv[2])
    python = directory / "bin" / "python"
    if (
        subprocess.run(
            [sys.executable, "-c", "import ensurepip"], stderr=subprocess.DEVNULL, check=False
        ).returncode
        == 0
    ):
        subprocess.run([sys.executable, "-m", "venv", directory], check=True)
        install(python, lock, {})
        return
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", directory], check=True)
    with tempfile.TemporaryDirectory() as scratch:
        wheel = fetch_pip(lock, Path(scratch))
        # A wheel is a zip archive, and pip runs from inside one.
        install(python, lock, {"PYTHONPATH": str(wheel)})


def install(python: Path, lock: Path, environment: dict[str, str]) -> None:
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*command, "--require-hashes", "--only-binary", ":all:", "-r", str(lock)],
        check=True,
        env=os.environ | environment,
    )


def fetch_pip(lock: Path, into: Path) -> Path:
    """Download the pip wheel of the lock; any file of that version whose hash the lock names will do."""
    entry = re.search(r"^pip==(\S+)(.*?)(?=^\S|\Z)", lock.read_text(), re.MULTILINE | re.DOTALL)
    if entry is None:
        sys.exit(f"{lock} names no pip; install python3-venv (apt install python3-venv) and try again")
    version, hashes = entry[1], set(re.findall(r"sha256:([0-9a-f]{64})", entry[2]))
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/") + "/pip/"
    links = Links()
    with urllib.request.urlopen(index) as page:  # noqa: S310 (the address is the user's own setting)
        links.feed(page.read().decode())
    for link in links.found:
        url = urllib.parse.urljoin(index, link)
        name = Path(urllib.parse.urlparse(url).path).name
        if name.startswith(f"pip-{version}-") and name.endswith(".whl"):
            with urllib.request.urlopen(url) as answer:  # noqa: S310 (checked by hash below)
                data = answer.read()
            if hashlib.sha256(data).hexdigest() not in hashes:
                sys.exit(f"{name} from the package index does not have the hash that {lock} pins: not used")
            (into / name).write_bytes(data)
            return into / name
    sys.exit(f"the package index has no wheel of pip {version}; install python3-venv and try again")


class Links(HTMLParser):
    """The addresses on a page of the simple package index (PEP 503)."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


if __name__ == "__main__":
    main()
