"""Find the best plan of a small window by exhaustive search (Shockwave, appendix G).

Ties go to the plan with the fewest starts, then to the one in which the most urgent jobs run
earliest. The search is a dynamic program over rounds. Its states are the remaining rounds of each
job, and which of the jobs with remaining rounds ran in the round before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

MOST_JOBS = 8
"""Largest number of jobs, because the search examines all sets of them in each round."""

WORK = 10_000
"""Largest number of choices that the search examines: about 50 ms, for which a daemon waits."""

EQUAL = 1e-11
"""Relative difference of two plans that are equally good: rounding."""


class AskedRounds(NamedTuple):
    """The number of rounds for a job, and its properties."""

    width: int
    rounds: int
    most: int
    """The largest number of rounds that it can use."""
    urgency: tuple[float, float]
    """Its estimated finish-time fairness, then its budget."""
    running: bool = False
    pinned: bool = False
    """Whether it runs and must not be stopped: its rounds are the first ones."""


Plan = list[list[int]]
"""By job: 1 for a round in which it runs, else 0."""

_State = tuple[tuple[int, ...], tuple[int, ...]]
"""The remaining rounds of each job, and which of the jobs with remaining rounds ran in the round
before."""

_Cost = tuple[int, tuple[int, ...]]
"""The number of starts; then, for each urgency from the highest, minus a number whose digits are
the numbers of jobs that ran in each round. Smaller costs mean earlier rounds."""

_Choice = tuple[tuple[int, ...], _State, tuple[int, ...]]
"""The jobs that run in a round, the state after it, and the number of them by urgency."""

_Came = dict[_State, tuple[_State, tuple[int, ...]]]
"""For each state, its cheapest predecessor and the jobs that run in the round between them."""


def searched(
    jobs: Sequence[AskedRounds],
    gpus: int,
    rounds: int,
    objective: Callable[[Sequence[int]], float] | None = None,
    work: int = WORK,
) -> Plan | None:
    """Return the best plan, or None if there is none or the search exceeds `work` choices.

    No job gets more than its `rounds`, and no GPU is idle in a round that a job with remaining
    rounds could use. `objective` rates the number of rounds of each job; without it all rounds must
    be placed. Of equally good plans the one is best in which the most urgent jobs run earliest,
    then the next most urgent, and so on. Jobs with the same estimated fairness are compared
    together, then jobs with the same fairness and budget.
    """
    if len(jobs) > MOST_JOBS:
        return None
    everyone = range(len(jobs))
    sets = [
        (chosen, gpus - sum(jobs[j].width for j in chosen))
        for size in range(len(jobs) + 1)
        for chosen in combinations(everyone, size)
        if sum(jobs[j].width for j in chosen) <= gpus
    ]
    alike = _alike(jobs)
    start = tuple(job.rounds for job in jobs), tuple(j for j in everyone if jobs[j].running)
    best: dict[_State, _Cost] = {start: (0, (0,) * len(alike))}
    came: list[_Came] = []
    for t in range(rounds):
        later = None if objective else rounds - t - 1
        lefts = {left for left, _ in best}
        work -= len(lefts) * len(sets)
        if work < 0:
            return None
        may = {left: [*_choices(jobs, sets, alike, left, later)] for left in lefts}
        work -= sum(len(may[left]) for left, _ in best)
        if work < 0:
            return None
        best, ran = _next(best, may, len(jobs) + 1)
        if not best:  # jobs that must not be stopped hold more GPUs than the pool has now
            return None
        came.append(ran)
    state = _best_end(jobs, best, objective)
    return None if state is None else _traced(state, came, len(jobs))


def _alike(jobs: Sequence[AskedRounds]) -> list[list[int]]:
    """Return the groups of equal fairness, most urgent first, then those of equal budget too."""
    fairness = sorted({job.urgency[0] for job in jobs}, reverse=True)
    urgency = sorted({job.urgency for job in jobs}, reverse=True)
    return [
        *([j for j, job in enumerate(jobs) if job.urgency[0] == value] for value in fairness),
        *([j for j, job in enumerate(jobs) if job.urgency == value] for value in urgency),
    ]


def _choices(
    jobs: Sequence[AskedRounds],
    sets: Sequence[tuple[tuple[int, ...], int]],
    alike: Sequence[Sequence[int]],
    left: tuple[int, ...],
    later: int | None,
) -> Iterator[_Choice]:
    """Yield those of these sets of jobs, with the GPUs that they leave idle, that a round can run.

    `left` has the remaining rounds of each job. If all rounds must be placed, `later` is the number
    of following rounds.
    """
    waits = {j for j, count in enumerate(left) if count}
    due = {j for j in waits if jobs[j].pinned or (later is not None and left[j] > later)}
    for chosen, idle in sets:
        others = waits - set(chosen)
        if due <= set(chosen) <= waits and all(jobs[j].width > idle for j in others):
            rest = tuple(count - (j in chosen) for j, count in enumerate(left))
            used = tuple(sum(j in chosen for j in group) for group in alike)
            yield chosen, (rest, tuple(j for j in chosen if rest[j])), used


def _next(
    best: dict[_State, _Cost], may: dict[tuple[int, ...], list[_Choice]], base: int
) -> tuple[dict[_State, _Cost], _Came]:
    """Return the states after one more round with their costs, and how each is reached."""
    following: dict[_State, _Cost] = {}
    ran: _Came = {}
    for state, (starts, soon) in best.items():
        for chosen, reached, used in may[state[0]]:
            cost = (
                starts + sum(j not in state[1] for j in chosen),
                tuple(before * base - now for before, now in zip(soon, used, strict=True)),
            )
            if reached not in following or cost < following[reached]:
                following[reached] = cost
                ran[reached] = state, chosen
    return following, ran


def _best_end(
    jobs: Sequence[AskedRounds],
    ends: dict[_State, _Cost],
    objective: Callable[[Sequence[int]], float] | None,
) -> _State | None:
    """Return the best state after the last round, or None if no plan places all rounds."""
    if objective is None:
        all_done = (0,) * len(jobs), ()
        return all_done if all_done in ends else None
    values = {
        left: objective([job.rounds - rest for job, rest in zip(jobs, left, strict=True)])
        for left in {left for left, _ in ends}
    }
    most = max(values.values())
    least = most - EQUAL * max(1.0, abs(most))
    equal = [state for state in ends if values[state[0]] >= least]
    return min(equal, key=lambda state: (ends[state], state))


def _traced(state: _State, came: Sequence[_Came], jobs: int) -> Plan:
    """Return the plan that ends in a state."""
    plan = [[0] * len(came) for _ in range(jobs)]
    for t in reversed(range(len(came))):
        state, chosen = came[t][state]
        for j in chosen:
            plan[j][t] = 1
    return plan
