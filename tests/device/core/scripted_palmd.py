"""`palmd` whose clocks a test sets: python -m tests.device.core.scripted_palmd CONFIG CLOCKS

CLOCKS is a JSON file, read whenever the time is: how far CLOCK_BOOTTIME and the wall clock are from the
machine's (ms), the boot, and whether the board's clock runs on without power.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

from device.config.config import load_config
from device.core import opening, palmd
from device.platform.clock import SystemClock
from device.platform.memory import MemoryGuard


class ScriptedClock(SystemClock):
    def __init__(self, script: Path) -> None:
        self._script = script

    def _set(self, name: str) -> Any:
        return json.loads(self._script.read_bytes())[name]

    def boottime_ms(self) -> int:
        return super().boottime_ms() + int(self._set("boottime_off_ms"))

    def wall_ms(self) -> int:
        return super().wall_ms() + int(self._set("wall_off_ms"))


def main() -> None:
    config, script = load_config(Path(sys.argv[1])), Path(sys.argv[2])
    boot = script.with_suffix(".boot")
    script_now = json.loads(script.read_bytes())
    boot.write_text(script_now["boot"])
    kept = bool(script_now["clock_kept"])
    with (
        patch.object(opening, "BOOT_ID", boot),
        patch.object(palmd, "has_kept_time", lambda: kept),
    ):
        asyncio.run(palmd.serve(config, ScriptedClock(script), MemoryGuard(True, True, "")))


if __name__ == "__main__":
    main()
