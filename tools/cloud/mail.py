"""`palmctl cloud mail`, `config` and `factory-ca`: what devices are sent, and what vouches for them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tools.cloud.store import Work, echo, of_environment, on_data, on_store, opened_store
from tools.palmctl.groups import WholeHelpGroup

if TYPE_CHECKING:
    from cloud_client.reference_server.domain.tenancy.callers import Environment

_Q = click.IntRange(0, 10_000)
_QUALITY = click.IntRange(0, 100)
_WAIT = click.IntRange(1, 600_000)
_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(cls=WholeHelpGroup)
def mail() -> None:
    """Sealed records for devices."""


@mail.command("send")
@click.option("--device-id", required=True, metavar="D")
@click.option("--type", "kind", required=True, metavar="TYPE", help="svc.config, svc.trust.bundle, …")
@click.option("--body", required=True, type=_FILE, help="The inner object as JSON; it is signed here.")
@of_environment
@on_store
def mail_send(*, environment: "Environment", device_id: str, kind: str, body: Path) -> Work:
    """Put a record into a device's inbox.

    TYPE is svc.config, svc.trust.bundle, svc.update.manifest (these three are signed) or svc.update.chunk.
    """
    from cloud_client.reference_server.ops import mail_send as sending
    from link1.plain_file import read_plain_file
    from link1.sealed import INBOX_CT_MAX_BYTES

    content = read_plain_file(body, 2 * INBOX_CT_MAX_BYTES)
    return lambda tx, vault, now_ms: sending.send(
        tx, vault, environment, device_id, (kind, content), now_ms=now_ms
    )


@mail.command("resume")
@click.option("--device-id", required=True, metavar="D")
@of_environment
@on_store
def mail_resume(*, environment: "Environment", device_id: str) -> Work:
    """After a restore: go on with a device's mail where it is now.

    What it mailed before the restore is lost here and deleted there, and everything after waits for it. Let
    its mail come in first: what is still on its way before the first record that is here is not taken.
    """
    from cloud_client.reference_server.ops import mail_send as sending

    return lambda tx, vault, now_ms: sending.resume(tx, vault, environment, device_id, now_ms=now_ms)


@mail.command("bundle")
@of_environment
@on_store
def mail_bundle(*, environment: "Environment") -> Work:
    """Print a trust bundle of all keys that count now; with --json, a file to edit for `mail send`."""
    from cloud_client.reference_server.ops import mail_send as sending

    return lambda tx, vault, now_ms: sending.trust_bundle(tx, vault, environment, now_ms)


@click.group(cls=WholeHelpGroup)
def config() -> None:
    """The signed configuration that devices follow."""


@config.command("show")
@of_environment
@on_store
def config_show(*, environment: "Environment") -> Work:
    """Print the present config_obj."""
    from cloud_client.reference_server.ops import mail_send as sending

    return lambda tx, _, __: sending.show_config(tx, environment)


@config.command("set")
@click.option("--thr-id", metavar="ID", help="A new name, for other thresholds.")
@click.option("--accept-q", type=_Q, help="Cosine × 10000 from which a palm is accepted.")
@click.option("--margin-q", type=click.IntRange(0, 20_000), help="Distance to the next person, × 10000.")
@click.option("--quality-q", type=_QUALITY, help="Quality that a passage takes.")
@click.option("--pad-q", type=_Q, help="Liveness score that it takes.")
@click.option("--enrol-quality-q", type=_QUALITY, help="Quality that an enrolment takes.")
@click.option("--attempts", type=click.IntRange(1, 100), help="Good captures before a palm is rejected.")
@click.option("--decision-timeout-ms", type=_WAIT)
@click.option("--passage-timeout-ms", type=_WAIT)
@click.option("--gallery-ttl-ms", type=click.IntRange(1, 6 * 3600 * 1000))
@of_environment
@on_data
def config_set(
    *, environment: "Environment", data: Path, database: str | None, as_json: bool, **given: Any
) -> None:
    """Change the configuration: config_seq rises, and every active device is sent the new one."""
    from cloud_client.reference_server.ops import mail_send as sending

    changes = {name: value for name, value in given.items() if value is not None}
    with opened_store(data, database) as (store, vault, now_ms):
        config = sending.set_config(store, vault, environment, changes, now_ms)
    echo(config, as_json=as_json)


@click.group("factory-ca", cls=WholeHelpGroup)
def factory_ca() -> None:
    """Certificate authorities of device makers."""


@factory_ca.command("add")
@click.argument("certificate", type=_FILE)
@on_store
def factory_ca_add(*, certificate: Path) -> Work:
    """Trust a CA (PEM or DER) to vouch for the keys of devices."""
    from cloud_client.reference_server.domain.devices import attestation
    from link1.plain_file import read_plain_file

    content = read_plain_file(certificate, 64 * 1024)
    return lambda tx, _, now_ms: attestation.add_factory_ca(tx, content, now_ms)


@factory_ca.command("list")
@on_store
def factory_ca_list() -> Work:
    """Print the CAs that are trusted."""
    from cloud_client.reference_server.domain.devices import attestation

    return lambda tx, _, __: attestation.list_factory_cas(tx)


@factory_ca.command("remove")
@click.argument("fingerprint")
@on_store
def factory_ca_remove(*, fingerprint: str) -> Work:
    """Trust it no more; the devices that it vouched for are not attested any more."""
    from cloud_client.reference_server.domain.devices import attestation

    return lambda tx, _, __: attestation.remove_factory_ca(tx, fingerprint)
