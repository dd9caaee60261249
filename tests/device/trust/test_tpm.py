"""A device attested by a key that a software TPM keeps, with the commands of the page."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from device.config.config import AttestSection, load_config, write_config
from tests.device.factory import PAGE, make_board, make_ca
from tests.device.reference_cloud import DBD_ID, GATE_ID, Server, running_server
from tests.docs.page_commands import blocks_of

MODULE = next(Path("/usr/lib").glob("*-linux-gnu/pkcs11/libtpm2_pkcs11.so"), None)
PROGRAMS = ("swtpm", "tpm2_ptool", "tpm2_print", "tpm2-abrmd", "dbus-daemon", "systemd-creds")
ABSENT = [name for name in PROGRAMS if shutil.which(name) is None] + (
    ["libtpm2-pkcs11-1"] if MODULE is None else []
)
READ_VALUE = """
import sys, pkcs11
with pkcs11.lib(sys.argv[1]).get_token(token_label="board").open(user_pin=sys.argv[2]) as session:
    key = session.get_key(pkcs11.ObjectClass.PRIVATE_KEY, label="attest")
    assert key[pkcs11.Attribute.NEVER_EXTRACTABLE] and not key[pkcs11.Attribute.EXTRACTABLE]
    try:
        key[pkcs11.Attribute.VALUE]
    except pkcs11.exceptions.AttributeTypeInvalid:
        print("refused")
"""

pytestmark = [
    pytest.mark.skipif(bool(ABSENT), reason=f"a software TPM needs {', '.join(ABSENT)}"),
    pytest.mark.timeout(120),
]


@dataclass
class SoftwareTpm:
    """A TPM of its own behind a resource manager, as /dev/tpmrm0 is; `environ` leads programs to it."""

    environ: Mapping[str, str]
    emulator: subprocess.Popen[bytes]


@contextmanager
def software_tpm(folder: Path, store: Path) -> Iterator[SoftwareTpm]:
    """A TPM without a past. `store`: the keys that it wrapped."""
    folder.mkdir()
    store.mkdir(exist_ok=True)
    bus = f"unix:path={folder}/bus"
    place = "tabrmd:bus_type=session"
    environ = dict(
        os.environ,
        DBUS_SESSION_BUS_ADDRESS=bus,
        TPM2TOOLS_TCTI=place,
        TPM2_PKCS11_TCTI=place,
        SYSTEMD_TPM2_DEVICE=place,
        TPM2_PKCS11_STORE=str(store),
    )
    with ExitStack() as running:

        def start(*command: str) -> subprocess.Popen[bytes]:
            process = running.enter_context(subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL))
            running.callback(process.kill)
            return process

        emulator = start(
            *("swtpm", "socket", "--tpm2", "--tpmstate", f"dir={folder}"),
            *("--server", f"type=unixio,path={folder}/tpm", "--ctrl", f"type=unixio,path={folder}/tpm.ctrl"),
            *("--flags", "not-need-init,startup-clear"),
        )
        start("dbus-daemon", "--session", "--nofork", f"--address={bus}")
        until((folder / "tpm").exists)
        until((folder / "bus").exists)
        start("tpm2-abrmd", "--session", "--allow-root", f"--tcti=swtpm:path={folder}/tpm")
        until(lambda: succeeds(environ, "tpm2_getrandom", "1"))
        yield SoftwareTpm(environ, emulator)


def until(what: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not what():
        assert time.monotonic() < deadline, "it never came to that"
        time.sleep(0.02)


def succeeds(environ: Mapping[str, str], *command: str) -> bool:
    return subprocess.run(command, env=environ, capture_output=True, check=False).returncode == 0


def type_in(place: str, folder: Path, environ: Mapping[str, str]) -> None:
    (block,) = (block for block in blocks_of(PAGE) if block.place == place)
    for command in block.commands:
        subprocess.run(
            ["bash", "-ec", command.text], cwd=folder, env=environ, check=True, capture_output=True
        )


def palmctl(tpm: SoftwareTpm, *words: str, given: str = "") -> dict[str, Any]:
    """A process of its own: a PKCS#11 module keeps its TPM for the life of the process."""
    command = [sys.executable, "-m", "tools.palmctl.main", *words, "--json"]
    done = subprocess.run(command, env=tpm.environ, input=given, capture_output=True, text=True, check=False)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def test_a_tpm_vouches_for_a_device_with_a_key_that_stays_in_it(tmp_path: Path) -> None:
    store, config_file = tmp_path / "store", tmp_path / "device.toml"
    pin_file = tmp_path / "pin"

    def doctor(tpm: SoftwareTpm) -> str:
        (finding,) = palmctl(tpm, "doctor", "attest", "--config", str(config_file))["checks"]
        return f"{finding['result']}: {finding['detail']}"

    with software_tpm(tmp_path / "tpm", store) as tpm, running_server(tmp_path / "server") as server:
        server.operate("factory-ca", "add", str(make_ca(tmp_path)))
        token = server.token("gate-7-left")
        provision(tpm, server, tmp_path, token)
        chain = make_board(tmp_path)  # of a key in a file
        type_in("board with a TPM", tmp_path, tpm.environ)
        signer = f"pkcs11:token=board;object=attest?module-path={MODULE}&pin-source=file:{pin_file}"
        config = replace(load_config(config_file), attest=AttestSection(chain, signer))
        write_config(config_file, config)
        assert "fail: [attest] signer holds another key" in doctor(tpm)

        type_in("factory for a TPM", tmp_path, tpm.environ)
        assert "warn: chain good for 3649 days, not verified" in doctor(tpm)
        provision(tpm, server, tmp_path, token)
        (listed,) = server.get("/v1/devices")["data"]
        assert listed["trust"] == {"attest_level": "x509", "verified": True}
        assert "ok: verified by the service on" in doctor(tpm)

        reading = [sys.executable, "-c", READ_VALUE, str(MODULE), pin_file.read_text().strip()]
        assert subprocess.check_output(reading, env=tpm.environ, text=True) == "refused\n"
        shutil.copytree(store, tmp_path / "copied")
        with software_tpm(tmp_path / "tpm-2", tmp_path / "copied") as another:
            assert "fail: [attest] signer: the token does not sign" in doctor(another)

        pin = pin_file.read_text()
        pin_file.write_text("1234")
        assert f"the PIN in {pin_file} is not the token's; correct it first" in doctor(tpm)
        pin_file.write_text(pin)
        assert "ok: verified" in doctor(tpm)
        tpm.emulator.terminate()
        tpm.emulator.wait(20)
        assert "see that the secure element answers" in doctor(tpm)


def provision(tpm: SoftwareTpm, server: Server, folder: Path, token: str) -> None:
    palmctl(
        *(tpm, "provision", "--server", server.url, "--token-stdin", "--device-id", "gate-7-left"),
        *("--gate-id", GATE_ID, "--dbd-id", DBD_ID, "--config", str(folder / "device.toml")),
        *("--state-dir", str(folder / "state"), "--runtime-dir", str(folder / "run")),
        given=token,
    )


def test_a_credential_sealed_to_a_tpm_opens_with_no_other(tmp_path: Path) -> None:
    key, sealed = tmp_path / "board.key", str(tmp_path / "sealed")
    make_ca(tmp_path)
    make_board(tmp_path)
    opening = ("systemd-creds", "decrypt", "--name=palm-access.attest", sealed, "-")
    with software_tpm(tmp_path / "tpm", tmp_path / "store") as tpm:
        sealing = ("systemd-creds", "encrypt", "--with-key=tpm2", "--name=palm-access.attest")
        assert succeeds(tpm.environ, *sealing, str(key), sealed)
        assert subprocess.check_output(opening, env=tpm.environ) == key.read_bytes()
    with software_tpm(tmp_path / "tpm-2", tmp_path / "store") as another:
        assert not succeeds(another.environ, *opening)
