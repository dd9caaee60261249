"""The configuration file, and whether it matches the device that was registered here."""

from device.doctor.case import Case
from device.doctor.finding import Finding, fail, not_checked, ok, warn

NAME = "configuration"


def check(case: Case) -> Finding:
    config, trust = case.config, case.trust
    if config is None and "configuration" in case.closed:
        return not_checked(NAME, f"{case.config_path} may not be read by this user (Permission denied)")
    if config is None:
        first, *rest = case.config_problem.splitlines()
        what = f"{first} (and {len(rest)} more: `palmctl config check`)" if rest else first
        return fail(NAME, what, "correct it, or run `palmctl provision` on a board that never had one")
    if trust is not None:
        pairs = (
            ("id", config.device.id, trust.device_id),
            ("gate_id", config.device.gate_id, trust.gate_id),
            ("dbd_id", config.device.dbd_id, trust.dbd_id),
        )
        for member, configured, registered in pairs:
            if configured != registered:
                return fail(
                    NAME,
                    f"[device] {member} is {configured}, but this device was registered with {registered}",
                    f"palmctl config set device.{member} {registered}; to become another device: "
                    "`palmctl factory-reset`, then `palmctl provision`",
                )
    if config.device.runtime_dir.is_relative_to(config.device.state_dir):
        return warn(
            NAME,
            "the runtime directory is inside the state directory",
            "name another [device] runtime_dir, such as /run/palm-access",
        )
    network = "with the service over the network" if config.cloud else "without a network, by mail"
    return ok(
        NAME, f"{case.config_path} can be used: {config.device.id} at {config.device.gate_id}, {network}"
    )
