"""The present resource-time plan of each sharing group, for pages and `sia plan`."""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import NamedTuple

from daemon.answers.simulate.futures import outages_ahead
from daemon.engine.engine import Engine
from sia.contract.plan import PlannedOutage, PlannedStart, PromisedSpan
from sia.state.state import GroupState

MOST_STEPS = 200
"""Maximum number of plan steps of one group: more than a page or a terminal shows, and few enough
for one response with 1,000 pools."""


class IdleStep(NamedTuple):
    """GPUs that are expected to be idle from a time on (seconds since the epoch)."""

    time: float
    idle: int


class PlanAhead(NamedTuple):
    """Idle GPUs, planned starts and promised GPUs of one sharing group."""

    idle: list[IdleStep]
    starts: list[PlannedStart]
    promised: list[PromisedSpan]


def plans_ahead(engine: Engine, now: float) -> dict[GroupState, PlanAhead]:
    """Return the plan of each group: estimated ends, planned starts, and GPUs that will be out.

    O(n log n) for n running jobs.
    """
    state, policy = engine.core.state, engine.core.policy
    changes: dict[GroupState, list[tuple[float, int]]] = {
        group: [(now, group.out)] for group in state.groups
    }
    for event in outages_ahead(engine, now):
        changes[state.pools[event.pool].group].append((event.time, event.gpus))
    running = [job for job in state.jobs.values() if job.stream is not None]
    found = {}
    for group in state.groups:
        mine = [job for job in running if job.pool.group is group]
        capacity = group.idle + sum(job.width for job in mine)
        outages = _spans(changes[group])
        profile = policy.plan[group].until(now, mine, outages)
        steps = [IdleStep(time, max(0, capacity - used)) for time, used in profile.steps()
                 if now <= time < inf]  # fmt: skip
        promised = [span for span in policy.promised(group) if span.end > now]
        found[group] = PlanAhead(
            [*islice(steps, MOST_STEPS)], policy.plan[group].starts, promised[:MOST_STEPS]
        )
    return found


def _spans(changes: list[tuple[float, int]]) -> list[PlannedOutage]:
    """Return the spans between changes of the number of GPUs that are out."""
    ends = [time for time, _ in changes[1:]] + [inf]
    return [PlannedOutage(start, end, gpus)
            for (start, gpus), end in zip(changes, ends, strict=True) if end > start]  # fmt: skip
