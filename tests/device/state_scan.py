"""Looking through a state directory for what must not be there, as somebody who found the card would."""

import base64
import re
from pathlib import Path

_CPF = re.compile(rb"(?<![0-9A-Za-z])(\d{3}\.\d{3}\.\d{3}-\d{2}|\d{11})(?![0-9A-Za-z])")


def spellings(secret: bytes) -> list[bytes]:
    """The bytes themselves, and the ways in which programs write bytes."""
    return [
        secret,
        secret.hex().encode(),
        secret.hex().upper().encode(),
        base64.b64encode(secret).rstrip(b"="),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
    ]


def files_of(folder: Path) -> dict[str, bytes]:
    """Every plain file by its path in `folder`."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def found_in(folder: Path, secrets: dict[str, bytes]) -> list[str]:
    """Which secrets stand in which files, and which text files hold something like a CPF."""
    found = []
    for name, content in files_of(folder).items():
        for what, secret in secrets.items():
            if any(spelling in content for spelling in spellings(secret)):
                found.append(f"{what} in {name}")
        if _CPF.search(content):
            found.append(f"something like a CPF in {name}")
    return found


def found_in_memory(pid: int, needles: list[bytes]) -> list[int]:
    """How often each stands in the writable memory of a process."""
    counts = [0] * len(needles)
    with Path(f"/proc/{pid}/maps").open() as maps, Path(f"/proc/{pid}/mem").open("rb", 0) as memory:
        for line in maps:
            place, rights, *_ = line.split()
            if not rights.startswith("rw"):
                continue
            first, last = (int(part, 16) for part in place.split("-"))
            try:
                memory.seek(first)
                data = memory.read(last - first)
            except (OSError, ValueError):
                continue  # a mapping of the kernel's, or one that has gone meanwhile
            counts = [count + data.count(needle) for count, needle in zip(counts, needles, strict=True)]
    return counts
