"""Parameter types for times and numbers on the command line."""

from __future__ import annotations

from math import isfinite
from typing import Any

import click

from sia.limits import MAX_TIME
from sia.wording import as_typed, parse_seconds


class Seconds(click.ParamType[float]):
    """A time on the command line, with a unit."""

    name = "time"

    def __init__(self, *, some: bool = False, most: float = MAX_TIME) -> None:
        """Set the limits: with `some` 0 is refused; `most` is the maximum in seconds."""
        self._some, self._most = some, most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the time in seconds."""
        if isinstance(value, float):
            return value
        try:
            seconds = parse_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._some and not seconds:
            self.fail(f"{value}: must be more than 0; write a time like 5m", param, ctx)
        if seconds > self._most:
            self.fail(f"{value}: must be at most {as_typed(self._most)}", param, ctx)
        return seconds


class WholeNumberType(click.IntRange):
    """Parameter type: a whole number, at least 0 if nothing else is given."""

    name = "whole number"

    def __init__(self, least: int = 0, most: int | None = None) -> None:
        """Set the bounds."""
        super().__init__(least, most)


class BoundedFloatType(click.FloatRange):
    """A finite number between two bounds; click alone would accept `nan`."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a number."""
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value}: write a number, like {self.min or 0.5:g}", param, ctx)
        return number


SPAN = Seconds(some=True)
"""A time above 0."""
