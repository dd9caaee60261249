"""The device starts on what a power cut left: recorded, so that the power can go again meanwhile.

python power_reopen.py STATE
"""

import sys
from pathlib import Path

from device.wipe.wipe import finish_wipe
from tests.device.core_makers import HandClock
from tests.power.power_device import opened


def main() -> None:
    state = Path(sys.argv[1])
    if finish_wipe(state) is not None:
        return
    with opened(state, HandClock()) as device:
        device.journal.maintain()


if __name__ == "__main__":
    main()
