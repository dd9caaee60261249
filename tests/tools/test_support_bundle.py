"""The support bundle of a device that is full of marked secrets and personal values: it has none."""

import base64
import json
import os
import stat
import tarfile
import time
import uuid
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from device.trust.keystore import KeyStore
from tools.palmctl.main import main
from tools.palmctl.scrub import REMOVED, Scrubber

MARK = "Zq7Marked"
VECTOR = np.random.default_rng(5).standard_normal(512).astype("<f4").tobytes()
CPFS = ("529.982.247-25", "52998224725", "529 982 247 25")
TEMPLATE_ID = "9f8e7d6c5b4a39281706f5e4d3c2b1a0"
SUBJECT_REF = "0123456789abcdef0123456789abcdef"
SUBJECT_ID = str(uuid.UUID(int=0xABCDEF0123456789ABCDEF0123456789))
TOKEN = "pk_live_Zk3fQ9xW2vB7nM4cR8tY1uL6sD5gH0jP"
ONBOARD_REF = f"{MARK}-card-4711"
PHONE = "+55 11 98765-4321"
EMAIL = "maria.silva@example.com"

SPOKEN = [
    f"ERROR token={TOKEN} refused",
    f"Authorization: Bearer {TOKEN}",
    f"Authorization: Provisioning {TOKEN}",
    f"Authorization: Bearer {MARK}",
    f"phone: {PHONE}",
    f"cpf={CPFS[2]}",
    f'{{"subject_ref": "{SUBJECT_REF}", "onboard_ref": "{ONBOARD_REF}"}}',
    f"template_id: {TEMPLATE_ID}",
    f"applied {TEMPLATE_ID} for {SUBJECT_REF} and {SUBJECT_ID}",
    *(f"person {cpf} at the gate" for cpf in CPFS),
    f"vector_b64={base64.b64encode(VECTOR).decode()}",
    f"dump {base64.b64encode(VECTOR).decode()}",
    f"password='{MARK} with spaces'",
    f"external_ref={MARK}-acct, more",
    f"call {PHONE} or {EMAIL}",
]


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys, gallery, journal, trust, configuration, log: each with marked contents."""
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    KeyStore.create(state / "keys")
    (tmp_path / "run").mkdir()
    text = "\n".join(SPOKEN).encode()
    seeded = ("trust.json", "journal.db", "journal.db-wal", "gallery/gallery.db", "wipe.json", "revoked.json")
    for name in (*seeded, "registration-request.json", "updates/slot-a/app", "notes.txt"):
        (state / name).parent.mkdir(parents=True, exist_ok=True)
        (state / name).write_bytes(text + VECTOR)
    (state / f"{TEMPLATE_ID}.tmp").write_bytes(b"a file whose very name is an identifier")
    config = tmp_path / "device.toml"
    config.write_text(
        f"# {' '.join(CPFS)} {TOKEN} {ONBOARD_REF}\n"
        '[device]\nid = "gate-7-left"\ngate_id = "gate-7"\ndbd_id = "dbd-7"\nstate_dir = "state"\n'
        'runtime_dir = "run"\n[camera]\nsource = "/dev/video99"\n[link]\nport = "/dev/ttyACM99"\n'
    )
    journal = tmp_path / "bin" / "journalctl"
    journal.parent.mkdir()
    entries = [
        {"__REALTIME_TIMESTAMP": str(1_790_000_000_000_000 + n), "_SYSTEMD_UNIT": "palmd.service",
         "PRIORITY": "4", "MESSAGE": line}
        for n, line in enumerate([*SPOKEN, "health: CAMERA_FAULT LINK_DOWN", "ready: gate-7-left"])
    ]  # fmt: skip
    (tmp_path / "log.json").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    journal.write_text(f"#!/bin/sh\ncat {tmp_path}/log.json\n")
    journal.chmod(0o755)
    monkeypatch.setenv("PATH", f"{journal.parent}:{os.environ['PATH']}")
    monkeypatch.setattr("tools.palmctl.unit_logs.BOOTED", tmp_path)
    return config


def bundle(config: Path, file: Path) -> Result:
    return CliRunner().invoke(main, ["support-bundle", str(file), "--config", str(config), "--json"])


def test_nothing_that_must_stay_is_in_it(device: Path, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    done = bundle(device, file)
    assert done.exit_code == 0, done.output
    with tarfile.open(file) as archive:
        held = {
            entry.name.partition("/")[2]: (archive.extractfile(entry) or pytest.fail(entry.name)).read()
            for entry in archive
        }
    everything = b"\n".join((*held.values(), *(name.encode() for name in held)))
    keys = [path.read_bytes() for path in (tmp_path / "state" / "keys").iterdir()]
    vector = base64.b64encode(VECTOR)
    forbidden = [
        *keys, *(key.hex().encode() for key in keys), *(base64.b64encode(key)[:20] for key in keys),
        VECTOR[:16], *(vector[at : at + 12] for at in range(0, len(vector) - 12, 97)),
        *(word.encode() for word in (*CPFS, TOKEN, TEMPLATE_ID, SUBJECT_REF, SUBJECT_ID, MARK, PHONE, EMAIL)),
        *(value.partition(" ")[2].encode() for value in (PHONE, CPFS[2])),
    ]  # fmt: skip
    for secret in forbidden:
        assert secret not in everything, secret[:24]
    assert set(held) == {
        "README.txt", "versions.json", "status.json", "doctor.json", "config.json", "state.json",
        "units.json", "udev.json", "health.txt", "log.txt",
    }  # fmt: skip
    # And it still says something
    assert json.loads(held["config.json"])["device"]["id"] == "gate-7-left"
    assert {item["name"] for item in json.loads(held["doctor.json"])} >= {"camera", "storage"}
    assert b"CAMERA_FAULT LINK_DOWN" in held["health.txt"]
    assert b"ready: gate-7-left" in held["log.txt"]
    assert len(held["log.txt"].splitlines()) == len(SPOKEN) + 2


def test_it_is_private_and_never_written_over(device: Path, tmp_path: Path) -> None:
    file = tmp_path / "bundle.tar.gz"
    assert bundle(device, file).exit_code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    again = bundle(device, file)
    assert again.exit_code == 1 and "choose another name" in again.stderr
    assert file.read_bytes() == before
    assert not list(tmp_path.glob(".support-bundle-*"))


def test_a_clock_in_the_next_century_is_no_obstacle(
    device: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 2.0**32)
    assert bundle(device, tmp_path / "bundle.tar.gz").exit_code == 0
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        assert {entry.mtime for entry in archive.getmembers()} == {2**32}


@pytest.mark.parametrize("name", ["bundle.zip", "nowhere/bundle.tar.gz"])
def test_a_place_that_cannot_be(device: Path, tmp_path: Path, name: str) -> None:
    done = bundle(device, tmp_path / name)
    assert done.exit_code == 1 and not (tmp_path / name).exists()


def test_what_helps_stays() -> None:
    kid = "857666d8f8cf39614cc80be69c7f74d9"
    scrub = Scrubber(keep=frozenset({kid}))
    for harmless in (
        f"session up with key {kid}",
        "p50 18 ms over 4821 verdicts, epoch 3 seq 12345",
        "/var/lib/palm-access/gallery/gallery.db cannot be opened",
        "at 1790000000123 INFO device.capture: camera: /dev/video0 gives pictures",
    ):
        assert scrub.text(harmless) == harmless
    assert scrub.value({"vector": 830, "token": "abc", "subject_ref": None, "n": 52998224725}) == {
        "vector": 830, "token": REMOVED, "subject_ref": None, "n": REMOVED,
    }  # fmt: skip


@pytest.mark.parametrize("pin", ["48151623", "a,b;c)d]e}f", "%C3%A9'x"])
def test_the_pin_of_a_token_goes_though_no_uri_is_the_place_for_it(pin: str) -> None:
    scrub = Scrubber()
    signer = f"pkcs11:object=attest?pin-value={pin}&module-path=/usr/lib/p11.so"
    for said in (scrub.value({"attest": {"signer": signer}}), scrub.text(f'signer = "{signer}"')):
        assert pin not in str(said)
        assert f"pin-value={REMOVED}&module-path=/usr/lib/p11.so" in str(said)
