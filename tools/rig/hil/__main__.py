"""Run the rig.

    python -m tools.rig.hil --deb build/hil/palm-access_0.1.0-1_amd64.deb [--only NAME …] [--out FILE]

Exit codes: 0 every scenario passed, 1 one failed, 2 wrong usage, 3 the rig could not be built or started.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tools.rig.hil.errors import HilError
from tools.rig.hil.image import make_image
from tools.rig.hil.machine import Machine, running
from tools.rig.hil.machine_device import MachineDevice, make_stage
from tools.rig.hil.rig import Rig, ScenarioFailed
from tools.rig.hil.scenarios import SCENARIOS, Figures
from tools.rig.hil.tpm_board import NAME as TPM_BOARD
from tools.rig.hil.tpm_board import board_with_a_tpm, why_not

CACHE = Path("build/hil")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.rig.hil", description=__doc__)
    parser.add_argument("--deb", type=Path, required=True, help="The built package, of this architecture.")
    parser.add_argument("--out", type=Path, default=Path("build/hil.json"))
    names = sorted({*(scenario.name for scenario in SCENARIOS), TPM_BOARD})
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        metavar="NAME",
        help="These, and what they need: " + ", ".join(names),
    )
    chosen = parser.parse_args()
    if not chosen.deb.is_file():
        parser.error(f"{chosen.deb} does not exist; make it with: make deb")
    begun = time.monotonic()
    try:
        results = _run(chosen.deb, set(chosen.only or names))
    except HilError as error:
        print(f"hil: {error}", file=sys.stderr)
        return 3
    took_s = round(time.monotonic() - begun)
    passed = all(result["passed"] for result in results)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "package": chosen.deb.name,
        "took_s": took_s,
        "load_at_end": round(os.getloadavg()[0], 1),
        "scenarios": results,
    }
    chosen.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{sum(result['passed'] for result in results)} of {len(results)} passed in {took_s} s")
    return 0 if passed else 1


def _run(package: Path, names: set[str]) -> list[dict[str, Any]]:
    CACHE.mkdir(parents=True, exist_ok=True)
    results = [] if names == {TPM_BOARD} else _run_rig(package, names)
    if TPM_BOARD not in names:
        return results
    if (reason := why_not()) is not None:
        print(f"SKIP {TPM_BOARD:18} {reason}", flush=True)
        return results
    return [*results, _played(TPM_BOARD, lambda: board_with_a_tpm(CACHE, package, _tell))]


def _run_rig(package: Path, names: set[str]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="palm-hil-stage-") as name:
        _tell("making the device's state and what its camera sees")
        stage = make_stage(Path(name))
        image = make_image(CACHE, (package,), Path(name), _tell)
    _tell("starting the machine")
    with running(image, CACHE / "console.log") as machine:
        try:
            return _play(Rig(machine, stage), stage, names)
        finally:
            _keep_journal(machine)


def _play(rig: Rig, stage: MachineDevice, names: set[str]) -> list[dict[str, Any]]:
    results: list[dict[str, Any]] = []
    for scenario in SCENARIOS:
        if not (scenario.needed or scenario.name in names):
            continue
        result = _played(scenario.name, partial(scenario.run, rig, stage))
        results.append(result)
        if scenario.needed and not result["passed"]:
            print("hil: nothing else can be tried without it", file=sys.stderr)
            break
    return results


def _played(name: str, play: Callable[[], Figures]) -> dict[str, Any]:
    begun = time.monotonic()
    result: dict[str, Any] = {"name": name, "passed": True}
    try:
        result["figures"] = play()
    except ScenarioFailed as failed:
        result |= {"passed": False, "why": str(failed)}
    result["took_s"] = round(time.monotonic() - begun, 1)
    told = ", ".join(f"{each} {value}" for each, value in result.get("figures", {}).items())
    word = "PASS" if result["passed"] else "FAIL"
    print(f"{word} {name:18} {result['took_s']:6.1f} s  {told or result['why']}", flush=True)
    return result


def _keep_journal(machine: Machine) -> None:
    """The machine's log, to find the cause of a failure."""
    said = machine.run("journalctl", "--no-pager", "--output=short-monotonic", "--lines=400", check=False)
    (CACHE / "journal.log").write_text(said.stdout, encoding="utf-8")


def _tell(text: str) -> None:
    print(f"hil: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
