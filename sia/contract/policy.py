"""The interface of a policy.

`sia.core` tells a policy about each job that joins or leaves a queue. The policy reads the state
through views and yields proposals. `sia.core` checks them and carries them out; after each yield
the state reflects the change.
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
    """The inputs that a policy needs to decide, and the features that a driver must support."""

    run_times: bool = False
    updates: bool = False
    """Whether estimates of pending jobs may change. The job then leaves its queue and joins it
    again."""
    loads: bool = False
    future: bool = False
    preemption: bool = False
    """Whether jobs may be stopped and resumed, or resized, so that they run in segments."""
    resizing: bool = False
    """Whether it resizes running jobs, or starts jobs with other widths than their own."""
    solver: bool = False
    """Whether it yields `Solve`."""
    sizes: bool = False
    """Whether its options depend on the sizes of the jobs to come; see `Policy.expecting`."""


class Turn(NamedTuple):
    """The time in seconds at which a job started, or is expected to start, in its pool alone."""

    time: float
    """Infinity if no start is expected."""
    came: bool


class PlannedRun(NamedTuple):
    """How the policy's present plan runs a job. Plans change. Times are in seconds."""

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
    """The value that the plan would lose by the kills in `spared`, in the policy's units."""
    gain: float = 0.0
    """How much more value a start now would have than the planned start."""
    missed: bool = False
    """Whether it will miss its deadline, if the plan has no start for it yet."""
    promised: bool = False
    """Whether its deadline is promised: the plan may change, but only within the promise."""


class Awaited(NamedTuple):
    """What a pending job waits for by the policy's own rules."""

    what: str
    """In words that follow "waits for"."""
    at: float | None
    """When that comes, in seconds; None if that is not known."""


class RoundOutlook(NamedTuple):
    """The plan of a policy in rounds for one job. Times are in seconds."""

    weight: float
    """The job's weight relative to other jobs of its pool."""
    fairness: float
    """Its estimated finish-time fairness: above 1 is unfair."""
    place: int
    """The job's rank by weight, from 1."""
    jobs: int
    """The number of jobs that its pool ranks."""
    begins: float
    """When the first of the planned rounds begins or began."""
    round: float
    plan: tuple[int, ...]
    """For each planned round 1 if the job runs in it, else 0."""
    other: str = ""
    """The internal id of the job that would lose a round if this one got one more."""
    loss: float = 0.0
    """The loss of job `other`, divided by the gain of this job."""
    changes_after: float = 0.0
    """The work in seconds after which its speed is expected to change; 0 if no change is."""
    speed: float = 1.0
    """Its speed after that change, divided by its speed before."""


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
        """Record these changes; no round begins."""
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
    """Whether its options may change while jobs run. `attach` must then index running jobs too, and
    the policy must have no memory besides."""
    on_nodes = False
    """Whether the policy works in a cluster whose nodes differ. It never resizes jobs, and names
    the nodes of each start, or takes those that are closest together."""
    in_cells: ClassVar[type[Policy] | None] = None
    """The class that replaces it, with the same options, in a cluster with cells."""
    narrows = False
    """Whether it runs a job that states no `min_width` on fewer GPUs than its width, so that a job
    may be wider than its pool."""
    fluid = False
    """Whether replays simulate it as a fluid, in which jobs use parts of GPUs."""
    queued = True
    """Whether a pending job waits for those that come before it by `rank`. If not, answers name no
    jobs ahead of it, but what it `awaits`."""
    heeds: ClassVar[frozenset[str]] = frozenset()
    """Optional fields of `Job` that it uses, besides those that its base class uses."""

    tables: tuple[str, ...] = ()
    """Names of the tables to which it adds rows by `Record`, once it is attached."""

    Params: ClassVar[type[Struct]] = NoParams
    """Its own options. Labels, configuration, snapshots and docs follow from the fields."""

    state: ClusterStateView
    plan: dict[GroupStateView, GroupPlan]
    """What it reserves and intends to start, by sharing group."""

    def __init__(self, params: Struct | None = None) -> None:
        """Create a policy with these options, by default those of `Params()`."""
        self.params: Any = self.Params() if params is None else params

    @property
    def for_trials(self) -> int:
        """GPUs of a sharing group that trials of new jobs take at the start; 0 without trials.

        A trial may have fewer GPUs than its job asks for; see `Try`.
        """
        return 0

    @property
    def queues(self) -> int:
        """The number of queues of each pool; the queues share the pool's GPUs."""
        return 1

    @property
    def unlike_live(self) -> str:
        """One line on the meaning of these options in a daemon, if it differs from replays."""
        return ""

    def expecting(self, sizes: Sequence[float], parts: int = 1) -> Policy:
        """Return the policy with its options adapted to jobs of these sizes.

        Sizes are in seconds times the unit of widths: GPUs, or `parts` of a GPU.
        """
        return self

    def for_cells(self) -> Policy:
        """Return the policy that decides in a cluster with cells."""
        return self if self.in_cells is None else self.in_cells(self.params)

    def promised(self, group: GroupStateView) -> list[PromisedSpan]:
        """Return the GPUs that promised jobs need, in order of time; [] without promises."""
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

        The state may have changed since the request, so the policy should propose only changes
        that still fit, and check the results of its proposals.
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
        """The length of a round in seconds, if the policy decides in rounds.

        While there are jobs, the core makes a pass at each multiple of this length, with
        `Changes.round` set.
        """
        return None

    def due(self) -> float:
        """Return when the policy will act without an event, or infinity."""
        return inf

    def rank(self, job: JobStateView) -> Any:
        """Return the sort key of a pending job within its pool; the smallest comes first."""
        return job.sequence

    def queue(self, job: JobStateView) -> int:
        """Return the number of a job's queue, if a pool has several.

        Only jobs of the same queue can be ahead of a job.
        """
        return 0

    def widths(self, job: JobStateView) -> tuple[int, int]:
        """Return the smallest and the largest width with which the policy runs a job, in GPUs."""
        return job.gpus, job.gpus

    def guests_before(self, job: JobStateView) -> Sequence[JobStateView]:
        """Return running jobs without which a pending job of their pool gets no dedicated start.

        They run as spare jobs, and keep a place in the queue that comes before the job's.
        """
        return ()

    def overtaken_by(self, job: JobStateView) -> int | None:
        """Return the priority of jobs that may need the pool's quota before a pending job's turn.

        None if the job may start in the quota as soon as it fits there.
        """
        return None

    def turn(self, job: JobStateView) -> Turn | None:
        """Return the turn of a job that has not ended; None if the policy knows no turns."""
        return None

    def foretell(self, job: JobStateView) -> PlannedRun | None:
        """Return how the present plan runs a job; None if the policy makes no such plans.

        A job that the plan does not contain yet is added to a copy of the plan. The call changes
        nothing.
        """
        return None

    def awaits(self, job: JobStateView) -> Awaited | None:
        """Return what a pending job waits for by its own rules; None where these say nothing."""
        return None

    def too_wide(self, job: JobStateView) -> str:
        """Return why a job never gets as many GPUs as it asks for, with the fix; or "". O(1)."""
        return ""

    def outlook(self, job: JobStateView) -> RoundOutlook | None:
        """Return the planned rounds of a job that has not ended; None if there is no plan.

        Only `sia why` calls this, so it may take longer than `foretell`, which answers to
        submissions call too.
        """
        return None

    def foresees(self, job: JobStateView) -> bool:
        """Return whether a spare start of a pending job depends on forecasts of load."""
        return self.needs.loads

    def lasting(self, job: JobStateView) -> float:
        """Return the seconds for which a spare start of a pending job needs a forecast.

        Infinity if the job has no spare start.
        """
        return job.run_time

    def check(self) -> None:
        """Assert that the policy's own queues agree with the state."""


def empty_plan(state: ClusterStateView) -> dict[GroupStateView, GroupPlan]:
    """Return a plan without reservations and starts for each group."""
    windows = len(state.options.windows)
    return {group: GroupPlan(group, windows) for group in state.groups}


def owners_first(options: Options, group: GroupStateView) -> bool:
    """Return whether pools of a group start their own jobs on their quota before loans. O(1)."""
    return options.owners and len(group.pools) > 1


def next_multiple(now: float, length: float) -> float:
    """Return the first multiple of a length (seconds) after `now`.

    If rounding makes this multiple equal to `now`, return the next one.
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
