"""Read-only views of the cluster's state, for policies.

The objects are those of `sia.state`; these protocols leave out every setter and every method that
writes, so that a type checker refuses a policy that writes state.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

from sia.model import Job, Options, Stream
from sia.state.nodes import NodeTable
from sia.state.places import Places


class JobStateView(Protocol):
    """A pending (`stream` is None) or running job; see `sia.state.state.JobState`."""

    @property
    def job(self) -> Job:
        """The job as submitted, with its present priority."""

    @property
    def pool(self) -> PoolStateView:
        """Its pool."""

    @property
    def width(self) -> int:
        """GPUs that it runs on; its own width while pending."""

    @property
    def gpus(self) -> int:
        """Its own width, rounded up to cells if there are cells."""

    @property
    def run_time(self) -> float:
        """The estimate of its run time, in seconds at its own width."""

    @property
    def sequence(self) -> int:
        """Its place in the order of priority and arrival; the lowest comes first."""

    @property
    def arrival(self) -> int:
        """Its number in the order of arrival, from 1; no other job ever has it."""

    @property
    def stream(self) -> Stream | None:
        """The stream in which it was started, None while it is pending."""

    @property
    def start(self) -> float:
        """When its current or latest segment began, in seconds."""

    @property
    def since(self) -> float:
        """When its work was last known, in seconds; `start` if it has not reported since."""

    @property
    def loans(self) -> Mapping[Any, int]:
        """GPUs by lender, if it runs on spare GPUs."""

    @property
    def attempt(self) -> int:
        """The number of its segments so far: each start has a number of its own."""

    @property
    def runs(self) -> int:
        """The number of its segments so far, without starts that were taken back."""

    @property
    def done(self) -> float:
        """The work of earlier segments, or of its latest report, in seconds at its own width."""

    @property
    def overhead(self) -> float:
        """Seconds at the start of this segment without work."""

    @property
    def speed(self) -> float:
        """Seconds of work per second."""

    @property
    def pace(self) -> float:
        """Its reported speed, divided by the speed that its width should give; kept over stops."""

    @property
    def regime(self) -> int | None:
        """The regime of its latest report, from 0; None if it has reported none."""

    @property
    def begun(self) -> tuple[float, ...]:
        """The work at which each regime but the first one began, as it reported. In seconds."""

    @property
    def slowdown(self) -> float:
        """The factor on its run time on the nodes on which it runs; 1 while pending."""

    @property
    def lease(self) -> float | None:
        """When its lease ends, in seconds; None if it has none."""

    @property
    def frees(self) -> int:
        """GPUs that become idle when it stops."""

    def pause(self, resume_cost: float) -> float:
        """Return the seconds without progress if the job started now."""

    def work(self, now: float) -> float:
        """Return the work done until `now`, in seconds at its own width."""

    def end(self, run_time: float) -> float:
        """Return when its segment ends, given its total work and no interruption."""


class PoolStateView(Protocol):
    """A pool, its queue and its loans; see `sia.state.state.PoolState`. All counts are GPUs."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def group(self) -> GroupStateView:
        """Its sharing group."""

    @property
    def quota(self) -> int:
        """The GPUs that it owns."""

    @property
    def dedicated(self) -> int:
        """GPUs of its running dedicated jobs."""

    @property
    def spare(self) -> int:
        """GPUs of its running spare jobs, on any pool's quota."""

    @property
    def lent(self) -> int:
        """GPUs of its quota that spare jobs use, its own spare jobs included."""

    @property
    def lends(self) -> int:
        """GPUs of its quota that other pools' jobs use."""

    @property
    def borrows(self) -> int:
        """GPUs of other pools' quotas that its jobs use."""

    @property
    def unused(self) -> int:
        """GPUs of its quota that no job uses."""

    @property
    def lendable(self) -> int:
        """GPUs that it may lend by its lend limit, if its group is limited, else 0."""

    @property
    def available(self) -> int:
        """GPUs that it may lend now."""

    @property
    def room(self) -> int:
        """The width of the widest spare job of this pool that idle GPUs and limits allow."""

    @property
    def idle(self) -> int:
        """Idle GPUs of its group."""

    @property
    def ratio(self) -> float:
        """CurrentAllocation / Quota (§5.3), weighted."""

    @property
    def weight(self) -> float:
        """Factor on the quota in `ratio`."""

    @property
    def borrow_limit(self) -> int:
        """The most GPUs that its spare jobs borrow."""

    @property
    def lend_limit(self) -> int:
        """The most GPUs that it lends."""

    @property
    def pending_width(self) -> int:
        """GPUs of all its pending jobs, rounded up to cells if there are cells."""

    @property
    def load(self) -> Sequence[int]:
        """TotalNewLoad of each window."""

    @property
    def length(self) -> int:
        """The number of its pending jobs."""

    @property
    def head(self) -> JobStateView | None:
        """Its first pending job, or None."""

    def waits(self, sequence: int) -> JobStateView:
        """Return the pending job with a sequence number."""

    def waiting(self) -> Sequence[JobStateView]:
        """Return all pending jobs in order."""


class GroupStateView(Protocol):
    """A sharing group; see `sia.state.state.GroupState`."""

    @property
    def name(self) -> str:
        """Its name; not unique."""

    @property
    def first(self) -> str:
        """The name of its first pool, which identifies it."""

    @property
    def pools(self) -> Sequence[PoolStateView]:
        """Its pools, by name."""

    @property
    def idle(self) -> int:
        """GPUs of all quotas that no job uses."""

    @property
    def quota(self) -> int:
        """The sum of the quotas."""

    @property
    def out(self) -> int:
        """GPUs on nodes that are out; spare starts leave this many idle."""

    @property
    def lending(self) -> bool:
        """Whether loans are made."""

    @property
    def limited(self) -> bool:
        """Whether a pool has a limit, lending is off, or GPUs are out."""

    @property
    def lendable(self) -> int:
        """The sum of its pools' `lendable`."""


class ClusterStateView(Protocol):
    """All pools, groups and jobs; see `sia.state.state.ClusterState`."""

    @property
    def options(self) -> Options:
        """Options of the core."""

    @property
    def now(self) -> float:
        """The time of the present step, in seconds."""

    @property
    def groups(self) -> Sequence[GroupStateView]:
        """All sharing groups."""

    @property
    def pools(self) -> Mapping[str, PoolStateView]:
        """All pools by name."""

    @property
    def jobs(self) -> Mapping[str, JobStateView]:
        """All pending and running jobs by id, in order of arrival."""

    @property
    def waiting(self) -> int:
        """The number of pending jobs."""

    @property
    def places(self) -> Places | None:
        """The cells, if the cluster has cells."""

    @property
    def nodes(self) -> NodeTable | None:
        """The nodes, if they differ."""

    @property
    def dirty(self) -> Collection[PoolStateView]:
        """The pools that changed since the last pass, as `Changes.pools`; for `check`."""

    def pools_of(self, names: Iterable[str]) -> Sequence[PoolStateView]:
        """Return the pools with these names. Raises ValueError for an unknown name."""

    def groups_of(self, names: Iterable[str]) -> Sequence[GroupStateView]:
        """Return the groups of these pools, each once. Raises ValueError for an unknown name."""
