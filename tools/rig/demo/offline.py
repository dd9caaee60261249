"""The story of a gate without any network: everything it knows and says goes by the validator's mail."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from device.config.config import load_config, write_config
from models.synthesis.scene import empty_scene
from tools.rig.demo.back_office import BackOffice
from tools.rig.demo.narrator import Narrator
from tools.rig.demo.programs import Program, RunningPrograms, module, palmctl
from tools.rig.demo.setting import (
    CAMERA_FPS,
    Cloud,
    DemoDevice,
    Site,
    plug_cable,
    provision,
    start_cloud,
    start_device,
    start_validator,
)
from tools.rig.demo.story import PLACE, DemoPerson, GateStory, Scene, a_stranger, three_people
from tools.rig.demo.waiting import wait_until
from tools.rig.virtual_camera import VirtualCamera

BY_MAIL_WITHIN_S = 60.0
"""The device reports its state every half minute; missing mail comes with the next round."""


def run_offline(narrator: Narrator, folder: Path) -> None:
    """Play the story in `folder`; raises DemoFailed when anything goes otherwise than it must."""
    logs = folder / "logs"
    logs.mkdir(parents=True)
    with ExitStack() as stack:
        stage = stack.enter_context(RunningPrograms(logs))
        desk_camera, gate_camera = (
            VirtualCamera(folder / name, empty_scene(PLACE, 3, scene_seed=PLACE), fps=CAMERA_FPS)
            for name in ("camera-desk", "camera-gate")
        )
        cloud = start_cloud(narrator, folder, stage)
        office = stack.enter_context(BackOffice(cloud.url, cloud.api_key))
        desk_device = start_device(
            narrator, stage, cloud, Site("palm-desk-1", "gate-1", folder, desk_camera.source)
        )
        desk = Scene(narrator=narrator, device=desk_device, office=office, camera=desk_camera)
        people = three_people()
        for person in people[:2]:
            desk.enrol(person)
        gate = _start_gate(narrator, stage, cloud, Site("palm-gate-2", "gate-2", folder, gate_camera.source))
        narrator.act("The mail: the validator carries sealed records between cable and partner API")
        OfflineStory(
            narrator=narrator,
            cloud=cloud,
            device=gate,
            validator=start_validator(narrator, folder, stage, gate, mail=cloud),
            office=office,
            camera=gate_camera,
            occasion=500,
        ).play_offline(people, desk, lambda: start_validator(narrator, folder, stage, gate, mail=cloud))
        stage.stop_cleanly()


def _start_gate(narrator: Narrator, stage: RunningPrograms, cloud: Cloud, site: Site) -> DemoDevice:
    """A device that was registered in the workshop, and has no network from then on."""
    narrator.act("A gate without a network")
    key = provision(narrator, site, cloud)
    write_config(site.config, replace(load_config(site.config), cloud=None))
    validator_port = plug_cable(narrator, stage, site)
    stage.start_daemon("palmd-offline", module("device.core.main", "--config", str(site.config)), 30)
    narrator.say("offline", "its configuration has no [cloud]; palmd runs, palm-syncd is not even started")
    return DemoDevice(site, key, site.control_socket, validator_port)


class OfflineStory(GateStory):
    """What happens at the offline gate."""

    def play_offline(self, people: list[DemoPerson], desk: Scene, start_mail: Callable[[], Program]) -> None:
        """`desk`: a device elsewhere at which people are enrolled; `start_mail`: a validator that carries."""
        ana, bento, clara = people
        self._caught_up(desk)
        self.narrator.act("Passages at the offline gate")
        self.show_palm(ana, "L", "accept")
        self.show_palm(bento, "R", "accept")
        self.show_palm(a_stranger(), "R", "reject")
        self.reconcile()
        self._settled()

        self.narrator.act("No mail is carried; a person is enrolled elsewhere; the mail comes back")
        self.validator.stop()
        desk.enrol(clara)
        self.validator = start_mail()
        self._caught_up(desk)
        self.show_palm(clara, "L", "accept")

        self._reconfigure()
        took_s = self.erase(bento, within_s=BY_MAIL_WITHIN_S)
        self.narrator.say(
            "erased_by_mail", f"the tombstone came by mail after {took_s:.0f} s", took_s=round(took_s, 1)
        )
        self.reconcile()
        self._settled()
        self._give_up(ana)
        self.sum_up()

    def _reconfigure(self) -> None:
        """Thresholds and trusted keys change by mail."""
        self.narrator.act("Configuration and trusted keys by mail")
        thr_id, place = "palm-demo-t2", self.cloud.place
        palmctl("cloud", "config", "set", *place, "--thr-id", thr_id, "--quality-q", "40")
        wait_until(
            "the configuration to come by mail",
            BY_MAIL_WITHIN_S,
            lambda: self.status().thr_id == thr_id,
        )
        self.narrator.say("configured", f"thresholds {thr_id} are in force at the gate", thr_id=thr_id)
        site = self.device.site
        bundle = site.folder / "trust-bundle.json"
        bundle.write_text(json.dumps(palmctl("cloud", "mail", "bundle", *place)), encoding="utf-8")
        sent = palmctl(
            "cloud", "mail", "send", *place, "--device-id", site.device_id,
            "--type", "svc.trust.bundle", "--body", str(bundle),
        )  # fmt: skip
        wait_until(
            "the trust bundle to come by mail",
            BY_MAIL_WITHIN_S,
            lambda: self.status().mail.in_applied_seq >= sent["seq"],
        )
        self.narrator.say("trusted", "a signed bundle of the keys that count now is pinned")

    def _caught_up(self, desk: Scene) -> None:
        """The gallery and its freshness have come."""
        seq = desk.gallery_seq()
        wait_until("the gallery to come by mail", BY_MAIL_WITHIN_S, lambda: self.gallery_seq() >= seq)
        wait_until("a fresh head to come by mail", BY_MAIL_WITHIN_S, lambda: self.status().serving)
        status = self.status()
        gallery, applied_seq = status.gallery, status.mail.in_applied_seq
        self.narrator.say(
            "gallery_by_mail",
            f"the offline device holds {gallery.templates} templates at seq {seq}, fresh for "
            f"{gallery.left_s // 60} minutes; {applied_seq} records of its inbox are applied",
            seq=seq,
            in_applied_seq=applied_seq,
        )

    def _settled(self) -> None:
        """Signed receipts have come through the inbox, and the device has let its verdicts go."""

        def released() -> bool:
            status = self.status()
            return status.uploads_waiting == 0 and status.mail.out_acked_seq > 0

        wait_until("receipts to release the outbox", BY_MAIL_WITHIN_S, released)
        mail = self.status().mail
        self.narrator.say(
            "receipts",
            f"receipts cover outbox records up to {mail.out_acked_seq}; no verdict waits on the device",
            **mail.to_obj(),
        )

    def _give_up(self, somebody: DemoPerson) -> None:
        """A revocation by mail: the gallery is destroyed, and no palm is recognised any more."""
        self.narrator.act("The gate is reported stolen")
        self.revoke("stolen")
        wait_until("the revocation to come by mail", BY_MAIL_WITHIN_S, self._is_revoked)
        wait_until("the gallery to be destroyed", 10, lambda: self.status().gallery.templates == 0)
        self.narrator.say("revoked", "the order came signed, through the validator; the gallery is destroyed")
        self.show_palm(somebody, "L", "abstain")

    def _is_revoked(self) -> bool:
        return "REVOKED" in self.status().words
