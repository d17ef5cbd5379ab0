"""Naive models of the other policies; see naive_policies.py."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf

from tests.support.naive.naive_policies import Cluster, Job, PlainJob, PlainPool, fcfs

Segments = dict[str, list[tuple[Fraction, Fraction, int]]]
"""By job: start, end, GPUs."""


def sjf(pools: Iterable[PlainPool], jobs: Iterable[PlainJob]) -> dict[str, int]:
    """In each pool the job with the least run time is the head; it blocks."""
    cluster = Cluster(pools, jobs)

    def decide(group: list[str]) -> None:
        for pool in group:
            while queue := cluster.queue(pool):
                least = min(queue, key=lambda job: job.duration)
                if least.width > cluster.quota[pool] - cluster.allocated(pool):
                    break
                cluster.start(least)

    return cluster.run(decide)


def easy(pools: Iterable[PlainPool], jobs: Iterable[PlainJob]) -> dict[str, int]:
    """In each pool later jobs may start if the head does not start later because of them."""
    cluster = Cluster(pools, jobs)

    def backfilled(pool: str, head: Job, rest: list[Job], free: int) -> Job | None:
        ends = sorted((end, job.width) for end, job, _ in cluster.running if job.pool == pool)
        shadow = next(t for t, _ in ends if free + sum(w for e, w in ends if e <= t) >= head.width)
        extra = free + sum(w for e, w in ends if e <= shadow) - head.width
        for job in rest:
            gone = cluster.now + job.duration <= shadow
            if job.width <= free and (gone or job.width <= extra):
                return job
        return None

    def decide(group: list[str]) -> None:
        for pool in group:
            while queue := cluster.queue(pool):
                free = cluster.quota[pool] - cluster.allocated(pool)
                if queue[0].width <= free:
                    cluster.start(queue[0])
                elif (job := backfilled(pool, queue[0], queue[1:], free)) is not None:
                    cluster.start(job)
                else:
                    break

    return cluster.run(decide)


def hived(pools: Iterable[PlainPool], jobs: Iterable[PlainJob]) -> dict[str, int]:
    """Start the first fitting head within quota, else the first job that fits in the idle GPUs."""
    cluster = Cluster(pools, jobs)

    def decide(group: list[str]) -> None:
        while True:
            idle = cluster.idle(group)
            heads = [queue[0] for pool in group if (queue := cluster.queue(pool))]
            own = [j for j in heads if j.width <= min(idle, cluster.unused_quota(j.pool))]
            mine = [j for j in cluster.waiting if j.pool in group and j.width <= idle]
            if own:
                cluster.start(min(own, key=cluster.waiting.index), dedicated=True)
            elif mine:
                first = mine[0]
                cluster.start(first, dedicated=first.width <= cluster.unused_quota(first.pool))
            else:
                return

    return cluster.run(decide)


def themis(pools: Iterable[PlainPool], jobs: Iterable[PlainJob]) -> dict[str, int]:
    """Start the fitting job with the highest completion time relative to its pool alone."""
    cluster = Cluster(pools, jobs)
    alone = fcfs(pools, jobs)

    def unfairness(job: Job) -> Fraction:
        takes = cluster.now - job.submit + job.duration
        would = alone[job.id] - job.submit + job.duration
        return Fraction(takes) / (would or Fraction(1, 1_000_000))

    def decide(group: list[str]) -> None:
        while fits := [
            job for job in cluster.waiting if job.pool in group and job.width <= cluster.idle(group)
        ]:
            cluster.start(max(fits, key=unfairness))

    return cluster.run(decide)


@dataclass(eq=False)
class Life:
    """A preemptible job; work is in seconds at its own width."""

    job: Job
    done: Fraction = Fraction(0)
    since: Fraction | None = None
    width: int = 0
    overhead: Fraction = Fraction(0)
    stopped: Fraction = Fraction(0)
    queue: int = 0
    entered: Fraction = Fraction(0)
    base: Fraction = Fraction(0)
    segments: list[tuple[Fraction, Fraction, int]] = field(default_factory=list)

    def work(self, now: Fraction) -> Fraction:
        if self.since is None:
            return self.done
        speed = Fraction(self.width, self.job.width)
        return self.done + max(Fraction(0), now - self.since - self.overhead) * speed

    def reaches(self, work: Fraction) -> Fraction | float:
        """Return when it will have done this much work at its current width."""
        if self.since is None:
            return inf
        speed = Fraction(self.width, self.job.width)
        return self.since + self.overhead + (work - self.done) / speed

    def run(self, now: Fraction, width: int, cost: int) -> None:
        """Continue with this many GPUs; 0 stops it."""
        if (width if self.since is not None else 0) == width and width == self.width:
            return
        self.done = self.work(now)
        if self.since is not None and now > self.since:
            self.segments.append((self.since, now, self.width))
        if self.since is not None and not width:
            self.stopped = now
        again = self.since is not None or self.segments
        self.overhead = Fraction(cost if again else 0)
        self.since = now if width else None
        self.width = width


Deal = Callable[[Fraction, list[Life], list[str]], dict[str, int]]


def segmented(
    pools: Iterable[PlainPool],
    jobs: Iterable[PlainJob],
    deal: Deal,
    cost: int = 0,
    due: Callable[[Life], Fraction | float] = lambda _: inf,
    move: Callable[[Fraction, Life], None] = lambda _, __: None,
) -> Segments:
    """At each instant, `deal` returns the GPUs of each job from now on."""
    found: Segments = {}
    for group in Cluster(pools, jobs).groups:
        future = [Life(Job(*job), entered=Fraction(job[2])) for job in jobs if job[1] in group]
        here: list[Life] = []
        while future or here:
            ends = [life.reaches(Fraction(life.job.duration)) for life in here]
            arrivals = [life.job.submit for life in future[:1]]
            now = Fraction(min(*ends, *arrivals, *map(due, here), inf))
            for life in [x for x in here if x.reaches(Fraction(x.job.duration)) <= now]:
                life.run(now, 0, cost)
                here.remove(life)
                found[life.job.id] = life.segments
            while future and future[0].job.submit == now:
                here.append(future.pop(0))
            for life in here:
                move(now, life)
            widths = deal(now, here, group)
            for life in here:
                life.run(now, widths.get(life.job.id, 0), cost)
    return found


def by_rank(pools: Iterable[PlainPool], rank: Callable[[Fraction, Life], object]) -> Deal:
    """Visit all jobs by rank; each that fits in the remaining GPUs runs."""
    quota = {name: quota for name, quota, _, _ in pools}

    def deal(now: Fraction, here: list[Life], group: list[str]) -> dict[str, int]:
        free, widths = sum(quota[pool] for pool in group), {}
        for life in sorted(here, key=lambda life: rank(now, life)):
            if life.job.width <= free:
                free -= life.job.width
                widths[life.job.id] = life.job.width
        return widths

    return deal


def _remaining(now: Fraction, life: Life, cost: int) -> Fraction:
    left = life.job.duration - life.work(now)
    if life.since is None:
        return left + (cost if life.segments else 0)
    return left + max(Fraction(0), life.since + life.overhead - now)


def srtf(pools: Iterable[PlainPool], jobs: Iterable[PlainJob], cost: int = 0) -> Segments:
    """Least remaining seconds first."""
    return segmented(pools, jobs, by_rank(pools, lambda t, x: _remaining(t, x, cost)), cost)


def srsf(pools: Iterable[PlainPool], jobs: Iterable[PlainJob], cost: int = 0) -> Segments:
    """Least remaining GPU-seconds first."""
    rank = lambda t, x: _remaining(t, x, cost) * x.job.width  # noqa: E731
    return segmented(pools, jobs, by_rank(pools, rank), cost)


def las(
    pools: Iterable[PlainPool],
    jobs: Iterable[PlainJob],
    thresholds: tuple[int, ...],
    promote: int,
    cost: int = 0,
) -> Segments:
    """Queues by attained GPU-seconds, first in, first out; starved jobs return to the first."""

    def due(life: Life) -> Fraction | float:
        if life.since is not None and life.queue < len(thresholds):
            return life.reaches(life.base + Fraction(thresholds[life.queue], life.job.width))
        if life.since is None and life.queue:
            return life.stopped + promote * (life.done - life.base)
        return inf

    def move(now: Fraction, life: Life) -> None:
        if due(life) > now:
            return
        life.entered = now
        if life.since is None:
            life.queue, life.base = 0, life.done
        else:
            life.queue += 1

    rank = lambda _, life: (life.queue, life.entered)  # noqa: E731
    return segmented(pools, jobs, by_rank(pools, rank), cost, due, move)


def emmfs(pools: Iterable[PlainPool], jobs: Iterable[PlainJob]) -> Segments:
    """Divide GPUs one by one, between pools and then between their jobs."""
    quota = {name: quota for name, quota, _, _ in pools}

    def deal(now: Fraction, here: list[Life], group: list[str]) -> dict[str, int]:
        asked = {p: sum(x.job.width for x in here if x.job.pool == p) for p in group}
        share = dict.fromkeys(group, 0)
        for _ in range(sum(quota[pool] for pool in group)):
            if hungry := [pool for pool in group if share[pool] < asked[pool]]:
                share[min(hungry, key=lambda p: (Fraction(share[p], quota[p]), p))] += 1
        widths: dict[str, int] = {}
        for pool in group:
            mine = [x.job for x in here if x.job.pool == pool][: share[pool]]
            own = {job.id: 1 for job in mine}
            for _ in range(share[pool] - len(mine)):
                more = [job for job in mine if own[job.id] < job.width]
                own[min(more, key=lambda job: own[job.id]).id] += 1
            widths |= own
        return widths

    return segmented(pools, jobs, deal)


def merged(segments: Segments, moment: float = 1e-6) -> Segments:
    """Drop empty segments and join adjacent equal ones."""
    tidy: Segments = {}
    for job_id, own in segments.items():
        long = [s for s in sorted(own) if s[1] - s[0] > moment]
        joined: list[tuple[Fraction, Fraction, int]] = []
        for start, end, width in long:
            if joined and joined[-1][2] == width and start - joined[-1][1] < moment:
                joined[-1] = (joined[-1][0], end, width)
            else:
                joined.append((start, end, width))
        tidy[job_id] = joined
    return tidy
