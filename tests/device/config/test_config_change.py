"""One member changed in place: everything else in the file stays, and nothing wrong is ever written."""

import shlex
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from device.config.change import change_member
from device.config.config import defaults_text, load_config, parse_config, write_config
from device.errors import ConfigError
from tools.palmctl.main import main

PATH = Path("/etc/palm-access/device.toml")
TEXT = """\
# the left gate, north side
[device]
id = "gate-7-left"     # as registered # really
gate_id = "gate-7"
dbd_id = "dbd-7"

# the camera came in May
[camera]
source = "/dev/video0"   # not "/dev/video1 #2"
  fps = 30

[link]
port = "/dev/ttyACM0"
"""


@pytest.mark.parametrize(
    ("name", "value", "line"),
    [
        ("camera.fps", "15", "  fps = 15"),
        ("camera.source", "file:/tmp/a#b", 'source = "file:/tmp/a#b"   # not "/dev/video1 #2"'),
        ("camera.look", "nir", 'look = "nir"'),
        ("camera.nir", "right", 'nir = "right"'),
        ("camera.loop", "true", "loop = true"),
        ("enrolment.hands", '["L"]', 'hands = ["L"]'),
        ("cloud.url", "https://cloud.example", 'url = "https://cloud.example"'),
        ("device.id", '"gate-8"', 'id = "gate-8"     # as registered # really'),
    ],
)
def test_one_line_changes_and_all_others_stay(name: str, value: str, line: str) -> None:
    changed = change_member(TEXT, PATH, name, value)
    assert line in changed.text.splitlines()
    section, _, member = name.partition(".")
    others = [old for old in TEXT.splitlines() if not old.strip().startswith(f"{member} =")]
    assert [new for new in changed.text.splitlines() if new in others or not new][: len(others)] == others
    assert changed.config == parse_config(changed.text.encode(), PATH)
    assert getattr(getattr(changed.config, section), member) is not None


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\x85"])
def test_a_sign_that_ends_a_line_only_elsewhere_stays_in_its_comment(sign: str) -> None:
    text = TEXT.replace("left gate", f"left{sign}gate").replace("fps = 30", f"fps = 30 # slow{sign}at night")
    changed = change_member(text, PATH, "camera.fps", "15").text
    assert changed == text.replace("fps = 30", "fps = 15")
    with pytest.raises(ConfigError, match=r"device\.toml:9: \[camera\] source"):
        parse_config(text.replace('"/dev/video0"', "7").encode(), PATH)


@pytest.mark.parametrize("name", ["camera.fps", "link.port", "camera.loop", "cloud.url"])
def test_lines_that_an_editor_of_windows_ended_stay_as_they_are(name: str) -> None:
    values = {"camera.fps": "15", "link.port": "/dev/ttyS1", "camera.loop": "true"}
    value = values.get(name, "https://cloud.example")
    changed = change_member(TEXT.replace("\n", "\r\n"), PATH, name, value)
    assert changed.text == change_member(TEXT, PATH, name, value).text.replace("\n", "\r\n")
    assert change_member(changed.text, PATH, name, value).text == changed.text


def test_a_table_that_is_written_as_a_dotted_key_is_left_to_an_editor() -> None:
    text = 'cloud.url = "https://cloud.example"\n' + TEXT
    parse_config(text.encode(), PATH)
    with pytest.raises(ConfigError, match="written in a form that cannot be changed automatically"):
        change_member(text, PATH, "cloud.url", "https://other.example")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("camera.fsp", "15", "did you mean camera.fps?"),
        ("kamera.fps", "15", "did you mean camera.fps?"),
        ("camera.fps", "lots", "a whole number from 1 to 1000"),
        ("camera.fps", "0", "a smaller one"),
        ("cloud.url", "http://cloud.example", "plain http"),
        ("cloud.ca_file", "/ca.pem", "url: is missing"),
        ("enrolment.hands", "L", "found"),
    ],
)
def test_what_the_file_could_not_be_used_with_is_refused(name: str, value: str, says: str) -> None:
    with pytest.raises(ConfigError, match=None) as refused:
        change_member(TEXT, PATH, name, value)
    assert says in str(refused.value)


def test_a_form_that_only_a_person_can_change_is_left_alone() -> None:
    inline = TEXT.replace('[link]\nport = "/dev/ttyACM0"\n', "") + "link = 3\n"
    with pytest.raises(ConfigError):
        change_member(inline, PATH, "link.port", "/dev/ttyACM1")
    spread = TEXT + "[enrolment]\nhands = [\n  'L',\n  'R',\n]\n"
    with pytest.raises(ConfigError, match="cannot be changed automatically"):
        change_member(spread, PATH, "enrolment.hands", '["L"]')


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=40))
def test_any_path_is_written_so_that_it_is_read_back(value: str) -> None:
    try:
        changed = change_member(TEXT, PATH, "model.dir", value)
    except ConfigError:
        return
    tomllib.loads(changed.text)
    assert changed.config.model.dir is not None
    assert changed.config.camera.source == "/dev/video0"


def test_the_defaults_are_a_configuration() -> None:
    required = '[device]\nid = "d"\ngate_id = "g"\ndbd_id = "x"\n', '[camera]\nsource = "/dev/video0"\n'
    text = defaults_text().replace("[device]\n", required[0]).replace("[camera]\n", required[1])
    text = (
        text.replace("[link]\n", '[link]\nport = "/dev/ttyACM0"\n')
        .replace("[cloud]\n", "")
        .replace("[attest]\n", "")
    )
    shortest = "".join((*required, '[link]\nport = "/dev/ttyACM0"\n')).encode()
    assert parse_config(text.encode(), PATH) == parse_config(shortest, PATH)


def test_a_link_to_the_configuration_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    link, kept = tmp_path / "device.toml", tmp_path / "kept" / "device.toml"
    kept.write_text(TEXT)
    link.symlink_to(kept)
    done = CliRunner().invoke(main, ["config", "set", "camera.fps", "12", "--config", str(link)])
    assert (done.exit_code, link.is_symlink()) == (0, True), done.stderr
    assert kept.read_text() == TEXT.replace("fps = 30", "fps = 12")
    write_config(link, load_config(link))
    assert link.is_symlink() and kept.read_text().startswith("# Written by palmctl provision.")


@pytest.mark.parametrize(
    ("lines", "advised"),
    [
        ({"fps = 30": "fps = 0"}, "palmctl config set camera.fps VALUE"),
        ({'id = "gate-7-left"': "#"}, "palmctl config set device.id VALUE"),
        ({"fps = 30": "fsp = 3"}, "with an editor"),
        ({"fps = 30": "fps = [["}, "with an editor"),
        ({"fps = 30": "fps = 0", '"/dev/ttyACM0"': "3"}, "with an editor"),
    ],
)
def test_the_check_advises_a_command_only_where_it_puts_the_file_right(
    tmp_path: Path, lines: dict[str, str], advised: str
) -> None:
    config, text = tmp_path / "device.toml", TEXT
    for right, wrong in lines.items():
        text = text.replace(right, wrong)
    config.write_text(text)
    found = CliRunner().invoke(main, ["config", "check", "--config", str(config)])
    last = found.stderr.splitlines()[-1]
    assert found.exit_code == 1 and advised in last and ("config set" in last) == ("config set" in advised)
    told = CliRunner().invoke(main, ["config", "set", "camera.loop", "true", "--config", str(config)])
    assert told.stderr.startswith("palmctl: nothing was changed:\n") and config.read_text() == text


def test_the_advice_of_the_check_is_for_the_file_that_was_checked(tmp_path: Path) -> None:
    config = tmp_path / "of a gate.toml"
    config.write_text(TEXT.replace("fps = 30", "fps = 0"))
    found = CliRunner().invoke(main, ["config", "check", "--config", str(config)])
    words = shlex.split(found.stderr.splitlines()[-1].partition("use: palmctl ")[2])
    done = CliRunner().invoke(main, ["12" if word == "VALUE" else word for word in words])
    assert done.exit_code == 0, done.stderr
    assert config.read_text() == TEXT.replace("fps = 30", "fps = 12")


def test_a_registered_device_keeps_its_name(tmp_path: Path) -> None:
    config = tmp_path / "device.toml"
    config.write_text(TEXT.replace('"dbd-7"', f'"dbd-7"\nstate_dir = "{tmp_path}"'))
    before = config.read_text()
    wrong = CliRunner().invoke(main, ["config", "set", "camera.fps", "many", "--config", str(config)])
    assert (wrong.exit_code, config.read_text()) == (1, before)
    done = CliRunner().invoke(main, ["config", "set", "camera.fps", "12", "--config", str(config)])
    assert done.exit_code == 0 and "systemctl restart" in done.stderr
    assert config.read_text() == before.replace("fps = 30", "fps = 12")
