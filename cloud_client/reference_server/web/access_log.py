"""The access log: one line an answer, by route template, never a query, a body or a credential."""

import logging
from dataclasses import dataclass

log = logging.getLogger("palm.cloud.access")


@dataclass(frozen=True, slots=True)
class Served:
    """What is known of a request once it is answered."""

    method: str
    template: str
    status: int
    took_s: float
    request_id: str

    def log(self) -> None:
        """Write the line."""
        log.info(
            "%s %s %d %.1f ms %s",
            self.method,
            self.template,
            self.status,
            self.took_s * 1000,
            self.request_id,
        )
