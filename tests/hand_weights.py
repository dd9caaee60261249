"""Tests of what only the published hand weights can do."""

import pytest

from models.hand_landmarks import weights_folder
from models.manifest import MANIFEST_NAME

needs_hand_weights = pytest.mark.skipif(
    not (weights_folder() / MANIFEST_NAME).exists(), reason="needs the hand weights (make hand-weights)"
)
