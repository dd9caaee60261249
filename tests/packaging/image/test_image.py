"""The image, from the card to a serving gate, and through power cuts (make image-test: most of an hour).

A board is qemu, which emulates the processor; its power is SIGKILL. What the guest had handed to its disk is
there afterwards, what it held in memory is not: a card that loses what it had confirmed is not tried here.
"""

import base64
import os
import re
import shutil
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from device.provisioning.invitation import read_invitation
from tests import REPOSITORY
from tests.authorities import Authority
from tests.packaging.image.board import FIRMWARE, HOST, PROVISION_FILE, Board
from tools.rig.demo.programs import Program, RunningPrograms, module, palmctl
from tools.rig.hil.machine import QEMU

IMAGE = Path(os.environ.get("PALM_IMAGE", REPOSITORY / "build/image/palm-access-amd64.img"))
pytestmark = [
    pytest.mark.skipif(os.environ.get("PALM_IMAGE_TEST") != "1", reason="starts machines: make image-test"),
    pytest.mark.skipif(
        any(shutil.which(name) is None for name in (QEMU, "mcopy", "sfdisk")) or not FIRMWARE.exists(),
        reason="apt install qemu-system-x86 ovmf mtools fdisk",
    ),
    pytest.mark.timeout(7200),
]
STARTED_WITHIN_S = 1800.0
"""By this machine's clock: an emulated processor on a busy machine takes minutes."""
SHOWN = ("palm-access: PROVISIONED", "palm-access: NOT ")
CUTS = ((0.3, 0.0), (0.55, 2.0), (0.75, 5.0), (0.85, 10.0), (0.95, 20.0))
"""When the power goes: during one start, as a share of the time that an undisturbed first start takes until
the gate serves; and during the next one, seconds after the gate serves again."""


@dataclass
class Site:
    """A service with TLS, a validator, and the cable between it and a board."""

    folder: Path
    stage: RunningPrograms
    data: Path
    tenant: str
    url: str
    authority: Authority
    cable: dict[str, str]
    validator: Program | None = None
    first_start_s: float = 0.0
    """How long an undisturbed first start took until the gate served."""

    def invite(self, device_id: str) -> str:
        made = palmctl(
            *("cloud", "device", "invite", "--data", str(self.data), "--tenant", self.tenant),
            *("--mode", "live", "--device-id", device_id, "--gate-id", "gate-7", "--dbd-id", "dbd-7"),
            *("--url", self.url, "--ca-file", str(self.authority.file), "--expires-in-s", "20000"),
        )
        return f'string = "{made["string"]}"\nlink_port = "/dev/ttyUSB0"\n'

    def meet(self, verdict_key_b64: str) -> None:
        """A validator that pins this device's key takes its end of the cable."""
        self.leave()
        key_file = self.folder / "validator.key"
        words = ("--port", self.cable["validator"], "--dbd-id", "dbd-7", "--gate-id", "gate-7")
        self.validator = self.stage.start(
            "validator",
            module(
                *("tools.palmctl.main", "dbd", "simulate", *words, "--key-file", str(key_file)),
                *("--device-pub-b64", verdict_key_b64, "--json"),
            ),
        )

    def leave(self) -> None:
        if self.validator is not None:
            self.validator.stop()

    def wait_serving(self, within_s: float) -> dict[str, Any]:
        """A signed status of the device that the validator pinned, which says that it serves."""
        assert self.validator is not None
        return self.validator.wait_line(
            lambda line: line.get("event") == "status" and line["serving"], within_s
        )

    def forget(self) -> None:
        """What the validator has said so far."""
        assert self.validator is not None
        for _ in self.validator.json_lines():
            pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    (folder / "logs").mkdir()
    with RunningPrograms(folder / "logs") as stage:
        data = ("--data", str(folder / "cloud"))
        tenant = palmctl("cloud", "tenant", "create", "Metro", *data)["tenant_id"]
        key = palmctl("dbd", "key", "--generate", "--key-file", str(folder / "validator.key"))
        place = ("--tenant", tenant, "--mode", "live")
        palmctl("cloud", "dbd", "add", *data, *place, "--dbd-id", "dbd-7", "--pub-b64", key["pub_b64"])
        authority = Authority.made(folder, "authority")
        cert, cert_key = authority.server(at=HOST)
        tls = ("--tls-cert", str(cert), "--tls-key", str(cert_key), "--port", "0", "--no-admin", "--json")
        server = stage.start("server", module("tools.palmctl.main", "cloud", "serve", *data, *tls))
        port = server.wait_line(lambda line: "url" in line, 60)["url"].rpartition(":")[2]
        cable = stage.start("cable", module("tools.palmctl.main", "link", "pair", "--json"))
        ends = cable.wait_line(lambda line: "device" in line, 60)
        yield Site(folder, stage, folder / "cloud", tenant, f"https://{HOST}:{port}", authority, ends)


@pytest.fixture
def board(site: Site, tmp_path: Path) -> Iterator[Board]:
    board = Board(tmp_path / "card.img", site.cable["device"])
    try:
        yield board
    finally:
        board.cut()
        keep = REPOSITORY / "build/image" / f"{tmp_path.name}.console"
        shutil.copy(board.console, keep)
        board.card.unlink(missing_ok=True)


def verdict_key_of(shown: str) -> str:
    """The key that the board shows for the validator to pin."""
    found = re.search(r"verdict key +(\S+)", shown)
    assert found is not None, shown[-2000:]
    return found[1]


def first_serving(board: Board, site: Site) -> None:
    """From the card to a serving gate."""
    board.switch_on()
    assert board.wait_shown(SHOWN, STARTED_WITHIN_S) == SHOWN[0], board.shown()[-2000:]
    site.meet(verdict_key_of(board.shown()))
    site.wait_serving(STARTED_WITHIN_S)
    site.first_start_s = board.on_for_s()
    print(f"a serving gate after {site.first_start_s:.0f} s", flush=True)


def test_a_card_becomes_a_serving_gate_and_says_so_and_nothing_of_the_string_stays(
    site: Site, board: Board
) -> None:
    provision = site.invite("gate-7-left")
    board.flash(IMAGE, provision)
    root = board.digest("palm-root")
    first_serving(board, site)
    time.sleep(5)
    board.cut()
    assert board.boot_file(PROVISION_FILE) == b""
    start, size = board.partition("palm-boot")
    string = provision.split('"')[1]
    with board.card.open("rb") as card:
        card.seek(start)
        boot = card.read(size)
    assert string[:40].encode() not in boot, "it was overwritten before it was removed"
    assert read_invitation(string).token.encode() not in boot
    assert board.digest("palm-root") == root, "the root partition is never written"
    begins, size = board.partition("palm-state")
    assert begins + size > board.card.stat().st_size - (4 << 20), "the state has the rest of the card"
    board.check_state()


def test_the_power_goes_at_ten_moments(site: Site, board: Board) -> None:
    if not site.first_start_s:  # this test alone
        board.flash(IMAGE, site.invite("gate-8-left"))
        first_serving(board, site)
        board.cut()
    whole_s = site.first_start_s
    board.flash(IMAGE, site.invite("gate-9-left"))
    root, key = board.digest("palm-root"), ""
    for share, serving_s in (*CUTS, (None, 0.0)):
        if share is not None:
            board.switch_on()
            time.sleep(share * whole_s)
            board.cut()
            print(f"cut {share * whole_s:.0f} s after the power came", flush=True)
        board.switch_on()
        assert board.wait_shown(SHOWN, STARTED_WITHIN_S) == SHOWN[0], board.shown()[-2000:]
        if not key:
            key = _known_key(site, "gate-9-left")
            site.meet(key)
        site.forget()
        site.wait_serving(STARTED_WITHIN_S)
        print(f"serving {board.on_for_s():.0f} s after the power came back", flush=True)
        time.sleep(serving_s)
        board.cut()
        assert _known_key(site, "gate-9-left") == key, "one set of keys, through every cut"
    assert board.digest("palm-root") == root
    board.check_state()


def test_a_card_that_cannot_serve_says_what_to_do(site: Site, board: Board) -> None:
    board.flash(IMAGE, "string = PALM1\n")
    board.switch_on()
    board.wait_shown(["NOT PROVISIONED. palm-provision.toml: expected TOML"], STARTED_WITHIN_S)
    board.cut()
    start, _ = board.partition("palm-state")
    with board.card.open("r+b") as card:
        card.seek(start)
        card.write(bytes(8 << 20))
    board.switch_on()
    board.wait_shown(["NOT SERVING. The state partition cannot be used"], STARTED_WITHIN_S)
    assert "What to do: " in board.shown()


def _known_key(site: Site, device_id: str) -> str:
    """The verdict key that the service has registered for a device."""
    with sqlite3.connect(f"file:{site.data}/cloud.db?mode=ro", uri=True) as store:
        rows = store.execute(
            "SELECT pub FROM device_keys WHERE device_id = ? AND purpose = 'verdict'", (device_id,)
        ).fetchall()
    assert len(rows) == 1, rows
    return base64.b64encode(rows[0][0]).decode("ascii")
