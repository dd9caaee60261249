"""What the first boot takes from the provisioning file, and that it runs on Debian's own Python."""

import ast
import sys
from pathlib import Path

import pytest

from tools.rig.image import first_boot
from tools.rig.image.build import FIRST_BOOT


def test_a_string_alone_is_enough() -> None:
    assert first_boot.wanted(b'string = "PALM1ABC"\n') == [
        *("PALM1ABC", "--camera", "/dev/palm-camera", "--link-port", "/dev/palm-validator"),
    ]


def test_camera_and_port_may_be_named_and_any_editor_may_write_it() -> None:
    written = '\ufeffstring = "PALM1ABC"\r\ncamera = "/dev/video2"\r\nlink_port = "/dev/ttyUSB0"\r\n'
    assert first_boot.wanted(written.encode()) == [
        *("PALM1ABC", "--camera", "/dev/video2", "--link-port", "/dev/ttyUSB0"),
    ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"PALM1ABC\n", "expected TOML"),
        (b"\xff\xfe", "expected TOML"),
        (b"", "found none"),
        (b'camera = "/dev/video0"\n', "found none"),
        (b"string = 7\n", "each a text"),
        (b'string = """a\nb"""\n', "each a text"),
        (b'string = "PALM1ABC"\nserver = "https://x"\n', "found server, string"),
        (b"#" * (first_boot.MAX_BYTES + 1), "at most"),
    ],
)
def test_anything_else_is_refused_in_words(content: bytes, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        first_boot.wanted(content)


def test_it_needs_nothing_but_the_standard_library() -> None:
    imported = {
        name.partition(".")[0]
        for node in ast.walk(ast.parse(Path(FIRST_BOOT).read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in (
            [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        )
    }
    assert imported <= sys.stdlib_module_names


def on_a_board(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    """`folder` in the place of the card's folders, with shell scripts in the place of these programs."""
    for program, does in ({"mount": "", "umount": "", "systemctl": ""} | programs).items():
        (folder / program).write_text(f"#!/bin/sh\n{does}\n")
        (folder / program).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    for name in ("MOUNTED", "CONFIG", "DAMAGED", "ISSUE"):
        monkeypatch.setattr(first_boot, name, folder / name)
    monkeypatch.setattr(first_boot, "FILE", folder / "MOUNTED" / "palm-provision.toml")


def test_the_text_above_the_login_prompt_has_the_key_for_the_validator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image has no password: who installs the gate reads the key there, or nowhere."""
    printed = "gate-7 is a device of tenant T.\n  verdict key     JuTqVU=  (give this to the validator)"
    on_a_board(tmp_path, monkeypatch, palmctl=f"echo '{printed}'; touch {tmp_path}/CONFIG")
    first_boot.FILE.parent.mkdir()
    first_boot.FILE.write_text('string = "PALM1ABC"\n')
    assert first_boot.main() == 0
    text = first_boot.ISSUE.read_text()
    assert "PROVISIONED. This gate" in text and "verdict key     JuTqVU=" in text
    assert not first_boot.FILE.exists()


@pytest.mark.parametrize(
    ("is_gate", "exit_status", "said"),
    [(False, 1, "NOT PROVISIONED. The boot partition cannot be used"), (True, 0, "PROVISIONED. This gate")],
)
def test_a_file_that_can_be_neither_read_nor_destroyed_keeps_no_gate_from_serving(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_gate: bool, exit_status: int, said: str
) -> None:
    """A folder of its name; a damaged card, which the kernel turns read-only, answers so too."""
    started = tmp_path / "started"
    on_a_board(tmp_path, monkeypatch, systemctl=f'echo "$@" >{started}')
    first_boot.FILE.mkdir(parents=True)
    if is_gate:
        first_boot.CONFIG.touch()
    assert first_boot.main() == exit_status
    assert said in first_boot.ISSUE.read_text()
    assert started.exists() == is_gate
