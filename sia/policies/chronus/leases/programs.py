"""The selector's program (Chronus, §3.3.4, Eqs. 1 to 6), made linear.

x[k, i] is 1 if job i has lease k, and s[p, i] is 1 if the job meets step p. Eq. 4 of the paper has
a product of both; Σ x = RL together with Σ over k < DL of x ≥ RL · s is equivalent and linear.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import Enum
from math import floor
from typing import NamedTuple

from sia.policies.chronus.leases.claims import Claim, LeasePlan
from sia.policies.chronus.leases.free import Room
from sia.program import Program, ProgramBuilder


class LeaseGoal(Enum):
    """The objective of a program."""

    STEPS = "steps"
    """The steps with the highest reward, without leases: see `target_program`."""

    ANY = "any"
    """Any plan in which all jobs meet their last steps, for admission."""
    REWARD = "reward"
    """The highest reward (Eq. 1)."""
    SOONEST = "soonest"
    """Among plans with at least a given reward, the least delay, then the most renewed GPUs."""


class LeaseProgram(NamedTuple):
    """A program, and where its columns are."""

    program: Program
    leases: tuple[tuple[int, int], ...]
    """By job: the column of its lease 0, and the number of leases that it can have."""
    steps: tuple[tuple[tuple[int, int], ...], ...]
    """By job: the number and the column of each step that it can meet."""

    def plan_of(self, claims: Sequence[Claim], values: Sequence[float]) -> LeasePlan:
        """Return the plan of a solution."""
        return {
            claim.job_id: tuple(k for k in range(count) if values[first + k] > 0.5)
            for claim, (first, count) in zip(claims, self.leases, strict=True)
        }

    def values_of(self, claims: Sequence[Claim], plan: LeasePlan) -> tuple[float, ...]:
        """Return the solution for a plan; empty if one of its leases has no column."""
        if any(
            plan[c.job_id][-1] >= count for c, (_, count) in zip(claims, self.leases, strict=True)
        ):
            return ()
        values = [0.0] * len(self.program.costs)
        for claim, (first, _), steps in zip(claims, self.leases, self.steps, strict=True):
            for k in plan[claim.job_id]:
                values[first + k] = 1.0
            met = claim.met(plan[claim.job_id])
            values[next(column for number, column in steps if number == met)] = 1.0
        return tuple(values)


class TargetProgram(NamedTuple):
    """A program that chooses the step that each job will meet, but not its leases."""

    program: Program
    targets: tuple[tuple[int, int, int], ...]
    """Claim, step and column of each choice; a job without a chosen step meets its last one."""

    def claims_of(self, claims: Sequence[Claim], values: Sequence[float]) -> list[Claim]:
        """Return the claims without the steps after those that a solution chooses."""
        found = [*claims]
        for n, number, column in self.targets:
            if values[column] > 0.5:
                found[n] = claims[n]._replace(steps=claims[n].steps[: number + 1])
        return found

    def values_of(self, claims: Sequence[Claim], plan: LeasePlan) -> tuple[float, ...]:
        """Return the solution for a plan."""
        met = [claim.met(plan[claim.job_id]) for claim in claims]
        return tuple(float(met[n] == number) for n, number, _ in self.targets)


def target_program(claims: Sequence[Claim], room: Room) -> TargetProgram:
    """Return the program for the steps with the highest reward, if jobs used fractions of GPUs.

    No plan has a higher reward than its solution. The program has no columns for leases: with
    fractions of GPUs jobs can meet their steps exactly if for each d they need no more in the first
    d leases than these have (`lists.is_impossible`). Only those d have a row at which the best
    steps of all jobs would need too much. O(jobs · steps · leases).
    """
    builder, targets = ProgramBuilder(), list[tuple[int, int, int]]()
    for n, claim in enumerate(claims):
        reachable = [i for i, (within, _) in enumerate(claim.steps) if within >= claim.leases]
        gains = [claim.steps[i][1] - claim.steps[-1][1] for i in reachable[:-1]]
        first = builder.binaries([-gain for gain in gains])
        targets += [(n, i, first + place) for place, i in enumerate(reachable[:-1])]
        if gains:
            builder.at_most(dict.fromkeys(range(first, first + len(gains)), 1.0), 1.0)
    soonest = [next(w for w, _ in claim.steps if w >= claim.leases) for claim in claims]
    last = [claim.last for claim in claims]
    ends = sorted({w for claim in claims for w, _ in claim.steps if w >= claim.leases})
    for resource, have in enumerate(room):
        most = _needs(claims, soonest, resource, ends)
        held = dict(zip(ends, _needs(claims, last, resource, ends), strict=True))
        full = [d for d, need in zip(ends, most, strict=True) if need > have * d]
        terms: dict[int, dict[int, float]] = {d: {} for d in full}
        for n, i, column in targets:
            claim, within = claims[n], claims[n].steps[i][0]
            begin, end = bisect_right(full, within - claim.leases), bisect_left(full, claim.last)
            for d in full[begin:end]:
                least = _needed(claim.leases, claim.last, d)
                more = claim.uses[resource] * (_needed(claim.leases, within, d) - least)
                if more:
                    terms[d][column] = float(more)
        for d in full:
            builder.at_most(terms[d], float(have * d - held[d]))
    return TargetProgram(builder.build(), tuple(targets))


def _needs(
    claims: Sequence[Claim], within: Sequence[int], resource: int, ends: Sequence[int]
) -> list[int]:
    """Return how much of a resource jobs need in the first d leases, for each d of `ends`.

    Job n must have its leases among the first `within[n]`. Its need grows by one lease with each d
    after it must have begun. O(jobs · log jobs + ends).
    """
    bends = Counter[int]()  # by d: how much faster the need grows from there on
    for claim, end in zip(claims, within, strict=True):
        bends[end - claim.leases] += claim.uses[resource]
        bends[end] -= claim.uses[resource]
    for d in ends:
        bends[d] += 0
    need = growth = before = 0
    found = dict[int, int]()
    for d, bend in sorted(bends.items()):
        need += growth * (d - before)
        found[d] = need
        growth += bend
        before = d
    return [found[d] for d in ends]


def _needed(leases: int, within: int, d: int) -> int:
    """Return the number of leases that a job needs among the first d, to meet its step.

    It needs `leases` in all, and `within` is the number of leases before the step.
    """
    return min(leases, max(0, leases - within + d))


class _Tie(NamedTuple):
    """The quality that a plan must reach, and the job that gets the earliest leases."""

    number: int
    before: Mapping[str, Sequence[int]]
    quality: tuple[float, int, int]


def tie_program(
    claims: Sequence[Claim],
    room: Room,
    number: int,
    before: Mapping[str, Sequence[int]],
    quality: tuple[float, int, int],
) -> LeaseProgram:
    """Return the program that gives a job the earliest leases in a plan of this `lists.quality`.

    The jobs in `before` have these leases. O(jobs · leases).
    """
    return lease_program(claims, room, LeaseGoal.ANY, -quality[0], _Tie(number, before, quality))


def choices(claims: Sequence[Claim]) -> int:
    """Return the number of leases among which jobs may choose, in the program of these claims."""
    horizon = sum(claim.leases for claim in claims)
    return sum(min(claim.last, horizon) for claim in claims)


def lease_program(
    claims: Sequence[Claim],
    room: Room,
    goal: LeaseGoal,
    reward: float = 0.0,
    tie: _Tie | None = None,
) -> LeaseProgram:
    """Return the program for claims that could each be met alone.

    `reward` is the smallest allowed reward, for `LeaseGoal.SOONEST`. O(jobs · leases).
    """
    builder = ProgramBuilder()
    leases = _lease_columns(builder, claims, goal)
    steps = _step_columns(builder, claims, goal)
    for claim, (first, count), met in zip(claims, leases, steps, strict=True):
        builder.exactly(range(first, first + count), float(claim.leases))  # of Eq. 4
        builder.exactly([column for _, column in met], 1.0)  # Eq. 5
        for number, column in met:
            within = claim.steps[number][0]
            if within < count:
                terms = dict.fromkeys(range(first, first + within), 1.0)
                builder.row({**terms, column: -float(claim.leases)}, low=0.0)  # Eq. 4
    _share_room(builder, claims, leases, room)
    if tie is not None:
        _break(tie, builder, claims, leases)
    if goal is LeaseGoal.SOONEST or tie is not None:
        gains = {
            column: claim.steps[number][1]
            for claim, met in zip(claims, steps, strict=True)
            for number, column in met
        }
        builder.row(gains, low=_just_below(reward))
    return LeaseProgram(builder.build(), tuple(leases), tuple(steps))


def _lease_columns(
    builder: ProgramBuilder, claims: Sequence[Claim], goal: LeaseGoal
) -> list[tuple[int, int]]:
    """Add x of each job for the leases before its last step (Eq. 2).

    Leases beyond the sum of all jobs' leases are left out: if a job has one of them, an earlier
    lease is empty.
    """
    horizon = sum(claim.leases for claim in claims)
    scale = 1 + sum(claim.gpus for claim in claims if claim.renews)
    found = []
    for claim in claims:
        count = min(claim.last, horizon)
        costs = [0.0] * count
        if goal is LeaseGoal.SOONEST:
            costs = [float(scale * k * claim.gpus) for k in range(count)]
            costs[0] -= claim.gpus if claim.renews else 0
        found.append((builder.binaries(costs), count))
    return found


def _step_columns(
    builder: ProgramBuilder, claims: Sequence[Claim], goal: LeaseGoal
) -> list[tuple[tuple[int, int], ...]]:
    """Add s of each job for the steps that it could meet alone (Eqs. 1 and 2)."""
    found = []
    for claim in claims:
        reachable = [n for n, (within, _) in enumerate(claim.steps) if within >= claim.leases]
        costs = [-claim.steps[n][1] if goal is LeaseGoal.REWARD else 0.0 for n in reachable]
        first = builder.binaries(costs)
        found.append(tuple((n, first + i) for i, n in enumerate(reachable)))
    return found


def _share_room(
    builder: ProgramBuilder,
    claims: Sequence[Claim],
    leases: Sequence[tuple[int, int]],
    room: Room,
) -> None:
    """Add the limits of each lease in which not all jobs fit together (Eqs. 3 and 6)."""
    for resource, have in enumerate(room):
        for k in range(max((count for _, count in leases), default=0)):
            terms = {
                first + k: float(claim.uses[resource])
                for claim, (first, count) in zip(claims, leases, strict=True)
                if k < count
            }
            if sum(terms.values()) > have:
                builder.at_most(terms, float(have))


def _break(
    tie: _Tie, builder: ProgramBuilder, claims: Sequence[Claim], leases: Sequence[tuple[int, int]]
) -> None:
    """Fix the leases of earlier jobs and the delay, and prefer early leases for one job."""
    delay, renewed = {}, {}
    for number, (claim, (first, count)) in enumerate(zip(claims, leases, strict=True)):
        kept = tie.before.get(claim.job_id)
        for k in range(count):
            delay[first + k] = float(k * claim.gpus)
            if kept is not None:
                has = float(k in kept)
                builder.row({first + k: 1.0}, has, has)
        if number == tie.number:
            for k in range(count):
                builder.costs[first + k] = float(k)
        if claim.renews and count:
            renewed[first] = float(claim.gpus)
    builder.at_most(delay, float(tie.quality[1]))
    builder.row(renewed, low=float(-tie.quality[2]))


def _just_below(reward: float) -> float:
    """Return a bound slightly below `reward`, to allow for rounding of sums."""
    return reward if reward == floor(reward) else reward - 1e-6 * max(1.0, reward)
