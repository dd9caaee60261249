"""Builds the validator in C and drives it: letters in, lines of JSON out.

python -m tools.kit.c_validator.driver build/validator
"""

import asyncio
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from link1.canonical import JsonObject

SOURCE = Path(__file__).with_name("validator.c")
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic")
SANITIZERS = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
_PROBE = "#include <sodium.h>\nint main(void) { return sodium_init() < 0; }\n"


class NoCompilerError(Exception):
    """There is no C compiler with libsodium here; the message says what to install."""


def build(program: Path, *options: str) -> None:
    """Compile the validator; raises NoCompilerError, or CalledProcessError with what the compiler said."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise NoCompilerError("no C compiler; install gcc and libsodium-dev")
    with tempfile.TemporaryDirectory() as folder:
        probe = Path(folder) / "probe.c"
        probe.write_text(_PROBE)
        command = [compiler, str(probe), "-lsodium", "-o", str(probe.with_suffix(""))]
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            raise NoCompilerError("no libsodium for C; install libsodium-dev")
    subprocess.run(
        [compiler, *WARNINGS, *options, str(SOURCE), "-lsodium", "-o", str(program)],
        check=True,
        capture_output=True,
        text=True,
    )


@dataclass
class CValidator:
    """The running program, and all lines that it has printed."""

    process: asyncio.subprocess.Process
    lines: list[JsonObject] = field(default_factory=list)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def command(self, letter: str) -> None:
        """a: ask for a hand; c: cancel; r: reset the link; q: end."""
        if self.process.stdin is not None:
            self.process.stdin.write(letter.encode())

    async def read(self) -> None:
        """Take in what it prints until it ends."""
        while self.process.stdout is not None and (line := await self.process.stdout.readline()):
            self.lines.append(json.loads(line))
            self._news.set()

    async def told(
        self, event: str, wanted: Callable[[JsonObject], bool] = lambda _line: True, *, within_s: float
    ) -> JsonObject:
        """The first line of `event` that `wanted` accepts; it and all earlier lines are dropped."""
        seen = 0
        async with asyncio.timeout(within_s):
            while True:
                for line in self.lines[seen:]:
                    seen += 1
                    if line["event"] == event and wanted(line):
                        del self.lines[:seen]
                        return line
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def running(program: Path, *options: str) -> AsyncIterator[CValidator]:
    """The program on a port; on leaving it is ended, and a sanitizer's finding is raised."""
    process = await asyncio.create_subprocess_exec(
        str(program),
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    validator = CValidator(process)
    reader = asyncio.create_task(validator.read())
    try:
        yield validator
    finally:
        if process.returncode is None:
            validator.command("q")
        said = await process.stderr.read() if process.stderr is not None else b""
        await asyncio.gather(reader, process.wait())
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode or 1, str(program), stderr=said.decode())


def main() -> None:
    """Build to the path given."""
    try:
        build(Path(sys.argv[1]), "-O2")
    except NoCompilerError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(error.stderr)


if __name__ == "__main__":
    main()
