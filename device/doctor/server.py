"""The service: is it reachable, its certificate valid for a while, the clocks in step, the registration
valid?"""

import asyncio
import http.client
import ssl
import time
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlsplit

from cloud_client.client import CloudClient, ServerAddress
from cloud_client.contract import SERVER_TIME_HEADER, SIGNATURE_SKEW_S
from cloud_client.errors import CloudError, CloudProblem, ServerAddressError
from device.config.config import CloudSection
from device.doctor.case import Case
from device.doctor.finding import Finding, fail, not_checked, ok, warn
from link1.errors import is_not_permitted, reason_of

NAME = "server"
_WITHIN_S = 10.0
_SOON_DAYS = 14
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


def check(case: Case) -> Finding:
    cloud = case.settings.cloud
    if cloud is None:
        return ok(NAME, "none configured: this device lives on the validator's mail")
    try:
        reached = _reach(case, cloud)
    except ssl.SSLCertVerificationError as error:
        return fail(
            NAME,
            f"{cloud.url} shows a certificate that is not believed: {error.verify_message}",
            "check this device's clock, then the service's certificate and [cloud] ca_file",
        )
    except ServerAddressError as error:
        if is_not_permitted(error):
            return not_checked(NAME, f"{cloud.ca_file} may not be read by this user")
        return fail(NAME, str(error), "palmctl config set cloud.ca_file PATH")
    except (OSError, http.client.HTTPException) as error:
        return fail(
            NAME,
            f"{cloud.url} does not answer ({reason_of(error)})",
            "check cable or Wi-Fi, DNS and firewall; recognition goes on until the gallery is 6 h old",
        )
    return _judged(reached, cloud, _registration(case, cloud), unproved="keys" in case.closed)


def _judged(reached: Reached, cloud: CloudSection, refused: str, *, unproved: bool) -> Finding:
    detail = f"{cloud.url} answers in {reached.took_ms} ms over {reached.tls}"
    if reached.certificate_days is not None:
        detail += f", certificate good for {reached.certificate_days} days"
    if reached.ahead_ms is not None:
        detail += f", clocks {abs(reached.ahead_ms) / 1000:.1f} s apart"
        if unproved:
            detail += "; whether it takes this device is not asked without its key"
        if abs(reached.ahead_ms) > SIGNATURE_SKEW_S * 1000:
            return fail(
                NAME, detail, "set the clock: timedatectl set-ntp true; the service refuses more than 300 s"
            )
    if refused:
        return fail(
            NAME,
            f"{detail}; it does not take this device: {refused}",
            "ask the operator whether it was revoked",
        )
    if reached.ahead_ms is None:
        return warn(NAME, f"{detail}, without {SERVER_TIME_HEADER}", "is this the service? check [cloud] url")
    if reached.certificate_days is not None and reached.certificate_days < _SOON_DAYS:
        return warn(NAME, detail, "ask the operator of the service to renew its certificate")
    if abs(reached.ahead_ms) > _DRIFT_MS:
        return warn(NAME, detail, "timedatectl set-ntp true")
    return ok(NAME, detail)


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
    try:
        connection.connect()
        tls, days = _tls_of(connection, case.clock.wall_ms())
        connection.request("GET", "/v1/devices/self/status")
        server_time = connection.getresponse().getheader(SERVER_TIME_HEADER)
    finally:
        connection.close()
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
        return (
            None
            if server_time is None
            else now_ms - round(datetime.fromisoformat(server_time).timestamp() * 1000)
        )
    except ValueError:
        return None


def _registration(case: Case, cloud: CloudSection) -> str:
    """Why the service rejects this device's signature; empty when it accepts it, or when none can be made."""
    keys = case.keys
    if keys is None:
        return ""

    async def ask() -> None:
        address = ServerAddress.parse(cloud.url, cloud.ca_file)
        async with CloudClient(address, keys.http, case.clock.wall_ms) as client:
            await client.device_status()

    try:
        asyncio.run(ask())
    except CloudProblem as error:
        return str(error)
    except CloudError:
        return ""  # it was reachable a moment ago; a lost answer says nothing about the registration
    return ""
