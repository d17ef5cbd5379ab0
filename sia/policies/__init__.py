"""The policies, one file each, and their common interface.

A policy makes proposals; `sia.core.commit` checks them and carries them out. A policy is told of
each job that joins or leaves a queue, reads the state, and yields proposals. After each yield the
state reflects the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

from cells.placement.reservations import ReservedGpus
from sia.model import FutureJob, Stream
from sia.plugins import load_plugin, plugins
from sia.state.state import ClusterState, JobState, PoolState


class Needs(NamedTuple):
    """What a policy must be given in order to decide, and what drivers must support."""

    run_times: bool = False
    updates: bool = False
    """Whether estimates of pending jobs may change.

    Such a job leaves its queue and joins it again.
    """
    loads: bool = False
    future: bool = False
    preemption: bool = False
    """Whether jobs may be stopped and resumed, or resized, so that they run in segments."""


class StartProposal(NamedTuple):
    """Start a pending job now, on its own width if `width` is 0.

    The job may stay pending: in a cluster with cells, if none are available for it; as a spare
    start, if limits do not let its pool borrow enough (`PoolState.room`).
    """

    job: JobState
    stream: Stream
    reason: str
    width: int = 0
    holds: ReservedGpus | None = None
    """In a cluster with cells: the reservations that a spare start must respect."""


class ReserveCells(NamedTuple):
    """Reserve cells of its pool for a job that started in spare cells (§5.5).

    If the pool has no such cells now, nothing is reserved.
    """

    job: JobState


class ReleaseCells(NamedTuple):
    """Release the cells reserved for a job."""

    job: JobState


class PreemptProposal(NamedTuple):
    """Stop a running job, which becomes pending again and keeps the work it has done."""

    job: JobState
    reason: str


class ResizeProposal(NamedTuple):
    """Continue a running job on another number of GPUs.

    A spare job may keep its width if limits do not let its pool borrow more.
    """

    job: JobState
    width: int
    stream: Stream
    reason: str


Proposal = StartProposal | ReserveCells | ReleaseCells | PreemptProposal | ResizeProposal | float
"""A change, or a time in seconds at which to be called again even without an event."""


class Policy:
    """Base class of all policies, with no queues and no proposals."""

    needs = Needs()
    shares = False
    places = False
    """Whether the policy supports clusters with cells, in which a job within quota may find no
    cells. Within a pass, cells that a job did not find stay unavailable to it and to wider jobs."""

    state: ClusterState

    def attach(self, state: ClusterState) -> None:
        """Take the state to read from, and index its pending jobs."""
        self.state = state
        for waiting in sorted(state.jobs.values(), key=lambda job: job.sequence):
            if waiting.stream is None:
                self.submitted(waiting)
        state.dirty.update(
            dict.fromkeys(state.pools.values())
        )  # a new policy has considered none of them

    def submitted(self, job: JobState) -> None:
        """Add a job that joined its pool's queue: a new one, a preempted one, or a changed one.

        A job whose estimate or priority changes first leaves the queue while still in `state.jobs`.
        """

    def left(self, job: JobState) -> None:
        """Remove a job that left its queue: started, cancelled, or about to change."""

    def finished(self, job: JobState) -> None:
        """Remove a running job that ended; its `stream` is still set."""

    def before_progress(self, job: JobState) -> None:
        """Prepare for a change of a running job's `done`, `speed` or `run_time`."""

    def progressed(self, job: JobState) -> None:
        """Take the new `done`, `speed` and `run_time` of a running job."""

    def revealed(self, jobs: Sequence[FutureJob]) -> None:
        """Take the future jobs, for policies that need them."""

    def memory(self) -> Any:
        """Return everything the policy remembers and the state does not show, or None.

        The value consists of numbers, strings, lists, and dicts by string, so that JSON preserves
        it. Pools and jobs are given by name, groups by `GroupState.first`. The call changes
        nothing.
        """
        return None

    def resume(self, state: ClusterState, memory: Any) -> None:
        """Attach to a restored state and take the memory.

        From then on the policy proposes the same as the policy that returned `memory`. The caller
        sets `state.dirty` afterwards. Raises ValueError if the memory contradicts the state.
        """
        self.attach(state)

    def propose(self, now: float) -> Iterator[Proposal]:
        """Yield proposals one by one; the state changes between two yields."""
        yield from ()

    def due(self) -> float:
        """Return when the policy will act without an event, or infinity."""
        return inf

    def rank(self, job: JobState) -> Any:
        """Orders the pending jobs of one pool: the least is ahead of the others."""
        return job.sequence

    def check(self) -> None:
        """Assert that the policy's own queues agree with the state."""


def stream_of(pool: PoolState, width: int) -> Stream:
    """Return the stream of a start by a policy that does not distinguish the two streams."""
    return Stream.DEDICATED if pool.dedicated + width <= pool.quota else Stream.SPARE


def is_barred(job: JobState) -> bool:
    """Return whether limits on lending or borrowing alone keep a pending job from starting. O(1).

    Within a pass in which no job is stopped, the answer stays True for this job and wider ones of
    its pool.
    """
    pool, width = job.pool, job.width
    return pool.group.limited and width > pool.room and pool.dedicated + width > pool.quota


def anywhere(job: JobState, reason: str) -> Iterator[StartProposal]:
    """Yield a start in the pool's own cells and, if they are unavailable, in spare cells."""
    first = stream_of(job.pool, job.width)
    yield StartProposal(job, first, reason)
    if job.stream is None and first is Stream.DEDICATED:
        yield StartProposal(job, Stream.SPARE, reason)


def names() -> list[str]:
    """Return the names of all installed policies, sorted."""
    return list(plugins("sia.policies"))


def load(name: str) -> type[Policy]:
    """Return the policy class of this name. Raises KeyError if none is installed."""
    policy: type[Policy] = load_plugin("sia.policies", name)
    return policy
