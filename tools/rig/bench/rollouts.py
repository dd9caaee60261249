"""How likely a faulty release is halted, and in which wave: `python -m tools.rig.bench.rollouts`.

The rules of the reference server decide (`rollout_rules`); simulated devices in virtual time do what devices
do: they poll, receive, switch, report every minute, and judge palms. Of the devices that switch, a share has
the fault. Besides the fault a few devices are away all the time, and some fall silent for reasons of their
own, which must not halt anything.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np

from cloud_client.reference_server.domain.devices.rollout_rules import (
    Halt,
    Next,
    OfferedDevice,
    Share,
    first_of,
    judge,
    standing,
)

WAVES: Final = (1, 10, 50, 100)
SHARES: Final = (0.0, 0.03, 0.10, 0.30)
_LOOK_S: Final = 60
_POLL_S: Final = 900
_SWITCH_S: Final = 180
"""From the poll that finds the release to the report that it runs."""
_MOST_S: Final = 48 * 3600


class ReleaseFault(StrEnum):
    """What a faulty release does on a device."""

    FAILS = "fails"
    """Its self-test or first start fails, and the device says so."""
    DIES = "dies"
    """Nothing more is heard of the device."""
    REJECTS = "rejects"
    """Half of the palms that it would accept are rejected."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """The devices, and what is usual for them."""

    devices: int = 1000
    soak_s: int = 3600
    silence_s: int = 900
    away: float = 0.01
    """Share of devices that are never heard."""
    dies_per_hour: float = 0.0002
    """Chance of a device to fall silent by itself in an hour (about once in seven months)."""
    verdicts_per_hour: float = 60.0
    accept: float = 0.95


@dataclass(frozen=True, slots=True)
class RolledOut:
    """How one rollout ended."""

    halted_in: int | None
    """The wave (from 1) that was open when it halted; None: it did not."""
    done: bool
    hurt: int
    """Devices that had the fault when it ended."""


def roll_out(fleet: Fleet, fault: ReleaseFault, share: float, seed: int) -> RolledOut:
    """One rollout; `share` of the devices have the fault once they run the release."""
    devices = _Devices(fleet, fault, share, seed)
    wave, opened_s = 0, 0
    took = others = Share(0, 0)
    follows: Halt | Next = Next.OPEN
    for now_s in range(0, _MOST_S, _LOOK_S):
        if follows is Next.OPEN:
            if wave == len(WAVES):
                return RolledOut(None, done=True, hurt=devices.hurt(now_s))
            devices.offer(WAVES[wave], now_s)
            wave, opened_s = wave + 1, now_s
        took, others = devices.judged(now_s, took, others)
        follows = judge(
            [standing(device, now_s * 1000, fleet.silence_s * 1000) for device in devices.offered(now_s)],
            soaked=now_s - opened_s >= fleet.soak_s,
            took=took,
            others=others,
        )
        if isinstance(follows, Halt):
            return RolledOut(wave, done=False, hurt=devices.hurt(now_s))
    return RolledOut(None, done=False, hurt=devices.hurt(_MOST_S))


class _Devices:
    """A fleet in which a release spreads; all times are seconds since the rollout began."""

    def __init__(self, fleet: Fleet, fault: ReleaseFault, share: float, seed: int) -> None:
        self._fleet, self._fault = fleet, fault
        self._random = np.random.default_rng(seed)
        ids = [f"palm-{number}" for number in range(fleet.devices)]
        place = {device_id: number for number, device_id in enumerate(ids)}
        self._ranked = [place[device_id] for device_id in first_of(1_790_000_000 + seed, ids, 100)]
        self._members = 0
        self._faulty = self._random.random(fleet.devices) < share
        self._silent_s = self._random.exponential(3600 / fleet.dies_per_hour, fleet.devices)
        self._silent_s[self._random.random(fleet.devices) < fleet.away] = -1e9
        self._takes_s = np.full(fleet.devices, np.inf)

    def offer(self, percent: int, now_s: int) -> None:
        """A wave opens: its new devices find the release at their next poll."""
        was, self._members = self._members, -(-percent * self._fleet.devices // 100)
        new = self._ranked[was : self._members]
        self._takes_s[new] = now_s + self._random.uniform(0, _POLL_S, len(new))
        if self._fault is ReleaseFault.DIES:
            dies_s = np.where(self._faulty, self._takes_s + _SWITCH_S, np.inf)
            self._silent_s = np.minimum(self._silent_s, dies_s)

    def hurt(self, now_s: int) -> int:
        """How many have the fault."""
        return int((self._faulty & (self._takes_s + _SWITCH_S <= now_s)).sum())

    def offered(self, now_s: int) -> Iterator[OfferedDevice]:
        """The devices of the present wave, as the service knows them."""
        for number in self._ranked[: self._members]:
            heard_s = min(now_s, self._silent_s[number])
            state = None
            if self._takes_s[number] + _SWITCH_S <= heard_s:
                fails = self._faulty[number] and self._fault is ReleaseFault.FAILS
                state = "failed" if fails else "running"
            elif self._takes_s[number] <= heard_s:
                state = "receiving"
            yield OfferedDevice(
                wave=1,
                state=state,
                holds=state == "running",
                served_before=True,
                stopped_ms=None,
                heard_ms=int(heard_s * 1000),
            )

    def judged(self, now_s: int, took: Share, others: Share) -> tuple[Share, Share]:
        """The verdicts so far, with those of the last minute."""
        heard = self._silent_s > now_s
        runs = self._takes_s + _SWITCH_S <= now_s
        rejects = runs & self._faulty & (self._fault is ReleaseFault.REJECTS)
        few = self._more(took, int((heard & rejects).sum()), self._fleet.accept / 2)
        return (
            self._more(few, int((heard & runs & ~rejects).sum()), self._fleet.accept),
            self._more(others, int((heard & ~runs).sum()), self._fleet.accept),
        )

    def _more(self, share: Share, devices: int, accept: float) -> Share:
        decided = self._random.poisson(devices * self._fleet.verdicts_per_hour * _LOOK_S / 3600)
        return Share(share.decided + decided, share.accepted + int(self._random.binomial(decided, accept)))


def figures(fleet: Fleet, seeds: int) -> Iterator[dict[str, Any]]:
    """A row for each fault and share of faulty devices: how many of `seeds` rollouts halted in which wave."""
    for fault in ReleaseFault:
        for share in SHARES:
            if share == 0 and fault is not ReleaseFault.FAILS:
                continue  # without a faulty device there is one row
            outcomes = [roll_out(fleet, fault, share, seed) for seed in range(seeds)]
            halted = Counter(outcome.halted_in for outcome in outcomes)
            yield {
                "fault": fault.value if share else "none",
                "share": share,
                "halted": [halted[wave] / seeds for wave in range(1, len(WAVES) + 1)],
                "done": sum(outcome.done for outcome in outcomes) / seeds,
                "hurt": float(np.median([outcome.hurt for outcome in outcomes])),
            }


def main() -> None:
    parser = argparse.ArgumentParser(description="How likely a faulty release is halted, by wave.")
    parser.add_argument("--devices", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--json", action="store_true", help="Print one JSON object.")
    given = parser.parse_args()
    fleet = Fleet(devices=given.devices)
    rows = []
    if not given.json:
        print(f"{fleet.devices} devices, {given.seeds} rollouts each, waves {WAVES}")
        print("fault     share   halted in wave 1      2      3      4   held   done   median devices hurt")
    for row in figures(fleet, given.seeds):
        rows.append(row)
        if not given.json:
            waves = " ".join(f"{chance:6.0%}" for chance in row["halted"])
            held = 1 - sum(row["halted"]) - row["done"]
            print(
                f"{row['fault']:<8} {row['share']:6.0%}          {waves} {held:6.0%} {row['done']:6.0%}"
                f"   {row['hurt']:.0f}",
                flush=True,
            )
    if given.json:
        print(json.dumps({"fleet": asdict(fleet), "seeds": given.seeds, "rows": rows}))


if __name__ == "__main__":
    main()
