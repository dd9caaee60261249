"""`make model`: LINK/1 in Spin, the model whole and every mutant of it, as a table."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from time import process_time

import click

from tools.rig.model.attacker import LARGE, LARGEST, Flaw, Power, search
from tools.rig.model.spin import MUTANTS, QUICK, WHOLE, Searched, SpinFailed, SpinMissing, searched, table_of


def attacked() -> Iterator[tuple[str, bool]]:
    """A line for the sound ends and one for each flaw, and whether it is as expected."""
    begun = process_time()
    found = search(LARGEST)
    sound = found.powers == frozenset(Power) and not found.breaches
    breaches = ", ".join(found.breaches) or "no breach"
    powers = f"{len(found.powers)} of the {len(Power)} powers that LINK/1 admits"
    yield f"attacker: {found.states:,} states, {process_time() - begun:.0f} s; {powers}; {breaches}", sound
    for flaw in Flaw:
        found = search(LARGE, frozenset({flaw}), until_breach=True)
        breach = next(iter(found.breaches), None)
        yield f"  {flaw.value}: {breach or 'NOT FOUND'}", breach is not None


@click.command()
@click.option("--quick", is_flag=True, help="Only what `make test` runs: smaller bounds, no mutants.")
@click.option("--jobs", default=2, show_default=True, help="Searches at a time; each takes up to 1 GiB.")
def main(*, quick: bool, jobs: int) -> None:
    """Search the models of LINK/1, and for an attacker in the cable.

    Exit code 0: all claims hold, every mutant and flaw is found. 1: not so. 2: Spin could not do it.
    """
    ended: list[Searched] = []

    def runs() -> Iterator[Searched]:
        # Each search is a process of its own; two at a time, for two cores.
        with ThreadPoolExecutor(jobs) as pool:
            for one in pool.map(searched, QUICK if quick else (*WHOLE, *MUTANTS)):
                ended.append(one)
                yield one

    try:
        for line in table_of(runs()):
            click.echo(line)
    except (SpinMissing, SpinFailed) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    wrong = sum(not one.as_expected for one in ended)
    states, seconds = sum(one.states for one in ended), sum(one.seconds for one in ended)
    click.echo(f"{len(ended)} searches, {states:,} states, {seconds:.0f} s")
    if not quick:
        for line, expected in attacked():
            click.echo(line)
            wrong += not expected
    click.echo(f"{wrong} NOT as expected" if wrong else "all as expected")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
