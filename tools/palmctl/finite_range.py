"""An option's number that is one: click takes `nan` for a number within every range."""

import math
from gettext import gettext
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """click.FloatRange without `nan` and `inf`, with which a wait has no end and a calculation no result."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """`value` as a float within the range. Raises click.BadParameter."""
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            words = gettext("{value!r} is not a valid {number_type}.")  # click's own message
            self.fail(words.format(value=value, number_type=self.name), param, ctx)
        return number
