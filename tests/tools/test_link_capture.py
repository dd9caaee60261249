"""`palmctl link monitor --pcap`, and what Wireshark makes of the captures."""

import io
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from link1.channels import ChannelReceiver
from link1.errors import FormatError
from link1.frames import Frame, FrameDecoder, FrameKind, cobs_encode, encode_frame
from link1.transport.serial_port import open_port
from tests import REPOSITORY
from tests.palmctl import PALMCTL, ran
from tools.kit.golden.vectors import FILE
from tools.kit.link_pcap import MAX_PACKET_BYTES, Captured, Direction, FrameCutter, PcapWriter, read_pcap
from tools.kit.pty_pair import PtyPair

DISSECTOR = REPOSITORY / "tools" / "kit" / "wireshark" / "link1.lua"
VECTORS: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
BY_NAME = {"device": Direction.FROM_DEVICE, "validator": Direction.FROM_VALIDATOR}


def write_pcap(path: Path, packets: list[Captured]) -> Path:
    with path.open("wb") as file:
        writer = PcapWriter(file)
        for packet in packets:
            writer.write(packet)
    return path


def golden_packets() -> list[Captured]:
    """The dialogue, and then every message, as they go over the wire."""
    said = [(line["at_ms"], line["from"], line["hex"]) for line in VECTORS["dialogue"]]
    said += [(900, item["from"], frame) for item in VECTORS["messages"] for frame in item["frames"]]
    return [
        Captured(1_700_000_000_000_000 + at_ms * 1000, BY_NAME[sender], bytes.fromhex(text).lstrip(b"\x00"))
        for at_ms, sender, text in said
    ]


def test_a_capture_reads_as_it_was_written(tmp_path: Path) -> None:
    packets = golden_packets()
    with write_pcap(tmp_path / "c.pcap", packets).open("rb") as file:
        assert list(read_pcap(file)) == packets


@pytest.mark.parametrize(
    "damage",
    [
        lambda d: d[:10],
        lambda d: b"\x00" * 24 + d[24:],
        lambda d: d[:20] + (1).to_bytes(4, "little") + d[24:],  # a capture of Ethernet
        lambda d: d[:-1],
    ],
)
def test_a_file_that_is_no_capture_is_refused(tmp_path: Path, damage: Any) -> None:
    data = write_pcap(tmp_path / "c.pcap", golden_packets()[:2]).read_bytes()
    with pytest.raises(FormatError):
        list(read_pcap(io.BytesIO(damage(data))))


@given(st.lists(st.binary(max_size=3_000), max_size=6))
def test_the_cutter_cuts_at_every_zero_and_holds_little(pieces: list[bytes]) -> None:
    cutter = FrameCutter()
    cut = [found for piece in pieces for found in cutter.feed(piece)]
    wanted = [part[:MAX_PACKET_BYTES] for part in b"".join(pieces).split(b"\x00")[:-1] if part]
    assert cut == [part + b"\x00" for part in wanted]
    assert len(cutter.held) <= MAX_PACKET_BYTES


def monitor(*arguments: str) -> list[dict[str, Any]]:
    command = [*PALMCTL, "link", "monitor", "--json", *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return [json.loads(line) for line in shown.stdout.splitlines()]


def test_the_monitor_reads_captures_and_makes_them(tmp_path: Path) -> None:
    path = write_pcap(tmp_path / "c.pcap", golden_packets())
    lines = monitor("--file", str(path))
    assert {line["from"] for line in lines} == {"device", "validator"}
    assert [line["type"] for line in lines if line["kind"] == "HINT"] == ["guide", "guide"]
    raw = tmp_path / "raw"
    raw.write_bytes(b"".join(packet.data for packet in golden_packets() if packet.direction == 1))
    again = tmp_path / "again.pcap"
    only_device = monitor("--file", str(raw), "--from", "device", "--pcap", str(again))
    assert only_device == [line for line in lines if line["from"] == "device"]
    with again.open("rb") as file:
        kept = [(packet.direction, packet.data) for packet in read_pcap(file)]
    assert kept == [(p.direction, p.data) for p in golden_packets() if p.direction is Direction.FROM_DEVICE]


@pytest.mark.parametrize("magic", ["0a0d0d0a", "a1b2c3d4", "4d3cb2a1", "a1b23c4d"])
def test_a_capture_in_another_form_is_not_read_as_bytes_of_the_cable(tmp_path: Path, magic: str) -> None:
    """Wireshark saves pcapng unless it is asked for pcap."""
    path = write_pcap(tmp_path / "c.pcap", golden_packets())
    path.write_bytes(bytes.fromhex(magic) + path.read_bytes()[4:])
    words = ["link", "monitor", "--file", str(path)]
    done = ran(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "not a little-endian pcap file with microseconds" in done.stderr


def test_a_capture_is_not_written_over_itself(tmp_path: Path) -> None:
    path = write_pcap(tmp_path / "c.pcap", golden_packets())
    before = path.read_bytes()
    words = ["link", "monitor", "--file", str(path), "--pcap", str(path)]
    done = ran(*words)
    assert (done.returncode, "would be emptied" in done.stderr) == (2, True)
    assert path.read_bytes() == before


def test_what_a_pipe_brings_is_shown_at_once() -> None:
    words = [*PALMCTL, "link", "monitor", "--file", "-"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(encode_frame(Frame(FrameKind.PING, sess=1)))
        process.stdin.flush()
        assert select.select([process.stdout], [], [], 20)[0]
        assert process.stdout.readline() == b"PING 01\n"
        process.stdin.close()


def test_the_monitor_stands_in_the_cable(tmp_path: Path) -> None:
    """Two virtual cables joined by it: what one end says arrives at the other, and is on record."""
    capture = tmp_path / "c.pcap"
    with PtyPair(directory=tmp_path) as near, PtyPair(directory=tmp_path) as far:
        words = ["link", "monitor", near.right, "--through", far.left, "--pcap", str(capture), "--json"]
        process = subprocess.Popen([*PALMCTL, *words], stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        device, validator = open_port(near.left), open_port(far.right)
        ping, pong = (encode_frame(Frame(kind, sess=7)) for kind in (FrameKind.PING, FrameKind.PONG))
        while not capture.exists():
            time.sleep(0.01)
        device.write(ping)
        assert json.loads(process.stdout.readline()) == {"from": "device", "kind": "PING", "sess": "07"}
        validator.write(pong)
        assert json.loads(process.stdout.readline()) == {"from": "validator", "kind": "PONG", "sess": "07"}
        assert _read(validator.fileno(), len(ping)) == ping
        assert _read(device.fileno(), len(pong)) == pong
        process.kill()
        process.wait()
        process.stdout.close()
        for port in (device, validator):
            port.close()
    with capture.open("rb") as file:
        assert [(packet.direction, packet.data) for packet in read_pcap(file)] == [(1, ping), (2, pong)]


def _read(descriptor: int, count: int) -> bytes:
    os.set_blocking(descriptor, True)
    data = b""
    while len(data) < count:
        data += os.read(descriptor, count - len(data))
    return data


# ---- Wireshark

TSHARK = shutil.which("tshark")
needs_tshark = pytest.mark.skipif(TSHARK is None, reason="tshark is not installed")


def tshark(path: Path, *arguments: str) -> list[str]:
    """The lines that tshark prints for a capture, with the dissector loaded."""
    command = [TSHARK or "", "-X", f"lua_script:{DISSECTOR}", "-r", str(path), *arguments]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "lua" not in shown.stderr.lower(), shown.stderr
    return shown.stdout.splitlines()


def fields(path: Path, *names: str) -> list[list[str]]:
    asked = [word for name in names for word in ("-e", name)]
    return [line.split("\t") for line in tshark(path, "-T", "fields", *asked)]


@needs_tshark
def test_wireshark_shows_every_member_of_every_frame(tmp_path: Path) -> None:
    path = write_pcap(tmp_path / "c.pcap", golden_packets())
    names = ("direction", "kind", "chan", "mid", "index", "count", "dropped")
    rows = fields(path, *(f"link1.{name}" for name in names))
    frames = [FrameDecoder().feed(packet.data)[0] for packet in golden_packets()]
    assert rows == [
        [str(int(n)) for n in (packet.direction, f.kind, f.chan, f.mid, f.index, f.count)] + [""]
        for packet, f in zip(golden_packets(), frames, strict=True)
    ]


@needs_tshark
def test_wireshark_puts_fragments_together_and_reads_the_message(tmp_path: Path) -> None:
    items = VECTORS["messages"]
    packets = [
        Captured(0, BY_NAME[item["from"]], bytes.fromhex(frame)) for item in items for frame in item["frames"]
    ]
    rows = fields(write_pcap(tmp_path / "c.pcap", packets), "link1.type", "link1.text", "json.value.string")
    whole = [row for row in rows if row[0]]
    assert [row[0] for row in whole] == [item["type"] for item in items]
    assert [row[1] for row in whole] == [item["text"] for item in items]
    assert all(item["type"] in row[2] for row, item in zip(whole, items, strict=True))


@needs_tshark
def test_wireshark_drops_what_an_end_drops_for_the_same_reason(tmp_path: Path) -> None:
    bad = VECTORS["dropped_frames"]
    packets = [Captured(0, Direction.FROM_VALIDATOR, bytes.fromhex(item["hex"])) for item in bad]
    path = write_pcap(tmp_path / "c.pcap", packets)
    assert [row[0] for row in fields(path, "link1.dropped")] == [item["why"] for item in bad]


@needs_tshark
def test_wireshark_names_a_run_without_an_end_as_an_end_does(tmp_path: Path) -> None:
    """It is cut in a capture, and no end looks at more of it than a frame can have."""
    for run in (b"\x33" * 20_820 + b"\x00", cobs_encode(b"\x01" * 1_500) + b"\x00"):
        decoder = FrameDecoder()
        assert decoder.feed(run) == []
        packets = [Captured(0, V, piece) for piece in FrameCutter().feed(run)]
        rows = fields(write_pcap(tmp_path / "c.pcap", packets), "link1.dropped")
        assert [row[0] for row in rows] == [reason.value for reason in decoder.dropped]


def fragments_of_other_counts() -> list[Frame]:
    """A message of two fragments, a stray one of three in between, and one whose own count changes."""
    text = b'{"body":{"x":"' + b"x" * 1_500 + b'"},"type":"resolve","v":1}'
    halves = text[:1024], text[1024:]

    def half(index: int, count: int, mid: int) -> Frame:
        return Frame(FrameKind.DATA, sess=1, mid=mid, index=index, count=count, payload=halves[index])

    stray = Frame(FrameKind.DATA, sess=1, mid=0, index=0, count=3, payload=b"y" * 1_024)
    return [half(0, 2, 0), stray, half(1, 2, 0), half(0, 3, 1), half(1, 2, 1)]


OF_OTHER_COUNTS = [("", ""), ("", "count_changed"), ("resolve", ""), ("", ""), ("", "count_changed")]
"""Type and drop of each of these frames."""


def test_an_end_takes_fragments_of_one_count() -> None:
    receiver = ChannelReceiver()
    taken = [receiver.take(frame) for frame in fragments_of_other_counts()]
    assert [one.dropped or "" for one in taken] == [why for _, why in OF_OTHER_COUNTS]
    assert [one.message is not None for one in taken] == [type_ != "" for type_, _ in OF_OTHER_COUNTS]


def test_the_monitor_puts_together_what_an_end_puts_together(tmp_path: Path) -> None:
    path = write_pcap(tmp_path / "c.pcap", [sent(D, frame) for frame in fragments_of_other_counts()])
    lines = monitor("--file", str(path))
    assert [(line.get("type", ""), line.get("dropped", "")) for line in lines] == OF_OTHER_COUNTS


@needs_tshark
@pytest.mark.parametrize("passes", [(), ("-2",)])
def test_wireshark_puts_together_what_an_end_puts_together(tmp_path: Path, passes: tuple[str, ...]) -> None:
    path = write_pcap(tmp_path / "c.pcap", [sent(D, frame) for frame in fragments_of_other_counts()])
    lines = tshark(path, *passes, "-T", "fields", "-e", "link1.type", "-e", "link1.dropped")
    assert [tuple(line.split("\t")) for line in lines] == OF_OTHER_COUNTS


@needs_tshark
def test_wireshark_filters_by_type_and_shows_tags(tmp_path: Path) -> None:
    path = write_pcap(tmp_path / "c.pcap", golden_packets()[:46])
    assert len(tshark(path, "-Y", 'link1.type == "verdict"')) == 1
    (line,) = tshark(path, "-Y", "link1.kind == 8")
    assert "device → validator" in line
    assert "HINT guide" in line
    assert len(tshark(path, "-Y", "link1.answered_tag")) == 3


D, V = Direction.FROM_DEVICE, Direction.FROM_VALIDATOR
OLD_D, OLD_V, NEW_D, NEW_V = b"\x01" * 8, b"\x11" * 8, b"\x21" * 8, b"\x31" * 8


def sent(sender: Direction, frame: Frame) -> Captured:
    return Captured(0, sender, encode_frame(frame))


def two_sessions() -> list[tuple[Captured, list[str]]]:
    """Frames of two sessions, each with the session, why it is none of it, its type, and if it was there."""
    long = b'{"body":{"x":"' + b"x" * 1_100 + b'"},"type":"resolve","v":1}'
    data = (long, b'{"body":{},"type":"ready","v":1}')
    first, second = data[0][:1024], data[0][1024:]

    def slice_of(sess: int, payload: bytes, index: int = 0, count: int = 1) -> Frame:
        return Frame(FrameKind.DATA, sess=sess, index=index, count=count, payload=payload)

    ended = "of session 1, which has ended"
    return [
        (sent(D, Frame(FrameKind.PING, sess=0x11)), ["", "", "", ""]),
        (sent(D, Frame(FrameKind.RST, payload=OLD_D)), ["", "", "", ""]),
        (sent(V, Frame(FrameKind.PING, sess=0x77)), ["", "its receiver has reset the link", "", ""]),
        (sent(V, Frame(FrameKind.RSTACK, payload=OLD_D + OLD_V)), ["1", "", "", ""]),
        (sent(D, slice_of(0x11, first, 0, 2)), ["1", "", "", ""]),
        (sent(V, slice_of(0x01, data[1])), ["1", "", "ready", ""]),
        (sent(V, slice_of(0x01, data[1])), ["1", "", "ready", "True"]),
        # The validator begins anew. What is on its way to it, and what comes late, is of the old session.
        (sent(V, Frame(FrameKind.RST, payload=NEW_V)), ["1", "", "", ""]),
        (sent(D, slice_of(0x11, second, 1, 2)), ["1", "its receiver has reset the link", "", ""]),
        (sent(D, Frame(FrameKind.RSTACK, payload=NEW_V + NEW_D)), ["2", "", "", ""]),
        (sent(V, slice_of(0x01, data[1])), ["1", ended, "", ""]),
        (sent(D, slice_of(0x11, second, 1, 2)), ["1", ended, "", ""]),
        (sent(V, Frame(FrameKind.PING, sess=0x55)), ["2", "no tag of its receiver begins so", "", ""]),
        # The same mid is another message: its halves are put together, and not with the old ones.
        (sent(D, slice_of(0x31, second, 1, 2)), ["2", "", "", ""]),
        (sent(D, slice_of(0x31, first, 0, 2)), ["2", "", "resolve", ""]),
        (sent(V, slice_of(0x21, data[1])), ["2", "", "ready", ""]),
        # Both answers to a reset of both ends name the same pair.
        (sent(V, Frame(FrameKind.RSTACK, payload=NEW_D + NEW_V)), ["2", "", "", ""]),
    ]


@needs_tshark
@pytest.mark.parametrize("passes", [(), ("-2",)])
def test_wireshark_knows_which_session_a_frame_is_of(tmp_path: Path, passes: tuple[str, ...]) -> None:
    story = two_sessions()
    path = write_pcap(tmp_path / "c.pcap", [packet for packet, _ in story])
    names = ("session", "stale", "type", "again")
    asked = [word for name in names for word in ("-e", f"link1.{name}")]
    rows = [line.split("\t") for line in tshark(path, *passes, "-T", "fields", *asked)]
    assert [[row[0], row[1], row[2], {"1": "True"}.get(row[3], row[3])] for row in rows] == [
        wanted for _, wanted in story
    ]


@needs_tshark
def test_wireshark_finds_no_stray_frame_in_a_sound_dialogue(tmp_path: Path) -> None:
    said = [packet for packet in golden_packets() if packet.at_us != 1_700_000_000_900_000]
    path = write_pcap(tmp_path / "c.pcap", said)
    assert tshark(path, "-Y", 'link1.type == "verdict" && link1.session')
    assert max(int(row[0] or 0) for row in fields(path, "link1.session")) == 2
