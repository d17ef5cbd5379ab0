"""The interface of a policy.

A policy is told of each job that joins or leaves a queue, reads the state through views, and yields
proposals. `sia.core` checks them and carries them out; after each yield the state reflects the
change.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from math import inf
from typing import Any, ClassVar, NamedTuple

from msgspec import Struct

from sia.contract.plan import GroupPlan, PromisedSpan
from sia.contract.proposals import ProposalResult, Proposals, Start
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.events import ProgramSolved
from sia.model import FutureJob, Options, Stream


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
    resizing: bool = False
    """Whether it resizes running jobs, or starts jobs on other widths than their own."""
    solver: bool = False
    """Whether it yields `Solve`."""
    sizes: bool = False
    """Whether it is made for the sizes of the jobs to come; see `Policy.expecting`."""


class Turn(NamedTuple):
    """The start of a job in its pool alone, in seconds: when it was, or is expected to be."""

    time: float
    """Infinity if nothing is expected."""
    came: bool


class PlannedRun(NamedTuple):
    """How a policy's present plan runs a job: no promise, as plans change. Times are in seconds."""

    start: float
    """Infinity if the plan has no place for it."""
    end: float
    kills: tuple[str, ...] = ()
    """Running jobs that the plan kills for it."""
    before: tuple[str, ...] = ()
    """Pending jobs that the plan starts before it."""
    spared: tuple[str, ...] = ()
    """Running jobs whose kill would let it start now, but costs more than the plan gains by it."""
    cost: float = 0.0
    """The value that these kills would destroy, in the policy's units."""
    gain: float = 0.0
    """What starting it now would be worth more than the plan does."""
    missed: bool = False
    """Whether it misses its deadline although the plan has no start for it yet."""
    promised: bool = False
    """Whether its deadline is promised: the plan may change, but keeps it."""


class RoundOutlook(NamedTuple):
    """What a policy that plans rounds ahead says about a job. Times are in seconds."""

    weight: float
    """The job's weight relative to other jobs of its pool."""
    fairness: float
    """Its finish-time fairness as estimated: above 1 is unfair."""
    place: int
    """The job's rank by weight, from 1."""
    jobs: int
    """The number of jobs that its pool ranks."""
    begins: float
    """When the first of the planned rounds begins or began."""
    round: float
    plan: tuple[int, ...]
    """1 for each of these rounds in which it runs."""
    other: str = ""
    """The job, as the core knows it, that would lose a round if this one had one more."""
    loss: float = 0.0
    """What that job would lose, as a multiple of what this one would gain."""
    changes_after: float = 0.0
    """The work after which its speed is foreseen to change; 0 if it is not."""
    speed: float = 1.0
    """How many times as fast it is then."""


class NoParams(Struct, frozen=True):
    """The options of a policy that has none."""


class Changes:
    """What has changed since the last pass.

    Attributes:
        pools: Pools with other jobs, quotas, forecasts or limits, in order of their first change.
        expired: Running jobs whose lease is over, in the order of their leases' ends.
        round: Whether a round begins; see `Policy.round`.
    """

    __slots__ = ("expired", "pools", "round")

    def __init__(
        self,
        pools: Collection[PoolStateView],
        expired: Sequence[JobStateView] = (),
    ) -> None:
        """Take what has changed; no round begins."""
        self.pools = pools
        self.expired = expired
        self.round = False

    @property
    def groups(self) -> list[GroupStateView]:
        """The groups of the changed pools, in order of their first change. O(changed pools)."""
        return [*dict.fromkeys([pool.group for pool in self.pools])]


class Policy:
    """Base class of all policies, with no queues and no proposals."""

    needs = Needs()
    shares = False
    places = False
    """Whether the policy supports clusters with cells, in which a job within quota may find no
    cells. Within a pass, cells that a job did not find stay unavailable to it and to wider jobs."""
    tunable = False
    """Whether its options may change while jobs run: `attach` indexes running jobs too, and the
    policy remembers nothing else."""
    on_nodes = False
    """Whether the policy works in a cluster whose nodes differ. It never resizes jobs, and names
    the nodes of each start, or takes those that are closest together."""
    in_cells: ClassVar[type[Policy] | None] = None
    """The class that decides in its place, with the same options, in a cluster with cells."""
    narrows = False
    """Whether it runs a job that does not say its least width on fewer GPUs than its own, so that
    a job may be wider than its pool."""
    fluid = False
    """Whether replays play it as a fluid, in which jobs use parts of GPUs."""
    heeds: ClassVar[frozenset[str]] = frozenset()
    """Optional fields of `Job` that change its decisions, apart from those of its base class."""

    tables: ClassVar[tuple[str, ...]] = ()
    """Tables of which it adds rows with `Record`."""

    Params: ClassVar[type[Struct]] = NoParams
    """Its own options; labels, configuration, snapshots and docs are made of their fields."""

    state: ClusterStateView
    plan: dict[GroupStateView, GroupPlan]
    """What it reserves and intends to start, by sharing group."""

    def __init__(self, params: Struct | None = None) -> None:
        """Create a policy with these options, by default those of `Params()`."""
        self.params: Any = self.Params() if params is None else params

    @property
    def only_in_replays(self) -> str:
        """What a daemon cannot carry out with these options and how to mend that, or nothing."""
        return ""

    @property
    def queues(self) -> int:
        """Into how many queues it sorts the jobs of a pool, whose GPUs they share."""
        return 1

    @property
    def unlike_live(self) -> str:
        """What these options mean in a daemon, in one line, if that differs from replays."""
        return ""

    def expecting(self, sizes: Sequence[float], parts: int = 1) -> Policy:
        """Return the policy with options that suit jobs of these sizes.

        Sizes are in seconds times the unit of widths: GPUs, or `parts` of a GPU.
        """
        return self

    def for_cells(self) -> Policy:
        """Return the policy that decides in a cluster with cells."""
        return self if self.in_cells is None else self.in_cells(self.params)

    def promised(self, group: GroupStateView) -> list[PromisedSpan]:
        """Return the GPUs that jobs are promised, in order of time; none if it promises nothing."""
        return []

    def attach(self, state: ClusterStateView) -> None:
        """Take the state to read from, and index its pending jobs."""
        self.state = state
        self.plan = empty_plan(state)
        for waiting in sorted(state.jobs.values(), key=lambda job: job.sequence):
            if waiting.stream is None:
                self.submitted(waiting)

    def submitted(self, job: JobStateView) -> None:
        """Add a job that joined its pool's queue: a new one, a preempted one, or a changed one.

        A job whose estimate or priority changes first leaves the queue while still in `state.jobs`.
        """

    def left(self, job: JobStateView) -> None:
        """Remove a job that left its queue: started, cancelled, or about to change."""

    def finished(self, job: JobStateView) -> None:
        """Remove a running job that ended; its `stream` is still set."""

    def before_progress(self, job: JobStateView) -> None:
        """Prepare for a change of a running job's `done`, `speed` or `run_time`."""

    def progressed(self, job: JobStateView) -> None:
        """Take the new `done`, `speed`, `run_time` and `regime` of a running job."""

    def resized(self, job: JobStateView) -> None:
        """Take the new width of a running job."""

    def solved(self, answer: ProgramSolved) -> None:
        """Take the answer to the latest `Solve`, before the pass of the same step.

        What the answer rests on may have changed since, so the policy proposes what is still
        right, and heeds the results of its proposals.
        """

    def revealed(self, jobs: Sequence[FutureJob]) -> None:
        """Take the future jobs, for policies that need them."""

    def memory(self) -> Any:
        """Return everything the policy remembers and the state does not show, or None.

        The value consists of numbers, strings, lists, and dicts by string, so that JSON preserves
        it. Pools and jobs are given by name, groups by `GroupStateView.first`. The call changes
        nothing.
        """
        return None

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Attach to a restored state and take the memory.

        From then on the policy proposes the same as the policy that returned `memory`. Raises
        ValueError if the memory contradicts the state.
        """
        self.attach(state)

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Yield proposals one by one; the state changes between two yields."""
        yield from ()

    @property
    def round(self) -> float | None:
        """The seconds of a round, if the policy decides in rounds.

        While there are jobs, a pass is made at each multiple of it, with `Changes.round` set.
        """
        return None

    def due(self) -> float:
        """Return when the policy will act without an event, or infinity."""
        return inf

    def rank(self, job: JobStateView) -> Any:
        """Orders the pending jobs of one pool: the least is ahead of the others."""
        return job.sequence

    def queue(self, job: JobStateView) -> int:
        """Return the queue of a job, if a pool has several: no job of another is ahead of it."""
        return 0

    def widths(self, job: JobStateView) -> tuple[int, int]:
        """Return the fewest and the most GPUs on which it runs a job."""
        return job.gpus, job.gpus

    def guests_before(self, job: JobStateView) -> Sequence[JobStateView]:
        """Return running jobs without which a pending job of their pool gets no dedicated start.

        They run as spare jobs, and keep a place in the queue that comes before the job's.
        """
        return ()

    def turn(self, job: JobStateView) -> Turn | None:
        """Return the turn of a job that has not ended; None if the policy knows no turns."""
        return None

    def foretell(self, job: JobStateView) -> PlannedRun | None:
        """Return how the present plan runs a job; None if the policy makes no such plans.

        A job that the plan does not know yet is fitted in beside it. It changes nothing.
        """
        return None

    def outlook(self, job: JobStateView) -> RoundOutlook | None:
        """Return what is planned for a job that has not ended; None if nothing is planned.

        Unlike `foretell`, which answers to submissions ask too, it is asked by `sia why` alone,
        so it may compute more.
        """
        return None

    def foresees(self, job: JobStateView) -> bool:
        """Return whether forecasts of load decide about a spare start of a pending job."""
        return self.needs.loads

    def check(self) -> None:
        """Assert that the policy's own queues agree with the state."""


def empty_plan(state: ClusterStateView) -> dict[GroupStateView, GroupPlan]:
    """Return a plan without reservations and starts for each group."""
    windows = len(state.options.windows)
    return {group: GroupPlan(group, windows) for group in state.groups}


def owners_first(options: Options, group: GroupStateView) -> bool:
    """Return whether the pools of a group have their own jobs first on what they own. O(1)."""
    return options.owners and len(group.pools) > 1


def next_multiple(now: float, length: float) -> float:
    """Return the first multiple of a length (seconds) after `now`.

    A multiple may be rounded to `now` itself: the next one is taken then.
    """
    following = (now // length + 1.0) * length
    while following <= now:
        following += length
    return following


def stream_of(pool: PoolStateView, width: int) -> Stream:
    """Return the stream of a start by a policy that does not distinguish the two streams."""
    return Stream.DEDICATED if pool.dedicated + width <= pool.quota else Stream.SPARE


def is_barred(job: JobStateView) -> bool:
    """Return whether limits on lending or borrowing alone keep a pending job from starting. O(1).

    Within a pass in which no job is stopped, the answer stays True for this job and wider ones of
    its pool.
    """
    pool, width = job.pool, job.width
    return pool.group.limited and width > pool.room and pool.dedicated + width > pool.quota


def anywhere(job: JobStateView, reason: str) -> Generator[Start, ProposalResult, ProposalResult]:
    """Propose a start in the pool's own cells and, if they are unavailable, in spare cells.

    Returns the result of the last proposal.
    """
    first = stream_of(job.pool, job.width)
    result = yield Start(job, first, reason)
    if result is ProposalResult.NO_CELLS and first is Stream.DEDICATED:
        result = yield Start(job, Stream.SPARE, reason)
    return result
