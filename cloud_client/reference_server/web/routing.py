"""From the target of a request to the path template of the operation table.

Paths are matched as they were sent, segment by segment, each percent-decoded by itself: an encoded slash
never becomes one, and nothing is merged, redirected or resolved. A target in absolute form (RFC 9112 §3.2.2)
is taken apart into its authority, which then replaces Host, and its path.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import unquote

_SCHEMES = ("http://", "https://")
_REST = "{rest:path}"


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """A request target: ``authority`` is None in the usual form, where it is in Host."""

    path: str
    authority: str | None = None

    @classmethod
    def read(cls, raw: str) -> "RequestTarget":
        """The target without its query."""
        if raw.startswith("/"):
            return cls(raw)
        for scheme in _SCHEMES:
            if raw[: len(scheme)].lower() == scheme:
                authority, slash, path = raw[len(scheme) :].partition("/")
                return cls(slash + path or "/", authority)
        return cls(raw)


@dataclass(frozen=True, slots=True)
class _Pattern:
    template: str
    literals: tuple[tuple[int, str], ...]
    names: tuple[tuple[int, str], ...]


class Routes:
    """The path templates of a table; a literal segment comes before a parameter."""

    def __init__(self, templates: Iterable[str]) -> None:
        self._literal: dict[tuple[str, ...], str] = {}
        self._by_length: dict[int, list[_Pattern]] = {}
        self._open: list[tuple[tuple[str, ...], str]] = []
        for template in templates:
            segments = tuple(template.split("/")[1:])
            if segments[-1] == _REST:
                self._open.append((segments[:-1], template))
            elif "{" in template:
                names = tuple((at, part[1:-1]) for at, part in enumerate(segments) if part[0] == "{")
                literals = tuple((at, part) for at, part in enumerate(segments) if part[0] != "{")
                pattern = _Pattern(template, literals, names)
                self._by_length.setdefault(len(segments), []).append(pattern)
            else:
                self._literal[segments] = template
        for patterns in self._by_length.values():
            patterns.sort(key=lambda pattern: len(pattern.names))

    def find(self, path: str) -> tuple[str, Mapping[str, str]] | None:
        """(template, path parameters), None when no template matches."""
        segments = _segments(path)
        if segments is None:
            return None
        template = self._literal.get(segments)
        if template is not None:
            return template, {}
        for pattern in self._by_length.get(len(segments), ()):
            if all(segments[at] == word for at, word in pattern.literals):
                found = {name: segments[at] for at, name in pattern.names}
                # An empty segment is no value: /v1/subjects/ is not a person without a name.
                return (pattern.template, found) if all(found.values()) else None
        for start, template in self._open:
            if segments[: len(start)] == start and len(segments) > len(start):
                return template, {"rest": "/".join(segments[len(start) :])}
        return None


def _segments(path: str) -> tuple[str, ...] | None:
    """The percent-decoded segments; None when one is not UTF-8 or has a slash in it, or none was sent."""
    if not path.startswith("/"):
        return None
    if "%" not in path:
        return tuple(path.split("/")[1:])
    segments = []
    for raw in path.split("/")[1:]:
        try:
            segment = unquote(raw, errors="strict")
        except UnicodeDecodeError:
            return None
        if "/" in segment:
            return None
        segments.append(segment)
    return tuple(segments)
