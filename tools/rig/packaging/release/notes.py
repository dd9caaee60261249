"""Release notes: what the changelog says about one version."""

import re

from tools.rig.packaging.errors import PackagingError

_HEADING = re.compile(r"^## (\S+?)(?:,.*)?$", re.MULTILINE)


def release_notes(changelog: str, version: str) -> str:
    """The section of `version` as a page of its own. Raises PackagingError when there is none."""
    parts = _HEADING.split(changelog)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    if version not in sections:
        raise PackagingError(
            f"CHANGELOG.md: expected a heading `## {version}`, found {', '.join(sections)}: "
            "write what changed for those who install and operate"
        )
    return f"# palm-access-device {version}\n\n{sections[version].strip()}\n"
