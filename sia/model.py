"""What a job, a pool and a run's options are: plain values, all immutable."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from msgspec import Struct

from sia.limits import LAS_PROMOTE, LAS_THRESHOLDS, RECALL, TICK, WINDOWS

Nodes = tuple[tuple[str, tuple[int, ...]], ...]
"""GPU numbers on each node of a place; empty where there are no cells."""


class Stream(Enum):
    """Which of a pool's two virtual streams a job runs in (§5.3)."""

    DEDICATED = "dedicated"
    """In order, inside the pool's own quota."""
    SPARE = "spare"
    """On GPUs that their owners do not need for now."""


class Job(Struct, frozen=True, gc=False):
    """What is known of a job when it is submitted. How long it will run is not.

    `submit` is in seconds, `width` in GPUs that start and end together (a gang). Where its
    width may change while it runs, `min_width` and `max_width` say how far; 0 says nothing.
    """

    id: str
    pool: str
    submit: float
    width: int
    user: str = ""
    name: str = ""
    min_width: int = 0
    max_width: int = 0
    demand: tuple[tuple[int, float], ...] = ()
    """(GPUs, seconds): how long it runs on how many, ascending; empty is linear (PCS, §3)."""
    preemptible: float | None = None
    """Seconds of work lost whenever it is stopped and goes on; None where it must not be."""
    priority: int = 0
    """Jobs of a higher one stand before all of a lower one in a queue, whenever they came."""

    def speed(self, gpus: int) -> float:
        """How fast it runs on so many GPUs, of its speed on `width`.

        In proportion, or by its demand: linear between its points, flat outside of them.
        """
        if not self.demand:
            return gpus / self.width
        return _rate(self.demand, gpus) / _rate(self.demand, self.width)


def _rate(demand: tuple[tuple[int, float], ...], gpus: int) -> float:
    """Work a second: 1 / seconds, interpolated."""
    before = demand[0]
    if gpus <= before[0]:
        return 1.0 / before[1]
    for point in demand[1:]:
        if gpus <= point[0]:
            part = (gpus - before[0]) / (point[0] - before[0])
            return (1.0 - part) / before[1] + part / point[1]
        before = point
    return 1.0 / before[1]


class Pool(Struct, frozen=True):
    """GPUs that somebody owns.

    Pools lend only inside their `group`; `share` off keeps a pool to itself altogether. Limits
    hold back new loans, not dedicated jobs: where one of these needs GPUs that its pool has lent,
    and only pools at their limit have idle ones for the guest, the limit yields.
    """

    name: str
    quota: int
    group: str = ""
    share: bool = True
    lend_limit: int | None = None
    """GPUs that it lends to other pools at one time, at most; None is no limit."""
    borrow_limit: int | None = None
    """GPUs of other pools that its spare jobs use at one time, at most; None is no limit."""
    weight: float = 1.0
    """Factor on its quota where pools are visited by CurrentAllocation / Quota: more is earlier."""


class FutureJob(Struct, frozen=True, gc=False):
    """A job known before it arrives, and when its own pool alone would start it (§5.1)."""

    job: Job
    run_time: float
    virtual_start: float


class Load(NamedTuple):
    """TotalNewLoad of one pool and window: GPUs that arrive in (now, now + window] (§5.2)."""

    pool: str
    window: int
    gpus: int


class Estimate(NamedTuple):
    """How long a waiting job is thought to run, in seconds."""

    job_id: str
    run_time: float


class Options(Struct, frozen=True):
    """The operator's choices (§5.3). Windows are seconds, ascending."""

    windows: tuple[float, ...] = WINDOWS
    tick: float = TICK
    slack: float = 1.0
    """Factor on what SIA reserves for a pool; 1 is the paper's, more holds back more."""
    spare_priority: dict[str, int] = {}
    """Pools with a higher number are offered spare GPUs first; 0 where not named."""
    resume_cost: float = 0.0
    """Seconds that a job does no work when it goes on after a preemption or a change of width."""
    las_thresholds: tuple[float, ...] = LAS_THRESHOLDS
    """GPU-seconds after which a job leaves each but the last of LAS's queues, ascending."""
    las_promote: float = LAS_PROMOTE
    """A job that waits so many times as long as it has run goes back to LAS's first queue."""
    recall: float = RECALL
    """SIA counts on stopping a spare job for a window of which that costs no greater part."""
    no_lending: frozenset[tuple[str, float]] = frozenset()
    """Pairs of pool and window (seconds): for that window the pool reserves all of its unused
    quota; it goes on borrowing."""
