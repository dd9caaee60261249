"""What a handler takes and returns."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cloud_client.reference_server.contract.answers import AnswerObject
from cloud_client.reference_server.contract.times import NowMs
from cloud_client.reference_server.domain.gallery.palm_index import PalmIndex
from cloud_client.reference_server.domain.gallery.waiters import Waiters
from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.store.base import Tx
from cloud_client.reference_server.store.health import StoreHealth
from cloud_client.reference_server.store.vault import Vault


@dataclass(frozen=True, slots=True)
class Service:
    """What all handlers share; made once by the composition root."""

    vault: Vault
    now_ms: NowMs
    palms: PalmIndex
    waiters: Waiters
    health: StoreHealth = field(default_factory=StoreHealth)


@dataclass(frozen=True, slots=True)
class Call:
    """One request that has passed every check before the handler's own."""

    service: Service
    caller: Any
    path: Mapping[str, str]
    query: Mapping[str, Any]
    body: Any
    now_ms: int
    if_none_match: tuple[str, ...] = ()
    """The values of that header, as they came."""
    ahead: Any = None
    """What was done ahead of the transaction, for an operation with such a part."""

    @property
    def environment(self) -> Environment:
        environment: Environment = self.caller.environment
        return environment

    @property
    def vault(self) -> Vault:
        return self.service.vault


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A response before it is written out.

    ``subject_id`` names the person that a recorded copy of this answer would concern, so that erasing the
    person deletes the copy.
    ``forgets`` is a person whose palms are dropped from memory once this is committed.
    ``unfinished`` is work that would hold the store for too long in one transaction: it is called in one
    transaction after another until it returns False; then the answer is sent.
    ``reason`` is for the log alone: why a part was refused, without anything that was received.
    """

    status: int
    body: AnswerObject | Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    subject_id: str | None = None
    forgets: str | None = None
    unfinished: Callable[[Tx], bool] | None = None
    encoded: bytes = b""
    """The JSON of ``body``, where many get the same."""
    reason: str = ""


def why_refused(device_id: str, refusals: Sequence[str]) -> str:
    """The ``reason`` of an answer that refuses some of what a device sent: how much, and the first."""
    return f"{device_id}: {len(refusals)} refused: {refusals[0]}" if refusals else ""
