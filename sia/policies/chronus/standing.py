"""The claims and leases of the guaranteed jobs from one lease on, kept between submissions.

To decide on one more job, only the leases that are still free matter. They stay the same from one
submission to the next, except for the jobs that were promised, have ended or have changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from sia.policies.chronus.leases.claims import Claim, LeasePlan
from sia.policies.chronus.leases.free import FreeLeases, Room


class StandingPlan:
    """The present plan, numbered from a lease, and the leases that it leaves free.

    Attributes:
        key: What the numbers depend on besides the jobs.
        claims: The claims of the guaranteed jobs that need leases, in the order of the plan.
        plan: Their leases, without those that they do not need.
        cut: Jobs that have more leases than they need.
        moving: Jobs that run without a lease, so that their claims change with time.
    """

    def __init__(
        self, key: tuple[Any, ...], room: Room, claims: Iterable[Claim], plan: LeasePlan
    ) -> None:
        """Start with the claims and leases of these jobs."""
        self.key = key
        self.claims = {claim.job_id: claim for claim in claims}
        self.plan = plan
        self.cut: dict[str, None] = {}
        self.moving: dict[str, None] = {}
        used = ((claim, plan[job_id]) for job_id, claim in self.claims.items())
        self._room, self._free = room, FreeLeases.beside(room, used)
        self._short = {  # jobs whose leases do not suffice
            job_id: None for job_id, claim in self.claims.items() if _is_short(claim, plan[job_id])
        }

    def joined_by(self, claim: Claim, plan: LeasePlan) -> StandingPlan:
        """Return a plan with the claims of this one and one more, all with other leases."""
        return StandingPlan(self.key, self._room, [*self.claims.values(), claim], plan)

    def put(self, claim: Claim, leases: tuple[int, ...]) -> None:
        """Add a job with its leases, or replace what was known of it. O(spans of leases)."""
        job_id, known = claim.job_id, self.claims.get(claim.job_id)
        if known == claim and self.plan[job_id] == leases:
            return
        if known is not None:
            self._free.give_back(known, self.plan[job_id])
        self._short.pop(job_id, None)
        if _is_short(claim, leases):
            self._short[job_id] = None
        self._free.use(claim, leases)
        self.claims[job_id], self.plan[job_id] = claim, leases

    def drop(self, job_id: str) -> None:
        """Remove a job, if it is known."""
        for jobs in (self.cut, self.moving, self._short):
            jobs.pop(job_id, None)
        claim = self.claims.pop(job_id, None)
        if claim is not None:
            self._free.give_back(claim, self.plan.pop(job_id))

    @property
    def holds(self) -> bool:
        """Whether every job has enough leases before its last step, and all fit. O(spans)."""
        return not self._short and not self._free.is_overfull

    @property
    def spare(self) -> int:
        """The GPUs that no lease uses; negative if a lease is overfull. O(spans)."""
        return self._free.least

    def find(self, claim: Claim) -> tuple[int, ...] | None:
        """Return the first free leases with which one more job meets its last step, or None.

        O(spans of leases).
        """
        return _numbers(self._free.find(claim, claim.last))

    def find_later(self, claim: Claim) -> tuple[int, ...] | None:
        """Return the first free leases for one more job, however late; None if it is too wide."""
        last = max((leases[-1] for leases in self.plan.values() if leases), default=-1)
        return _numbers(self._free.find(claim, last + 1 + claim.leases))

    def is_hopeless(self, claim: Claim) -> bool:
        """Return whether a job could not be promised anything even if it were alone."""
        too_wide = any(need > have for need, have in zip(claim.uses, self._room, strict=True))
        return too_wide or claim.leases > claim.last


def _is_short(claim: Claim, leases: Sequence[int]) -> bool:
    return len(leases) != claim.leases or not leases or leases[-1] >= claim.last


def _numbers(found: Iterable[Sequence[int]] | None) -> tuple[int, ...] | None:
    return None if found is None else tuple(chain.from_iterable(found))
