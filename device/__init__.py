"""The device: its two daemons, what they are made of, and what a technician asks of them."""

import os
from typing import Final

# Read when NumPy is loaded. After a product on two threads OpenBLAS keeps the second core waiting for more.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

APP_PACKAGE: Final = "palm-access-device"
"""The distribution: `app.pkg` in what a device says about itself, and where its version is looked up."""
