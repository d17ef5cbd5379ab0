"""Times on a command line."""

from __future__ import annotations

import click

from sia.limits import MAX_TIME
from sia.wording import as_typed, parse_seconds


class Seconds(click.ParamType[float]):
    """A time on the command line."""

    name = "time"

    def __init__(self, *, some: bool = False, most: float = MAX_TIME) -> None:
        """`some`: no time at all means nothing; so many seconds at `most`."""
        self._some, self._most = some, most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse it, or fail as click wants."""
        if isinstance(value, float):
            return value
        try:
            seconds = parse_seconds(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if self._some and not seconds:
            self.fail(f"{value}: is no time at all; write more than 0, like 5m", param, ctx)
        if seconds > self._most:
            self.fail(f"{value}: is too long; {as_typed(self._most)} at most", param, ctx)
        return seconds


SPAN = Seconds(some=True)
"""A time that is not none."""
