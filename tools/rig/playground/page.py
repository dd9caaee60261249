"""The routes of the playground's page."""

import json
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import cv2

from device.enrolment.preview import draw
from models.synthesis.scene import passage
from tools.palmctl.pages.core_pages import static_files
from tools.palmctl.pages.server import Answer, Reply, json_reply
from tools.rig.playground.eyes import PLACE
from tools.rig.playground.playground import PACES, Beginning, Playground
from tools.rig.playground.run_file import PEOPLE, BadRunFile, Button, checked_press, read_run, write_run
from tools.rig.playground.world import STRANGERS, person_of

_STATIC: Final = Path(__file__).parent / "static"
_EVENTS_AT_ONCE: Final = 600
_MOST_SEED: Final = 2**32 - 1


def playground_routes(playground: Playground) -> dict[str, Answer]:
    """The page, what it shows, and its buttons."""
    files = static_files(*(_STATIC / f"playground.{kind}" for kind in ("html", "css", "js")))
    asked = {
        "GET news": _news,
        "GET camera": _camera,
        "GET palm": _palm,
        "GET run.json": _run,
        "POST press": _press,
        "POST pace": _pace,
        "POST begin": _begin,
        "POST replay": _replay,
    }
    return files | {name: partial(answer, playground) for name, answer in asked.items()}


def _news(playground: Playground, members: dict[str, Any]) -> Reply:
    """State, and the events after those that the page has."""
    shown = playground.watched()
    after = str(members.get("after", "0"))
    number = int(after) if after.isdecimal() and len(after) < 16 else 0
    if str(members.get("run")) != str(shown.number):
        number = 0
    head = {
        "run": shown.number,
        "pace": playground.pace,
        "state": shown.state,
        "replay": shown.replay,
        "failed": shown.failed,
    }
    events = ",".join(shown.log.after(number, _EVENTS_AT_ONCE))
    return Reply(f'{json.dumps(head)[:-1]}, "events": [{events}]}}'.encode())


def _camera(playground: Playground, members: dict[str, Any]) -> Reply:
    """The newest picture, with what was seen in it as a header; 204 when the page has it."""
    camera = playground.shown.camera
    if camera is None or members.get("after") == str(camera[0].number):
        return Reply(status=HTTPStatus.NO_CONTENT)
    with playground.drawing:
        about, picture = draw(*camera)
    return Reply(picture, "image/jpeg", about=json.dumps(about))


def _palm(playground: Playground, members: dict[str, Any]) -> Reply:
    """A small picture of a person's palm; of no one's, a stranger's."""
    seed = playground.shown.state.get("seed", 0)
    who = members.get("who", "")
    number = PEOPLE.index(who) + 1 if who in PEOPLE else STRANGERS
    with playground.drawing:
        film = passage(person_of(seed, number), "L", 1, frames_in=0, frames_held=1, scene_seed=PLACE)
        small = cv2.resize(next(film)[40:460, 110:530], (132, 132), interpolation=cv2.INTER_AREA)
        return Reply(cv2.imencode(".jpg", small)[1].tobytes(), "image/jpeg")


def _run(playground: Playground, _members: dict[str, Any]) -> Reply:
    run = playground.shown.run
    if run is None:
        return Reply(status=HTTPStatus.NO_CONTENT)
    return Reply(write_run(run).encode())


def _press(playground: Playground, members: dict[str, Any]) -> Reply:
    try:
        press = checked_press(0, Button(str(members.get("button"))), members.get("who", ""))
    except ValueError as error:
        return json_reply({"error": str(error)}, HTTPStatus.BAD_REQUEST)
    playground.press(press.button, press.who)
    return json_reply({})


def _pace(playground: Playground, members: dict[str, Any]) -> Reply:
    if members.get("pace") not in PACES:
        return json_reply({"error": f"the pace is one of {PACES}"}, HTTPStatus.BAD_REQUEST)
    playground.pace = members["pace"]
    return json_reply({})


def _begin(playground: Playground, members: dict[str, Any]) -> Reply:
    seed = members.get("seed")
    if type(seed) is not int or not 0 <= seed <= _MOST_SEED:
        return json_reply({"error": f"a seed is a number from 0 to {_MOST_SEED:,}"}, HTTPStatus.BAD_REQUEST)
    playground.begin(Beginning(seed))
    return json_reply({})


def _replay(playground: Playground, members: dict[str, Any]) -> Reply:
    """A run's file, as the text in `file`."""
    try:
        run = read_run(str(members.get("file", "")))
    except BadRunFile as error:
        return json_reply({"error": str(error)}, HTTPStatus.BAD_REQUEST)
    playground.begin(Beginning(run.seed, run))
    return json_reply({})
