"""What each health word means and what a technician does about it, for the documents."""

from collections.abc import Mapping
from dataclasses import dataclass

from device.health import HealthWord


@dataclass(frozen=True, slots=True)
class Advice:
    """What a word means, and what a technician does about it. Each is one line of Markdown."""

    means: str
    do: str


ADVICE: Mapping[HealthWord, Advice] = {
    HealthWord.CAMERA_FAULT: Advice(
        "the camera delivers no frames",
        "check cable and power, then `[camera] source`; the device reopens the camera by itself. "
        "`palmctl doctor camera picture`",
    ),
    HealthWord.GALLERY_STALE: Advice(
        "no contact with the service for 6 h, or the gallery file went back to an earlier state "
        "(the detail says which)",
        "check the network and `palm-syncd`; without a network: does the validator carry mail? "
        "`palmctl doctor server gallery`",
    ),
    HealthWord.MODEL_FAULT: Advice(
        "the model does not load, or fails on every frame",
        "reinstall the package; see `palmctl doctor model`",
    ),
    HealthWord.MODEL_MISMATCH: Advice(
        "the gallery was made with another model",
        "install the gallery's model (`palmctl update status`), or ask the operator for a new epoch",
    ),
    HealthWord.STORE_FAULT: Advice(
        "the state directory cannot be read or written",
        "check disk, owner and free space: `palmctl doctor storage ownership`. Never delete `journal.db`",
    ),
    HealthWord.REVOKED: Advice(
        "the service has revoked this device",
        'the device has destroyed its gallery. Ask why; to use the board again see "Replacing a device"',
    ),
    HealthWord.ROLLED_BACK: Advice(
        "this device is in an earlier state than it was: an old card image, or a card that lost data",
        "do not keep using it: `palmctl factory-reset`, have it revoked, new token, provision again; if no "
        "old image was involved, on a new card",
    ),
    HealthWord.LINK_DOWN: Advice(
        "no validator has proved its identity",
        "check the cable, `[link] port` and the validator's power; compare the keys of both ends: "
        "`palmctl doctor cable validator`",
    ),
    HealthWord.OFFLINE: Advice(
        "the service cannot be reached; recognition continues for 6 h",
        "see that `palm-syncd` runs; then network, TLS and server: `palmctl doctor server`",
    ),
    HealthWord.CLOCK_UNTRUSTED: Advice(
        "this clock and the service's differ by more than 300 s",
        "`timedatectl set-ntp true`; without a network `timedatectl set-time`",
    ),
    HealthWord.STORAGE_LOW: Advice(
        "less than 64 MiB is free",
        "`du -xh / \\| sort -h \\| tail`; waiting verdicts leave by the network or by the validator's mail",
    ),
    HealthWord.TEMPERATURE: Advice(
        "the board is at 80 °C or more and slows down", "shade, ventilation, heat sink"
    ),
    HealthWord.SENSOR_MISMATCH: Advice(
        "validator and registration disagree about a passage sensor",
        "correct one of them; provisioning has `--passage-sensor`",
    ),
    HealthWord.UPDATE_FAILED: Advice(
        "an update did not start, and the previous version runs again",
        "`palmctl update status`; nothing needs doing at the gate",
    ),
    HealthWord.KEY_UNATTESTED: Advice(
        "no factory certificate vouches for the keys; for information only", "–"
    ),
}
"""One entry for each word, those that stop recognition first."""
