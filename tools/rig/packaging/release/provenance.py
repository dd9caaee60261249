"""Where a release is from: an in-toto statement with the predicate of SLSA provenance v1.

It bears no time and no name of a machine: two builds of one commit with the same tools give one statement.
"""

import json
import platform
from collections.abc import Mapping
from pathlib import Path

from tools.rig.packaging.process import run
from tools.rig.packaging.release.distributions import sha256

_BUILD_TYPE = "urn:palm-access-device:make-release:1"


def statement(artefacts: Mapping[str, Path], *, version: str, commit: str, source: Path) -> str:
    """The statement about `artefacts` ({name in the folder: path}), as JSON.

    `commit`: the whole hash, with `+dirty` where the checkout had changes. `source`: its root; the locks in
    it are named with their sums.
    """
    locks = sorted((source / "tools/rig/packaging/lock").glob("*.txt"))
    git = {"uri": "git+repository:palm-access-device", "digest": {"gitCommit": commit}}
    return (
        json.dumps(
            {
                "_type": "https://in-toto.io/Statement/v1",
                "subject": [
                    {"name": name, "digest": {"sha256": sha256(path)}}
                    for name, path in sorted(artefacts.items())
                ],
                "predicateType": "https://slsa.dev/provenance/v1",
                "predicate": {
                    "buildDefinition": {
                        "buildType": _BUILD_TYPE,
                        "externalParameters": {"version": version, "command": "make release"},
                        "internalParameters": tools(),
                        "resolvedDependencies": [
                            git,
                            *(
                                {
                                    "uri": f"file:{path.relative_to(source)}",
                                    "digest": {"sha256": sha256(path)},
                                }
                                for path in locks
                            ),
                        ],
                    },
                    "runDetails": {"builder": {"id": _BUILD_TYPE}},
                },
            },
            indent=1,
            sort_keys=True,
        )
        + "\n"
    )


def tools() -> dict[str, str]:
    """The programs whose versions can change an artefact's bytes."""
    return {
        "python": platform.python_version(),
        "dpkg-deb": run(["dpkg-deb", "--version"]).splitlines()[0],
        "gpg": run(["gpg", "--version"]).splitlines()[0],
    }
