"""The service, and its verification of the maker's certificate."""

import asyncio
import http.client
import queue
import ssl
import threading
import time
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

from cloud_client.client import CloudClient, ServerAddress
from cloud_client.contract import SERVER_TIME_HEADER, SIGNATURE_SKEW_S
from cloud_client.errors import CloudError, CloudProblem, ServerAddressError
from cloud_client.retry import is_transient
from device.config.config import CloudSection
from device.doctor.case import Case, CheckResult, Finding, fail, not_checked, ok, skip, warn
from device.errors import AttestationError
from device.trust.attestation import is_attested, leaf_signature, read_attested, read_chain
from device.values.carrier import ONLINE
from link1.errors import is_not_permitted, reason_of

_WITHIN_S = 10.0
"""Of each step: name, connection, every read."""
WHOLE_S = 30.0
"""Of all of them: a server that trickles never exceeds the time of a read."""
_RENEW_DAYS = 14
_DRIFT_MS = 30_000
_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True, slots=True)
class Reached:
    """The service's answer to an unsigned request."""

    took_ms: int
    tls: str
    certificate_days: int | None
    ahead_ms: int | None
    """This device's clock minus the service's."""


def server(case: Case) -> Finding:
    """The service: is it reachable, its certificate valid for a while, the clocks in step, the registration
    valid?"""
    cloud = case.settings.cloud
    if cloud is None:
        return ok("none configured: this device lives on the validator's mail")
    try:
        reached = _reach_in_time(case, cloud)
    except ssl.SSLCertVerificationError as error:
        return fail(
            f"{cloud.url} shows a certificate that is not believed: {error.verify_message}",
            "check this device's clock, then the service's certificate and [cloud] ca_file",
        )
    except ServerAddressError as error:
        if is_not_permitted(error):
            return not_checked(f"{cloud.ca_file} may not be read by this user")
        return fail(str(error), "palmctl config set cloud.ca_file PATH")
    except (OSError, http.client.HTTPException) as error:
        return fail(
            f"{cloud.url} does not answer ({reason_of(error)})",
            "check cable or Wi-Fi, DNS and firewall; recognition goes on until the gallery is 6 h old",
        )
    refused = _registration(case, cloud)
    return _with_refusals(case, _judged(reached, cloud, refused, unproved="keys" in case.closed))


def _with_refusals(case: Case, finding: Finding) -> Finding:
    """A service that answers well may send what the core refuses; palm-syncd, which fetches it, knows."""
    told = case.status.cloud if case.status else None
    if finding.result is not CheckResult.OK or told is None or not told.online or told.detail == ONLINE:
        return finding
    return warn(
        f"{finding.detail}; palm-syncd: {told.detail}",
        "ask the operator of the service; since when: palmctl logs --unit palm-syncd",
    )


def _judged(
    reached: Reached, cloud: CloudSection, refused: CloudProblem | None, *, unproved: bool
) -> Finding:
    detail = f"{cloud.url} answers in {reached.took_ms} ms over {reached.tls}"
    if reached.certificate_days is not None:
        detail += f", certificate good for {reached.certificate_days} days"
    if reached.ahead_ms is not None:
        detail += f", clocks {abs(reached.ahead_ms) / 1000:.1f} s apart"
        if unproved:
            detail += "; whether it takes this device is not asked without its key"
        if abs(reached.ahead_ms) > SIGNATURE_SKEW_S * 1000:
            return fail(
                detail, "set the clock: timedatectl set-ntp true; the service refuses more than 300 s"
            )
    if refused is not None:
        return _refused(detail, refused)
    if reached.ahead_ms is None:
        return warn(f"{detail}, without {SERVER_TIME_HEADER}", "is this the service? check [cloud] url")
    if reached.certificate_days is not None and reached.certificate_days < _RENEW_DAYS:
        return warn(detail, "ask the operator of the service to renew its certificate")
    if abs(reached.ahead_ms) > _DRIFT_MS:
        return warn(detail, "timedatectl set-ntp true")
    return ok(detail)


def _refused(detail: str, refused: CloudProblem) -> Finding:
    if is_transient(refused):
        return fail(
            f"{detail}; {refused}",
            "look again in a minute; if it stays, tell the operator of the service: recognition goes on "
            "until the gallery is 6 h old",
        )
    if not refused.code:
        return fail(
            f"{detail}; {refused}",
            "what answers there is not the service, or a proxy before it: check [cloud] url with the "
            "operator",
        )
    return fail(
        f"{detail}; it does not take this device: {refused}", "ask the operator whether it was revoked"
    )


def _reach_in_time(case: Case, cloud: CloudSection) -> Reached:
    answered: queue.SimpleQueue[Reached | Exception] = queue.SimpleQueue()

    def reach() -> None:
        try:
            answered.put(_reach(case, cloud))
        except Exception as error:  # noqa: BLE001 -- raised again by the caller
            answered.put(error)

    threading.Thread(target=reach, name="server", daemon=True).start()
    try:
        found = answered.get(timeout=WHOLE_S)
    except queue.Empty:
        raise TimeoutError("timed out") from None
    if isinstance(found, Exception):
        raise found
    return found


def _reach(case: Case, cloud: CloudSection) -> Reached:
    parts = urlsplit(cloud.url)
    host, port = parts.hostname or "", parts.port or _PORTS[parts.scheme]
    context = ServerAddress.parse(cloud.url, cloud.ca_file).tls_context()
    connection = (
        http.client.HTTPSConnection(host, port, timeout=_WITHIN_S, context=context)
        if isinstance(context, ssl.SSLContext)
        else http.client.HTTPConnection(host, port, timeout=_WITHIN_S)
    )
    started_s = time.monotonic()
    with closing(connection):
        connection.connect()
        tls, days = _tls_of(connection, case.clock.wall_ms())
        connection.request("GET", "/v1/devices/self/status")
        server_time = connection.getresponse().getheader(SERVER_TIME_HEADER)
    took_ms = round((time.monotonic() - started_s) * 1000)
    return Reached(took_ms, tls, days, _ahead_ms(case.clock.wall_ms(), server_time))


def _tls_of(connection: http.client.HTTPConnection, now_ms: int) -> tuple[str, int | None]:
    if not isinstance(connection.sock, ssl.SSLSocket):
        return "plain http (this machine itself)", None
    certificate = connection.sock.getpeercert() or {}
    not_after = certificate.get("notAfter")
    days = (
        int((ssl.cert_time_to_seconds(not_after) - now_ms / 1000) // 86_400)
        if isinstance(not_after, str)
        else None
    )
    return connection.sock.version() or "TLS", days


def _ahead_ms(now_ms: int, server_time: str | None) -> int | None:
    try:
        return now_ms - round(datetime.fromisoformat(server_time or "").timestamp() * 1000)
    except ValueError:
        return None


def _registration(case: Case, cloud: CloudSection) -> CloudProblem | None:
    """Why the service rejects this device's signature; None when it accepts it, or when none can be made."""
    keys = case.keys
    if keys is None:
        return None

    async def ask() -> None:
        address = ServerAddress.parse(cloud.url, cloud.ca_file)
        async with asyncio.timeout(WHOLE_S), CloudClient(address, keys.http, case.clock.wall_ms) as client:
            await client.device_status()

    try:
        asyncio.run(ask())
    except CloudProblem as error:
        return error
    except (CloudError, TimeoutError):
        return None  # it was reachable a moment ago; a lost answer says nothing about the registration
    return None


_SOON_DAYS = 30


def attest(case: Case) -> Finding:  # noqa: PLR0911 (one return a finding)
    """The maker's certificate for this device's keys: usable, in force, and taken by the service?"""
    section = case.settings.attest
    if section is None:
        return skip("no [attest] in the configuration: KEY_UNATTESTED is for information")
    try:
        chain = read_chain(section.chain_file)
        if "keys" not in case.closed and not section.signer.startswith("credential:"):
            leaf_signature(chain, section.signer, b"doctor")
    except AttestationError as error:
        if is_not_permitted(error):
            return not_checked(str(error))
        return fail(str(error), "correct [attest]: docs/howto/ATTESTATION.md")
    ends = min(one.not_valid_after_utc for one in chain.certificates)
    days = (ends - datetime.fromtimestamp(case.clock.wall_ms() / 1000, UTC)).days
    if days < 0:
        return fail(f"a certificate of the chain expired on {ends.date()}", "have the factory renew it")
    if case.keys is None:
        return not_checked(f"chain good for {days} days; whether the service took it needs the keys")
    at_ms = read_attested(case.settings.device.state_dir, case.keys)
    if at_ms is None or not is_attested(at_ms, case.clock.wall_ms()):
        return warn(
            f"chain good for {days} days, not verified by the service in the last 90 days",
            "journalctl -u palm-syncd -u palmd; is the CA known there? `palmctl cloud factory-ca list`",
        )
    verified = datetime.fromtimestamp(at_ms / 1000, UTC)
    detail = f"verified by the service on {verified.date()}, chain good for {days} days"
    if days < _SOON_DAYS:
        return warn(detail, "have the factory renew the certificate")
    return ok(detail)
