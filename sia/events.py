"""Facts, in the past tense: all that the core is ever told. Times are seconds.

At one instant ends come before changes of pools, nodes and forecasts, those before arrivals, and
arrivals before new estimates and cancellations: `RANK`. All are JSON, so every number is finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from sia.model import Estimate, FutureJob, Job, Load


class JobFinished(Struct, frozen=True, gc=False, tag=True):
    """A running job ended, whether well or badly, and gave its GPUs back."""

    time: float
    job_id: str


class JobCancelled(Struct, frozen=True, gc=False, tag=True):
    """A waiting job was withdrawn."""

    time: float
    job_id: str


class PoolChanged(Struct, frozen=True, gc=False, tag=True):
    """A pool's quota is from now on another one; what runs goes on running."""

    time: float
    pool: str
    quota: int
    cells: Mapping[str, Mapping[str, int]] = {}
    """With cells: how many of each type it owns from now on, by chain; `quota` GPUs together with
    its pinned ones."""


class NodeOut(Struct, frozen=True, gc=False, tag=True):
    """A node is bad, or drained: what runs on it goes on, nothing more is placed there."""

    time: float
    node: str
    why: str


class NodeBack(Struct, frozen=True, gc=False, tag=True):
    """A node that was out is well again."""

    time: float
    node: str


class ForecastUpdated(Struct, frozen=True, tag=True):
    """These forecasts are from now on other ones; those not named stay as they were."""

    time: float
    loads: Sequence[Load]


class RunTimesUpdated(Struct, frozen=True, tag=True):
    """These waiting jobs are from now on thought to run for another time."""

    time: float
    estimates: Sequence[Estimate]


class FutureRevealed(Struct, frozen=True, tag=True):
    """All jobs to come, with their virtual start times: for SIA-VC only (§5.1)."""

    time: float
    jobs: Sequence[FutureJob]


class JobSubmitted(Struct, frozen=True, gc=False, tag=True):
    """A job arrived. `run_time` is how long it is thought to run, in seconds."""

    time: float
    job: Job
    run_time: float


class TimePassed(Struct, frozen=True, gc=False, tag=True):
    """The instant that a `WakeAt` asked for has come."""

    time: float


Event = (
    JobFinished
    | JobCancelled
    | PoolChanged
    | NodeOut
    | NodeBack
    | ForecastUpdated
    | FutureRevealed
    | JobSubmitted
    | RunTimesUpdated
    | TimePassed
)

RANK: dict[type, int] = {
    JobFinished: 0,
    PoolChanged: 1,
    NodeOut: 2,
    NodeBack: 3,
    ForecastUpdated: 4,
    FutureRevealed: 5,
    JobSubmitted: 6,
    RunTimesUpdated: 7,
    JobCancelled: 8,
    TimePassed: 9,
}
