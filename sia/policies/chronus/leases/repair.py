"""Heuristics that make room in a plan for one more job, for admission.

One moves other jobs to other leases, others build a new plan. They search for any plan in which
every job meets its last step. If they find none, a solver may still find one.
"""

from __future__ import annotations

from collections.abc import Sequence

from sia.policies.chronus.leases.claims import Claim, LeasePlan
from sia.policies.chronus.leases.free import Room
from sia.policies.chronus.leases.laxity import by_laxity
from sia.policies.chronus.leases.lists import fitted

MOST_LOOKS = 40_000
"""Largest number of jobs and leases that `made_room` examines: about 20 ms, less than a solver."""


class _Table:
    """A plan by lease: the jobs that have it, and the free GPUs and places."""

    def __init__(self, claims: Sequence[Claim], room: Room, plan: LeasePlan) -> None:
        self.room = room
        self.jobs = {claim.job_id: claim for claim in claims}
        self.leases = {claim.job_id: {*plan[claim.job_id]} for claim in claims}
        end = 1 + max((leases[-1] for leases in plan.values() if leases), default=-1)
        self.who: list[dict[str, None]] = [{} for _ in range(end)]
        self.left = [[*room] for _ in range(end)]
        self.looks = 0
        for claim in claims:
            for k in plan[claim.job_id]:
                self.take(claim, k)

    def take(self, claim: Claim, k: int) -> None:
        """Give a lease to a job."""
        while k >= len(self.who):
            self.who.append({})
            self.left.append([*self.room])
        self.who[k][claim.job_id] = None
        self.leases[claim.job_id].add(k)
        for i, use in enumerate(claim.uses):
            self.left[k][i] -= use

    def free(self, claim: Claim, k: int) -> None:
        """Remove a lease from a job."""
        del self.who[k][claim.job_id]
        self.leases[claim.job_id].discard(k)
        for i, use in enumerate(claim.uses):
            self.left[k][i] += use

    def fits(self, claim: Claim, k: int) -> bool:
        """Return whether a lease has room for a job."""
        left = self.left[k] if k < len(self.left) else self.room
        return claim.uses[0] <= left[0] and (len(left) == 1 or _is_within(claim.uses, left))

    def other(self, claim: Claim, more: Claim) -> int | None:
        """Return a lease that a job could have instead and that `more` does not use.

        Leases after the last step of `more` come first.
        """
        mine = self.leases[claim.job_id]
        for leases in (range(more.last, claim.last), range(min(more.last, claim.last))):
            for k in leases:
                self.looks += 1
                is_wanted = k < more.last and self.fits(more, k)
                if k not in mine and not is_wanted and self.fits(claim, k):
                    return k
                if self.looks > MOST_LOOKS:
                    return None
        return None

    def clear(self, k: int, more: Claim) -> bool:
        """Move jobs out of a lease until `more` fits; return whether it fits.

        Even if it does not fit, some jobs may have moved.
        """
        stuck = set[str]()
        while not self.fits(more, k):
            short = max(
                use - have for use, have in zip(more.uses, self.left[k], strict=True)
            )  # the entry (GPUs, or places of a size) that is missing most
            found = [self.jobs[i] for i in self.who[k] if i not in stuck and i != more.job_id]
            if not found or self.looks > MOST_LOOKS:
                return False
            self.looks += len(found)
            one = min(found, key=lambda c: (c.gpus < short, abs(c.gpus - short), -c.last))
            to = self.other(one, more)
            if to is None:
                stuck.add(one.job_id)
            else:
                self.free(one, k)
                self.take(one, to)
        return True


def rearranged(
    claims: Sequence[Claim], room: Room, plan: LeasePlan, more: Claim
) -> LeasePlan | None:
    """Return a plan with one more job, or None if none is found.

    At first all others keep the steps that they meet now, so that no promise changes. If this
    fails, they may get leases up to their last steps.
    """
    kept = [_as_met(claim, plan[claim.job_id]) for claim in claims]
    return (
        by_laxity([*kept, more], room)
        or by_laxity([*claims, more], room)
        or fitted([*claims, more], room)
        or made_room(claims, room, plan, more)
    )


def _as_met(claim: Claim, leases: Sequence[int]) -> Claim:
    """Return a claim without the steps after the one that its leases meet."""
    met = next((n for n, (d, _) in enumerate(claim.steps) if leases and leases[-1] < d), None)
    return claim if met is None else claim._replace(steps=claim.steps[: met + 1])


def made_room(
    claims: Sequence[Claim], room: Room, plan: LeasePlan, more: Claim
) -> LeasePlan | None:
    """Return a plan with one more job, for which others move to other leases, or None.

    Leases in which the least is missing come first. O(jobs · leases), at most `MOST_LOOKS`.
    """
    table = _Table(claims, room, plan)
    table.leases[more.job_id] = set()
    table.jobs[more.job_id] = more
    within = min(more.last, len(table.left) + more.leases)
    for fits in (True, False):
        order = [k for k in range(within) if k not in table.leases[more.job_id]]
        if not fits:
            order.sort(key=lambda k: -min(table.left[k]))
        for k in order:
            if table.fits(more, k) if fits else table.clear(k, more):
                table.take(more, k)
                if len(table.leases[more.job_id]) == more.leases:
                    return {job_id: tuple(sorted(had)) for job_id, had in table.leases.items()}
            if table.looks > MOST_LOOKS:
                return None
    return None


def _is_within(uses: Room, left: Sequence[int]) -> bool:
    return all(use <= have for use, have in zip(uses, left, strict=True))
