"""The page of simulated gates: they live, and each command of `palmctl cloud simulate` is a button.

A button is its command: the page sends the options, click reads them, and the command's function runs, in a
thread as it would in a process. The page sees people by the names that the partner has for them, no CPF and
no vector.
"""

import asyncio
import hashlib
import json
import shlex
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import click

from cloud_client.reference_server.domain.tenancy.callers import Environment
from cloud_client.reference_server.errors import ServerError
from cloud_client.reference_server.ops import commands as operator
from cloud_client.reference_server.ops.data_directory import DataDirectory
from cloud_client.reference_server.web.admin import operator_page
from device.trust.trust import Trust, load_trust
from tools.cloud.simulation.errors import GateWiped, SimulationError
from tools.cloud.simulation.gate import SimulatedGate, now_ms
from tools.cloud.simulation.living import FAULTS, live
from tools.cloud.simulation.state import gates_of, read_state
from tools.cloud.store import on_this_store
from tools.palmctl.command_errors import in_words
from tools.palmctl.pages.core_pages import static_files
from tools.palmctl.pages.server import Answer, Reply, json_reply

_STATIC: Final = Path(__file__).parent / "static"
_STYLE: Final = Path(operator_page.__file__).parent / "static" / "admin.css"
_LOOK_EVERY_S: Final = 0.5
_LOST_FOR_S: Final = 12.0
"""A gate tries again five seconds after a failure: a gate that still fails has failed within this time."""
_MOST_PEOPLE: Final = 50
_MOST_EVENTS: Final = 100
_MOST_AT_ONCE: Final = 16
_REASON: Final = "stolen"


@dataclass(frozen=True, slots=True)
class GateSite:
    """Where gates are simulated: the store of a server, one tenant of it, and the folder of the gates."""

    data: Path
    database: str | None
    tenant_id: str
    url: str
    folder: Path


@dataclass(slots=True)
class GateEvent:
    """What a gate did by itself, or what a button did, with the `command` that does the same.

    `kind`: `pressed` until the button's command has ended, then `done` with its `result`, or `failed` with a
    `text`; of a gate by itself `lives`, `gallery`, `failed` or `wiped`, with a `text`.
    """

    number: int
    at_ms: int
    device_id: str
    kind: str
    text: str = ""
    verb: str = ""
    command: str = ""
    result: dict[str, Any] | None = None


class SimulationPage:
    """The gates of a site, what they and the buttons did, and the routes of the page."""

    def __init__(self, site: GateSite, commands: Mapping[str, click.Command]) -> None:
        """`commands` are the buttons' by name. Raises OperatorError without such a store or tenant."""
        self._site = site
        self._environment = Environment(site.tenant_id, livemode=False)
        self._commands = commands
        self._store, self._vault = DataDirectory.of(site.data, site.database).open(now_ms())
        self._gates: dict[Path, Trust] = {}
        self._lost_s: dict[str, float] = {}
        self._events: deque[GateEvent] = deque(maxlen=_MOST_EVENTS)
        self._counted = 0
        self._lock = threading.Lock()
        self._free = threading.BoundedSemaphore(_MOST_AT_ONCE)
        try:
            self._people = self._read_people()
        except BaseException:
            self._store.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close()

    async def live(self) -> None:
        """Let every gate of the site live, new gates included; until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                for place in gates_of(self._site.folder):
                    if place not in self._gates:
                        self._take_in(place, tasks)
                try:
                    self._people = self._read_people()
                except ServerError as error:
                    self._tell("", "failed", in_words(error))
                await asyncio.sleep(_LOOK_EVERY_S)

    def _take_in(self, place: Path, tasks: asyncio.TaskGroup) -> None:
        """Let a gate of the folder live. Tried again where it cannot be opened: it may be half copied."""
        try:
            trust = load_trust(place / "trust.json")
            if trust.tenant_id == self._site.tenant_id:
                tasks.create_task(live(SimulatedGate(place), self._tell))
        except GateWiped as error:
            self._tell(place.stem, "wiped", str(error))
        except FAULTS as error:
            self._tell(place.stem, "failed", in_words(error))
            return
        self._gates[place] = trust

    def _read_people(self) -> list[dict[str, Any]]:
        with self._store.reading() as tx:
            operator.check_environment(tx, self._environment)
            return operator.newest_people(tx, self._vault, self._environment, _MOST_PEOPLE + 1)

    def _tell(self, device_id: str, kind: str, text: str) -> None:
        if kind == "failed":
            known = self._is_lost(device_id)
            self._lost_s[device_id] = time.monotonic()
            if known:
                return
        self._add(device_id, kind, text=text)

    def _is_lost(self, device_id: str) -> bool:
        return time.monotonic() - self._lost_s.get(device_id, float("-inf")) < _LOST_FOR_S

    def _add(self, device_id: str, kind: str, **more: Any) -> GateEvent:
        with self._lock:
            self._counted += 1
            event = GateEvent(self._counted, now_ms(), device_id, kind, **more)
            self._events.appendleft(event)
            return event

    # The page

    def routes(self) -> dict[str, Answer]:
        """The page, what it shows, and its buttons."""
        files = static_files(_STATIC / "gates.html", _STYLE, _STATIC / "gates.css", _STATIC / "gates.js")
        return files | {"GET news": self._news, "POST press": self._press}

    def _news(self, members: dict[str, Any]) -> Reply:
        """Everything that the page shows; 204 when the page has it."""
        people = self._people
        names = {person["subject_ref"]: person["external_ref"] for person in people}
        with self._lock:
            events = [asdict(event) for event in self._events]
        shown = {
            "tenant_id": self._site.tenant_id,
            "gates": [gate for place in sorted(self._gates) if (gate := self._gate(place, names))],
            "people": [
                {name: person[name] for name in ("subject_id", "external_ref", "status")}
                for person in people[:_MOST_PEOPLE]
            ],
            "older_people": len(people) > _MOST_PEOPLE,
            "events": events,
        }
        body = json.dumps(shown, ensure_ascii=False).encode()
        version = hashlib.sha256(body).hexdigest()[:16]
        if members.get("after") == version:
            return Reply(status=HTTPStatus.NO_CONTENT)
        return Reply(body, about=version)

    def _gate(self, place: Path, names: Mapping[str, str]) -> dict[str, Any] | None:
        """A gate as the page shows it; None for another tenant's, and for a deleted gate."""
        trust = self._gates[place]
        if trust.tenant_id != self._site.tenant_id:
            return None
        try:
            state = read_state(place)
        except SimulationError:
            return None
        verdict = None if state.last_verdict is None else state.last_verdict["verdict"]
        lost = self._is_lost(trust.device_id)
        return {
            "device_id": trust.device_id,
            "gate_id": trust.gate_id,
            "passage_sensor": trust.passage_sensor,
            "state": "wiped" if state.wiped is not None else "lost" if lost else "lives",
            "reason": None if state.wiped is None else state.wiped["reason"],
            "gallery": f"{state.palms.epoch}.{state.palms.seq}",
            "head16": state.palms.head[:16],
            "palms": len(state.palms.templates),
            "unsent": len(state.unsent),
            "last": verdict
            and {
                "verdict_seq": verdict["verdict_seq"],
                "decision": verdict["decision"],
                "result": verdict["result"],
                "who": names.get(verdict.get("subject_ref", ""), ""),
                "outcome": state.last_outcome,
                "passed": state.last_passed,
                "decided_at_ms": verdict["decided_at_ms"],
            },
        }

    def _press(self, members: dict[str, Any]) -> Reply:
        """Begin what a button does; its event has the result."""
        verb, options = members.get("verb"), members.get("options")
        try:
            if not isinstance(options, dict) or not isinstance(options.get("device_id"), str):
                raise ValueError("expected options with a device_id")
            command, call = self._called(str(verb), options)
        except ValueError as error:
            return json_reply({"error": str(error)}, HTTPStatus.BAD_REQUEST)
        if not self._free.acquire(blocking=False):
            many = f"{_MOST_AT_ONCE} commands are under way: wait for one of them"
            return json_reply({"error": many}, HTTPStatus.TOO_MANY_REQUESTS)
        event = self._add(options["device_id"], "pressed", verb=str(verb), command=command)
        threading.Thread(target=self._act, args=(event, call), name=command, daemon=True).start()
        return json_reply({"number": event.number}, HTTPStatus.ACCEPTED)

    def _called(self, verb: str, options: dict[str, Any]) -> tuple[str, Callable[[], dict[str, Any]]]:
        """The command line of a button, and what runs it. Raises ValueError for no button of the page."""
        site = self._site
        own = {"data": str(site.data), "tenant": site.tenant_id, "mode": "test"}
        if verb == "revoke":
            device_id = options["device_id"]
            words = ["revoke", device_id, *(f"--{name}={value}" for name, value in own.items())]
            shown = ["palmctl", "cloud", "device", *words, f"--reason={_REASON}"]
            return shlex.join(shown), lambda: self._revoke(device_id)
        command = self._commands.get(verb)
        if command is None:
            raise ValueError(f"unknown button, {verb!r}")
        own |= {"url": site.url, "folder": str(site.folder)}
        known = {each.name: each for each in command.params if isinstance(each, click.Option)}
        words = _words(known, {name: value for name, value in own.items() if name in known})
        words += _words(known, {name: value for name, value in options.items() if name not in own})
        # The database's URL may hold a password: it is given to the command and not shown.
        hidden = [f"--database={site.database}"] if site.database and "database" in known else []

        def run() -> dict[str, Any]:
            with command.make_context(f"palmctl cloud simulate {verb}", [*words, *hidden]) as context:
                done: dict[str, Any] = context.invoke(command.callback or dict, **context.params)
                return done

        return shlex.join(["palmctl", "cloud", "simulate", verb, *words]), run

    def _revoke(self, device_id: str) -> dict[str, Any]:
        site, environment = self._site, self._environment
        return on_this_store(
            site.data,
            site.database,
            lambda tx, vault, at_ms: operator.revoke_device(
                tx, vault, environment, device_id, reason=_REASON, now_ms=at_ms
            ),
        )

    def _act(self, event: GateEvent, call: Callable[[], dict[str, Any]]) -> None:
        kind, text, result = "done", "", None
        try:
            result = call()
        except Exception as error:  # noqa: BLE001 - what a command ends with is what the page then shows
            kind, text = "failed", in_words(error)
        finally:
            self._free.release()
        with self._lock:
            event.kind, event.text, event.result = kind, text, result


def _words(known: Mapping[str, click.Option], options: Mapping[str, Any]) -> list[str]:
    """Options as they are typed. Raises ValueError for an option that the command does not have."""
    words = []
    for name, value in options.items():
        option = known.get(name)
        match value:
            case True if option is not None and option.is_flag:
                words.append(option.opts[0])
            case str() if option is not None and not option.is_flag:
                words += [option.opts[0], value]
            case _:
                raise ValueError(f"no option {name!r} of that kind")
    return words
