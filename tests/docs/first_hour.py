"""docs/tutorials/INSTALL.md, played: the operator's machine and a bare board."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.page_commands import Command
from tools.rig.demo.programs import RunningPrograms, module
from tools.rig.demo.setting import answers
from tools.rig.demo.waiting import wait_until

_LEARNED = {
    "TENANT": r"^tenant_id: (\S+)",
    "VALIDATOR_KEY": r"^pub_b64  (\S+)",
    "DEVICE_KEY": r"^  verdict key     (\S+)",
    "FINGERPRINT": r"^  fingerprint     ([0-9a-f ]+)$",
    "ROOT_KID": r"^(?:root_)?kid: ([0-9a-f]{32})",
    "API_KEY": r"^api_key: (\S+)",
    "CODE": r'"short_code": ?"([^"]+)"',
    "STRING": r"^string: (\S+)",
}


class Learned(dict[str, str]):
    """The page's words in capitals, as they become known; FOLDER is where the operator types."""

    def hear(self, printed: str) -> None:
        """Take what a command printed that later ones need."""
        for name, pattern in _LEARNED.items():
            found = re.search(pattern, printed, re.MULTILINE)
            if found:
                self[name] = found[1].strip()


class Place:
    """A folder of this machine in which commands are typed, with `palmctl` of this environment."""

    def __init__(self, folder: Path, learned: Learned, options_of_provision: str = "") -> None:
        """`options_of_provision` are added to that command: where its files go instead of /etc and /var."""
        self.folder = folder
        self.learned = learned
        self._bin = folder / ("bin-of-a-board" if options_of_provision else "bin")
        self._bin.mkdir(parents=True)
        shim = f'case "$1" in provision) set -- "$@" {options_of_provision};; esac\n'
        self._write("palmctl", f'{shim}exec {sys.executable} -m tools.palmctl.main "$@"\n')
        self._write("sudo", 'exec "$@"\n')

    def _write(self, name: str, script: str) -> None:
        path = self._bin / name
        path.write_text(f"#!/bin/sh\n{script}")
        path.chmod(0o755)

    def run(self, command: Command) -> str:
        """Type a command; what it printed."""
        done = subprocess.run(
            ["bash", "-euc", command.text],
            cwd=self.folder,
            env={**os.environ, **self.learned, "PATH": f"{self._bin}:{os.environ['PATH']}", "no_proxy": "*"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, f"$ {command.text}\n{done.stdout}"
        printed = done.stdout if done.stdout.endswith("\n") or not done.stdout else f"{done.stdout}\n"
        self.learned.hear(printed)
        return printed


def serve_cloud(stage: RunningPrograms, folder: Path, learned: Learned) -> None:
    """The operator's server over `folder`/cloud; learned as SERVER."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    words = ("cloud", "serve", "--data", str(folder / "cloud"), "--port", str(port), "--no-admin")
    stage.start("cloud", module("tools.palmctl.main", *words))
    wait_until("the reference server to answer", 60, lambda: answers(url))
    learned["SERVER"] = url


def told_apart(learned: Mapping[str, str], printed: str) -> str:
    """What was printed, as a page shows it: secrets cut short, the places of a test as those of a board."""
    for name in ("STRING", "API_KEY"):
        if name in learned:
            printed = printed.replace(learned[name], learned[name][:12] + "…")
    return printed.replace(learned["FOLDER"], "/root")
