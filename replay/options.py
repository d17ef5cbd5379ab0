"""What the commands' options have in common: lists of policies, windows and times."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import floor, inf, isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from predictors.sliding import RECENT
from replay.foresight import DURATIONS, FORECASTS, LEARNED, LEARNED_TO, PEAKS, WITH_QUANTILE, Choice
from replay.preemptible import PercentAndCost
from replay.run import Settings
from sia.console.errors import UserError
from sia.console.text import Seconds
from sia.limits import (
    LEAST_THRESHOLD,
    LONGEST_WINDOW,
    MAX_QUEUES,
    MAX_RESUME_COST,
    MAX_WINDOWS,
    RECALL,
)
from sia.policies import load, names
from sia.wording import DAY, as_typed, parse_seconds

if TYPE_CHECKING:
    from predictors.model import Model


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


class Quantile(Number):
    """A share between 0 and 1, neither of them."""

    def __init__(self) -> None:
        """As click has it."""
        super().__init__(0, 1, min_open=True, max_open=True)


class Forecast(click.ParamType[str]):
    """The name of a forecast, or the folder of a model."""

    name = "name|dir"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """As it is; what is no name has to be a folder."""
        text = str(value)
        if text == LEARNED:
            self.fail(f"{text}: give the folder of the model instead", param, ctx)
        if text not in FORECASTS and not Path(text).is_dir():
            others = ", ".join(name for name in FORECASTS if name != LEARNED)
            self.fail(f"{text}: is neither the folder of a model nor {others}", param, ctx)
        return text


def foreseen_by(
    policies: list[str],
    forecast: str,
    durations: str,
    quantiles: tuple[float | None, float | None],
    max_slowed_pct: float | None,
    windows: Sequence[float],
) -> tuple[str, Model | None]:
    """The name of a forecast and the model it needs.

    Raises UserError where there is none, or where an option would be without effect.
    """
    name = forecast if forecast in FORECASTS else LEARNED
    _refuse_quantiles(name, durations, quantiles)
    if max_slowed_pct is not None and name == "none":
        raise UserError("--max-slowed-pct: --forecast none leaves nothing to guard; give another")
    settings = Settings([], name, durations, load_quantile=quantiles[0])
    for label in policies:
        try:
            choice = settings.choice(label)
        except KeyError as error:
            raise UserError(f"--policy: {error.args[0]}") from None
        _refuse_too_high(label, choice, windows)
        if name != LEARNED == choice.forecast:
            raise UserError(f"--policy: {label} needs a model; give its folder with --forecast DIR")
    if name != LEARNED:
        return name, None
    from replay.forecast_folder import read_model  # noqa: PLC0415  xgboost takes its time

    return LEARNED, read_model(Path(forecast), windows)


def _refuse_quantiles(
    name: str, durations: str, quantiles: tuple[float | None, float | None]
) -> None:
    """Raise UserError for one that has no effect, or that no model learns."""
    for option, quantile, what, able in zip(
        ("--load-quantile", "--run-time-quantile"),
        quantiles,
        (name, durations),
        WITH_QUANTILE.values(),
        strict=True,
    ):
        if quantile is not None and what not in able:
            raise UserError(
                f"{option}: {what} has no quantile; {', '.join(able)} have; leave it out"
            )
    if name == LEARNED and (quantiles[0] or 0) > LEARNED_TO:
        raise UserError(
            f"--load-quantile: {quantiles[0]:g}: loads are learned up to quantile {LEARNED_TO}; "
            "ask for less"
        )


def _refuse_too_high(label: str, choice: Choice, windows: Sequence[float]) -> None:
    """Raise UserError for a quantile of peaks that the memory of such windows is too short for."""
    quantile = choice.load_quantile
    if choice.forecast != PEAKS or quantile is None or not load(choice.policy).needs.loads:
        return
    from predictors.peaks import MEMORY, highest  # noqa: PLC0415  numpy takes its time

    if quantile > highest(windows):
        where = f"--policy: {label}" if "@" in label else f"--load-quantile: {quantile:g}"
        most = floor(1000 * highest(windows)) / 1000
        raise UserError(
            f"{where}: {as_typed(MEMORY)} hold too few windows of {as_typed(windows[-1])} to tell "
            f"so high a quantile of peaks; ask for {most:g} at most"
        )


class Labels(click.ParamType[list[str]]):
    """Names of installed policies, separated by commas, or labels with senses of their own."""

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

    def __init__(self, most: int, least: float = 0.0, longest: float = inf) -> None:
        """Allow up to so many, from `least` to `longest` seconds."""
        self._most, self._least, self._longest = most, least, longest

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
        if times[-1] > self._longest:
            self.fail(f"{value}: the last must be {self._longest / DAY:g}d or less", param, ctx)
        return times


WINDOWS = Ascending(MAX_WINDOWS, longest=LONGEST_WINDOW)
QUEUES = Ascending(MAX_QUEUES, LEAST_THRESHOLD)

POLICIES = ["fcfs", "ssf", "gssf", "mmfs", "sia", "sia-vc"]
POLICIES_IN_CELLS = ["fcfs", "ssf", "gssf", "mmfs", "hived", "sia"]


def chosen(policies: list[str] | None, cells: Path | None, *, lend_rests: bool) -> list[str]:
    """The policies asked for, or else the default ones.

    Raises UserError for those that know no cells where there are some.
    """
    if lend_rests and cells is None:
        raise UserError("--lend-rests: without --cells nothing is rounded up; give both")
    if policies is None:
        return POLICIES if cells is None else POLICIES_IN_CELLS
    for label in policies:
        if cells is not None and not load(Settings([]).choice(label).policy).places:
            able = ", ".join(name for name in names() if load(name).places)
            raise UserError(f"--cells: {label} knows no cells; {able} do: leave it out of --policy")
    return policies


Command = TypeVar("Command", bound=Callable[..., Any])

_POLICY_OPTIONS = (
    click.option(
        "--policy",
        "policies",
        type=Labels(),
        help="Policies, separated by commas; POLICY@FORECAST+DURATIONS foresees in its own way, "
        "like sia@peaks:0.95+survival:0.9+guard.  "
        f"[default: {','.join(POLICIES)}; with --cells: {','.join(POLICIES_IN_CELLS)}]",
    ),
    click.option(
        "--cells",
        "cells_file",
        type=Path,
        help="Cells file (docs/cells.md): jobs then need GPUs that lie together.",
    ),
    click.option(
        "--lend-rests",
        is_flag=True,
        help="With --cells: spare jobs of one GPU may use what rounding widths up leaves over.",
    ),
    click.option(
        "--forecast",
        type=Forecast(),
        default="perfect",
        show_default=True,
        help="How SIA foresees new load: a name, or the folder of a model (sia forecast train).",
    ),
    click.option(
        "--durations",
        type=click.Choice(DURATIONS),
        default="perfect",
        show_default=True,
        help="How run times are foreseen, by all that need them.",
    ),
    click.option(
        "--load-quantile",
        type=Quantile(),
        help="The share of windows whose load is to be no more than foreseen, like 0.95.",
    ),
    click.option(
        "--run-time-quantile",
        type=Quantile(),
        help="The share of jobs that are to run no longer than foreseen, like 0.9.",
    ),
    click.option(
        "--max-slowed-pct",
        type=Number(0, 100, min_open=True, max_open=True),
        metavar="PERCENT",
        help="Have a share controller lend less where more jobs than this would be slowed.",
    ),
    click.option(
        "--windows",
        type=WINDOWS,
        default="5m,1h,12h",
        show_default=True,
        help="SIA's windows, ascending.",
    ),
    click.option(
        "--recent",
        type=click.IntRange(1, 10_000),
        default=RECENT,
        show_default=True,
        help="Windows the sliding maximum looks back on.",
    ),
    click.option(
        "--slack",
        type=Number(0, 1000),
        default=1.0,
        show_default=True,
        help="Factor on what SIA reserves for each pool.",
    ),
    click.option(
        "--preemptible",
        type=PercentAndCost(),
        help="So many percent of the jobs, drawn by --seed, may be stopped by sia-recall at a cost "
        "of time, like 30:5m; else column preemptible says which.",
    ),
    click.option(
        "--recall",
        type=Number(0, 1000),
        default=RECALL,
        show_default=True,
        help="The part of a window up to which sia-recall counts on stopping spare jobs for it.",
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
    """Which policies, what they foresee by and how carefully, and what stopping a job costs."""
    for option in reversed(_POLICY_OPTIONS):
        command = option(command)
    return command
