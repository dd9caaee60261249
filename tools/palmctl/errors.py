"""What the tools raise, in addition to the errors of the packages below. A message says what was expected,
what was found (never a secret, never a personal value) and what to do.
"""

from device.errors import NOT_ROOT


class ToolError(Exception):
    """Base of the errors of the command line itself. `exit_code` is how `palmctl` ends with it."""

    exit_code = 1


class LogsUnavailable(ToolError):
    """There is no log to show here."""


class NoJournal(LogsUnavailable):
    """journald does not run here."""

    exit_code = 3


class NoPassage(ToolError):
    """No one passed in the given time."""


class RegistrationUnanswered(ToolError):
    """The service did not register the device; nothing is lost."""

    exit_code = 3


class NothingToReset(ToolError):
    """There is no device here."""

    exit_code = 3


class ChangeUnderWay(ToolError):
    """Another command changes the device at this moment."""


class OtherDevice(ToolError):
    """The change would make this device another one than was registered."""


class BundleRefused(ToolError):
    """The support bundle cannot be written."""


class RootNeeded(ToolError):
    """This user is not root, who alone may do it."""

    code = NOT_ROOT


class KeysNotEncrypted(ToolError):
    """The keys stay the files that they are."""


class ReleaseError(ToolError):
    """A folder that no release can be made of, or a file that is none."""


class ResetRefused(ToolError):
    """The factory reset was not done; nothing is lost."""
