"""Build hook of the distributions whose code lies elsewhere in this repository.

A wheel and a source distribution take the folders that `places` names: from the repository's root in a
checkout, from its own root in an unpacked source distribution. An editable install takes none of them: it
reads them in place.
"""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlacesHook(BuildHookInterface[Any]):
    """`places`: folders, relative to the repository's root."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        unpacked = Path(self.root, "PKG-INFO").is_file()
        root = Path(self.root) if unpacked else Path(self.root).parents[3]
        build_data["force_include"] |= {str(root / place): place for place in self.config["places"]}
        if self.target_name == "sdist":
            # In a checkout this file is a link, which would lead nowhere from a source distribution.
            hook = self.config["path"]
            build_data["force_include"][str(Path(self.root, hook).resolve())] = hook
