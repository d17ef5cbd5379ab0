"""Naive models of the policies: every instant recomputes everything from lists.

Nothing here comes from `sia/`. Pools are (name, quota, group, share), jobs are (id, pool, submit,
width, duration) in order of arrival, all numbers are whole. Each model returns each job's start.
"""

from collections.abc import Callable, Iterable
from fractions import Fraction
from math import ceil, inf, lcm
from typing import NamedTuple

from tests.support.naive.naive_turns import Alone, turns

PlainPool = tuple[str, int, str, bool]
PlainJob = tuple[str, str, int, int, int]


class Job(NamedTuple):
    id: str
    pool: str
    submit: int
    width: int
    duration: int


class SecondsPlan:
    """Number of GPUs reserved in each second from `origin` on."""

    def __init__(self, origin: int = 0) -> None:
        self._origin = origin
        self._seconds: list[int] = []

    def reserve(self, gpus: int, start: int, end: int) -> None:
        self._seconds.extend([0] * (end - self._origin - len(self._seconds)))
        for second in range(start - self._origin, end - self._origin):
            self._seconds[second] += gpus

    def max_reservation(self, start: int, end: int) -> int:
        return max(self._seconds[start - self._origin : end - self._origin], default=0)

    def clear(self) -> None:
        self._seconds.clear()


class Cluster:
    """Pending, running and future jobs, as lists."""

    def __init__(self, pools: Iterable[PlainPool], jobs: Iterable[PlainJob]) -> None:
        self.quota = {name: quota for name, quota, _, _ in pools}
        groups: dict[tuple[str, str], list[str]] = {}
        for name, _, group, share in sorted(pools):
            groups.setdefault(("shared", group) if share else ("alone", name), []).append(name)
        self.groups = list(groups.values())
        self.future = [Job(*job) for job in jobs]
        self.priority: dict[str, int] = {}  # by job id, 0 if missing
        self.waiting: list[Job] = []
        self.running: list[tuple[int, Job, bool]] = []  # end, job, dedicated
        self.starts: dict[str, int] = {}
        self.now = 0

    def run(
        self, decide: Callable[[list[str]], None], wakes: Callable[[], list[int]] = list
    ) -> dict[str, int]:
        """At each instant apply ends and arrivals, then make one pass over all groups."""
        while times := [
            *(end for end, _, _ in self.running),
            *(job.submit for job in self.future),
            *wakes(),
        ]:
            self.now = min(times)
            self.running = [run for run in self.running if run[0] > self.now]
            while self.future and self.future[0].submit == self.now:
                self.waiting.append(self.future.pop(0))
            for group in self.groups:
                decide(group)
        return self.starts

    def start(self, job: Job, *, dedicated: bool = False) -> None:
        self.waiting.remove(job)
        self.running.append((self.now + job.duration, job, dedicated))
        self.starts[job.id] = self.now

    def queue(self, pool: str) -> list[Job]:
        queue = [job for job in self.waiting if job.pool == pool]
        return sorted(queue, key=lambda job: -self.priority.get(job.id, 0))

    def capacity(self, group: list[str]) -> int:
        return sum(self.quota[pool] for pool in group)

    def idle(self, group: list[str]) -> int:
        return self.capacity(group) - sum(self.allocated(pool) for pool in group)

    def allocated(self, pool: str) -> int:
        return sum(job.width for _, job, _ in self.running if job.pool == pool)

    def unused_quota(self, pool: str) -> int:
        """Return the quota minus the GPUs of dedicated jobs."""
        used = sum(
            job.width for _, job, dedicated in self.running if dedicated and job.pool == pool
        )
        return self.quota[pool] - used

    def ratio(self, pool: str) -> int:
        """Return CurrentAllocation / Quota, scaled to a common denominator of all pools."""
        return self.allocated(pool) * (lcm(*self.quota.values()) // self.quota[pool])

    def by_ratio(self, group: list[str]) -> list[str]:
        return sorted(group, key=lambda pool: (self.ratio(pool), pool))


def fcfs(pools: Iterable[PlainPool], jobs: Iterable[PlainJob]) -> dict[str, int]:
    """In each pool, a job starts once it fits and the previous one has started."""
    starts = {}
    for name, quota, _, _ in pools:
        now = 0
        runs: list[tuple[int, int]] = []  # end, width
        for job_id, _, submit, width, duration in (job for job in jobs if job[1] == name):
            now = max(now, submit)
            while sum(w for end, w in runs if end > now) + width > quota:
                now = min(end for end, _ in runs if end > now)
            runs.append((now + duration, width))
            starts[job_id] = now
    return starts


def ranked_fcfs(
    pools: Iterable[PlainPool],
    jobs: Iterable[PlainJob],
    priorities: dict[str, int],
    changes: Iterable[tuple[int, str, int]] = (),
) -> dict[str, int]:
    """First come, first served by priority in each pool; the head blocks.

    Of the `changes`, (time, job, priority), only those of waiting jobs count.
    """
    cluster = Cluster(pools, jobs)
    cluster.priority = dict(priorities)
    left = sorted(changes)

    def decide(group: list[str]) -> None:
        while left and left[0][0] <= cluster.now:
            _, job_id, priority = left.pop(0)
            if job_id in {job.id for job in cluster.waiting}:
                cluster.priority[job_id] = priority
        for pool in group:
            while (queue := cluster.queue(pool)) and (
                queue[0].width <= cluster.quota[pool] - cluster.allocated(pool)
            ):
                cluster.start(queue[0])

    return cluster.run(decide, lambda: [time for time, _, _ in left])


def ssf(
    pools: Iterable[PlainPool],
    jobs: Iterable[PlainJob],
    priorities: dict[str, int] | None = None,
) -> dict[str, int]:
    """In each pool the first job by priority, then run time · width, blocks the others."""
    cluster = Cluster(pools, jobs)
    cluster.priority = priorities or {}

    def decide(group: list[str]) -> None:
        for pool in group:
            while queue := cluster.queue(pool):
                first = cluster.priority.get(queue[0].id, 0)
                highest = [job for job in queue if cluster.priority.get(job.id, 0) == first]
                least = min(highest, key=_service)
                if least.width > cluster.quota[pool] - cluster.allocated(pool):
                    break
                cluster.start(least)

    return cluster.run(decide)


def gssf(pools: Iterable[PlainPool], jobs: Iterable[PlainJob]) -> dict[str, int]:
    """In each group the job with the least run time · width is the head; it blocks."""
    cluster = Cluster(pools, jobs)

    def decide(group: list[str]) -> None:
        while queue := [job for job in cluster.waiting if job.pool in group]:
            least = min(queue, key=_service)
            if least.width > cluster.idle(group):
                break
            cluster.start(least)

    return cluster.run(decide)


def _service(job: Job) -> int:
    return job.duration * job.width


def mmfs(
    pools: Iterable[PlainPool],
    jobs: Iterable[PlainJob],
    priorities: dict[str, int] | None = None,
) -> dict[str, int]:
    """The fitting head of the pool with the lowest allocation / quota starts."""
    cluster = Cluster(pools, jobs)
    cluster.priority = priorities or {}

    def start_one(group: list[str]) -> bool:
        for pool in cluster.by_ratio(group):
            queue = cluster.queue(pool)
            if queue and queue[0].width <= cluster.idle(group):
                cluster.start(queue[0])
                return True
        return False

    def decide(group: list[str]) -> None:
        while start_one(group):
            pass

    return cluster.run(decide)


class Choices(NamedTuple):
    """Options of SIA, and whether its load forecast is perfect or none."""

    windows: tuple[int, ...]
    tick: int
    slack: float
    priority: dict[str, int]
    no_lending: frozenset[tuple[str, float]]
    foreseen: bool


def sia(
    pools: Iterable[PlainPool],
    jobs: Iterable[PlainJob],
    choices: Choices,
    priorities: dict[str, int] | None = None,
) -> dict[str, int]:
    """Figures 7 and 8 of the paper. With priorities heads that may be overtaken wait for turns."""
    cluster = Cluster(pools, jobs)
    cluster.priority = priorities or {}
    known = [*cluster.future]

    def decide(group: list[str]) -> None:
        while _start_dedicated(cluster, group, known):
            pass
        for window in choices.windows:
            while _start_spare(cluster, group, window, choices):
                pass

    def ticks() -> list[int]:
        now, tick = cluster.now, choices.tick
        pools_used = [*cluster.quota] if any(cluster.priority.values()) else []
        ends = {end for name in pools_used for end in _alone(cluster, known, name)[1].values()}
        alone = [int(end) for end in ends if now < end < inf]
        return [*alone, *([(now // tick + 1) * tick] if cluster.waiting else [])]

    return cluster.run(decide, ticks)


def _start_dedicated(cluster: Cluster, group: list[str], known: list[Job]) -> bool:
    for pool in cluster.by_ratio(group):
        queue = cluster.queue(pool)
        room = min(cluster.unused_quota(pool), cluster.idle(group))
        if queue and queue[0].width <= room and not _is_early(cluster, known, queue[0]):
            cluster.start(queue[0], dedicated=True)
            return True
    return False


def _is_early(cluster: Cluster, known: list[Job], job: Job) -> bool:
    """Return whether a job's turn has not come, and a job of higher priority may come before it."""
    now, priority = cluster.now, cluster.priority.get
    own = [each for each in known if each.pool == job.pool and each.submit <= now]
    if priority(job.id, 0) >= max(0, *(priority(each.id, 0) for each in own)):
        return False
    return _alone(cluster, known, job.pool)[0].get(own.index(job), inf) > now


def _alone(
    cluster: Cluster, known: list[Job], pool: str
) -> tuple[dict[int, float], dict[int, float]]:
    """Return start and end of each submitted job of a pool without sharing, as far as known."""
    own = [each for each in known if each.pool == pool and each.submit <= cluster.now]
    alone = [
        Alone(
            number, each.submit, each.width, cluster.priority.get(each.id, 0), _ran(cluster, each)
        )
        for number, each in enumerate(own)
    ]
    return turns([(-1.0, cluster.quota[pool])], alone)


def _ran(cluster: Cluster, job: Job) -> float:
    """Return the run time of a job, infinity if it has not ended."""
    ended = job.id in cluster.starts and cluster.starts[job.id] + job.duration <= cluster.now
    return job.duration if ended else inf


def _start_spare(cluster: Cluster, group: list[str], window: int, choices: Choices) -> bool:
    now = cluster.now
    plan = SecondsPlan(now)
    for pool in group:
        plan.reserve(_reserved(cluster, pool, window, choices), now, now + window)
    usable = cluster.idle(group) - plan.max_reservation(now, now + window)
    for pool in sorted(cluster.by_ratio(group), key=lambda p: -choices.priority.get(p, 0)):
        for job in cluster.queue(pool):
            if _bin_end(job.duration, choices.windows) <= window and job.width <= usable:
                cluster.start(job)
                return True
    return False


def _reserved(cluster: Cluster, pool: str, window: int, choices: Choices) -> int:
    unused_quota = cluster.unused_quota(pool)
    if (pool, window) in choices.no_lending:
        return unused_quota
    pending_load = sum(job.width for job in cluster.queue(pool))
    new = [j for j in cluster.future if j.pool == pool and j.submit <= cluster.now + window]
    new_load = sum(job.width for job in new) if choices.foreseen else 0
    return min(ceil(Fraction(str(choices.slack)) * (pending_load + new_load)), unused_quota)


def _bin_end(duration: int, windows: tuple[int, ...]) -> float:
    return min((window for window in windows if duration <= window), default=float("inf"))


def sia_vc(pools: Iterable[PlainPool], jobs: Iterable[PlainJob]) -> dict[str, int]:
    """Figure 6 of the paper with virtual start times fixed in advance.

    The plan counts half seconds: a job that runs for no time holds its GPUs for one of them.
    """
    cluster = Cluster(pools, jobs)
    virtual = fcfs(pools, jobs)
    order = sorted(cluster.future, key=lambda job: virtual[job.id])

    def some_job_started(group: list[str]) -> bool:
        now = cluster.now
        plan = SecondsPlan(2 * now)
        for end, job, _ in cluster.running:
            if job.pool in group:
                plan.reserve(job.width, *_half_seconds(now, end - now))
        for job in order:
            if job.pool not in group or job.id in cluster.starts:
                continue
            busy = plan.max_reservation(*_half_seconds(now, job.duration))
            arrived = job.submit <= now
            fits = job.width <= min(cluster.idle(group), cluster.capacity(group) - busy)
            if arrived and fits:
                cluster.start(job)
                return True
            begin = max(virtual[job.id], now)
            plan.reserve(job.width, *_half_seconds(begin, job.duration))
        return False

    def decide(group: list[str]) -> None:
        while some_job_started(group):
            pass

    def virtual_starts() -> list[int]:
        return [virtual[job.id] for job in cluster.waiting if virtual[job.id] > cluster.now]

    return cluster.run(decide, virtual_starts)


def _half_seconds(start: int, duration: int) -> tuple[int, int]:
    return 2 * start, 2 * start + max(1, 2 * duration)
