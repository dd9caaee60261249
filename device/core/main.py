"""`palmd`, as its script and `python -m device.core.main` start it; all of it is in `device.core.palmd`."""

import gc
import sys


def main() -> int:
    """The program; returns its exit status."""
    # What a start imports and opens stays. Looking it through for garbage takes a tenth of the start;
    # `device.core.palmd.serve` has it looked for from READY on.
    gc.disable()
    from device.core.palmd import main as palmd

    return palmd()


if __name__ == "__main__":
    sys.exit(main())
