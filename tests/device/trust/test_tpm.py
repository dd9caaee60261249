"""A device attested by a key that a software TPM keeps, with the commands of the page."""

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from device.config.config import AttestSection, load_config, write_config
from device.trust.credentials import encrypt_keys, run_tool
from device.trust.keystore import KeyStore
from tests.device.factory import PAGE, make_board, make_ca
from tests.device.reference_cloud import DBD_ID, GATE_ID, Server, running_server
from tests.docs.page_commands import blocks_of
from tests.palmctl import PALMCTL
from tests.until import until

Environ = Mapping[str, str]
MODULE, TO_THE_MANAGER = (
    next(Path("/usr/lib").glob(f"*-linux-gnu/{name}"), Path(name))
    for name in ("pkcs11/libtpm2_pkcs11.so", "libtss2-tcti-tabrmd.so.0")
)
PROGRAMS = (
    *("swtpm", "tpm2_ptool", "tpm2_print", "tpm2-abrmd", "dbus-daemon", "systemd-creds"),
    *(str(MODULE), str(TO_THE_MANAGER)),
)
ABSENT = [name for name in PROGRAMS if not (shutil.which(name) or Path(name).exists())]
READ_KEY = """
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
    pytest.mark.skipif(bool(ABSENT), reason=f"not installed for a software TPM: {', '.join(ABSENT)}"),
    pytest.mark.timeout(120),
]


@contextmanager
def software_tpm(folder: Path, store: Path) -> Iterator[Environ]:
    """A new TPM behind a resource manager, as /dev/tpmrm0 is, and the environment that leads programs to it.

    `store`: the folder with the keys that it wrapped.
    """
    folder.mkdir()
    store.mkdir(exist_ok=True)
    bus = f"unix:path={folder}/bus"
    tcti = ("TPM2TOOLS_TCTI", "TPM2_PKCS11_TCTI", "SYSTEMD_TPM2_DEVICE")
    environ = os.environ | dict.fromkeys(tcti, "tabrmd:bus_type=session")
    environ |= {"DBUS_SESSION_BUS_ADDRESS": bus, "TPM2_PKCS11_STORE": str(store)}
    server, control = (f"type=unixio,path={folder}/{name}" for name in ("tpm", "tpm.ctrl"))
    with ExitStack() as running:

        def start(command: str) -> None:
            process = subprocess.Popen(command.split(), env=environ, stderr=subprocess.DEVNULL)
            running.enter_context(process)
            running.callback(process.kill)

        start(
            f"swtpm socket --tpm2 --tpmstate dir={folder} --server {server} --ctrl {control} "
            "--flags not-need-init,startup-clear"
        )
        start(f"dbus-daemon --session --nofork --address={bus}")
        until(lambda: accepts(folder / "tpm") and accepts(folder / "bus"))
        start(f"tpm2-abrmd --session --allow-root --tcti=swtpm:path={folder}/tpm")
        until(lambda: succeeds(environ, "tpm2_getrandom", "1"))
        yield environ


def accepts(path: Path) -> bool:
    """A socket is seen before it listens."""
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def succeeds(environ: Environ, *command: str) -> bool:
    return subprocess.run(command, env=environ, capture_output=True, check=False).returncode == 0


def type_in(place: str, folder: Path, environ: Environ) -> None:
    (block,) = (block for block in blocks_of(PAGE) if block.place == place)
    for command in block.commands:
        subprocess.run(
            ["bash", "-ec", command.text], cwd=folder, env=environ, check=True, capture_output=True
        )


def palmctl(environ: Environ, command: str, given: str = "") -> dict[str, Any]:
    """A process of its own: a PKCS#11 module keeps its TPM for the life of the process."""
    words = [*PALMCTL, *command.split(), "--json"]
    done = subprocess.run(words, env=environ, input=given, capture_output=True, text=True, check=False)
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed


def provision(environ: Environ, server: Server, folder: Path, token: str) -> None:
    palmctl(
        environ,
        f"provision --server {server.url} --token-stdin --device-id gate-7-left --gate-id {GATE_ID} "
        f"--dbd-id {DBD_ID} --config {folder}/device.toml --state-dir {folder}/state "
        f"--runtime-dir {folder}/run",
        token,
    )


def test_a_tpm_vouches_for_a_device_with_a_key_that_stays_in_it(tmp_path: Path) -> None:
    store, config_file, pin_file = (tmp_path / name for name in ("store", "device.toml", "pin"))

    def doctor(environ: Environ) -> str:
        (finding,) = palmctl(environ, f"doctor attest --config {config_file}")["findings"]
        return f"{finding['result']}: {finding['detail']}"

    with software_tpm(tmp_path / "tpm", store) as tpm, running_server(tmp_path / "server") as server:
        server.operate("factory-ca", "add", str(make_ca(tmp_path)))
        token = server.token("gate-7-left")
        provision(tpm, server, tmp_path, token)
        chain = make_board(tmp_path)  # of a key in a file
        type_in("board with a TPM", tmp_path, tpm)
        signer = f"pkcs11:token=board;object=attest?module-path={MODULE}&pin-source=file:{pin_file}"
        write_config(config_file, replace(load_config(config_file), attest=AttestSection(chain, signer)))
        assert "fail: [attest] signer holds another key" in doctor(tpm)

        type_in("factory for a TPM", tmp_path, tpm)
        provision(tpm, server, tmp_path, token)
        (listed,) = server.get("/v1/devices")["data"]
        assert listed["trust"] == {"attest_level": "x509", "verified": True}
        assert "ok: verified by the service on" in doctor(tpm)

        pin = pin_file.read_text()
        reading = [sys.executable, "-c", READ_KEY, str(MODULE), pin.strip()]
        assert subprocess.check_output(reading, env=tpm, text=True) == "refused\n"
        with software_tpm(tmp_path / "tpm-2", Path(shutil.copytree(store, tmp_path / "copied"))) as another:
            assert "fail: [attest] signer: the token does not sign" in doctor(another)

        pin_file.write_text("1234")
        assert f"the PIN in {pin_file} is not the token's; correct it first" in doctor(tpm)
        pin_file.write_text(pin)
        assert "ok: verified" in doctor(tpm)
    assert "see that the secure element answers" in doctor(tpm)


@pytest.mark.skipif(os.geteuid() != 0, reason="systemd-creds needs root")
def test_the_keys_of_a_device_sealed_to_a_tpm_open_with_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `palmctl keys encrypt --with-key tpm2`, without the restart of units."""
    keys = KeyStore.create(tmp_path / "keys")
    credstore = tmp_path / "credstore"
    opening = [
        "systemd-creds",
        "decrypt",
        "--name=palm-access.data",
        str(credstore / "palm-access.data"),
        "-",
    ]
    with software_tpm(tmp_path / "tpm", tmp_path / "store") as tpm, monkeypatch.context() as patched:
        for name, value in tpm.items():
            patched.setenv(name, value)
        encrypt_keys(tmp_path / "keys", with_key="tpm2", credstore=credstore)
        assert run_tool(opening, b"") == keys.data_key
    with software_tpm(tmp_path / "tpm-2", tmp_path / "store") as another:
        assert not succeeds(another, *opening)
