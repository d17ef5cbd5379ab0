"""What goes over HTTP of pools' accounts: sums, loans, verdicts, statements."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

LateWaiting = Annotated[
    int, Meta(description="Jobs that wait, and alone would run by now: in no sum yet.")
]
LateRunning = Annotated[
    int, Meta(description="Jobs that run, and began later than alone: in no sum before their end.")
]


class AccountView(Struct):
    """What sharing has been to a pool since its account was opened, beside what alone would be."""

    pool: str
    since: Annotated[float, Meta(description="When the account was opened.")]
    until: Annotated[float, Meta(description="Up to when all of this is counted.")]
    jobs: Annotated[int, Meta(description="Jobs of which is known when they would run alone.")]
    unknown: Annotated[
        int, Meta(description="Jobs that have ended, and of which it is not known yet.")
    ]
    slowed: Annotated[int, Meta(description="Of these jobs, those that ran later than alone.")]
    slowed_pct: float | None
    never: Annotated[int, Meta(description="Of these, jobs that alone would never have run.")]
    sooner_hours: Annotated[float, Meta(description="Hours that jobs started sooner, summed.")]
    later_hours: Annotated[float, Meta(description="Hours that jobs started later, summed.")]
    speed_up: Annotated[
        float | None,
        Meta(description="Time from submission to end, summed: alone / as it was."),
    ]
    lent_gpu_hours: Annotated[float, Meta(description="Loans under way included.")]
    borrowed_gpu_hours: float
    forgotten: Annotated[
        int, Meta(description="Jobs of which it will not be known: too many were before them.")
    ] = 0
    renewed: Annotated[
        int,
        Meta(
            description="Times that it began anew after a defect; of jobs of then nothing is known."
        ),
    ] = 0
    late_waiting: LateWaiting = 0
    late_running: LateRunning = 0


class LoanRow(Struct, omit_defaults=True):
    """GPUs of one pool that a job of another used. Without `end` it still does."""

    lender: str
    borrower: str
    gpus: int
    start: float
    gpu_hours: float
    end: float | None = None
    job: Annotated[str, Meta(description="Empty for whoever may not know of it.")] = ""
    number: Annotated[int, Meta(description="Of its row; 0 of one that is under way.")] = 0


class Ledger(Struct):
    """What a pool lent and borrowed, the latest booking first."""

    loans: list[LoanRow]
    open: Annotated[list[LoanRow], Meta(description="Under way, up to now.")]
    next: Annotated[int | None, Meta(description="`before` of the next page, if any.")]


class VerdictRow(Struct, omit_defaults=True):
    """When a job ran, and when it would have in its pool alone."""

    number: int
    job: str
    gpus: int
    submitted: float
    ended: float
    started: Annotated[
        float | None, Meta(description="Null: withdrawn while it waited, though alone it had run.")
    ] = None
    alone: Annotated[float | None, Meta(description="When it would have started; null: never.")] = (
        None
    )
    later: Annotated[
        float | None, Meta(description="Seconds that it started later than alone; sooner below 0.")
    ] = None
    forgotten: Annotated[
        bool, Meta(description="It will not be known: too many were before it alone.")
    ] = False


class Verdicts(Struct):
    """Verdicts of a pool, the latest booking first."""

    verdicts: list[VerdictRow]
    next: Annotated[int | None, Meta(description="`before` of the next page, if any.")]


class Totals(Struct):
    """Sums of a statement, over all of its rows."""

    jobs: int
    slowed: int
    slowed_pct: float | None
    never: int
    withdrawn: Annotated[int, Meta(description="Jobs withdrawn that alone would have run.")]
    sooner_hours: float
    later_hours: float
    speed_up: float | None
    lent_gpu_hours: float
    borrowed_gpu_hours: float
    forgotten: Annotated[int, Meta(description="Verdicts that say nothing, beside `jobs`.")] = 0


class Statement(Struct):
    """What was booked of a pool in a month (UTC)."""

    pool: str
    month: str
    start: float
    end: float
    made: Annotated[float, Meta(description="When this was made; a month that goes on may grow.")]
    since: Annotated[float, Meta(description="When the account was opened.")]
    totals: Totals
    lenders: Annotated[dict[str, float], Meta(description="GPU-hours borrowed, by lender.")]
    borrowers: Annotated[dict[str, float], Meta(description="GPU-hours lent, by borrower.")]
    loans: list[LoanRow]
    verdicts: list[VerdictRow]
    open: Annotated[list[LoanRow], Meta(description="Loans under way: not in the sums yet.")]
    unknown: Annotated[
        list[str], Meta(description="Jobs that have ended and of which nothing is known yet.")
    ]
    left_out: Annotated[
        dict[str, int], Meta(description="Rows in the sums that are not listed here, by kind.")
    ]
    notes: Annotated[list[str], Meta(description="How the sums are made.")]
    late_waiting: LateWaiting = 0
    late_running: LateRunning = 0
