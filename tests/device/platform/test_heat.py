"""Heat: read where Linux shows it, told with a gap between coming and going."""

from pathlib import Path

import pytest

from device.platform.heat import COOL_C, HOT_C, hottest_c, too_hot


def sensors(system: Path, *values: str) -> Path:
    for number, value in enumerate(values):
        zone = system / "class/thermal" / f"thermal_zone{number}"
        zone.mkdir(parents=True)
        (zone / "temp").write_text(value, encoding="ascii")
    return system


def test_the_hottest_sensor_counts(tmp_path: Path) -> None:
    assert hottest_c(sensors(tmp_path, "41200\n", "63999\n", "50000\n")) == 63


@pytest.mark.parametrize("strange", ["", "warm\n", "-274000\n", "0\n", "4000000\n"])
def test_a_sensor_that_says_nothing_sensible_is_passed_over(tmp_path: Path, strange: str) -> None:
    assert hottest_c(sensors(tmp_path, strange, "55000\n")) == 55


def test_a_machine_without_sensors_is_never_too_hot(tmp_path: Path) -> None:
    assert hottest_c(tmp_path) is None
    assert not too_hot(None, before=True)


def test_the_word_comes_late_and_goes_late() -> None:
    assert not too_hot(HOT_C - 1, before=False)
    assert too_hot(HOT_C, before=False)
    assert too_hot(COOL_C, before=True)
    assert not too_hot(COOL_C - 1, before=True)
