"""An operation: one row of the table that routing, checks and the OpenAPI document come from."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from enum import Enum, auto
from typing import Final

from pydantic import BaseModel

from cloud_client.contract import NAME_64
from cloud_client.reference_server.contract.bodies import Body, read_model
from cloud_client.reference_server.contract.parameters import Parameter
from cloud_client.reference_server.contract.problems import ProblemCode
from cloud_client.reference_server.contract.words import HEX_32, MAX_JSON_BYTES, UUID, Scope
from cloud_client.reference_server.domain.call import ApiAnswer, Call
from cloud_client.reference_server.store.async_store import AsyncStore
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.web.api.rate_limit import Rate
from link1.canonical import MAX_DEPTH

MAX_VALUES: Final = 2048
MAX_VALUES_OF_A_BATCH: Final = 16_384
"""A hundred verdicts with their decisions and passages have some 9,000."""

Handler = Callable[[Call, Tx], ApiAnswer]
"""Does its work in one transaction."""
AsyncHandler = Callable[[Call, AsyncStore], Awaitable[ApiAnswer]]
"""Opens its own transactions: it waits, or reads much."""


AheadOfIt = Callable[[Call, AsyncStore], Awaitable[object]]
"""Does in reads, before the transaction, what would keep it long; the handler finds it in ``Call.ahead``."""


class Surface(Enum):
    """Who may call, and how they prove it."""

    PUBLIC = auto()
    PARTNER = auto()
    DEVICE = auto()
    REGISTRATION = auto()


class Keyed(Enum):
    """Whether an operation takes an Idempotency-Key."""

    NO = auto()
    OPTIONAL = auto()
    REQUIRED = auto()


@dataclass(frozen=True, slots=True)
class PathRule:
    """A path parameter: a value outside ``pattern`` is answered like a missing resource."""

    pattern: re.Pattern[str]
    missing: ProblemCode
    lower: bool = False


PATHS: Final[Mapping[str, PathRule]] = {
    "subject_id": PathRule(UUID, ProblemCode.SUBJECT_NOT_FOUND, lower=True),
    "session_id": PathRule(UUID, ProblemCode.ENROLLMENT_SESSION_NOT_FOUND, lower=True),
    "receipt_id": PathRule(UUID, ProblemCode.ERASURE_RECEIPT_NOT_FOUND, lower=True),
    "device_id": PathRule(NAME_64, ProblemCode.DEVICE_NOT_FOUND),
    "release_seq": PathRule(re.compile("[1-9][0-9]{0,15}"), ProblemCode.UPDATE_NOT_FOUND),
    "index": PathRule(re.compile("0|[1-9][0-9]{0,8}"), ProblemCode.UPDATE_NOT_FOUND),
    "verdict_id": PathRule(HEX_32, ProblemCode.VERDICT_NOT_FOUND),
    "code": PathRule(re.compile("[a-z_]{1,64}"), ProblemCode.ROUTE_NOT_FOUND),
    "purpose": PathRule(
        re.compile("enrollment|identification|dataset_collection"), ProblemCode.SUBJECT_NOT_FOUND
    ),
}
"""By the name that a path has a parameter under."""


@dataclass(frozen=True, slots=True)
class Retirement:
    """When an operation was deprecated, and when it goes (epoch seconds); every answer of it says so."""

    deprecated_s: int
    sunset_s: int

    @property
    def headers(self) -> dict[str, str]:
        """``Deprecation`` (RFC 9745) and ``Sunset`` (RFC 8594)."""
        return {
            "Deprecation": f"@{self.deprecated_s}",
            "Sunset": format_datetime(datetime.fromtimestamp(self.sunset_s, UTC), usegmt=True),
        }


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One operation of the contract."""

    operation_id: str
    route: str
    """Method and path, as ``GET /v1/subjects/{subject_id}``."""
    summary: str
    handler: Handler | AsyncHandler
    answers: Mapping[int, type[BaseModel] | None]
    """Success statuses and the model of their body (None: no body)."""
    surface: Surface = Surface.PARTNER
    note: str = ""
    """What the reference says in addition."""
    problems: tuple[ProblemCode, ...] = ()
    """Codes in addition to those that follow from the rest of the entry."""
    scope: Scope | None = None
    bodies: tuple[type[Body], ...] = ()
    """The model of its body, or the alternatives that ``body_of`` chooses from."""
    body_of: Callable[[object], Body] | None = None
    query: tuple[Parameter, ...] = ()
    method: str = field(init=False)
    path: str = field(init=False)
    paths: Mapping[str, PathRule] = field(init=False)
    """What the parameters of ``path`` look like."""
    keyed: Keyed = Keyed.NO
    limits: tuple[Rate, ...] = ()
    """Rate limits in addition to that of its surface."""
    newest_key_only: bool = False
    """Of the Idempotency-Keys of a caller only the newest is remembered."""
    cost: float = 1.0
    """What a request without a cursor costs at the limit of its surface."""
    located: bool = False
    """Its answer says in ``Location`` where what was made is."""
    conditional: bool = False
    """Takes ``If-None-Match``."""
    dated: bool = False
    """Its answer has ``Svc-Server-Time``, as every answer of the device surface has."""
    lists: bool = False
    """Reads many rows: in a thread, never on the event loop."""
    waits: bool = False
    """``handler`` is an AsyncHandler."""
    ahead: AheadOfIt | None = None
    """Of an operation that takes an Idempotency-Key."""
    polled: bool = False
    """Thousands of devices may ask for it at the same moment: a few of them are carried out at once."""
    max_bytes: int = MAX_JSON_BYTES
    max_depth: int = MAX_DEPTH
    """How deep its body may be nested."""
    max_values: int = MAX_VALUES
    """About how many values a body may have; counted before its JSON is parsed."""
    for_revoked: bool = False
    access_only: bool = False
    """Not for totems (403 ``forbidden``)."""
    referenced: bool = False
    """Named by the partner document, detailed elsewhere."""
    added: bool = False
    """A route that v1 has grown by, beyond the partner document's sixteen operations."""
    retirement: Retirement | None = None
    """None of v1.0 is retired; a breaking change leaves at least 12 months between the two dates."""

    def __post_init__(self) -> None:
        method, path = self.route.split(" ")
        paths = {name: PATHS[name] for name in re.findall(r"\{(\w+)\}", path)}
        for name, value in (("method", method), ("path", path), ("paths", paths)):
            object.__setattr__(self, name, value)

    def read_body(self, value: object) -> Body:
        """The body that a JSON value is. Problem 422."""
        return read_model(self.bodies[0], value) if self.body_of is None else self.body_of(value)

    @property
    def writes(self) -> bool:
        return self.method != "GET"
