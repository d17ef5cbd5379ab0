"""What goes over HTTP of what-if questions: what is to be otherwise, and what would come of it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.model.names import Name
from daemon.wire.jobs import Id, JobRequest, PoolChange, Priority, TimeLimit
from sia.limits import MAX_QUOTA

WHATIF_CHANGES = 100
"""Changes of a kind in one question: more is another cluster than this one, for `sia replay`."""

WHATIF_JOBS = 1000
"""Jobs that one question submits, those of arrays counted: they are made on the daemon's loop."""

WHATIF_STARTS = 300
"""Starts that are played, if nothing is said: a tenth of a second of work with 20,000 jobs."""

WHATIF_MOST = 10_000
"""Starts that operators may ask for: five seconds of work with 20,000 jobs."""

MOST_STARTS = f"Starts to be played at most; more than {WHATIF_STARTS} are for operators."

WHATIF_HORIZON = 86400.0
"""Seconds that are played, if nothing is said: beyond a day what is not known yet decides."""

WHATIF_LONGEST = 30 * 86400.0
"""Seconds that may be asked for."""

Change = Meta(max_length=WHATIF_CHANGES)


class JobWhatIf(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A job, or with `cancel` and `priority` an array, as it might be.

    With other GPUs, pool or limit it is as if it were cancelled and submitted anew, at the end of
    its queue: only for a job that waits.
    """

    job: Id
    cancel: bool = False
    priority: Priority | None = None
    gpus: Annotated[int, Meta(ge=1, le=MAX_QUOTA)] | None = None
    pool: Name | None = None
    time_limit: TimeLimit | None = None


class PoolWhatIf(PoolChange, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A pool as it might be."""

    pool: Name


class WhatIf(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What is to be otherwise, all of it at once, and how far to look."""

    submit: Annotated[list[JobRequest], Change] = []
    jobs: Annotated[list[JobWhatIf], Change] = []
    pools: Annotated[list[PoolWhatIf], Change] = []
    drain: Annotated[list[Name], Change, Meta(description="Nodes.")] = []
    lending: bool | None = None
    horizon: Annotated[
        float, Meta(gt=0, le=WHATIF_LONGEST, description="Seconds to be played at most.")
    ] = WHATIF_HORIZON
    starts: Annotated[int, Meta(ge=1, le=WHATIF_MOST, description=MOST_STARTS)] = WHATIF_STARTS


class Span(Struct, omit_defaults=True):
    """From when until when a job would run; null where that is beyond what was played or known.

    With `by` it is estimated, as `eta` does: `start` and `end` are p50.
    """

    start: float | None
    end: float | None
    start_p90: Annotated[float | None, Meta(description="Nine times in ten before.")] = None
    end_p90: Annotated[float | None, Meta(description="Nine times in ten before.")] = None
    by: Annotated[
        Literal["playout", "queue"] | None,
        Meta(description="As of an estimate; null where it is played once, as run times are told."),
    ] = None
    within: Annotated[
        float | None, Meta(description="Seconds that were looked ahead: null is beyond them.")
    ] = None


class AskedJob(Struct, omit_defaults=True):
    """A job that the question is about."""

    job: str
    pool: str
    gpus: int
    now: Annotated[Span | None, Meta(description="As things are; null for a new job.")]
    then: Annotated[Span | None, Meta(description="As they might be; null if it is cancelled.")]
    held: Annotated[bool, Meta(description="It is held, and stays so here.")] = False


class Moved(Struct):
    """A job that would start at another time. Where one of both is null, `by` is the least."""

    job: str
    pool: str
    gpus: int
    now: float | None
    then: float | None
    by: Annotated[float, Meta(description="Seconds sooner, or later.")]


class PoolMoved(Struct):
    """What becomes of a pool's jobs, in seconds and in GPU-hours: width · by, summed."""

    pool: str
    earlier: int
    later: int
    earlier_seconds: float
    later_seconds: float
    earlier_gpu_hours: float
    later_gpu_hours: float


class WhatIfAnswer(Struct):
    """What would come of it.

    The jobs that are asked about are estimated; what becomes of all others is played once, were no
    more jobs to come and each to last as long as half of those like it.
    """

    time: float
    until: Annotated[float, Meta(description="Up to which time both futures were played.")]
    cut: Annotated[bool, Meta(description="Whether they would have gone on within the horizon.")]
    starts: Annotated[
        list[int], Meta(description="Played as things are, and as they might be, of pools seen.")
    ]
    jobs: Annotated[list[AskedJob], Meta(description="Those asked about, a thousand at most.")]
    earlier: Annotated[list[Moved], Meta(description="Those that gain most first.")]
    later: Annotated[list[Moved], Meta(description="Those that lose most first.")]
    pools: Annotated[list[PoolMoved], Meta(description="Of all jobs, also those not listed.")]
    notes: Annotated[list[str], Meta(description="What could not be known.")]
