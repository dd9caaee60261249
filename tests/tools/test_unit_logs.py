"""Lines of `journalctl --output=json` as systemd 252 prints them."""

import json

from tools.palmctl.unit_logs import LogLine, read_line


def entry(**members: object) -> str:
    return json.dumps({"__REALTIME_TIMESTAMP": "1795186249748000", "PRIORITY": "6"} | members)


def test_what_the_service_manager_says_of_a_unit_is_told_of_that_unit() -> None:
    said = entry(_SYSTEMD_UNIT="init.scope", UNIT="palmd.service", MESSAGE="Started palmd.service.")
    assert read_line(said) == LogLine(1795186249748, "palmd", "info", "Started palmd.service.")


def test_the_level_is_the_daemons_own_word() -> None:
    """They write to standard error, of which journald knows no level."""
    for word, level in (("WARNING", "warning"), ("ERROR", "err"), ("INFO", "info")):
        line = read_line(entry(_SYSTEMD_UNIT="palmd.service", MESSAGE=f"{word} device.core.core: health"))
        assert line is not None
        assert (line.unit, line.level) == ("palmd", level)


def test_what_is_no_line_is_none() -> None:
    for text in (
        "",
        "not json",
        "[]",
        "[" * 100_000,
        '{"MESSAGE": "without a time"}',
        '{"MESSAGE": "an endless level", "PRIORITY": 1e999, "__REALTIME_TIMESTAMP": "1"}',
    ):
        assert read_line(text) is None
