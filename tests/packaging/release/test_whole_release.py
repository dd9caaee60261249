"""A release of the last commit, made in two places (`make release-test`): the same bytes, and it works.

PALM_RELEASE=FOLDER tries a signed release that is there already, and makes none.
"""

import filecmp
import json
import os
import platform
import re
import resource
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packaging.release.conftest import VERSION, ran
from tests.packaging.release.test_bills_of_materials import check_bill
from tools.rig.packaging.release.apt import KEY
from tools.rig.packaging.release.images import DEMONSTRATION, SERVER
from tools.rig.packaging.release.sbom import contents_of

_NEEDED = ("dpkg-deb", "gpgv", "mmdebstrap", "podman", "runc")
pytestmark = [
    pytest.mark.skipif(os.environ.get("PALM_RELEASE_TEST") != "1", reason="builds twice: make release-test"),
    pytest.mark.skipif(
        os.geteuid() != 0 or any(shutil.which(name) is None for name in _NEEDED),
        reason=f"needs root and {', '.join(_NEEDED)} (apt install)",
    ),
]
HERE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
PODMAN = ["podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs"]
PORT = 18720
SERVER_STORY = """\
set -e
runuser -u palm-access-cloud -- env PALM_CLOUD_DATA=/var/lib/palm-access-cloud \\
    /opt/palm-access-cloud/bin/palmctl cloud serve --port 18730 --no-admin &
url=http://127.0.0.1:18730/v1/keys
for _ in $(seq 60); do
    /opt/palm-access-cloud/bin/python -c "import urllib.request as r; r.urlopen('$url')" 2>/dev/null && break
    sleep 1
done
/opt/palm-access-cloud/bin/python -c "import urllib.request as r; print(r.urlopen('$url').status)"
palm-access-cloud tenant create acme
runuser -u palm-access-cloud -- env PALM_CLOUD_DATA=/var/lib/palm-access-cloud PALM_CLOUD_BACKUPS=2 sh -ec '
    for _ in 1 2 3; do /usr/libexec/palm-access-cloud/backup; sleep 1.1; done'
kill $!
wait $! || :
echo "backups: $(ls /var/backups/palm-access-cloud/*/cloud.db | wc -l)"
"""


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_two_builds_from_two_paths_have_the_same_bytes(releases: list[Path]) -> None:
    if len(releases) == 1:
        pytest.skip("one release that was there already")
    first, second = releases
    assert names(first) == names(second)
    _, differing, unread = filecmp.cmpfiles(first, second, names(first), shallow=False)
    assert differing == unread == []


def test_it_is_signed_and_summed(release: Path, tmp_path: Path) -> None:
    keyring = tmp_path / "release.gpg"
    ran(["gpg", "--batch", "--dearmor", "--output", keyring, release / "apt" / KEY])
    for name in ("SHA256SUMS", "provenance.json"):
        ran(["gpgv", "--keyring", keyring, release / f"{name}.asc", release / name])
    ran(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=release)
    summed = {line.split(maxsplit=1)[1] for line in (release / "SHA256SUMS").read_text().splitlines()}
    assert summed == set(names(release)) - {"SHA256SUMS", "SHA256SUMS.asc"}
    told = json.loads((release / "provenance.json").read_text())
    subjects = {one["name"] for one in told["subject"]}
    assert subjects == summed - {"provenance.json", "provenance.json.asc"}


def test_each_artefact_has_a_bill_and_each_file_a_component(release: Path) -> None:
    artefacts = [
        path for folder in ("apt/pool", "wheels", "images") for path in (release / folder).rglob("*")
    ]
    artefacts = [path for path in artefacts if path.is_file() and path.name != "requirements.txt"]
    assert {f"{path.name}.cdx.json" for path in artefacts} == {
        path.name for path in (release / "sbom").iterdir()
    }
    for path in artefacts:
        bill = json.loads((release / "sbom" / f"{path.name}.cdx.json").read_text())
        check_bill(bill, contents_of(path).files)


def test_the_lock_installs_palmctl_into_a_clean_environment(release: Path, tmp_path: Path) -> None:
    ran([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    python = tmp_path / "venv/bin/python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet"]
    ran([*pip, "--require-hashes", "--find-links", ".", "-r", "requirements.txt"], cwd=release / "wheels")
    assert f"version {VERSION}" in ran([tmp_path / "venv/bin/palmctl", "--version"], cwd=Path("/"))
    offered = ran([tmp_path / "venv/bin/palmctl", "--help"], cwd=Path("/"))
    assert all(f"\n  {name} " in offered for name in ("cloud", "demo", "link", "playground", "status"))


def limits() -> list[str]:
    """Podman asks for more open files and processes than this machine may give."""
    words = []
    for name, number in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
        hard = resource.getrlimit(number)[1]
        most = 4096 if hard == resource.RLIM_INFINITY else min(hard, 4096)
        words.append(f"--ulimit={name}={most}:{most}")
    return words


@pytest.fixture(scope="module")
def images(release: Path) -> Iterator[dict[str, str]]:
    """Both images of this architecture, loaded."""
    tags = {}
    for kind in (SERVER, DEMONSTRATION):
        ran([*PODMAN, "load", "--quiet", "-i", release / f"images/{kind.name}_{VERSION}_{HERE}.oci.tar"])
        tags[kind.name] = f"{kind.name}:{VERSION}"
    yield tags
    for tag in tags.values():
        ran([*PODMAN, "image", "rm", "--force", tag])


def test_the_demonstration_runs_to_its_end_in_a_container(images: dict[str, str]) -> None:
    shown = ran(
        [
            *(*PODMAN, "run", "--rm", "--read-only", "--network=none", "--cap-drop=all", *limits()),
            images[DEMONSTRATION.name],
        ]
    )
    assert "All as it must be." in shown


def test_the_playground_answers_from_a_container(images: dict[str, str]) -> None:
    name, strict = "palm-playground-test", ["--read-only", "--cap-drop=all", *limits()]
    published = ["-p", "127.0.0.1:8712:8712", images[DEMONSTRATION.name]]
    ran([*PODMAN, "run", "--detach", "--name", name, *strict, *published, "playground", "--bind", "0.0.0.0"])
    try:
        deadline = time.monotonic() + 60
        while not (address := re.search(r"http://127.0.0.1:8712/\S+/", ran([*PODMAN, "logs", name]))):
            assert time.monotonic() < deadline, "no address"
            time.sleep(1)
        with urllib.request.urlopen(address.group()) as answer:
            assert b"<title>Playground</title>" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen("http://127.0.0.1:8712/")
    finally:
        ran([*PODMAN, "rm", "--force", name])


def test_the_server_answers_from_a_container_without_rights(images: dict[str, str]) -> None:
    name = "palm-release-test"
    strict = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", *limits()]
    data = f"{name}:/var/lib/palm-access-cloud"
    ran(
        [
            *(*PODMAN, "run", "--detach", "--name", name, *strict, "-v", data),
            *("-p", f"127.0.0.1:{PORT}:8710", images[SERVER.name]),
        ]
    )
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/v1/keys") as answer:
                    assert answer.status == 200
                break
            except OSError:
                assert time.monotonic() < deadline, ran([*PODMAN, "logs", name])
                time.sleep(1)
        assert "tenant_id: " in ran([*PODMAN, "exec", name, "palmctl", "cloud", "tenant", "create", "acme"])
        assert ran([*PODMAN, "exec", name, "python", "-c", "import os; print(os.getuid())"]) == "65532\n"
    finally:
        ran([*PODMAN, "rm", "--force", "--volumes", name])
        ran([*PODMAN, "volume", "rm", "--force", name])


@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_the_packages_install_on_debian_from_the_signed_repository(
    release: Path, suite: str, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    own = f"deb [signed-by={release / 'apt' / KEY}] copy://{release}/apt {suite} main"
    ran(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", "--include=palm-access,palm-access-cloud"),
            *(suite, root, f"deb http://deb.debian.org/debian {suite} main", own),
        ]
    )
    try:
        assert "version " in ran(["chroot", root, "palmctl", "--version"])
        shown = ran(["chroot", root, "bash", "-c", SERVER_STORY])
        assert "tenant_id: " in shown
        assert "\nbackups: 2\n" in shown, "of three backups the newest two stay"
        assert ran(["chroot", root, "stat", "-c", "%U %a", "/var/lib/palm-access-cloud"]).split() == [
            "palm-access-cloud",
            "700",
        ]
        ran(["chroot", root, "dpkg", "--verify", "palm-access-cloud"])
        ran(["chroot", root, "apt-get", "purge", "-y", "palm-access-cloud"])
        assert not (root / "opt/palm-access-cloud").exists()
        assert not (root / "var/lib/palm-access-cloud").exists()
    finally:
        shutil.rmtree(root)
