"""Run the oracle on a job log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, inf
from time import perf_counter
from typing import NamedTuple

from oracle.bounds.lp import LpBound, prove
from oracle.bounds.size import refuse_too_large
from oracle.errors import NoScheduleError
from oracle.problem.forms import FORMS
from oracle.problem.problem import Goal, Problem, plain, problems
from oracle.problem.slots import on_grid, slotted
from oracle.run.planned import carried_out
from oracle.run.real import brought_forward
from oracle.search.answer import ProgressCallback, SolveResult, gap_of
from oracle.search.incumbent import Incumbent
from oracle.search.solve import Solving
from replay.logs.trace import PoolTable, Trace
from replay.run.metrics import Metrics, measure
from replay.run.run import BASELINE, Settings, replay_one
from replay.run.schedule import Result, Schedule
from replay.run.summary import jct_pairs
from sia.contract.solvers import SolverError

START = "sia-vc"
"""Policy whose schedule is the first one of the search: it knows the future and slows no job."""

LEFT_OVER = 1.5
"""Seconds of the time limit that are kept for replaying and writing the schedule."""

RESERVED = 0.2
"""Share of the time for the bound on waiting if waiting is not the only objective. The LP of this
bound mostly takes a few seconds, and a better schedule is worth more."""

ORDER = ("failed", "memory", "interrupted", "time", "bound only", "optimal")
"""Statuses by precedence: the status of a run is the first that any of its problems has."""


class SolveSettings(NamedTuple):
    """Slot length and time limit in seconds, formulation, objective, and seed."""

    slot: float
    seconds: float
    form: str = "step"
    goal: Goal = Goal()
    seed: int = 0


@dataclass(frozen=True)
class Instance:
    """The jobs on the slot grid, their FCFS schedule, and the problem of each sharing group."""

    log: Trace
    trace: Trace
    table: PoolTable
    slot: float
    baseline: Schedule
    problems: list[tuple[float, Problem]]

    def turn(self, i: int, until: float) -> float:
        """Return the clock reading at the end of problem i's share of the remaining time."""
        sizes, now = [problem.choices for _, problem in self.problems[i:]], perf_counter()
        return now + max(0.0, until - now) * sizes[0] / sum(sizes)

    def starts(self, found: Sequence[Sequence[int]]) -> list[float]:
        """Convert starts in slots, by problem, to seconds by position in the trace."""
        starts = [0.0] * len(self.trace.arrivals)
        for (origin, problem), own in zip(self.problems, found, strict=True):
            for task, start in zip(problem.tasks, own, strict=True):
                starts[task.position] = origin + start * self.slot
        return starts

    def slots(self, schedule: Schedule) -> list[list[int]]:
        """Convert a schedule's starts to slots by problem, rounded up."""
        return [
            [-round((origin - _start(schedule, t.position)) // self.slot) for t in problem.tasks]
            for origin, problem in self.problems
        ]


@dataclass(frozen=True)
class RunResult:
    """The result of a run. Waiting is the total over all jobs in seconds."""

    task: SolveSettings
    instance: Instance
    answers: list[SolveResult]
    schedule: Schedule
    real: Schedule
    """Starts of the same plan with the submissions and durations of the log."""
    real_baseline: Schedule
    status: str
    wait: float
    wait_bound: float
    alone: float
    cost: float
    cost_bound: float
    seconds: float

    @property
    def gap(self) -> float:
        """(cost - bound) / cost; 0 if proven optimal within solver tolerances."""
        return 0.0 if self.status == "optimal" else gap_of(self.cost, self.cost_bound)


def instance_of(
    log: Trace,
    table: PoolTable,
    slot: float,
    goal: Goal,
    cutoffs: Mapping[str, float] | None = None,
) -> Instance:
    """Build the instance on the slot grid. O(n log n).

    The cutoffs are the FCFS starts, unless `cutoffs` (seconds, by job ID) gives another, which is
    rounded up to slots.
    """
    trace = slotted(log, slot)
    baseline = replay_one(trace, table, BASELINE, Settings([]), None)
    given = {name: on_grid(start, slot) for name, start in (cutoffs or {}).items()}
    # Jobs can fail to start only if quotas change, which `problems` refuses.
    alone = [inf if start is None else start for start in baseline.starts]
    latest = [
        given.get(arrival.job.id, start)
        for arrival, start in zip(trace.arrivals, alone, strict=True)
    ]
    found = problems(trace, table, alone, latest, slot, goal)
    return Instance(log, trace, table, slot, baseline, found)


def run(
    log: Trace,
    table: PoolTable,
    task: SolveSettings,
    began: float,
    cutoffs: Mapping[str, float] | None = None,
    progress: ProgressCallback | None = None,
) -> RunResult:
    """Solve all problems of a log. `began` is the clock reading at the start of the command.

    Raises UserError for inputs that are too large or infeasible.
    """
    instance = instance_of(log, table, task.slot, task.goal, cutoffs)
    refuse_too_large(instance.problems, task.form)
    known = replay_one(instance.trace, table, START, Settings([START]), instance.baseline)
    first = instance.slots(known)
    end = began + task.seconds - LEFT_OVER
    # First, because solvers may exceed their time limits a little and leave no time for it.
    waits = _wait_bounds(instance, task, first, end)
    answers: list[SolveResult] = []
    for i, (_, problem) in enumerate(instance.problems):
        stopped = any(answer.status == "interrupted" for answer in answers)
        mine = perf_counter() if stopped else instance.turn(i, end)
        begin = _begin(problem, first[i])
        solving = Solving(problem, FORMS[task.form], mine, begin, task.seed, progress)
        answers.append(solving.run())
    return _outcome(instance, task, answers, waits, began)


def _begin(problem: Problem, first: Sequence[int]) -> list[int] | None:
    """Return the better of two known schedules: `first`, or the one that starts at the cutoffs."""
    best = Incumbent(problem)
    for starts in (first, [task.cutoff for task in problem.tasks]):
        best.offer(starts)
    return best.known.starts


def _wait_bounds(
    instance: Instance, task: SolveSettings, first: Sequence[Sequence[int]], end: float
) -> list[float | None]:
    """Return, by problem, a lower bound on the waiting in slots; None if waiting is the objective.

    The bound is 0 if the solver fails.
    """
    until = perf_counter() + RESERVED * max(0.0, end - perf_counter())
    bounds: list[float | None] = []
    for i, (_, problem) in enumerate(instance.problems):
        if problem == plain(problem):
            bounds.append(None)
            continue
        try:
            turn = instance.turn(i, until)
            bounds.append(prove(plain(problem), FORMS[task.form], turn, first[i]).bound)
        except (NoScheduleError, SolverError, MemoryError):
            bounds.append(0.0)
    return bounds


def _outcome(
    instance: Instance,
    task: SolveSettings,
    answers: list[SolveResult],
    waits: Sequence[float | None],
    began: float,
) -> RunResult:
    found = []
    for answer, (_, problem) in zip(answers, instance.problems, strict=True):
        if answer.starts is None:
            if answer.status == "interrupted":
                raise KeyboardInterrupt  # no result to keep
            raise NoScheduleError(
                "no schedule was found within the time limit; use a longer --time-limit or --slot"
            )
        problem.check(answer.starts)
        found.append(answer.starts)
    starts = instance.starts(found)
    schedule = carried_out("oracle", instance.trace, instance.table, starts)
    brought = brought_forward(instance.log, instance.problems, starts)
    statuses = {answer.status for answer in answers}
    return RunResult(
        task=task,
        instance=instance,
        answers=answers,
        schedule=schedule,
        real=carried_out("oracle", instance.log, instance.table, brought),
        real_baseline=replay_one(instance.log, instance.table, BASELINE, Settings([]), None),
        status=next((status for status in ORDER if status in statuses), "optimal"),
        wait=waiting(instance.trace, schedule),
        wait_bound=task.slot
        * fsum(
            answer.bound if wait is None else wait
            for answer, wait in zip(answers, waits, strict=True)
        ),
        alone=waiting(instance.trace, instance.baseline),
        cost=fsum(answer.cost for answer in answers),
        cost_bound=fsum(answer.bound for answer in answers),
        seconds=perf_counter() - began,
    )


def lp_bound(
    instance: Instance,
    form: str,
    until: float,
    on_bound: Callable[[float], object] = lambda _: None,
    stop: Callable[[], bool] = lambda: False,
) -> LpBound:
    """Return a lower bound on the waiting in seconds, by LPs only.

    The computation ends when the clock reads `until` or `stop` returns true. `on_bound` is called
    with each better bound. Sizes are sums over the problems.
    """
    known = replay_one(instance.trace, instance.table, START, Settings([START]), instance.baseline)
    slot, total, found = instance.slot, 0.0, []
    for i, own in enumerate(instance.slots(known)):
        before = total

        def higher(bound: float, before: float = before) -> None:
            on_bound((before + bound) * slot)

        problem = instance.problems[i][1]
        turn = instance.turn(i, until)
        found.append(prove(problem, FORMS[form], turn, own, higher, stop))
        total += found[-1].bound
    return LpBound(
        total * slot,
        all(one.finished for one in found),
        sum(one.variables for one in found),
        sum(one.nonzeros for one in found),
    )


def _start(schedule: Schedule, position: int) -> float:
    start = schedule.starts[position]
    assert start is not None, "a job never starts"
    return start


def waiting(trace: Trace, schedule: Schedule) -> float:
    """Return the total waiting of the jobs in seconds."""
    return fsum(_start(schedule, i) - a.job.submit for i, a in enumerate(trace.arrivals))


def measured(trace: Trace, baseline: Schedule, schedule: Schedule) -> Metrics:
    """Return the speed-ups and slowdowns of the jobs relative to the baseline."""
    pairs = jct_pairs(Result(trace, baseline, schedule), Settings([]))
    return measure([pair for pair in pairs if pair is not None])
