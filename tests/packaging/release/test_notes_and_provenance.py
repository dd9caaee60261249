"""Release notes out of the changelog, and the statement about where a release is from."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.packaging.release.conftest import EPOCH, new_key
from tools.rig.packaging.errors import PackagingError
from tools.rig.packaging.release.notes import release_notes
from tools.rig.packaging.release.provenance import statement
from tools.rig.packaging.release.signing import signer
from tools.rig.packaging.tree import own_version

CHANGELOG = "# Changelog\nHead.\n\n## 1.1.0, not released yet\n- new\n\n## 1.0.0\n- old\n"


def test_notes_are_the_section_of_the_version() -> None:
    assert release_notes(CHANGELOG, "1.0.0") == "# palm-access-device 1.0.0\n\n- old\n"
    assert release_notes(CHANGELOG, "1.1.0") == "# palm-access-device 1.1.0\n\n- new\n"


def test_a_version_that_the_changelog_does_not_know_is_refused() -> None:
    with pytest.raises(PackagingError, match=r"expected a heading `## 2\.0\.0`, found 1\.1\.0, 1\.0\.0"):
        release_notes(CHANGELOG, "2.0.0")


def test_the_version_of_this_checkout_has_notes() -> None:
    version = own_version(REPOSITORY)
    assert release_notes((REPOSITORY / "CHANGELOG.md").read_text(), version).startswith(
        f"# palm-access-device {version}"
    )


def test_the_statement_names_commit_locks_and_artefacts(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"wheel")
    told = json.loads(
        statement({"wheels/a.whl": tmp_path / "a.whl"}, version="1.0", commit="ab" * 20, source=REPOSITORY)
    )
    assert told["_type"] == "https://in-toto.io/Statement/v1"
    assert told["predicateType"] == "https://slsa.dev/provenance/v1"
    assert told["subject"] == [
        {"name": "wheels/a.whl", "digest": {"sha256": hashlib.sha256(b"wheel").hexdigest()}}
    ]
    definition = told["predicate"]["buildDefinition"]
    needed = {one["uri"]: one["digest"] for one in definition["resolvedDependencies"]}
    assert {"gitCommit": "ab" * 20} in needed.values()
    for lock in (REPOSITORY / "tools/rig/packaging/lock").glob("*.txt"):
        uri = f"file:{lock.relative_to(REPOSITORY)}"
        assert needed[uri] == {"sha256": hashlib.sha256(lock.read_bytes()).hexdigest()}
    assert told["predicate"]["runDetails"]["builder"]["id"]


def test_a_detached_signature_is_good_for_its_file_and_no_other(tmp_path: Path) -> None:
    text = tmp_path / "provenance.json"
    text.write_text("{}\n")
    with signer(str(new_key(tmp_path / "key")), EPOCH) as by:
        signature = by.detached(text)
        first = signature.read_bytes()
        assert by.detached(text).read_bytes() == first, "a second signature has other bytes"
        (tmp_path / "key.asc").write_text(by.public_key())
    keyring = str(tmp_path / "key.gpg")
    subprocess.run(
        ["gpg", "--batch", "--dearmor", "--output", keyring, str(tmp_path / "key.asc")], check=True
    )
    check = ["gpgv", "--keyring", keyring, str(signature), str(text)]
    assert subprocess.run(check, capture_output=True, check=False).returncode == 0
    text.write_text("{ }\n")
    assert subprocess.run(check, capture_output=True, check=False).returncode != 0
