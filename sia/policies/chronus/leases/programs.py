"""The selector's program (Chronus, §3.3.4, Eqs. 1 to 6), made linear.

x[k, i] says whether job i has lease k, s[p, i] whether it meets step p. The paper multiplies the
two in Eq. 4; Σ x = RL and Σ over k < DL of x ≥ RL · s say the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from math import floor
from typing import NamedTuple

from sia.policies.chronus.leases.claims import Claim, LeasePlan
from sia.policies.chronus.leases.lists import Room
from sia.program import Program, ProgramBuilder


class LeaseGoal(Enum):
    """What a program looks for."""

    STEPS = "steps"
    """The steps of the most reward, without leases: see `target_program`."""

    ANY = "any"
    """Any plan in which all jobs meet their last steps: admission."""
    REWARD = "reward"
    """The most reward (Eq. 1)."""
    SOONEST = "soonest"
    """The least delay, then the most GPUs renewed, of the plans with at least a given reward."""


class LeaseProgram(NamedTuple):
    """A program, and where its columns are."""

    program: Program
    leases: tuple[tuple[int, int], ...]
    """By job: the column of its lease 0, and how many leases it can have."""
    steps: tuple[tuple[tuple[int, int], ...], ...]
    """By job: the number and the column of each step that it can meet."""

    def plan_of(self, claims: Sequence[Claim], values: Sequence[float]) -> LeasePlan:
        """Return the plan that a solution says."""
        return {
            claim.job_id: tuple(k for k in range(count) if values[first + k] > 0.5)
            for claim, (first, count) in zip(claims, self.leases, strict=True)
        }

    def values_of(self, claims: Sequence[Claim], plan: LeasePlan) -> tuple[float, ...]:
        """Return a plan as a solution of the program; empty if one of its leases has no column."""
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
    """A program that chooses which step each job shall meet, not its leases."""

    program: Program
    targets: tuple[tuple[int, int, int], ...]
    """Claim, step and column of each choice; a job without one chosen shall meet its last step."""

    def claims_of(self, claims: Sequence[Claim], values: Sequence[float]) -> list[Claim]:
        """Return the claims without the steps after those that a solution chooses."""
        found = [*claims]
        for n, number, column in self.targets:
            if values[column] > 0.5:
                found[n] = claims[n]._replace(steps=claims[n].steps[: number + 1])
        return found

    def values_of(self, claims: Sequence[Claim], plan: LeasePlan) -> tuple[float, ...]:
        """Return the solution that a plan is."""
        met = [claim.met(plan[claim.job_id]) for claim in claims]
        return tuple(float(met[n] == number) for n, number, _ in self.targets)


def target_program(claims: Sequence[Claim], room: Room) -> TargetProgram:
    """Return the program that chooses steps of the most reward, as if GPUs had parts.

    No plan has more reward than its solution. It has no columns for leases: jobs that shall meet
    such steps can do so, in parts of GPUs, exactly if in the first d leases, for each d, they need
    no more than there is (`lists.is_impossible`). Only leases d at which the best steps of all jobs
    would need too much have a row. O(jobs · steps · leases).
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
    ends = {within for claim in claims for within, _ in claim.steps if within >= claim.leases}
    for resource, have in enumerate(room):
        uses = [claim.uses[resource] for claim in claims]
        for d in sorted(ends):
            most = sum(
                use * _needed(claim.leases, within, d)
                for use, claim, within in zip(uses, claims, soonest, strict=True)
            )
            if most <= have * d:
                continue
            least = [_needed(claim.leases, claim.last, d) for claim in claims]
            terms = {
                column: float(uses[n] * (_needed(claims[n].leases, within, d) - least[n]))
                for n, i, column in targets
                for within in (claims[n].steps[i][0],)
            }
            held = sum(use * need for use, need in zip(uses, least, strict=True))
            builder.at_most({c: more for c, more in terms.items() if more}, float(have * d - held))
    return TargetProgram(builder.build(), tuple(targets))


def _needed(leases: int, within: int, d: int) -> int:
    """Return how many of the first d leases a job needs at least, to meet its step."""
    return min(leases, max(0, leases - within + d))


class _Tie(NamedTuple):
    """What a plan must be as good as, and the job that gets the soonest leases."""

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
    """Return the program that gives a job the soonest leases in a plan of this `lists.quality`.

    The jobs in `before` have these leases. O(jobs · leases).
    """
    return lease_program(claims, room, LeaseGoal.ANY, -quality[0], _Tie(number, before, quality))


def lease_program(
    claims: Sequence[Claim],
    room: Room,
    goal: LeaseGoal,
    reward: float = 0.0,
    tie: _Tie | None = None,
) -> LeaseProgram:
    """Return the program for claims that could each be met alone.

    `reward` is the least reward of a plan, for `LeaseGoal.SOONEST`. O(jobs · leases).
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

    Leases later than all jobs need one after the other are left out: if a job has one of them, an
    earlier one is empty.
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
    """Return a bound that a reward meets although it is a sum of rounded numbers."""
    return reward if reward == floor(reward) else reward - 1e-6 * max(1.0, reward)
