"""What sharing was to each pool, beside what it would have been alone: plain values.

Times are seconds since the epoch, loans GPU-seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from sia.virtual.virtual_clock import VirtualClock

DEFECTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError,
)  # fmt: skip
"""What code raises that is wrong about its data: the same for the same inputs, so that who begins
anew after one does so in each replay."""


class Verdict(Struct, frozen=True, gc=False, omit_defaults=True):
    """When a job ran, and when it would have in its pool alone."""

    job: str
    pool: str
    gpus: int
    submitted: float
    """When it joined the queue: again, after it was held or queued again."""
    started: float | None
    """When it was given its GPUs; None of one that was withdrawn while alone it would have run."""
    ended: float
    alone: float | None
    """When it would have been given them alone; None for never, as its pool was too small."""
    forgotten: bool = False
    """Nothing is known of that, and never will be: too many were before it."""


class Lent(Struct, frozen=True, gc=False):
    """GPUs of one pool that a job of another one used, from a time to a time."""

    job: str
    lender: str
    borrower: str
    gpus: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """GPU-seconds."""
        return self.gpus * (self.end - self.start)


class Loan(NamedTuple):
    """GPUs that a pool lends a job of another pool, unchanged since then."""

    borrower: str
    gpus: int
    since: float


class Booked(NamedTuple):
    """What one step wrote into the accounts, in order."""

    verdicts: Sequence[Verdict] = ()
    lent: Sequence[Lent] = ()


class Account(Struct, forbid_unknown_fields=True):
    """A pool's account, and the clock of how it would be alone.

    Loans under way count up to their last change: see `Book.lent` for the rest.
    """

    since: float
    """When it was opened; nothing is known of what was before."""
    clock: VirtualClock
    lent: float = 0.0
    borrowed: float = 0.0
    jobs: int = 0
    """Verdicts."""
    slowed: int = 0
    """Of these, jobs later than alone by more than `sia.limits.SLOWED`."""
    never: int = 0
    """Of these, jobs that alone would never have run."""
    gained: float = 0.0
    """Seconds by which jobs started sooner than alone, summed."""
    lost: float = 0.0
    """Seconds by which jobs started later, likewise."""
    took: float = 0.0
    """Seconds from submission to end of jobs that ran and would have alone, summed."""
    took_alone: float = 0.0
    """What these would have taken alone."""
    forgotten: int = 0
    """Verdicts that say nothing, beside `jobs`."""
    renewed: int = 0
    """Times that its clock was begun anew, after a defect: nothing is said of jobs of before."""
    broken: str = ""
    """The defect, while that has not been done yet; nothing is taken of its clock then."""

    @property
    def weight(self) -> int:
        """How many entries it is in a snapshot: it has fields of its own, and jobs."""
        return 27 + len(self.clock.twins) + len(self.clock.coming) + len(self.clock.queue)


class ShadowLoan(NamedTuple):
    """A loan that would have been made."""

    core_id: str
    lender: str
    gpus: int
    to: str
    at: float


class ShadowJob(Struct, omit_defaults=True):
    """A job that has begun in one of the two. Times are seconds since the epoch."""

    pool: str
    began: float | None = None
    """In the second core."""
    over: float | None = None
    """There."""
    real: float | None = None
    """When it began in truth."""
    ran: float | None = None
    """How long, once that is known."""
    loans: dict[str, int] = {}
    """GPUs of other pools that it has there, by lender."""
    since: float = 0.0
    spent: dict[str, float] = {}
    """GPU-seconds of them until `since`."""


class ShadowState(Struct, omit_defaults=True):
    """What came of it so far."""

    since: float
    until: float | None = None
    """When it was ended, by a switch to on or off."""
    jobs: int = 0
    """Starts that would have borrowed."""
    lent: dict[str, dict[str, float]] = {}
    """GPU-seconds by lender and borrower, of jobs that are over in truth."""
    sooner: int = 0
    """Jobs that would have begun sooner than they did, by more than `SLOWED`."""
    later: int = 0
    gained: float = 0.0
    """Seconds sooner, together; `lost` are those later."""
    lost: float = 0.0
    unknown: int = 0
    """Jobs that would have borrowed and never ran: nobody knows for how long they would have."""
    renewed: int = 0
    """Times that it began anew from the real state, as a change did not fit the other one."""
    twins: dict[str, ShadowJob] = {}
    """By their ids in the core."""
    told: list[ShadowLoan] = []
    """What people have not heard of yet."""
    left: int = 0
    """Of the starts, those whose hours were not known when it was ended: they never will be."""

    @property
    def pending(self) -> int:
        """Starts whose hours are not known yet; once it was ended, never. O(jobs)."""
        return self.left + sum(bool(twin.loans or twin.spent) for twin in self.twins.values())
