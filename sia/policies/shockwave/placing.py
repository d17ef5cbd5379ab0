"""Place the rounds of jobs in a window: which round each of them is (Shockwave, appendix G).

What is due in every round that is left goes first, then the most urgent. Of a small window the
placement has the fewest starts, and of those the most urgent job soonest.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import prod
from typing import NamedTuple

STATES = 20_000
"""Most states of the exact search: it takes some tenths of a second."""

WIDE = 6
"""Most jobs in the exact search, which looks at all sets of them in each round."""


class AskedRounds(NamedTuple):
    """What a job is to get."""

    width: int
    rounds: int
    most: int
    """The rounds that it could use."""
    urgency: float
    running: bool = False
    pinned: bool = False
    """Whether it runs and must not be stopped: its rounds are the first ones."""


Plan = list[list[int]]


def placed(jobs: Sequence[AskedRounds], gpus: int, rounds: int) -> Plan:
    """Return by job the rounds in which it runs; a job gets fewer where they do not fit."""
    states = prod(job.rounds + 1 for job in jobs) * 2 ** len(jobs)
    if len(jobs) <= WIDE and states <= STATES:
        found = _fewest_starts(jobs, gpus, rounds)
        if found is not None:
            return found
    return _by_urgency(jobs, gpus, rounds)


def _by_urgency(jobs: Sequence[AskedRounds], gpus: int, rounds: int) -> Plan:
    """Place round by round. O(rounds · jobs · widths)."""
    plan = [[0] * rounds for _ in jobs]
    left = [job.rounds for job in jobs]
    widths = sorted({1, *(job.width for job in jobs)}, reverse=True)
    order = sorted(range(len(jobs)), key=lambda j: (-jobs[j].urgency, not jobs[j].running, j))
    for t in range(rounds):
        later = rounds - t - 1
        chosen = _round(jobs, left, order, widths, gpus, later)
        for j in chosen:
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
    order = sorted(range(len(jobs)), key=lambda j: (-jobs[j].urgency, not jobs[j].running, j))
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


def _fewest_starts(jobs: Sequence[AskedRounds], gpus: int, rounds: int) -> Plan | None:
    """Return the placement with the fewest starts, then with the most urgent soonest, or None.

    Dynamic programming over rounds, by what is left of each job and who ran in the round before.
    """
    everyone = range(len(jobs))
    sets = [
        chosen
        for size in range(len(jobs) + 1)
        for chosen in combinations(everyone, size)
        if sum(jobs[j].width for j in chosen) <= gpus
    ]
    running = tuple(j for j in everyone if jobs[j].running)
    start = tuple(job.rounds for job in jobs), running
    best: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, float]] = {start: (0, 0.0)}
    came: list[dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]]] = []
    for t in range(rounds):
        following: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, float]] = {}
        before: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, ...]] = {}
        for (left, last), (starts, lateness) in best.items():
            due = {j for j in everyone if left[j] == rounds - t}
            due |= {j for j in everyone if jobs[j].pinned and left[j]}
            for chosen in sets:
                if not due <= set(chosen) or any(not left[j] for j in chosen):
                    continue
                now = starts + sum(j not in last for j in chosen)
                late = lateness + sum(jobs[j].urgency * t for j in chosen)
                state = tuple(left[j] - (j in chosen) for j in everyone), chosen
                if state not in following or (now, late) < following[state]:
                    following[state] = now, late
                    before[state] = last
        best = following
        came.append({state: before[state] for state in following})
    ends = [state for state in best if not any(state[0])]
    if not ends:
        return None
    left, chosen = min(ends, key=lambda state: (best[state], state))
    plan = [[0] * rounds for _ in jobs]
    for t in reversed(range(rounds)):
        last = came[t][left, chosen]
        for j in chosen:
            plan[j][t] = 1
        left = tuple(left[j] + (j in chosen) for j in everyone)
        chosen = last
    return plan
