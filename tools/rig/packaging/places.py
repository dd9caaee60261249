"""Build hook of the distributions whose code lies elsewhere in this repository.

A wheel takes the folders that `places` names. An editable install takes none of them: it reads them in place.
"""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PlacesHook(BuildHookInterface[Any]):
    """`places`: folders, relative to the repository's root."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version != "editable":
            build_data["force_include"] |= {f"../../../../{place}": place for place in self.config["places"]}
