"""`palmctl provision`: make this board a device of a tenant."""

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cloud_client.errors import CloudError, ServerAddressError
from device import APP_PACKAGE
from device.config import values
from device.config.config import (
    CameraSection,
    CloudSection,
    DeviceConfig,
    DeviceSection,
    LinkSection,
    config_path,
    load_config,
)
from device.errors import ProvisioningError
from device.platform.files import hand_over, replace_synced, write_on_stick
from link1.errors import is_not_permitted
from link1.plain_file import read_plain_file
from tools.palmctl.alone import alone_at
from tools.palmctl.errors import RegistrationUnanswered
from tools.palmctl.language import marked
from tools.palmctl.language import translated as _
from tools.palmctl.live_terminal import is_live, qr_lines
from tools.palmctl.standard_input import secret_line

if TYPE_CHECKING:  # what loads cryptography or HTTP is imported where it is used: --help stays quick
    from device.provisioning.invitation import Invitation
    from device.provisioning.online import Provisioned, RegistrationFacts

_PATH = click.Path(path_type=Path)
_WAYS = marked("""\
expected one way to become a device, found none:
  --string-stdin        the provisioning string that the operator made with `palmctl cloud device invite`
  --string-camera       the same string, held as a QR code before the camera
  --server URL --token-stdin --device-id D --gate-id G --dbd-id X
                        its parts by hand
  --offline-bundle FILE --device-id D --gate-id G --dbd-id X
                        without a network: a request on a stick, and the service's answer.""")
_AS_INVITE_PRINTS_IT = "string: "
"""`palmctl cloud device invite … | palmctl provision --string-stdin` needs no editor between them."""
_IN_THE_STRING = ("server", "device_id", "gate_id", "dbd_id", "passage_sensor", "ca_file")


@click.command()
@click.option(
    "--string-stdin",
    is_flag=True,
    help="Read the operator's provisioning string from standard input; on a terminal it is asked for and not "
    "shown.",
)
@click.option("--string-camera", is_flag=True, help="Read it from a QR code that is held before the camera.")
@click.option("--server", metavar="URL", help="The service: https://HOST[:PORT].")
@click.option(
    "--token-stdin",
    is_flag=True,
    help="Read the provisioning token from standard input; on a terminal it is asked for and not shown.",
)
@click.option(
    "--offline-bundle",
    type=_PATH,
    metavar="FILE",
    help="Without a network: write the request into FILE, or take the service's answer from it.",
)
@click.option("--root-kid", metavar="KID", help="With an answer in FILE: the service's root, else asked for.")
@click.option("--device-id", help="Who this device is to the service.")
@click.option("--gate-id", help="The gate it stands at.")
@click.option("--dbd-id", help="The validator at the other end of its cable.")
@click.option("--passage-sensor", is_flag=True, help="The validator reports whether the person passed.")
@click.option("--config", type=_PATH, help="Configuration file to write; default as for palmd.")
@click.option("--state-dir", type=_PATH, help="Where keys, gallery and journal go.")
@click.option("--runtime-dir", type=_PATH, help="Where the daemons put their sockets.")
@click.option("--camera", metavar="SOURCE", help="/dev/video0, v4l2:by-id/… or file:PATH (video or folder).")
@click.option("--camera-fps", type=click.IntRange(1, 1000), help="Images a second.")
@click.option("--link-port", metavar="PORT", help="/dev/ttyACM0, another port, or usb:VID:PID[:SERIAL].")
@click.option("--ca-file", type=_PATH, help="CA certificate of the service, if the system does not know it.")
@click.option("--model-dir", type=_PATH, help="Folder of the model; default: the shipped one.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def provision(
    *,
    as_json: bool,
    string_stdin: bool,
    string_camera: bool,
    token_stdin: bool,
    offline_bundle: Path | None,
    root_kid: str | None,
    config: Path | None,
    **given: Any,
) -> None:
    """Make this board a device of a tenant: keys, registration, pinned trust, configuration.

    The operator's provisioning string (`palmctl cloud device invite`) says all that the service has to say:
    address, whose certificate to believe, token, the ids, and the root to pin. It is a secret as long as its
    token holds, so it is never an argument: `--string-stdin` reads it, `--string-camera` sees it.

    Keys are made here and never leave. After an interruption anywhere, run it again with the same string or
    token: it goes on where it stopped. What an existing configuration file says, and no option does, stays.

    Without a network: `--offline-bundle FILE` with a FILE that is not there yet writes the request; the
    operator answers it with `palmctl cloud bundle create`; the same command with the answer in FILE pins it.

    Exit code 0: provisioned, or the request is written. 1: refused or failed. 2: wrong usage. 3: the service
    cannot be reached. 4: this user may not write there.
    """
    path = config_path(config).absolute()
    if root_kid is not None and offline_bundle is None:
        raise click.UsageError(
            "--root-kid goes with an answer in FILE (--offline-bundle); a provisioning string names the root "
            "itself, and --server trusts the root that the service shows"
        )
    with alone_at(path), _lossless():
        if string_stdin or string_camera:
            if offline_bundle is not None or token_stdin or (string_stdin and string_camera):
                raise click.UsageError("expected one way to become a device, found several; give one of them")
            _by_string(path, given, camera=string_camera, as_json=as_json)
            return
        if offline_bundle is None and not token_stdin and given["server"] is None:
            raise click.UsageError(_WAYS)
        if offline_bundle is not None:
            if token_stdin:
                raise click.UsageError("--offline-bundle needs no token; leave --token-stdin out")
            _offline(path, given, offline_bundle.absolute(), root_kid, as_json)
            return
        for option in ("server", "device_id", "gate_id", "dbd_id"):
            _need(given, option)
        if not token_stdin:
            raise click.UsageError("the token comes on standard input only: add --token-stdin")
        _print_done(*_registered(path, given), path, as_json)


@contextmanager
def _lossless() -> Iterator[None]:
    """However the service fails a registration, it may be tried again."""
    try:
        yield
    except ServerAddressError as error:
        if is_not_permitted(error):
            raise
        raise click.UsageError(str(error)) from error
    except CloudError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise RegistrationUnanswered(
                f"{error}; nothing is lost: check this board's clock, have the string made with --ca-file "
                "(without a string give --ca-file here), then run the command again"
            ) from error
        raise RegistrationUnanswered(
            f"{error}; nothing is lost: run the same command again when the service answers"
        ) from error


def _need(given: dict[str, Any], option: str) -> None:
    if not given[option]:
        raise click.UsageError(f"Missing option '--{option.replace('_', '-')}'.")


def _registered(
    path: Path, given: dict[str, Any], invited: "Invitation | None" = None
) -> "tuple[Provisioned, DeviceConfig]":
    """Register over the network; with `invited`, by what the provisioning string says."""
    import asyncio
    import random

    from device.platform.clock import SystemClock
    from device.provisioning.online import Surroundings
    from device.provisioning.online import provision as carry_out

    around = Surroundings(SystemClock(), random.random, tell=_tell)
    settings = _settings(path, given)
    if invited is not None:  # its authority counts, whatever was configured for this address
        settings = replace(settings, cloud=CloudSection(invited.url, given["ca_file"]))
    registration = _registration(settings, passage_sensor=given["passage_sensor"])
    token = invited.token if invited is not None else _secret(marked("provisioning token"))
    root_kid = None if invited is None else invited.root_kid
    done = asyncio.run(carry_out(settings, path, registration, token, around, root_kid=root_kid))
    return done, settings


def _tell(text: str) -> None:
    """Say how far it is; a reader that has gone stops no registration half way."""
    with suppress(OSError):
        click.echo(_(text), err=True)


def _by_string(path: Path, given: dict[str, Any], *, camera: bool, as_json: bool) -> None:
    """With everything that the provisioning string says."""
    from device.provisioning.invitation import read_invitation

    for option in _IN_THE_STRING:
        if given[option]:
            raise click.UsageError(
                f"--{option.replace('_', '-')} is in the provisioning string; leave the option out, or "
                "give all parts by hand with --server and --token-stdin"
            )
    invited = read_invitation(
        _camera_string(path, given)
        if camera
        else _secret(marked("provisioning string")).removeprefix(_AS_INVITE_PRINTS_IT)
    )
    ca_file = _authority_file(path, invited.authority)
    found_there = ca_file is not None and ca_file.exists()
    if ca_file is not None:
        _write_authority(ca_file, invited.authority)
    given |= {
        "server": invited.url,
        "device_id": invited.device_id,
        "gate_id": invited.gate_id,
        "dbd_id": invited.dbd_id,
        "passage_sensor": invited.passage_sensor,
        "ca_file": ca_file,
    }
    try:
        done = _registered(path, given, invited)
    except Exception as error:
        if ca_file is not None and not found_there:
            ca_file.unlink()
        ends = datetime.fromtimestamp(invited.expires_at_s, UTC)
        if not isinstance(error, ProvisioningError) or datetime.now(UTC) <= ends:
            raise
        raise ProvisioningError(
            f"{error}. The token of this string expired at {ends:%Y-%m-%d %H:%M} UTC, by this board's clock "
            "that is past: have the operator run `palmctl cloud device invite` again"
        ) from error
    _print_done(*done, path, as_json)


def _camera_string(path: Path, given: dict[str, Any]) -> str:
    from tools.palmctl.camera_string import WAIT_S, camera_string

    camera = _base(path, given).camera
    source = _checked("--camera", values.camera_source, given["camera"] or camera.source)
    click.echo(_(f"hold the QR code before {source}; waiting {WAIT_S:.0f} s for it"), err=True)
    return camera_string(source, given["camera_fps"] or camera.fps)


def _authority_file(path: Path, packed: bytes) -> Path | None:
    """Where the authority's certificate goes, next to the configuration; each authority has its own file."""
    return path.with_name(f"service-ca-{hashlib.sha256(packed).hexdigest()[:16]}.pem") if packed else None


def _write_authority(file: Path, packed: bytes) -> None:
    from device.provisioning.invitation import authority_pem

    try:
        file.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_synced(file, authority_pem(packed) or b"", mode=0o644)
    except OSError as error:
        raise ProvisioningError(f"{file.parent} cannot be written ({error.strerror})") from error


def _print_done(done: "Provisioned", settings: DeviceConfig, path: Path, as_json: bool) -> None:
    from tools.palmctl.reset import palmd_runs

    if as_json:
        click.echo(json.dumps(_told(done, settings, path)))
    else:
        click.echo("\n".join((_lines(done, settings, path), *_fingerprint(done.keys.verdict.kid))))
    if palmd_runs(settings):  # with what was pinned before, which it may also write again
        click.echo(_("The daemons take it when they start: systemctl restart palmd palm-syncd"), err=True)


def _fingerprint(kid: str) -> list[str]:
    """The verdict key's id for an operator to read or to photograph; the code only on a terminal."""
    grouped = " ".join(kid[start : start + 4] for start in range(0, len(kid), 4))
    lines = [_row(marked("fingerprint"), grouped)]
    if is_live(sys.stdout):
        lines += qr_lines(f"palm-access:verdict-key:{kid}")
    return lines


def _offline(path: Path, given: dict[str, Any], file: Path, root_kid: str | None, as_json: bool) -> None:
    """Step 1 or step 3 of `device.provisioning.offline`, by what FILE holds."""
    from device.provisioning import offline

    content = read_plain_file(file, offline.MAX_FILE_BYTES) if file.exists() else b""
    pending = offline.pending_registration(_base(path, given))
    if pending is not None:
        for option in ("device_id", "gate_id", "dbd_id"):
            given[option] = given[option] or getattr(pending, option)
        given["passage_sensor"] = given["passage_sensor"] or pending.passage_sensor
    answered = bool(content) and offline.file_type(content) == offline.ANSWER_TYPE
    if answered:
        offline.awaited_registration(_base(path, given))
    if root_kid is not None and not answered:
        raise ProvisioningError(
            f"{file} holds no answer of the service; name the file that `palmctl cloud bundle create` wrote, "
            "or leave --root-kid out to write the request"
        )
    for option in ("device_id", "gate_id", "dbd_id"):
        _need(given, option)
    settings = _settings(path, given)
    if answered:
        kid = offline.read_root_kid(root_kid or _asked_root())
        _print_done(offline.take_answer(settings, path, content, kid), settings, path, as_json)
        return
    kept = settings.device.state_dir / offline.PENDING_NAME
    if content and not (kept.exists() and kept.read_bytes() == content):
        raise ProvisioningError(
            f"{file} holds another request and is left alone; name a FILE that is not there"
        )
    registration = _registration(settings, passage_sensor=given["passage_sensor"])
    _request(settings, path, file, registration, as_json)


def _request(
    settings: DeviceConfig, path: Path, file: Path, registration: "RegistrationFacts", as_json: bool
) -> None:
    from device.provisioning.offline import request_registration

    requested = request_registration(settings, path, registration)
    write_on_stick(file, requested.content)
    verdict = requested.keys.verdict.public
    if as_json:
        key = {"kid": verdict.kid, "alg": "ed25519", "pub_b64": verdict.b64}
        told = {
            "step": "requested",
            "device_id": registration.device_id,
            "verdict_key": key,
            "file": str(file),
        }
        click.echo(json.dumps(told | {"keys_made": requested.keys_made}))
        return
    lines = (
        _(f"{registration.device_id} has asked to be registered."),
        _row(marked("request"), str(file)),
        _row(marked("verdict key"), f"{verdict.b64}  {_('(give this to the validator)')}"),
        *_fingerprint(verdict.kid),
    )
    click.echo("\n".join(lines))
    click.echo(
        _("Next, at the service: palmctl cloud bundle create --request FILE …, and compare the fingerprint."),
        err=True,
    )
    click.echo(_("Then, here: palmctl provision --offline-bundle FILE --root-kid KID"), err=True)


def _asked_root() -> str:
    if not sys.stdin.isatty():
        raise click.UsageError("there is no terminal to ask: give --root-kid KID as the operator gave it")
    return str(click.prompt(_("Key id of the service's root, as the operator gave it"), err=True))


def _secret(what: str) -> str:
    """The token or the string, never shown and never kept."""
    if sys.stdin.isatty():
        return str(click.prompt(_(what).capitalize(), hide_input=True, err=True)).strip()
    secret = secret_line(what)
    if not secret:
        word = what.rpartition(" ")[2]
        raise click.UsageError(f"no {what} came on standard input; try: palmctl provision … < {word}.txt")
    return secret


def _settings(path: Path, given: dict[str, Any]) -> DeviceConfig:
    """The configuration to write: the existing file's or the defaults, with the options put in."""
    from device.provisioning.online import check_unused

    found = _base(path, given)
    check_unused(found.device.state_dir)
    # However this ends: what root has made by then is the daemons'.
    click.get_current_context().call_on_close(partial(hand_over, found.device.state_dir))
    cloud = found.cloud
    if given["server"]:
        url = _checked("--server", values.service_url, given["server"])
        ca_file = _path_of("--ca-file", given["ca_file"])
        if ca_file is None and cloud is not None and cloud.url == url:
            ca_file = cloud.ca_file
        cloud = CloudSection(url, ca_file)
    return replace(
        found,
        device=DeviceSection(
            _checked("--device-id", values.device_id, given["device_id"]),
            _checked("--gate-id", values.name, given["gate_id"]),
            _checked("--dbd-id", values.name, given["dbd_id"]),
            found.device.state_dir,
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
        cloud=cloud,
        model=replace(found.model, dir=_path_of("--model-dir", given["model_dir"]) or found.model.dir),
    )


def _base(path: Path, given: dict[str, Any]) -> DeviceConfig:
    """The existing file, else the defaults; with the state directory that the options name."""
    if path.exists():
        found = load_config(path)
    else:
        camera, link = CameraSection("/dev/video0"), LinkSection("/dev/ttyACM0")
        found = DeviceConfig(DeviceSection("", "", ""), camera, link)
    state_dir = _path_of("--state-dir", given["state_dir"] or found.device.state_dir)
    return replace(found, device=replace(found.device, state_dir=state_dir))


def _path_of(option: str, given: Path | None) -> Any:
    return given and _checked(option, values.path, str(given.absolute()))


def _checked(option: str, parser: values.Parser, value: str) -> Any:
    """The option's value as the configuration takes it."""
    try:
        return parser(value, Path.cwd())
    except values.WrongValue as error:
        raise click.UsageError(f"{option}: expected {parser.expected}, found {error}") from None


def _registration(settings: DeviceConfig, *, passage_sensor: bool) -> "RegistrationFacts":
    from device.provisioning.online import RegistrationFacts
    from models.manifest import load_manifest, shipped_model_dir

    return RegistrationFacts(
        device_id=settings.device.id,
        gate_id=settings.device.gate_id,
        dbd_id=settings.device.dbd_id,
        passage_sensor=passage_sensor,
        app_version=version(APP_PACKAGE),
        model_id=load_manifest(settings.model.dir or shipped_model_dir()).model_id,
    )


def _told(done: "Provisioned", settings: DeviceConfig, path: Path) -> dict[str, Any]:
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


def _lines(done: "Provisioned", settings: DeviceConfig, path: Path) -> str:
    """The result for a person."""
    told = _told(done, settings, path)
    if settings.cloud is None:
        none = _("none yet; add one at the service, then do all three steps again: without one no mail comes")
    else:
        none = _("none yet; add one at the service and it comes by itself")
    validators = ", ".join(told["dbd_kids"]) or none
    key = f"{told['verdict_key']['pub_b64']}  {_('(give this to the validator)')}"
    return "\n".join(
        (
            _(f"{told['device_id']} is a device of tenant {told['tenant_id']}."),
            _row(marked("verdict key"), key),
            _row(marked("service root"), told["root_kid"]),
            _row(marked("validator keys"), validators),
            _row(marked("configuration"), told["config"]),
            _row(marked("state"), told["state_dir"]),
        )
    )


def _row(name: str, text: str) -> str:
    return f"  {_(name):<16}{text}"
