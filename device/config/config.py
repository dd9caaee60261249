"""The configuration file: TOML in, one frozen `DeviceConfig` out, all mistakes reported together.

The sections' fields are the one table of members (type, parser, purpose, default): reading, writing, messages
and pages all use it.
Relative paths are relative to the folder of the file, `file:` sources included.
"""

import json
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_type_hints

from device.config import values
from device.config.values import Parser, WrongValue, describe_kind, nearest
from device.errors import ConfigError
from device.platform.files import replace_named
from device.platform.roles import SocketRole, socket_path
from link1.errors import reason_of
from link1.plain_file import read_plain_file

DEFAULT_PATH = Path("/etc/palm-access/device.toml")
ENVIRONMENT_VARIABLE = "PALM_ACCESS_CONFIG"
MAX_FILE_BYTES = 64 * 1024
"""A full configuration has under 1 KiB; a larger file was named by mistake."""
MAX_LINE_CHARACTERS = 1024
"""A path and a comment fit. The parser needs quadratic time for a dotted key, which is on one line."""
_HEADER = re.compile(r"""\s*\[\[?\s*["']?([A-Za-z0-9_.-]+)["']?\s*\]\]?\s*(#.*)?""")
_KEY = re.compile(r"""\s*["']?([A-Za-z0-9_-]+)["']?\s*[=.]""")


@dataclass(frozen=True, slots=True)
class DeviceSection:
    id: Annotated[str, values.device_id, "this device, as it was registered"]
    gate_id: Annotated[str, values.name, "the gate it stands at, as it was registered"]
    dbd_id: Annotated[str, values.name, "the validator at the other end of its cable, as it was registered"]
    state_dir: Annotated[Path, values.path, "keys, pinned trust, gallery, journal"] = Path(
        "/var/lib/palm-access"
    )
    runtime_dir: Annotated[Path, values.socket_folder, "the sockets of the daemons"] = Path(
        "/run/palm-access"
    )


@dataclass(frozen=True, slots=True)
class CameraSection:
    source: Annotated[str, values.camera_source, "the camera, or a recording"]
    fps: Annotated[int, values.integer(1, 1000), "pictures a second asked of the camera"] = 30
    loop: Annotated[bool, values.boolean, "a recording restarts at its end"] = False
    look: Annotated[str, values.one_of("rgb", "nir"), "what the camera sees: colour, or near infrared"] = (
        "rgb"
    )
    nir: Annotated[
        Literal["none", "left", "right"],
        values.one_of("none", "left", "right"),
        "the half of a two-sensor module's picture that is near infrared; the other is colour",
    ] = "none"


@dataclass(frozen=True, slots=True)
class LinkSection:
    port: Annotated[str, values.port, "the port of the cable to the validator"]
    baud: Annotated[int, values.integer(9_600, 4_000_000), "speed of a real UART; USB ports ignore it"] = (
        921_600
    )


@dataclass(frozen=True, slots=True)
class CloudSection:
    url: Annotated[
        str, values.service_url, "the service; without [cloud] the device lives on the validator's mail"
    ]
    ca_file: Annotated[
        Path | None, values.path, "CA certificate of the service, where the system does not know it"
    ] = None


@dataclass(frozen=True, slots=True)
class ModelSection:
    dir: Annotated[Path | None, values.path, "another model than the shipped one"] = None
    hand_weights: Annotated[
        bool, values.boolean, "hands are also found by published weights, trained by others on photographs"
    ] = True


@dataclass(frozen=True, slots=True)
class LivenessSection:
    model_dir: Annotated[
        Path | None, values.path, "a liveness network of your own, in addition to the built-in cues"
    ] = None


@dataclass(frozen=True, slots=True)
class EnrolmentSection:
    hands: Annotated[
        tuple[Literal["L", "R"], ...], values.hands, "the hands that a session read from a QR code asks for"
    ] = ("L", "R")
    consent: Annotated[
        str,
        values.one_of("screen", "service"),
        "where people agree: on this device's screen, or elsewhere at the service",
    ] = "screen"
    terms_dir: Annotated[
        Path | None, values.path, "the texts that are shown, where they are not the shipped ones"
    ] = None
    terms_version: Annotated[
        str | None, values.name, "the version shown for QR codes, where it is not the one from registration"
    ] = None


@dataclass(frozen=True, slots=True)
class AttestSection:
    chain_file: Annotated[
        Path,
        values.path,
        "the factory's certificates for this board in PEM, its own first; without [attest] its keys stay "
        "unattested",
    ]
    signer: Annotated[str, values.signer, "where the key of the first certificate is"]


@dataclass(frozen=True, slots=True)
class DeviceConfig:
    """The content of the file. `cloud` is None without a network, `attest` without a maker's certificate."""

    device: DeviceSection
    camera: CameraSection
    link: LinkSection
    cloud: CloudSection | None = None
    model: ModelSection = ModelSection()
    enrolment: EnrolmentSection = EnrolmentSection()
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


@dataclass(frozen=True, slots=True)
class ConfigMember:
    """How a member is read, its purpose, and its default, None when there is none.

    `default` is MISSING when the file must have the member; in a section that may be absent: when the section
    is present.
    """

    parse: Parser
    says: str
    default: object

    @property
    def required(self) -> bool:
        return self.default is MISSING

    @property
    def default_toml(self) -> str | None:
        """The default as TOML text."""
        return None if self.default in (None, MISSING) else toml_value(self.default)


def _members_of(section: type) -> dict[str, ConfigMember]:
    hints = get_type_hints(section, include_extras=True)
    described = ((one, *hints[one.name].__metadata__) for one in fields(section))
    return {one.name: ConfigMember(parse, says, one.default) for one, parse, says in described}


MEMBERS: Final = {table: _members_of(section) for table, section in _SECTIONS.items()}
"""Every section and its members, in the order in which they are written."""


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
        text = data.decode("utf-8-sig")  # an editor may put a byte order mark in front
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
    """Write `config` to `path`, or where a link leads; replaced as a whole, read back as an equal value.

    Raises ConfigError when it cannot be written.
    """
    try:
        replace_named(path.resolve(), render_config(config).encode("utf-8"), mode=0o644)
    except OSError as error:
        raise ConfigError((f"{path}: cannot be written ({error.strerror})",)) from error


def render_config(config: DeviceConfig) -> str:
    """The TOML text of `config`."""
    lines = ["# Written by palmctl provision. `palmd --check` says whether it is valid."]
    for table, of_table in MEMBERS.items():
        section = getattr(config, table)
        given = {} if section is None else {name: getattr(section, name) for name in of_table}
        pairs = [f"{name} = {toml_value(value)}" for name, value in given.items() if value is not None]
        if pairs:
            lines += ["", f"[{table}]", *pairs]
    return "\n".join(lines) + "\n"


def defaults_text(say: Callable[[str], str] = str) -> str:
    """All members with their defaults and purposes; those without a default are commented out.

    `say`: from English into the reader's language.
    """
    lines: list[str] = []
    for section, members in MEMBERS.items():
        lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        for name, member in members.items():
            default = member.default_toml
            kind = "required" if member.required else "optional" if default is None else ""
            line = f"{name} = {default}" if default is not None else f"# {name} ="
            says = "; ".join(say(part) for part in (kind, member.says, member.parse.expected) if part)
            lines.append(f"{line:<42}# {says}")
    return "\n".join(lines)


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


def lines_of(text: str) -> list[str]:
    """The lines of a TOML text, counted as tomllib and editors count them: a comment may hold U+2028, at
    which str.splitlines would begin another."""
    return text.replace("\r\n", "\n").removesuffix("\n").split("\n") if text else []


class Locations:
    """Line numbers of tables and members, which tomllib does not keep: a hint for people, missing where none
    was found."""

    def __init__(self, text: str) -> None:
        self._lines: dict[tuple[str, str | None], int] = {}
        table = ""
        for number, line in enumerate(lines_of(text), start=1):
            if header := _HEADER.fullmatch(line):
                table = header.group(1)
                self._lines.setdefault((table, None), number)
            elif key := _KEY.match(line):
                self._lines.setdefault((table, key.group(1)), number)

    def line_of(self, table: str, member: str | None) -> int | None:
        """Line of a member, else of its table, else None. The table "" is the text above all tables."""
        own = self._lines.get((table, member))
        return own or self._lines.get((table, None)) or self._lines.get(("", table))


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
    known = ", ".join(f"[{table}]" for table in MEMBERS)
    for table, content in document.items():
        if table in MEMBERS:
            continue
        if isinstance(content, dict):
            findings.add(table, None, f"unknown table{nearest(table, MEMBERS)}; there are {known}")
        else:
            findings.add("", table, f"is outside any table; there are {known}")
    sections: dict[str, Any] = {
        table: None
        if table in _MAY_BE_ABSENT and table not in document
        else _read_table(table, document.get(table, {}), findings)
        for table in MEMBERS
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
    rules = MEMBERS[table]
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
            if rule.required:
                findings.add(table, member, f"is missing; expected {rule.parse.expected}")
            continue
        try:
            read[member] = rule.parse(content[member], findings.path.parent)
        except WrongValue as error:
            findings.add(table, member, f"expected {rule.parse.expected}, found {error}")
    return _SECTIONS[table](**read) if len(findings.problems) == before else None
