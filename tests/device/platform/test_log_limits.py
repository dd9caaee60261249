import logging

import pytest

from device.platform.logs import BURST, MAX_KINDS, WINDOW_S, RepeatLimit, log_to_stderr


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
