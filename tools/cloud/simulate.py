"""`palmctl cloud simulate`: gates without hardware, for developers of back offices; test mode only."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import closing, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tools.cloud.simulation.errors import GateWiped, SimulationError
from tools.cloud.store import (
    Command,
    echo,
    environment_of,
    in_json,
    of_environment,
    on_data,
    on_this_store,
    reported,
)
from tools.palmctl.contract_name import ContractName
from tools.palmctl.groups import WholeHelpGroup

if TYPE_CHECKING:
    from cloud_client.reference_server.domain.tenancy.callers import Environment
    from device.enrolment.session import EnrolmentSession
    from tools.cloud.simulation.gate import SimulatedGate

_FOLDER = click.option(
    "--folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where simulated gates are kept, with their keys.",
)
_URL = click.option("--url", required=True, help="Where the server is: http://127.0.0.1:8710.")


@click.group(cls=WholeHelpGroup)
def simulate() -> None:
    """Simulated gates, which speak to a running server as devices do: no camera, no cable, test mode only."""


class PrintingCommand(click.Command):
    """A command whose function returns what is printed, so that the page can call the function."""

    def invoke(self, ctx: click.Context) -> None:
        """Call the function and print its result."""
        echo(super().invoke(ctx), as_json=ctx.params["as_json"])


def _on_gate(work: Callable[..., Awaitable[dict[str, Any]]]) -> Command:
    """The function of a command on one gate of the folder."""

    @_FOLDER
    @click.option("--device-id", required=True, metavar="D")
    @in_json
    @reported
    @wraps(work)
    def run(*, folder: Path, device_id: str, as_json: bool, **given: Any) -> dict[str, Any]:
        from tools.cloud.simulation.gate import SimulatedGate, place_of

        async def at_gate() -> dict[str, Any]:
            async with SimulatedGate(place_of(folder, device_id)) as gate:
                return await gate.unless_revoked(work(gate, **given))

        del as_json  # for PrintingCommand
        return asyncio.run(at_gate())

    return run


def _test_only(environment: "Environment") -> None:
    if environment.livemode:
        raise click.UsageError("--mode: gates are simulated in test mode only; expected test, found live")


@simulate.command("gate", cls=PrintingCommand)
@_URL
@click.option("--device-id", required=True, type=ContractName(), metavar="D")
@click.option("--gate-id", required=True, type=ContractName(), metavar="G")
@click.option("--passage-sensor", is_flag=True, help="Its validator reports whether the person passed.")
@click.option(
    "--model-id",
    type=ContractName(),
    default="simulated-1",
    show_default=True,
    metavar="ID",
    help="As the gallery's.",
)
@_FOLDER
@of_environment
@on_data
def new_gate(
    *,
    data: Path,
    database: str | None,
    as_json: bool,
    environment: "Environment",
    url: str,
    device_id: str,
    gate_id: str,
    passage_sensor: bool,
    model_id: str,
    folder: Path,
) -> dict[str, Any]:
    """Make a gate and its validator, and register both; the folder keeps their keys."""
    from cloud_client.reference_server.ops import commands as operator
    from device.provisioning.online import RegistrationFacts
    from tools.cloud.simulation.gate import APP, make_gate, validator_id

    del as_json  # for PrintingCommand
    _test_only(environment)
    dbd_id = validator_id(device_id)
    made = on_this_store(
        data, database, lambda tx, _, now_ms: operator.create_token(tx, environment, device_id, 3600, now_ms)
    )

    def register_validator(pub_b64: str) -> None:
        on_this_store(
            data, database, lambda tx, _, now_ms: operator.add_dbd(tx, environment, dbd_id, pub_b64, now_ms)
        )

    facts = RegistrationFacts(device_id, gate_id, dbd_id, passage_sensor, APP.version, model_id)
    make_gate(folder, facts, made["token"], register_validator, url=url, data=data, database=database)
    return {"device_id": device_id, "gate_id": gate_id, "dbd_id": dbd_id, "folder": str(folder)}


@simulate.command("run")
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@reported
def run_gates(*, folder: Path, as_json: bool) -> None:
    """Let every gate of the folder live until Ctrl-C: it follows the gallery and reports each minute."""
    from tools.cloud.simulation.gate import SimulatedGate
    from tools.cloud.simulation.living import live
    from tools.cloud.simulation.state import gates_of

    def tell(device_id: str, event: str, text: str) -> None:
        told = {"device_id": device_id, "event": event, "text": text}
        click.echo(json.dumps(told, ensure_ascii=False) if as_json else f"{device_id}: {text}")

    async def all_gates() -> None:
        gates = []
        for place in gates_of(folder):
            try:
                gates.append(SimulatedGate(place))
            except GateWiped as error:
                tell(place.stem, "wiped", str(error))
        if not gates:
            raise SimulationError(f"no gate lives in {folder}; make one with: palmctl cloud simulate gate")
        await asyncio.gather(*(live(gate, tell) for gate in gates))

    asyncio.run(all_gates())


@simulate.command("page")
@_URL
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8713, show_default=True, help="0: a free one."
)
@_FOLDER
@of_environment
@on_data
def page(
    *,
    data: Path,
    database: str | None,
    as_json: bool,
    environment: "Environment",
    url: str,
    port: int,
    folder: Path,
) -> None:
    """Every gate of the folder lives, and each command is a button of a page on this machine.

    The page is for this machine only, and its address is a secret. It shows the tenant's gates, its newest
    people, and what each button does, as the command that does the same.
    """
    from tools.cloud.simulation.page import GateSite, SimulationPage
    from tools.palmctl.pages.server import LocalPage

    _test_only(environment)
    site = GateSite(data, database, environment.tenant_id, url, folder)
    buttons = {name: each for name, each in simulate.commands.items() if isinstance(each, PrintingCommand)}
    with SimulationPage(site, buttons) as shown:
        try:
            local = LocalPage(shown.routes(), port=port)
        except OSError as error:
            what = f"port {port} cannot be used: {error.strerror}; try --port 0"
            raise click.ClickException(what) from error
        click.echo(json.dumps({"url": local.url}) if as_json else f"{local.url}\nCtrl-C ends it.")
        with closing(local):
            asyncio.run(shown.live())


@simulate.command("sync", cls=PrintingCommand)
@_on_gate
async def sync(gate: "SimulatedGate") -> dict[str, Any]:
    """One contact with the server: take the gallery, report, hand in what it lacks, obey a revocation."""
    try:
        await gate.obey()
    except GateWiped:
        return {"device_id": gate.device_id, "wiped": gate.state.wiped}
    await gate.follow(0)
    await gate.report()
    palms = gate.state.palms
    held = {"epoch": palms.epoch, "seq": palms.seq, "palms": len(palms.templates)}
    return {"device_id": gate.device_id, "gallery": held}


@simulate.command("pass", cls=PrintingCommand)
@click.option("--subject-id", metavar="S", help="An enrolled person; a stranger where the gate knows none.")
@click.option("--stranger", is_flag=True, help="A palm that is not in the gallery.")
@click.option("--poor-capture", is_flag=True, help="No good picture was had: no decision about a person.")
@click.option("--spoof", is_flag=True, help="Not a living hand.")
@click.option("--ago-s", type=click.IntRange(0, 30 * 24 * 3600), default=0, metavar="N", help="Decided then.")
@click.option("--late-s", type=click.IntRange(1, 3600), metavar="N", help="The decision comes N s later.")
@click.option("--lost-decision", is_flag=True, help="The validator's decision never comes.")
@click.option(
    "--outcome",
    type=click.Choice(["LIBERAR", "BLOQUEAR"]),
    help="The validator's.  [default: by the verdict]",
)
@_on_gate
async def one_pass(
    gate: "SimulatedGate",
    *,
    subject_id: str | None,
    stranger: bool,
    poor_capture: bool,
    spoof: bool,
    ago_s: int,
    late_s: int | None,
    lost_decision: bool,
    outcome: str | None,
) -> dict[str, Any]:
    """One person at the gate: a signed verdict, and the validator's decision, uploaded.

    A person who is not enrolled, or is blocked, gets the verdict of a stranger, as at a real gate. Without a
    server the gate decides all the same, and hands the verdict in with its next command.
    """
    from cloud_client.errors import CloudUnreachable
    from link1.objects import VerdictResult
    from link1.signed import object_ref
    from tools.cloud.simulation.gate import now_ms

    said: dict[VerdictResult, object] = {
        VerdictResult.MATCH: subject_id,
        VerdictResult.NO_MATCH: stranger,
        VerdictResult.POOR_CAPTURE: poor_capture,
        VerdictResult.SPOOF: spoof,
    }
    results = [result for result, given in said.items() if given]
    if len(results) != 1:
        raise click.UsageError("expected one of --subject-id, --stranger, --poor-capture and --spoof")
    if lost_decision and (late_s or outcome):
        raise click.UsageError("a decision that is lost has no --outcome and is not late")
    subject_ref = None if subject_id is None else _reference(gate, subject_id)
    with suppress(CloudUnreachable):
        await gate.follow(0)
    verdict, signed = gate.decide(results[0], subject_ref, now_ms() - ago_s * 1000)
    verdict_ref = object_ref(signed)
    if late_s is not None:
        gate.hand_over(signed)
        with suppress(CloudUnreachable):
            await gate.deliver()
        await asyncio.sleep(late_s)
    decision = None if lost_decision else gate.answered(verdict, verdict_ref, outcome)
    gate.hand_over(signed, decision, unknown=lost_decision)
    with suppress(CloudUnreachable):
        await gate.deliver()
    return {
        "device_id": gate.device_id,
        "verdict_id": verdict_ref,
        "verdict_seq": verdict.verdict_seq,
        "decision": str(verdict.decision),
        "result": str(verdict.result),
        "outcome": None if decision is None else decision["decision_obj"]["outcome"],
        "delivered": not gate.state.unsent,
    }


def _reference(gate: "SimulatedGate", subject_id: str) -> str:
    """The subject_ref of a person, looked up in the server's store as its operator may."""
    from cloud_client.reference_server.ops import commands as operator

    state = gate.state
    environment = environment_of(gate.tenant_id, "test")
    return str(
        on_this_store(
            Path(state.data),
            state.database,
            lambda tx, _, __: {"ref": operator.reference_of(tx, environment, subject_id)},
        )["ref"]
    )


@simulate.command("passage", cls=PrintingCommand)
@click.option("--not-passed", is_flag=True, help="The person did not go through.")
@_on_gate
async def passage(gate: "SimulatedGate", *, not_passed: bool) -> dict[str, Any]:
    """The passage of the gate's last verdict, from a validator with a turn sensor."""
    gate.turn(passed=not not_passed)
    await gate.deliver()
    return {"device_id": gate.device_id, "verdict_id": gate.state.last_ref, "passed": not not_passed}


@simulate.command("enrol", cls=PrintingCommand)
@click.option("--qr-payload", metavar="TEXT", help="What the QR code says, as the session's answer has it.")
@click.option("--short-code", metavar="C")
@click.option("--fail", is_flag=True, help="No capture was good enough.")
@click.option("--seed", type=click.IntRange(min=0), metavar="N", help="The same number, the same palms.")
@_on_gate
async def enrol(
    gate: "SimulatedGate", *, qr_payload: str | None, short_code: str | None, fail: bool, seed: int | None
) -> dict[str, Any]:
    """Finish an enrolment session, consents included, with generated palms.

    A palm is a unit vector of 512 numbers from a seeded generator; no picture is made. Different sessions get
    different palms; --seed gives two people the same ones, which the server holds for review.
    """
    session = await _session(gate, qr_payload, short_code)
    return {"device_id": gate.device_id} | await gate.enrol(session, seed, fails=fail)


async def _session(
    gate: "SimulatedGate", qr_payload: str | None, short_code: str | None
) -> "EnrolmentSession":
    from device.enrolment.session import normal_short_code, parse_qr

    match qr_payload, short_code:
        case str(payload), None:
            session = parse_qr(payload)
            if session is None:
                raise click.UsageError("--qr-payload: expected SVC1:ENR:SESSION_ID:TOKEN")
            return session
        case None, str(text):
            code = normal_short_code(text)
            if code is None:
                raise click.UsageError("--short-code: expected eight characters, like 4F7K-9QRT")
            return await gate.redeem(code)
        case _:
            raise click.UsageError("expected one of --qr-payload and --short-code")


@simulate.command("mail", cls=PrintingCommand)
@_on_gate
async def mail(gate: "SimulatedGate") -> dict[str, Any]:
    """A sealed report, as a gate without a network gives its validator: the body of a POST to its outbox."""
    return {"records": [gate.mail()]}
