"""The access log: one line an answer, by route template, never a query, a body or a credential."""

import sys
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """What is known of a request once it is answered."""

    method: str
    template: str
    status: int
    took_s: float
    request_id: str
    reason: str = ""
    """Why it was refused, where its answer does not say so."""

    def log(self) -> None:
        """Write the line to standard error; a record of ``logging`` costs as much as ten of them."""
        stamp = datetime.now().isoformat(" ", "milliseconds").replace(".", ",")  # noqa: DTZ005 - as logging writes it
        try:
            sys.stderr.write(
                f"{stamp} palm.cloud.access {self.method} {self.template} "
                f"{self.status} {self.took_s * 1000:.1f} ms {self.request_id}"
                f"{self.reason and f': {self.reason}'}\n"
            )
        except OSError:
            return  # where the log's own disk is full the line is lost; the request is still answered
