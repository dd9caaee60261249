"""A board in a booted tree on which a page's commands are typed, as root."""

import json
import os
import pty
import re
import select
import shutil
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from models.synthesis.person import make_person
from models.synthesis.scene import empty_scene, passage
from tests.docs.first_hour import Learned
from tests.docs.page_commands import Command
from tests.packaging.debian_tree import Machine
from tools.rig.demo.waiting import wait_until
from tools.rig.packaging.kit_copy import PALMCTL, copy_kit
from tools.rig.virtual_camera import VirtualCamera

FPS = 15
_LINE_END = re.compile(r"\r*\n")


class Board:
    """A Debian machine with a folder as its camera and a virtual cable as its port.

    `folder` is where the commands are typed.
    """

    def __init__(self, machine: Machine, learned: Learned, folder: str = "/root") -> None:
        self._machine = machine
        self._folder = folder
        self._learned = learned
        self._camera = VirtualCamera(machine.root / "srv/camera", empty_scene(7, 3, scene_seed=7), fps=FPS)
        self._running: list[subprocess.Popen[str]] = []
        self._said: list[str] = []
        sudo = machine.root / "usr/local/bin/sudo"
        sudo.write_text('#!/bin/sh\nexec "$@"\n')
        sudo.chmod(0o755)

    def run(self, command: Command) -> str:
        """Type a command as root; what it printed. The doctor may find something."""
        if "STRING" in self._learned:
            (self._machine.root / "root/string.txt").write_text(self._learned["STRING"] + "\n")
        done = subprocess.run(
            self._typed(command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=900,
            check=False,
        )
        printed = done.stdout
        assert done.returncode == 0 or "doctor" in command.text, f"$ {command.text}\n{printed}"
        self._learned.hear(printed)
        if "provision " in command.text:
            self._plug_in()
        return printed

    def _typed(self, command: Command) -> list[str]:
        exported = "".join(f"export {name}='{value}'\n" for name, value in self._learned.items())
        setting = "export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 HOME=/root\n"
        quiet = "export DEBIAN_FRONTEND=noninteractive\n"
        enter = ["nsenter", "--target", str(self._machine.pid), "--all", f"--wdns={self._folder}"]
        return [*enter, "bash", "-c", setting + quiet + exported + command.text]

    def _plug_in(self) -> None:
        """The one difference from a real board: the camera is a folder, the cable has no plug."""
        for member, value in (("source", "file:/srv/camera"), ("fps", str(FPS))):
            self.run(Command(f"palmctl config set camera.{member} {value}", ()))
        copy_kit(self._machine.root)
        pair = self._start(Command(f"{PALMCTL} link pair --json", ()))
        assert pair.stdout is not None
        ends = json.loads(pair.stdout.readline())
        # The pair's own names lie in /tmp, and the core has a /tmp of its own.
        device = f"$(readlink -f {ends['device']})"
        self.run(Command(f"chmod 666 {device}; ln -sfn {device} /dev/palm-validator", ()))
        self._learned["PORT"] = ends["validator"]

    def _start(self, command: Command) -> "subprocess.Popen[str]":
        started = subprocess.Popen(
            self._typed(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self._running.append(started)
        return started

    def run_on(self, command: Command) -> str:
        """Start the validator; what it says is kept. Back when both ends have proved themselves."""
        shutil.copy(Path(self._learned["FOLDER"]) / "dbd-7.key", self._machine.root / "root/dbd-7.key")
        (self._machine.root / "root/dbd-7.key").chmod(0o600)
        started = self._start(Command(command.text.replace("palmctl", str(PALMCTL), 1), ()))

        def listen() -> None:
            assert started.stdout is not None
            self._said.extend(started.stdout)

        threading.Thread(target=listen, daemon=True).start()
        asked = self._typed(Command("palmctl status --json", ()))

        def proven() -> bool:
            told = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
            return bool(json.loads(told)["cable"]["state"] == "up")

        wait_until("the validator to prove itself", 60, proven)
        return ""

    def said(self) -> str:
        return "".join(self._said)

    def run_on_terminal(self, command: Command) -> str:
        """Type a command on a terminal, answer what it asks, and show it the hand it asks for."""
        ours, theirs = pty.openpty()
        started = subprocess.Popen(
            self._typed(command), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
        )
        os.close(theirs)
        asked: list[tuple[str, Callable[[], object]]] = [
            ("«aceito»?", lambda: os.write(ours, b"aceito\r")),
            ("Mostre a palma esquerda", lambda: self._show("L", 1)),
            ("Mostre a palma direita", lambda: self._show("R", 2)),
            ("waiting for the next hand", lambda: self._show("L", 3)),
        ]
        printed, quiet_s = "", 0
        while started.poll() is None or select.select([ours], [], [], 0.2)[0]:
            if not select.select([ours], [], [], 1.0)[0]:
                quiet_s += 1
                if quiet_s % 10 == 0 and "waiting for the next hand" in printed:
                    self._show("L", 3 + quiet_s)  # as a person does whom the gate has not noticed
                continue
            try:
                printed += os.read(ours, 65536).decode(errors="replace")
            except OSError:  # the other end has been closed
                break
            for number, (words, answer) in enumerate(asked):
                if words in printed:
                    answer()
                    del asked[number]
                    break
        os.close(ours)
        printed = as_it_stands(printed)
        assert started.wait(20) == 0, printed
        return printed

    def _show(self, hand: str, occasion: int) -> None:
        assert hand in ("L", "R")
        film = passage(make_person(101), "L" if hand == "L" else "R", occasion, frames_held=30, scene_seed=7)
        self._camera.queue(film)

    def stop(self) -> None:
        for program in self._running:
            program.terminate()


def as_it_stands(printed: str) -> str:
    """What is left on a terminal's screen: colours gone, lines that were written over gone."""
    printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", printed)
    return "".join(f"{line.rsplit(chr(13), 1)[-1].rstrip()}\n" for line in _LINE_END.split(printed.rstrip()))
