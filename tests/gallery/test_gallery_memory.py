"""What the memory of a process still has of people who were erased."""

import base64
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gallery.codes import Coder
from gallery.seal import Sealer
from tests import REPOSITORY
from tests.gallery.gallery_service import DATA_KEY, Service, entry, palm

HOLDER = """
import os, struct, sys
from pathlib import Path
from device.platform.memory import guard_memory
guard_memory()
from tests.gallery.gallery_service import Service, at, palm, who
gallery = Service().open(Path(sys.argv[1]))
def read(size):
    data = b""
    while len(data) < size:
        data += os.read(0, size - len(data))
    return data
while True:
    op, size = struct.unpack("<cI", read(5))
    body = read(size)
    if op == b"d":
        gallery.apply_deltas(body, at())
    elif op == b"s":
        gallery.apply_snapshot_page(body, at())
    elif op == b"w":
        gallery.search(palm(99)[None])
    elif op == b"x":
        gallery.destroy()
    del body
    print(gallery.match_count, flush=True)
"""
_SHIFT = np.uint64(40)


class Holder:
    """A process with a gallery, and its memory."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(folder)],
            cwd=REPOSITORY,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def do(self, op: bytes, body: bytes = b"") -> int:
        """Have it done; how many templates take part in searches after it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(struct.pack("<cI", op, len(body)) + body)
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def holds(self, needles: dict[str, bytes]) -> set[str]:
        """Which of these it still has a piece of, in any mapping that can be written to."""
        pid, found = self._process.pid, set[str]()
        pieces, names = _pieces(needles)
        quick = np.zeros(1 << 24, dtype=np.bool_)
        quick[pieces >> _SHIFT] = True
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123 -- unbuffered: it is no file
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                ends, rights = line.split()[:2]
                if not rights.startswith("rw"):
                    continue
                first, last = (int(end, 16) for end in ends.split("-"))
                memory.seek(first)
                words = np.frombuffer(memory.read(last - first), dtype="<u8")
                words = words[quick[words >> _SHIFT]]
                places = np.minimum(np.searchsorted(pieces, words), len(pieces) - 1)
                found |= {names[place] for place in places[pieces[places] == words].tolist()}
        return found

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def _pieces(needles: dict[str, bytes]) -> tuple[NDArray[np.uint64], list[str]]:
    """Every 8 bytes in a row of every needle, rising, and whose they are: one of them lies on a word."""
    by_value: dict[int, str] = {}
    for name, data in needles.items():
        for at in range(len(data) - 7):
            by_value[int.from_bytes(data[at : at + 8], "little")] = name
    values = sorted(by_value)
    return np.array(values, dtype=np.uint64), [by_value[value] for value in values]


def traces(number: int) -> dict[str, bytes]:
    """A palm as it comes, as it is kept, and as it is worked with."""
    vector = palm(number)
    coder = Coder(Sealer(DATA_KEY).sign_bits)
    code = coder.encode(vector[np.newaxis])[0].tobytes()
    return {
        f"{number} text": base64.b64encode(vector.tobytes()),
        f"{number} vector": vector.tobytes(),
        f"{number} turned": coder.turn(vector[np.newaxis]).tobytes(),
        f"{number} coarse": code[:512],
        f"{number} fine": code[512:],
    }


def test_nothing_of_erased_people_is_in_memory(tmp_path: Path) -> None:
    service = Service()
    holder = Holder(tmp_path / "gallery")
    try:
        people = range(1, 41)
        service.upsert(*(entry(person, person) for person in people))
        assert holder.do(b"d", service.deltas()) == 40
        assert holder.do(b"w") == 40
        held = {name: data for person in people for name, data in traces(person).items()}
        assert {name for name in holder.holds(held) if name.endswith("coarse")} == {
            f"{person} coarse" for person in people
        }, "the match set itself is found by this way of looking"
        erased = [1, 2, 17, 39, 40]
        for person in erased:
            before = service.seq
            service.tombstone(person)
            holder.do(b"d", service.deltas(before))
        assert holder.do(b"w") == 35
        gone = {name: data for person in erased for name, data in traces(person).items()}
        assert holder.holds(gone) == set()
        for page in service.snapshot(10):
            holder.do(b"s", page)
        assert holder.do(b"w") == 35
        assert holder.holds(gone) == set()
        holder.do(b"x")
        assert holder.holds(held) == set()
    finally:
        holder.end()
