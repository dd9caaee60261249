"""Files that a path names are read whole, up to a limit, at the cost of their size."""

import errno
import os
import socket
import tracemalloc
from pathlib import Path

import pytest

from link1.plain_file import check_replaceable, read_plain_file, sync_folder


def test_a_small_file_costs_no_more_than_its_size_whatever_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "picture"
    path.write_bytes(b"x" * 10_000)
    tracemalloc.start()
    try:
        data = read_plain_file(path, 64 << 20)
        _now, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert data == b"x" * 10_000
    assert most < 1 << 20


@pytest.mark.parametrize("size", [0, 1, 65_536, 200_000])
def test_the_limit_itself_is_taken_and_one_byte_more_is_not(size: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * size)
    assert len(read_plain_file(path, size)) == size
    if size:
        with pytest.raises(OSError, match="expected at most") as raised:
            read_plain_file(path, size - 1)
        assert raised.value.errno == errno.EFBIG


def test_a_file_that_is_longer_than_it_says_is_read_whole() -> None:
    path = Path("/proc/self/smaps")
    assert path.stat().st_size == 0
    assert len(read_plain_file(path, 64 << 20)) > 10_000
    with pytest.raises(OSError, match="expected at most"):
        read_plain_file(path, 1_000)


def test_what_is_no_plain_file_is_refused_and_never_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To open a pipe lets its writer go on, and to open some devices is to use them."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("it was opened"))
    for path, code, word in (
        (tmp_path / "pipe", errno.EINVAL, "a FIFO"),
        (tmp_path / "link", errno.EINVAL, "a FIFO"),
        (tmp_path / "socket", errno.EINVAL, "a socket"),
        (Path("/dev/null"), errno.EINVAL, "a device"),
        (tmp_path, errno.EISDIR, "a folder"),
    ):
        with pytest.raises(OSError, match=word) as raised:
            read_plain_file(path, 1_000)
        assert raised.value.errno == code


def test_a_plain_file_or_nothing_may_be_replaced(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    for name in ("file", "nothing"):
        check_replaceable(tmp_path / name)
    for path in (tmp_path, tmp_path / "link", Path("/dev/null")):
        with pytest.raises(OSError, match="expected a plain file"):
            check_replaceable(path)


def test_what_makes_names_durable_holds_no_descriptor(tmp_path: Path) -> None:
    held = Path("/proc/self/fd")
    before = len(list(held.iterdir()))
    for _ in range(3):
        sync_folder(tmp_path)
    assert len(list(held.iterdir())) == before
