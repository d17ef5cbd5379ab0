"""Workloads with deadlines, drawn from a job log (Chronus, §4.1, Table 1)."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from random import Random
from typing import NamedTuple

from msgspec.structs import replace

from replay.logs.trace import Trace
from sia.core.playout import Arrival
from sia.state.steps import PAPER_STEPS

SHORT = 300.0
"""Seconds. Jobs of at most this length end in the profiler and are the workload Short."""

PHILLY_WEEKS = (5_013_180.0, 6_222_780.0)
"""Seconds of Philly's log from 12 to 25 October 2017."""


class Mix(NamedTuple):
    """Percentages of jobs with a strict deadline, with a soft one, and without."""

    strict: float
    soft: float
    best_effort: float


class DeadlineWorkload(NamedTuple):
    """A row of the paper's Table 1."""

    mix: Mix
    short: bool = False
    """Whether it consists of the short jobs, and not of all others."""
    weeks: tuple[float, float] = (0.0, inf)
    """Jobs of the log that are submitted between these seconds belong to it."""


WORKLOADS = {
    "Short": DeadlineWorkload(Mix(0, 0, 100), short=True),
    "H_SLO": DeadlineWorkload(Mix(100, 0, 0)),
    "H_MIX1": DeadlineWorkload(Mix(70, 0, 30)),
    "H_MIX2": DeadlineWorkload(Mix(30, 60, 10)),
    "P_SLO": DeadlineWorkload(Mix(100, 0, 0), weeks=PHILLY_WEEKS),
    "P_MIX1": DeadlineWorkload(Mix(70, 0, 30), weeks=PHILLY_WEEKS),
    "P_MIX2": DeadlineWorkload(Mix(30, 60, 10), weeks=PHILLY_WEEKS),
}
"""The rows of Table 1 by name; names with H are parts of the Helios log, names with P of Philly."""


def chosen_jobs(trace: Trace, workload: DeadlineWorkload) -> Trace:
    """Return the jobs of a log that belong to a workload of Table 1."""
    begin, end = workload.weeks
    kept = [
        arrival
        for arrival in trace.arrivals
        if begin <= arrival.job.submit < end and (arrival.duration <= SHORT) is workload.short
    ]
    return _with(trace, kept)


def with_deadlines(
    trace: Trace, mix: Mix, slack: tuple[float, float], density: float, seed: int
) -> Trace:
    """Return the log with random deadlines, and with `density` percent of its number of jobs.

    A deadline is the submission plus a multiple of the run time, drawn between the two bounds of
    `slack`. Soft deadlines have the paper's steps. Below 100 percent, a random part of the jobs is
    kept; above, random jobs are added again, at random times of the log and with new IDs.
    """
    random = Random(seed)  # noqa: S311  an experiment, no secret
    arrivals = _dense(trace.arrivals, density, random)
    drawn = []
    for job, duration in arrivals:
        point, times = random.uniform(0, 100), random.uniform(*slack)
        due = job.submit + times * duration
        soft = PAPER_STEPS if mix.strict <= point < mix.strict + mix.soft else ()
        deadline = None if point >= mix.strict + mix.soft else due
        drawn.append(Arrival(replace(job, deadline=deadline, soft=soft), duration))
    return _with(trace, drawn)


def _dense(arrivals: Sequence[Arrival], density: float, random: Random) -> list[Arrival]:
    count = round(len(arrivals) * density / 100)
    if count <= len(arrivals):
        places = sorted(random.sample(range(len(arrivals)), count))
        return [arrivals[place] for place in places]
    first, last = arrivals[0].job.submit, arrivals[-1].job.submit
    known = {arrival.job.id for arrival in arrivals}
    found = [*arrivals]
    for number in range(count - len(arrivals)):
        job, duration = random.choice(arrivals)
        name = f"{job.id}+{number + 1}"
        while name in known:
            name += "+"
        known.add(name)
        at = random.uniform(first, last)
        found.append(Arrival(replace(job, id=name, submit=at), duration))
    found.sort(key=lambda arrival: arrival.job.submit)
    return found


def _with(trace: Trace, arrivals: Sequence[Arrival]) -> Trace:
    return Trace(
        arrivals, trace.columns, trace.extras, trace.dropped, [*trace.notes], trace.origin
    )  # fmt: skip
