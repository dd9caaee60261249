"""`palmctl cloud …`: the reference server, and what its operator does to it while it runs."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tools.cloud.backup import backup
from tools.cloud.bundle import bundle
from tools.cloud.device import device
from tools.cloud.mail import config, factory_ca, mail
from tools.cloud.port_database import port_db
from tools.cloud.release import release
from tools.cloud.secret import secret
from tools.cloud.simulate import simulate
from tools.cloud.store import Work, echo, of_environment, of_tenant, on_data, on_store, opened_store
from tools.palmctl.finite_range import FiniteRange
from tools.palmctl.groups import WholeHelpGroup

if TYPE_CHECKING:
    from cloud_client.reference_server.domain.tenancy.callers import Environment

_YEAR_S = 365 * 24 * 3600


@click.group(cls=WholeHelpGroup)
def cloud() -> None:
    """The reference server of the cloud: serve it, manage tenants, keys and devices."""


for _command in (backup, bundle, device, mail, config, factory_ca, port_db, release, secret, simulate):
    cloud.add_command(_command)


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
@click.option("--rate-scale", type=FiniteRange(min=0.25), default=1.0, help="Rate limits times N.")
@click.option(
    "--admin-port",
    type=click.IntRange(0, 65535),
    help="For the operator page, /metrics, /healthz and /docs.  [default: 8711 if it is free]",
)
@click.option("--admin-host", default="127.0.0.1", show_default=True, help="Elsewhere only with TLS.")
@click.option("--no-admin", is_flag=True, help="Serve none of these.")
@click.option("--metrics-per-device", is_flag=True, help="Also series for each device: for small fleets.")
@on_data
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
    admin_port: int | None,
    admin_host: str,
    no_admin: bool,
    metrics_per_device: bool,
) -> None:
    """Serve until SIGTERM; prints one line when connections are accepted."""
    from cloud_client.reference_server.ops.data_directory import DataDirectory
    from cloud_client.reference_server.ops.serve import ServeOptions, run
    from cloud_client.reference_server.web.admin.bind import AdminBind

    admin = AdminBind(admin_host)
    if admin_port is not None:
        admin = AdminBind(admin_host, admin_port, asked=True)
    elif port == 0:
        admin = AdminBind(admin_host, 0)  # a caller that accepts any port accepts any two

    def ready(url: str, admin_url: str | None) -> None:
        if as_json:
            click.echo(json.dumps({"url": url, "admin_url": admin_url}))
            return
        if admin_url is not None:
            click.echo(f"operator page {admin_url}/operator", err=True)
        click.echo(f"serving {url}")

    run(
        ServeOptions(
            data=DataDirectory.of(data, database),
            host=host,
            port=port,
            tls_cert=tls_cert,
            tls_key=tls_key,
            behind_tls_proxy=behind_tls_proxy,
            rate_scale=rate_scale,
            admin=None if no_admin else admin,
            metrics_per_device=metrics_per_device,
        ),
        ready,
    )


@cloud.group()
def tenant() -> None:
    """Tenants and their settings."""


@tenant.command("create")
@click.argument("name")
@on_store
def tenant_create(*, name: str) -> Work:
    """Make a tenant with a test and a live environment."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, vault, now_ms: operator.create_tenant(tx, vault, name, now_ms)


@tenant.command("set")
@click.option("--terms-version", metavar="V")
@click.option("--duplicate-cosine", type=float, metavar="X")
@click.option(
    "--offline-after-s", type=int, metavar="N", help="A device is OFFLINE when nothing came for so long."
)
@of_tenant
@on_store
def tenant_set(*, tenant: str, **settings: Any) -> Work:
    """Change a tenant's settings."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, vault, _: operator.set_tenant(tx, vault, tenant, **settings)


@tenant.command("list")
@on_store
def tenant_list() -> Work:
    """Print every tenant, the oldest first."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, __: operator.list_tenants(tx)


@cloud.group()
def key() -> None:
    """API keys of partners."""


@key.command("create")
@click.option(
    "--scope", "scopes", multiple=True, required=True, metavar="S", help="May be given several times."
)
@of_environment
@on_store
def key_create(*, environment: "Environment", scopes: tuple[str, ...]) -> Work:
    """Make an API key; it is shown this once."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, now_ms: operator.create_key(tx, environment, list(scopes), now_ms)


@key.command("list")
@of_tenant
@on_store
def key_list(*, tenant: str) -> Work:
    """Print the API keys of both environments, without their secrets."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, __: operator.list_keys(tx, tenant)


@key.command("show")
@click.argument("key_id")
@of_tenant
@on_store
def key_show(*, tenant: str, key_id: str) -> Work:
    """Print an API key, without its secret."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, __: operator.show_key(tx, tenant, key_id)


@key.command("revoke")
@click.argument("key_id")
@of_tenant
@on_store
def key_revoke(*, tenant: str, key_id: str) -> Work:
    """Revoke an API key from the next request on."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, now_ms: operator.revoke_key(tx, tenant, key_id, now_ms)


@cloud.group()
def token() -> None:
    """Provisioning tokens of devices."""


@token.command("create")
@click.option("--device-id", required=True, metavar="D")
@click.option("--expires-in-s", type=click.IntRange(1, 30 * 24 * 3600), default=3600, show_default=True)
@of_environment
@on_store
def token_create(*, environment: "Environment", device_id: str, expires_in_s: int) -> Work:
    """Make a provisioning token for one device."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, now_ms: operator.create_token(tx, environment, device_id, expires_in_s, now_ms)


@cloud.group()
def dbd() -> None:
    """Validators."""


@dbd.command("add")
@click.option("--dbd-id", required=True, metavar="X")
@click.option("--pub-b64", required=True, metavar="P", help="Its Ed25519 public key.")
@of_environment
@on_store
def dbd_add(*, environment: "Environment", dbd_id: str, pub_b64: str) -> Work:
    """Make a validator's key known; another key for the same id counts from now."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, now_ms: operator.add_dbd(tx, environment, dbd_id, pub_b64, now_ms)


@cloud.group()
def subject() -> None:
    """Persons."""


@subject.command("block")
@click.argument("subject_id")
@click.option("--reason", metavar="R", help="Shown in the person's block.")
@of_environment
@on_store
def subject_block(*, environment: "Environment", subject_id: str, reason: str | None) -> Work:
    """Suspend a person at every gate."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, vault, now_ms: operator.block_subject(
        tx, vault, environment, subject_id, reason=reason, now_ms=now_ms
    )


@subject.command("unblock")
@click.argument("subject_id")
@click.option("--reason", metavar="R", hidden=True)
@of_environment
@on_store
def subject_unblock(*, environment: "Environment", subject_id: str, reason: str | None) -> Work:
    """Undo `subject block`."""
    from cloud_client.reference_server.ops import commands as operator

    del reason  # taken so that both commands can be called alike
    return lambda tx, vault, now_ms: operator.unblock_subject(
        tx, vault, environment, subject_id, now_ms=now_ms
    )


@cloud.group()
def session() -> None:
    """Enrollment sessions."""


@session.command("cancel")
@click.argument("session_id")
@of_environment
@on_store
def session_cancel(*, environment: "Environment", session_id: str) -> Work:
    """End a session that is open or in review."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, now_ms: operator.cancel_session(tx, environment, session_id, now_ms)


@session.command("approve")
@click.argument("session_id")
@of_environment
@on_store
def session_approve(*, environment: "Environment", session_id: str) -> Work:
    """End a review: the palms are enrolled."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, vault, now_ms: operator.approve_session(tx, vault, environment, session_id, now_ms)


@session.command("reject")
@click.argument("session_id")
@of_environment
@on_store
def session_reject(*, environment: "Environment", session_id: str) -> Work:
    """End a review without enrolling the person."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, now_ms: operator.reject_session(tx, environment, session_id, now_ms)


@cloud.group()
def epoch() -> None:
    """The gallery's epochs."""


@epoch.command("new")
@click.option("--model-id", metavar="ID", help="The model of its palms.  [default: the one in use]")
@click.option("--enrol-again", is_flag=True, help="For another model: everyone has to enrol again.")
@of_environment
@on_store
def epoch_new(*, environment: "Environment", model_id: str | None, enrol_again: bool) -> Work:
    """Begin a gallery epoch; devices take it by snapshot."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, now: operator.new_epoch(tx, environment, model_id, now, enrol_again=enrol_again)


@cloud.group()
def signer() -> None:
    """The service's signing keys."""


@signer.command("rotate")
@click.option("--use", required=True, metavar="U")
@click.option("--in-s", type=click.IntRange(0, _YEAR_S), default=86400, show_default=True)
@on_store
def signer_rotate(*, use: str, in_s: int) -> Work:
    """Publish a new key for a use; it signs from --in-s seconds on.

    A device on the network looks for keys every ten minutes, and ignores a key that signs already then.
    """
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, vault, now_ms: operator.rotate_signer(tx, vault, use, in_s, now_ms)


@signer.command("drill")
@click.option("--in-s", type=click.IntRange(0, _YEAR_S), default=86400, show_default=True)
@on_store
def signer_drill(*, in_s: int) -> Work:
    """Publish a new key for every use at once, and print which devices follow.

    A use whose newest key is still to begin keeps it: the drill may be repeated.
    """
    from cloud_client.reference_server.ops.signer_drill import drill

    return lambda tx, vault, now_ms: drill(tx, vault, in_s, now_ms)


@signer.command("status")
@on_store
def signer_status() -> Work:
    """Print the newest key of every use, and which active devices are known to follow it."""
    from cloud_client.reference_server.ops.signer_drill import report

    return lambda tx, _, __: report(tx)


@cloud.group()
def root() -> None:
    """The root key that devices pin."""


@root.command("show")
@on_store
def root_show() -> Work:
    """Print the root's public key."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda _, vault, __: operator.show_root(vault)


@cloud.command()
@click.option(
    "--now",
    "timestamp",
    metavar="TIMESTAMP",
    help="RFC 3339; what will be expired then is deleted, for good: try that on a copy alone.",
)
@on_data
def sweep(*, timestamp: str | None, data: Path, database: str | None, as_json: bool) -> None:
    """Delete what is past its retention, and count it. Servers go on meanwhile."""
    from cloud_client.reference_server.contract.times import LATEST_MS, parse_rfc3339, system_now_ms
    from cloud_client.reference_server.ops.retention import note_sweep, sweep_all

    at_ms = system_now_ms() if timestamp is None else parse_rfc3339(timestamp)
    if at_ms is None or not 0 <= at_ms <= LATEST_MS:
        raise click.BadParameter("expected RFC 3339 with a zone, like 2030-01-31T12:00:00Z")
    with opened_store(data, database) as (store, _, _):
        if timestamp is None:
            store.write(partial(note_sweep, now_ms=at_ms))
        echo(sweep_all(store, at_ms).shown, as_json=as_json)
