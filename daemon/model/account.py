"""Accounts of what each pool gained and lost by sharing, as plain values.

Times are seconds since the epoch; loans are counted in GPU-seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from sia.decisions import SolveProgram
from sia.virtual.virtual_clock import VirtualClock

DEFECTS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError,
)  # fmt: skip
"""Exceptions that code with a defect raises. They depend on the inputs alone, so that an account
that is restarted after one is restarted in every recovery, too."""


class Verdict(Struct, frozen=True, gc=False, omit_defaults=True):
    """When a job ran, and when it would have run if its pool did not share."""

    job: str
    pool: str
    gpus: int
    submitted: float
    """When the job was queued, for the last time if it was held or requeued."""
    started: float | None
    """When its GPUs were allocated. None for a job that was cancelled while pending although it
    would have run without sharing."""
    ended: float
    alone: float | None
    """When its GPUs would have been allocated without sharing; None for never, as its pool was
    too small."""
    forgotten: bool = False
    """Whether `alone` is unknown for good, because too many earlier jobs were pending there."""
    paused: float = 0.0
    """Seconds for which it did not run because it was stopped, or ran again for work that stops
    cost it. Without sharing there are none."""


class Lent(Struct, frozen=True, gc=False):
    """A closed loan: GPUs of one pool that a job of another pool used, from `start` to `end`."""

    job: str
    lender: str
    borrower: str
    gpus: int
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """Size of the loan in GPU-seconds."""
        return self.gpus * (self.end - self.start)


class Loan(NamedTuple):
    """An open loan that has not changed since `since`."""

    borrower: str
    gpus: int
    since: float


class Booked(NamedTuple):
    """The verdicts and loans that one step books, in order."""

    verdicts: Sequence[Verdict] = ()
    lent: Sequence[Lent] = ()


class Account(Struct, forbid_unknown_fields=True):
    """A pool's account, with the virtual clock that simulates the pool without sharing.

    `lent` and `borrowed` count open loans up to their last change; `Book.lent` has the rest.
    """

    since: float
    """When the account was opened. Nothing is known about the time before."""
    clock: VirtualClock
    lent: float = 0.0
    borrowed: float = 0.0
    jobs: int = 0
    """Jobs with a verdict."""
    slowed: int = 0
    """Jobs of these that started later than without sharing, by more than `sia.limits.SLOWED`."""
    never: int = 0
    """Jobs of these that would never have run without sharing."""
    gained: float = 0.0
    """Sum of the seconds by which jobs started sooner than without sharing."""
    lost: float = 0.0
    """Sum of the seconds by which jobs started later than without sharing."""
    took: float = 0.0
    """Sum of the seconds from submission to end, of jobs that would have run without sharing,
    too."""
    took_alone: float = 0.0
    """The same sum without sharing."""
    forgotten: int = 0
    """Verdicts with `forgotten`; `jobs` does not count these."""
    renewed: int = 0
    """How often the virtual clock was restarted after a defect. Jobs from before have no
    verdict."""
    broken: str = ""
    """The defect, from its discovery until the restart. Verdicts of the clock are ignored until
    then."""

    @property
    def weight(self) -> int:
        """Approximate number of values in a snapshot: its own fields, and the clock's jobs."""
        return 27 + len(self.clock.twins) + len(self.clock.coming) + len(self.clock.queue)


class Turns(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The turns of a pool's jobs, and what they did as guests, since the beginning.

    A policy that knows no turns has guests only: its spare jobs.
    """

    turns: int = 0
    """Jobs that had their turn: they got GPUs for it, or ran already as guests."""
    late: int = 0
    """Jobs of these that got their GPUs later, by more than `LATE_TURN`."""
    latest: float = 0.0
    """The most seconds by which one of these was late."""
    guests: int = 0
    """Starts of guests."""
    stops: int = 0
    """Stops of guests for others."""
    ran: float = 0.0
    """GPU-seconds that the stopped attempts had held spare GPUs."""
    lost: float = 0.0
    """GPU-seconds of work that the stops cost, including what the jobs pay when they go on."""
    left: float = 0.0
    """Sum of the seconds that the jobs would have run on, by the estimates of their run times.

    Jobs without an estimate do not count.
    """


class ShadowLoan(NamedTuple):
    """A loan that the shadow core made."""

    core_id: str
    lender: str
    gpus: int
    to: str
    at: float


class ShadowJob(Struct, omit_defaults=True):
    """A job that has started in the real or the shadow core. Times are seconds since the epoch."""

    pool: str
    began: float | None = None
    """When it started in the shadow core."""
    over: float | None = None
    """When it ended in the shadow core."""
    real: float | None = None
    """When it started in the real core."""
    ran: float | None = None
    """Its real run time in seconds, once it is known."""
    loans: dict[str, int] = {}
    """GPUs that it borrows in the shadow core, by lender."""
    since: float = 0.0
    spent: dict[str, float] = {}
    """GPU-seconds borrowed until `since`, by lender."""


class ShadowState(Struct, omit_defaults=True):
    """The result of shadow lending so far."""

    since: float
    until: float | None = None
    """When shadow mode ended; None while it lasts."""
    jobs: int = 0
    """Starts of jobs that borrowed in the shadow core."""
    lent: dict[str, dict[str, float]] = {}
    """GPU-seconds by lender and borrower, of jobs that have really ended."""
    sooner: int = 0
    """Jobs that started sooner in the shadow core than they really did, by more than `SLOWED`."""
    later: int = 0
    gained: float = 0.0
    """Sum of the seconds by which jobs started sooner; `lost` counts those that started later."""
    lost: float = 0.0
    unknown: int = 0
    """Jobs that borrowed in the shadow core and never really ran, so that their run time is
    unknown."""
    renewed: int = 0
    """How often the shadow core was restarted from the real core, because an event did not fit
    its state."""
    twins: dict[str, ShadowJob] = {}
    """Jobs by their ids in the core."""
    told: list[ShadowLoan] = []
    """Loans that no notice has reported yet."""
    left: int = 0
    """Starts whose GPU-hours were unknown when shadow mode ended; they stay unknown."""
    solving: SolveProgram | None = None
    """The shadow core's open request to a solver."""

    @property
    def pending(self) -> int:
        """Starts whose GPU-hours are not known yet. O(jobs)."""
        return self.left + sum(bool(twin.loans or twin.spent) for twin in self.twins.values())
