"""`palmctl cloud …`: the reference server, and what its operator does to it while it runs."""

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from cloud_client.reference_server.context import Environment
    from cloud_client.reference_server.store import Tx
    from cloud_client.reference_server.vault import Vault

Command = Callable[..., Any]
Work = Callable[["Tx", "Vault", int], dict[str, Any]]


@click.group()
def cloud() -> None:
    """The reference server of the cloud: serve it, manage tenants, keys and devices."""


def _data(command: Command) -> Command:
    """--data, --database and --json, which every command takes."""
    command = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")(
        command
    )
    command = click.option(
        "--database", metavar="URL", help="sqlite:///PATH instead of cloud.db in the data directory."
    )(command)
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        required=True,
        help="The server's data directory; made on first use.",
    )(command)


def _environment(command: Command) -> Command:
    """--tenant and --mode."""
    command = click.option("--mode", type=click.Choice(["test", "live"]), required=True)(command)
    return _tenant(command)


def _tenant(command: Command) -> Command:
    return click.option("--tenant", required=True, metavar="T", help="A tenant_id.")(command)


def _fail(error: Exception) -> NoReturn:
    click.echo(f"palmctl cloud: {error}", err=True)
    raise SystemExit(1)


def _reported(command: Command) -> Command:
    """Errors a person can meet: one line on stderr and exit status 1."""

    @wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        from cloud_client.reference_server.errors import ServerError

        try:
            return command(*args, **kwargs)
        except ServerError as error:
            _fail(error)

    return run


def _on_store(command: Callable[..., Work]) -> Command:
    """A command that answers with work: one write transaction on the store, whose result is printed."""

    @_data
    @_reported
    @wraps(command)
    def run(*, data: Path, database: str | None, as_json: bool, **given: Any) -> None:
        from cloud_client.reference_server.serve import DataDirectory
        from cloud_client.reference_server.times import system_now_ms

        now_ms = system_now_ms()
        store, vault = DataDirectory.of(data, database).open(now_ms)
        try:
            with store.writing() as tx:
                printed = command(**given)(tx, vault, now_ms)
        finally:
            store.close()
        if as_json:
            click.echo(json.dumps(printed, ensure_ascii=False))
            return
        for name, value in printed.items():
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            click.echo(f"{name}: {text}")

    return run


def _of(tenant: str, mode: str) -> "Environment":
    from cloud_client.reference_server.context import Environment

    return Environment(tenant, mode == "live")


@cloud.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option(
    "--port", default=8710, show_default=True, type=click.IntRange(0, 65535), help="0 takes a free one."
)
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--behind-tls-proxy", is_flag=True, help="A proxy in front does TLS; other addresses are allowed."
)
@click.option(
    "--rate-scale", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Rate limits times N."
)
@_data
@_reported
def serve(
    *,
    data: Path,
    database: str | None,
    as_json: bool,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    behind_tls_proxy: bool,
    rate_scale: float,
) -> None:
    """Serve until SIGTERM; prints one line when connections are accepted."""
    from cloud_client.reference_server.serve import DataDirectory, ServeOptions, run

    def ready(url: str) -> None:
        click.echo(json.dumps({"url": url}) if as_json else f"serving {url}")

    run(
        ServeOptions(
            data=DataDirectory.of(data, database),
            host=host,
            port=port,
            tls_cert=tls_cert,
            tls_key=tls_key,
            behind_tls_proxy=behind_tls_proxy,
            rate_scale=rate_scale,
        ),
        ready,
    )


@cloud.group()
def tenant() -> None:
    """Tenants and their settings."""


@tenant.command("create")
@click.argument("name")
@_on_store
def tenant_create(*, name: str) -> Work:
    """Make a tenant with a test and a live environment."""
    from cloud_client.reference_server import operator

    return lambda tx, vault, now_ms: operator.create_tenant(tx, vault, name, now_ms)


@tenant.command("set")
@click.option("--terms-version", metavar="V")
@click.option("--duplicate-cosine", type=float, metavar="X")
@_tenant
@_on_store
def tenant_set(
    *,
    tenant: str,
    terms_version: str | None,
    duplicate_cosine: float | None,
) -> Work:
    """Change a tenant's settings."""
    from cloud_client.reference_server import operator

    return lambda tx, vault, _: operator.set_tenant(tx, vault, tenant, terms_version, duplicate_cosine)


@cloud.group()
def key() -> None:
    """API keys of partners."""


@key.command("create")
@click.option(
    "--scope", "scopes", multiple=True, required=True, metavar="S", help="May be given several times."
)
@_environment
@_on_store
def key_create(*, tenant: str, mode: str, scopes: tuple[str, ...]) -> Work:
    """Make an API key; it is shown this once."""
    from cloud_client.reference_server import operator

    return lambda tx, _, now_ms: operator.create_key(tx, _of(tenant, mode), list(scopes), now_ms)


@key.command("revoke")
@click.argument("key_id")
@_tenant
@_on_store
def key_revoke(*, tenant: str, key_id: str) -> Work:
    """Revoke an API key from the next request on."""
    from cloud_client.reference_server import operator

    return lambda tx, _, now_ms: operator.revoke_key(tx, tenant, key_id, now_ms)


@cloud.group()
def token() -> None:
    """Provisioning tokens of devices."""


@token.command("create")
@click.option("--device-id", required=True, metavar="D")
@click.option("--expires-in-s", type=click.IntRange(1, 30 * 24 * 3600), default=3600, show_default=True)
@_environment
@_on_store
def token_create(*, tenant: str, mode: str, device_id: str, expires_in_s: int) -> Work:
    """Make a provisioning token for one device."""
    from cloud_client.reference_server import operator

    return lambda tx, _, now_ms: operator.create_token(tx, _of(tenant, mode), device_id, expires_in_s, now_ms)


@cloud.group()
def dbd() -> None:
    """Validators."""


@dbd.command("add")
@click.option("--dbd-id", required=True, metavar="X")
@click.option("--pub-b64", required=True, metavar="P", help="Its Ed25519 public key.")
@_environment
@_on_store
def dbd_add(*, tenant: str, mode: str, dbd_id: str, pub_b64: str) -> Work:
    """Make a validator's key known; another key for the same id counts from now."""
    from cloud_client.reference_server import operator

    return lambda tx, _, now_ms: operator.add_dbd(tx, _of(tenant, mode), dbd_id, pub_b64, now_ms)


@cloud.group()
def subject() -> None:
    """Persons."""


@subject.command("block")
@click.argument("subject_id")
@click.option("--reason", metavar="R", help="Shown in the person's block.")
@_environment
@_on_store
def subject_block(*, tenant: str, mode: str, subject_id: str, reason: str | None) -> Work:
    """Suspend a person at every gate."""
    from cloud_client.reference_server import operator

    return lambda tx, vault, now_ms: operator.block_subject(
        tx, vault, _of(tenant, mode), subject_id, reason=reason, now_ms=now_ms
    )


@subject.command("unblock")
@click.argument("subject_id")
@click.option("--reason", metavar="R", hidden=True)
@_environment
@_on_store
def subject_unblock(*, tenant: str, mode: str, subject_id: str, reason: str | None) -> Work:
    """Undo `subject block`."""
    from cloud_client.reference_server import operator

    del reason  # taken so that both commands can be called alike
    return lambda tx, vault, now_ms: operator.unblock_subject(
        tx, vault, _of(tenant, mode), subject_id, now_ms=now_ms
    )


@cloud.group()
def session() -> None:
    """Enrollment sessions."""


@session.command("cancel")
@click.argument("session_id")
@_environment
@_on_store
def session_cancel(*, tenant: str, mode: str, session_id: str) -> Work:
    """End a session that is open or in review."""
    from cloud_client.reference_server import operator

    return lambda tx, _, now_ms: operator.cancel_session(tx, _of(tenant, mode), session_id, now_ms)


@session.command("approve")
@click.argument("session_id")
@_environment
@_on_store
def session_approve(*, tenant: str, mode: str, session_id: str) -> Work:
    """End a review: the palms are enrolled."""
    from cloud_client.reference_server import operator

    return lambda tx, vault, now_ms: operator.approve_session(
        tx, vault, _of(tenant, mode), session_id, now_ms
    )


@session.command("reject")
@click.argument("session_id")
@_environment
@_on_store
def session_reject(*, tenant: str, mode: str, session_id: str) -> Work:
    """End a review: nobody is enrolled."""
    from cloud_client.reference_server import operator

    return lambda tx, _, now_ms: operator.reject_session(tx, _of(tenant, mode), session_id, now_ms)


@cloud.group()
def epoch() -> None:
    """The gallery's epochs."""


@epoch.command("new")
@click.option("--model-id", required=True, metavar="ID")
@_environment
@_on_store
def epoch_new(*, tenant: str, mode: str, model_id: str) -> Work:
    """Begin a gallery epoch made with a model; devices take it by snapshot."""
    from cloud_client.reference_server import operator

    return lambda tx, _, __: operator.new_epoch(tx, _of(tenant, mode), model_id)


@cloud.group()
def signer() -> None:
    """The service's signing keys."""


@signer.command("rotate")
@click.option("--use", required=True, metavar="U")
@click.option("--in-s", type=click.IntRange(min=0), default=86400, show_default=True)
@_on_store
def signer_rotate(*, use: str, in_s: int) -> Work:
    """Publish a new key for a use; it signs from --in-s seconds on."""
    from cloud_client.reference_server import operator

    return lambda tx, vault, now_ms: operator.rotate_signer(tx, vault, use, in_s, now_ms)


@cloud.group()
def root() -> None:
    """The root key that devices pin."""


@root.command("show")
@_on_store
def root_show() -> Work:
    """Print the root's public key."""
    from cloud_client.reference_server import operator

    return lambda _, vault, __: operator.show_root(vault)


@cloud.command()
@click.option("--now", "timestamp", metavar="TIMESTAMP", help="RFC 3339; what is expired then is deleted.")
@_on_store
def sweep(*, timestamp: str | None) -> Work:
    """Delete what is past its retention, and count it."""
    from cloud_client.reference_server.retention import sweep as delete_expired
    from cloud_client.reference_server.times import parse_rfc3339

    at_ms = None
    if timestamp is not None:
        at_ms = parse_rfc3339(timestamp)
        if at_ms is None:
            raise click.BadParameter("expected RFC 3339 with a zone, like 2030-01-31T12:00:00Z")
    return lambda tx, _, now_ms: {**delete_expired(tx, now_ms if at_ms is None else at_ms)}
