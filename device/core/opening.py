"""Opens keys, trust, journal, gallery and model, before the core serves.

Keys, trust and journal hold promises already made, so without them the core refuses to start and says what to
do. Without a usable gallery or model only recognition is missing: the device starts, reports it in its
health, and answers hands with NOT_READY.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Final

from device import APP_PACKAGE
from device.config.config import DeviceConfig
from device.errors import TrustError
from device.health import HealthWord
from device.journal.journal import Journal
from device.platform.clock import Clock
from device.platform.threads import BulkTurn, StoreThread
from device.trust.attestation import UNATTESTED, is_attested, read_attested
from device.trust.credentials import key_source
from device.trust.keystore import KeyStore
from device.trust.known_time import gallery_now, known_time_ms
from device.trust.policy import Policy, read_policy
from device.trust.trust import Pinned, Trust, load_trust
from device.updates.desk import UpdateDesk
from device.updates.models import OpenedModel, gallery_facts, open_models
from device.values.status import MailStatus
from device.vision.hand_weights import wanted_landmarks
from gallery.errors import GalleryError
from gallery.gallery import Gallery
from link1.keys import PublicKey
from models.errors import ModelsError
from models.hand_landmarks import HandLandmarks
from models.pad_network import PadNetwork, open_pad_network

_ROLLED_BACK: Final = (
    "this device's storage went back to an earlier state (an older copy was restored, or the card lost "
    "writes), and no number may be used twice: restore the newest copy if there is one, or run "
    "`palmctl factory-reset`, have the device revoked, and provision it with a new token"
)
NO_VALIDATOR: Final = "no validator has proved itself yet"
"""The detail of LINK_DOWN while the port is open."""
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Opened:
    """The durable parts of the core, and the turn that its gallery waits for.

    `gallery_fault` says why there is no gallery."""

    config: DeviceConfig
    pinned: Pinned
    policy: Policy
    keys: KeyStore
    journal: Journal
    mail: MailStatus
    model: OpenedModel
    gallery: Gallery | None
    gallery_fault: str
    gallery_opens: Callable[[], bool]
    """Whether a gallery that did not open at the start would open now; for the gallery's thread."""
    bulk_turn: BulkTurn
    updates: UpdateDesk
    pad_network: PadNetwork | None
    hand_landmarks: HandLandmarks | None

    @property
    def trust(self) -> Trust:
        """What is pinned now."""
        return self.pinned.trust


async def open_device(
    config: DeviceConfig,
    clock: Clock,
    journal_thread: StoreThread,
    gallery_thread: StoreThread,
    *,
    boot_id: str,
    clock_kept: bool,
    bulk_turn: BulkTurn,
) -> Opened:
    """Open everything, each database on its thread. Raises StateError, which says what to do.

    `boot_id`: of this start of the machine. `clock_kept`: its wall clock ran on while the power was off.
    """
    keys = KeyStore.load(key_source(config.keys_dir))
    trust = load_trust(config.trust_path)
    pinned = Pinned(trust)
    _check_same_device(config, trust)
    policy = read_policy(trust.config, roots=trust.roots, taken_at_ms=trust.pinned_at_ms)
    journal = await journal_thread.do(lambda: _open_journal(config, trust, keys, clock))
    mail = await journal_thread.do(journal.mail.position)
    facts, time = await gallery_thread.do(lambda: gallery_facts(config, keys.data_key, trust.gallery))
    # As the running core will know the time: by another clock a start may undo what the core restarted for.
    now = gallery_now(clock)
    now_ms = time.after_restart(now, boot_id).at(now).last_known_ms
    model, updates = await journal_thread.do(lambda: open_models(config, facts, now_ms))
    pad_network, pad_fault = await journal_thread.do(lambda: _open_pad_network(config))
    if pad_fault:  # without the liveness network that its operator configured, a device recognises no one
        model = replace(model, embedder=None, fault="; ".join(filter(None, (model.fault, pad_fault))))
    gallery: Gallery | None = None

    def gallery_key(kid: str) -> PublicKey | None:
        # While the gallery is being opened, the time for checking a key's end is not known yet.
        at_ms = None if gallery is None else known_time_ms(gallery, clock)
        return pinned.trust.gallery_key(kid, at_ms)

    def open_gallery() -> tuple[Gallery | None, str]:
        if trust.gallery is None:
            return None, "the service registered this device without a gallery"
        stream, epoch = trust.gallery
        try:
            opened = Gallery(
                config.gallery_dir,
                data_key=keys.data_key,
                model_id=model.model_id,
                stream=stream,
                epoch=epoch,
                gallery_key=gallery_key,
                now=gallery_now(clock),
                boot_id=boot_id,
                clock_kept=clock_kept,
                pause=bulk_turn.wait,
            )
        except GalleryError as error:
            return None, f"{error}; move {config.gallery_dir} away, and the service fills a new gallery"
        return opened, ""

    def gallery_opens() -> bool:
        again, _ = open_gallery()
        if again is not None:
            again.close()
        return again is not None

    # Next to each other: a start's longest work, and a network whose opening holds no lock of Python's.
    (gallery, gallery_fault), hand_landmarks = await asyncio.gather(
        gallery_thread.do(open_gallery), journal_thread.do(lambda: _open_hand_landmarks(config))
    )
    if gallery is not None:
        pinned.heard(gallery.newest_head_ms)
    return Opened(
        config=config,
        pinned=pinned,
        policy=policy,
        keys=keys,
        journal=journal,
        mail=mail,
        model=model,
        gallery=gallery,
        gallery_fault=gallery_fault,
        gallery_opens=gallery_opens,
        bulk_turn=bulk_turn,
        updates=UpdateDesk(
            opened=updates,
            roots=lambda: pinned.trust.roots,
            revoked=lambda: pinned.trust.revoked_kids,
            now_ms=lambda: known_time_ms(gallery, clock),
            app_version=version(APP_PACKAGE),
            model_pinned=config.model.dir is not None,
        ),
        pad_network=pad_network,
        hand_landmarks=hand_landmarks,
    )


def first_words(opened: Opened, now_ms: int) -> dict[HealthWord, str]:
    """The health of a device right after opening, at `now_ms` (epoch)."""
    words = {
        HealthWord.LINK_DOWN: NO_VALIDATOR,
        HealthWord.CAMERA_FAULT: "the camera has not given a picture yet",
    }
    if not is_attested(read_attested(opened.config.device.state_dir, opened.keys), now_ms):
        words[HealthWord.KEY_UNATTESTED] = UNATTESTED
    if why := opened.journal.halted:
        words[HealthWord.ROLLED_BACK] = rolled_back_detail(why)
    if opened.model.fault:
        words[HealthWord.MODEL_FAULT] = opened.model.fault
    if opened.gallery_fault:
        words[HealthWord.STORE_FAULT] = opened.gallery_fault
    return words


def boot_id() -> str:
    """The id of this start of the machine, as the kernel gives it."""
    return BOOT_ID.read_text(encoding="ascii").strip()


def rolled_back_detail(why: str) -> str:
    """The detail of ROLLED_BACK for a technician."""
    return f"{why}; {_ROLLED_BACK}"


def _check_same_device(config: DeviceConfig, trust: Trust) -> None:
    for name, configured, registered in (
        ("id", config.device.id, trust.device_id),
        ("gate_id", config.device.gate_id, trust.gate_id),
        ("dbd_id", config.device.dbd_id, trust.dbd_id),
    ):
        if configured != registered:
            raise TrustError(
                f"[device] {name} in the configuration is {configured}, but this state directory was "
                f"registered as {registered}; correct the configuration, or provision the device again"
            )


def _open_journal(config: DeviceConfig, trust: Trust, keys: KeyStore, clock: Clock) -> Journal:
    journal = Journal(
        config.journal_path,
        device_id=trust.device_id,
        verdict_kid=keys.verdict.kid,
        data_key=keys.data_key,
        clock=clock,
    )
    journal.close_open_outcomes()
    journal.mail.begin_inbox(trust.inbox_next_seq)
    return journal


def _open_pad_network(config: DeviceConfig) -> tuple[PadNetwork | None, str]:
    """The network of `[liveness] model_dir`, if there is one, or why it cannot be used."""
    folder = config.liveness.model_dir
    if folder is None:
        return None, ""
    try:
        return open_pad_network(folder, config.camera.look), ""
    except ModelsError as error:
        return None, f"[liveness] model_dir: {error}"


def _open_hand_landmarks(config: DeviceConfig) -> HandLandmarks | None:
    """The published hand weights. Without them hands are found by own networks, which is no fault."""
    landmarks, why = wanted_landmarks(wanted=config.model.hand_weights)
    if landmarks is None:
        _log.warning("hands are found by this device's own networks alone: %s", why)
    return landmarks
