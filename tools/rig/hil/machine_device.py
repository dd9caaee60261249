"""What is laid over the root of the virtual machine: a provisioned device, the films, the agent."""

import shutil
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from device.config.config import (
    CameraSection,
    DeviceConfig,
    DeviceSection,
    LinkSection,
    write_config,
)
from models.manifest import load_manifest, open_embedder, shipped_model_dir
from tools.palmctl.bench.board import DBD_ID, DEVICE_ID, GATE_ID, make_board
from tools.rig.bench.films import enrol
from tools.rig.hil.films import KNOWN_PERSON, write_films
from tools.rig.packaging.kit_copy import copy_kit

TEMPLATES = 1_000
CAMERA_FPS = 15
CONFIG = Path("/etc/palm-access/device.toml")
VALIDATOR_KEY = Path("/hil/validator.key")
DEVICE_PORT, VALIDATOR_PORT = "/dev/ttyGS0", "/dev/ttyACM0"
CAMERA = "/dev/palm-camera"
"""The name that the package's udev rule gives."""
_AGENT_UNIT = """\
[Unit]
Description=Agent of the rig

[Service]
ExecStartPre=/sbin/modprobe virtio_console
ExecStartPre=/bin/udevadm settle
ExecStart=/usr/bin/python3 -m tools.rig.hil.agent
Environment=PYTHONPATH=/hil

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class MachineDevice:
    """What the scenarios need to know about the device in the machine."""

    verdict_key_b64: str
    known_subject: str


def make_stage(root: Path) -> MachineDevice:
    """Fill `root`, a new folder, with everything that goes over the installed package."""
    write_films(root / "hil/films")
    put_agent(root)
    copy_kit(root)
    return _provision(root)


def put_agent(root: Path) -> None:
    """The agent below `root`, started with the machine."""
    modules = root / "hil/tools/rig/hil"
    modules.mkdir(parents=True)
    for name in ("__init__.py", "agent.py", "screen.py", "bulk_gadget.py", "bulk_echo.py"):
        shutil.copy(Path(__file__).parent / name, modules / name)
    units = root / "etc/systemd/system"
    wanted = units / "multi-user.target.wants"
    wanted.mkdir(parents=True)
    (units / "hil-agent.service").write_text(_AGENT_UNIT, encoding="ascii")
    (wanted / "hil-agent.service").symlink_to("/etc/systemd/system/hil-agent.service")


def _provision(root: Path) -> MachineDevice:
    """A registered device with a gallery, made here and moved there."""
    manifest = load_manifest(shipped_model_dir())
    known = enrol(open_embedder(manifest), KNOWN_PERSON)
    in_there = DeviceConfig(
        device=DeviceSection(
            DEVICE_ID, GATE_ID, DBD_ID, Path("/var/lib/palm-access"), Path("/run/palm-access")
        ),
        camera=CameraSection(CAMERA, CAMERA_FPS),
        link=LinkSection(DEVICE_PORT),
    )
    with tempfile.TemporaryDirectory(prefix="palm-hil-board-") as name:
        folder = Path(name)
        state = folder / "state"
        state.mkdir()
        here = replace(in_there, device=replace(in_there.device, state_dir=state, runtime_dir=folder / "run"))
        board = make_board(
            folder,
            here,
            model_id=manifest.model_id,
            thresholds=asdict(manifest.thresholds),
            known=known,
            templates=TEMPLATES,
        )
        shutil.copytree(state, root / "var/lib/palm-access")
    config = root / CONFIG.relative_to("/")
    config.parent.mkdir(parents=True, exist_ok=True)
    write_config(config, in_there)
    key = root / VALIDATOR_KEY.relative_to("/")
    key.write_bytes(board.validator_key.seed)
    key.chmod(0o600)
    return MachineDevice(board.verdict_key.b64, known[0].subject_ref)
