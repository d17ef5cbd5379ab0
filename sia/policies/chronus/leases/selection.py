"""The selection of leases: a list, then programs if the list is not known to be optimal.

The caller solves the program of `question`, passes the answer to `take`, and repeats this until
there is no question. The plan is feasible at any moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from sia.policies.chronus.leases.claims import Claim, LeasePlan
from sia.policies.chronus.leases.free import Room
from sia.policies.chronus.leases.laxity import by_laxity
from sia.policies.chronus.leases.lists import best_of, by_arrival, least, listed, quality
from sia.policies.chronus.leases.programs import (
    LeaseGoal,
    LeaseProgram,
    TargetProgram,
    choices,
    lease_program,
    target_program,
    tie_program,
)

MOST_LEASES = 4_000
"""Largest number of leases among which jobs may choose for which a solver minimises the delay. With
more this takes longer than a cycle, and the known plan is close to the best. Then the highest
reward is also searched first by steps alone (`target_program`)."""

MOST_ASKED = 50_000
"""Largest number of leases among which jobs may choose for which a solver is asked at all: with
more, a program takes minutes and reaches its limit without a plan."""


class Selection(Struct):
    """The choice of leases for jobs that can all meet their last steps together.

    `plan` is the best plan so far.
    """

    claims: tuple[Claim, ...]
    room: Room
    plan: LeasePlan
    asked: int = 0
    """The number of goals that are done, in the order steps, reward, soonest."""

    @classmethod
    def of(
        cls, claims: Sequence[Claim], room: Room, standing: LeasePlan | None
    ) -> Selection | None:
        """Begin with the best list or the standing plan; None if there is no plan to begin with."""
        plan = standing
        if plan is None or quality(claims, plan) > least(claims, room):
            plans = [each for each in (standing, listed(claims, room)) if each is not None]
            plan = best_of(claims, plans)
        return None if plan is None else cls(tuple(claims), room, by_arrival(claims, plan))

    @property
    def _is_large(self) -> bool:
        return sum(claim.last for claim in self.claims) > MOST_LEASES

    @property
    def goal(self) -> LeaseGoal | None:
        """The next goal, or None if the plan is optimal or all goals are done."""
        found, bound = quality(self.claims, self.plan), least(self.claims, self.room)
        if self.asked <= 1 and found[0] > bound[0] + 1e-9:
            if self._is_large and not self.asked:
                return LeaseGoal.STEPS
            return LeaseGoal.REWARD if choices(self.claims) <= MOST_ASKED else None
        if self.asked <= 2 and found[1:] > bound[1:] and not self._is_large:
            return LeaseGoal.SOONEST
        return None

    @property
    def question(self) -> tuple[LeaseProgram | TargetProgram, tuple[float, ...]] | None:
        """Return the next program with a solution to start from, or None."""
        goal = self.goal
        if goal is None:
            return None
        if goal is LeaseGoal.STEPS:
            targets = target_program(self.claims, self.room)
            return targets, targets.values_of(self.claims, self.plan)
        reward = -quality(self.claims, self.plan)[0]
        program = lease_program(self.claims, self.room, goal, reward)
        return program, program.values_of(self.claims, self.plan)

    def take(self, values: Sequence[float]) -> None:
        """Use the solution of the latest question; `values` is empty if there is none."""
        goal = self.goal
        assert goal is not None
        found = None
        if values and goal is LeaseGoal.STEPS:
            claims = target_program(self.claims, self.room).claims_of(self.claims, values)
            found = listed(claims, self.room) or by_laxity(claims, self.room)
            if found is not None:  # no plan has more reward than the steps of this one
                self.asked = 2
        elif values:
            program = lease_program(self.claims, self.room, goal)
            found = program.plan_of(self.claims, values)
        if found is not None:
            found = by_arrival(self.claims, found)
            if quality(self.claims, found) < quality(self.claims, self.plan):
                self.plan = found
        done = {LeaseGoal.STEPS: 1, LeaseGoal.REWARD: 2, LeaseGoal.SOONEST: 3}
        self.asked = max(self.asked, done[goal])

    def tie(self, number: int) -> tuple[LeaseProgram, tuple[float, ...]] | None:
        """Return the program that gives a job the earliest leases among equal plans.

        The jobs before it keep their leases. None if jobs may choose among too many leases.
        """
        if choices(self.claims) > MOST_ASKED:
            return None
        found = quality(self.claims, self.plan)
        before = {claim.job_id: self.plan[claim.job_id] for claim in self.claims[:number]}
        program = tie_program(self.claims, self.room, number, before, found)
        return program, program.values_of(self.claims, self.plan)

    def take_tie(self, values: Sequence[float]) -> None:
        """Use the solution of the latest `tie`; `values` is empty if there is none."""
        if values:
            program = lease_program(self.claims, self.room, LeaseGoal.ANY)
            found = program.plan_of(self.claims, values)
            if quality(self.claims, found) <= quality(self.claims, self.plan):
                self.plan = found
