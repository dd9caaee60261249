"""The maker's certificate for this device's keys: usable, in force, and taken by the service?"""

from datetime import UTC, datetime

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, not_checked, ok, skip, warn
from device.errors import AttestationError
from device.trust.attestation import is_attested, leaf_signature, read_attested, read_chain
from link1.errors import is_not_permitted

NAME = "attest"
_SOON_DAYS = 30


def check(case: Case) -> Finding:  # noqa: PLR0911 (one return a finding)
    section = case.settings.attest
    if section is None:
        return skip(NAME, "no [attest] in the configuration: KEY_UNATTESTED is for information")
    try:
        chain = read_chain(section.chain_file)
        if "keys" not in case.closed and not section.signer.startswith("credential:"):
            leaf_signature(chain, section.signer, b"doctor")
    except AttestationError as error:
        if is_not_permitted(error):
            return not_checked(NAME, str(error))
        return fail(NAME, str(error), "correct [attest]: docs/howto/ATTESTATION.md")
    ends = min(one.not_valid_after_utc for one in chain.certificates)
    days = (ends - datetime.fromtimestamp(case.clock.wall_ms() / 1000, UTC)).days
    if days < 0:
        return fail(NAME, f"a certificate of the chain expired on {ends.date()}", "have the factory renew it")
    if case.keys is None:
        return not_checked(NAME, f"chain good for {days} days; whether the service took it needs the keys")
    at_ms = read_attested(case.settings.device.state_dir, case.keys)
    if at_ms is None or not is_attested(at_ms, case.clock.wall_ms()):
        return warn(
            NAME,
            f"chain good for {days} days, not verified by the service in the last 90 days",
            "journalctl -u palm-syncd -u palmd; is the CA known there? `palmctl cloud factory-ca list`",
        )
    verified = datetime.fromtimestamp(at_ms / 1000, UTC)
    detail = f"verified by the service on {verified.date()}, chain good for {days} days"
    if days < _SOON_DAYS:
        return warn(NAME, detail, "have the factory renew the certificate")
    return ok(NAME, detail)
