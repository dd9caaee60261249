"""What the documents say about the words that a device reports."""

from device.health import HealthWord
from tools.rig.health_advice import ADVICE


def test_every_word_has_advice() -> None:
    assert set(ADVICE) == set(HealthWord)
    assert all(advice.means and advice.do for advice in ADVICE.values())
