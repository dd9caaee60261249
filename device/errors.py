"""Everything that `device` raises.

DeviceError
├── ConfigError          the configuration file; `problems` names every wrong member at once
├── StateError           the state directory
│   ├── NotProvisioned   the device has no keys or no trust yet
│   ├── KeyStoreError    a key file is missing, damaged or readable by others
│   ├── TrustError       trust.json, or something signed that it does not vouch for
│   │   └── Outdated     signed by who may, and older than what was taken before
│   └── JournalError     the verdict journal cannot be used, or an entry contradicts it
├── CameraError          the camera is absent, unreadable or stalled
├── ProvisioningError    registration failed; `palmctl provision` says what to do
├── UpdateRefused        a release, or a piece of one, is not taken; `code` says why
├── EnrolmentRefused     an enrolment cannot take this step now; `code` says why
└── IpcError             packets between processes of the device
    ├── IpcUnreachable   nobody listens, or the connection went away
    │   └── IpcNotPermitted  this user may not use the socket; whether anybody listens is not known
    └── IpcRefused       the other side answered with a refusal; `code` says which

A message says what was expected, what was found (never a secret, never a personal value) and what to do.
"""


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
    """What registration pinned cannot be read, or does not vouch for what was presented."""


class Outdated(TrustError):
    """What was presented is vouched for, and older than what was taken before: nothing is to be done."""


class JournalError(StateError):
    """The verdict journal cannot be used, or an entry contradicts what it holds."""


class SequenceHalted(JournalError):
    """Somebody knows of more verdicts of these keys than the journal holds; no other one is numbered."""


class CameraError(DeviceError):
    """The camera is absent, unreadable or stalled."""


class ProvisioningError(DeviceError):
    """Registration with the service failed."""


class EnrolmentRefused(DeviceError):
    """An enrolment cannot take this step now; `code` is the reason in a word."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class UpdateRefused(DeviceError):
    """A release, or a piece of one, is not taken; `code` is its word, `str()` its text for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class IpcError(DeviceError):
    """A packet or a socket between two processes of the device."""


class IpcUnreachable(IpcError):
    """Nobody listens at the socket, or the connection went away before the reply."""


class IpcNotPermitted(IpcUnreachable):
    """This user may not use the socket, which says nothing about the program behind it."""


class IpcRefused(IpcError):
    """The other side refused; `code` is its word, `str()` its text for a person."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
