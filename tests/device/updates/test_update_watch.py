"""Software that root's installer will not take is reported, and blocks no other release."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from device.core.served_gallery import ServedGallery
from device.core.update_watch import UpdateWatch
from device.errors import UpdateRefused
from device.health import Health, HealthWord
from device.platform.clock import SystemClock
from device.trust.bundle import ROOT_PREFIX, with_bundle
from device.trust.trust import Trust, load_trust, reread, save_trust
from device.updates.desk import UpdateDesk
from device.updates.manifest import ReleaseKind
from device.updates.state import GalleryFacts
from device.updates.versions import Versions
from link1.canonical import JsonObject, b64_encode
from link1.keys import SigningKey
from tests.device.core_makers import NOW_MS, ROOT_KEY, signed_config
from tests.device.trust.pinned_makers import bundle, registered
from tests.device.updates.update_setting import (
    GalleryOf,
    open_desk,
    packed_files,
    read_offer,
    release,
    signed,
)
from tools.cloud.pack_release import chunk_bodies

SECOND, THIRD, STRANGER = (SigningKey.from_seed(bytes([seed]) * 32) for seed in (0x31, 0x32, 0x33))


def payload() -> bytes:
    with packed_files(id=json.dumps({"model_id": "palm-2"})) as packed:
        return packed


def watched(desk: UpdateDesk, prefix: Path, trust: Trust, health: Health) -> UpdateWatch:
    return UpdateWatch(
        desk=desk,
        gallery=cast("ServedGallery", GalleryOf(GalleryFacts(1, "palm-gen-4"))),
        health=health,
        clock=SystemClock(),
        stages=(),
        wiped=lambda: False,
        idle=lambda: True,
        trust=lambda: trust,
        prefix=prefix,
    )


async def handed_over(desk: UpdateDesk, release_seq: int) -> None:
    app = {"kind": str(ReleaseKind.APP), "name": "palm-access-device"}
    await desk.take_manifest(signed(release(payload(), release_seq) | app, root=ROOT_KEY))
    for body in chunk_bodies(payload(), release_seq, 64):
        await desk.take_chunk(body)
    await asyncio.gather(*(task for task in asyncio.all_tasks() if task.get_name() == "update"))
    assert desk.state is not None
    assert desk.state.app is not None


def of_another_service(prefix: Path) -> None:
    """A board that had a release, and was provisioned again elsewhere."""
    (prefix / "roots.json").write_text(json.dumps({"roots": [STRANGER.public.b64]}))


def damaged_list(prefix: Path) -> None:
    (prefix / "roots.json").write_text("{")


def damaged_note(prefix: Path) -> None:
    (prefix / "update.json").write_text("{")


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (of_another_service, "untrusted"),
        (damaged_list, "untrusted"),
        (damaged_note, "updates_unusable"),
    ],
)
async def test_software_that_the_installer_cannot_even_note_is_reported_and_blocks_no_model(
    tmp_path: Path, spoil: Callable[[Path], None], code: str
) -> None:
    trust = registered()
    spoil(tmp_path)
    (tmp_path / "state").mkdir()
    desk = open_desk(tmp_path / "state", roots=lambda: trust.roots)
    reported = asyncio.Event()
    health = Health(lambda _words: reported.set())
    await handed_over(desk, 7)
    watching = asyncio.create_task(watched(desk, tmp_path, trust, health).run())
    await reported.wait()
    assert HealthWord.UPDATE_FAILED in health.words
    assert desk.state is not None
    assert desk.state.app is None
    assert desk.state.failed is not None
    assert desk.state.failed.code == code
    assert not (tmp_path / "state/updates/app").exists(), "which starts the installer again and again"
    await desk.take_offer(read_offer(signed(release(payload(), 8), root=ROOT_KEY)))
    assert desk.state.receiving is not None
    watching.cancel()
    await desk.finish()


@pytest.mark.parametrize("listed", [True, False], ids=["in root's list", "without a list"])
async def test_software_that_the_installer_takes_is_left_to_it(tmp_path: Path, listed: bool) -> None:
    trust = registered()
    if listed:
        Versions(tmp_path).roots(trust)
    (tmp_path / "state").mkdir()
    desk = open_desk(tmp_path / "state", roots=lambda: trust.roots)
    health = Health(lambda _words: None)
    await handed_over(desk, 7)
    watching = asyncio.create_task(watched(desk, tmp_path, trust, health).run())
    await asyncio.sleep(0.5)
    assert desk.state is not None
    assert desk.state.app is not None
    assert HealthWord.UPDATE_FAILED not in health.words
    watching.cancel()
    await desk.finish()


def root_item(key: SigningKey, by: SigningKey | None = None) -> JsonObject:
    item: JsonObject = {"kid": key.kid, "alg": "ed25519", "pub_b64": key.public.b64}
    if by is not None:
        item["root_sig_b64"] = b64_encode(by.sign(ROOT_PREFIX + key.public.raw))
    return item


def rotated(trust: Trust, old: SigningKey, new: SigningKey, seq: int) -> Trust:
    """The service adds a root, has the configuration signed under it, and revokes the old one; the new one is
    named once more, as it is pinned."""
    added = bundle(old, bundle_seq=seq, roots=[root_item(new, old)])
    trust = reread(with_bundle(trust, added, now_ms=NOW_MS), {"config": signed_config(root=new)})
    ended = bundle(new, bundle_seq=seq + 1, roots=[root_item(new)], revoked_kids=[old.kid])
    return with_bundle(trust, ended, now_ms=NOW_MS)


def test_roots_list_follows_roots_that_came_and_went_without_a_release(tmp_path: Path) -> None:
    versions = Versions(tmp_path)
    first = registered()
    assert versions.roots(first) == (ROOT_KEY.public,)
    third = rotated(rotated(first, ROOT_KEY, SECOND, 1), SECOND, THIRD, 3)
    save_trust(tmp_path / "trust.json", third)
    assert load_trust(tmp_path / "trust.json").roots == (THIRD.public,)
    assert versions.roots(load_trust(tmp_path / "trust.json")) == (THIRD.public,)
    assert json.loads((tmp_path / "roots.json").read_text()) == {"roots": [THIRD.public.b64]}


def test_roots_list_follows_no_root_that_nobody_signed(tmp_path: Path) -> None:
    """What palmd may write into trust.json counts for nothing."""
    versions = Versions(tmp_path)
    first = registered()
    versions.roots(first)
    forged = [root_item(THIRD, STRANGER), root_item(THIRD) | {"root_sig_b64": "x"}, root_item(THIRD)]
    for item in forged:
        claimed = {"former_roots": [root_item(SECOND, STRANGER), root_item(STRANGER)], "roots": [item]}
        with pytest.raises(UpdateRefused, match=r"roots\.json"):
            versions.roots(reread(first, claimed))
    assert json.loads((tmp_path / "roots.json").read_text()) == {"roots": [ROOT_KEY.public.b64]}
