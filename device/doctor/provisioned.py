"""Keys, pinned trust and journal: is everything present that `palmctl provision` makes?"""

import os
from pathlib import Path

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, not_checked, ok
from device.doctor.reading import is_closed
from device.errors import StateError
from device.trust.keystore import CREDENTIALS_FOLDER, KeyStore
from device.wipe.wipe import FILE_NAME as WIPE_FILE
from device.wipe.wipe import read_wipe

NAME = "provisioned"
_OTHER_TPM = (
    "it opens only with the TPM that encrypted it, in the same state of secure boot, or with the host key: "
    "put that back, then `systemctl restart palmd palm-syncd`; if it is lost, `palmctl factory-reset`, then "
    "`palmctl provision` with a new token"
)


def check(case: Case) -> Finding:  # noqa: PLR0911 (one return a finding)
    config = case.settings
    if is_closed(config.device.state_dir):
        return not_checked(NAME, f"{config.device.state_dir} may not be read by this user")
    wiped = _wiped(config.device.state_dir)
    if wiped:
        return fail(NAME, wiped, "palmctl factory-reset, then palmctl provision with a new token")
    if (config.device.state_dir / WIPE_FILE).exists():
        return fail(
            NAME,
            "the service has revoked this device, and everything on it is destroyed",
            "have a new token made, `palmctl factory-reset`, then `palmctl provision`",
        )
    if "trust" in case.closed:
        return not_checked(NAME, f"{config.trust_path} may not be read by this user")
    if case.trust is None and not KeyStore.exists(config.keys_dir):
        return fail(NAME, f"{config.device.state_dir} holds no device", "run `palmctl provision`")
    if case.trust is None:
        return fail(
            NAME,
            f"keys are there, but not what registration pins: {case.trust_problem}",
            "run `palmctl provision` again with the same token: it goes on where it stopped",
        )
    if not config.journal_path.exists():
        return fail(
            NAME,
            f"{config.journal_path} is gone: the device must not sign verdicts without it",
            "restore it; if it is lost, `palmctl factory-reset` and provision again with a new token",
        )
    encrypted = config.keys_dir.with_name(CREDENTIALS_FOLDER).is_dir()
    if "keys" in case.closed and not encrypted:
        return not_checked(NAME, f"root {case.trust.roots[0].kid}; the keys may not be read by this user")
    if case.keys is None and (os.geteuid() == 0 or not encrypted):
        lost = "see the line `ownership`; if the keys are lost, register the device again"
        return fail(NAME, case.keys_problem, _OTHER_TPM if encrypted else lost)
    key = f"verdict key {case.keys.verdict.kid}" if case.keys else "keys are encrypted credentials"
    return ok(NAME, f"{key}, root {case.trust.roots[0].kid}")


def _wiped(state_dir: Path) -> str:
    """The stage of a wipe that was ordered here; empty without one."""
    try:
        wipe = read_wipe(state_dir)
    except StateError as error:
        return str(error)
    if wipe is None:
        return ""
    by = "the service" if wipe.wipe_id else "a technician"
    return f"this device was wiped by order of {by}; stage: {wipe.stage}"
