"""The purpose of each configuration member, shown by `palmctl config show` and in docs/howto/FIELD.md."""

from collections.abc import Callable, Mapping
from typing import Final

from device.config.config import describe_members, is_required

SAYS: Final[Mapping[str, Mapping[str, str]]] = {
    "device": {
        "id": "this device, as it was registered",
        "gate_id": "the gate it stands at, as it was registered",
        "dbd_id": "the validator at the other end of its cable, as it was registered",
        "state_dir": "keys, pinned trust, gallery, journal",
        "runtime_dir": "the sockets of the daemons",
    },
    "camera": {
        "source": "the camera, or a recording",
        "fps": "pictures a second asked of the camera",
        "loop": "a recording restarts at its end",
        "look": "what the camera sees: colour, or near infrared",
        "nir": "the half of a two-sensor module's picture that is near infrared; the other is colour",
    },
    "link": {
        "port": "the port of the cable to the validator",
        "baud": "speed of a real UART; USB ports ignore it",
    },
    "cloud": {
        "url": "the service; without [cloud] the device lives on the validator's mail",
        "ca_file": "CA certificate of the service, where the system does not know it",
    },
    "model": {
        "dir": "another model than the shipped one",
        "hand_weights": "hands are also found by published weights, trained by others on photographs",
    },
    "liveness": {"model_dir": "a liveness network of your own, in addition to the built-in cues"},
    "enrolment": {
        "hands": "the hands that a session read from a QR code asks for",
        "consent": "where people agree: on this device's screen, or elsewhere at the service",
        "terms_dir": "the texts that are shown, where they are not the shipped ones",
        "terms_version": "the version shown for QR codes, where it is not the one from registration",
    },
    "attest": {
        "chain_file": "the factory's certificates for this board in PEM, its own first; without [attest] its "
        "keys stay unattested",
        "signer": "where the key of the first certificate is",
    },
}


def defaults_text(say: Callable[[str], str] = str) -> str:
    """All members with their defaults and purposes; those without a default are commented out.

    `say`: from English into the reader's language.
    """
    lines: list[str] = []
    for section, members in describe_members().items():
        lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        for name, (parser, default) in members.items():
            kind = "required" if is_required(section, name) else "optional" if default is None else ""
            line = f"{name} = {default}" if default is not None else f"# {name} ="
            parts = (kind, SAYS[section].get(name, ""), parser.expected)
            says = "; ".join(say(part) for part in parts if part)
            lines.append(f"{line:<42}# {says}")
    return "\n".join(lines)
