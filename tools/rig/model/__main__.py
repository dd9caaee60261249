"""`make model`: LINK/1 in Spin, the model whole and every mutant of it, as a table."""

import sys
from collections.abc import Iterator

import click

from tools.rig.model.spin import MUTANTS, QUICK, WHOLE, Searched, SpinFailed, SpinMissing, searched, table_of


@click.command()
@click.option("--quick", is_flag=True, help="Only what `make test` runs: smaller bounds, no mutants.")
def main(*, quick: bool) -> None:
    """Search the models of LINK/1.

    Exit code 0: all claims hold and every mutant is caught. 1: not so. 2: Spin could not do it.
    """
    ended: list[Searched] = []

    def search() -> Iterator[Searched]:
        for run in QUICK if quick else (*WHOLE, *MUTANTS):
            ended.append(searched(run))
            yield ended[-1]

    try:
        for line in table_of(search()):
            click.echo(line)
    except (SpinMissing, SpinFailed) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    wrong = sum(not one.as_expected for one in ended)
    click.echo(
        f"{len(ended)} searches, {sum(one.states for one in ended):,} states, "
        f"{sum(one.seconds for one in ended):.0f} s; "
        + (f"{wrong} NOT as expected" if wrong else "all as expected")
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
