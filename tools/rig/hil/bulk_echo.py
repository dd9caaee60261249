"""Inside the virtual machine, under the package's Python: transfers of many sizes to the echo and back.

Prints one line of JSON: how many sizes, bytes each way, and what was wrong.
"""

import json
import select
import sys
import time
from collections.abc import Sequence

from link1.errors import TransportError
from link1.transport.serial_port import Port, open_port

SIZES = (1, 63, 64, 65, 511, 512, 513, 1_023, 1_024, 1_025, 2_048, 4_095, 4_096)
"""Around one and several packets of both speeds, up to the longest transfer."""
WITHIN_S = 20.0


def main(arguments: Sequence[str]) -> int:
    try:
        port = open_port(arguments[0])
    except TransportError as error:
        print(json.dumps({"error": str(error)}))
        return 1
    wrong = [size for size in SIZES if not _returns(port, bytes(index % 251 for index in range(size)))]
    unsent = port.unsent()
    port.close()
    print(json.dumps({"sizes": len(SIZES), "bytes": sum(SIZES), "wrong": wrong, "unsent": unsent}))
    return 1 if wrong else 0


def _returns(port: Port, data: bytes) -> bool:
    if port.write(data) != len(data):
        return False
    came, end_s = b"", time.monotonic() + WITHIN_S
    while len(came) < len(data) and time.monotonic() < end_s:
        if select.select([port.fileno()], [], [], 0.1)[0]:
            came += port.read(16_384)
    return came == data


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
