"""What the commands' options have in common: lists of policies, windows and times."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, TypeVar

import click

from replay.foresight import DURATIONS, FORECASTS
from replay.run import Settings
from replay.text import Seconds, parse_seconds
from sia.limits import LEAST_THRESHOLD, MAX_QUEUES, MAX_RESUME_COST, MAX_WINDOWS


class Cost(Seconds):
    """A resume cost."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Seconds, up to the limit."""
        seconds = super().convert(value, param, ctx)
        if seconds > MAX_RESUME_COST:
            self.fail(f"{value}: going on costs at most {MAX_RESUME_COST:g} s", param, ctx)
        return seconds


class Number(click.FloatRange):
    """A number between two bounds; `nan` lies between none, and click lets it through."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse it, or fail as click wants."""
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value}: write a number, like {self.min or 1.5:g}", param, ctx)
        return number


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

    def __init__(self, most: int, least: float = 0.0) -> None:
        """Allow up to so many, the first of them at least `least` seconds."""
        self._most, self._least = most, least

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
        if times[0] < self._least:
            self.fail(f"{value}: the first must be {self._least:g} s or more", param, ctx)
        return times


WINDOWS = Ascending(MAX_WINDOWS)
QUEUES = Ascending(MAX_QUEUES, LEAST_THRESHOLD)

Command = TypeVar("Command", bound=Callable[..., Any])

_POLICY_OPTIONS = (
    click.option(
        "--policy",
        "policies",
        type=Labels(),
        default="fcfs,ssf,gssf,mmfs,sia,sia-vc",
        show_default=True,
        help="Policies, separated by commas; POLICY@FORECAST+DURATIONS foresees in its own way.",
    ),
    click.option(
        "--forecast",
        type=click.Choice(FORECASTS),
        default="perfect",
        show_default=True,
        help="How SIA foresees new load.",
    ),
    click.option(
        "--durations",
        type=click.Choice(DURATIONS),
        default="perfect",
        show_default=True,
        help="How run times are foreseen, by all that need them.",
    ),
    click.option(
        "--resume-cost",
        type=Cost(),
        default="0",
        show_default=True,
        help="Time lost when a job goes on after a preemption or a change of width.",
    ),
)


def policy_options(command: Command) -> Command:
    """Which policies, what they foresee by, and what stopping a job costs."""
    for option in reversed(_POLICY_OPTIONS):
        command = option(command)
    return command
