"""docs/tutorials/VALIDATOR.md, section 4, played: the page's validator at one end, the kit at the other."""

import json
import re
import shlex
import subprocess
from pathlib import Path

from tests.docs.page_commands import DOCS
from tests.palmctl import PALMCTL
from tools.rig.demo.programs import RunningPrograms, module, palmctl

TEXT = re.sub(r"\\\n *", "", (DOCS / "tutorials/VALIDATOR.md").read_text(encoding="utf-8"))


def shown(beginning: str, **words: str) -> list[str]:
    """The page's command that begins so, with its words in capitals replaced; without `palmctl`."""
    (line,) = set(re.findall(rf"^    palmctl ({beginning}.*?)(?:  .*)?$", TEXT, re.MULTILINE))
    return [words.get(word, word) for word in shlex.split(line)]


def test_the_kit_meets_a_validator(tmp_path: Path) -> None:
    device, validator = str(tmp_path / "device.key"), str(tmp_path / "dbd.key")
    keys = {"device.key": device, "dbd.key": validator}
    device_key = palmctl(*shown("dbd key", **keys))["pub_b64"]
    own_key = palmctl("dbd", "key", "--generate", "--key-file", validator)["pub_b64"]
    with RunningPrograms(tmp_path) as stage:
        pair = stage.start("pair", module("tools.palmctl.main", *shown("link pair"), "--json"))
        ends = pair.wait_line(lambda line: "device" in line, 20)
        words = shown("dbd simulate", PATH=ends["validator"], K=device_key, **keys)
        stage.start("validator", module("tools.palmctl.main", *words))
        words = shown("dbd conform --as-device", FIRST_PATH=ends["device"], YOUR_PUBLIC_KEY=own_key, **keys)
        played = [*PALMCTL, *words, "--only", "handshake", "--json"]
        done = subprocess.run(played, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) > 5
