"""A light playout of `wfq`: numbers only, so that a search can afford a thousand simulations.

It decides as the policy does, and a test compares both job by job. Between two events nothing but
the work done changes, so a step costs what the queues cost that it touches. A prediction copies the
present and plays it on, without later arrivals, until its job has ended.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from replay.search.space import Point
from replay.search.workload import least_width, most_width, size_of
from sia.core.playout import Arrival


class SampleColumns(NamedTuple):
    """The jobs of a sample as columns, in order of submission."""

    gpus: int
    submits: Sequence[float]
    sizes: Sequence[float]
    """GPU-seconds on the least width."""
    works: Sequence[float]
    """Seconds on the job's own width."""
    mosts: Sequence[int]
    speeds: Sequence[Sequence[float]]
    """By number of GPUs, up to the most that a job uses; on the job's own width it is 1."""
    efficiencies: Sequence[Sequence[float]]
    """ζ by number of GPUs; for 0 GPUs it has no meaning."""


def columns(arrivals: Sequence[Arrival], gpus: int) -> SampleColumns:
    """Return the columns of a sample whose jobs all run on 1 GPU. O(jobs · gpus)."""
    mosts, speeds, efficiencies = [], [], []
    known: dict[object, tuple[int, list[float], list[float]]] = {}
    for job, _ in arrivals:
        assert least_width(job) == 1, "the light playout has no gangs"
        kind = (job.width, job.max_width, job.demand)
        if kind not in known:
            most = min(most_width(job), gpus)
            speed = [0.0, *(job.speed(k) for k in range(1, most + 1))]
            known[kind] = (
                most,
                speed,
                [1.0, *(speed[k] / (k * speed[1]) for k in range(1, most + 1))],
            )
        most, speed, efficiency = known[kind]
        mosts.append(most)
        speeds.append(speed)
        efficiencies.append(efficiency)
    return SampleColumns(
        gpus,
        [job.submit for job, _ in arrivals],
        [size_of(arrival) for arrival in arrivals],
        [duration for _, duration in arrivals],
        mosts,
        speeds,
        efficiencies,
    )


def levels_of(zeta: float, delta: float) -> list[float]:
    """Return the values that ζ_min takes as it falls by δ; the last is 0."""
    found = [zeta]
    while found[-1] > 0:
        # counted from the start, so that rounding does not add up
        found.append(max(0.0, zeta - len(found) * delta))
    return found


def cap(efficiency: Sequence[float], most: int, zeta: float) -> int:
    """Return the largest width with an efficiency of at least ζ_min; at 0 the widest."""
    if zeta <= 0:
        return most
    return next((k for k in range(most, 1, -1) if efficiency[k] >= zeta), 1)


class PlayedEnds(NamedTuple):
    """Ends and predicted ends of the jobs of a sample, in seconds."""

    ends: list[float]
    predicted: list[float]


def simulate(jobs: SampleColumns, point: Point, resume_cost: float = 0.0) -> PlayedEnds:
    """Play a sample under a point; each job is told its end when it is submitted."""
    present = _Present(jobs, point, resume_cost)
    predicted = []
    for job, submit in enumerate(jobs.submits):
        present.run(submit)
        present.submit(job, submit)
        predicted.append(present.copy().end_of(job))
    present.run(inf)
    return PlayedEnds(present.ends, predicted)


class _Rule:
    """What a sample and a point decide once: levels, caps and queues of jobs, shares of queues."""

    def __init__(self, jobs: SampleColumns, point: Point) -> None:
        self.jobs, self.weights = jobs, point.weights
        self.levels = levels_of(point.zeta, point.delta)
        known: dict[int, list[int]] = {}
        self.caps = []
        for efficiency, most in zip(jobs.efficiencies, jobs.mosts, strict=True):
            if id(efficiency) not in known:
                known[id(efficiency)] = [cap(efficiency, most, zeta) for zeta in self.levels]
            self.caps.append(known[id(efficiency)])
        self.queues = [bisect_left(point.limits, size) for size in jobs.sizes]
        self._shares: dict[tuple[int, ...], list[int]] = {}

    def shares(self, usable: list[int]) -> list[int]:
        """Return the whole GPUs of each queue, given how many each can use."""
        key = tuple([min(gpus, self.jobs.gpus) for gpus in usable])
        found = self._shares.get(key)
        if found is None:
            found = self._shares[key] = shares(self.jobs.gpus, self.weights, key)
        return found


def shares(gpus: int, weights: Sequence[float], usable: Sequence[int]) -> list[int]:
    """Return the whole GPUs of each queue: weighted max-min, rounded by largest remainder."""
    found = [0.0] * len(usable)
    left = float(gpus)
    open_ = [q for q, most in enumerate(usable) if most]
    while open_:
        total = sum(weights[q] for q in open_)
        full = [q for q in open_ if usable[q] * total <= left * weights[q]]
        if not full:
            for q in open_:
                found[q] = left * weights[q] / total
            break
        for q in full:
            found[q] = float(usable[q])
            left -= usable[q]
        open_ = [q for q in open_ if q not in full]
    whole = [int(share) for share in found]
    rest = min(gpus, sum(usable)) - sum(whole)
    order = sorted(range(len(found)), key=lambda q: (whole[q] - found[q], q))
    for q in order:
        if rest and whole[q] < usable[q]:
            whole[q] += 1
            rest -= 1
    return whole


class _Present:
    """The jobs that have been submitted and have not ended, and what each has done."""

    __slots__ = (
        "cost", "done", "due", "ends", "heap", "jobs", "line", "overhead", "rule", "running",
        "share", "since", "sums", "width",
    )  # fmt: skip

    def __init__(self, jobs: SampleColumns, point: Point, cost: float) -> None:
        rule, count = _Rule(jobs, point), len(jobs.submits)
        queues = len(point.weights)
        self.rule, self.jobs, self.cost = rule, jobs, cost
        self.line: list[list[int]] = [[] for _ in range(queues)]
        self.running = [0] * queues  # jobs at the head of each line that have GPUs
        self.share = [0] * queues
        self.sums = [[0] * len(rule.levels) for _ in range(queues)]  # of the caps, by level
        self.width = [0] * count
        self.done = [0.0] * count
        self.since = [0.0] * count
        self.overhead = [0.0] * count
        self.due = [inf] * count
        self.ends = [inf] * count
        self.heap: list[tuple[float, int]] = []

    def copy(self) -> _Present:
        """Return a present of its own, which shares what never changes. O(jobs)."""
        twin = _Present.__new__(_Present)
        twin.rule, twin.jobs, twin.cost = self.rule, self.jobs, self.cost
        twin.line = [line[:] for line in self.line]
        twin.running, twin.share = self.running[:], self.share
        twin.sums = [sums[:] for sums in self.sums]
        twin.width, twin.done, twin.since = self.width[:], self.done[:], self.since[:]
        twin.overhead, twin.due, twin.ends = self.overhead[:], self.due[:], self.ends[:]
        twin.heap = self.heap[:]
        return twin

    def submit(self, job: int, now: float) -> None:
        queue = self.rule.queues[job]
        self.line[queue].append(job)
        sums = self.sums[queue]
        for level, gpus in enumerate(self.rule.caps[job]):
            sums[level] += gpus
        self._deal(now, [queue])

    def run(self, until: float) -> None:
        """Let jobs end up to a time."""
        heap, due = self.heap, self.due
        while heap and heap[0][0] <= until:
            now, job = heappop(heap)
            if due[job] == now and self.ends[job] == inf:
                self._end(now, job)

    def end_of(self, job: int) -> float:
        """Play on until a job has ended, and return when."""
        heap, due, ends = self.heap, self.due, self.ends
        while ends[job] == inf:
            now, next_ = heappop(heap)
            if due[next_] == now and ends[next_] == inf:
                self._end(now, next_)
        return ends[job]

    def _end(self, now: float, first: int) -> None:
        """End a job, and all others that end at the same instant."""
        heap, due, ends = self.heap, self.due, self.ends
        touched = [self._leave(now, first)]
        while heap and heap[0][0] <= now:
            _, job = heappop(heap)
            if due[job] == now and ends[job] == inf:
                touched.append(self._leave(now, job))
        self._deal(now, touched)

    def _leave(self, now: float, job: int) -> int:
        self.ends[job] = now
        queue = self.rule.queues[job]
        self.line[queue].remove(job)
        self.running[queue] -= 1
        sums = self.sums[queue]
        for level, gpus in enumerate(self.rule.caps[job]):
            sums[level] -= gpus
        return queue

    def _deal(self, now: float, touched: list[int]) -> None:
        """Divide the GPUs between queues, and deal those of each queue that has changed."""
        before = self.share
        self.share = after = self.rule.shares([sums[-1] for sums in self.sums])
        for queue, gpus in enumerate(after):
            if gpus != before[queue] or queue in touched:
                self._deal_queue(now, queue, gpus)

    def _deal_queue(self, now: float, queue: int, left: int) -> None:
        """Deal the share of a queue in order of arrival, each job up to its cap."""
        caps, width, line = self.rule.caps, self.width, self.line[queue]
        level = 0
        for gpus in self.sums[queue]:
            if gpus >= left:
                break
            level += 1
        else:
            level -= 1
        count = 0
        for job in line:
            if not left:
                break
            gpus = caps[job][level]
            if gpus > left:  # noqa: PLR1730  min() would take a tenth of a simulation
                gpus = left
            left -= gpus
            count += 1
            if width[job] != gpus:
                self._resize(now, job, gpus)
        for job in line[count : self.running[queue]]:
            self._resize(now, job, 0)
        self.running[queue] = count

    def _resize(self, now: float, job: int, gpus: int) -> None:
        """Let a job run on so many GPUs from now on."""
        speeds = self.jobs.speeds[job]
        worked = now - self.since[job] - self.overhead[job]
        if worked > 0.0:
            self.done[job] += worked * speeds[self.width[job]]
        self.width[job] = gpus
        self.since[job] = now
        if not gpus:
            self.overhead[job], self.due[job] = 0.0, inf
            return
        done = self.done[job]
        self.overhead[job] = overhead = self.cost if done else 0.0
        end = now + (overhead + max(0.0, self.jobs.works[job] - done) / speeds[gpus])
        self.due[job] = end
        heappush(self.heap, (end, job))
