"""`palmctl cloud device`: how a board becomes one of this service's devices."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tools.cloud.store import Work, echo, of_environment, on_data, on_store, on_this_store
from tools.palmctl.contract_name import ContractName
from tools.palmctl.groups import WholeHelpGroup

if TYPE_CHECKING:
    from cloud_client.reference_server.domain.tenancy.callers import Environment
    from cloud_client.reference_server.store.base import Tx
    from cloud_client.reference_server.store.vault import Vault

_MAX_CA_BYTES = 64 * 1024


@click.group(cls=WholeHelpGroup)
def device() -> None:
    """Devices."""


@device.command()
@click.option("--device-id", required=True, metavar="D", help="Who the board is to be.")
@click.option("--gate-id", required=True, type=ContractName(), metavar="G", help="The gate it stands at.")
@click.option(
    "--dbd-id",
    required=True,
    type=ContractName(),
    metavar="X",
    help="The validator at the other end of its cable.",
)
@click.option("--passage-sensor", is_flag=True, help="The validator reports whether the person passed.")
@click.option("--expires-in-s", type=click.IntRange(1, 30 * 24 * 3600), default=3600, show_default=True)
@click.option("--url", required=True, help="Where the board finds this service: https://HOST[:PORT].")
@click.option(
    "--ca-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM certificate of the authority behind the server's certificate, unless every board knows it.",
)
@of_environment
@on_data
def invite(
    *,
    data: Path,
    database: str | None,
    as_json: bool,
    environment: "Environment",
    device_id: str,
    expires_in_s: int,
    ca_file: Path | None,
    **said: Any,
) -> None:
    """Make a token, and the provisioning string for the board: `palmctl provision --string-stdin`.

    The string is a secret until it is used or expires: with it, any board becomes this device. On a terminal
    it is shown as a QR code too, for `palmctl provision --string-camera`.
    """
    from cloud_client.reference_server.errors import OperatorError
    from cloud_client.reference_server.ops import commands as operator
    from device.provisioning.invitation import Invitation
    from link1.errors import FormatError
    from tools.cloud.pack_invitation import pack_invitation
    from tools.palmctl.live_terminal import is_live

    said["url"] = _origin(said["url"])
    authority = _authority(ca_file)

    def work(tx: "Tx", vault: "Vault", now_ms: int) -> dict[str, Any]:
        made = operator.create_token(tx, environment, device_id, expires_in_s, now_ms)
        invitation = Invitation(
            token=made["token"],
            device_id=device_id,
            root_kid=vault.root.kid,
            expires_at_s=made["expires_at_ms"] // 1000,
            authority=authority,
            **said,
        )
        try:
            text = pack_invitation(invitation)
        except FormatError as error:
            raise OperatorError(f"no string can be made of these: {error}") from error
        return {
            "string": text,
            "device_id": device_id,
            "root_kid": vault.root.kid,
            "expires_at_ms": made["expires_at_ms"],
        }

    printed = on_this_store(data, database, work)
    if not as_json and is_live(sys.stdout):
        _show_code(printed["string"])
    echo(printed, as_json=as_json)


@device.command()
@click.argument("device_id")
@of_environment
@on_store
def show(*, environment: "Environment", device_id: str) -> Work:
    """Print a device, its newest report, and the totals of its counters."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, _, now_ms: operator.show_device(tx, environment, device_id, now_ms)


@device.command()
@click.argument("device_id")
@click.option(
    "--reason", required=True, metavar="R", help="lost, stolen, decommissioned, compromised or other."
)
@of_environment
@on_store
def revoke(*, environment: "Environment", device_id: str, reason: str) -> Work:
    """Revoke a device: its keys open nothing any more, and it wipes itself at its next contact."""
    from cloud_client.reference_server.ops import commands as operator

    return lambda tx, vault, now_ms: operator.revoke_device(
        tx, vault, environment, device_id, reason=reason, now_ms=now_ms
    )


def _origin(url: str) -> str:
    """What a board would refuse is refused here. Raises UsageError."""
    from cloud_client.client import ServerAddress
    from cloud_client.errors import ServerAddressError

    try:
        return ServerAddress.parse(url).origin
    except ServerAddressError as error:
        raise click.UsageError(f"--url: {error}") from error


def _authority(ca_file: Path | None) -> bytes:
    from cloud_client.reference_server.errors import OperatorError
    from link1.errors import FormatError
    from link1.plain_file import read_plain_file
    from tools.cloud.authority import pack_authority

    if ca_file is None:
        return b""
    try:
        return pack_authority(read_plain_file(ca_file, _MAX_CA_BYTES))
    except FormatError as error:
        raise OperatorError(
            f"--ca-file: expected one certificate in PEM form, found {error}; name the file of the authority "
            "that signed the server's certificate"
        ) from error


def _show_code(text: str) -> None:
    from models.qr_code import MAX_TEXT
    from tools.palmctl.live_terminal import qr_lines

    if len(text) <= MAX_TEXT:
        click.echo("\n".join(qr_lines(text)))
        return
    click.echo(
        f"no QR code: a board reads up to {MAX_TEXT} characters, and this authority's certificate makes "
        f"{len(text)}; give the string by --string-stdin, or use an authority with a key on P-256",
        err=True,
    )
