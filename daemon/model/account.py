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
"""Exceptions that code with a defect raises. They depend on the inputs alone, so an account that
was restarted after one of them is also restarted in every recovery."""


class Verdict(Struct, frozen=True, gc=False, omit_defaults=True):
    """When a job ran, and when it would have run if its pool did not share."""

    job: str
    pool: str
    gpus: int
    submitted: float
    """When the job was queued, for the last time if it was held or requeued."""
    started: float | None
    """When its GPUs were allocated. None for a job that was cancelled while it was pending,
    although it would have started without sharing."""
    ended: float
    alone: float | None
    """When its GPUs would have been allocated without sharing; None for never, because its pool is
    too small."""
    forgotten: bool = False
    """Whether `alone` stays unknown, because too many earlier jobs were pending in the virtual
    clock."""
    paused: float = 0.0
    """Seconds that stops cost the job: pauses, and repeated work. Without sharing there are no
    stops."""


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

    `lent` and `borrowed` include open loans up to their last change; `Book.lent` has the time since
    then.
    """

    since: float
    """Time at which the account was opened. The account does not know about earlier times."""
    clock: VirtualClock
    lent: float = 0.0
    borrowed: float = 0.0
    jobs: int = 0
    """Number of jobs with a verdict."""
    slowed: int = 0
    """Number of these jobs that started more than `sia.limits.SLOWED` later than without
    sharing."""
    never: int = 0
    """Number of these jobs that would never have run without sharing."""
    gained: float = 0.0
    """Sum of the seconds by which jobs started earlier than without sharing."""
    lost: float = 0.0
    """Sum of the seconds by which jobs started later than without sharing."""
    took: float = 0.0
    """Sum of the seconds from submission to end, over jobs that would also have run without
    sharing."""
    took_alone: float = 0.0
    """The same sum without sharing."""
    forgotten: int = 0
    """Number of verdicts with `forgotten`, which `jobs` does not include."""
    renewed: int = 0
    """Number of restarts of the virtual clock after a defect. Earlier jobs have no verdict."""
    broken: str = ""
    """The defect, from its discovery until the restart. In this time the clock's verdicts are
    ignored."""

    @property
    def weight(self) -> int:
        """Approximate number of values in a snapshot: its own fields, and the clock's jobs."""
        return 27 + len(self.clock.twins) + len(self.clock.coming) + len(self.clock.queue)


class Turns(Struct, omit_defaults=True, forbid_unknown_fields=True):
    """The turns of a pool's jobs, and their runs as guests, since the first start of the daemon.

    Under a policy without turns, each spare job counts as a guest, and `turns` stays 0.
    """

    turns: int = 0
    """Number of jobs whose turn has come: they got GPUs for it, or already ran as guests."""
    late: int = 0
    """Number of these jobs that got their GPUs more than `LATE_TURN` after their turn."""
    latest: float = 0.0
    """Longest such delay in seconds."""
    guests: int = 0
    """Number of starts of guests."""
    stops: int = 0
    """Number of stops of guests for other jobs."""
    ran: float = 0.0
    """GPU-seconds for which the stopped attempts had held spare GPUs."""
    lost: float = 0.0
    """GPU-seconds of work lost by these stops, including the cost of resuming."""
    left: float = 0.0
    """Sum of the seconds for which the stopped attempts would have continued, by estimated run
    times. Jobs without an estimate do not count."""


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
    """Start in the shadow core."""
    over: float | None = None
    """End in the shadow core."""
    real: float | None = None
    """Start in the real core."""
    ran: float | None = None
    """The real run time in seconds, once it is known."""
    loans: dict[str, int] = {}
    """GPUs that the job borrows in the shadow core, by lender."""
    since: float = 0.0
    spent: dict[str, float] = {}
    """GPU-seconds borrowed until `since`, by lender."""
    changed: bool = False
    """Whether the shadow core has stopped or resized it."""
    assumed: float = 0.0
    """Run time by which the shadow core ended it, if it was `changed` and had not really ended."""


class ShadowState(Struct, omit_defaults=True):
    """The result of shadow lending so far."""

    since: float
    until: float | None = None
    """End of shadow mode; None while it lasts."""
    jobs: int = 0
    """Number of starts of jobs that borrowed in the shadow core."""
    lent: dict[str, dict[str, float]] = {}
    """GPU-seconds by lender and borrower, for jobs that have really ended."""
    sooner: int = 0
    """Number of jobs that started more than `SLOWED` earlier in the shadow core than in reality."""
    later: int = 0
    gained: float = 0.0
    """Sum of the seconds by which jobs started earlier; `lost` is the sum for jobs that started
    later."""
    lost: float = 0.0
    unknown: int = 0
    """Number of jobs that borrowed in the shadow core and never ran in reality, so that their run
    time is unknown."""
    renewed: int = 0
    """Number of restarts of the shadow core from the real core, because an event did not fit its
    state."""
    twins: dict[str, ShadowJob] = {}
    """Jobs by core id."""
    told: list[ShadowLoan] = []
    """Loans that no notice has reported yet."""
    left: int = 0
    """Number of starts whose GPU-hours were unknown at the end of shadow mode; they stay
    unknown."""
    solving: SolveProgram | None = None
    """The shadow core's open request to a solver."""

    @property
    def pending(self) -> int:
        """Starts whose GPU-hours are not known yet. O(jobs)."""
        return self.left + sum(bool(twin.loans or twin.spent) for twin in self.twins.values())
