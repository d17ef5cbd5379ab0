"""HTTP bodies of the what-if endpoint: hypothetical changes, and their effect on jobs."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.model.names import Name
from daemon.wire.jobs import Id, JobRequest, PoolChange, Priority, TimeLimit
from daemon.wire.plan import MAX_LABEL
from sia.limits import MAX_QUOTA

WHATIF_CHANGES = 100
"""Maximum changes of one kind in a request. Use `sia replay` for a wholly different cluster."""

WHATIF_JOBS = 1000
"""Maximum jobs that one request submits, including arrays: they are built on the event loop."""

WHATIF_STARTS = 300
"""Default number of simulated starts: 0.1 s of computation with 20,000 jobs."""

WHATIF_MOST = 10_000
"""Maximum simulated starts, for operators: 5 s of computation with 20,000 jobs."""

MOST_STARTS = f"Maximum simulated starts. More than {WHATIF_STARTS} require an operator."

WHATIF_HORIZON = 86400.0
"""Default horizon in seconds. Beyond a day, jobs not yet submitted dominate the result."""

WHATIF_LONGEST = 30 * 86400.0
"""Maximum horizon in seconds."""

Change = Meta(max_length=WHATIF_CHANGES)


class JobWhatIf(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Hypothetical change of a job, or with `cancel` and `priority` of an array.

    Other GPUs, another pool or another limit act as cancelling the job and submitting it again at
    the end of its queue. They apply only to pending jobs.
    """

    job: Id
    cancel: bool = False
    priority: Priority | None = None
    gpus: Annotated[int, Meta(ge=1, le=MAX_QUOTA)] | None = None
    pool: Name | None = None
    time_limit: TimeLimit | None = None


class PoolWhatIf(PoolChange, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Hypothetical change of a pool."""

    pool: Name


class WhatIf(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Hypothetical changes, applied together, and the limits of the simulation."""

    submit: Annotated[list[JobRequest], Change] = []
    jobs: Annotated[list[JobWhatIf], Change] = []
    pools: Annotated[list[PoolWhatIf], Change] = []
    drain: Annotated[list[Name], Change, Meta(description="Names of nodes.")] = []
    lending: bool | None = None
    policy: Annotated[
        str,
        Meta(max_length=MAX_LABEL, description="Label of the policy in force, with other options."),
    ] = ""
    horizon: Annotated[
        float, Meta(gt=0, le=WHATIF_LONGEST, description="Maximum simulated seconds.")
    ] = WHATIF_HORIZON
    starts: Annotated[int, Meta(ge=1, le=WHATIF_MOST, description=MOST_STARTS)] = WHATIF_STARTS


class Span(Struct, omit_defaults=True):
    """Start and end of a job; null if it lies beyond the simulation or is unknown.

    With `by` set, `start` and `end` are the medians of an estimate as `eta` gives.
    """

    start: float | None
    end: float | None
    start_p90: Annotated[float | None, Meta(description="90th percentile.")] = None
    end_p90: Annotated[float | None, Meta(description="90th percentile.")] = None
    by: Annotated[
        Literal["playout", "queue"] | None,
        Meta(description="How it was estimated; null: by one simulation with expected run times."),
    ] = None
    within: Annotated[
        float | None, Meta(description="Simulated seconds: a null start or end lies beyond them.")
    ] = None
    similar: Annotated[
        int | None, Meta(description="Ended jobs like it that the estimate rests on.")
    ] = None
    in_pool: Annotated[int | None, Meta(description="Ended jobs of its pool.")] = None
    little: Annotated[
        str, Meta(description="How little is known, in words; empty if enough is.")
    ] = ""


class AskedJob(Struct, omit_defaults=True):
    """A job that the request names or submits, without and with the changes."""

    job: str
    pool: str
    gpus: int
    now: Annotated[Span | None, Meta(description="Without the changes; null for a new job.")]
    then: Annotated[Span | None, Meta(description="With the changes; null if it is cancelled.")]
    held: Annotated[bool, Meta(description="The job is held and is not simulated.")] = False


class Moved(Struct):
    """A job whose start or end would move. If `now` or `then` is null, `by` is a lower bound."""

    job: str
    pool: str
    gpus: int
    now: float | None
    then: float | None
    by: Annotated[float, Meta(description="Seconds earlier or later.")]


class PoolMoved(Struct):
    """Effect on a pool's jobs in seconds and in GPU-hours (sum of width · by)."""

    pool: str
    earlier: int
    later: int
    earlier_seconds: float
    later_seconds: float
    earlier_gpu_hours: float
    later_gpu_hours: float


class PoolGuests(Struct):
    """Guests of a pool, without and with the changes, under a policy that stops jobs."""

    pool: str
    guests: Annotated[list[int], Meta(description="Starts of its jobs before their turns.")]
    stops: Annotated[list[int], Meta(description="Stops of its jobs.")]


class WhatIfAnswer(Struct):
    """Effect of the changes.

    Jobs that the request names are estimated. All other jobs are simulated once, without new
    arrivals and with the median run time of similar jobs.
    """

    time: float
    until: Annotated[float, Meta(description="End of both simulations.")]
    cut: Annotated[bool, Meta(description="Whether the limit of starts ended them early.")]
    starts: Annotated[
        list[int],
        Meta(description="Simulated starts in visible pools, without and with the changes."),
    ]
    compared: Annotated[
        Literal["start", "end"],
        Meta(
            description="What `earlier`, `later` and `pools` are about: ends under a policy that "
            "changes the widths of running jobs, else starts."
        ),
    ]
    jobs: Annotated[list[AskedJob], Meta(description="Jobs that the request names, at most 1000.")]
    earlier: Annotated[list[Moved], Meta(description="Largest gain first.")]
    later: Annotated[list[Moved], Meta(description="Largest loss first.")]
    pools: Annotated[list[PoolMoved], Meta(description="Sums over all jobs, listed or not.")]
    guests: Annotated[
        list[PoolGuests], Meta(description="Pools with guests or stops in one of the simulations.")
    ]
    notes: Annotated[list[str], Meta(description="Limits of this answer.")]
