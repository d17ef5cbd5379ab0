"""HTTP bodies of the account endpoints: sums, loans, verdicts and monthly statements."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from daemon.wire.plan import PoolTurns

LateWaiting = Annotated[
    int, Meta(description="Pending jobs that would run by now in the baseline; in no sum yet.")
]
LateRunning = Annotated[
    int, Meta(description="Running jobs that started later than in the baseline; in no sum yet.")
]


class AccountView(Struct):
    """What a pool gained and lost by sharing since its account was opened."""

    pool: str
    since: Annotated[float, Meta(description="When the account was opened.")]
    until: Annotated[float, Meta(description="End of the period that the sums cover.")]
    jobs: Annotated[int, Meta(description="Jobs whose start in the baseline is known.")]
    unknown: Annotated[
        int,
        Meta(description="Jobs that have ended and whose start in the baseline is not known yet."),
    ]
    slowed: Annotated[int, Meta(description="Jobs that started later than in the baseline.")]
    slowed_pct: float | None
    never: Annotated[int, Meta(description="Jobs that would never have started in the baseline.")]
    sooner_hours: Annotated[float, Meta(description="Sum of the hours that jobs started earlier.")]
    later_hours: Annotated[float, Meta(description="Sum of the hours that jobs started later.")]
    speed_up: Annotated[
        float | None,
        Meta(description="Sum of job completion times: baseline / actual."),
    ]
    lent_gpu_hours: Annotated[float, Meta(description="Includes open loans.")]
    borrowed_gpu_hours: float
    forgotten: Annotated[
        int, Meta(description="Ended jobs dropped before their baseline start was known (limit).")
    ] = 0
    renewed: Annotated[
        int,
        Meta(description="Restarts after a defect. Jobs that existed then are not counted."),
    ] = 0
    late_waiting: LateWaiting = 0
    late_running: LateRunning = 0
    turns: Annotated[PoolTurns | None, Meta(description="Null before the first.")] = None


class LoanRow(Struct, omit_defaults=True):
    """GPUs of one pool that a job of another pool used. An open loan has no `end`."""

    lender: str
    borrower: str
    gpus: int
    start: float
    gpu_hours: float
    end: float | None = None
    job: Annotated[str, Meta(description="Empty if the caller may not see the job.")] = ""
    number: Annotated[int, Meta(description="Row number; 0 for an open loan.")] = 0


class Ledger(Struct):
    """A page of a pool's loans as lender and borrower, newest first."""

    loans: list[LoanRow]
    open: Annotated[list[LoanRow], Meta(description="Open loans, counted up to now.")]
    next: Annotated[int | None, Meta(description="Value of `before` for the next page, if any.")]


class VerdictRow(Struct, omit_defaults=True):
    """When a job started, and when it would have started in the baseline."""

    number: int
    job: str
    gpus: int
    submitted: float
    ended: float
    started: Annotated[
        float | None,
        Meta(description="Start; null: cancelled while pending, after its start in the baseline."),
    ] = None
    alone: Annotated[float | None, Meta(description="Start in the baseline; null: never.")] = None
    later: Annotated[
        float | None, Meta(description="Seconds later than in the baseline; negative: earlier.")
    ] = None
    forgotten: Annotated[
        bool, Meta(description="The baseline start was never determined (limit of ended jobs).")
    ] = False


class Verdicts(Struct):
    """A page of a pool's verdicts, newest first."""

    verdicts: list[VerdictRow]
    next: Annotated[int | None, Meta(description="Value of `before` for the next page, if any.")]


class Totals(Struct):
    """Sums over all rows of a statement."""

    jobs: int
    slowed: int
    slowed_pct: float | None
    never: int
    withdrawn: Annotated[
        int, Meta(description="Cancelled pending jobs that the baseline had started.")
    ]
    sooner_hours: float
    later_hours: float
    speed_up: float | None
    lent_gpu_hours: float
    borrowed_gpu_hours: float
    forgotten: Annotated[
        int, Meta(description="Verdicts without a baseline start; not in `jobs`.")
    ] = 0


class Statement(Struct):
    """A pool's loans and verdicts of one month (UTC), or of another range of time."""

    pool: str
    month: Annotated[str, Meta(description="Empty: a statement from `start` until before `end`.")]
    start: float
    end: float
    made: Annotated[float, Meta(description="Creation time. The current month may still grow.")]
    since: Annotated[float, Meta(description="When the account was opened.")]
    totals: Totals
    lenders: Annotated[dict[str, float], Meta(description="GPU-hours borrowed, by lender.")]
    borrowers: Annotated[dict[str, float], Meta(description="GPU-hours lent, by borrower.")]
    loans: list[LoanRow]
    verdicts: list[VerdictRow]
    open: Annotated[list[LoanRow], Meta(description="Open loans, not in the sums yet.")]
    unknown: Annotated[
        list[str], Meta(description="Ended jobs whose start in the baseline is not known yet.")
    ]
    left_out: Annotated[
        dict[str, int], Meta(description="Number of rows in the sums that are not listed, by kind.")
    ]
    notes: Annotated[list[str], Meta(description="How the sums are calculated.")]
    late_waiting: LateWaiting = 0
    late_running: LateRunning = 0
