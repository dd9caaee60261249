"""docs/howto/OPERATIONS.md and KEYS.md, rehearsed: the marked commands are run unchanged."""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests import REPOSITORY
from tests.cloud_client.server.mail_harness import Mailbox
from tests.cloud_client.server.server_database import Cluster, binaries, cluster, query
from tests.cloud_client.server.server_harness import Cloud, code_of
from tests.cloud_client.server.server_process import Board, enrol, start
from tests.until import until

SOFTHSM = Path("/usr/lib/softhsm/libsofthsm2.so")
_PAGES = [REPOSITORY / "docs" / "howto" / name for name in ("OPERATIONS.md", "KEYS.md")]
_BLOCK = re.compile(r"^( *)<!-- rehearsed: (\S+) -->\n\1```sh\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks() -> dict[str, str]:
    return {
        name: textwrap.dedent(text) for page in _PAGES for _, name, text in _BLOCK.findall(page.read_text())
    }


def rehearse(name: str, **variables: object) -> str:
    """Run a block of the page; what it printed."""
    places = [str(Path(sys.executable).parent), str(binaries() or ""), os.environ["PATH"]]
    environment = {key: str(value) for key, value in variables.items()} | {"PATH": os.pathsep.join(places)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", blocks()[name]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


class Story:
    """A gallery of one person, a backup of it, a second person after the backup."""

    def __init__(self, cloud: Cloud) -> None:
        self.tenant = cloud.new_tenant()
        self.partner, self.device = self.tenant.partner(), self.tenant.device()
        self.kept = self.partner.person("kept")
        self.device.enrol(self.partner, self.kept["subject_id"], 1)
        self.mail = Mailbox(self.tenant.device("by-mail"))
        self.mailed()

    def mailed(self) -> Any:
        """What a device that lives on mail and its service have for each other; the service's answer."""
        verdict = {"signed_verdict": self.mail.device.verdict()}
        batch = self.mail.sealed("svc.verdicts.batch", {"items": [verdict]})
        answer = self.mail.hand_in(self.partner, batch, self.mail.report())
        self.news = [kind for kind, _ in self.mail.fetch(self.partner)]
        return answer

    def move(self, cloud: Cloud) -> None:
        """The same partner and device talk to another server."""
        self.partner.cloud = self.device.cloud = self.mail.device.cloud = cloud

    def go_on(self) -> None:
        lost = self.partner.person("lost")
        self.device.enrol(self.partner, lost["subject_id"], 2)
        self.seen = self._head()
        assert self.mailed()["acked_upto_seq"] == self.mail.out_seq
        self.verdicts = {row["verdict_seq"] for row in self._verdicts()}

    def _verdicts(self) -> list[dict[str, Any]]:
        return list(self.partner.get("/v1/verdicts", device_id="by-mail")["data"])

    def _head(self) -> dict[str, Any]:
        head: dict[str, Any] = self.device.get("/v1/gallery/deltas?epoch=1&after_seq=2")["head"]["head_obj"]
        return head

    def check_restored(self, cloud: Cloud, **where: object) -> None:
        """The store is as it was at the backup, and devices follow once there is a new epoch."""
        self.move(cloud)
        partner, device = self.partner, self.device
        assert [person["external_ref"] for person in partner.get("/v1/subjects")["data"]] == ["kept"]
        ahead = device.send("GET", "/v1/gallery/deltas?epoch=1&after_seq=4")
        assert code_of(ahead) == "history_expired"
        # Without a new epoch the gallery grows past what the device has seen, with other contents: a device
        # refuses that (bad_chain), and takes the new epoch.
        device.enrol(partner, partner.person("another")["subject_id"], 3)
        forked = self._head()
        assert forked["seq"] == self.seen["seq"]
        assert forked["head"] != self.seen["head"]
        rehearse("epoch", TENANT=self.tenant.tenant_id, MODE="test", DATA=cloud.data.path, **where)
        head = device.get("/v1/gallery/snapshot")["head"]["head_obj"]
        assert (head["epoch"], head["count"]) == (2, 4)
        self._check_mail_goes_on(cloud, **where)

    def _check_mail_goes_on(self, cloud: Cloud, **where: object) -> None:
        """The service has lost records that the device has deleted; they come no more."""
        behind = self.mailed()
        assert behind["rejected"] == self.news == []
        assert behind["acked_upto_seq"] < behind["accepted"][0] - 1
        printed = rehearse(
            "mail",
            TENANT=self.tenant.tenant_id,
            MODE="test",
            DEVICE="by-mail",
            DATA=cloud.data.path,
            **where,
        )
        assert f"acked_upto_seq: {self.mail.out_seq}" in printed.splitlines()
        assert self.mailed()["acked_upto_seq"] == self.mail.out_seq
        assert {"svc.post.receipt", "svc.gallery.snapshot.page"} <= set(self.news)
        new = {row["verdict_seq"] for row in self._verdicts()} - self.verdicts
        assert new == {self.mail.device.seq - 1, self.mail.device.seq}


@pytest.fixture
def postgresql() -> Cluster:
    return cluster()


def test_every_block_is_rehearsed() -> None:
    tested = set(re.findall(r'rehearse\(\s*"(\S+?)"', Path(__file__).read_text()))
    assert tested == set(blocks())


def test_backup_and_restore_of_sqlite(tmp_path: Path) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    cloud = Cloud(data, database=f"sqlite:///{data / 'cloud.db'}")
    story = Story(cloud)
    rehearse("backup-sqlite", DATA=data, BACKUP=backup)
    story.go_on()
    cloud.close()
    again = tmp_path / "again"
    rehearse("restore-sqlite", DATA=again, BACKUP=backup)
    restored = Cloud(again, database=f"sqlite:///{again / 'cloud.db'}")
    restored.clock.ms = cloud.clock.ms
    story.check_restored(restored, WHERE="")
    restored.close()


def test_moving_backup_and_restore_of_postgresql(postgresql: Cluster, tmp_path: Path) -> None:
    data, backup, again = tmp_path / "data", tmp_path / "backup", tmp_path / "again"
    old = Cloud(data, database=f"sqlite:///{data / 'cloud.db'}")
    story = Story(old)
    old.close()
    rehearse("create", ADMIN=postgresql.url("postgres"), NAME="moved")
    url = postgresql.url("moved")
    assert "subjects: 1 rows" in rehearse("move", DATA=data, DATABASE=url)
    assert not (data / "cloud.db").exists()
    cloud = Cloud(data, database=url)
    cloud.clock.ms = old.clock.ms
    story.move(cloud)
    rehearse("backup-postgresql", DATA=data, DATABASE=url, BACKUP=backup)
    story.go_on()
    cloud.close()
    rehearse("create", ADMIN=postgresql.url("postgres"), NAME="restored")
    url = postgresql.url("restored")
    rehearse("restore-postgresql", DATA=again, DATABASE=url, BACKUP=backup)
    restored = Cloud(again, database=url)
    restored.clock.ms = cloud.clock.ms
    story.check_restored(restored, WHERE=f"--database {url}")
    restored.close()


@pytest.mark.long
def test_postgresql_is_restored_to_a_moment(tmp_path: Path) -> None:
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with ended(Cluster(programs)) as machine:
        archive = machine.directory / "archive"
        archive.mkdir()
        shutil.chown(archive, *machine.owner)
        rehearse("archive", ADMIN=machine.url("postgres"), ARCHIVE=archive)
        machine.stop()
        machine.start()
        url = machine.new_database()
        cloud = Cloud(tmp_path, database=url)
        backup = tmp_path / "backup"
        rehearse("base-backup", ADMIN=machine.url("postgres"), BACKUP=backup)
        story = Story(cloud)  # after the base backup: it comes out of the log
        ((moment,),) = query(url, "SELECT clock_timestamp()::text")
        story.go_on()
        cloud.close()
        ((last,),) = query(url, "SELECT pg_walfile_name(pg_switch_wal())")
        until((archive / last).exists)
        machine.kill()

        def restore(data: Path) -> None:
            rehearse("to-a-moment", PGDATA=data, BACKUP=backup, ARCHIVE=archive, MOMENT=moment)

        with ended(Cluster(programs, restore)) as again:
            name = url.partition("?")[0].rpartition("/")[2]
            restored_url = again.url(name)
            until(lambda: query(restored_url, "SELECT pg_is_in_recovery()") == [(False,)])
            restored = Cloud(tmp_path, database=restored_url)
            restored.clock.ms = cloud.clock.ms
            story.check_restored(restored, WHERE=f"--database {restored_url}")
            restored.close()


@pytest.mark.long
def test_a_standby_takes_over(tmp_path: Path) -> None:
    """The primary is killed while a device waits: what was answered is kept, no server is restarted."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with ended(Cluster(programs)) as primary:
        url = primary.new_database()
        name = url.partition("?")[0].rpartition("/")[2]

        def copy(data: Path) -> None:
            rehearse("standby", PRIMARY=primary.url("postgres"), PGDATA=data)

        with ended(Cluster(programs, copy)) as standby:
            rehearse("synchronous", PRIMARY=primary.url("postgres"))
            until(lambda: query(primary.url("postgres"), _SYNCHRONOUS) == [("sync",)])
            hosts = f"{primary.directory},{standby.directory}"
            both = f"postgresql://palm@/{name}?host={hosts}&target_session_attrs=read-write"
            running = start(tmp_path / "data", tmp_path / "server.log", both)
            with running.process, ThreadPoolExecutor(1) as threads, ExitStack() as stack:
                stack.callback(running.process.terminate)
                tenant_id = running.palmctl("tenant", "create", "acme")["tenant_id"]
                partner, board = running.partner(tenant_id), Board(running, tenant_id)
                person = enrol(partner, board)
                waiting = "/v1/gallery/deltas?epoch=1&after_seq=1&wait_s=25"
                pending = threads.submit(board.send, "GET", waiting)
                synced = "SELECT 1 FROM devices WHERE acked_seq = 1"
                until(lambda: query(primary.url(name), synced))
                # A device that waits holds no connection: its request has read what it needed.
                until(lambda: query(primary.url(name), _AT_REST) == [(True,)])
                primary.kill()
                away = partner.get("/v1/subjects")
                assert (away.status_code, away.headers["retry-after"]) == (503, "1")
                assert board.send("GET", "/v1/devices/self/status").status_code == 503
                assert not pending.done()
                rehearse("promote", STANDBY=standby.url("postgres"))
                began_s = time.monotonic()
                until(lambda: partner.get("/v1/subjects").status_code == 200, every_s=0.05)
                assert time.monotonic() - began_s < 5
                # Everything that was answered is there, and the gallery goes on from where it was.
                assert partner.delete(f"/v1/subjects/{person}").status_code == 200
                assert [delta["op"] for delta in pending.result(25).json()["data"]] == ["tombstone"]


_SYNCHRONOUS = "SELECT sync_state FROM pg_stat_replication"
_AT_REST = """SELECT bool_and(state = 'idle' AND clock_timestamp() - state_change > interval '0.5 s')
              FROM pg_stat_activity WHERE application_name = 'palm-cloud'"""


@contextmanager
def ended(machine: Cluster) -> Iterator[Cluster]:
    try:
        yield machine
    finally:
        machine.end()


def test_rewriting_leaves_no_key_in_the_tables_files(postgresql: Cluster, tmp_path: Path) -> None:
    url = postgresql.new_database()
    cloud = Cloud(tmp_path, database=url)
    partner = cloud.new_tenant().partner()
    person = partner.person("p")
    ((wrapped_key,),) = query(url, "SELECT person_key_ct FROM subjects")
    partner.delete(f"/v1/subjects/{person['subject_id']}")
    cloud.close()
    rehearse("rewrite", DATABASE=url)
    postgresql.execute("CHECKPOINT")
    for path in (postgresql.directory / "data" / "base").rglob("*"):
        assert not path.is_file() or wrapped_key not in path.read_bytes()


def test_the_key_management_key_moves_into_a_token_and_the_signers_are_drilled(tmp_path: Path) -> None:
    if not SOFTHSM.exists():
        pytest.skip(f"{SOFTHSM} is not installed (package softhsm2)")
    data, tokens, pin = tmp_path / "data", tmp_path / "tokens", tmp_path / "pin"
    cloud = Cloud(data, database=f"sqlite:///{data / 'cloud.db'}")
    cloud.new_tenant().partner().person("kept")
    cloud.close()
    counts = {"signers": 7, "tenants": 1, "people": 1}
    printed = json.loads(rehearse("rotate-secret", DATA=data, WHERE=""))
    assert (printed["rewrapped"], printed["destroyed"]) == (counts, ["kms.key"])
    tokens.mkdir()
    configuration = tmp_path / "softhsm2.conf"
    configuration.write_text(f"directories.tokendir = {tokens}\nobjectstore.backend = file\n")
    pin.write_text("1234\n")
    words = "softhsm2-util --init-token --free --label service --so-pin 5678 --pin 1234"
    where = {"SOFTHSM2_CONF": str(configuration)}
    subprocess.run(words.split(), env=os.environ | where, check=True, capture_output=True)
    key = f"pkcs11:token=service;object=palm-kms-1?module-path={SOFTHSM}&pin-source=file:{pin}"
    moved = json.loads(rehearse("secret-to-token", DATA=data, WHERE="", KEY=key, **where))
    assert (moved["rewrapped"], moved["in_token"]) == (counts, True)
    drilled, status = rehearse("drill", DATA=data, WHERE="", **where).splitlines()
    assert drilled == status
    assert all(key["kid_before"] != key["kid"] for key in json.loads(drilled)["keys"])
