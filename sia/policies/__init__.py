"""The policies, one file each, and what they have in common.

A policy proposes; `sia.commit` re-checks and does it. It hears of each job that joins or leaves a
queue, reads the state, and yields proposals; after each yield the state shows the change.
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
    """What a policy must be given to decide, and be able to do."""

    run_times: bool = False
    updates: bool = False
    """That estimates of waiting jobs may change: such a job leaves its queue and joins it again."""
    loads: bool = False
    future: bool = False
    preemption: bool = False
    """That jobs may be stopped, go on later, or change their width: they run in segments."""


class StartProposal(NamedTuple):
    """The proposal to start a waiting job now, on its own number of GPUs if `width` is 0.

    The job may still wait after it: in a cluster with cells, where there were none for it; as a
    spare one, where limits do not let its pool borrow what it lacks (`PoolState.room`).
    """

    job: JobState
    stream: Stream
    reason: str
    width: int = 0
    holds: ReservedGpus | None = None
    """In cells: what a spare start must leave free."""


class ReserveCells(NamedTuple):
    """The proposal to keep cells of its pool for a job that has run elsewhere (§5.5, reservation).

    In a cluster with cells they may not be there: nothing is kept then.
    """

    job: JobState


class ReleaseCells(NamedTuple):
    """The proposal to keep cells for a job no longer."""

    job: JobState


class PreemptProposal(NamedTuple):
    """The proposal to stop a running job, which then waits again with the work it has done."""

    job: JobState
    reason: str


class ResizeProposal(NamedTuple):
    """The proposal to go on with a running job on another number of GPUs.

    A spare job may keep its width after it: limits let its pool borrow no more.
    """

    job: JobState
    width: int
    stream: Stream
    reason: str


Proposal = StartProposal | ReserveCells | ReleaseCells | PreemptProposal | ResizeProposal | float
"""A change, or a time (seconds) at which to be asked again even if nothing happens."""


class Policy:
    """Base of all policies: no queues of its own, no proposals."""

    needs = Needs()
    shares = False
    places = False
    """That it knows what to do where there are cells, but none for a job that quota has room for:
    within a pass, once they were not there they stay so, for this job and wider ones."""

    state: ClusterState

    def attach(self, state: ClusterState) -> None:
        """Take the state to read from, and index what waits in it already."""
        self.state = state
        for waiting in sorted(state.jobs.values(), key=lambda job: job.sequence):
            if waiting.stream is None:
                self.submitted(waiting)
        state.dirty.update(dict.fromkeys(state.pools.values()))  # all is news to this policy

    def submitted(self, job: JobState) -> None:
        """A job joined its pool's queue: it is new, was preempted, or is another one there.

        That is, it has another estimate or priority; it had left, and is still in `state.jobs`.
        """

    def left(self, job: JobState) -> None:
        """A job left its queue: it was started, cancelled, or gets another estimate or priority."""

    def finished(self, job: JobState) -> None:
        """A running job ended; its `stream` is still the one that it ran in."""

    def revealed(self, jobs: Sequence[FutureJob]) -> None:
        """The future is known from now on."""

    def memory(self) -> Any:
        """All that it knows and no state shows, as plain values; None where that is nothing.

        Numbers, texts, lists, and dicts by text: JSON gives them back as they were. Pools and jobs
        by name, groups by `GroupState.first`. It changes nothing.
        """
        return None

    def resume(self, state: ClusterState, memory: Any) -> None:
        """Attach to a state that was restored, and remember.

        From now on it proposes what the policy would have that said `memory`. `state.dirty` is set
        after this. Raises ValueError for a memory that contradicts the state.
        """
        self.attach(state)

    def propose(self, now: float) -> Iterator[Proposal]:
        """Yield what to start now, one by one; the state changes between two yields."""
        yield from ()

    def due(self) -> float:
        """When the policy will do something whatever else happens; infinite if it will not."""
        return inf

    def rank(self, job: JobState) -> Any:
        """Orders the pending jobs of one pool: the least is ahead of the others."""
        return job.sequence

    def check(self) -> None:
        """Assert that the policy's own queues agree with the state."""


def stream_of(pool: PoolState, width: int) -> Stream:
    """The stream of a start by a policy that shares without telling two streams apart."""
    return Stream.DEDICATED if pool.dedicated + width <= pool.quota else Stream.SPARE


def is_barred(job: JobState) -> bool:
    """A limit on lending or borrowing keeps a waiting job from starting, were all else well. O(1).

    Within a pass, while no job is stopped, it stays so, for this job and wider ones of its pool.
    """
    pool, width = job.pool, job.width
    return pool.group.limited and width > pool.room and pool.dedicated + width > pool.quota


def anywhere(job: JobState, reason: str) -> Iterator[StartProposal]:
    """A start by such a policy: in cells, on spare ones if the pool's own are not there."""
    first = stream_of(job.pool, job.width)
    yield StartProposal(job, first, reason)
    if job.stream is None and first is Stream.DEDICATED:
        yield StartProposal(job, Stream.SPARE, reason)


def names() -> list[str]:
    """All policies that are installed, sorted."""
    return list(plugins("sia.policies"))


def load(name: str) -> type[Policy]:
    """The policy of that name. Raises KeyError if none is installed under it."""
    policy: type[Policy] = load_plugin("sia.policies", name)
    return policy
