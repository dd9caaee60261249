"""Who calls, and for which environment of which tenant."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Environment:
    """One data partition: a tenant, live or test."""

    tenant_id: str
    livemode: bool

    @property
    def mode(self) -> str:
        return "live" if self.livemode else "test"

    @property
    def stream(self) -> str:
        """The name of its gallery stream."""
        return f"{self.tenant_id}:{self.mode}"

    @property
    def params(self) -> dict[str, Any]:
        """The two columns as SQL parameters."""
        return {"tenant_id": self.tenant_id, "livemode": int(self.livemode)}


@dataclass(frozen=True, slots=True)
class PartnerCaller:
    """A partner's credential."""

    key_id: str
    environment: Environment
    scopes: frozenset[str]


@dataclass(frozen=True, slots=True)
class DeviceCaller:
    """A device that signed its request."""

    device_id: str
    environment: Environment
    kind: str


@dataclass(frozen=True, slots=True)
class ProvisioningCaller:
    """The holder of a provisioning token that is not expired."""

    token: str
    environment: Environment
    device_id: str


@dataclass(frozen=True, slots=True)
class PublicCaller:
    """A caller of a public route."""

    address: str


Caller = PartnerCaller | DeviceCaller | ProvisioningCaller | PublicCaller
