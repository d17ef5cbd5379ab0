"""Weighted fair queueing of job sizes, so that completion times can be predicted (PCS, §3).

Each pool has queues by job size. A queue gets a share of the pool's GPUs by its weight, in whole
GPUs. In a queue jobs get GPUs in order of arrival, each up to a cap by its efficiency. If GPUs of
the share are left, the caps rise step by step before other queues get them. No job passes a pending
job of its own queue.

If a queue's share is too small for the pool's oldest job, the job runs nevertheless. A gang that is
wider than the share runs at once. A job of one GPU whose queue's share was rounded to 0 runs when
the unrounded share would have done all of its work. So every job runs at some time, and only older
jobs get GPUs beyond their queues' shares before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import inf, isfinite

from msgspec import Struct
from msgspec.structs import replace
from sortedcontainers import SortedDict

from sia.contract.policy import Changes, Policy
from sia.contract.proposals import Proposals, Wake
from sia.contract.views import ClusterStateView, JobStateView, PoolStateView
from sia.model import NEVER_STOPPED
from sia.policies.shared.elastic import (
    Elastic,
    Line,
    is_pinned,
    least_width,
    most_width,
    size_of,
)
from sia.policies.wfq.caps import cap
from sia.policies.wfq.queues import limits_of, queue_of, weights_of
from sia.policies.wfq.shares import dealt, owed_at, part_of

MAX_VARIATION = 1e6
"""Maximum of T. The variation of a queue of n jobs is at most n − 1, so this value gives one queue
for any log."""
MAX_SPREAD = 10.0
"""Maximum of |W|. Each queue then has 22,000 times the weight of the next: almost strict
priority."""
LEAST_STEP = 0.001
"""Minimum of delta. With smaller steps a pass would raise the caps more than a thousand times."""


class WfqParams(Struct, frozen=True, rename={"variation": "T", "spread": "W"}):
    """Options of wfq: either T and W, which determine queues by the sizes of jobs, or queues."""

    variation: float | None = None
    """T: largest squared coefficient of variation of the sizes in a queue; by default 1."""
    spread: float | None = None
    """W: weights of the queues are e^(−iW) / Σ, so a larger W favours smaller jobs; by default
    1."""
    zeta: float = 0.5
    """Smallest efficiency of a job's GPUs, as long as other jobs of its queue can use them."""
    delta: float = 0.1
    """Step by which zeta falls while GPUs of a queue's share are left."""
    sizes: tuple[float, ...] = ()
    """Limits between given queues, ascending, in GPU-seconds on the least width."""
    weights: tuple[float, ...] = ()
    """Weights of given queues, that of the smallest jobs first."""

    def __post_init__(self) -> None:
        """Raise ValueError for an option out of range."""
        _within("T", self.T, 0.0, MAX_VARIATION, open_below=True)
        _within("W", self.W, -MAX_SPREAD, MAX_SPREAD)
        _within("zeta", self.zeta, 0.0, 1.0)
        _within("delta", self.delta, LEAST_STEP, 1.0)
        if any(a >= b for a, b in pairwise((0.0, *self.sizes))) or not all(
            map(isfinite, self.sizes)
        ):
            raise ValueError(
                f"sizes must ascend from above 0 (got {_listed(self.sizes)}); write them in "
                "ascending order, like 3600+28800"
            )
        if not all(isfinite(weight) and weight > 0 for weight in self.weights):
            raise ValueError(
                f"weights must be above 0 (got {_listed(self.weights)}); leave out a queue that "
                "shall get nothing"
            )
        if self.weights and len(self.weights) != len(self.sizes) + 1:
            raise ValueError(
                f"weights must be as many as queues, {len(self.sizes) + 1} (got "
                f"{len(self.weights)}); give one for each queue: sizes are the limits between them"
            )
        if self.variation is not None and (self.sizes or self.weights):
            given = "sizes" if self.sizes else "weights"
            raise ValueError(
                f"T={self.variation:g} determines queues, but {given} gives them; leave one out"
            )
        if self.spread is not None and self.weights:
            raise ValueError(
                f"W={self.spread:g} determines weights, but weights gives them; leave one out"
            )

    @property
    def T(self) -> float:  # noqa: N802  as the paper and the labels call it
        """The largest squared coefficient of variation of the sizes in a queue."""
        return 1.0 if self.variation is None else self.variation

    @property
    def W(self) -> float:  # noqa: N802  as the paper and the labels call it
        """The exponent of the weights: a larger one favours queues of smaller jobs."""
        return 1.0 if self.spread is None else self.spread


def _within(
    name: str, value: float, least: float, most: float, *, open_below: bool = False
) -> None:
    if not (least < value <= most if open_below else least <= value <= most):
        bounds = f"above {least:g} and at most {most:g}" if open_below else f"{least:g} to {most:g}"
        raise ValueError(f"{name} must be {bounds} (got {value:g}); change it")


def _listed(numbers: Sequence[float]) -> str:
    return "+".join(f"{number:g}" for number in numbers)


class Wfq(Elastic):
    """Weighted fair queueing.

    For each changed pool a pass costs O(queues² + jobs that run before or after it · steps of
    zeta).
    """

    Params = WfqParams
    needs = Elastic.needs._replace(sizes=True)
    reason = "the share of its queue"

    def __init__(self, params: Struct | None = None) -> None:
        """Start with the queues of the options, or with one queue until sizes are known."""
        super().__init__(params)
        own: WfqParams = self.params
        self.limits = own.sizes
        self.weights = own.weights or weights_of(len(own.sizes) + 1, own.W)

    @property
    def queues(self) -> int:
        """The number of queues in each pool."""
        return len(self.weights)

    @property
    def unlike_live(self) -> str:
        """One line that says that a daemon has no log from which queues follow, or ""."""
        own: WfqParams = self.params
        if own.sizes or own.weights:
            return ""
        return (
            "T and W make queues from the sizes of a log, so that a daemon begins with one queue, "
            "FIFO; sia wfq update finds limits and weights in its history, sia wfq set sets them"
        )

    def expecting(self, sizes: Sequence[float], parts: int = 1) -> Policy:
        """Return the policy with the queues of T for these sizes, unless the options give them."""
        own: WfqParams = self.params
        if own.sizes or own.weights:
            return Wfq(replace(own, sizes=tuple(size * parts for size in own.sizes)))
        limits = limits_of(sizes, own.T)
        weights = weights_of(len(limits) + 1, own.W)
        return Wfq(replace(own, variation=None, spread=None, sizes=limits, weights=weights))

    def attach(self, state: ClusterStateView) -> None:
        """Sort all jobs into queues."""
        self._queues = {name: [_Queue() for _ in self.weights] for name in state.pools}
        super().attach(state)
        self._owed: dict[str, float] = {}  # by pool: when a job of one GPU has its turn
        for pool in state.pools.values():
            self._note_owed(pool)

    def join(self, job: JobStateView) -> None:
        """Add a job to its queue. O(log n)."""
        super().join(job)
        self._queue(job).add(job)

    def leave(self, job: JobStateView) -> None:
        """Remove a job from its queue. O(log n)."""
        super().leave(job)
        self._queue(job).remove(job)

    def before_progress(self, job: JobStateView) -> None:
        """Take a job out of its queue while the estimate of its run time may change."""
        self.leave(job)

    def progressed(self, job: JobStateView) -> None:
        """Put a job into the queue of its new size."""
        self.join(job)

    def queue(self, job: JobStateView) -> int:
        """Return the queue of a job's size. O(log queues)."""
        return queue_of(self.limits, size_of(job.job, job.run_time))

    def _queue(self, job: JobStateView) -> _Queue:
        return self._queues[job.pool.name][self.queue(job)]

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Divide the changed pools again, and those in which the oldest job now has its turn."""
        late = [self.state.pools[name] for name, owed in self._owed.items() if owed <= now]
        for pool in dict.fromkeys((*changes.pools, *late)):
            yield from self.divide(pool, now)
            self._note_owed(pool)
        due = self.due()
        if due < inf:
            yield Wake(due)

    def due(self) -> float:
        """Return when the oldest job of a pool next has its turn despite its small share."""
        return min(self._owed.values(), default=inf)

    def _note_owed(self, pool: PoolStateView) -> None:
        """Store when the oldest job of a pool has its turn, if this is in the future."""
        self._owed.pop(pool.name, None)
        if (oldest := self._oldest(self._queues[pool.name], pool.quota)) is None:
            return
        job, queue = oldest
        turn = self._turn(job, queue)
        if job.stream is None and turn > self.state.now:
            self._owed[pool.name] = turn

    def _turn(self, job: JobStateView, queue: int) -> float:
        """Return the time from which the pool's oldest job gets its smallest width."""
        if least_width(job.job) > 1:
            return job.job.submit
        return owed_at(
            job.job.submit,
            size_of(job.job, job.run_time),
            part_of(self.weights, queue, job.pool.quota),
        )

    def deal(self, pool: PoolStateView, gpus: int, now: float) -> dict[JobStateView, int]:
        """Give each queue its share, and GPUs that a queue cannot use to the others."""
        queues = self._queues[pool.name]
        use = [min(gpus, queue.widest) for queue in queues]
        first, least = 0, 0
        oldest = self._oldest(queues, gpus)
        if oldest is not None and self._turn(*oldest) <= now:
            first, least = oldest[1], least_width(oldest[0].job)
        shares, widths = use, list[dict[JobStateView, int]]()
        while True:
            shares = dealt(self.weights, use, gpus, first, least)
            widths = [self._fill(queue, share) for queue, share in zip(queues, shares, strict=True)]
            used = [sum(each.values()) for each in widths]
            lacking = [i for i, share in enumerate(shares) if used[i] < share]
            if not lacking:
                break
            for i in lacking:
                use[i] = used[i]
        left = gpus - sum(used)
        for i in self._waiting(queues, widths) if left else ():
            more = self._fill(queues[i], used[i] + left)
            extra = sum(more.values()) - used[i]
            if extra > 0:
                widths[i] = more
                left -= extra
        return {job: width for each in widths for job, width in each.items()}

    def _oldest(self, queues: Sequence[_Queue], gpus: int) -> tuple[JobStateView, int] | None:
        """Return the pool's oldest job that fits at all, and its queue. O(queues)."""
        heads = [
            (head.sequence, i, head)
            for i, queue in enumerate(queues)
            if (head := queue.head()) is not None and least_width(head.job) <= gpus
        ]
        if not heads:
            return None
        _, queue, job = min(heads)
        return job, queue

    def _fill(self, queue: _Queue, share: int) -> dict[JobStateView, int]:
        """Divide the share of a queue, raising the caps until no GPUs are left."""
        if not share:
            return {}
        own: WfqParams = self.params
        step = 0
        while True:
            level = own.zeta - step * own.delta
            widths = _in_order(queue, share, level)
            if level <= 0 or sum(widths.values()) == share:
                return widths
            step += 1

    def _waiting(
        self, queues: Sequence[_Queue], widths: Sequence[dict[JobStateView, int]]
    ) -> list[int]:
        """Return the queues with jobs that got no GPUs, in the order of their first such jobs."""
        firsts = []
        for i, queue in enumerate(queues):
            waiting = next((job for job in queue.jobs() if job not in widths[i]), None)
            if waiting is not None:
                firsts.append((waiting.sequence, i))
        return [i for _, i in sorted(firsts)]

    def check(self) -> None:
        """Assert that every job is in the queue of its size."""
        super().check()
        for name, queues in self._queues.items():
            jobs: list[list[JobStateView]] = [[] for _ in queues]
            for each in self._lines[name].values():
                jobs[queue_of(self.limits, size_of(each.job, each.run_time))].append(each)
            for queue, own in zip(queues, jobs, strict=True):
                queue.check(own)


def _in_order(queue: _Queue, share: int, level: float) -> dict[JobStateView, int]:
    """Give each job in order of arrival its cap, until no GPUs of the share are left."""
    widths: dict[JobStateView, int] = {}
    for job in queue.jobs():
        if not share or least_width(job.job) > share:
            break
        widths[job] = min(share, cap(job.job, level))
        share -= widths[job]
    return widths


class _Queue:
    """The jobs of a pool whose sizes lie between two limits, in order of arrival."""

    def __init__(self) -> None:
        self._line: Line = SortedDict()
        self._most = 0
        self._never = 0  # jobs that must not be stopped

    @property
    def widest(self) -> int:
        """The largest number of GPUs that its jobs can use, without pinned jobs."""
        if not self._never:
            return self._most
        return self._most - sum(job.width for job in self._line.values() if is_pinned(job))

    def add(self, job: JobStateView) -> None:
        self._line[job.sequence] = job
        self._most += most_width(job.job)
        self._never += job.job.preemptible == NEVER_STOPPED

    def remove(self, job: JobStateView) -> None:
        del self._line[job.sequence]
        self._most -= most_width(job.job)
        self._never -= job.job.preemptible == NEVER_STOPPED

    def jobs(self) -> Iterator[JobStateView]:
        """Yield its jobs in order, without those that are pinned."""
        return (job for job in self._line.values() if not is_pinned(job))

    def head(self) -> JobStateView | None:
        """Return its first job, or None."""
        return next(self.jobs(), None)

    def check(self, jobs: Sequence[JobStateView]) -> None:
        assert list(self._line.values()) == jobs
        assert self._most == sum(most_width(job.job) for job in jobs)
