"""Options that several commands share: policies, windows, forecasts, solvers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from predictors.catalog import (
    KINDS,
    LEARNED,
    NONE,
    Choice,
    check_durations,
    forecasts,
    loads_class,
    with_quantile,
)
from replay.logs.importers import FORMATS
from replay.logs.preemptible import PercentAndCost
from replay.run.run import BASELINE, Settings
from sia.console.errors import UserError
from sia.console.text import BoundedFloatType, Seconds
from sia.contract.labels import name_of
from sia.contract.solvers import chosen as chosen_solver
from sia.limits import (
    LEAST_THRESHOLD,
    LONGEST_WINDOW,
    MAX_QUEUES,
    MAX_RESUME_COST,
    MAX_WINDOWS,
    RECALL,
    RECENT,
)
from sia.policies import load, names
from sia.wording import as_typed, did_you_mean, parse_seconds

if TYPE_CHECKING:
    from predictors.learning.model import Model


class Cost(Seconds):
    """A resume cost."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a time up to the limit."""
        seconds = super().convert(value, param, ctx)
        if seconds > MAX_RESUME_COST:
            self.fail(f"{value}: must be at most {as_typed(MAX_RESUME_COST)}", param, ctx)
        return seconds


class Quantile(BoundedFloatType):
    """A number between 0 and 1, excluding both."""

    def __init__(self) -> None:
        """Set the bounds."""
        super().__init__(0, 1, min_open=True, max_open=True)


class Forecast(click.ParamType[str]):
    """The name of a forecast, or the folder of a model."""

    name = "name|dir"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the text if it is a name or a folder."""
        text = str(value)
        if text == LEARNED:
            self.fail(f"{text}: give the folder of the model instead", param, ctx)
        if text not in forecasts() and not Path(text).is_dir():
            known = [name for name in forecasts() if name != LEARNED]
            close = did_you_mean(text, known)
            self.fail(
                f"{text}: neither the folder of a model nor one of {', '.join(known)}.{close}",
                param,
                ctx,
            )
        return text


class Durations(click.ParamType[str]):
    """The name of a run-time predictor, with a percentage if it takes one."""

    name = "name[:percent]"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the text if it names a predictor."""
        try:
            check_durations(str(value))
        except KeyError as error:
            self.fail(str(error.args[0]), param, ctx)
        return str(value)


def foreseen_by(
    policies: list[str],
    forecast: str,
    run_times: str,
    quantiles: tuple[float | None, float | None],
    max_slowed_pct: float | None,
    windows: Sequence[float],
) -> tuple[str, Model | None]:
    """Return the name of a forecast, and its model if it needs one.

    Raises UserError if there is none, or if an option would have no effect.
    """
    name = forecast if forecast in forecasts() else LEARNED
    _refuse_quantiles(name, run_times, quantiles)
    if max_slowed_pct is not None and name == NONE:
        raise UserError("--max-slowed-pct has no effect with --forecast none; use another forecast")
    settings = Settings([], name, run_times, load_quantile=quantiles[0])
    for label in policies:
        try:
            choice = settings.choice(label)
        except KeyError as error:
            raise UserError(f"--policy: {error.args[0]}") from None
        _refuse_too_high(label, choice, windows)
        if name != LEARNED and loads_class(choice.forecast).needs_model:
            raise UserError(f"--policy: {label} needs a model; give its folder with --forecast DIR")
    if name != LEARNED:
        return name, None
    from replay.forecast.model_folder import read_model  # noqa: PLC0415  xgboost takes its time

    return LEARNED, read_model(Path(forecast), windows)


def _refuse_quantiles(
    name: str, run_times: str, quantiles: tuple[float | None, float | None]
) -> None:
    """Raise UserError for a quantile that has no effect."""
    for option, quantile, what, group in zip(
        ("--load-quantile", "--run-time-quantile"),
        quantiles,
        (name, run_times),
        KINDS,
        strict=True,
    ):
        if quantile is not None and what not in (able := with_quantile(group)):
            raise UserError(
                f"{option} does not work with {what}, only with {', '.join(able)}; leave it out"
            )


def _refuse_too_high(label: str, choice: Choice, windows: Sequence[float]) -> None:
    """Raise UserError for a quantile that is too high for a forecast with these windows."""
    quantile = choice.load_quantile
    if quantile is None or not load(choice.policy).needs.loads:
        return
    most, reason = loads_class(choice.forecast).quantile_limit(windows)
    if quantile > most:
        where = f"--policy: {label}" if "@" in label else f"--load-quantile: {quantile:g}"
        raise UserError(
            f"{where}: too high for {choice.forecast}, because {reason}; use at most {most:g}"
        )


class Labels(click.ParamType[list[str]]):
    """Names or labels of installed policies, separated by commas."""

    name = "names"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> list[str]:
        """Return each label once, in the order given."""
        chosen = [label.strip() for label in str(value).split(",")]
        if not all(chosen):
            self.fail(
                f"{str(value)!r} has an empty label; remove a comma, or name a policy", param, ctx
            )
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
        """Allow up to `most` times, from `least` to `longest` seconds."""
        self._most, self._least, self._longest = most, least, longest

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Return the times in seconds."""
        try:
            times = tuple(parse_seconds(part) for part in str(value).split(","))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        ascending = all(a < b for a, b in zip((0.0, *times), times, strict=False))
        if not ascending or len(times) > self._most:
            self.fail(
                f"{value}: write 1 to {self._most} ascending times above 0, like 5m,1h", param, ctx
            )
        if times[0] < self._least:
            self.fail(f"{value}: the first must be at least {as_typed(self._least)}", param, ctx)
        if times[-1] > self._longest:
            self.fail(f"{value}: the last must be at most {as_typed(self._longest)}", param, ctx)
        return times


WINDOWS = Ascending(MAX_WINDOWS, longest=LONGEST_WINDOW)
QUEUES = Ascending(MAX_QUEUES, LEAST_THRESHOLD)

LIVE = "sia@peaks+survival"
"""SIA with forecasts that a live system can make, so that a verdict is possible."""

POLICIES = ["fcfs", LIVE, "mmfs", "sia", "sia-vc", "gssf", "ssf"]
POLICIES_ON_NODES = ["fcfs", "jvu"]
POLICIES_IN_CELLS = ["fcfs", LIVE, "mmfs", "hived", "sia", "gssf", "ssf"]


def chosen(policies: list[str] | None, cells: Path | None, nodes: Path | None = None) -> list[str]:
    """Return the policies asked for, or the default ones.

    Raises UserError for a policy that does not support cells, or nodes that differ, if there are
    some.
    """
    if nodes is not None:
        if cells is not None:
            raise UserError("--nodes does not work with --cells, which has its own nodes")
        return _able_on_nodes(POLICIES_ON_NODES if policies is None else policies)
    if policies is None:
        return POLICIES if cells is None else POLICIES_IN_CELLS
    for label in policies:
        if cells is not None and not load(Settings([]).choice(label).policy).places:
            able = ", ".join(name for name in names() if load(name).places)
            raise UserError(
                f"--cells: {label} does not support cells, only {able}; leave it out of --policy"
            )
    return policies


def _able_on_nodes(policies: list[str]) -> list[str]:
    for label in policies:
        if not load(label).on_nodes and name_of(label) != BASELINE:
            able = ", ".join(name for name in names() if load(name).on_nodes)
            raise UserError(
                f"--nodes: {label} does not distinguish nodes; use {able}, or omit --nodes"
            )
    return policies


def planners(policies: Sequence[str]) -> list[str]:
    """Return the policies that plan with a solver."""
    return [label for label in policies if load(Settings([]).choice(label).policy).needs.solver]


def check_solver(policies: Sequence[str], solver: str | None, latency: float) -> None:
    """Raise UserError for options without effect, and for a solver that is not installed."""
    if planners(policies):
        chosen_solver(solver)
    elif solver is not None or latency:
        option = "--solver" if solver is not None else "--solver-latency"
        raise UserError(f"{option} has no effect, as no policy plans with a solver; leave it out")


_Command = TypeVar("_Command", bound=Callable[..., Any])

_POLICY_OPTIONS = (
    click.option(
        "--policy",
        "policies",
        type=Labels(),
        help="Policies, separated by commas. POLICY@FORECAST+DURATIONS gives a policy its own "
        "forecasts, like sia@peaks:0.95+survival:0.9+guard.  "
        f"[default: {','.join(POLICIES)}; with --cells: {','.join(POLICIES_IN_CELLS)}]",
    ),
    click.option(
        "--cells",
        "cells_file",
        type=Path,
        help="Cells file (docs/understand/cells.md). Each job then needs GPUs close together.",
    ),
    click.option(
        "--forecast",
        type=Forecast(),
        default="perfect",
        show_default=True,
        help="Forecast of new load: a name, or the folder of a model of sia forecast train.",
    ),
    click.option(
        "--durations",
        type=Durations(),
        default="perfect",
        show_default=True,
        help="Estimates of run times, for policies that need them: a forecast, or true times with "
        "an error, like within:20, biased:-50 or noisy:40; jobs run as long as the log says.",
    ),
    click.option(
        "--load-quantile",
        type=Quantile(),
        help="Quantile of the load to reserve for, like 0.95.",
    ),
    click.option(
        "--run-time-quantile",
        type=Quantile(),
        help="Quantile of the run time to assume, like 0.9.",
    ),
    click.option(
        "--max-slowed-pct",
        type=BoundedFloatType(0, 100, min_open=True, max_open=True),
        metavar="PERCENT",
        help="Lend less when more than this percentage of jobs would be slowed.",
    ),
    click.option(
        "--windows",
        type=WINDOWS,
        default="5m,1h,12h",
        show_default=True,
        help="Forecast windows of SIA, ascending.",
    ),
    click.option(
        "--recent",
        type=click.IntRange(1, 10_000),
        default=RECENT,
        show_default=True,
        help="Number of past windows in the sliding maximum.",
    ),
    click.option(
        "--slack",
        type=BoundedFloatType(0, 1000),
        default=1.0,
        show_default=True,
        help="Factor on the reservation of each pool.",
    ),
    click.option(
        "--preemptible",
        type=PercentAndCost(),
        help="Draw this percentage of jobs and say what each stop costs them, like 30:5m, "
        "30:restart or 30:never. Without it, column preemptible of the log decides.",
    ),
    click.option(
        "--recall",
        type=BoundedFloatType(0, 1000),
        default=RECALL,
        show_default=True,
        help="Part of a window within which sia-recall relies on preempting spare jobs.",
    ),
    click.option(
        "--resume-cost",
        type=Cost(),
        default="0",
        show_default=True,
        help="Time that a job loses when it resumes after a preemption or a resize.",
    ),
    click.option(
        "--solver",
        metavar="NAME",
        help="Solver of policies that plan with one.  [default: the best that is installed]",
    ),
    click.option(
        "--solver-latency",
        type=Seconds(),
        default="0",
        show_default=True,
        help="Time of the log that each solve takes, like 2s. The solver's limits on seconds are "
        "off.",
    ),
)


MOST_SOLVE_SECONDS = 3600.0
"""Longest time for one program: a plan that takes an hour is for no scheduler."""


def solve_options(command: _Command) -> _Command:
    """Add --solver and --seconds for commands that solve programs of a file."""
    solver = click.option(
        "--solver", metavar="NAME", help="Solver.  [default: the best that is installed]"
    )
    seconds = click.option(
        "--seconds",
        "limit",
        type=Seconds(some=True, most=MOST_SOLVE_SECONDS),
        default="60s",
        show_default=True,
        help="Give up on a program after this time.",
    )
    return solver(seconds(command))


def published_log(command: _Command) -> _Command:
    """Give a command the arguments LOG and SECOND, and the option --format."""
    form = click.option(
        "--format",
        "form",
        type=click.Choice([*FORMATS, "canonical"]),
        default="canonical",
        show_default=True,
        help="Format of LOG.",
    )
    second = click.argument("second", type=Path, required=False)
    return click.argument("log", type=Path)(second(form(command)))


def policy_options(command: _Command) -> _Command:
    """Add the options for policies, forecasts, preemption and solvers."""
    for option in reversed(_POLICY_OPTIONS):
        command = option(command)
    return command
