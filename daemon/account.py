"""What sharing was to each pool, beside what it would have been alone: plain values.

Times are seconds since the epoch, loans GPU-seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from sia.alone import VirtualClock

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
