"""`palmctl cloud simulate`: gates without hardware, for developers of back offices; test mode only."""

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tools.cloud.simulation.errors import GateWiped, SimulationError
from tools.cloud.store import Command, environment_of, of_environment, on_data, on_this_store, reported
from tools.palmctl.whole_help import WholeHelpGroup

if TYPE_CHECKING:
    from device.enrolment.session import EnrolmentSession
    from tools.cloud.simulation.gate import SimulatedGate

_REPORT_EVERY_S = 60
_STATUS_EVERY_S = 5
"""A device asks once a minute; a developer waits for what a revocation does."""
_AFTER_FAILURE_S = 5
_POLL_AGAIN_S = 1
"""Another command of the same gate ends its long poll at once."""

_FOLDER = click.option(
    "--folder",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Where simulated gates are kept, with their keys.",
)
_JSON = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


@click.group(cls=WholeHelpGroup)
def simulate() -> None:
    """Simulated gates, which speak to a running server as devices do: no camera, no cable, test mode only."""


def _on_gate(work: Callable[..., Awaitable[dict[str, Any]]]) -> Command:
    """A command on one gate of the folder, whose result is printed."""

    @_FOLDER
    @click.option("--device-id", required=True, metavar="D")
    @_JSON
    @reported
    @wraps(work)
    def run(*, folder: Path, device_id: str, as_json: bool, **given: Any) -> None:
        from tools.cloud.simulation.gate import SimulatedGate, place_of

        async def at_gate() -> None:
            async with SimulatedGate(place_of(folder, device_id)) as gate:

                async def answered() -> None:
                    _print(await work(gate, **given), as_json)

                await gate.unless_revoked(answered())

        asyncio.run(at_gate())

    return run


def _print(printed: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(printed, ensure_ascii=False))
        return
    for name, value in printed.items():
        click.echo(f"{name}: {value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}")


@simulate.command("gate")
@click.option("--url", required=True, help="Where the server is: http://127.0.0.1:8710.")
@click.option("--device-id", required=True, metavar="D")
@click.option("--gate-id", required=True, metavar="G")
@click.option("--passage-sensor", is_flag=True, help="Its validator reports whether the person passed.")
@click.option("--model-id", default="simulated-1", show_default=True, metavar="ID", help="As the gallery's.")
@_FOLDER
@of_environment
@on_data
@reported
def new_gate(
    *,
    data: Path,
    database: str | None,
    as_json: bool,
    tenant: str,
    mode: str,
    url: str,
    device_id: str,
    gate_id: str,
    passage_sensor: bool,
    model_id: str,
    folder: Path,
) -> None:
    """Make a gate and its validator, and register both; the folder keeps their keys."""
    from cloud_client.contract import NAME_64
    from cloud_client.reference_server.ops import commands as operator
    from device.provisioning.online import RegistrationFacts
    from tools.cloud.simulation.gate import APP, make_gate, validator_id

    if mode != "test":
        raise click.UsageError("--mode: gates are simulated in test mode only; expected test, found live")
    for option, name in (("--device-id", device_id), ("--gate-id", gate_id), ("--model-id", model_id)):
        if not NAME_64.fullmatch(name):
            raise click.UsageError(f"{option}: expected 1 to 64 of the characters A-Z a-z 0-9 . _ : -")
    environment, dbd_id = environment_of(tenant, mode), validator_id(device_id)
    made = on_this_store(
        data,
        database,
        lambda tx, _, now_ms: operator.create_token(tx, environment, device_id, 3600, now_ms),
    )

    def register_validator(pub_b64: str) -> None:
        on_this_store(
            data,
            database,
            lambda tx, _, now_ms: operator.add_dbd(tx, environment, dbd_id, pub_b64, now_ms),
        )

    facts = RegistrationFacts(device_id, gate_id, dbd_id, passage_sensor, APP.version, model_id)
    make_gate(folder, facts, made["token"], register_validator, url=url, data=data, database=database)
    printed = {"device_id": device_id, "gate_id": gate_id, "dbd_id": dbd_id, "folder": str(folder)}
    _print(printed, as_json)


@simulate.command("run")
@_FOLDER
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each event.")
@reported
def run_gates(*, folder: Path, as_json: bool) -> None:
    """Let every gate of the folder live until Ctrl-C: it follows the gallery and reports each minute."""
    from tools.cloud.simulation.gate import SimulatedGate
    from tools.cloud.simulation.state import gates_of

    async def all_gates() -> None:
        gates = []
        for place in gates_of(folder):
            try:
                gates.append(SimulatedGate(place))
            except GateWiped as error:
                _tell(place.stem, "wiped", str(error), as_json)
        if not gates:
            raise SimulationError(f"no gate lives in {folder}; make one with: palmctl cloud simulate gate")
        await asyncio.gather(*(_live(gate, as_json) for gate in gates))

    asyncio.run(all_gates())


def _tell(device_id: str, event: str, text: str, as_json: bool) -> None:
    told = {"device_id": device_id, "event": event, "text": text}
    click.echo(json.dumps(told, ensure_ascii=False) if as_json else f"{device_id}: {text}")


async def _live(gate: "SimulatedGate", as_json: bool) -> None:
    """One gate, until its wipe."""
    from cloud_client.contract import MAX_WAIT_S
    from cloud_client.errors import CloudError
    from gallery.errors import GalleryError

    def tell(event: str, text: str) -> None:
        _tell(gate.device_id, event, text, as_json)

    async def follow() -> None:
        before = gate.state.palms.seq
        await gate.follow(MAX_WAIT_S)
        palms = gate.state.palms
        if palms.seq != before:
            tell("gallery", f"gallery at {palms.epoch}.{palms.seq}, {len(palms.templates)} palms")

    async def every(seconds: float, work: Callable[[], Awaitable[None]]) -> None:
        while True:
            begun = time.monotonic()
            try:
                await gate.unless_revoked(work())
            except GateWiped:
                raise
            except (CloudError, GalleryError, SimulationError) as error:
                tell("failed", str(error))
                await asyncio.sleep(_AFTER_FAILURE_S)
            await asyncio.sleep(max(0.0, begun + seconds - time.monotonic()))

    async with gate:
        tell("lives", "lives")
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(every(_POLL_AGAIN_S, follow))
                tasks.create_task(every(_REPORT_EVERY_S, gate.report))
                tasks.create_task(every(_STATUS_EVERY_S, gate.obey))
        except* GateWiped as wiped:
            tell("wiped", str(wiped.exceptions[0]))


@simulate.command("sync")
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


@simulate.command("pass")
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
    verdict = gate.decide(results[0], subject_ref, now_ms() - ago_s * 1000)
    if late_s is not None:
        gate.hand_over()
        with suppress(CloudUnreachable):
            await gate.deliver()
        await asyncio.sleep(late_s)
    decision = None if lost_decision else gate.answered(verdict, outcome)
    gate.hand_over(decision, unknown=lost_decision)
    with suppress(CloudUnreachable):
        await gate.deliver()
    return {
        "device_id": gate.device_id,
        "verdict_id": gate.state.last_ref,
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


@simulate.command("passage")
@click.option("--not-passed", is_flag=True, help="The person did not go through.")
@_on_gate
async def passage(gate: "SimulatedGate", *, not_passed: bool) -> dict[str, Any]:
    """The passage of the gate's last verdict, from a validator with a turn sensor."""
    gate.turn(passed=not not_passed)
    await gate.deliver()
    return {"device_id": gate.device_id, "verdict_id": gate.state.last_ref, "passed": not not_passed}


@simulate.command("enrol")
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


@simulate.command("mail")
@_on_gate
async def mail(gate: "SimulatedGate") -> dict[str, Any]:
    """A sealed report, as a gate without a network gives its validator: the body of a POST to its outbox."""
    return {"records": [gate.mail()]}
