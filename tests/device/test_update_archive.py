"""Nothing in an archive reaches outside the folder it is unpacked into."""

import io
import tarfile
from pathlib import Path

import pytest

from device.errors import UpdateRefused
from device.updates.archive import Limits, unpack
from tools.release import pack_files

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
