"""A disk whose power goes: what is on it after any prefix of what a program did.

What was synced is there. Of the rest, each file and each folder by itself keeps nothing, everything, the
first so many changes, or any of them in any order; a write may be cut short or torn at sectors of 512 bytes;
a file may have grown without its bytes. Names made, moved and removed in a folder that was not synced either
happened or did not, each by itself, as long as they do not touch the same name.
"""

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

SECTOR_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class Make:
    """A file or folder came into being under this name."""

    path: str
    is_folder: bool


@dataclass(frozen=True, slots=True)
class MakeLink:
    """A symbolic link that leads `to` somewhere came into being. It is whole or not there."""

    path: str
    to: str


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at an offset; None: at the end, whatever that is."""

    path: str
    offset: int | None
    data: bytes


@dataclass(frozen=True, slots=True)
class Cut:
    """The file has this size now."""

    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Rename:
    path: str
    to: str


@dataclass(frozen=True, slots=True)
class Remove:
    path: str


@dataclass(frozen=True, slots=True)
class Sync:
    """A file's bytes, or a folder's names, are on the disk."""

    path: str


@dataclass(frozen=True, slots=True)
class Mark:
    """What the program says it has promised by now."""

    said: dict[str, Any]


Change = Make | MakeLink | Write | Cut | Rename | Remove | Sync | Mark


class LinkTo(bytes):
    """Where a symbolic link leads."""


Tree = dict[str, bytes | None]
"""Path below the state directory to the bytes of a file, or LinkTo; None for a folder."""


@dataclass(eq=False)
class _File:
    """`now` is `durable` with the `pending` changes."""

    now: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Cut] = field(default_factory=list)


@dataclass(frozen=True)
class _Named:
    """A change of names in one folder: these go away, these come."""

    gone: tuple[str, ...] = ()
    come: tuple[tuple[str, "_Node"], ...] = ()

    def apply(self, entries: "dict[str, _Node]") -> None:
        for name in self.gone:
            entries.pop(name, None)
        entries.update(self.come)

    @property
    def names(self) -> set[str]:
        return {*self.gone, *(name for name, _ in self.come)}


@dataclass(eq=False)
class _Folder:
    now: "dict[str, _Node]" = field(default_factory=dict)
    durable: "dict[str, _Node]" = field(default_factory=dict)
    pending: list[_Named] = field(default_factory=list)

    def change(self, named: _Named) -> None:
        named.apply(self.now)
        self.pending.append(named)


_Node = _File | _Folder | LinkTo


class CrashDisk:
    """Follows a recording; before it began the folder `state` held what `start` says, and was synced."""

    def __init__(self, state: Path, start: Tree | None = None) -> None:
        self._state = str(state.resolve())
        self._root = _Folder()
        self._found: dict[str, _Node] = {}
        """By path, until a name changes."""
        self.marks: list[dict[str, Any]] = []
        for path, data in sorted((start or {}).items()):
            folder, name = self._place(f"{self._state}/{path}")
            node: _Node = _Folder()
            if data is not None:
                node = data if isinstance(data, LinkTo) else _File(bytearray(data), bytearray(data))
            folder.now[name] = folder.durable[name] = node

    def follow(self, change: Change) -> None:
        """One more thing has happened."""
        match change:
            case Write() | Cut() | Sync():
                node = self._node(change.path)
                if node is None:
                    pass  # a file that was removed and is still open
                elif isinstance(change, Sync):
                    self._sync(node)
                else:
                    self._change_file(node, change)
            case Mark(said):
                self.marks.append(said)
            case Make() | MakeLink() | Remove() | Rename():
                self._found.clear()
                self._change_names(change)

    def _change_names(self, change: Make | MakeLink | Remove | Rename) -> None:
        match change:
            case Make(path, is_folder):
                folder, name = self._place(path)
                if name not in folder.now:
                    folder.change(_Named(come=((name, _Folder() if is_folder else _File()),)))
            case MakeLink(path, to):
                folder, name = self._place(path)
                folder.change(_Named(come=((name, LinkTo(to.encode())),)))
            case Remove(path):
                folder, name = self._place(path)
                folder.change(_Named(gone=(name,)))
            case Rename(path, to):
                (folder, name), (other, new_name) = self._place(path), self._place(to)
                if folder is not other:
                    raise TypeError("renaming across folders is not modelled")
                folder.change(_Named(gone=(name,), come=((new_name, folder.now[name]),)))

    def whole(self) -> Tree:
        """What a reader sees while the power is on."""
        return dict(_walk(self._root, lambda node: node.now, lambda file: bytes(file.now)))

    def crash(self, rng: random.Random | None = None, *, keep_all: bool = False) -> Tree:
        """What is there after the power went: by chance; without `rng` what was synced, or everything."""

        def entries(folder: _Folder) -> dict[str, _Node]:
            kept = dict(folder.durable)
            for named in _names_kept(folder.pending, rng, keep_all=keep_all):
                named.apply(kept)
            return kept

        return dict(_walk(self._root, entries, lambda file: _content(file, rng, keep_all=keep_all)))

    @property
    def has_pending(self) -> bool:
        """Whether anything may be lost."""
        return any(node.pending for node in _nodes(self._root))

    def _change_file(self, file: _Node, change: Write | Cut) -> None:
        if not isinstance(file, _File):
            raise TypeError(f"{change.path} is no file")
        if isinstance(change, Write) and change.offset is None:
            change = Write(change.path, len(file.now), change.data)
        _apply(change, file.now)
        file.pending.append(change)

    def _sync(self, node: _Node) -> None:
        if isinstance(node, _File):
            for change in node.pending:
                _apply(change, node.durable)
            node.pending.clear()
        elif isinstance(node, _Folder):
            node.durable = dict(node.now)
            node.pending.clear()

    def _place(self, path: str) -> tuple[_Folder, str]:
        parts = path[len(self._state) + 1 :].split("/")
        folder = self._root
        for part in parts[:-1]:
            inner = folder.now[part]
            if not isinstance(inner, _Folder):
                raise TypeError(f"{path} lies in no folder")
            folder = inner
        return folder, parts[-1]

    def _node(self, path: str) -> _Node | None:
        """None: a file that was removed and is still open."""
        node: _Node | None = self._found.get(path)
        if node is None:
            node = self._root
            for part in path[len(self._state) + 1 :].split("/") if path != self._state else ():
                node = node.now.get(part) if isinstance(node, _Folder) else None
            if node is not None:
                self._found[path] = node
        return node


def fingerprint(tree: Tree) -> bytes:
    """Tells one state of a disk from another."""
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(tree):
        data = tree[path]
        inner = b"folder" if data is None else hashlib.blake2b(data, digest_size=16).digest()
        inner += b"link" if isinstance(data, LinkTo) else b""
        total.update(path.encode() + b"\x00" + inner + b"\x00")
    return total.digest()


def lay_out(tree: Tree, folder: Path) -> None:
    """Make the files of a state in an empty folder, as private as the device makes them."""
    for path in sorted(tree):
        target, data = folder / path, tree[path]
        if data is None:
            target.mkdir(mode=0o700)
        elif isinstance(data, LinkTo):
            target.symlink_to(data.decode())
        else:
            target.write_bytes(data)
            target.chmod(0o600)


def _walk(
    folder: _Folder, entries: Any, content: Any, prefix: str = ""
) -> Iterator[tuple[str, bytes | None]]:
    for name, node in entries(folder).items():
        if isinstance(node, _File):
            yield prefix + name, content(node)
        elif isinstance(node, LinkTo):
            yield prefix + name, node
        else:
            yield prefix + name, None
            yield from _walk(node, entries, content, f"{prefix}{name}/")


def _nodes(folder: _Folder) -> Iterator[_File | _Folder]:
    yield folder
    for node in {id(node): node for node in (*folder.now.values(), *folder.durable.values())}.values():
        if isinstance(node, _Folder):
            yield from _nodes(node)
        elif isinstance(node, _File):
            yield node


def _names_kept(pending: list[_Named], rng: random.Random | None, *, keep_all: bool) -> Iterable[_Named]:
    if rng is None:
        return pending if keep_all else ()
    kept, lost = [], set[str]()
    for named in pending:
        if named.names & lost or rng.random() < 0.5:
            lost |= named.names
        else:
            kept.append(named)
    return kept


def _content(file: _File, rng: random.Random | None, *, keep_all: bool) -> bytes:
    if rng is None:
        return bytes(file.now if keep_all else file.durable)
    data = bytearray(file.durable)
    how = rng.choice(("none", "all", "first", "first", "any", "torn", "torn", "grown"))
    if how == "grown":
        data.extend(bytes(max(0, len(file.now) - len(data))))
    for change in _changes_kept(how, file.pending, rng):
        _apply(change, data)
    return bytes(data)


def _changes_kept(how: str, pending: list[Write | Cut], rng: random.Random) -> list[Write | Cut]:
    if how == "none" or not pending:
        return []
    if how == "all":
        return pending
    if how == "first":
        count = rng.randrange(len(pending))
        return [*pending[:count], *_cut_short(pending[count], rng)]
    if how == "any":
        return [change for change in pending if rng.random() < 0.5]
    return [part for change in pending if rng.random() < 0.8 for part in _torn(change, rng)]


def _cut_short(change: Write | Cut, rng: random.Random) -> list[Write | Cut]:
    if isinstance(change, Cut):
        return []
    return [Write(change.path, change.offset, change.data[: rng.randrange(len(change.data) + 1)])]


def _torn(change: Write | Cut, rng: random.Random) -> list[Write | Cut]:
    """Some of the sectors that a write touches."""
    if isinstance(change, Cut) or change.offset is None:
        return [change]
    parts: list[Write | Cut] = []
    start, end = change.offset, change.offset + len(change.data)
    while start < end:
        stop = min(end, (start // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if rng.random() < 0.7:
            parts.append(Write(change.path, start, change.data[start - change.offset : stop - change.offset]))
        start = stop
    return parts


def _apply(change: Write | Cut, data: bytearray) -> None:
    if isinstance(change, Cut):
        if change.size < len(data):
            del data[change.size :]
        else:
            data.extend(bytes(change.size - len(data)))
        return
    offset = change.offset or 0
    if len(data) < offset:
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(change.data)] = change.data
