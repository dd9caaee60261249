"""What the tests of a release build once."""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import REPOSITORY
from tools.rig.packaging.release.distributions import build_distributions
from tools.rig.packaging.tree import own_version

EPOCH = 1_790_000_000
VERSION = own_version(REPOSITORY)


@pytest.fixture(scope="package")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder `wheels` of a release, built from this checkout."""
    out = tmp_path_factory.mktemp("wheels")
    build_distributions(REPOSITORY, EPOCH, out)
    return out


@pytest.fixture(scope="package")
def copied_checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of this checkout at another path; git knows nothing of it."""
    copy = tmp_path_factory.mktemp("elsewhere") / "in" / "a" / "longer" / "path"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    for name in listed.split("\0"):
        source, goal = REPOSITORY / name, copy / name
        if name and source.exists():
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, goal, follow_symlinks=False)
    return copy


def new_key(folder: Path) -> Path:
    """A throw-away signing key that is older than what it signs; the exported secret key."""
    home, key = folder / "home", folder / "secret.asc"
    home.mkdir(mode=0o700, parents=True)
    gpg = ["gpg", "--batch", "--quiet", "--homedir", str(home)]
    made = ["--faked-system-time", f"{EPOCH - 86400}!", "--passphrase", "", "--quick-gen-key", "a test"]
    subprocess.run([*gpg, *made, "ed25519", "sign", "never"], check=True, capture_output=True)
    exported = subprocess.run([*gpg, "--armor", "--export-secret-keys"], check=True, capture_output=True)
    key.write_bytes(exported.stdout)
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=True)
    shutil.rmtree(home, ignore_errors=True)  # the agent, which is ending, removes its sockets itself
    return key


def ran(command: Sequence[object], cwd: Path | None = None) -> str:
    """What a command printed, standard error too; checked."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=cwd
    )
    print(f"$ {' '.join(words[:8])}\n{done.stdout}", flush=True)
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="package")
def releases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The folders of two builds, from checkouts at different paths, signed by one throw-away key; or the one
    that PALM_RELEASE names.
    """
    if finished := os.environ.get("PALM_RELEASE"):
        return [Path(finished).resolve()]
    base = tmp_path_factory.mktemp("release")
    key = new_key(base / "key")
    made: list[Path] = []
    for place in (base / "a", base / "another/place/altogether"):
        ran(["git", "clone", "--quiet", REPOSITORY, place])
        cache = place / "build/deb"
        if made:  # what was downloaded is used again, what was built is not
            for folder in (base / "a/build/deb").glob("wheels-*"):
                shutil.copytree(folder, cache / folder.name)
            for folder in (base / "a/build/release/cache").iterdir():
                shutil.copytree(folder, place / "build/release/cache" / folder.name)
        ran([sys.executable, "-m", "tools.rig.packaging.release", "--key", key], cwd=place)
        made.append(place / "build/release" / VERSION)
    return made


@pytest.fixture(scope="package")
def release(releases: list[Path]) -> Path:
    return releases[0]
