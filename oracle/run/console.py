"""Messages of the oracle on the terminal: progress, results, interruption."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import perf_counter
from typing import NoReturn

import click

from oracle.problem.problem import Goal
from oracle.run.run import RunResult, measured, waiting
from oracle.search.answer import SolverProgress, gap_of
from sia.wording import MINUTE, counted, decimal, duration

PRINT_EVERY = 5.0
"""Seconds between two lines of progress."""

INTERRUPTED = 130
"""Exit code of `sia` after Ctrl-C or SIGTERM."""

NOTHING = "none yet"
NO_BOUND = "no bound is proven yet"


def end_interrupted(kept: str) -> NoReturn:
    """Print what is kept, and exit with code 130, as `sia` does after Ctrl-C."""
    click.echo(f"sia: interrupted; {kept}", err=True)
    raise click.exceptions.Exit(INTERRUPTED) from None


def only_waiting(goal: Goal) -> bool:
    """Return whether the objective is waiting only."""
    return not (goal.beta or goal.weighted or goal.slowdown_pct)


def unit_of(goal: Goal) -> str:
    """Return the unit of objectives."""
    return "weighted slots" if goal.weighted else "slots"


class ProgressReporter:
    """Prints the progress of a solve every PRINT_EVERY seconds."""

    def __init__(self, slot: float, goal: Goal) -> None:
        """Prepare reports for a slot length in seconds and an objective."""
        self._slot, self._printed = slot, 0.0
        self._plain, self._unit = only_waiting(goal), unit_of(goal)

    def __call__(self, now: SolverProgress) -> None:
        """Print a line if it is time."""
        if perf_counter() < self._printed + PRINT_EVERY:
            return
        self._printed = perf_counter()
        what = "waiting" if self._plain else f"objective ({self._unit})"
        best = NOTHING if now.cost == inf else self._shown(now.cost)
        bound = NOTHING if now.bound <= 0 < now.cost else self._shown(now.bound)
        known = NOTHING not in (best, bound)
        gap = f", gap {decimal(100 * gap_of(now.cost, now.bound))} %" if known else ""
        click.echo(
            f"{what}: best {best}, bound {bound}{gap}, {counted(now.nodes, 'node')}, "
            f"{duration(now.left)} left",
            err=True,
        )

    def _shown(self, cost: float) -> str:
        return duration(cost * self._slot) if self._plain else decimal(cost)


class BoundReporter:
    """Prints the bound on the waiting every PRINT_EVERY seconds."""

    def __init__(self) -> None:
        """Wait before the first line, because most bounds are computed quickly."""
        self._printed = perf_counter()

    def __call__(self, bound: float, left: float) -> None:
        """Print a line if it is time. `bound` and `left` are in seconds."""
        if perf_counter() < self._printed + PRINT_EVERY:
            return
        self._printed = perf_counter()
        known = duration(bound) if bound else NOTHING
        click.echo(f"waiting: bound {known}, {duration(left)} left", err=True)


def show_outcome(outcome: RunResult, *, cutoffs: bool) -> None:
    """Print the schedule's waiting, the bound, and the result with the times of the log.

    With `cutoffs` of another schedule, or if a slowdown is allowed, the bound applies to schedules
    that may slow jobs.
    """
    goal = outcome.task.goal
    within = cutoffs or goal.slowdown_pct
    none = "no schedule within the cutoffs has" if within else "no schedule that delays no job has"
    least = _less(none, outcome.wait, outcome.wait_bound, duration)
    waits = f"total waiting {duration(outcome.wait)}; {least}"
    gap = f"gap {decimal(100 * outcome.gap)} %" if outcome.gap else "gap 0"
    alone = f"without sharing {duration(outcome.alone)}"
    if only_waiting(goal):
        click.echo(f"{outcome.status}: {waits}, {gap}; {alone}")
    else:
        least = _less(none, outcome.cost, outcome.cost_bound, decimal)
        unit = unit_of(goal)
        click.echo(f"{outcome.status}: objective {decimal(outcome.cost)} {unit}; {least}, {gap}")
        click.echo(f"{waits}; {alone}")
    _show_real(outcome)


def _less(none: str, found: float, bound: float, shown: Callable[[float], str]) -> str:
    if bound <= 0 < found:
        return NO_BOUND
    return f"{none} less than {shown(bound)}"


def _show_real(outcome: RunResult) -> None:
    log, baseline = outcome.instance.log, outcome.real_baseline
    found = measured(log, baseline, outcome.real)
    later = "no job ends later"
    if found.slowed:
        longest = duration(MINUTE * found.slowdown_max_min)
        later = (
            f"{found.slowed:,} of {counted(found.measured, 'job')} end later, by up to {longest}"
        )
    click.echo(
        f"with the times of the log: total waiting {duration(waiting(log, outcome.real))}; "
        f"without sharing {duration(waiting(log, baseline))}; {later}"
    )
