"""Pure functions that a run asks the same of again: both ends, the service and what listens to them read the
same frames and check the same signatures, and a device that starts again has the gallery it had."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, Final

from nacl import bindings
from numpy.typing import NDArray

from device.core import opening
from gallery.population import Population
from link1 import frames

_FUNCTIONS: Final[Sequence[tuple[ModuleType, str]]] = (
    (bindings, "crypto_core_ed25519_is_valid_point"),
    (frames, "decode_frame"),
    (opening, "version"),
)
_KEPT: Final = 4_096
_KEPT_POPULATIONS: Final = 32
"""Of 3 MiB each, with the likeness."""
_populations: Final[OrderedDict[object, Population]] = OrderedDict()


def remembered() -> list[tuple[Any, str, Any]]:
    """What to replace during a run. Errors are not kept."""
    return [
        *((owner, name, lru_cache(_KEPT)(getattr(owner, name))) for owner, name in _FUNCTIONS),
        *_signatures(),
        *(
            (Population, name, _same_population(getattr(Population, name)))
            for name in ("with_rows", "without_rows")
        ),
    ]


def _signatures() -> list[tuple[Any, str, Any]]:
    """A signature made here holds; any other is checked, the first time."""
    sign, check = bindings.crypto_sign, lru_cache(_KEPT)(bindings.crypto_sign_open)
    made: dict[bytes, bytes] = {}

    def signed(message: bytes, secret: bytes) -> bytes:
        whole = sign(message, secret)
        made[whole] = secret[32:]
        return whole

    def opened(whole: bytes, public: bytes) -> bytes:
        return whole[64:] if made.get(whole) == public else check(whole, public)

    return [(bindings, "crypto_sign", signed), (bindings, "crypto_sign_open", opened)]


Changed = Callable[[Population, NDArray[Any], NDArray[Any]], Population]


def _same_population(change: Changed) -> Changed:
    """Populations are immutable, and one that is met again has worked out its likeness already."""

    def changed(before: Population, numbers: NDArray[Any], coarse: NDArray[Any]) -> Population:
        key = (change, before.numbers.tobytes(), before.total.tobytes(), numbers.tobytes(), coarse.tobytes())
        population = _populations.get(key)
        if population is None:
            population = _populations[key] = change(before, numbers, coarse)
            if len(_populations) > _KEPT_POPULATIONS:
                _populations.popitem(last=False)
        return population

    return changed
