"""A naive model of SIA with partial preemption, without cells; see naive_policies.py."""

from collections.abc import Iterable
from fractions import Fraction
from math import ceil
from typing import NamedTuple

from tests.support.naive.naive_policies import Choices, Cluster, Job, PlainJob, PlainPool
from tests.support.naive.naive_rivals import Segments

Costs = dict[str, Fraction | None]
"""Seconds that a job loses each time it is stopped, None for all its work. Other jobs must not be
stopped."""


class Run(NamedTuple):
    """One segment of a job; work begins at `works`."""

    job: Job
    since: Fraction
    works: Fraction
    spare: bool


class Recalling(Cluster):
    """A cluster in which some spare jobs may be stopped and resumed."""

    def __init__(
        self,
        pools: Iterable[PlainPool],
        jobs: Iterable[PlainJob],
        costs: Costs,
        choices: Choices,
        recall: Fraction,
    ) -> None:
        super().__init__(pools, jobs)
        self.arrived = {job.id: i for i, job in enumerate(self.future)}
        self.costs, self.choices, self.recall = costs, choices, recall
        self.done = dict.fromkeys(self.arrived, Fraction(0))
        self.latest: dict[str, Run] = {}
        self.taken: set[str] = set()  # guests whose turn has come
        self.segments: Segments = {job_id: [] for job_id in self.arrived}

    def start(self, job: Job, *, dedicated: bool = False) -> None:
        """Start a segment; a job with work done first loses the cost of its preemption."""
        now, done = Fraction(self.now), self.done[job.id]
        works = now + (min(self.costs[job.id], done) if done else 0)
        end = works + job.duration - done
        self.waiting.remove(job)
        self.running.append((end, job, dedicated))
        self.latest[job.id] = Run(job, now, works, not dedicated)
        self.segments[job.id].append((now, end, job.width))

    def stop(self, job: Job) -> None:
        """Stop a job, which keeps its place in the queue, and its work if it can."""
        run = self.latest[job.id]
        self.done[job.id] = Fraction(0) if self.costs[job.id] is None else self.work(job)
        self.segments[job.id][-1] = (run.since, Fraction(self.now), job.width)
        self.running = [other for other in self.running if other[1] != job]
        assert job.id not in self.taken
        self.waiting = sorted([*self.waiting, job], key=lambda other: self.arrived[other.id])

    def work(self, job: Job) -> Fraction:
        """Return the work of a running job so far."""
        return self.done[job.id] + max(Fraction(0), self.now - self.latest[job.id].works)

    def lost(self, job: Job) -> Fraction:
        """Return the work that a running job loses if it is stopped now."""
        cost = self.costs[job.id]
        return self.work(job) if cost is None else min(cost, self.work(job))

    def guests(self, group: list[str]) -> list[Job]:
        """Return the running spare jobs that some policy might stop."""
        return [
            job
            for _, job, dedicated in self.running
            if job.pool in group and not dedicated and job.id in self.costs
        ]

    def stoppable(self, group: list[str]) -> list[Job]:
        """Return those whose turn in their pool has not come."""
        return [job for job in self.guests(group) if job.id not in self.taken]

    def line(self, pool: str) -> list[Job]:
        """Return the pool's jobs that wait for their turn, also those that run meanwhile."""
        line = [*self.queue(pool), *self.stoppable([pool])]
        return sorted(line, key=lambda job: self.arrived[job.id])

    def unused_quota(self, pool: str) -> int:
        """Return the quota minus the GPUs of dedicated jobs and of those whose turn has come."""
        taken = (job.width for job in self.guests([pool]) if job.id in self.taken)
        return super().unused_quota(pool) - sum(taken)

    def take_turns(self, group: list[str]) -> None:
        """Let guests whose turn has come keep quota of their pool."""
        for pool in group:
            while (line := self.line(pool)) and line[0] not in self.waiting:
                if line[0].width > self.unused_quota(pool):
                    break
                self.taken.add(line[0].id)

    def stops_within(self, job: Job, window: int) -> bool:
        """Return whether stopping the job costs at most the part `recall` of the window."""
        if job.id not in self.costs or not self.recall:
            return False
        cost = self.costs[job.id]
        if cost is None:
            cost = Fraction(0) if job in self.waiting else self.work(job)
        return cost <= self.recall * window


def sia_recall(
    pools: Iterable[PlainPool],
    jobs: Iterable[PlainJob],
    costs: Costs,
    choices: Choices,
    recall: Fraction,
) -> Segments:
    """Run Figure 7, then stop jobs for heads within quota, then run Figure 8."""
    cluster = Recalling(pools, jobs, costs, choices, recall)

    def decide(group: list[str]) -> None:
        cluster.take_turns(group)
        while _start_head(cluster, group):
            pass
        while _stop_for_heads(cluster, group):
            pass
        for window in choices.windows:
            while _start_spare(cluster, group, window):
                pass

    def ticks() -> list[int]:
        tick = choices.tick
        return [int(cluster.now // tick + 1) * tick] if cluster.waiting else []

    cluster.run(decide, ticks)
    return cluster.segments


def _heads(cluster: Recalling, group: list[str], room: int) -> list[Job]:
    """Return heads within quota by allocation, each if it fits in addition to those before it."""
    found = []
    for pool in cluster.by_ratio(group):
        for head in cluster.line(pool)[:1]:
            if head not in cluster.waiting:
                continue
            if head.width <= cluster.unused_quota(pool) and head.width <= room:
                found.append(head)
                room -= head.width
    return found


def _start_head(cluster: Recalling, group: list[str]) -> bool:
    for head in _heads(cluster, group, cluster.idle(group))[:1]:
        cluster.start(head, dedicated=True)
        cluster.take_turns(group)
        return True
    return False


def _stop_for_heads(cluster: Recalling, group: list[str]) -> bool:
    """Start all heads that can be helped together, without stopping earlier jobs of their pools."""
    idle = cluster.idle(group)
    heads: list[Job] = []
    for head in _heads(cluster, group, 10**9):
        tried = [*heads, head]
        if _gpus(tried) <= idle + _gpus(_stopped_for(cluster, group, tried)):
            heads = tried
    stopped = _cheapest(cluster, _stopped_for(cluster, group, heads), _gpus(heads) - idle)
    for job in stopped:
        cluster.stop(job)
    for head in heads:
        cluster.start(head, dedicated=True)
    cluster.take_turns(group)
    return bool(heads)


def _stopped_for(cluster: Recalling, group: list[str], heads: list[Job]) -> list[Job]:
    return [
        job
        for job in cluster.stoppable(group)
        if all(
            job.pool != head.pool or cluster.arrived[head.id] < cluster.arrived[job.id]
            for head in heads
        )
    ]


def _cheapest(cluster: Recalling, jobs: list[Job], missing: int) -> list[Job]:
    """Return the cheapest jobs that are enough, without unnecessary ones."""
    chosen: list[Job] = []
    for job in sorted(jobs, key=lambda job: _price(cluster, job)):
        if _gpus(chosen) < missing:
            chosen.append(job)
    for job in list(chosen):
        if _gpus(chosen) - job.width >= missing:
            chosen.remove(job)
    return chosen


def _price(cluster: Recalling, job: Job) -> tuple[Fraction, int, int]:
    """Return the key by which jobs are stopped: cost, then width, then the newest first."""
    return cluster.lost(job) * job.width, job.width, -cluster.arrived[job.id]


def _start_spare(cluster: Recalling, group: list[str], window: int) -> bool:
    usable = cluster.idle(group) - _held_back(cluster, group, window)
    priority = cluster.choices.priority
    for pool in sorted(cluster.by_ratio(group), key=lambda p: -priority.get(p, 0)):
        for job in cluster.queue(pool):
            done = cluster.done[job.id]
            left = job.duration - done + (cluster.costs[job.id] if done else 0)
            gone = left <= window or cluster.stops_within(job, window)
            if gone and job.width <= usable:
                cluster.start(job)
                cluster.take_turns(group)
                return True
    return False


def _held_back(cluster: Recalling, group: list[str], window: int) -> int:
    """Return the reserved GPUs less recallable ones, at least those that must not be lent."""
    needed = sum(_reserved(cluster, pool, window) for pool in group)
    back = _gpus([job for job in cluster.stoppable(group) if cluster.stops_within(job, window)])
    kept = [pool for pool in group if _lends_nothing(cluster, pool, window)]
    return max(needed - back, sum(_reserved(cluster, pool, window) for pool in kept))


def _reserved(cluster: Recalling, pool: str, window: int) -> int:
    unused_quota = cluster.unused_quota(pool)
    if (pool, window) in cluster.choices.no_lending:
        return unused_quota
    need = _gpus(cluster.line(pool)) + _new_load(cluster, pool, window)
    return min(ceil(Fraction(str(cluster.choices.slack)) * need), unused_quota)


def _new_load(cluster: Recalling, pool: str, window: int) -> int:
    new = [j for j in cluster.future if j.pool == pool and j.submit <= cluster.now + window]
    return _gpus(new) if cluster.choices.foreseen else 0


def _lends_nothing(cluster: Recalling, pool: str, window: int) -> bool:
    """Return whether an option keeps the pool from lending."""
    return (pool, window) in cluster.choices.no_lending


def _gpus(jobs: list[Job]) -> int:
    return sum(job.width for job in jobs)
