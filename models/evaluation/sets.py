"""Folders of palm pictures as their owners ship them: who is on which picture.

Nothing is opened here but folders. A palm is one hand of one person; where an owner numbers palms and not
people, two consecutive palms are taken for one person's, so that they are never compared as strangers.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from models.crop_geometry import Handedness
from models.errors import ModelsError

Layout = Literal["plain", "tongji", "iitd", "polyu", "casia", "ntu-pi"]
Kind = Literal["crops", "hands"]

_PICTURES: Final = frozenset({".bmp", ".jpg", ".jpeg", ".png", ".tif", ".tiff", ".pgm"})
_TONGJI: Final = re.compile(r"(\d{5})")
_TONGJI_PICTURES_A_PALM: Final = 10
_IITD: Final = re.compile(r"(\d{1,4})_(\d{1,3})")
_POLYU: Final = re.compile(r"(?i)polyu_(\d{1,4})_([fs])_(\d{1,3})")
_POLYU_SPECTRAL: Final = re.compile(r"([12])_(\d{1,3})_s")
_CASIA: Final = re.compile(r"(?i)(\d{4})_[mf]_([lr])_(\d{1,3})")
_NTU_PI: Final = re.compile(r"(?i)(\d{1,5})-([lr])(\d{1,4})-?(?:class\d+)?")


class EvaluationSetError(ModelsError):
    """A folder of pictures is absent, is laid out in no known way, or holds too little to compare."""


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture and whose palm it shows."""

    path: Path
    person: str
    palm: str
    """Unique in the set; the two palms of a person differ."""
    session: str
    side: Handedness | None = None
    """Which hand it is, where the layout says so."""


@dataclass(frozen=True, slots=True)
class PalmSet:
    """A set of pictures as it lies in a folder."""

    layout: Layout
    kind: Kind
    """``crops``: the pictures are palms already cut out. ``hands``: the hand has to be found."""
    pictures: tuple[Picture, ...]


def read_set(root: Path, layout: Layout | None = None) -> PalmSet:
    """The pictures under ``root``; without a ``layout`` it is inferred from the names.

    Raises ``EvaluationSetError`` when there is no such folder or nothing in it has the names of the layout.
    """
    if not root.is_dir():
        raise EvaluationSetError(f"no folder at {root}; give the folder that holds the set's pictures")
    files = sorted(p for p in root.rglob("*") if p.suffix.lower() in _PICTURES and p.is_file())
    if not files:
        kinds = ", ".join(sorted(_PICTURES))
        raise EvaluationSetError(
            f"{root} holds no pictures ({kinds}); arrange them as person/hand/session/picture; "
            "links to folders are not entered"
        )
    for name in (layout,) if layout is not None else _candidates(root, files):
        pictures = tuple(_READERS[name](root, files))
        # A stray file does not make a set; a set has stray files.
        if pictures and len(pictures) * 2 >= len(files):
            return PalmSet(name, _kind(name, pictures), pictures)
    expected = layout or ", ".join(_TOLD_FROM_NAMES)
    raise EvaluationSetError(
        f"{root} holds {len(files)} pictures, most of them not named as in: {expected}; "
        "name the layout, or arrange them as person/hand/session/picture"
    )


def first_people(found: PalmSet, count: int) -> PalmSet:
    """The set reduced to the first ``count`` people, in the order of their pictures."""
    chosen = set(list(dict.fromkeys(picture.person for picture in found.pictures))[:count])
    return replace(found, pictures=tuple(p for p in found.pictures if p.person in chosen))


def _kind(layout: Layout, pictures: tuple[Picture, ...]) -> Kind:
    """Whole hands or crops: the owners keep both, in folders of known names; PolyU ships crops only."""
    parts = {part.lower() for picture in pictures[:1] for part in picture.path.parts}
    if layout == "polyu" or parts & {"roi", "roi_image", "rois", "segmented", "crops"}:
        return "crops"
    return "hands"


def _candidates(root: Path, files: list[Path]) -> tuple[Layout, ...]:
    """The layouts that the names may be of, the likeliest first."""
    plain = tuple(_plain(root, files))
    # No owner has a hand's name second of four; the names of the pictures may then be like any owner's.
    if len(plain) == len(files) and all(picture.side for picture in plain):
        return ("plain",)
    sessions = {picture.path.parent for picture in _tongji(root, files)}
    # Tongji has one folder a session, whose numbers go through all palms. Where several folders have one
    # session's name, they are of people, and the numbers begin again in each.
    if len({folder.name.lower() for folder in sessions}) < len(sessions):
        return tuple(name for name in _TOLD_FROM_NAMES if name != "tongji")
    return _TOLD_FROM_NAMES


def _plain(root: Path, files: list[Path]) -> Iterator[Picture]:
    for path in files:
        parts = path.relative_to(root).parts
        if len(parts) == 4:
            person, hand, session, _ = parts
            yield Picture(path, person, f"{person}/{hand}", session, _side(hand))


def _tongji(_root: Path, files: list[Path]) -> Iterator[Picture]:
    for path in files:
        number = _TONGJI.fullmatch(path.stem)
        if number and path.parent.name.lower() in {"session1", "session2"}:
            palm = (int(number[1]) - 1) // _TONGJI_PICTURES_A_PALM
            yield Picture(path, str(palm // 2), str(palm), path.parent.name.lower())


def _iitd(_root: Path, files: list[Path]) -> Iterator[Picture]:
    for path in files:
        number, side = _IITD.fullmatch(path.stem), path.parent.name.lower().removesuffix(" hand")
        if number and side in {"left", "right"}:
            yield Picture(path, str(int(number[1])), f"{int(number[1])}/{side}", "1", _side(side))


def _polyu(_root: Path, files: list[Path]) -> Iterator[Picture]:
    for path in files:
        if named := _POLYU.fullmatch(path.stem):
            palm, session = int(named[1]), named[2].upper()
        elif (spectral := _POLYU_SPECTRAL.fullmatch(path.stem)) and path.parent.name.isdigit():
            palm, session = int(path.parent.name), spectral[1]
        else:
            continue
        band = path.parent.parent.name if path.parent.name.isdigit() else ""
        yield Picture(path, str((palm + 1) // 2), f"{band}/{palm}", session)


def _casia(_root: Path, files: list[Path]) -> Iterator[Picture]:
    for path in files:
        if named := _CASIA.fullmatch(path.stem):
            yield Picture(path, named[1], f"{named[1]}/{named[2].lower()}", "1", _side(named[2]))


def _ntu_pi(_root: Path, files: list[Path]) -> Iterator[Picture]:
    for path in files:
        if named := _NTU_PI.fullmatch(path.stem):
            yield Picture(path, named[1], f"{named[1]}/{named[2].lower()}", "1", _side(named[2]))


def _side(name: str) -> Handedness | None:
    match name.lower().removesuffix(" hand"):
        case "l" | "left":
            return "L"
        case "r" | "right":
            return "R"
        case _:
            return None


_READERS: Final[dict[Layout, Callable[[Path, list[Path]], Iterator[Picture]]]] = {
    "tongji": _tongji,
    "iitd": _iitd,
    "polyu": _polyu,
    "casia": _casia,
    "ntu-pi": _ntu_pi,
    "plain": _plain,
}
_TOLD_FROM_NAMES: Final[tuple[Layout, ...]] = ("tongji", "iitd", "polyu", "casia", "ntu-pi", "plain")
