"""`palmctl dbd`: a validator for the other end of the cable."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from link1.keys import SigningKey
    from tools.validator_simulator import Simulator


@click.group()
def dbd() -> None:
    """A validator (DBD) for the other end of the cable."""


@dbd.command()
@click.option("--key-file", required=True, type=click.Path(path_type=Path), help="The validator's key.")
@click.option("--generate", is_flag=True, help="Make a new key there first; never replaces one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def key(key_file: Path, generate: bool, as_json: bool) -> None:
    """Print kid and public key of a validator key file."""
    public = _load_key(key_file, generate).public
    if as_json:
        click.echo(json.dumps({"kid": public.kid, "pub_b64": public.b64}))
    else:
        click.echo(f"kid      {public.kid}\npub_b64  {public.b64}")


@dbd.command()
@click.option("--port", required=True, help="Serial port or pty that the device is at.")
@click.option("--device-pub-b64", required=True, help="The device's verdict key.")
@click.option(
    "--key-file",
    required=True,
    type=click.Path(path_type=Path),
    help="The validator's key: 32 raw bytes or their base64. Its counters are kept beside it.",
)
@click.option("--generate", is_flag=True, help="Make the key file when there is none.")
@click.option("--dbd-id", required=True, help="Id of this validator.")
@click.option("--gate-id", required=True, help="Gate that both ends stand at.")
@click.option("--passages", type=click.IntRange(min=1), help="End after so many; else until interrupted.")
@click.option(
    "--policy", default="accept-all", show_default=True, help="accept-all, or a JSON file of rules."
)
@click.option("--passage-sensor", is_flag=True, help="Report that the turnstile was turned.")
@click.option("--ttl-ms", type=click.IntRange(500, 60_000), default=15_000, show_default=True)
@click.option(
    "--timeout-s",
    type=click.FloatRange(min=0.1),
    help="End when not done by then: exit 1, or 3 when no device was met.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def simulate(
    *,
    port: str,
    device_pub_b64: str,
    key_file: Path,
    generate: bool,
    dbd_id: str,
    gate_id: str,
    passages: int | None,
    policy: str,
    passage_sensor: bool,
    ttl_ms: int,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Be a validator: ask for palms, check verdicts, decide, report one line a passage."""
    from link1.errors import FormatError
    from link1.keys import PublicKey
    from tools.validator_policy import load_policy
    from tools.validator_simulator import Simulator, SimulatorSetup

    try:
        device_key = PublicKey.from_b64(device_pub_b64)
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="--device-pub-b64") from None
    try:
        decide = load_policy(policy)
    except (FormatError, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--policy") from None
    setup = SimulatorSetup(
        port=port,
        device_key=device_key,
        key_file=key_file,
        key=_load_key(key_file, generate and not key_file.exists()),
        dbd_id=dbd_id,
        gate_id=gate_id,
        decide=decide,
        passages=passages,
        passage_sensor=passage_sensor,
        ttl_ms=ttl_ms,
    )
    report = _print_json if as_json else _print_text
    try:
        simulator = Simulator(setup, report)
        done = asyncio.run(_run(simulator, timeout_s))
    except (FormatError, OSError) as error:
        raise click.ClickException(str(error)) from None
    if passages is not None and not done:
        click.echo(f"ended before {passages} passages were decided", err=True)
        sys.exit(1 if simulator.met_device else 3)


def _load_key(path: Path, generate: bool) -> "SigningKey":
    from link1.errors import FormatError
    from tools.validator_files import create_key, read_key

    try:
        return create_key(path) if generate else read_key(path)
    except FileNotFoundError:
        raise click.ClickException(f"{path} does not exist; --generate makes a new key there") from None
    except FileExistsError:
        raise click.ClickException(f"{path} exists already and is not replaced") from None
    except (FormatError, OSError) as error:
        raise click.ClickException(str(error)) from None


async def _run(simulator: "Simulator", timeout_s: float | None) -> bool:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, simulator.stop)
    if timeout_s is not None:
        loop.call_later(timeout_s, simulator.stop)
    return await simulator.run()


def _print_json(line: dict[str, Any]) -> None:
    click.echo(json.dumps(line))


def _print_text(line: dict[str, Any]) -> None:
    event = line.get("event")
    if event is None:
        who = f" {line['subject_ref']}" if "subject_ref" in line else ""
        turned = " turned" if line.get("passed") else ""
        click.echo(
            f"{line['decision']:8} {line['result']:15} {line['outcome']} ({line['reason']}){turned} "
            f"{line['latency_ms']:.0f} ms  verdict {line['verdict_seq']} {line['verdict_ref'][:8]}{who}"
        )
    else:
        rest = " ".join(f"{name}={value}" for name, value in line.items() if name != "event")
        click.echo(f"{event}: {rest}", err=True)
