"""Requests and answers of the two processes of a device, at the carrier's socket.

Four operations have no object: `http_key` is answered with the 32 bytes that sign requests to the service,
`keys` carries the answer of GET /v1/keys, `updates.wanted` and `attest` carry nothing; `attest` is answered
with the body of POST /v1/devices/attest for the newest status.
"""

from typing import Annotated, Final

from cloud_client.contract import MAX_BATCH_ITEMS
from link1.members import NAME
from link1.wire import Between, WireObject

WIPED_CODE: Final = "wiped"
"""With this code the core refuses `hello` and `http_key`, because that key is destroyed."""
MAX_WAIT_MS: Final = 60_000
"""A carrier asks again after at most this time, so that a hanging one is noticed."""


ONLINE: Final = "online"
"""`detail` of a service that is reachable, and whose answers the core takes."""


class CloudState(WireObject):
    """`link_state`: whether the service is reachable, and the words for a status line."""

    online: bool
    detail: str


class GalleryPosition(WireObject):
    """The position of the core's gallery; the answer to `gallery.deltas`, which carries a page."""

    epoch: int
    seq: int


class HelloAnswer(WireObject):
    """The answer to `hello`. `wipe_id`: of a wipe not yet reported to the service."""

    gallery: GalleryPosition | None
    wipe_id: str | None


class SnapshotPageTaken(WireObject):
    """The answer to `gallery.snapshot`, which carries a page. `done`: it was the last one."""

    done: bool
    position: GalleryPosition


class BatchAsked(WireObject):
    """`verdicts.next`: at most `limit` items, as soon as there are any or after `wait_ms`."""

    wait_ms: Annotated[int, Between(0, MAX_WAIT_MS)]
    limit: Annotated[int, Between(1, MAX_BATCH_ITEMS)]


class BatchOffered(WireObject):
    """The answer, with the body of POST /v1/verdicts/batch; ticket 0: there is none."""

    ticket: int
    items: int


class WaitAsked(WireObject):
    """`enrolment.next`, `redeem.next`: the oldest body, as soon as there is one or after `wait_ms`;
    `report.next`: the body of POST …/self/report, as soon as there is news or after `wait_ms`."""

    wait_ms: Annotated[int, Between(0, MAX_WAIT_MS)]


class ErrandOffered(WireObject):
    """The answer, with the body; ticket 0, and nothing else: there is none."""

    ticket: int
    idempotency_key: str = ""


class BatchAnswered(WireObject):
    """`verdicts.done`, with the service's answer. `code`: the code of a refusal, empty with status 200."""

    ticket: Annotated[int, Between(1)]
    status: Annotated[int, Between(100, 599)]
    code: str


class ErrandAnswered(WireObject):
    """`enrolment.done`, `redeem.done`, with the service's answer. `status`: 0 when the service was not
    reached. `code`: the code for that or for a refusal, else empty."""

    ticket: Annotated[int, Between(1)]
    status: Annotated[int, Between(0, 599)]
    code: str


class ChunkWanted(WireObject):
    """A chunk of a release to fetch next."""

    release_seq: int
    index: int


class OfferTaken(WireObject):
    """The answer to `updates`, which carries that of GET …/self/updates. `next_after_s`: when to ask the
    service again."""

    next_after_s: int
    chunk: ChunkWanted | None


class UpdateChunkTaken(WireObject):
    """What to fetch next: the answer to `updates.wanted`, `updates.gone`, and `updates.chunk`, which carries
    the service's answer."""

    chunk: ChunkWanted | None


class ReleaseGone(WireObject):
    """`updates.gone`: the service has no chunks of this release for this device."""

    release_seq: Annotated[int, Between(1)]


class StatusTaken(WireObject):
    """The answer to `status`, which carries the signed one. `wiped`: the wipe_id to confirm to the service.
    `attest`: an attestation with the challenge of this status is due."""

    wiped: str | None
    attest: bool = False


class AttestAnswered(WireObject):
    """`attested`: the service's answer to an attestation. `code`: of a refusal, empty with status 200."""

    status: Annotated[int, Between(100, 599)]
    code: str


class WipeConfirmed(WireObject):
    """`wiped`: the service knows of the wipe."""

    wipe_id: Annotated[str, NAME]


class ServiceTime(WireObject):
    """`time`: the service's clock (epoch)."""

    server_time_ms: Annotated[int, Between(0)]
