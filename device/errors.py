"""Everything that `device` raises. A message says what was expected, what was found (never a secret, never a
personal value) and what to do.
"""

from typing import Final


class DeviceError(Exception):
    """Base of all errors of this package."""


class ConfigError(DeviceError):
    """The configuration cannot be used. `problems` holds one line for each wrong member."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


class StateError(DeviceError):
    """Something in the state directory cannot be used."""


class NotProvisioned(StateError):
    """The device was never provisioned, or not in this state directory."""


class KeyStoreError(StateError):
    """A key file is missing, has another size than 32 bytes, or others may read it."""


class KeysAbsent(KeyStoreError, NotProvisioned):
    """There are no keys where they should be: the device was never provisioned, or was reset."""


class TrustError(StateError):
    """The pinned trust cannot be read, or does not vouch for the object presented."""


class Outdated(TrustError):
    """The object presented is valid, and older than one accepted before: there is nothing to do."""


class AttestationError(StateError):
    """The maker's certificate chain, or the key that signs under it, cannot be used."""


class JournalError(StateError):
    """The verdict journal cannot be used, or an entry contradicts what it holds."""


class SequenceHalted(JournalError):
    """More verdicts of these keys exist than the journal holds; no further verdict is numbered."""


class CameraError(DeviceError):
    """The camera is absent, unreadable or stalled."""


class ProvisioningError(DeviceError):
    """Registration with the service failed."""


class Refused(DeviceError):
    """A request is refused; `code` is the word for it, `str()` the text for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EnrolmentRefused(Refused):
    """An enrolment cannot take this step now."""


class UpdateRefused(Refused):
    """A release, or a piece of one, is rejected."""


class IpcError(DeviceError):
    """A packet or a socket between two processes of the device."""


class IpcUnreachable(IpcError):
    """No process listens at the socket, or the connection closed before the reply."""


class IpcSilent(IpcUnreachable):
    """A process listens at the socket, and did not answer in time."""


class IpcNotPermitted(IpcUnreachable):
    """This user may not use the socket; the state of the program behind it is unknown."""


class IpcRefused(IpcError, Refused):
    """The other side refused."""


NOT_ROOT: Final = "not_root"
"""`code` where another user asks for what is for root alone."""
