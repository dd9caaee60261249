"""One request without a loop, as `palmctl` asks it: against a real server, and a peer that misbehaves."""

import asyncio
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from device.errors import IpcError, IpcRefused, IpcSilent, IpcUnreachable
from device.platform.ipc import MAX_HEADER_BYTES, Packet, ask_core, encode_packet, reply


@contextmanager
def peer(folder: Path, says: bytes, *, then_silent: bool = False) -> Iterator[Path]:
    """A listener that answers the first request with these bytes, and ends or says nothing more."""
    path = folder / "peer.sock"
    over = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            line, _ = listener.accept()
            with line:
                line.recv(65_536)
                for at in range(0, len(says), 7):  # in pieces, as a stream may give them
                    line.sendall(says[at : at + 7])
                if then_silent:
                    over.wait(20)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield path
        finally:
            over.set()
            thread.join(20)


def test_an_answer_comes_whole_with_its_payload(tmp_path: Path) -> None:
    with peer(tmp_path, encode_packet(reply(b"x" * 5_000, seq=7))) as path:
        answer = ask_core(path, "status", timeout_s=5)
    assert answer == Packet({"ok": True, "seq": 7}, b"x" * 5_000)


def test_a_refusal_has_its_code(tmp_path: Path) -> None:
    with (
        peer(
            tmp_path,
            encode_packet(Packet({"ok": False, "code": "busy", "message": "another one is in progress"})),
        ) as path,
        pytest.raises(IpcRefused, match="another one is in progress") as refused,
    ):
        ask_core(path, "enrolment.begin", timeout_s=5)
    assert refused.value.code == "busy"


@pytest.mark.parametrize(
    ("says", "kind", "words"),
    [
        (b"", IpcUnreachable, "connection closed during status"),
        (b"\x00\x00", IpcError, "inside a packet"),
        (encode_packet(reply(b"whole"))[:-1], IpcError, "inside a packet"),
        (struct.pack(">II", MAX_HEADER_BYTES + 1, 0), IpcError, "at most"),
        (struct.pack(">II", 3, 0) + b"[1]", IpcError, "header is refused"),
    ],
)
def test_a_peer_that_breaks_the_framing(
    tmp_path: Path, says: bytes, kind: type[IpcError], words: str
) -> None:
    with peer(tmp_path, says) as path, pytest.raises(kind, match=words):
        ask_core(path, "status", timeout_s=5)


@pytest.mark.parametrize("says", [b"", encode_packet(reply(b"whole"))[:-1]])
def test_a_peer_that_says_too_little_is_waited_for_so_long(tmp_path: Path, says: bytes) -> None:
    with (
        peer(tmp_path, says, then_silent=True) as path,
        pytest.raises(IpcSilent, match=r"no reply to status within 0\.05 s"),
    ):
        ask_core(path, "status", timeout_s=0.05)


def test_nobody_there(tmp_path: Path) -> None:
    with pytest.raises(IpcUnreachable, match="is palmd running"):
        ask_core(tmp_path / "none.sock", "status", timeout_s=5)
    with pytest.raises(IpcUnreachable, match="is palmd running"):
        ask_core(tmp_path / ("long" * 40), "status", timeout_s=5)


def test_who_asks_again_makes_no_event_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a loop leaves behind is tidied up where Ctrl-C is dropped: see `ask_core`."""
    monkeypatch.setattr(asyncio, "new_event_loop", None)
    with peer(tmp_path, encode_packet(reply(seq=1))) as path:
        assert ask_core(path, "status").header["seq"] == 1
