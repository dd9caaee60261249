"""CPF, the Brazilian taxpayer number: check digits, and finding one inside another identifier."""

import re

_RUN = re.compile(r"[0-9]+")
_SEPARATORS = frozenset("._:@-+/=")
_WRITTEN_OUT = re.compile(
    r"(?<![0-9A-Za-z])(?:[A-Za-z]*[G-Zg-z][A-Za-z]*)?((?:[0-9]{3}[._:-]?){3}[0-9]{2})(?![0-9A-Za-z])"
)
_BETWEEN_DIGITS = str.maketrans("", "", "._:-")


def is_valid_cpf(digits: str) -> bool:
    """Whether 11 ASCII digits carry the right check digits; eleven equal digits never do."""
    if len(digits) != 11 or not digits.isascii() or not digits.isdecimal() or len(set(digits)) == 1:
        return False
    return all(_check_digit(digits[:length]) == digits[length] for length in (9, 10))


def carries_cpf(text: str) -> bool:
    """Whether ``text`` carries a valid CPF, with or without separators.

    Whole digit runs count, alone or with neighbours that only separators (``. _ : @ - + / =``) part from
    them. Windows inside longer runs do not: they would refuse one in twenty random 16-digit ids.
    """
    runs = list(_RUN.finditer(text))
    for first, run in enumerate(runs):
        digits, end = run[0], run.end()
        for following in runs[first + 1 :]:
            if len(digits) >= 11 or not set(text[end : following.start()]) <= _SEPARATORS:
                break
            digits, end = digits + following[0], following.end()
        if is_valid_cpf(digits):
            return True
    return False


def shows_cpf(name: str) -> bool:
    """Whether ``name``, made of letters, digits and ``. _ : -``, is a CPF, or has one written out in it.

    As ``carries_cpf``, for names that may be random: no UUID and no other hexadecimal id shows one.
    """
    digits = (name, *(found[1] for found in _WRITTEN_OUT.finditer(name)))
    return any(is_valid_cpf(text.translate(_BETWEEN_DIGITS)) for text in digits)


def _check_digit(digits: str) -> str:
    weights = range(len(digits) + 1, 1, -1)
    rest = sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=True)) * 10 % 11
    return str(rest % 10)
