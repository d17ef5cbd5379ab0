"""Place the rounds of jobs in a window: which round each of them is (Shockwave, appendix G).

What is due in every round that is left goes first, then who ran in the round before, as that takes
no start, then the most urgent. Of a small window the placement has the fewest starts, and of those
the most urgent job soonest.
"""

from __future__ import annotations

from collections.abc import Sequence

from sia.policies.shockwave.searching import AskedRounds, Plan, searched


def placed(jobs: Sequence[AskedRounds], gpus: int, rounds: int) -> Plan:
    """Return by job the rounds in which it runs; a job gets fewer where they do not fit."""
    found = searched(jobs, gpus, rounds)
    return _round_by_round(jobs, gpus, rounds) if found is None else found


def _by_urgency(jobs: Sequence[AskedRounds]) -> list[int]:
    """Return the jobs, the most urgent first; of equals, those that run."""
    return sorted(range(len(jobs)), key=lambda j: (jobs[j].urgency, jobs[j].running), reverse=True)


def _round_by_round(jobs: Sequence[AskedRounds], gpus: int, rounds: int) -> Plan:
    """Place round by round: who ran in the one before goes on. O(rounds · jobs · widths)."""
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
    """Return who runs in a round after which `later` rounds follow."""
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
    # Where the rounds that follow cannot hold what is left, some of it must run now.
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
