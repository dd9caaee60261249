import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from device.config.config import DEFAULT_PATH, DeviceConfig, config_path, load_config, write_config
from device.errors import ConfigError

FULL = """
[device]
id = "gate-7-left"
gate_id = "gate-7"
dbd_id = "dbd-7"
state_dir = "/var/lib/x"
runtime_dir = "/run/x"
[camera]
source = "/dev/video0"
fps = 25
loop = true
look = "nir"
[link]
port = "/dev/ttyACM0"
baud = 115200
[cloud]
url = "https://cloud.example:8443/"
ca_file = "ca.pem"
[model]
dir = "model"
[enrolment]
hands = ["R"]
"""

SMALLEST = """
[device]
id = "a"
gate_id = "b"
dbd_id = "c"
[camera]
source = "file:frames"
[link]
port = "usb:1d50:606f:serial-9"
"""


def load(folder: Path, text: str) -> DeviceConfig:
    path = folder / "device.toml"
    path.write_text(text, encoding="utf-8")
    return load_config(path)


def problems(folder: Path, text: str) -> tuple[str, ...]:
    with pytest.raises(ConfigError) as raised:
        load(folder, text)
    return raised.value.problems


def test_every_member_is_read(tmp_path: Path) -> None:
    config = load(tmp_path, FULL)
    assert config.device.id == "gate-7-left"
    assert config.camera.fps == 25
    assert config.camera.loop
    assert config.camera.look == "nir"
    assert config.link.baud == 115200
    assert config.cloud is not None
    assert config.cloud.url == "https://cloud.example:8443"
    assert config.cloud.ca_file == tmp_path / "ca.pem"
    assert config.model.dir == tmp_path / "model"
    assert config.enrolment.hands == ("R",)
    assert config.keys_dir == Path("/var/lib/x/keys")
    assert config.carrier_socket == Path("/run/x/carrier/sock")


def test_defaults(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST)
    assert config.device.state_dir == Path("/var/lib/palm-access")
    assert config.device.runtime_dir == Path("/run/palm-access")
    assert (config.camera.fps, config.camera.loop, config.camera.look) == (30, False, "rgb")
    assert config.camera.nir == "none"
    assert config.link.baud == 921_600
    assert config.cloud is None
    assert config.model.dir is None
    assert config.enrolment.hands == ("L", "R")


def test_a_file_that_an_editor_of_windows_saved_is_read(tmp_path: Path) -> None:
    saved = "\ufeff" + FULL.lstrip().replace("\n", "\r\n")
    assert load(tmp_path, saved) == load(tmp_path, FULL)


def test_a_relative_file_source_starts_at_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, SMALLEST).camera.source == f"file:{tmp_path / 'frames'}"


def test_written_configurations_read_back_the_same(tmp_path: Path) -> None:
    for text in (FULL, SMALLEST):
        config = load(tmp_path, text)
        write_config(tmp_path / "other.toml", config)
        assert load_config(tmp_path / "other.toml") == config


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(name=st.text(st.characters(exclude_categories=("C", "Z")), min_size=1, max_size=40))
def test_any_printable_path_survives_writing(tmp_path: Path, name: str) -> None:
    config = load(tmp_path, SMALLEST)
    changed = replace(config, camera=replace(config.camera, source=f"file:{tmp_path / name}"))
    write_config(tmp_path / "other.toml", changed)
    assert load_config(tmp_path / "other.toml") == changed


@pytest.mark.parametrize("source", ["v4l2:video0", "v4l2:by-id/", "v4l2:by-id/..", "v4l2:by-path/../sda"])
def test_a_camera_that_no_program_could_look_for_is_refused(tmp_path: Path, source: str) -> None:
    (problem,) = problems(tmp_path, SMALLEST.replace("file:frames", source))
    assert '[camera] source: expected "/dev/video0", "v4l2:by-id/…" or' in problem


def test_a_camera_by_its_lasting_name_is_taken(tmp_path: Path) -> None:
    for source in ("v4l2:by-id/usb-Maker_Camera-video-index0", "v4l2:by-path/platform-xhci.0-usb-0:1:1.0"):
        assert load(tmp_path, SMALLEST.replace("file:frames", source)).camera.source == source


def test_all_problems_come_at_once_with_their_lines(tmp_path: Path) -> None:
    found = problems(
        tmp_path,
        """colour = 3
[device]
idd = "x"
gate_id = 7
dbd_id = "a b"
[camera]
source = "webcam"
fps = 5000
loop = 1
look = "nri"
[link]
baud = 1.5
[clod]
[enrolment]
hands = ["L", "L"]
""",
    )
    path = tmp_path / "device.toml"
    starts = [
        f"{path}:1: colour: is outside any table",
        f"{path}:13: [clod]: unknown table (did you mean cloud?)",
        f"{path}:3: [device] idd: unknown member (did you mean id?)",
        f"{path}:2: [device] id: is missing; expected a string",
        f"{path}:4: [device] gate_id: expected a string of 1 to 64",
        f"{path}:5: [device] dbd_id: expected",
        f"{path}:7: [camera] source: expected",
        f"{path}:8: [camera] fps: expected a whole number from 1 to 1000, found a larger one",
        f"{path}:9: [camera] loop: expected true or false, found a whole number",
        f'{path}:10: [camera] look: expected "rgb" or "nir", found another string (did you mean "nir"?)',
        f"{path}:11: [link] port: is missing",
        f"{path}:12: [link] baud: expected a whole number from 9600 to 4000000, found a number",
        f'{path}:15: [enrolment] hands: expected ["L"], ["R"] or ["L", "R"], found another list',
    ]
    assert len(found) == len(starts)
    for problem, start in zip(found, starts, strict=True):
        assert problem.startswith(start)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://user:hunter2@cloud.example", "a user name or a password"),
        ("http://cloud.example", "plain http to another machine"),
        ("ftp://cloud.example", "not an http or https URL"),
        ("https://cloud.example/v1", "a path"),
        ("https://[::1", "not a URL"),
        ("https://cloud.example:port", "not a URL"),
        ("https://cloud..example", "neither a name nor an address"),
        ("https://cloud. example", "neither a name nor an address"),
        (f"https://{'a' * 64}.example", "neither a name nor an address"),
        ("https://xn--.example", "neither a name nor an address"),
    ],
)
def test_urls_that_are_refused_without_being_repeated(tmp_path: Path, url: str, words: str) -> None:
    (found,) = problems(tmp_path, f'{SMALLEST}\n[cloud]\nurl = "{url}"\n')
    assert words in found
    assert "hunter2" not in found


@pytest.mark.parametrize(
    "host",
    ["cloud.example.", "cloud_1", "münchen.example", "xn--mnchen-3ya.example", "10.0.0.7", "[fe80::1%eth0]"],
)
def test_names_and_addresses_are_hosts(tmp_path: Path, host: str) -> None:
    config = load(tmp_path, f'{SMALLEST}\n[cloud]\nurl = "https://{host}:8443"\n')
    assert config.cloud is not None
    assert config.cloud.url == f"https://{host}:8443"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8710", "http://[::1]:8710", "http://localhost:8710"])
def test_plain_http_stays_on_this_machine(tmp_path: Path, url: str) -> None:
    config = load(tmp_path, f'{SMALLEST}\n[cloud]\nurl = "{url}"\n')
    assert config.cloud is not None
    assert config.cloud.url == url


def test_a_table_that_is_a_value_and_a_reserved_id(tmp_path: Path) -> None:
    found = problems(
        tmp_path, 'camera = "x"\n' + SMALLEST.replace('"a"', '"self"').replace("[camera]", "[model]")
    )
    assert any(
        "[camera]: expected a table with source, fps, loop, look, nir, found a string" in line
        for line in found
    )
    assert any("a reserved name" in line for line in found)


def test_the_near_infrared_half_stands_beside_a_colour_one(tmp_path: Path) -> None:
    text = SMALLEST.replace("[camera]", '[camera]\nnir = "right"')
    assert load(tmp_path, text).camera.nir == "right"
    (found,) = problems(tmp_path, text.replace("nir =", 'look = "nir"\nnir ='))
    assert '[camera] nir: needs look = "rgb"' in found


def test_a_runtime_dir_too_long_for_a_socket(tmp_path: Path) -> None:
    text = SMALLEST.replace('dbd_id = "c"', f'dbd_id = "c"\nruntime_dir = "/run/{"x" * 90}"')
    (found,) = problems(tmp_path, text)
    assert "1 bytes too long for a UNIX socket" in found


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"[device\n", "is not TOML"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"x = " + b"[" * 1_000, "is nested too deeply"),
        (b"#" * 70_000, "expected at most 65,536 bytes"),
        (b"fps = " + b"9" * 5_000, "a line of over 1024 characters"),
        (b"[device]\nid = 1\nid = 2\n", "is not TOML"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "device.toml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        load_config(path)


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="PALM_ACCESS_CONFIG"):
        load_config(tmp_path / "none.toml")


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    config = load(tmp_path, SMALLEST)
    with pytest.raises(ConfigError, match="cannot be written"):
        write_config(tmp_path / "none" / "device.toml", config)


def test_which_file_counts() -> None:
    given = Path("/given.toml")
    environ = {"PALM_ACCESS_CONFIG": "/environ.toml"}
    assert config_path(given, environ) == given
    assert config_path(None, environ) == Path("/environ.toml")
    assert config_path(None, {}) == DEFAULT_PATH
    assert config_path(None, {"PALM_ACCESS_CONFIG": ""}) == DEFAULT_PATH


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    value=st.one_of(
        st.none(),
        st.integers(),
        st.booleans(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(max_size=8),
    ),
    member=st.sampled_from(
        ["device.id", "camera.source", "camera.fps", "link.port", "link.baud", "model.dir"]
    ),
)
def test_whatever_stands_there_is_read_or_refused_by_name(tmp_path: Path, value: object, member: str) -> None:
    table, name = member.split(".")
    text = json.dumps(value) if value is not None else "{}"
    try:
        load(tmp_path, f"[{table}]\n{name} = {text}\n")
    except ConfigError as error:
        assert error.problems
