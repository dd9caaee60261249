import logging
import subprocess
import sys

import pytest

from device.platform.logs import BURST, MAX_KINDS, WINDOW_S, RepeatLimit, log_to_stderr
from tests import REPOSITORY


class Log:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.limit = RepeatLimit(lambda: self.now_s)

    def say(self, message: str, *values: object, level: int = logging.WARNING) -> str | None:
        record = logging.LogRecord("device.x", level, "x.py", 1, message, values, None)
        return record.getMessage() if self.limit.filter(record) else None


def test_the_same_thing_is_said_a_few_times_and_then_counted() -> None:
    log = Log()
    said = [log.say("frame %d is broken", number) for number in range(1_000)]
    assert [line for line in said if line] == [f"frame {number} is broken" for number in range(BURST)]
    log.now_s = WINDOW_S
    assert log.say("frame %d is broken", 1_000) == "frame 1000 is broken (995 more like it left out)"
    assert log.say("frame %d is broken", 1_001) == "frame 1001 is broken"


def test_other_things_are_said_meanwhile() -> None:
    log = Log()
    for _ in range(100):
        log.say("%s", "the disk refuses")
    assert log.say("%s", "the cable is cut") == "the cable is cut"
    assert log.say("%s", "the disk refuses", level=logging.ERROR) == "the disk refuses"


def test_what_is_remembered_is_bounded() -> None:
    log = Log()
    for _ in range(BURST):
        assert log.say("%s", "the first")
    assert not log.say("%s", "the first")
    for number in range(MAX_KINDS):
        assert log.say("%s", f"message {number}")
    assert log.say("%s", "the first"), "forgotten, so it counts from the start again"


def test_handlers_that_others_made_are_not_bound(caplog: pytest.LogCaptureFixture) -> None:
    """Else a test that starts a daemon in its own process takes lines from every later one."""
    log_to_stderr()
    for number in range(50):
        logging.getLogger("device.x").warning("frame %d is broken", number)
    assert len(caplog.messages) == 50


def said_by(program: str) -> str:
    """What a daemon that runs `program` leaves on standard error."""
    begins = "import os, sys; from device.platform import logs; logs.log_to_stderr(); logs.bound_libraries()"
    done = subprocess.run(
        [sys.executable, "-c", f"{begins}\n{program}"],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
        cwd=REPOSITORY,
    )
    return done.stderr


DAMAGED = """
import cv2, logging, numpy, threading
picture = numpy.random.default_rng(1).integers(0, 256, (96, 128, 3), numpy.uint8)
damaged = cv2.imencode(".jpg", picture)[1]
damaged[2_000:2_002] = 0xFF, 0xD5
for _ in range(100):
    cv2.imdecode(damaged, cv2.IMREAD_COLOR)
relay = next(thread for thread in threading.enumerate() if thread.name == "stderr")
os.close(2)
relay.join()
logging.getLogger("device.x").warning("the cable is cut")
"""


def test_a_library_that_complains_of_every_picture_is_bound() -> None:
    lines = said_by(DAMAGED).splitlines()
    assert len([line for line in lines if "Corrupt JPEG data" in line]) == BURST
    assert lines[-1] == "WARNING device.x: the cable is cut"


def test_a_crash_is_seen_whole() -> None:
    assert "Fatal Python error: Aborted" in said_by("os.abort()")
    assert "ZeroDivisionError" in said_by("1 / 0")


def test_a_program_that_begins_again_has_its_standard_error() -> None:
    again = """logs.release_libraries()\nos.execv(sys.executable, [sys.executable, "-c", "import nothing"])"""
    assert "No module named 'nothing'" in said_by(again)
