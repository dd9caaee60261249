"""A model release from the reference server's operator to a verdict made with it, through real programs."""

import asyncio
import secrets
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from cloud_client.client import CloudClient, ServerAddress
from device.config.config import load_config
from device.errors import IpcError
from device.platform.clock import SystemClock
from device.platform.ipc import ask_core
from device.trust.keystore import KeyStore
from link1.canonical import b64_encode, canonical_bytes
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene, passage
from tests.republished import republish
from tools.palmctl.bench.board import Known
from tools.rig.bench.films import PLACE, enrol
from tools.rig.demo.back_office import BackOffice
from tools.rig.demo.errors import DemoFailed
from tools.rig.demo.narrator import Narrator
from tools.rig.demo.programs import RunningPrograms, palmctl
from tools.rig.demo.setting import (
    CAMERA_FPS,
    Cloud,
    Site,
    provision,
    start_cloud,
    start_device,
    start_validator,
)
from tools.rig.demo.story import DemoPerson, GateStory
from tools.rig.demo.waiting import wait_until
from tools.rig.virtual_camera import VirtualCamera

NEW_MODEL = "palm-next"


def enrolled(cloud: Cloud, desk: Site, palms: list[Known], name: str, model_id: str) -> DemoPerson:
    """Somebody enrolled at a desk elsewhere, whose device made the vectors with `model_id`."""
    with BackOffice(cloud.url, cloud.api_key) as office:
        subject = office.create_person(name, f"card:{name}")
        for purpose in ("enrollment", "identification"):
            office.grant(subject["subject_id"], purpose)
        token = office.open_enrolment(subject["subject_id"], hands_required=["L"])["token"]
    hands = [
        {
            "hand": "L",
            "vector_b64": b64_encode(palm.vector.astype("<f4").tobytes()),
            "quality_q": 80,
            "pad": {"res": "pass", "mech": "test", "score_q": 9000},
        }
        for palm in palms
    ]
    body = canonical_bytes({"token": token, "model_id": model_id, "hands": hands, "consents": []})

    async def upload() -> int:
        key = KeyStore.open(load_config(desk.config).keys_dir).http
        address = ServerAddress.parse(cloud.url)
        async with CloudClient(address, key, SystemClock().wall_ms) as client:
            return (await client.enroll(body, secrets.token_hex(16))).status

    assert asyncio.run(upload()) == 201
    return DemoPerson(name, make_person(int(palms[0].subject_ref, 16)), subject)


def accepted(story: GateStory, camera: VirtualCamera, person: DemoPerson) -> dict[str, Any]:
    """The validator's line about a palm that is shown until it is accepted. A folder as a camera begins again
    with the program: the earlier palms, unknown by now, are seen before it, and may be taken for one hand
    with it.
    """
    for occasion in range(100, 106):
        film = passage(person.palms, "L", occasion, frames_held=20, scene_seed=PLACE)
        played_s = camera.queue(film)
        with suppress(DemoFailed):
            return story.validator.wait_line(lambda line: line.get("decision") == "accept", played_s + 8)
    raise AssertionError("the palm was not accepted")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_model_is_released_and_its_epoch_begun(tmp_path: Path) -> None:
    narrator = Narrator(as_json=True)
    (tmp_path / "logs").mkdir()
    shipped = load_manifest(shipped_model_dir())
    ana, bento = (enrol(open_embedder(shipped), seed)[:3] for seed in (0, 1))
    with ExitStack() as stack:
        stage = stack.enter_context(RunningPrograms(tmp_path / "logs"))
        camera = VirtualCamera(tmp_path / "camera", empty_scene(PLACE, 3, scene_seed=PLACE), fps=CAMERA_FPS)
        cloud = start_cloud(narrator, tmp_path, stage)
        device = start_device(narrator, stage, cloud, Site("palm-1", "gate-1", tmp_path, camera.source))
        desk = Site("palm-desk", "gate-2", tmp_path, camera.source)
        provision(narrator, desk, cloud)
        story = GateStory(
            narrator=narrator,
            cloud=cloud,
            device=device,
            validator=start_validator(narrator, tmp_path, stage, device, mail=cloud),
            office=stack.enter_context(BackOffice(cloud.url, cloud.api_key)),
            camera=camera,
        )

        def updates() -> dict[str, Any]:
            told = ask_core(device.control_socket, "update.status").header["updates"]
            assert isinstance(told, dict)
            return told

        def knows(model_id: str, templates: int) -> bool:
            try:
                told = story.status()
            except IpcError:
                return False  # between two starts
            return told.model_id == model_id and told.gallery.templates == templates

        somebody = enrolled(cloud, desk, ana, "ana", shipped.model_id)
        wait_until("the gate to know her", 60, lambda: knows(shipped.model_id, len(ana)))
        story.show_palm(somebody, "L", "accept")

        republish(shipped_model_dir(), NEW_MODEL, tmp_path / "model")
        released = palmctl(
            "cloud", "release", "create", *cloud.place, "--kind", "model", "--from", str(tmp_path / "model"),
            "--device-id", "palm-1",
        )  # fmt: skip
        assert released["name"] == NEW_MODEL
        wait_until("the model to wait", 120, lambda: updates()["model"]["waiting"] is not None)
        story.show_palm(somebody, "L", "accept")
        palmctl("cloud", "epoch", "new", *cloud.place, "--model-id", NEW_MODEL, "--enrol-again")
        wait_until("the new epoch and its model", 60, lambda: knows(NEW_MODEL, 0))
        somebody = enrolled(cloud, desk, bento, "bento", NEW_MODEL)
        wait_until("the gate to know him", 60, lambda: knows(NEW_MODEL, len(bento)))
        line = accepted(story, camera, somebody)
        assert (line["subject_ref"], line["verified"]) == (somebody.subject["subject_ref"], True)
        wait_until("the model to prove itself", 60, lambda: not updates()["model"]["on_trial"])
        assert updates()["model"]["release_seq"] == released["release_seq"]
        assert {name: code for name, code in stage.stop().items() if code != 0} == {}
