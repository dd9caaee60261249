"""`make fuzz`: libFuzzer through atheris, which keeps each input that reaches code that none before it did.

    python -m tests.fuzz.learn --minutes 10 [--keep] [TARGET …]

What it has learned is in build/fuzz/TARGET, from where the next run goes on. `--keep` writes the smallest
inputs that reach all that is reached to `corpus/`, which every test run goes through. An input at which a
target fails, hangs, or takes longer than its size explains is left in build/fuzz with the name `TARGET-…`.
"""

import base64
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click

ROOT: Final = Path(__file__).parents[2]
LEARNED: Final = ROOT / "build" / "fuzz"
KEPT_BYTES: Final = 4_096
"""Of the corpus of one target in the repository; its honest inputs come from `honest.py`."""
SLOWER: Final = 5
"""So many times as slow is code that counts its branches, at most."""
LONGEST_S_A_BYTE: Final = 1e-5
LONGEST_PROCESS_S: Final = 60
"""Instrumented code never gives back the arrays that it compares: 1 GB a minute where pictures are read."""
_PACKAGES: Final = ("cloud_client", "device", "gallery", "link1", "models", "tools")


def learn(name: str, *options: str) -> None:
    """Run one target in this process, which ends with it. The options are libFuzzer's."""
    import atheris

    with atheris.instrument_imports(include=list(_PACKAGES)):
        from tests.fuzz.targets import TARGETS

    target = TARGETS[name]

    def run(data: bytes) -> None:
        begun = time.thread_time()
        with contextlib.suppress(*target.refusals):
            target.read(data)
        spent_s = time.thread_time() - begun
        most_s = SLOWER * (target.longest_s + LONGEST_S_A_BYTE * len(data))
        assert spent_s < most_s, f"{len(data)} bytes took {spent_s:.2f} s"

    limits = [f"-max_len={target.most_bytes}", "-timeout=20", "-rss_limit_mb=1536"]
    atheris.Setup([str(_program(name)), f"-artifact_prefix={LEARNED}/{name}-", *limits, *options], run)
    atheris.Fuzz()


def _child(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run libFuzzer with a target. Merging, it starts the same program again, which so has to be a file."""
    program = _program(name)
    start = f"exec {sys.executable} -c 'import sys; from tests.fuzz.learn import learn; learn(*sys.argv[1:])'"
    program.write_text(f'#!/bin/sh\n{start} {name} "$@"\n', "utf-8")
    program.chmod(0o755)
    return subprocess.run(
        [program, *options],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )


def _program(name: str) -> Path:
    return LEARNED / f"{name}.sh"


def _runs(name: str, minutes: float) -> str:
    """Fuzz a target; the last line of its report. Raises ClickException with the report when it fails."""
    from tests.fuzz.targets import every_input

    folder = LEARNED / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(every_input(name)):
        (folder / f"given-{number}").write_bytes(data)
    tries, left_s = 0, max(1, round(60 * minutes))
    while left_s > 0:
        spent_s = min(left_s, LONGEST_PROCESS_S)
        done = _child(name, f"-max_total_time={spent_s}", "-print_final_stats=1", str(folder))
        if done.returncode != 0:
            report = done.stdout[max(done.stdout.find(" === "), 0) :]
            raise click.ClickException(f"{name}:\n{report}")
        lines = done.stdout.splitlines()
        covered = [line for line in lines if "cov:" in line][-1].split()
        tries += int([line for line in lines if "number_of_executed_units" in line][-1].split()[-1])
        left_s -= spent_s
    return f"{tries} inputs, {covered[covered.index('cov:') + 1]} branches"


def _keep(name: str) -> None:
    """Write the smallest inputs that reach all that is reached to the corpus, as far as they fit."""
    with tempfile.TemporaryDirectory() as merged:
        _child(name, "-merge=1", merged, str(LEARNED / name))
        inputs = sorted(
            (path.read_bytes() for path in Path(merged).iterdir()), key=lambda one: (len(one), one)
        )
    kept, size = [], 0
    for data in inputs:
        size += len(data)
        if data and size <= KEPT_BYTES:
            kept.append(base64.b64encode(data).decode())
    corpus = Path(__file__).parent / "corpus" / f"{name}.b64"
    corpus.write_text("\n".join(kept) + "\n", "ascii")


@click.command()
@click.argument("names", nargs=-1)
@click.option("--minutes", default=10.0, show_default=True, help="For each target.")
@click.option("--keep", is_flag=True, help="Renew the corpus in the repository.")
def main(*, names: tuple[str, ...], minutes: float, keep: bool) -> None:
    """Fuzz some targets, or all. Exit code 1: one has failed."""
    from tests.fuzz.targets import TARGETS

    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    failed = False
    for name in names or TARGETS:
        try:
            click.echo(f"{name}: {_runs(name, minutes)}")
        except click.ClickException as error:
            click.echo(error.message, err=True)
            failed = True
        if keep:
            _keep(name)
    sys.exit(failed)


if __name__ == "__main__":
    main()
