"""`palmctl dbd`: a validator for the other end of the cable."""

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tools.kit.commands import options
from tools.palmctl.contract_name import ContractName
from tools.palmctl.finite_range import FiniteRange
from tools.palmctl.groups import WholeHelpGroup

if TYPE_CHECKING:
    from link1.keys import SigningKey
    from tools.kit.simulate.mail_carrier import OfficeAccess
    from tools.kit.simulate.simulator import Simulator

FAULTS = (
    *("drop-decision", "late-decision", "duplicate-decision", "wrong-signature", "wrong-ref"),
    *("contradicting-decision", "no-passage", "reset-after-verdict", "replay-request"),
    *("changed-request", "late-cancel"),
)
"""The words of tools.kit.simulate.faults.Fault, here again so that --help imports nothing."""


@click.group(cls=WholeHelpGroup)
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
@options.baud
@click.option("--device-pub-b64", required=True, help="The device's verdict key.")
@click.option(
    "--key-file",
    required=True,
    type=click.Path(path_type=Path),
    help="The validator's key: 32 raw bytes or their base64. Its counters are kept in a file next to it.",
)
@click.option("--generate", is_flag=True, help="Make the key file when there is none.")
@click.option(
    "--forgot", is_flag=True, help="What the gate's validator before answered is not known: say no `unknown`."
)
@click.option("--dbd-id", required=True, type=ContractName(), help="Id of this validator.")
@click.option("--gate-id", required=True, type=ContractName(), help="Gate that both ends stand at.")
@click.option("--passages", type=click.IntRange(min=1), help="End after so many; else until interrupted.")
@click.option(
    "--policy", default="accept-all", show_default=True, help="accept-all, or a JSON file of rules."
)
@click.option(
    "--fault",
    "faults",
    multiple=True,
    type=click.Choice(FAULTS),
    help="Do this wrong at every passage; of several, each in its turn.",
)
@click.option("--passage-sensor", is_flag=True, help="Report that the turnstile was turned.")
@click.option("--ttl-ms", type=click.IntRange(500, 60_000), default=15_000, show_default=True)
@click.option(
    "--server",
    help="Carry mail too: URL of the service whose partner API has the device's inbox and outbox.",
)
@click.option(
    "--api-key-stdin",
    is_flag=True,
    help="Read the partner API key for --server (devices:read, devices:write) from stdin.",
)
@click.option(
    "--timeout-s",
    type=FiniteRange(min=0.1),
    help="End when not done by then: exit 1, or 3 when no device was met.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
def simulate(
    *,
    port: str,
    baud: int,
    device_pub_b64: str,
    key_file: Path,
    generate: bool,
    forgot: bool,
    dbd_id: str,
    gate_id: str,
    passages: int | None,
    policy: str,
    faults: tuple[str, ...],
    passage_sensor: bool,
    ttl_ms: int,
    server: str | None,
    api_key_stdin: bool,
    timeout_s: float | None,
    as_json: bool,
) -> None:
    """Be a validator: ask for palms, check verdicts, decide, report one line a passage."""
    from link1.errors import FormatError
    from link1.keys import PublicKey
    from tools.kit.simulate.faults import Fault, in_turn
    from tools.kit.simulate.files import used_alone
    from tools.kit.simulate.policy import load_policy
    from tools.kit.simulate.simulator import Simulator, SimulatorSetup

    try:
        device_key = PublicKey.from_b64(device_pub_b64)
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="--device-pub-b64") from None
    try:
        decide, faults_of_policy = load_policy(policy)
    except (FormatError, OSError) as error:
        raise click.BadParameter(str(error), param_hint="--policy") from None
    setup = SimulatorSetup(
        port=port,
        baud=baud,
        device_key=device_key,
        key_file=key_file,
        key=_load_key(key_file, generate and not key_file.exists()),
        dbd_id=dbd_id,
        gate_id=gate_id,
        decide=decide,
        passages=passages,
        passage_sensor=passage_sensor,
        ttl_ms=ttl_ms,
        forgot=forgot,
        office=_office(server, api_key_stdin),
        fault_of=in_turn([Fault(fault) for fault in faults], faults_of_policy),
    )
    report = _print_json if as_json else _print_text
    try:
        with used_alone(key_file):
            simulator = Simulator(setup, report)
            done = asyncio.run(_run(simulator, timeout_s))
    except FormatError as error:
        raise click.ClickException(str(error)) from None
    if not done and (passages is not None or (timeout_s is not None and not simulator.met_device)):
        what = "no device was met" if passages is None else f"ended before {passages} passages were decided"
        click.echo(f"palmctl: {what}", err=True)
        sys.exit(1 if simulator.met_device else 3)


@dbd.command()
@click.option("--port", help="Serial port or pty that the other end is at.")
@options.baud
@click.option("--as-device", is_flag=True, help="Test a validator; else a device is tested.")
@click.option(
    "--peer-pub-b64", help="The other end's public key: a device's verdict key, or a validator's key."
)
@click.option(
    "--key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="The key that this test signs with and the other end has pinned. Counters are kept next to it.",
)
@click.option("--dbd-id", type=ContractName(), help="Id of the validator.")
@click.option("--gate-id", type=ContractName(), help="Gate that both ends stand at.")
@click.option("--device-id", type=ContractName(), help="Id of the device; needed with --as-device.")
@click.option("--passage-sensor", is_flag=True, help="The gate was registered with a turn sensor.")
@click.option("--hand", "operator", is_flag=True, help="Ask a person to show a palm, three times in all.")
@click.option("--hand-source", help="A program that shows hands: called with show and with away.")
@click.option("--hook", help="A program that does what the cable cannot: called with restart, cancel, …")
@click.option("--ask", is_flag=True, help="Ask a person to do that.")
@click.option(
    "--revoked-key-file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="A key of ours that was pinned at the other end and revoked there.",
)
@click.option("--only", multiple=True, metavar="ID", help="Rules whose id begins so; may be repeated.")
@click.option("--skip", multiple=True, metavar="ID", help="Not these; may be repeated.")
@click.option(
    "--wait-s",
    type=FiniteRange(1, 600),
    default=30.0,
    show_default=True,
    help="For a hand or a request.",
)
@click.option("--list", "list_rules", is_flag=True, help="Print the rules and try nothing.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line; the last one is the summary.")
def conform(  # noqa: C901 (options, one after the other)
    *,
    port: str | None,
    baud: int,
    as_device: bool,
    peer_pub_b64: str | None,
    key_file: Path | None,
    dbd_id: str | None,
    gate_id: str | None,
    device_id: str | None,
    passage_sensor: bool,
    operator: bool,
    hand_source: str | None,
    hook: str | None,
    ask: bool,
    revoked_key_file: Path | None,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    wait_s: float,
    list_rules: bool,
    as_json: bool,
) -> None:
    """Test another implementation's end of the cable, rule by rule.

    Exit code 0: every rule passed. 1: one failed. 2: wrong usage. 3: no answer. 4: none failed and some
    could not be tried; each untried rule says what it needs.
    """
    from link1.envelope import Role
    from link1.errors import FormatError, TransportError
    from link1.keys import PublicKey
    from tools.kit.conform import command
    from tools.kit.conform.end_under_test import Setup
    from tools.kit.conform.hands import HandError, OperatorHand, OperatorHook, ProgramHand, ProgramHook
    from tools.kit.conform.runner import NobodyThere, chosen, rules_for
    from tools.kit.ports import open_port
    from tools.kit.simulate.files import used_alone

    ours = Role.DEVICE if as_device else Role.VALIDATOR
    every_rule = rules_for(ours.peer)
    rules = chosen(every_rule, only, skip)
    if not rules:
        raise click.UsageError("no rule begins so; see --list")
    if list_rules:
        for rule in command.listing(rules):
            click.echo(
                json.dumps(rule, ensure_ascii=False) if as_json else f"{rule['id']:32} {rule['section']}"
            )
        return
    own_id = device_id if as_device else dbd_id
    needed = {
        "--port": port,
        "--peer-pub-b64": peer_pub_b64,
        "--key-file": key_file,
        "--gate-id": gate_id,
        "--device-id" if as_device else "--dbd-id": own_id,
    }
    absent = [name for name, value in needed.items() if value is None]
    if port is None or peer_pub_b64 is None or key_file is None or gate_id is None or own_id is None:
        raise click.UsageError(f"give {', '.join(absent)}")
    try:
        peer_key = PublicKey.from_b64(peer_pub_b64)
    except FormatError as error:
        raise click.BadParameter(str(error), param_hint="--peer-pub-b64") from None
    hand: OperatorHand | ProgramHand | None = None
    if hand_source is not None:
        hand = ProgramHand(hand_source)
    elif operator:
        hand = OperatorHand(
            lambda text: click.echo(text, err=True),
            lambda text: click.pause(text, err=True),
        )
    deeds: OperatorHook | ProgramHook | None = None
    if hook is not None:
        deeds = ProgramHook(hook)
    elif ask:
        deeds = OperatorHook(lambda text: click.confirm(text, default=True, err=True))
    setup = Setup(
        role=ours,
        own_id=own_id,
        gate_id=gate_id,
        key=_load_key(key_file, False),
        peer_key=peer_key,
        peer_id=dbd_id if as_device else device_id,
        passage_sensor=passage_sensor,
        hand=hand,
        hook=deeds,
        revoked=None if revoked_key_file is None else _load_key(revoked_key_file, False),
        wait_ms=int(wait_s * 1000),
    )
    line = command.as_json if as_json else command.as_text
    try:
        with used_alone(key_file):
            tally = command.conform(
                setup,
                lambda: open_port(port, baud=baud),
                key_file,
                rules,
                lambda finding: click.echo(line(finding)),
            )
    except (NobodyThere, TransportError) as error:
        # A TransportError names the port itself.
        click.echo(f"palmctl: {f'{port}: ' if isinstance(error, NobodyThere) else ''}{error}", err=True)
        sys.exit(3)
    except (FormatError, HandError) as error:
        raise click.ClickException(str(error)) from None
    summary = command.summary(tally, len(every_rule) - len(rules))
    click.echo(json.dumps({"event": "summary"} | summary) if as_json else _counts(summary))
    sys.exit(command.exit_code(tally))


def _counts(summary: dict[str, int]) -> str:
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in summary.items())


def _office(server: str | None, api_key_stdin: bool) -> "OfficeAccess | None":
    if server is None and not api_key_stdin:
        return None
    from cloud_client.client import ServerAddress
    from cloud_client.errors import ServerAddressError
    from tools.kit.simulate.mail_carrier import OfficeAccess

    if server is None or not api_key_stdin:
        raise click.UsageError("--server and --api-key-stdin belong together")
    from tools.palmctl.standard_input import secret_line

    try:
        url = ServerAddress.parse(server).origin
    except ServerAddressError as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    api_key = secret_line("API key")
    if not api_key or not api_key.isascii():
        raise click.UsageError("stdin holds no API key")
    return OfficeAccess(url, api_key)


def _load_key(path: Path, generate: bool) -> "SigningKey":
    from link1.errors import FormatError
    from tools.kit.simulate.files import create_key, read_key

    try:
        return create_key(path) if generate else read_key(path)
    except FileNotFoundError:
        raise click.ClickException(f"{path} does not exist; --generate makes a new key there") from None
    except FileExistsError:
        raise click.ClickException(f"{path} exists already and is not replaced") from None
    except FormatError as error:
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
