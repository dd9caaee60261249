"""A board with a TPM 2.0 (swtpm) and its service in one machine: the commands of docs/howto/ATTESTATION.md.

The factory's key is made in the TPM and signs there, under palmd's own unit; the device's keys are sealed to
it. Then the machine starts with another TPM, and again with the first one.
"""

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from link1.keys import SigningKey
from tools.rig.hil.errors import HilError
from tools.rig.hil.image import Image, Tell, make_image
from tools.rig.hil.machine import SWTPM, Machine, running, software_tpm
from tools.rig.hil.machine_device import CONFIG, put_agent
from tools.rig.hil.rig import START_WITHIN_S, ScenarioFailed
from tools.rig.hil.scenarios import Figures
from tools.rig.packaging import tree
from tools.rig.packaging.debian_package import RELEASES
from tools.rig.packaging.release.distributions import build_distributions
from tools.rig.packaging.release.server_deb import ServerBuild, build_server_deb
from tools.rig.packaging.wheels import BuildTarget

NAME = "board with a tpm"
_SOURCE = Path(__file__).parents[3]
_PAGE = _SOURCE / "docs/howto/ATTESTATION.md"
_BLOCK = re.compile(r"<!-- on: ([^>]*?) -->\n```console\n(.*?)```", re.DOTALL)
_SIGNER = re.compile(r'^ +(signer = "pkcs11:.*")$', re.MULTILINE)
_WORK = Path("/srv/attest")
"""The factory and the board share a folder in the machine: what one carries to the other is there."""
_DEVICE, _DBD = "gate-7-left", "dbd-7"


def why_not() -> str | None:
    """Why the scenario cannot be played here; None where it can."""
    return None if shutil.which(SWTPM) else f"{SWTPM} is not installed (apt install swtpm)"


def board_with_a_tpm(cache: Path, package: Path, tell: Tell) -> Figures:
    """Attest and seal; refuse with another TPM; serve with the first one. Raises ScenarioFailed, HilError."""
    tell("making a service for a board with a TPM")
    image = _make_image(cache, package, tell)
    with tempfile.TemporaryDirectory(prefix="palm-hil-tpms-") as name:
        first, other = Path(name, "first"), Path(name, "other")
        with _started(image, cache, first) as machine:
            figures = _attest(machine) | _seal(machine)
        with _started(image, cache, other) as machine:
            figures |= _refuse(machine)
        with _started(image, cache, first) as machine:
            figures |= _serve_again(machine)
    return figures


def _attest(machine: Machine) -> Figures:
    """The key is made in the TPM and certified; palmd signs with it, and the service verifies it."""
    _wait(machine, "the TPM", lambda: machine.run("test", "-c", "/dev/tpmrm0", check=False).rc == 0)
    for place in ("factory", "board with a TPM, before", "board with a TPM", "factory for a TPM"):
        _type_in(machine, place)
    _type_in(machine, "board with a TPM, after")

    def operate(*words: str) -> dict[str, Any]:
        return _printed(machine, "palm-access-cloud", *words, "--json")

    tenant = ("--tenant", operate("tenant", "create", "metro")["tenant_id"], "--mode", "live")
    operate("dbd", "add", *tenant, "--dbd-id", _DBD, "--pub-b64", SigningKey.generate().public.b64)
    operate("factory-ca", "add", f"{_WORK}/factory-ca.pem")
    token = operate("token", "create", *tenant, "--device-id", _DEVICE)["token"]
    machine.write("/root/token", token + "\n")
    machine.run(
        *("sh", "-c", 'exec "$@" < /root/token', "sh", "palmctl", "provision", "--token-stdin"),
        *("--server", "http://127.0.0.1:8710", "--device-id", _DEVICE, "--gate-id", "gate-7"),
        *("--dbd-id", _DBD),
    )
    signer = _SIGNER.search(_PAGE.read_text(encoding="utf-8"))
    if signer is None:
        raise HilError(f"{_PAGE.name} shows no signer")
    section = f'\n[attest]\nchain_file = "/etc/palm-access/attest/chain.pem"\n{signer[1]}\n'
    machine.write(str(CONFIG), machine.run("cat", str(CONFIG)).stdout + section)
    begun_s = machine.now_s()
    machine.run("systemctl", "restart", "palmd", "palm-syncd", timeout_s=120)

    def trust() -> Any:
        return operate("device", "show", _DEVICE, *tenant)["device"]["trust"]

    _wait(machine, "the service to verify", lambda: trust() == {"attest_level": "x509", "verified": True})
    verified_s = machine.now_s()
    _expect(machine, "attest", "ok", "verified by the service")
    _expect(machine, "sandbox", "ok", "as the package has it")
    return {"verified_after_s": round(verified_s - begun_s, 1)}


def _seal(machine: Machine) -> Figures:
    """The device's keys are encrypted credentials of this TPM, and palmd starts with them."""
    begun_s = machine.now_s()
    kind = _printed(machine, "palmctl", "keys", "encrypt", "--json")["encrypted_with"]
    if kind != "host+tpm2":
        raise ScenarioFailed(f"the keys were encrypted with {kind}, and this board has a TPM")
    _answers(machine)
    sealed_s = machine.now_s()
    _expect(machine, "provisioned", "ok", "verdict key")
    _expect(machine, "attest", "ok", "verified by the service")
    return {"sealed_after_s": round(sealed_s - begun_s, 1)}


def _refuse(machine: Machine) -> Figures:
    """The disk in a board with another TPM: palmd does not start, and the doctor says why and what to do."""
    failed = ("systemctl", "--quiet", "is-failed", "palmd")
    _wait(machine, "systemd to give up", lambda: machine.run(*failed, check=False).rc == 0)
    _expect(machine, "provisioned", "fail", "not open here", "the TPM that encrypted")
    _expect(machine, "attest", "fail", "the token does not sign")
    return {}


def _serve_again(machine: Machine) -> Figures:
    """The first TPM is back: palmd opens its keys at boot, without a hand."""
    _answers(machine)
    answered_s = machine.now_s()
    _expect(machine, "attest", "ok", "verified by the service")
    return {"up_after_boot_s": round(answered_s, 1)}


def _answers(machine: Machine) -> None:
    active = ("systemctl", "--quiet", "is-active", "palmd")  # its unit is active once it has said READY
    _wait(machine, "palmd", lambda: machine.run(*active, check=False).rc == 0)


def _expect(machine: Machine, check: str, result: str, *texts: str) -> None:
    """What the doctor finds; `texts` are parts of what it says, or of what to do."""
    (finding,) = _printed(machine, "palmctl", "doctor", check, "--json", check_rc=False)["findings"]
    said = f"{finding['detail']} → {finding['todo']}"
    if finding["result"] != result or any(text not in said for text in texts):
        raise ScenarioFailed(f"expected {check} {result} with {texts}, the doctor says {finding}")


def _printed(machine: Machine, *argv: str, check_rc: bool = True) -> dict[str, Any]:
    return dict(json.loads(machine.run(*argv, timeout_s=120, check=check_rc).stdout))


def _wait(machine: Machine, what: str, ready: Callable[[], bool]) -> None:
    deadline_s = machine.now_s() + START_WITHIN_S
    while not ready():
        if machine.now_s() > deadline_s:
            raise ScenarioFailed(f"waited {START_WITHIN_S:.0f} s for {what}, which did not come")
        machine.sleep(0.5)


def _type_in(machine: Machine, place: str) -> None:
    """The commands of the page that are marked with `place`, as root."""
    typed = [text for where, text in _BLOCK.findall(_PAGE.read_text(encoding="utf-8")) if where == place]
    if not typed:
        raise HilError(f"{_PAGE.name} has no commands on: {place}")
    lines = "".join(typed).replace("\\\n", " ").splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    machine.run("mkdir", "-p", str(_WORK))
    machine.run("bash", "-ec", "\n".join([f"cd {_WORK}", *commands]), timeout_s=120)


@contextmanager
def _started(image: Image, cache: Path, tpm: Path) -> Iterator[Machine]:
    """A start of the machine with this TPM, shut down in the end."""
    with software_tpm(tpm) as control, running(image, cache / "console-tpm.log", control) as machine:
        try:
            yield machine
        finally:
            said = machine.run("journalctl", "--boot", "--no-pager", "--output=short-monotonic", check=False)
            (cache / "journal-tpm.log").write_text(said.stdout, encoding="utf-8")
        machine.power_off()


def _make_image(cache: Path, package: Path, tell: Tell) -> Image:
    release = next(release for release in RELEASES if release.suite == "bookworm")
    with tempfile.TemporaryDirectory(prefix="palm-hil-tpm-stage-") as name:
        stage, wheels = Path(name, "stage"), Path(name, "wheels")
        put_agent(stage)
        epoch = tree.source_date_epoch(_SOURCE)
        build_distributions(_SOURCE, epoch, wheels)
        server = build_server_deb(
            ServerBuild(
                source=_SOURCE,
                wheels=wheels,
                target=BuildTarget("amd64", release.python),
                version=release.version(tree.own_version(_SOURCE)),
                epoch=epoch,
                cache=_SOURCE / "build/deb",
                out=Path(name),
            )
        )
        return make_image(cache, (package, server), stage, tell)
