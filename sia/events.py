"""Events: facts in the past tense, the only input of the core. Times are in seconds.

`RANK` orders the events of one instant: ends, stops and progress, then changes of the policy's
options, of pools, nodes and forecasts, then arrivals, then new estimates, priorities and
cancellations, then solved programs.
Events are stored as JSON, so every number is finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from msgspec import Struct

from sia.model import Estimate, FutureJob, Job, Load


class JobFinished(Struct, frozen=True, gc=False, tag=True):
    """A running job ended, successfully or not, and released its GPUs."""

    time: float
    job_id: str


class JobPreempted(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A job that the policy stopped has left its GPUs.

    `done` is the work that it keeps, in seconds at its own width. The core has counted its GPUs as
    idle since the decision; the driver starts no other job on them before this event.
    """

    time: float
    job_id: str
    done: float
    last: bool = False
    """Whether the job has reached the limit on stops and must not be stopped again. If it was
    started again before it had stopped, it can still be stopped once more."""
    lost: float = 0.0
    """Work done until the decision to stop that the job must repeat, in seconds. Negative if it did
    more work after the decision and keeps it. For accounts only."""


class JobProgressed(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A running job reported its progress, which replaces the work computed from the clock.

    A job also reports a change of its regime in this way.
    """

    time: float
    job_id: str
    done: float
    """Work done, in seconds at its own width."""
    speed: float
    """Seconds of work per second from now on, on its present number of GPUs."""
    run_time: float | None = None
    """A new estimate of its whole work in seconds; None leaves the estimate as it is."""
    regime: int | None = None
    """The regime that it is in, from 0; None if it does not say."""
    overhead: float = 0.0
    """Seconds from now on without work, because the job still needs to resume."""
    widths: tuple[int, int] | None = None
    """The smallest and the largest width from now on, in GPUs, for a job whose trials come and go.
    Its own width lies between them. None leaves both as they are."""


SolveStatus = Literal["optimal", "feasible", "infeasible", "limit", "failed"]
"""How a solve ended: with values if `optimal` or `feasible` (a limit stopped it), else without."""


class ProgramSolved(Struct, frozen=True, tag=True):
    """The answer to a `SolveProgram`, which the journal keeps like any other event."""

    time: float
    request: int
    status: SolveStatus
    values: Sequence[float] = ()
    """One value for each column of the program; empty if there is no solution."""
    bound: float | None = None
    """The best objective that is still possible, if the solver knows one."""


class JobCancelled(Struct, frozen=True, gc=False, tag=True):
    """A pending job was cancelled."""

    time: float
    job_id: str


class PoolChanged(Struct, frozen=True, gc=False, tag=True):
    """A pool's quota, limits or weight changed; running jobs continue."""

    time: float
    pool: str
    quota: int
    cells: Mapping[str, Mapping[str, int]] = {}
    """With cells: the number of cells of each type by chain; with the pinned cells they hold
    `quota` GPUs."""
    lend_limit: int | None = None
    """None, here and below, means unchanged; `limits.UNLIMITED` removes the limit."""
    borrow_limit: int | None = None
    weight: float | None = None


class LendingSwitched(Struct, frozen=True, gc=False, tag=True):
    """Lending was switched on or off; running guests continue."""

    time: float
    on: bool


class GpusOut(Struct, frozen=True, gc=False, tag=True):
    """Without cells: the number of GPUs of a sharing group that are out of service changed.

    Quotas stay the same, so dedicated starts keep their order. Guests keep their GPUs; new spare
    starts leave as many GPUs idle as are out.
    """

    time: float
    pool: str
    """Any pool of the group."""
    gpus: int


class NodeOut(Struct, frozen=True, gc=False, tag=True):
    """A node failed or was drained. Its jobs continue, and no new job is placed on it.

    `waiting` has the jobs that were started on the node but wait for other jobs to leave their
    GPUs. In a cluster whose nodes differ, their starts are taken back.
    """

    time: float
    node: str
    why: str
    waiting: tuple[str, ...] = ()


class NodeBack(Struct, frozen=True, gc=False, tag=True):
    """A node that was out is available again."""

    time: float
    node: str


class ForecastUpdated(Struct, frozen=True, tag=True):
    """These load forecasts changed; the others stay the same."""

    time: float
    loads: Sequence[Load]


class RunTimesUpdated(Struct, frozen=True, tag=True):
    """The run-time estimates of these pending jobs changed."""

    time: float
    estimates: Sequence[Estimate]


class PriorityChanged(Struct, frozen=True, gc=False, tag=True):
    """A pending job's priority changed; among jobs of that priority arrival decides."""

    time: float
    job_id: str
    priority: int


class FutureRevealed(Struct, frozen=True, tag=True):
    """All future jobs with their virtual start times, for SIA-VC only (§5.1)."""

    time: float
    jobs: Sequence[FutureJob]


class JobSubmitted(Struct, frozen=True, gc=False, tag=True, omit_defaults=True):
    """A job arrived. `run_time` is its run-time estimate in seconds."""

    time: float
    job: Job
    run_time: float
    done: float = 0.0
    """Work done before, in seconds at its own width, by a job that was stopped, left the queue and
    was submitted again."""


class PolicyTuned(Struct, frozen=True, tag=True):
    """The options of the policy have changed; `params` has all options as plain JSON values.

    Only for a policy that is `tunable`. It decides by the new options from this instant on.
    """

    time: float
    params: Mapping[str, Any]


class TimePassed(Struct, frozen=True, gc=False, tag=True):
    """The time of a `WakeAt` has come."""

    time: float


Event = (
    JobFinished
    | JobPreempted
    | JobProgressed
    | ProgramSolved
    | JobCancelled
    | PolicyTuned
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
    JobPreempted: 1,
    JobProgressed: 2,
    PolicyTuned: 3,
    PoolChanged: 4,
    LendingSwitched: 5,
    GpusOut: 6,
    NodeOut: 7,
    NodeBack: 8,
    ForecastUpdated: 9,
    FutureRevealed: 10,
    JobSubmitted: 11,
    RunTimesUpdated: 12,
    PriorityChanged: 13,
    JobCancelled: 14,
    ProgramSolved: 15,
    TimePassed: 16,
}
