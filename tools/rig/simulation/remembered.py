"""Pure functions that a run asks the same of again: both ends, the service and what listens to them read the
same frames and check the same signatures, and a device that starts again has the gallery it had."""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

from nacl import bindings

from device.core import opening
from gallery.population import Likeness, Population
from link1 import frames

_FUNCTIONS: Final[Sequence[tuple[ModuleType, str]]] = (
    (bindings, "crypto_sign_open"),
    (bindings, "crypto_core_ed25519_is_valid_point"),
    (frames, "decode_frame"),
    (opening, "version"),
)
_KEPT: Final = 4_096
_KEPT_LIKENESSES: Final = 24
"""Of a MiB each."""
_likeness: Final = Population.__dict__["likeness"].func
_likenesses: Final[OrderedDict[tuple[int, bytes], Likeness]] = OrderedDict()


def remembered() -> list[tuple[Any, str, Any]]:
    """What to replace during a run. Errors are not kept."""
    functions = [(owner, name, lru_cache(_KEPT)(getattr(owner, name))) for owner, name in _FUNCTIONS]
    return [*functions, (Population, "likeness", property(_known_likeness))]


def _known_likeness(population: Population) -> Likeness:
    """It depends on the templates alone, and the sum of these tells one match set from another."""
    key = (len(population.numbers), population.total.tobytes())
    likeness = _likenesses.get(key)
    if likeness is None:
        likeness = _likenesses[key] = _likeness(population)
        if len(_likenesses) > _KEPT_LIKENESSES:
            _likenesses.popitem(last=False)
    return likeness
