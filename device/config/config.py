"""The configuration file: TOML in, one frozen `DeviceConfig` out, all mistakes reported together.

    [device]                                  # all three ids as they were registered
    id = "gate-7-left"
    gate_id = "gate-7"
    dbd_id = "dbd-7"
    state_dir = "/var/lib/palm-access"        # default
    runtime_dir = "/run/palm-access"          # default

    [camera]
    source = "/dev/video0"                    # or v4l2:by-id/…, or file:PATH of a video or folder of images
    fps = 30                                  # 1..240
    loop = false                              # file: only; restart at the end
    look = "rgb"                              # or "nir"
    nir = "none"                              # "left" or "right": that half of a two-sensor module's picture

    [link]
    port = "/dev/ttyACM0"                     # or a pty, or usb:VID:PID[:SERIAL]
    baud = 921600

    [cloud]                                   # absent: a device without network
    url = "https://cloud.example"
    ca_file = "/etc/palm-access/ca.pem"       # optional

    [model]
    dir = "/opt/palm-access/model"            # optional; default: the shipped model

    [liveness]
    model_dir = "/etc/palm-access/liveness"   # optional; a custom network in addition to the built-in cues

    [enrolment]
    hands = ["L", "R"]                        # default; the hands of a session read from a QR code
    consent = "screen"                        # default; "service": people agree elsewhere, not here
    terms_dir = "/etc/palm-access/terms"      # optional; default: the shipped texts of version v1
    terms_version = "v2"                      # optional; for QR codes; default: as registered

Relative paths are relative to the folder of the file, `file:` sources included. Reading, writing and messages
all use one table of members, `_MEMBERS`.
"""

import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from device.config import values
from device.config.text import Locations, describe_kind, nearest
from device.config.values import Parser, WrongValue
from device.errors import ConfigError
from device.platform.files import replace_synced
from device.platform.roles import SocketRole, socket_path
from link1.errors import reason_of
from link1.plain_file import read_plain_file

DEFAULT_PATH = Path("/etc/palm-access/device.toml")
ENVIRONMENT_VARIABLE = "PALM_ACCESS_CONFIG"
MAX_FILE_BYTES = 64 * 1024
"""A full configuration has under 1 KiB; a larger file was named by mistake."""
MAX_LINE_CHARACTERS = 1024
"""A path and a comment fit. The parser needs quadratic time for a dotted key, which is on one line."""


@dataclass(frozen=True, slots=True)
class DeviceSection:
    id: str
    gate_id: str
    dbd_id: str
    state_dir: Path
    runtime_dir: Path


@dataclass(frozen=True, slots=True)
class CameraSection:
    source: str
    fps: int
    loop: bool
    look: str
    nir: Literal["none", "left", "right"] = "none"


@dataclass(frozen=True, slots=True)
class LinkSection:
    port: str
    baud: int


@dataclass(frozen=True, slots=True)
class CloudSection:
    url: str
    ca_file: Path | None


@dataclass(frozen=True, slots=True)
class ModelSection:
    dir: Path | None
    hand_weights: bool = True


@dataclass(frozen=True, slots=True)
class LivenessSection:
    model_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class EnrolmentSection:
    hands: tuple[Literal["L", "R"], ...]
    consent: str = "screen"
    terms_dir: Path | None = None
    terms_version: str | None = None


@dataclass(frozen=True, slots=True)
class AttestSection:
    chain_file: Path
    signer: str


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """The content of the file. `cloud` is None for a device without a network, `attest` for one without its
    maker's certificate."""

    device: DeviceSection
    camera: CameraSection
    link: LinkSection
    cloud: CloudSection | None
    model: ModelSection
    enrolment: EnrolmentSection
    liveness: LivenessSection = LivenessSection()
    attest: AttestSection | None = None

    @property
    def keys_dir(self) -> Path:
        return self.device.state_dir / "keys"

    @property
    def trust_path(self) -> Path:
        return self.device.state_dir / "trust.json"

    @property
    def journal_path(self) -> Path:
        return self.device.state_dir / "journal.db"

    @property
    def gallery_dir(self) -> Path:
        return self.device.state_dir / "gallery"

    @property
    def control_socket(self) -> Path:
        """The socket of a technician's `palmctl`."""
        return socket_path(self.device.runtime_dir, SocketRole.TECHNICIAN)

    @property
    def totem_socket(self) -> Path:
        """The socket of the screen at which people enrol."""
        return socket_path(self.device.runtime_dir, SocketRole.TOTEM)

    @property
    def carrier_socket(self) -> Path:
        """The socket of `palm-syncd`."""
        return socket_path(self.device.runtime_dir, SocketRole.CARRIER)


_REQUIRED: Any = object()


@dataclass(frozen=True, slots=True)
class _Member:
    parse: Parser
    default: Any = _REQUIRED


_MEMBERS: dict[str, dict[str, _Member]] = {
    "device": {
        "id": _Member(values.device_id),
        "gate_id": _Member(values.name),
        "dbd_id": _Member(values.name),
        "state_dir": _Member(values.path, Path("/var/lib/palm-access")),
        "runtime_dir": _Member(values.socket_folder, Path("/run/palm-access")),
    },
    "camera": {
        "source": _Member(values.camera_source),
        "fps": _Member(values.integer(1, 240), 30),
        "loop": _Member(values.boolean, False),
        "look": _Member(values.one_of("rgb", "nir"), "rgb"),
        "nir": _Member(values.one_of("none", "left", "right"), "none"),
    },
    "link": {
        "port": _Member(values.port),
        "baud": _Member(values.integer(9_600, 4_000_000), 921_600),
    },
    "cloud": {
        "url": _Member(values.service_url),
        "ca_file": _Member(values.path, None),
    },
    "model": {"dir": _Member(values.path, None), "hand_weights": _Member(values.boolean, True)},
    "liveness": {"model_dir": _Member(values.path, None)},
    "enrolment": {
        "hands": _Member(values.hands, ("L", "R")),
        "consent": _Member(values.one_of("screen", "service"), "screen"),
        "terms_dir": _Member(values.path, None),
        "terms_version": _Member(values.name, None),
    },
    "attest": {
        "chain_file": _Member(values.path),
        "signer": _Member(values.signer),
    },
}
_SECTIONS: dict[str, type] = {
    "device": DeviceSection,
    "camera": CameraSection,
    "link": LinkSection,
    "cloud": CloudSection,
    "model": ModelSection,
    "liveness": LivenessSection,
    "enrolment": EnrolmentSection,
    "attest": AttestSection,
}
_MAY_BE_ABSENT = frozenset({"cloud", "attest"})


def config_path(given: Path | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The file to use: the one given on the command line, else PALM_ACCESS_CONFIG, else the default."""
    return given or Path(environ.get(ENVIRONMENT_VARIABLE) or DEFAULT_PATH)


def load_config(path: Path) -> DeviceConfig:
    """Read and check the file at `path`. Raises ConfigError, which lists every problem with its line."""
    return parse_config(read_config_file(path), path)


def read_config_file(path: Path) -> bytes:
    """The bytes of the file at `path`. Raises ConfigError."""
    try:
        return read_plain_file(path, MAX_FILE_BYTES)
    except OSError as error:
        step = f"`palmctl provision` writes one, --config or {ENVIRONMENT_VARIABLE} names another"
        if isinstance(error, PermissionError):
            step = "run this as root, or as a user with read permission"
        raise ConfigError((f"{path}: cannot be read ({reason_of(error)}); {step}",)) from error


def parse_config(data: bytes, path: Path) -> DeviceConfig:
    """`load_config` for text that is not yet in the file at `path`. Raises ConfigError."""
    text, document = read_toml(data, path)
    return _read(document, path, Locations(text))


def read_toml(data: bytes, path: Path) -> tuple[str, dict[str, Any]]:
    """The text and its TOML document, with members unchecked. Raises ConfigError."""
    if len(data) > MAX_FILE_BYTES:
        raise ConfigError((f"{path}: has over {MAX_FILE_BYTES} bytes; this is not a device configuration",))
    try:
        text = data.decode("utf-8")
        if max(map(len, text.split("\n"))) > MAX_LINE_CHARACTERS:
            raise ConfigError((f"{path}: has a line of over {MAX_LINE_CHARACTERS} characters; split it",))
        return text, tomllib.loads(text)
    except UnicodeDecodeError:
        raise ConfigError((f"{path}: is not UTF-8 text; save it as UTF-8",)) from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError((f"{path}: is not TOML: {error}",)) from None
    except ValueError:  # Python's limit of digits (4,300) may have been lowered below the length of a line
        raise ConfigError((f"{path}: holds a number with too many digits; shorten it",)) from None
    except RecursionError:
        raise ConfigError((f"{path}: is nested too deeply; this is not a device configuration",)) from None


def write_config(path: Path, config: DeviceConfig) -> None:
    """Write `config` to `path`, which is replaced as a whole; `load_config` reads back an equal value.

    Raises ConfigError when it cannot be written.
    """
    try:
        replace_synced(path, render_config(config).encode("utf-8"), mode=0o644)
    except OSError as error:
        raise ConfigError((f"{path}: cannot be written ({error.strerror})",)) from error


def render_config(config: DeviceConfig) -> str:
    """The TOML text of `config`."""
    lines = ["# Written by palmctl provision. `palmd --check` says whether it is valid."]
    for table, of_table in _MEMBERS.items():
        section = getattr(config, table)
        given = {} if section is None else {name: getattr(section, name) for name in of_table}
        pairs = [f"{name} = {toml_value(value)}" for name, value in given.items() if value is not None]
        if pairs:
            lines += ["", f"[{table}]", *pairs]
    return "\n".join(lines) + "\n"


def describe_members() -> dict[str, dict[str, tuple[Parser, str | None]]]:
    """Every section and member with its parser and its default as TOML (None: no default)."""
    return {
        table: {
            name: (rule.parse, None if rule.default in (None, _REQUIRED) else toml_value(rule.default))
            for name, rule in of_table.items()
        }
        for table, of_table in _MEMBERS.items()
    }


def is_required(section: str, member: str) -> bool:
    """Whether this member must be present (in [cloud]: if the section is present)."""
    return _MEMBERS[section][member].default is _REQUIRED


def toml_value(value: object) -> str:
    """A member's value as TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, tuple):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    # A JSON string is a TOML basic string, except that TOML requires DEL to be escaped.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True, slots=True)
class _Findings:
    """Collects the problems, each with file and line."""

    path: Path
    locations: Locations
    problems: list[str]

    def add(self, table: str, member: str | None, text: str) -> None:
        line = self.locations.line_of(table, member)
        where = f"{self.path}:{line}" if line else f"{self.path}"
        name = " ".join(filter(None, (f"[{table}]" if table else "", member)))
        self.problems.append(f"{where}: {name}: {text}")


def _read(document: dict[str, Any], path: Path, locations: Locations) -> DeviceConfig:
    findings = _Findings(path, locations, [])
    known = ", ".join(f"[{table}]" for table in _MEMBERS)
    for table, content in document.items():
        if table in _MEMBERS:
            continue
        if isinstance(content, dict):
            findings.add(table, None, f"unknown table{nearest(table, _MEMBERS)}; there are {known}")
        else:
            findings.add("", table, f"is outside any table; there are {known}")
    sections: dict[str, Any] = {
        table: None
        if table in _MAY_BE_ABSENT and table not in document
        else _read_table(table, document.get(table, {}), findings)
        for table in _MEMBERS
    }
    camera = sections["camera"]
    if camera is not None and camera.nir != "none" and camera.look != "rgb":
        findings.add(
            "camera", "nir", 'needs look = "rgb": the other half is the colour picture for recognition'
        )
    if findings.problems:
        raise ConfigError(tuple(findings.problems))
    return DeviceConfig(**sections)


def _read_table(table: str, content: object, findings: _Findings) -> object:
    """One section; None when it is wrong, with the reasons in `findings`."""
    rules = _MEMBERS[table]
    if not isinstance(content, dict):
        found = describe_kind(content)
        findings.add(table, None, f"expected a table with {', '.join(rules)}, found {found}")
        return None
    before = len(findings.problems)
    for member in [name for name in content if name not in rules]:
        findings.add(table, member, f"unknown member{nearest(member, rules)}; there are {', '.join(rules)}")
    read: dict[str, Any] = {}
    for member, rule in rules.items():
        if member not in content:
            read[member] = rule.default
            if rule.default is _REQUIRED:
                findings.add(table, member, f"is missing; expected {rule.parse.expected}")
            continue
        try:
            read[member] = rule.parse(content[member], findings.path.parent)
        except WrongValue as error:
            findings.add(table, member, f"expected {rule.parse.expected}, found {error}")
    return _SECTIONS[table](**read) if len(findings.problems) == before else None
