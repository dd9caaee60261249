"""The story of the demonstration: enrol, pass, refuse, erase."""

import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from device.values.status import CoreStatus, read_status
from models.crop_geometry import Handedness
from models.synthesis.person import SyntheticPerson, make_person
from models.synthesis.scene import empty_scene, passage, poor_capture, show_qr
from tools.rig.demo.back_office import BackOffice, Json, check_proof, check_receipt
from tools.rig.demo.errors import DemoFailed
from tools.rig.demo.narrator import Narrator
from tools.rig.demo.programs import Program, RunningPrograms
from tools.rig.demo.setting import (
    CAMERA_FPS,
    Cloud,
    DemoDevice,
    Site,
    start_cloud,
    start_device,
    start_validator,
)
from tools.rig.demo.waiting import wait_for, wait_until
from tools.rig.virtual_camera import VirtualCamera

PLACE = 7
"""Seed of the background before the camera: one place for the whole story."""

TOMBSTONE_WITHIN_S = 1.0
"""A tombstone reaches an online device within this."""

BOTH_HANDS: tuple[Handedness, ...] = ("L", "R")
_HAND_WORDS = {"L": "left", "R": "right"}


@dataclass
class DemoPerson:
    """A person of the story. Their palms are generated from a seed, and belong to no real person."""

    name: str
    palms: SyntheticPerson
    subject: Json = field(default_factory=dict)


def three_people() -> list[DemoPerson]:
    return [
        DemoPerson("Ana", make_person(101)),
        DemoPerson("Bento", make_person(102)),
        DemoPerson("Clara", make_person(103)),
    ]


def a_stranger() -> DemoPerson:
    """A person who was never enrolled."""
    return DemoPerson("a stranger", make_person(999))


@dataclass
class ShownPalm:
    """One palm that was shown, for the table at the end."""

    who: str
    hand: str
    line: dict[str, Any]
    reconciliation: str = "?"


def run(narrator: Narrator, folder: Path) -> None:
    """Play the whole story in `folder`; raises DemoFailed when anything goes otherwise than it must."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    with ExitStack() as stack:
        stage = stack.enter_context(RunningPrograms(logs))
        camera = VirtualCamera(folder / "camera", empty_scene(PLACE, 3, scene_seed=PLACE), fps=CAMERA_FPS)
        cloud = start_cloud(narrator, folder, stage)
        device = start_device(narrator, stage, cloud, Site("palm-demo-1", "gate-1", folder, camera.source))
        narrator.act("The gate: a validator at the other end of the cable")
        validator = start_validator(narrator, folder, stage, device)
        office = stack.enter_context(BackOffice(cloud.url, cloud.api_key))
        GateStory(
            narrator=narrator, cloud=cloud, device=device, validator=validator, office=office, camera=camera
        ).play()
        stage.stop_cleanly()


@dataclass(kw_only=True)
class Scene:
    """A device with its camera, and the back office that people come from."""

    narrator: Narrator
    device: DemoDevice
    office: BackOffice
    camera: VirtualCamera
    occasion: int = 0
    """Seed of the last film shown here; no two devices are shown the same one."""

    def enrol(self, person: DemoPerson) -> None:
        """A back office opens a session; the device reads its code and captures both palms."""
        say = self.narrator.say
        self.narrator.act(f"Enrolment of {person.name}")
        reference = f"acct-{person.name.lower()}"
        person.subject = self.office.create_person(reference, onboard_ref=f"card:{person.name.lower()}")
        subject_id = person.subject["subject_id"]
        for purpose in ("enrollment", "identification"):
            self.office.grant(subject_id, purpose)
        say("person", f"{reference} is subject {subject_id}; both consents recorded", subject_id=subject_id)
        session = self.office.open_enrolment(subject_id)
        session_id = session["session_id"]
        say("session", f"session {session_id}: its QR code is held before the camera", session_id=session_id)

        self.camera.queue(show_qr(session["qr_payload"], self._next_occasion(), 12, scene_seed=PLACE))
        for hand in BOTH_HANDS:
            word = _HAND_WORDS[hand]
            wait_until(f"the device to ask for the {word} palm", 20, partial(self._asks_for, hand))
            self.camera.queue(
                passage(person.palms, hand, self._next_occasion(), frames_held=24, scene_seed=PLACE)
            )
            say("palm_shown", f"{person.name} shows the {word} palm", good=None, hand=hand)
        done = wait_for("the enrolment session to end", 30, lambda: _ended(self.office.session(session_id)))
        if done["status"] != "completed":
            raise DemoFailed(f"the enrolment session ended as {done['status']}")
        by = done["completed_by_device_id"]
        say("enrolled", f"completed by {by}", enrollment_id=done["enrollment_id"])
        seq = self.office.get(f"/v1/subjects/{subject_id}")["gallery_seq"]
        wait_until("the gallery delta to reach the device", 10, lambda: self.gallery_seq() >= seq)
        say("delta", f"the device's own gallery is at seq {seq}: it knows {person.name} offline", seq=seq)

    def gallery_seq(self) -> int:
        """The version of the device's own gallery."""
        return self.status().gallery.seq

    def status(self) -> CoreStatus:
        """What `palmctl status` says on the device."""
        return read_status(self.device.control_socket)

    def _next_occasion(self) -> int:
        """A seed for one film, so that no capture is like another."""
        self.occasion += 1
        return self.occasion

    def _asks_for(self, hand: Handedness) -> bool:
        enrolment = self.status().enrolment
        capture = enrolment.capture
        return enrolment.step == "show_hand" and capture is not None and capture.hand == hand


@dataclass(kw_only=True)
class GateStory(Scene):
    """What happens at a gate, once everything runs."""

    cloud: Cloud
    validator: Program
    shown: list[ShownPalm] = field(default_factory=list)

    def play(self) -> None:
        ana, bento, clara = people = three_people()
        for person in people:
            self.enrol(person)
        self.narrator.act("Passages: known palms, a stranger, a poor capture")
        self.show_palm(ana, "L", "accept")
        self.show_palm(bento, "R", "accept")
        self.show_palm(clara, "L", "accept")
        self.show_palm(ana, "R", "accept")
        self.show_palm(a_stranger(), "R", "reject")
        self.show_palm(clara, "R", "abstain", poor=True)
        self.reconcile()
        self._erase(bento)
        self.sum_up()

    def show_palm(self, person: DemoPerson, hand: Handedness, expected: str, *, poor: bool = False) -> None:
        """Show one palm and see what the validator made of the verdict."""
        occasion = self._next_occasion()
        if poor:
            film = poor_capture(person.palms, hand, occasion, frames_held=36, scene_seed=PLACE)
        else:
            film = passage(person.palms, hand, occasion, frames_held=20, scene_seed=PLACE)
        self.camera.queue(film)
        line = self.validator.wait_line(lambda line: "outcome" in line, 30)
        if line["decision"] != expected or line["verified"] is not True:
            raise DemoFailed(f"{person.name}'s palm gave {line['decision']} {line['result']}, not {expected}")
        if expected == "accept" and line["subject_ref"] != person.subject["subject_ref"]:
            raise DemoFailed(f"{person.name}'s palm was taken for another person's")
        what = "a dark, blurred capture of " if poor else ""
        self.narrator.say(
            "passage",
            f"{what}{person.name}, {_HAND_WORDS[hand]}: {line['decision']} {line['result']}, "
            f"score {line['score_q']}, verdict {line['verdict_ref'][:8]}… → {line['outcome']}",
            who=person.name,
            **{
                name: line[name]
                for name in ("decision", "result", "score_q", "verdict_ref", "outcome", "actuated")
            },
        )
        self.shown.append(ShownPalm(person.name, hand, line))

    def reconcile(self) -> None:
        """Find every verdict again in the cloud, complete and with a proof that verifies."""
        refs = [shown.line["verdict_ref"] for shown in self.shown]
        records = wait_for("all verdicts to be complete in the cloud", 20, lambda: self._complete(refs))
        for shown in self.shown:
            ref = shown.line["verdict_ref"]
            proof = self.office.get(f"/v1/verdicts/{ref}")
            verdict = check_proof(proof, self.device.verdict_key, self.cloud.validator_key)
            if verdict.verdict_seq != records[ref]["verdict_seq"]:
                raise DemoFailed("a verdict record and its signed verdict differ")
            shown.reconciliation = records[ref]["reconciliation"]
        self.narrator.say(
            "reconciled",
            f"GET /v1/verdicts: {len(refs)} verdicts, each complete, each proof good under the pinned keys",
            verdicts=len(refs),
        )

    def _complete(self, refs: list[str]) -> dict[str, Json] | None:
        page = self.office.get("/v1/verdicts", device_id=self.device.site.device_id, limit="200")["data"]
        found = {item["verdict_id"]: item for item in page}
        complete = all(ref in found and found[ref]["reconciliation"] == "complete" for ref in refs)
        return found if complete else None

    def _erase(self, person: DemoPerson) -> None:
        """Erasure where there is a network: the tombstone is there at once."""
        took_s = self.erase(person, within_s=10)
        if took_s > TOMBSTONE_WITHIN_S:
            raise DemoFailed(f"the tombstone took {took_s:.2f} s to the device, not {TOMBSTONE_WITHIN_S:g} s")
        self.reconcile()

    def erase(self, person: DemoPerson, within_s: float) -> float:
        """A person is erased: a signed receipt, a tombstone, and a palm that is not recognised any more.

        Returns how long the tombstone took, in seconds.
        """
        say = self.narrator.say
        self.narrator.act(f"Erasure of {person.name}")
        begun = time.monotonic()
        receipt = self.office.erase(person.subject["subject_id"])
        statement = check_receipt(receipt, self.office.get("/v1/keys"))
        gone = statement["erased"]
        say("erased", f"receipt {receipt['receipt_id']}, signed: {', '.join(gone)} gone", erased=gone)
        seq = statement["gallery"]["seq"]
        wait_until(
            "the tombstone to reach the device", within_s, lambda: self.gallery_seq() >= seq, every_s=0.01
        )
        took_s = time.monotonic() - begun
        say(
            "tombstone",
            f"on the device {took_s * 1000:.0f} ms after the request",
            took_ms=round(took_s * 1000),
        )
        path = f"/v1/erasure-receipts/{receipt['receipt_id']}"
        told = wait_for(
            "complete propagation", within_s, lambda: _settled(self.office.get(path)["propagation"])
        )
        reached = f"{told['devices_acknowledged']} of {told['devices_total']} devices"
        say("propagation", f"propagation {told['status']}: {reached}", **told)
        if self.office.status_of(f"/v1/subjects/{person.subject['subject_id']}") != 404:
            raise DemoFailed("the erased person is still there")
        person.name = f"{person.name}, erased"
        self.show_palm(person, "R", "reject")
        return took_s

    def revoke(self, reason: str) -> None:
        """The operator gives the device up."""
        self.office.revoke(self.device.site.device_id, reason)

    def sum_up(self) -> None:
        """The table of all palms that were shown."""
        header = ("who", "palm", "decision", "result", "score_q", "outcome", "cloud")
        rows = [
            (
                shown.who,
                shown.hand,
                shown.line["decision"],
                shown.line["result"],
                str(shown.line["score_q"]),
                shown.line["outcome"],
                shown.reconciliation,
            )
            for shown in self.shown
        ]
        self.narrator.table("summary", header, rows)
        latency = self.status().latency
        self.narrator.say(
            "latency",
            f"from the frame that decided to the verdict in the cable: {(latency.p50_us or 0) / 1000:.0f} ms "
            f"(median of {latency.count})",
            good=None,
            **latency.to_obj(),
        )


def _ended(session: Json) -> Json | None:
    return None if session["status"] == "open" else session


def _settled(propagation: Json) -> Json | None:
    return propagation if propagation["status"] == "complete" else None
