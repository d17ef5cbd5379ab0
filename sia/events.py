"""Facts, in the past tense: all that the core is ever told. Times are seconds.

At one instant ends come before changes of pools, nodes and forecasts, those before arrivals, and
arrivals before new estimates, priorities and cancellations: `RANK`. All are JSON, so every number
is finite.
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
    """A pool's quota, limits or weight are from now on other ones; what runs goes on running."""

    time: float
    pool: str
    quota: int
    cells: Mapping[str, Mapping[str, int]] = {}
    """With cells: how many of each type it owns from now on, by chain; `quota` GPUs together with
    its pinned ones."""
    lend_limit: int | None = None
    """None, here and below, is as before; `limits.UNLIMITED` takes a limit away."""
    borrow_limit: int | None = None
    weight: float | None = None


class LendingSwitched(Struct, frozen=True, gc=False, tag=True):
    """No job that would borrow GPUs of other pools is started from now on; or it is again."""

    time: float
    on: bool


class GpusOut(Struct, frozen=True, gc=False, tag=True):
    """Where there are no cells: so many GPUs of a pool's sharing group are out, or again in.

    Its quotas are as before, so that its jobs have their turns. What is lent is given up by no one
    before its job ends: spare jobs leave as many GPUs idle as are out.
    """

    time: float
    pool: str
    """Any of the group."""
    gpus: int


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


class PriorityChanged(Struct, frozen=True, gc=False, tag=True):
    """A waiting job has from now on another priority; among those of it, its old place."""

    time: float
    job_id: str
    priority: int


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
    | LendingSwitched
    | GpusOut
    | NodeOut
    | NodeBack
    | ForecastUpdated
    | FutureRevealed
    | JobSubmitted
    | RunTimesUpdated
    | PriorityChanged
    | TimePassed
)

RANK: dict[type, int] = {
    JobFinished: 0,
    PoolChanged: 1,
    LendingSwitched: 2,
    GpusOut: 3,
    NodeOut: 4,
    NodeBack: 5,
    ForecastUpdated: 6,
    FutureRevealed: 7,
    JobSubmitted: 8,
    RunTimesUpdated: 9,
    PriorityChanged: 10,
    JobCancelled: 11,
    TimePassed: 12,
}
