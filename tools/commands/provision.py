"""`palmctl provision`: make this board a device of a tenant."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from device.config import DeviceConfig
    from device.config_values import Parser
    from device.provisioning import Provisioned

_PATH = click.Path(path_type=Path)


@click.command()
@click.option("--server", required=True, metavar="URL", help="The service: https://HOST[:PORT].")
@click.option(
    "--token-stdin",
    is_flag=True,
    required=True,
    help="Read the provisioning token from standard input; on a terminal it is asked for and not shown.",
)
@click.option("--device-id", required=True, help="Who this device is to the service.")
@click.option("--gate-id", required=True, help="The gate it stands at.")
@click.option("--dbd-id", required=True, help="The validator at the other end of its cable.")
@click.option("--passage-sensor", is_flag=True, help="The validator tells whether the person walked through.")
@click.option("--config", type=_PATH, help="Configuration file to write; default as for palmd.")
@click.option("--state-dir", type=_PATH, help="Where keys, gallery and journal go.")
@click.option("--runtime-dir", type=_PATH, help="Where the daemons put their sockets.")
@click.option("--camera", metavar="SOURCE", help="/dev/video0, v4l2:by-id/… or file:PATH (video or folder).")
@click.option("--camera-fps", type=click.IntRange(1, 120), help="Images a second.")
@click.option("--link-port", metavar="PORT", help="/dev/ttyACM0, another port, or usb:VID:PID[:SERIAL].")
@click.option("--ca-file", type=_PATH, help="CA certificate of the service, if the system does not know it.")
@click.option("--model-dir", type=_PATH, help="Folder of the model; default: the shipped one.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def provision(
    *,
    as_json: bool,
    token_stdin: bool,  # noqa: ARG001 (there is no other way to hand a token over; the flag says so)
    config: Path | None,
    passage_sensor: bool,
    **given: Any,
) -> None:
    """Make this board a device of a tenant: keys, registration, pinned trust, configuration.

    Keys are made here and never leave. After an interruption anywhere, run it again with the same token: it
    goes on where it stopped. What an existing configuration file says, and no option does, stays.

    Exit code 0: provisioned. 1: refused or failed. 2: wrong usage. 3: the service cannot be reached.
    """
    import asyncio
    import random

    from cloud_client.errors import CloudError, ServerAddressError
    from device.clock import SystemClock
    from device.config import config_path
    from device.errors import DeviceError
    from device.provisioning import Surroundings
    from device.provisioning import provision as carry_out
    from models.errors import ModelsError

    path = config_path(config).absolute()
    around = Surroundings(SystemClock(), random.random, tell=lambda text: click.echo(text, err=True))
    try:
        settings = _settings(path, given)
        registration = _registration(settings, passage_sensor=passage_sensor)
        done = asyncio.run(carry_out(settings, path, registration, _token(), around))
    except ServerAddressError as error:
        raise click.UsageError(str(error)) from error
    except CloudError as error:
        click.echo(
            f"{error}\nNothing is lost: run the same command again when the service answers.", err=True
        )
        sys.exit(3)
    except (DeviceError, ModelsError) as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    click.echo(json.dumps(_told(done, settings, path)) if as_json else _lines(done, settings, path))


def _token() -> str:
    """The token, never shown and never kept."""
    if sys.stdin.isatty():
        return str(click.prompt("Provisioning token", hide_input=True, err=True)).strip()
    token = sys.stdin.readline().strip()
    if not token:
        raise click.UsageError("no token came on standard input; try: palmctl provision … < token.txt")
    return token


def _settings(path: Path, given: dict[str, Any]) -> "DeviceConfig":
    """The configuration to write: the existing file's or the defaults, with the options put in."""
    from dataclasses import replace

    from device import config_values as values
    from device.config import (
        CameraSection,
        CloudSection,
        DeviceConfig,
        DeviceSection,
        EnrolmentSection,
        LinkSection,
        ModelSection,
        load_config,
    )

    url = _checked("--server", values.service_url, given["server"])
    ca_file = given["ca_file"] and given["ca_file"].absolute()
    if path.exists():
        found = load_config(path)
    else:
        found = DeviceConfig(
            DeviceSection("", "", "", Path("/var/lib/palm-access"), Path("/run/palm-access")),
            CameraSection("/dev/video0", 30, loop=False, look="rgb"),
            LinkSection("/dev/ttyACM0", 921_600),
            None,
            ModelSection(None),
            EnrolmentSection(("L", "R")),
        )
    if ca_file is None and found.cloud is not None and found.cloud.url == url:
        ca_file = found.cloud.ca_file
    return replace(
        found,
        device=DeviceSection(
            _checked("--device-id", values.device_id, given["device_id"]),
            _checked("--gate-id", values.name, given["gate_id"]),
            _checked("--dbd-id", values.name, given["dbd_id"]),
            (given["state_dir"] or found.device.state_dir).absolute(),
            _checked(
                "--runtime-dir",
                values.socket_folder,
                str((given["runtime_dir"] or found.device.runtime_dir).absolute()),
            ),
        ),
        camera=replace(
            found.camera,
            source=_checked("--camera", values.camera_source, given["camera"] or found.camera.source),
            fps=given["camera_fps"] or found.camera.fps,
        ),
        link=replace(
            found.link, port=_checked("--link-port", values.port, given["link_port"] or found.link.port)
        ),
        cloud=CloudSection(url, ca_file),
        model=ModelSection(given["model_dir"].absolute() if given["model_dir"] else found.model.dir),
    )


def _checked(option: str, parser: "Parser", value: str) -> Any:
    """The option's value as the configuration takes it."""
    from device.config_values import WrongValue

    try:
        return parser(value, Path.cwd())
    except WrongValue as error:
        raise click.UsageError(f"{option}: expected {parser.expected}, found {error}") from None


def _registration(settings: "DeviceConfig", *, passage_sensor: bool) -> Any:
    from importlib.metadata import version

    from device.provisioning import APP_PACKAGE, Registration
    from models.manifest import load_manifest, shipped_model_dir

    return Registration(
        device_id=settings.device.id,
        gate_id=settings.device.gate_id,
        dbd_id=settings.device.dbd_id,
        passage_sensor=passage_sensor,
        app_version=version(APP_PACKAGE),
        model_id=load_manifest(settings.model.dir or shipped_model_dir()).model_id,
    )


def _told(done: "Provisioned", settings: "DeviceConfig", path: Path) -> dict[str, Any]:
    """The result for programs. The verdict key is what a validator pins."""
    trust, verdict = done.trust, done.keys.verdict.public
    stream, epoch = trust.gallery or ("", 0)
    return {
        "device_id": trust.device_id,
        "tenant_id": trust.tenant_id,
        "gate_id": trust.gate_id,
        "dbd_id": trust.dbd_id,
        "verdict_key": {"kid": verdict.kid, "alg": "ed25519", "pub_b64": verdict.b64},
        "root_kid": trust.roots[0].kid,
        "dbd_kids": [key.public.kid for key in trust.dbd_keys],
        "gallery": {"stream": stream, "epoch": epoch},
        "keys_made": done.keys_made,
        "config": str(path),
        "state_dir": str(settings.device.state_dir),
    }


def _lines(done: "Provisioned", settings: "DeviceConfig", path: Path) -> str:
    """The result for a person."""
    told = _told(done, settings, path)
    validators = ", ".join(told["dbd_kids"]) or "none yet; add one at the service and it comes by itself"
    return "\n".join(
        (
            f"{told['device_id']} is a device of tenant {told['tenant_id']}.",
            f"  verdict key     {told['verdict_key']['pub_b64']}  (give this to the validator)",
            f"  service root    {told['root_kid']}",
            f"  validator keys  {validators}",
            f"  configuration   {told['config']}",
            f"  state           {told['state_dir']}",
        )
    )
