"""Nothing in an archive reaches outside the folder it is unpacked into."""

import io
import lzma
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from device.errors import UpdateRefused
from device.updates.archive import Limits, unpack
from tools.cloud.pack_release import pack_files

LIMITS = Limits(files=4, total_bytes=1000)


def packed(*members: tarfile.TarInfo, content: bytes = b"x") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:xz") as archive:
        for member in members:
            if member.isreg() and not member.size:
                member.size = len(content)
            archive.addfile(member, io.BytesIO(content) if member.isreg() else None)
    return out.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, **given: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for member, value in given.items():
        setattr(info, member, value)
    return info


def test_files_folders_and_which_of_them_run(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "bin").mkdir(parents=True)
    (source / "bin" / "palmd").write_text("#!")
    (source / "bin" / "palmd").chmod(0o755)
    (source / "x (1).py").write_text("")
    payload = tmp_path / "payload"
    payload.write_bytes(pack_files(source, ["bin/palmd", "x (1).py"]))
    (tmp_path / "out").mkdir()
    unpack(payload, tmp_path / "out", LIMITS)
    assert (tmp_path / "out" / "bin" / "palmd").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "out" / "x (1).py").stat().st_mode & 0o777 == 0o644


def headers_inside_headers() -> Iterator[bytes]:
    """A long name that is told again and again, before any file."""
    for _ in range(3_000):
        info = tarfile.TarInfo("././@LongLink")
        info.type, info.size = tarfile.GNUTYPE_LONGNAME, 1
        yield info.tobuf(tarfile.GNU_FORMAT) + bytes(512)


def test_a_damaged_archive_is_never_another_error(tmp_path: Path) -> None:
    """Any byte of the tar, in whole xz: what is refused is refused in one way, what is taken stays inside."""
    whole = lzma.decompress(packed(entry("a/b", mode=0o755), entry("c", pax_headers={"comment": "é" * 40})))
    rng = random.Random(5)
    (tmp_path / "out").mkdir()
    for number in range(120):
        bad = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            bad[rng.randrange(len(bad) - 1024)] = rng.choice(b"\x00\x01\x20\x2f\x30\x39\x80\xff")
        _with_sums(bad)
        (tmp_path / "payload").write_bytes(lzma.compress(bad, preset=0))
        folder = tmp_path / "out" / str(number)
        folder.mkdir()
        try:
            unpack(tmp_path / "payload", folder, LIMITS)
        except UpdateRefused as refused:
            assert refused.code == "bad_archive"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "payload"]


def _with_sums(tar: bytearray) -> None:
    """Right check sums in every block that has one, so that the damage is looked at and not only seen."""
    for at in range(0, len(tar), 512):
        block = tar[at : at + 512]
        if block[257:262] == b"ustar":
            block[148:156] = b" " * 8
            tar[at + 148 : at + 156] = b"%06o\0 " % sum(block)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"no archive",
        packed(entry("a"), content=bytes(range(256)))[:-256],
        packed(entry("/etc/passwd")),
        packed(entry("../a")),
        packed(entry("a/../../b")),
        packed(entry("a\nb")),
        packed(entry("a", tarfile.SYMTYPE, linkname="/etc")),
        packed(entry("a", tarfile.LNKTYPE, linkname="../b")),
        packed(entry("a", tarfile.CHRTYPE)),
        packed(entry("a", tarfile.FIFOTYPE)),
        packed(entry("a"), entry("a")),
        packed(*(entry(name) for name in "abcde")),
        packed(entry("a"), content=bytes(1001)),
        packed(entry("a"), entry("a/b")),
        packed(entry("a"), entry("a/b/c/d")),
        packed(entry("a/b"), entry("a")),
        packed(entry("a"), entry("a/", tarfile.DIRTYPE)),
        packed(entry("a/b", tarfile.DIRTYPE), entry("a")),
        packed(entry("a"), entry("a/b", tarfile.DIRTYPE)),
        packed(entry("/".join(["a" * 100] * 40))),
        packed(entry("a", pax_headers={"GNU.sparse.map": "9" * 5000 + ",1", "GNU.sparse.size": "1"})),
        lzma.compress(b"".join(headers_inside_headers())),
        packed(entry("a", pax_headers={"size": "-512"})),
    ],
)
def test_anything_else_is_refused(tmp_path: Path, bad: bytes) -> None:
    payload = tmp_path / "payload"
    payload.write_bytes(bad)
    (tmp_path / "out").mkdir()
    with pytest.raises(UpdateRefused) as refused:
        unpack(payload, tmp_path / "out", LIMITS)
    assert refused.value.code == "bad_archive"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "payload"]
