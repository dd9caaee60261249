"""The access log: one line an answer, by route template, never a query, a body or a credential."""

import contextlib
import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """What is known of a request once it is answered."""

    method: str
    template: str
    status: int
    took_s: float
    request_id: str

    def log(self) -> None:
        """Write the line to standard error; a record of ``logging`` costs as much as ten of them."""
        at_ms = time.time_ns() // 1_000_000
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_ms // 1000))
        # Where the log's own disk is full the line is lost; the request is still answered.
        with contextlib.suppress(OSError):
            sys.stderr.write(
                f"{stamp},{at_ms % 1000:03d} palm.cloud.access {self.method} {self.template} "
                f"{self.status} {self.took_s * 1000:.1f} ms {self.request_id}\n"
            )
