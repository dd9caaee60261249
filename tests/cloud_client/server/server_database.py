"""The databases of test servers: SQLite files, or a PostgreSQL cluster of this test run.

PALM_TEST_ENGINE says which engine the whole suite runs on (sqlite, the default, or postgresql). The cluster
is real: it listens on a socket in a temporary directory, without fsync, and ends with the process.
"""

import atexit
import itertools
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.until import until

ENGINE = os.environ.get("PALM_TEST_ENGINE", "sqlite")
assert ENGINE in {"sqlite", "postgresql"}, "PALM_TEST_ENGINE is sqlite or postgresql"
on_sqlite = pytest.mark.skipif(ENGINE != "sqlite", reason="looks into the files of SQLite")

_USER = "palm"
_SYSTEM_USER = "postgres"  # PostgreSQL refuses to run as root
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_connections": "200",
    "shared_buffers": "32MB",
    "autovacuum": "off",
}


def binaries() -> Path | None:
    """The directory of PostgreSQL's programs; None when it is not installed."""
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((place for place in places if (place / "postgres").exists()), None)


class Cluster:
    """A running PostgreSQL; ``fill`` makes its files in a directory that is not there yet."""

    def __init__(self, programs: Path, fill: Callable[[Path], None] | None = None) -> None:
        self.programs = programs
        self.directory = Path(tempfile.mkdtemp(prefix="palm-pg-"))
        self._numbers = itertools.count(1)
        (fill or self._initialise)(self.directory / "data")
        if os.geteuid() == 0:
            subprocess.run(["chown", "-R", f"{_SYSTEM_USER}:{_SYSTEM_USER}", self.directory], check=True)
        self.start()

    def _initialise(self, data: Path) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.directory, _SYSTEM_USER, _SYSTEM_USER)
        words = ["-D", str(data), "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run(
            [*self._as_user(), str(self.programs / "initdb"), *words, "--locale=C.UTF-8"],
            check=True,
            stdout=subprocess.DEVNULL,
            cwd=self.directory,
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        words = [word for name, value in _SETTINGS.items() for word in ("-c", f"{name}={value}")]
        command = [*self._as_user(), str(self.programs / "postgres"), "-D", str(self.directory / "data")]
        with (self.directory / "log").open("a") as log:
            self._process = subprocess.Popen(
                [*command, "-k", str(self.directory), *words], stdout=log, stderr=log, cwd=self.directory
            )

        def answers() -> bool:
            assert self._process.poll() is None, (self.directory / "log").read_text()
            try:
                psycopg.connect(self.url("postgres")).close()
            except psycopg.OperationalError:
                return False
            return True

        until(answers, 60.0, every_s=0.02)

    def stop(self) -> None:
        """A fast shutdown: every session is ended."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def kill(self) -> None:
        """As if its machine had gone: no session is told."""
        self._process.send_signal(signal.SIGQUIT)
        self._process.wait()

    def end(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
        self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def url(self, database: str) -> str:
        return f"postgresql://{_USER}@/{database}?host={self.directory}"

    @property
    def owner(self) -> tuple[str, str] | tuple[int, int]:
        """(user, group) of its files."""
        return (_SYSTEM_USER, _SYSTEM_USER) if os.geteuid() == 0 else (os.getuid(), os.getgid())

    def new_database(self) -> str:
        """The URL of an empty database."""
        name = f"palm_{next(self._numbers)}"
        self.execute(f'CREATE DATABASE "{name}"')
        return self.url(name)

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(statement)

    @staticmethod
    def _as_user() -> list[str]:
        if os.geteuid() != 0:
            return []
        words = ["--reuid", _SYSTEM_USER, "--regid", _SYSTEM_USER, "--clear-groups", "--pdeathsig", "KILL"]
        return ["setpriv", *words]


@cache
def cluster() -> Cluster:
    """The cluster of this process, started when it is first needed; skips the test without PostgreSQL."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    made = Cluster(programs)
    atexit.register(made.end)
    return made


def database_words(url: str | None) -> list[str]:
    """The ``--database`` of a command."""
    return [] if url is None else ["--database", url]


def new_database() -> str | None:
    """What to give as ``--database`` for a new server on the engine of this run."""
    return None if ENGINE == "sqlite" else cluster().new_database()


def everything_in(database: Path | str) -> bytes:
    """All that a database holds, for tests that look for what must not be in it."""
    if isinstance(database, Path):
        return b"".join(path.read_bytes() for path in database.parent.glob(f"{database.name}*"))
    names = query(database, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    with psycopg.connect(database) as connection:
        found = bytearray()
        for (table,) in names:
            with connection.cursor().copy(f"COPY {table} TO STDOUT (FORMAT binary)") as copy:
                found += b"".join(bytes(part) for part in copy)
    return bytes(found)


def query(url: str, statement: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()
