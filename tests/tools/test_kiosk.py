"""The totem's kiosk: what its browser refuses, what its keyboard lacks, the watchdog that its page feeds."""

import ctypes.util
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests import REPOSITORY
from tests.palmctl import PALMCTL
from tools.palmctl.pages.server import LocalPage, Reply
from tools.rig.browser import browsing, find_chromium
from tools.rig.packaging.deb import SYSTEM_FILES

KIOSK = REPOSITORY / "systemd" / "kiosk"
CHROMIUM = find_chromium()
XKB = ctypes.util.find_library("xkbcommon")
WITHIN_S = 30.0

LEFT_CTRL, RIGHT_CTRL, LEFT_ALT, RIGHT_ALT, LEFT_META, RIGHT_META, ESC, F1, F4, F11, F12, MENU = (
    29, 97, 56, 100, 125, 126, 1, 59, 62, 87, 88, 127,
)  # fmt: skip
"""Of linux/input-event-codes.h."""
VOID_SYMBOL = 0xFFFFFF


@pytest.mark.skipif(
    CHROMIUM is None or os.geteuid() != 0 or shutil.which("unshare") is None,
    reason="needs chromium, and root to put the policies into a mount namespace",
)
def test_the_browser_opens_the_totem_s_page_and_nothing_else(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    managed = tmp_path / "chromium" / "policies" / "managed"
    managed.mkdir(parents=True)
    policies = json.loads((KIOSK / "policies.json").read_text(encoding="utf-8"))
    # DevTools is how this test looks at the page.
    assert (policies.pop("DeveloperToolsAvailability"), policies.pop("RemoteDebuggingAllowed")) == (2, False)
    (managed / "kiosk.json").write_text(json.dumps(policies))
    managed_chromium = tmp_path / "managed-chromium"
    managed_chromium.write_text(
        "#!/bin/sh\nexec unshare --mount sh -c "
        f'\'mount --bind {tmp_path}/chromium /etc/chromium && exec {CHROMIUM} "$@"\' sh "$@"\n'
    )
    managed_chromium.chmod(0o755)
    page = LocalPage({"GET ": lambda _members: Reply(b"<h1>the totem</h1>", "text/html; charset=utf-8")})
    try:
        with browsing(str(managed_chromium)) as tab:
            tab.open(page.url)
            assert tab.value("document.body.innerText") == "the totem"
            for other in (
                page.url.replace("127.0.0.1", "localhost"),
                "file:///etc/hostname",
                "chrome://version",
                "chrome://settings",
                "data:text/html,hello",
                "view-source:" + page.url,
                "https://example.org/",
            ):
                tab.open(other)
                assert tab.value("document.body.innerText").startswith("This page is blocked"), other
            tab.open(page.url)
            assert tab.value("document.body.innerText") == "the totem"
    finally:
        page.close()


@pytest.mark.skipif(XKB is None, reason="needs libxkbcommon, which every Wayland compositor brings")
def test_its_keyboard_types_codes_and_has_no_key_that_leads_out(tmp_path: Path) -> None:
    """The layout as cage compiles it."""
    (tmp_path / "symbols").mkdir()
    shutil.copy(KIOSK / "keyboard.xkb", tmp_path / "symbols" / "palm-kiosk")
    done = subprocess.run(
        [sys.executable, "-c", PRESS, str(XKB)],
        env={"XKB_CONFIG_EXTRA_PATH": str(tmp_path), "XKB_DEFAULT_LAYOUT": "palm-kiosk"},
        capture_output=True,
        text=True,
        timeout=WITHIN_S,
        check=True,
    )
    pressed = {
        int(code): (int(mods), int(sym)) for code, mods, sym in map(str.split, done.stdout.splitlines())
    }
    for code in (
        LEFT_CTRL,
        RIGHT_CTRL,
        LEFT_ALT,
        RIGHT_ALT,
        LEFT_META,
        RIGHT_META,
        ESC,
        *range(F1, F1 + 10),
        F11,
        F12,
        MENU,
    ):
        assert pressed[code] == (0, VOID_SYMBOL), code
    names = {30: "a", 2: "1", 44: "z", 57: " "}
    assert {code: chr(pressed[code][1]) for code in names} == names
    assert {pressed[code][1] for code in (15, 28, 14, 103)} == {
        0xFF09,
        0xFF0D,
        0xFF08,
        0xFF52,
    }  # Tab Enter ⌫ Up
    assert pressed[42] == (1, 0xFFE1)  # Shift


PRESS = """
import ctypes, sys
xkb = ctypes.CDLL(sys.argv[1])
made = xkb.xkb_context_new, xkb.xkb_keymap_new_from_names, xkb.xkb_state_new
for function in made:
    function.restype = ctypes.c_void_p
context = ctypes.c_void_p(made[0](0))
keymap = ctypes.c_void_p(made[1](context, None, 0))
assert keymap.value, "the layout does not compile"
for code in range(1, 128):
    state = ctypes.c_void_p(made[2](keymap))
    xkb.xkb_state_update_key(state, code + 8, 1)
    print(code, xkb.xkb_state_serialize_mods(state, 8), xkb.xkb_state_key_get_one_sym(state, code + 8))
"""
"""Each key of a keyboard, pressed alone: its code, the modifiers it sets and the symbol it types."""


def test_the_script_names_what_is_missing(tmp_path: Path) -> None:
    run = {"PATH": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    script = ["/bin/sh", str(KIOSK / "palm-kiosk")]
    done = subprocess.run(script, env=run, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert (done.returncode, "apt install cage chromium" in done.stderr) == (2, True)
    for name in ("cage", "chromium"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(script, env=run, capture_output=True, text=True, timeout=WITHIN_S, check=False)
    assert (done.returncode, "systemctl start palm-totem" in done.stderr) == (1, True)


def test_the_watchdog_is_fed_while_the_page_asks_and_no_longer(tmp_path: Path) -> None:
    """A browser that hangs, or a page whose script does, asks for no state: systemd restarts both."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(WITHIN_S)
    url_file = tmp_path / "url"
    config = tmp_path / "device.toml"
    config.write_text(
        '[device]\nid = "gate-7"\ngate_id = "g7"\ndbd_id = "d7"\nstate_dir = "state"\nruntime_dir = "run"\n'
        '[camera]\nsource = "/dev/video99"\n[link]\nport = "/dev/ttyACM99"\n'
    )
    program = subprocess.Popen(
        [*PALMCTL, "totem", "--config", str(config), "--url-file", str(url_file)],
        env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "60000000"},
        stdout=subprocess.DEVNULL,
    )
    try:
        assert manager.recv(4096).startswith(b"READY=1")
        url = url_file.read_text()
        assert httpx.get(url).status_code == 200  # the page itself says nothing about its script
        for _ in range(2):
            assert httpx.get(url + "state?after=0").status_code == 503  # no core: not the browser's fault
            assert manager.recv(4096) == b"WATCHDOG=1"
        manager.setblocking(False)
        with pytest.raises(BlockingIOError):
            manager.recv(4096)
    finally:
        program.terminate()
        program.wait(WITHIN_S)
        manager.close()


def test_the_units_name_files_that_the_package_brings() -> None:
    places = set(SYSTEM_FILES.values())
    unit = (REPOSITORY / "systemd" / "palm-kiosk.service").read_text(encoding="utf-8")
    script = (KIOSK / "palm-kiosk").read_text(encoding="utf-8")
    assert "ExecStart=/usr/libexec/palm-access/palm-kiosk\n" in unit
    assert "/usr/libexec/palm-access/palm-kiosk" in places
    assert "BindReadOnlyPaths=/usr/share/palm-access/kiosk/chromium:/etc/chromium\n" in unit
    assert "/usr/share/palm-access/kiosk/chromium/policies/managed/palm-kiosk.json" in places
    assert "share=${PALM_KIOSK_SHARE:-/usr/share/palm-access/kiosk}" in script
    assert "/usr/share/palm-access/kiosk/xkb/symbols/palm-kiosk" in places
