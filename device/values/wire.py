"""The answer to a request on a socket of the core."""

from device.platform.ipc import Packet, reply
from link1.wire import WireObject


def reply_with(answer: WireObject, payload: bytes | bytearray = b"") -> Packet:
    """A good reply with the members of `answer`."""
    return reply(payload, **answer.to_obj())
