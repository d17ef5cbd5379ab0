"""What goes over HTTP of estimates. Times are the daemon's, in seconds since the epoch."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.model.job import JobPhase


class Moment(Struct, omit_defaults=True):
    """When something is thought to happen; null is not within a week."""

    p50: Annotated[float | None, Meta(description="As likely before as after.")]
    p90: Annotated[float | None, Meta(description="Nine times in ten before.")]
    mean: Annotated[float | None, Meta(description="On average, uncorrected.")] = None


class EstimateView(Struct, omit_defaults=True):
    """When a job starts and ends, as it was said at a time."""

    made: float
    by: Annotated[
        Literal["playout", "queue"],
        Meta(description="The present played forward; or, of a job that came after, its queue."),
    ]
    end: Moment
    start: Annotated[Moment | None, Meta(description="Of a job that waited.")] = None


class Eta(Struct, omit_defaults=True):
    """When a job starts and ends: what happened already, what is thought, or why not."""

    id: str
    pool: str
    phase: JobPhase
    now: float
    started: float | None = None
    ended: float | None = None
    estimate: EstimateView | None = None
    why: Annotated[str, Meta(description="Why nothing is known, where there is no estimate.")] = ""
    given: Annotated[
        list[EstimateView],
        Meta(description="What was said before: at submission, and as its wait doubled."),
    ] = []
    played: Annotated[
        float | None,
        Meta(description="When the present was played forward of which the estimate is."),
    ] = None


class EstimateRow(Struct, omit_defaults=True):
    """How estimates did, of one pool and how far away things were thought to be."""

    pool: str
    what: Literal["start", "end"]
    horizon: Annotated[
        float | None, Meta(description="Seconds to the median, at most; null is beyond them all.")
    ]
    count: Annotated[int, Meta(description="Of which it has come what was estimated.")]
    p50_covered: Annotated[float | None, Meta(description="Share that came by the p50 stated.")]
    p90_covered: Annotated[float | None, Meta(description="Share that came by the p90 stated.")]
    error: Annotated[float | None, Meta(description="Median of seconds from the p50 stated.")]
    width: Annotated[float | None, Meta(description="Median of seconds from p50 to p90.")]
    pred_err: Annotated[
        float | None,
        Meta(description="Median of |JCT true - JCT predicted| / JCT predicted (PCS)."),
    ]
    pred_err_p90: Annotated[float | None, Meta(description="The 90th of 100 of the same.")]
    p50_moved: Annotated[float, Meta(description="The factor that p50 is corrected by now.")]
    p90_moved: Annotated[float, Meta(description="The factor that p90 is corrected by now.")]
    p50_judged: Annotated[
        int,
        Meta(
            description="Of which it is known whether they came by the p50 stated: those that came,"
            " and those that have not and should have."
        ),
    ] = 0
    p90_judged: Annotated[int, Meta(description="The same of the p90 stated.")] = 0


class EstimateAccuracy(Struct):
    """How true estimates were."""

    ready: Annotated[bool, Meta(description="Whether the daemon has gone through its history.")]
    played: Annotated[float | None, Meta(description="When the present was last played forward.")]
    rows: list[EstimateRow]
