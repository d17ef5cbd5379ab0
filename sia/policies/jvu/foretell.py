"""How a plan of `jvu` runs one job, and what outweighs an earlier start."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from sia.contract.plan import PlannedStart
from sia.contract.policy import PlannedRun
from sia.contract.views import JobStateView
from sia.policies.jvu.greedy import Greedy
from sia.policies.jvu.outlook import JvuOutlook

MOST_BEFORE = 20
"""Jobs that are named."""


def foretell(
    outlook: JvuOutlook, job: JobStateView, starts: Sequence[PlannedStart], slots: int
) -> PlannedRun:
    """Return how a plan runs a pending job.

    `outlook` has the choices of this job alone, after those of jobs that go before it and that the
    plan does not know yet either.

    A job that `starts` do not have is fitted in between them: one with a deadline between those of
    the others that have one, as best effort makes room in the next plan. O(starts + slots ·
    running jobs). Where nodes differ, the others are put where they are likely to run.
    """
    job_id = job.job.id
    planned = next((each for each in starts if each.job_id == job_id), None)
    others = [each for each in starts if each.job_id != job_id and outlook.outranks(each, job)]
    planner = Greedy(outlook, slots)
    for each in others:
        if outlook.one_kind:
            planner.profile.use(job, each.gpus, each.start, each.end)
        else:
            planner.profile.use_any(outlook.planned(each))
    plan = planner.plan()
    taken = plan.taken.get(job_id)
    begin, end, kills = inf, inf, tuple[str, ...]()
    if planned is not None:
        begin, end = planned.start, planned.end
    elif taken is not None:
        begin = taken.choice.leaf.start
        end = begin + taken.choice.leaf.duration
        mine = [name for name in plan.kills if planner.killed[name] == job_id]
        kills = tuple(outlook.running[name].job.job.id for name in mine)
    sooner = [(each.start, each.job_id) for each in others]
    newer = (each for name, each in plan.taken.items() if name != job_id)
    sooner += [(each.choice.leaf.start, each.choice.job_id) for each in newer]
    before = tuple(name for start, name in sorted(sooner) if start < begin)[:MOST_BEFORE]
    spared, cost, gain = Greedy(outlook, slots).what_starts_now(job_id, begin)
    latest = inf if job.job.deadline is None else job.job.deadline - outlook.run_time(job)
    missed = begin == inf and latest < outlook.last_start
    return PlannedRun(begin, end, kills, before, () if kills else spared, cost, gain, missed)
