"""After the soak: is everything that the validator saw in the journal and in the cloud, exactly once?"""

import sqlite3
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.rig.demo.back_office import BackOffice

PAGE = "200"


@dataclass
class Seen:
    """What the validator reported, line by line."""

    verdicts: Counter[str] = field(default_factory=Counter)
    """verdict_ref → how many decisions the gate got for it."""
    decisions: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    unverified: int = 0
    links: int = 0

    def take(self, line: dict[str, Any]) -> None:
        """One line of `palmctl dbd simulate --json`."""
        if line.get("event") == "link_up":
            self.links += 1
        ref = line.get("verdict_ref")
        if ref is None or line.get("event") == "fault":
            return
        self.verdicts[ref] += line.get("event") != "verdict_not_acted_on"
        self.decisions[line["decision"]] += 1
        self.outcomes[line["outcome"]] += 1
        self.unverified += line["verified"] is not True


def in_cloud(office: BackOffice, device_id: str) -> list[dict[str, Any]]:
    """Every verdict record of the device."""
    records: list[dict[str, Any]] = []
    more: dict[str, str] = {}
    while True:
        page = office.get("/v1/verdicts", device_id=device_id, limit=PAGE, **more)
        records += page["data"]
        if not page["has_more"]:
            return records
        more = {"cursor": page["next_cursor"]}


def in_journal(path: Path) -> list[tuple[int, str]]:
    """verdict_seq and verdict_ref of every verdict in a journal whose daemon has ended."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        return [(int(seq), str(ref)) for seq, ref in db.execute("SELECT seq, ref FROM verdicts ORDER BY seq")]


def findings(seen: Seen, journal: list[tuple[int, str]], cloud: Iterable[dict[str, Any]]) -> list[str]:
    """What is not as it must be; empty when all is well."""
    problems: list[str] = []
    records = list(cloud)
    in_cloud_refs = Counter(record["verdict_id"] for record in records)
    refs = [ref for _, ref in journal]
    if [seq for seq, _ in journal] != list(range(1, len(journal) + 1)):
        problems.append("verdict_seq in the journal has gaps or repeats")
    doubled = [ref for ref, times in seen.verdicts.items() if times > 1]
    if doubled:
        problems.append(f"{len(doubled)} verdicts moved the gate more than once")
    if seen.unverified:
        problems.append(f"{seen.unverified} verdicts did not verify at the validator")
    lost = set(seen.verdicts) - set(refs)
    if lost:
        problems.append(f"{len(lost)} verdicts that the validator saw are not in the journal")
    missing = set(refs) - set(in_cloud_refs)
    if missing:
        problems.append(f"{len(missing)} verdicts of the journal are not in the cloud")
    strange = set(in_cloud_refs) - set(refs)
    if strange:
        problems.append(f"{len(strange)} verdicts in the cloud are not in the journal")
    if any(times > 1 for times in in_cloud_refs.values()):
        problems.append("the cloud lists a verdict twice")
    conflicts = sum(record["reconciliation"] == "conflict" for record in records)
    if conflicts:
        problems.append(f"the cloud found {conflicts} verdicts in conflict")
    return problems
