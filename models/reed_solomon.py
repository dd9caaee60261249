"""Reed–Solomon codes over GF(256) as QR codes use them (ISO/IEC 18004:2015, 7.5): correcting one block.

Polynomials are lists of coefficients, lowest power first, except blocks, which are in the order of reading.
"""

from functools import lru_cache

Polynomial = list[int]


def correct(block: list[int], check: int) -> list[int] | None:
    """The block with up to ``check // 2`` wrong codewords set right; None when there are more.

    ``block`` holds data and then ``check`` check codewords, each 0..255.
    """
    received = block[::-1]
    syndromes = [_value(received, k) for k in range(check)]
    if not any(syndromes):
        return block
    locator, errors = _locator(syndromes)
    places = [k for k in range(len(block)) if _value(locator, -k % 255) == 0]
    if errors > check // 2 or len(places) != errors:
        return None
    for place, size in _error_sizes(syndromes, locator, places):
        received[place] ^= size
    if any(_value(received, k) for k in range(check)):
        return None
    return received[::-1]


@lru_cache(maxsize=1)
def _field() -> tuple[list[int], list[int]]:
    """Powers (twice around) and logarithms of the field's generator 2; x^8 + x^4 + x^3 + x^2 + 1 is zero."""
    power, log = [0] * 512, [0] * 256
    value = 1
    for exponent in range(255):
        power[exponent] = power[exponent + 255] = value
        log[value] = exponent
        value <<= 1
        if value & 0x100:
            value ^= 0x11D
    return power, log


def _times(a: int, b: int) -> int:
    power, log = _field()
    return power[log[a] + log[b]] if a and b else 0


def _over(a: int, b: int) -> int:
    power, log = _field()
    return power[(log[a] - log[b]) % 255] if a else 0


def _value(polynomial: Polynomial, exponent: int) -> int:
    """The polynomial's value at 2**exponent."""
    power, log = _field()
    total = 0
    for k, coefficient in enumerate(polynomial):
        if coefficient:
            total ^= power[(log[coefficient] + k * exponent) % 255]
    return total


def _locator(syndromes: list[int]) -> tuple[Polynomial, int]:
    """The error locator and the number of errors (Berlekamp–Massey)."""
    locator, before = [1], [1]
    errors, gap, last = 0, 1, 1
    for n, syndrome in enumerate(syndromes):
        delta = syndrome
        for k in range(1, min(errors, len(locator) - 1) + 1):
            delta ^= _times(locator[k], syndromes[n - k])
        if delta == 0:
            gap += 1
            continue
        factor = _over(delta, last)
        changed = _sum(locator, [0] * gap + [_times(factor, c) for c in before])
        if 2 * errors <= n:
            errors, before, last, gap = n + 1 - errors, locator, delta, 1
        else:
            gap += 1
        locator = changed
    return locator, errors


def _sum(a: Polynomial, b: Polynomial) -> Polynomial:
    size = max(len(a), len(b))
    long_a, long_b = a + [0] * (size - len(a)), b + [0] * (size - len(b))
    return [x ^ y for x, y in zip(long_a, long_b, strict=True)]


def _error_sizes(syndromes: list[int], locator: Polynomial, places: list[int]) -> list[tuple[int, int]]:
    """What to add at each place (Forney)."""
    evaluator = [0] * len(syndromes)
    for i, a in enumerate(syndromes):
        for j, b in enumerate(locator[: len(syndromes) - i]):
            evaluator[i + j] ^= _times(a, b)
    derivative = [c if k % 2 == 0 else 0 for k, c in enumerate(locator[1:])]
    power, _ = _field()
    sizes = []
    for place in places:
        steep = _value(derivative, -place % 255)
        size = _over(_times(_value(evaluator, -place % 255), power[place % 255]), steep) if steep else 0
        sizes.append((place, size))
    return sizes
