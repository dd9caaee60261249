"""Releases for devices in tests, and devices that say how far they are with one."""

import itertools
from typing import Any

from cloud_client.reference_server.domain.devices import releases, rollouts
from link1.canonical import JsonObject
from tests.cloud_client.server.server_harness import SimDevice, Tenant
from tests.device.updates.update_setting import release

_seqs = itertools.count(100)
PAYLOAD = b"software " * 20
CHUNK = 64


def report(**changes: Any) -> JsonObject:
    """A whole report of a device."""
    return {
        "v": 1,
        "boot_id": "0" * 31 + "1",
        "at_ms": 1_790_000_000_000,
        "uptime_s": 60,
        "serving": True,
        "app": {"pkg": "palm-access-device", "version": "0.2.0+x~1/y"},
        "model_id": "palm-gen-5",
        "thr_id": "palm-gen-5-t1",
        "config_seq": 3,
        "health": ["CAMERA_FAULT"],
        "gallery": None,
        "link": {"up": True, "dbd_id": "d1"},
        "queues": {"verdicts": 0, "mail": 0},
        "board": {"temperature_c": 41, "storage_free_mib": 9000, "memory_free_mib": None},
        "camera": {"fps": 15},
        "counters": {"frames": 10},
        "updates": [],
    } | changes


class Rolled:
    """A release of a tenant's test environment, and its rollout."""

    def __init__(self, tenant: Tenant, kind: str = "app", payload: bytes = PAYLOAD) -> None:
        self.tenant, self.cloud, self.kind = tenant, tenant.cloud, kind
        self.environment = tenant.environment("test")
        self.release_seq = next(_seqs)
        name = "palm-access-device" if kind == "app" else "palm-next"
        self.manifest = release(payload, self.release_seq, kind=kind, name=name)
        model_id = None if kind == "app" else "palm-next"
        self.cloud.operate(
            lambda tx, _, now: releases.create(
                tx, self.environment, self.manifest, payload, model_id=model_id, now_ms=now
            )
        )

    def start(self, **plan: Any) -> Any:
        made = rollouts.RolloutPlan(**plan)
        return self._moved(
            lambda tx, _, now: rollouts.start(tx, self.environment, self.release_seq, made, now)
        )

    def pause(self) -> Any:
        return self._moved(lambda tx, _, __: rollouts.pause(tx, self.environment, self.release_seq))

    def resume(self) -> Any:
        return self._moved(lambda tx, _, now: rollouts.resume(tx, self.environment, self.release_seq, now))

    def halt(self) -> Any:
        """As the command does it."""
        self.cloud.operate(lambda tx, *_: rollouts.halt(tx, self.environment, self.release_seq))
        while self.cloud.operate(lambda tx, vault, now: rollouts.take_back(tx, vault, self.environment, now)):
            pass
        return self.status()

    def _moved(self, move: Any) -> Any:
        self.cloud.operate(move)
        return self.status()

    def status(self) -> Any:
        return self.cloud.operate(
            lambda tx, _, now: rollouts.status(tx, self.environment, self.release_seq, now, with_devices=True)
        )

    def tick(self) -> None:
        """What a server process does every five seconds."""
        while self.cloud.operate(lambda tx, vault, now: rollouts.tick(tx, vault, self.environment, now)):
            pass

    def members(self) -> list[str]:
        return [device["device_id"] for device in self.status()["devices"]]

    def update(self, state: str, **more: Any) -> JsonObject:
        return {
            "kind": self.kind,
            "name": self.manifest["name"],
            "release_seq": self.release_seq,
            "state": state,
        } | more

    def say(self, device: SimDevice, state: str | None, *, serving: bool = True, **changes: Any) -> None:
        """A report of a device; ``state`` None: it does not know the release."""
        updates = [] if state is None else [self.update(state)]
        device.post("/v1/devices/self/report", report(updates=updates, serving=serving) | changes, 204)
