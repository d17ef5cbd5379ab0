"""HTTP bodies of the estimate endpoints. Times are seconds since the epoch (daemon's clock)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from daemon.model.job import JobPhase
from daemon.wire.explain import TurnView


class Moment(Struct, omit_defaults=True):
    """Estimated time of an event; null if it is not known to be within a week."""

    p50: Annotated[float | None, Meta(description="Median.")]
    p90: Annotated[float | None, Meta(description="90th percentile.")]
    mean: Annotated[float | None, Meta(description="Mean, without correction.")] = None


class EstimateView(Struct, omit_defaults=True):
    """Estimated start and end of a job, made at one time."""

    made: float
    by: Annotated[
        Literal["playout", "queue"],
        Meta(
            description="playout: simulated from the current state; queue: derived from "
            "simulated jobs of the same queue."
        ),
    ]
    end: Moment
    similar: Annotated[
        int,
        Meta(
            description="Number of ended jobs of the same pool, user and name, and of similar "
            "width, from which the run time was estimated."
        ),
    ]
    in_pool: Annotated[
        int,
        Meta(description="Number of ended jobs of the pool from which the run time was estimated."),
    ]
    little: Annotated[
        str, Meta(description="A note if few jobs of the pool have ended; else empty.")
    ]
    start: Annotated[
        Moment | None, Meta(description="Estimated start; null if the job is not pending.")
    ] = None
    stated: Annotated[
        bool, Meta(description="Whether the estimate uses the run time that the job states.")
    ] = False


class Eta(Struct, omit_defaults=True):
    """Start and end of a job: actual times, an estimate, or the reason why there is none."""

    id: str
    pool: str
    phase: JobPhase
    now: float
    started: float | None = None
    ended: float | None = None
    estimate: EstimateView | None = None
    why: Annotated[str, Meta(description="Why there is no estimate.")] = ""
    given: Annotated[
        list[EstimateView],
        Meta(description="Earlier estimates: at submission, and each time the wait doubled."),
    ] = []
    played: Annotated[
        float | None,
        Meta(description="Time of the simulation that the estimate is from."),
    ] = None
    notes: Annotated[
        list[str], Meta(description="Notes on that simulation, such as a missing solver.")
    ] = []
    turn: Annotated[
        TurnView | None,
        Meta(description="Absent if the job has ended, or the policy has no turns."),
    ] = None


class EstimateRow(Struct, omit_defaults=True):
    """Accuracy of the estimates of one pool and range of horizons."""

    pool: str
    what: Literal["start", "end"]
    horizon: Annotated[
        float | None, Meta(description="Upper bound of seconds to the median; null: unbounded.")
    ]
    count: Annotated[int, Meta(description="Number of estimates whose event has happened.")]
    p50_covered: Annotated[
        float | None, Meta(description="Share of events that came no later than the stated p50.")
    ]
    p90_covered: Annotated[
        float | None, Meta(description="Share of events that came no later than the stated p90.")
    ]
    error: Annotated[
        float | None,
        Meta(description="Median distance of the event from the stated p50, in seconds."),
    ]
    width: Annotated[float | None, Meta(description="Median of p90 - p50, in seconds.")]
    pred_err: Annotated[
        float | None,
        Meta(description="Median of |JCT true - JCT predicted| / JCT predicted (PCS)."),
    ]
    pred_err_p90: Annotated[float | None, Meta(description="90th percentile of the same error.")]
    p50_moved: Annotated[float, Meta(description="Current correction factor of p50.")]
    p90_moved: Annotated[float, Meta(description="Current correction factor of p90.")]
    p50_judged: Annotated[
        int,
        Meta(
            description="Number of estimates that are known to be right or wrong about p50: the "
            "event has happened, or the stated p50 is in the past."
        ),
    ] = 0
    p90_judged: Annotated[int, Meta(description="The same number for the stated p90.")] = 0
    apart: Annotated[
        bool,
        Meta(
            description="Whether the options of the policy changed between the estimates and "
            "their events. Such estimates do not influence corrections."
        ),
    ] = False


class EstimateAccuracy(Struct):
    """Accuracy of the estimates by pool and horizon."""

    ready: Annotated[bool, Meta(description="Whether the daemon has read its history.")]
    played: Annotated[float | None, Meta(description="Time of the last simulation.")]
    rows: list[EstimateRow]
