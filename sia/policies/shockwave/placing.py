"""Place the rounds of jobs in a window: which round each of them is (Shockwave, appendix G).

What is due in every round that is left goes first, then who ran in the round before, as that takes
no start, then the most urgent. Of a small window the placement has the fewest starts, and of those
the most urgent job soonest.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod
from typing import NamedTuple

STATES = 5_000
"""Most states of the exact search: it takes 50 ms at most, as a daemon waits for it."""

WIDE = 6
"""Most jobs in the exact search, which looks at all sets of them in each round."""


class AskedRounds(NamedTuple):
    """What a job is to get."""

    width: int
    rounds: int
    most: int
    """The rounds that it could use."""
    urgency: tuple[float, float]
    """Its estimated finish-time fairness, then its budget."""
    running: bool = False
    pinned: bool = False
    """Whether it runs and must not be stopped: its rounds are the first ones."""


Plan = list[list[int]]

_State = tuple[tuple[int, ...], tuple[int, ...]]
"""What is left of each job, and who of those with rounds left ran in the round before."""

_Cost = tuple[int, tuple[int, ...]]
"""Starts, and by urgency, the most urgent first, the sum of the rounds that were used."""

_Choice = tuple[tuple[int, ...], _State, tuple[int, ...]]
"""Who runs in a round, the state after it, and how many run by urgency."""


def placed(jobs: Sequence[AskedRounds], gpus: int, rounds: int) -> Plan:
    """Return by job the rounds in which it runs; a job gets fewer where they do not fit."""
    states = prod(job.rounds + 1 for job in jobs) * 2 ** len(jobs)
    if len(jobs) <= WIDE and states <= STATES:
        found = _fewest_starts(jobs, gpus, rounds)
        if found is not None:
            return found
    return _round_by_round(jobs, gpus, rounds)


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


def _fewest_starts(jobs: Sequence[AskedRounds], gpus: int, rounds: int) -> Plan | None:
    """Return the placement with the fewest starts, then with the most urgent soonest, or None.

    No GPU is idle in a round that a job with rounds left could use. After the most urgent the next
    one counts, and so on; those of the same urgency count together. Dynamic programming over
    rounds, by what is left of each job and which of those with rounds left ran in the round before.
    """
    everyone = range(len(jobs))
    sets = [
        (chosen, gpus - sum(jobs[j].width for j in chosen))
        for size in range(len(jobs) + 1)
        for chosen in combinations(everyone, size)
        if sum(jobs[j].width for j in chosen) <= gpus
    ]
    alike = [
        [j for j in everyone if jobs[j].urgency == urgency]
        for urgency in sorted({job.urgency for job in jobs}, reverse=True)
    ]
    start = tuple(job.rounds for job in jobs), tuple(j for j in everyone if jobs[j].running)
    best: dict[_State, _Cost] = {start: (0, (0,) * len(alike))}
    came: list[dict[_State, tuple[_State, tuple[int, ...]]]] = []
    for t in range(rounds):
        following: dict[_State, _Cost] = {}
        ran: dict[_State, tuple[_State, tuple[int, ...]]] = {}
        lefts = {left for left, _ in best}
        may = {left: [*_choices(jobs, sets, alike, left, rounds - t - 1)] for left in lefts}
        for state, (starts, late) in best.items():
            for chosen, reached, used in may[state[0]]:
                cost = (
                    starts + sum(j not in state[1] for j in chosen),
                    tuple(before + t * now for before, now in zip(late, used, strict=True)),
                )
                if reached not in following or cost < following[reached]:
                    following[reached] = cost
                    ran[reached] = state, chosen
        best = following
        came.append(ran)
    state = (0,) * len(jobs), ()
    if state not in best:
        return None
    plan = [[0] * rounds for _ in jobs]
    for t in reversed(range(rounds)):
        state, chosen = came[t][state]
        for j in chosen:
            plan[j][t] = 1
    return plan


def _choices(
    jobs: Sequence[AskedRounds],
    sets: Sequence[tuple[tuple[int, ...], int]],
    alike: Sequence[Sequence[int]],
    left: tuple[int, ...],
    later: int,
) -> Iterator[_Choice]:
    """Yield which of these sets, with the GPUs that they leave idle, may run in a round.

    `left` has the rounds left of each job; `later` rounds follow.
    """
    waits = {j for j, count in enumerate(left) if count}
    due = {j for j in waits if jobs[j].pinned or left[j] > later}
    for chosen, idle in sets:
        others = waits - set(chosen)
        if due <= set(chosen) <= waits and all(jobs[j].width > idle for j in others):
            rest = tuple(count - (j in chosen) for j, count in enumerate(left))
            used = tuple(sum(j in chosen for j in group) for group in alike)
            yield chosen, (rest, tuple(j for j in chosen if rest[j])), used
