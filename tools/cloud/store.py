"""What the commands of `palmctl cloud …` have in common: options, the store they work on, errors."""

import json
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from cloud_client.reference_server.domain.tenancy.callers import Environment
    from cloud_client.reference_server.store.base import CloudStore, Tx
    from cloud_client.reference_server.store.vault import Vault

Command = Callable[..., Any]
Work = Callable[["Tx", "Vault", int], dict[str, Any]]


in_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


def on_data(command: Command) -> Command:
    """--data, --database and --json, of a command on the server's data; its errors are `reported`."""
    command = click.option(
        "--database",
        envvar="PALM_CLOUD_DATABASE",
        show_envvar=True,
        metavar="URL",
        help="postgresql://… or sqlite:///PATH instead of cloud.db in the data directory.",
    )(in_json(reported(command)))
    return click.option(
        "--data",
        envvar="PALM_CLOUD_DATA",
        show_envvar=True,
        type=click.Path(file_okay=False, path_type=Path),
        required=True,
        help="The server's data directory; made on first use.",
    )(command)


def of_environment(command: Command) -> Command:
    """--tenant and --mode: the command takes them as its ``environment``."""

    @of_tenant
    @click.option("--mode", type=click.Choice(["test", "live"]), required=True)
    @wraps(command)
    def run(*, tenant: str, mode: str, **given: Any) -> Any:
        return command(environment=environment_of(tenant, mode), **given)

    return run


def of_tenant(command: Command) -> Command:
    return click.option("--tenant", required=True, metavar="T", help="A tenant_id.")(command)


def reported(command: Command) -> Command:
    """Errors a person can meet: one line on stderr and exit status 1."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        from cloud_client.reference_server.errors import ServerError

        try:
            return command(*args, **kwargs)
        except ServerError as error:
            raise click.ClickException(str(error)) from None

    return run


def on_store(command: Callable[..., Work]) -> Command:
    """A command that answers with work: one write transaction on the store, whose result is printed."""

    @on_data
    @wraps(command)
    def run(*, data: Path, database: str | None, as_json: bool, **given: Any) -> None:
        echo(on_this_store(data, database, command(**given)), as_json=as_json)

    return run


def echo(printed: dict[str, Any], *, as_json: bool) -> None:
    """Print a command's result: one JSON object, or a line for each member."""
    if as_json:
        click.echo(json.dumps(printed, ensure_ascii=False))
        return
    for name, value in printed.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        click.echo(f"{name}: {text}")


def on_this_store(data: Path, database: str | None, work: Work) -> dict[str, Any]:
    """Do the work in one write transaction; its result."""
    with opened_store(data, database) as (store, vault, now_ms):
        with store.writing() as tx:
            printed = work(tx, vault, now_ms)
        if tx.purge_after_commit:
            store.purge()  # a running server, or the next to start, finishes the purge
    return printed


@contextmanager
def opened_store(data: Path, database: str | None) -> Iterator[tuple["CloudStore", "Vault", int]]:
    """The store of a command that takes several transactions, its keys, and the time."""
    from cloud_client.reference_server.contract.times import system_now_ms
    from cloud_client.reference_server.ops.data_directory import DataDirectory

    now_ms = system_now_ms()
    store, vault = DataDirectory.of(data, database).open(now_ms)
    with closing(store):
        yield store, vault, now_ms


def environment_of(tenant: str, mode: str) -> "Environment":
    from cloud_client.reference_server.domain.tenancy.callers import Environment

    return Environment(tenant, mode == "live")
