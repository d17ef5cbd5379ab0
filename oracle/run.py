"""From a job log to the oracle's schedule of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, inf
from time import perf_counter
from typing import NamedTuple

from oracle.errors import NoScheduleError
from oracle.forms import FORMS
from oracle.planned import carried_out
from oracle.problem import Goal, problems
from oracle.slots import slotted
from oracle.solve import Answer, gap_of, solve_problem
from replay.run import BASELINE, Settings, replay_one
from replay.schedule import Schedule
from replay.trace import PoolTable, Trace

START = "sia-vc"
"""The policy that the search begins with: it slows nobody, and knows the future too."""


class Task(NamedTuple):
    """What is asked of the oracle: a grid and a time limit (seconds), how and for what."""

    slot: float
    seconds: float
    form: str = "step"
    goal: Goal = Goal()


@dataclass
class Outcome:
    """What came of it. Waiting is in seconds, over all jobs."""

    task: Task
    trace: Trace
    """The slotted jobs: all figures are of these."""
    baseline: Schedule
    schedule: Schedule
    real: Schedule
    """The same starts with durations as they are in the log."""
    log: Trace
    answers: list[Answer]
    status: str
    wait: float
    wait_bound: float
    alone: float
    seconds: float = 0.0

    @property
    def gap(self) -> float:
        """(wait - bound) / wait."""
        return gap_of(self.wait, self.wait_bound)


def run(log: Trace, table: PoolTable, task: Task) -> Outcome:
    """Solve it. Raises UserError and its kinds for what cannot be."""
    began = perf_counter()
    trace = slotted(log, task.slot)
    settings = Settings([START])
    baseline = replay_one(trace, table, BASELINE, settings, None)
    known = replay_one(trace, table, START, settings, baseline)
    cutoffs = [inf if start is None else start for start in baseline.starts]
    starts = [0.0] * len(trace.arrivals)
    answers = []
    for origin, problem in problems(trace, table, cutoffs, task.slot, task.goal):
        first = [round((_start(known, t.position) - origin) / task.slot) for t in problem.tasks]
        left = task.seconds - (perf_counter() - began)
        answer = solve_problem(problem, FORMS[task.form], left, 1, first)
        if answer.starts is None:
            raise NoScheduleError("no schedule keeps all cutoffs; allow some slowdown")
        problem.check(answer.starts)
        for member, start in zip(problem.tasks, answer.starts, strict=True):
            starts[member.position] = origin + start * task.slot
        answers.append(answer)
    bound = fsum(answer.bound for answer in answers) * task.slot
    schedule = carried_out("oracle", trace, table, starts)
    return Outcome(
        task, trace, baseline, schedule, carried_out("oracle", log, table, starts), log, answers,
        next((a.status for a in answers if a.status != "optimal"), "optimal"),
        _waiting(trace, schedule), bound, _waiting(trace, baseline), perf_counter() - began,
    )  # fmt: skip


def _start(schedule: Schedule, position: int) -> float:
    start = schedule.starts[position]
    assert start is not None, "a job that never starts"
    return start


def _waiting(trace: Trace, schedule: Schedule) -> float:
    pairs: Sequence[tuple[float, float]] = [
        (_start(schedule, i), arrival.job.submit) for i, arrival in enumerate(trace.arrivals)
    ]
    return fsum(start - submit for start, submit in pairs)
