"""The validator: is a key of it pinned, and has it proved that it holds the key?"""

from device.doctor.case import Case
from device.doctor.clock import service_time_ms
from device.doctor.finding import Finding, fail, not_checked, ok, skip, warn

NAME = "validator"


def check(case: Case) -> Finding:  # noqa: PLR0911 (one return a finding)
    trust, status = case.trust, case.status
    if "trust" in case.closed:
        return not_checked(NAME, "what is pinned may not be read by this user")
    if trust is None:
        return skip(NAME, "the device is not provisioned", "see the line `provisioned`")
    counting = trust.dbd_keys_now(case.clock.wall_ms(), service_time_ms(case))
    kids = list(dict.fromkeys(key.public.kid for key in counting))
    pinned = f"pinned for {trust.dbd_id}: {', '.join(kids)}"
    if not kids:
        return fail(
            NAME,
            f"no key of validator {trust.dbd_id} is pinned that counts now",
            "have it added at the service (`palmctl cloud dbd add`); the device then receives it",
        )
    if "status" in case.closed:
        return not_checked(NAME, f"{pinned}; whether it answers may not be asked by this user")
    if status is None:
        return skip(NAME, f"{pinned}; whether it answers is known while palmd runs", "systemctl start palmd")
    cable, kid = status.cable, status.cable.validator_kid
    if cable.state != "up":
        return fail(
            NAME,
            f"no validator has proved itself; {pinned}",
            "check its power, and that it pins this device's verdict key (line `provisioned`)",
        )
    if kid and kid not in kids:
        return warn(
            NAME, f"the session is with key {kid}; {pinned}", "palmctl status; restart palmd if it stays"
        )
    return ok(NAME, f"session up with {trust.dbd_id}, key {kid or kids[0]}")
