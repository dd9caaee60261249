"""What the tools raise, beside the errors of the packages below.

ToolError
├── LogsUnavailable     journald is not here, or does not let this user read
├── BundleRefused       a support bundle cannot be written there
├── KeysNotEncrypted    keys cannot be made credentials here, or not by this user
├── ReleaseError        no release can be made of a folder, or a file is none
└── ResetRefused        a factory reset is not to be done, or not now

A message says what was expected, what was found (never a secret, never a personal value) and what to do.
"""


class ToolError(Exception):
    """Base of the errors of the command line itself."""


class LogsUnavailable(ToolError):
    """There is no log to show here."""


class BundleRefused(ToolError):
    """The support bundle cannot be written."""


class KeysNotEncrypted(ToolError):
    """The keys stay the files that they are."""


class ReleaseError(ToolError):
    """A folder that no release can be made of, or a file that is none."""


class ResetRefused(ToolError):
    """The factory reset was not done; nothing is lost."""
