"""The planned run of one job under `jvu`, and the jobs that prevent an earlier start."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from sia.contract.plan import PlannedStart
from sia.contract.policy import PlannedRun
from sia.contract.views import JobStateView
from sia.policies.jvu.greedy import Greedy
from sia.policies.jvu.outlook import JvuOutlook

MOST_BEFORE = 20
"""Largest number of jobs that an answer names."""


def foretell(
    outlook: JvuOutlook, job: JobStateView, starts: Sequence[PlannedStart], slots: int
) -> PlannedRun:
    """Return how a plan runs a pending job.

    `outlook` has the choices of this job, after the choices of jobs that come before it and that
    the plan does not contain yet either.

    If `starts` does not contain the job, it is added to a copy of the plan. A job with a deadline
    is added to the jobs with deadlines only, because best effort makes room for it in the next
    plan. If nodes differ, the other jobs are assumed on the nodes where they will probably run.
    O(starts + slots · running jobs).
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
