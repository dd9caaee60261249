"""What the two processes of a device tell each other about the service."""

from dataclasses import dataclass
from typing import Final

from device.values.wire import WireObject

WIPED_CODE: Final = "wiped"
"""With this code the core refuses to hand out the http key: the device has none any more."""


@dataclass(frozen=True, slots=True)
class LinkState(WireObject):
    """Whether the service is reachable, in words for a status line."""

    online: bool
    detail: str
