"""What the commands' options have in common: lists of policies, windows and times."""

from __future__ import annotations

import click

from replay.run import Settings
from replay.text import parse_seconds
from sia.limits import MAX_WINDOWS


class Labels(click.ParamType[list[str]]):
    """Names of installed policies, separated by commas; POLICY@FORECAST+DURATIONS foresees so."""

    name = "names"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """Each label once, in the order given."""
        chosen = [label.strip() for label in str(value).split(",")]
        for label in chosen:
            try:
                Settings([]).choice(label)
            except KeyError as error:
                self.fail(str(error.args[0]), param, ctx)
        return list(dict.fromkeys(chosen))


class Ascending(click.ParamType[tuple[float, ...]]):
    """Ascending times, separated by commas."""

    name = "times"

    def __init__(self, most: int) -> None:
        """Allow up to so many."""
        self._most = most

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Seconds of each."""
        try:
            times = tuple(parse_seconds(part) for part in str(value).split(","))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        ascending = all(a < b for a, b in zip((0.0, *times), times, strict=False))
        if not ascending or len(times) > self._most:
            self.fail(f"{value}: name 1 to {self._most} times, ascending, above 0", param, ctx)
        return times


WINDOWS = Ascending(MAX_WINDOWS)
