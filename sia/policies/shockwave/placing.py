"""Place jobs in the rounds of a window, given their numbers of rounds (Shockwave, appendix G).

First come jobs that need every remaining round, then jobs that ran in the round before, because
they need no start, then the most urgent ones. In a small window the placement has the fewest
starts, and among such placements the most urgent jobs run earliest.
"""

from __future__ import annotations

from collections.abc import Sequence

from sia.policies.shockwave.searching import AskedRounds, Plan, searched


def placed(jobs: Sequence[AskedRounds], gpus: int, rounds: int) -> Plan:
    """Return the rounds in which each job runs; fewer than requested if they do not fit."""
    found = searched(jobs, gpus, rounds)
    return _round_by_round(jobs, gpus, rounds) if found is None else found


def _by_urgency(jobs: Sequence[AskedRounds]) -> list[int]:
    """Return the indices of the jobs, most urgent first; of equal ones, running jobs first."""
    return sorted(range(len(jobs)), key=lambda j: (jobs[j].urgency, jobs[j].running), reverse=True)


def _round_by_round(jobs: Sequence[AskedRounds], gpus: int, rounds: int) -> Plan:
    """Place round by round; jobs of the round before continue. O(rounds · jobs · widths)."""
    plan = [[0] * rounds for _ in jobs]
    left = [job.rounds for job in jobs]
    widths = sorted({1, *(job.width for job in jobs)}, reverse=True)
    urgent = _by_urgency(jobs)
    ran = {j for j, job in enumerate(jobs) if job.running}
    for t in range(rounds):
        later = rounds - t - 1
        order = [*(j for j in urgent if j in ran), *(j for j in urgent if j not in ran)]
        ran = set(_round(jobs, left, order, widths, gpus, later))
        for j in ran:
            plan[j][t] = 1
            left[j] -= 1
    return plan


def _round(  # noqa: C901  one rule after the other
    jobs: Sequence[AskedRounds],
    left: Sequence[int],
    order: Sequence[int],
    widths: Sequence[int],
    gpus: int,
    later: int,
) -> list[int]:
    """Return the indices of the jobs that run in a round that `later` rounds follow."""
    chosen: dict[int, None] = {}
    idle = gpus

    def take(j: int) -> None:
        nonlocal idle
        if j not in chosen and jobs[j].width <= idle:
            chosen[j] = None
            idle -= jobs[j].width

    waits = [j for j in order if left[j] > 0]
    for j in waits:
        if jobs[j].pinned:
            take(j)
    for j in sorted((j for j in waits if left[j] > later), key=lambda j: -jobs[j].width):
        take(j)
    # If the later rounds cannot hold all remaining rounds, some must run now.
    for v in widths:
        due = sum(jobs[j].width // v * left[j] for j in waits) - gpus // v * later
        due -= sum(jobs[j].width // v for j in chosen)
        for j in waits:
            if due <= 0:
                break
            if j not in chosen and v <= jobs[j].width <= idle:
                take(j)
                due -= jobs[j].width // v
    for j in waits:
        take(j)
    return [*chosen]


def filled(jobs: Sequence[AskedRounds], plan: Plan, gpus: int) -> Plan:
    """Give idle GPUs to jobs that could use them, the most urgent first. O(rounds · jobs)."""
    order = _by_urgency(jobs)
    counts = [sum(row) for row in plan]
    for t in range(len(plan[0]) if plan else 0):
        idle = gpus - sum(job.width for job, row in zip(jobs, plan, strict=True) if row[t])
        for j in order:
            if not idle:
                break
            if not plan[j][t] and counts[j] < jobs[j].most and jobs[j].width <= idle:
                plan[j][t] = 1
                counts[j] += 1
                idle -= jobs[j].width
    return plan
