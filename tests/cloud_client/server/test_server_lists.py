"""What a list costs: every filter has an index, every combination a bound, on both engines.

The statements are those that the handlers make for real requests, one for every combination of filters; each
is then explained by the engine itself.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest

from cloud_client.reference_server.contract.times import rfc3339
from cloud_client.reference_server.domain.call import Call
from cloud_client.reference_server.domain.pages import SCAN_ROWS
from cloud_client.reference_server.domain.people import erasure
from cloud_client.reference_server.domain.tenancy.callers import PartnerCaller
from cloud_client.reference_server.store.base import Tx
from tests.cloud_client.server.server_database import cluster
from tests.cloud_client.server.server_harness import Cloud, Partner
from tools.rig.bench.many_verdicts import DEVICE, FIRST_MS, GATE, fill, verdict_id

T = TypeVar("T")
COUNT = 12_000
Asked = tuple[str, dict[str, Any]]


class Noted(Tx):
    """A transaction that notes what is asked in it."""

    def __init__(self, tx: Tx) -> None:
        self.tx, self.asked = tx, list[Asked]()

        def execute(sql: str, params: Mapping[str, Any]) -> Any:
            self.asked.append((sql, dict(params)))
            return tx.execute(sql, params)

        super().__init__(execute)

    def scalar(self, sql: str, **params: Any) -> Any:
        self.asked.append((sql, params))
        return self.tx.scalar(sql, **params)


class Filled:
    """A cloud with many verdicts, persons and devices, and the statements of its last list."""

    def __init__(self, path: Path, engine: str) -> None:
        self.engine = engine
        database = f"sqlite:///{path / 'cloud.db'}" if engine == "sqlite" else cluster().new_database()
        self.cloud = Cloud(path, database=database)
        tenant = self.cloud.new_tenant()
        self.partner = tenant.partner()
        self.person = self.partner.person()
        self.tenant_id = tenant.tenant_id
        self.environment = tenant.environment("test")
        self.cloud.operate(lambda tx, *_: fill(tx, self.environment, self.person["subject_id"], COUNT))
        self.cloud.operate(self._people_and_devices)
        self.plans: list[tuple[str, list[Any]]] = []
        self.cloud.api.store.read_aside = self._read_aside  # type: ignore[method-assign]

    def _people_and_devices(self, tx: Tx, *_: object) -> None:
        numbers = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 6000)"
        key = f"CAST(CAST(i AS TEXT) AS {'BLOB' if self.engine == 'sqlite' else 'BYTEA'})"
        tx.run(
            f"""{numbers} INSERT INTO subjects (subject_id, tenant_id, livemode, subject_ref, status,
                    external_ref_mac, person_key_ct, refs_ct, has_onboard_ref, created_ms, updated_ms)
                SELECT 'p-' || CAST(i AS TEXT), tenant_id, livemode, 'p-' || CAST(i AS TEXT), 'blocked',
                       {key}, person_key_ct, refs_ct, 0, i, i
                FROM n, (SELECT * FROM subjects LIMIT 1) AS one""",
        )
        tx.run(
            f"""{numbers} INSERT INTO devices (tenant_id, device_id, livemode, kind, status, gate_id, dbd_id,
                    passage_sensor, app_pkg, app_version, model_id, seal_pub, health,
                    last_seen_ms, registered_ms, registration_no)
                SELECT :tenant_id, 'dev-' || CAST(i AS TEXT), 0, 'access',
                       CASE WHEN i % 2 = 0 THEN 'active' ELSE 'revoked' END,
                       CASE WHEN i % 2 = 0 THEN 'even' ELSE 'odd' END, 'd1', 0, 'p', '1', 'm',
                       person_key_ct, '[]', i, i, 1
                FROM n, (SELECT * FROM subjects LIMIT 1) AS one""",
            tenant_id=self.tenant_id,
        )
        if self.engine == "postgresql":
            tx.run("ANALYZE")

    async def _read_aside(self, work: Callable[[Tx], T]) -> T:
        store, _ = self.cloud.data.open(self.cloud.clock.ms)
        with closing(store), store.reading() as tx:
            noted = Noted(tx)
            result = work(noted)
            self.plans = [(sql, self.explained(tx, sql, params)) for sql, params in noted.asked]
            return result

    def explained(self, tx: Tx, sql: str, params: dict[str, Any]) -> list[Any]:
        if self.engine == "sqlite":
            return [row["detail"] for row in tx.all(f"EXPLAIN QUERY PLAN {sql}", **params)]
        plan = tx.scalar(f"EXPLAIN (ANALYZE, TIMING off, FORMAT JSON) {sql}", **params)
        return list(_nodes((json.loads(plan) if isinstance(plan, str) else plan)[0]["Plan"]))

    def check(self, path: str, table: str, several: bool) -> None:
        """The plans of the last list are good ones."""
        plans = [plan for sql, plan in self.plans if f"FROM {table} " in sql]
        assert plans, path
        for plan in plans:
            if self.engine == "sqlite":
                self._check_sqlite(plan, table, several)
            else:
                for node in plan:
                    looked_at = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
                    assert looked_at * node["Actual Loops"] <= SCAN_ROWS + 1, (path, node)

    @staticmethod
    def _check_sqlite(plan: list[str], table: str, several: bool) -> None:
        sorted_at = [number for number, line in enumerate(plan) if "TEMP B-TREE" in line]
        made = {"SCAN walked", "SCAN few", "SCAN found"}  # of some rows, by the statement itself
        assert not [line for line in plan if line.startswith("SCAN") and line not in made], plan
        # Every row of a tenant is as good as every row.
        assert not [line for line in plan if line.endswith("(tenant_id=?)")], plan
        assert any(line.startswith(f"SEARCH {table} USING") for line in plan), plan
        if several and table == "verdicts":
            assert any("USING COVERING INDEX verdicts_by_" in line for line in plan), plan
        # What is sorted is at most what one page looks at, and only where there are several filters.
        assert not sorted_at or several, plan


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    filled = Filled(tmp_path_factory.mktemp("filled"), request.param)
    yield filled
    filled.cloud.close()


def combinations(filters: dict[str, list[str]]) -> Iterator[dict[str, str]]:
    """Every set of filters with every value of each."""
    for size in range(len(filters) + 1):
        for names in itertools.combinations(filters, size):
            for values in itertools.product(*(filters[name] for name in names)):
                yield dict(zip(names, values, strict=True))


def test_verdicts(filled: Filled) -> None:
    middle = {"from": rfc3339(FIRST_MS + COUNT * 250), "to": rfc3339(FIRST_MS + COUNT * 750)}
    filters = {
        "device_id": [DEVICE],
        "gate_id": [GATE],
        "subject_id": [filled.person["subject_id"]],
        "decision": ["reject"],
        "reconciliation": ["conflict"],
    }
    for chosen in combinations(filters):
        for window, order in itertools.product(({}, middle), ("asc", "desc")):
            params = {**chosen, **window, "order": order, "limit": "20"}
            for _ in range(2):
                page = filled.partner.get("/v1/verdicts", **params)
                filled.check(str(params), "verdicts", len(chosen) > 1)
                if page["next_cursor"] is None:
                    break
                params["cursor"] = page["next_cursor"]


def test_changes_of_verdicts(filled: Filled) -> None:
    page = filled.partner.get("/v1/verdict-changes", limit=20)
    filled.check("first", "verdicts", several=False)
    filled.partner.get("/v1/verdict-changes", cursor=page["next_cursor"])
    filled.check("second", "verdicts", several=False)


@pytest.mark.parametrize(
    ("path", "table", "filters"),
    [
        (
            "/v1/subjects",
            "subjects",
            {"external_ref": ["nobody"], "status": ["active", "pending_enrollment"]},
        ),
        (
            "/v1/devices",
            "devices",
            {"status": ["wiped", "active"], "gate_id": ["even"], "kind": ["totem", "access"]},
        ),
    ],
)
def test_persons_and_devices(filled: Filled, path: str, table: str, filters: dict[str, list[str]]) -> None:
    for chosen in combinations(filters):
        filled.partner.get(path, **chosen, limit="1")
        filled.check(str(chosen), table, len(chosen) > 1)


def walk(partner: Partner, **params: Any) -> tuple[list[str], int]:
    """Every verdict of a list, and the number of its pages."""
    found: list[str] = []
    for pages in itertools.count(1):
        page = partner.get("/v1/verdicts", **params)
        found += [item["verdict_id"] for item in page["data"]]
        assert page["has_more"] is (page["next_cursor"] is not None)
        if not page["has_more"]:
            return found, pages
        params["cursor"] = page["next_cursor"]
    raise AssertionError


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_several_filters_find_everything(filled: Filled, order: str) -> None:
    def expected(keep: Callable[[int], bool]) -> list[str]:
        numbers = range(1, COUNT + 1) if order == "asc" else range(COUNT, 0, -1)
        return [verdict_id(number) for number in numbers if keep(number)]

    # Each leaves much, the two together little: pages are short, and the list goes on.
    found, pages = walk(filled.partner, device_id=DEVICE, decision="reject", order=order, limit=200)
    assert found == expected(lambda number: number % 60 == 7)
    assert 2 <= pages <= COUNT // SCAN_ROWS
    found, _ = walk(filled.partner, gate_id=GATE, decision="abstain", order=order, limit=200)
    assert found == []
    # The filter that leaves the fewest leads, so this is one page.
    conflicts = {"reconciliation": "conflict", "decision": "reject"}
    found, pages = walk(filled.partner, **conflicts, order=order, limit=200)
    assert (found, pages) == (expected(lambda number: number % 500 == 0), 1)
    everything = {"gate_id": "g-8", "device_id": "gate-8", "decision": "reject", "reconciliation": "complete"}
    found, _ = walk(filled.partner, **everything, order=order, limit=3)
    keep = lambda n: n % 4 == 0 and n % 97 == 8 and n % 500 != 0  # noqa: E731
    assert found == expected(keep)


def test_an_erasure_reads_neither_all_verdicts_nor_all_mail(filled: Filled) -> None:
    """It holds up all writes of its tenant, and most of what a tenant has are verdicts."""
    path = {"subject_id": filled.partner.person()["subject_id"]}
    caller = PartnerCaller("key", filled.environment, frozenset())

    def plans(tx: Tx, _vault: object, now_ms: int) -> list[list[Any]]:
        noted = Noted(tx)
        erasure.erase_subject(Call(filled.cloud.api.service, caller, path, {}, None, now_ms), noted)
        read = "SELECT" if filled.engine == "postgresql" else "SELECT|DELETE"  # there it would be done again
        asked = [
            one for one in noted.asked if re.match(rf"({read}) .*\b(verdicts|inbox)\b", one[0], re.DOTALL)
        ]
        return [filled.explained(tx, sql, params) for sql, params in asked]

    found = filled.cloud.operate(plans)
    assert len(found) == (4 if filled.engine == "sqlite" else 3)
    for line in itertools.chain(*found):
        if filled.engine == "postgresql":
            assert line["Actual Rows"] * line["Actual Loops"] <= SCAN_ROWS
        elif re.match("SCAN|SEARCH", line):
            few = "verdict_evidence|SCAN e$|devices|inbox_palms|verdict_id=|subject_id="
            assert re.search(few, line), line
