"""Makes LINK/1 bytes readable: one line a frame, and the message when its last fragment has come."""

from collections import OrderedDict

from link1.canonical import JsonObject, read_strict
from link1.errors import FormatError
from link1.frames import MAX_MESSAGE_BYTES, Channel, DropReason, Frame, FrameDecoder, FrameKind

MAX_PARTIAL_MESSAGES = 8
"""Two channels, two directions, and as many again for what a reset left unfinished."""


class FrameLog:
    """Fed with bytes of one or both directions; answers with report lines."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder()
        self._partial: OrderedDict[tuple[Channel, int, int], dict[int, bytes]] = OrderedDict()
        self._dropped_before = 0

    @property
    def dropped(self) -> dict[DropReason, int]:
        return dict(self._decoder.dropped)

    def feed(self, data: bytes) -> list[JsonObject]:
        """A line for each frame that `data` completes, and one when something was no frame."""
        lines = [self._line(frame) for frame in self._decoder.feed(data)]
        dropped = self._decoder.dropped.total()
        if dropped != self._dropped_before:
            reasons = {reason.value: count for reason, count in self._decoder.dropped.items()}
            lines.append({"kind": "DROPPED", "so_far": reasons})
            self._dropped_before = dropped
        return lines

    def _line(self, frame: Frame) -> JsonObject:
        line: JsonObject = {"kind": frame.kind.name}
        if frame.kind in (FrameKind.DATA, FrameKind.ACK):
            line |= {"chan": frame.chan.name.lower(), "mid": frame.mid}
        if frame.kind not in (FrameKind.RST, FrameKind.RSTACK):
            line["sess"] = f"{frame.sess:02x}"
        else:
            line["tags"] = [frame.payload[at : at + 8].hex() for at in range(0, len(frame.payload), 8)]
        if frame.kind is FrameKind.HINT:
            line |= _message(frame.payload)
        if frame.kind is FrameKind.DATA:
            line |= {"fragment": frame.index + 1, "of": frame.count, "bytes": len(frame.payload)}
            whole = self._whole(frame)
            if whole is not None:
                line |= _message(whole)
        return line

    def _whole(self, frame: Frame) -> bytes | None:
        """The message that this fragment completes."""
        key = (frame.chan, frame.sess, frame.mid)
        slices = self._partial.setdefault(key, {})
        slices[frame.index] = frame.payload
        if not all(index in slices for index in range(frame.count)):
            if len(self._partial) > MAX_PARTIAL_MESSAGES:
                self._partial.popitem(last=False)
            return None
        del self._partial[key]
        return b"".join(slices[index] for index in range(frame.count))


def _message(data: bytes) -> JsonObject:
    try:
        obj = read_strict(data, max_bytes=MAX_MESSAGE_BYTES)
    except FormatError as error:
        return {"unreadable": str(error)}
    return {"type": obj.get("type"), "body": obj.get("body")}
