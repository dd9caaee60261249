"""The device: its two daemons, what they are made of, and what a technician asks of them."""

from typing import Final

APP_PACKAGE: Final = "palm-access-device"
"""The distribution: `app.pkg` in what a device says about itself, and where its version is looked up."""
