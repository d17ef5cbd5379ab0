"""A fast playout of `wfq` with plain numbers, so that a search can afford a thousand simulations.

It makes the same decisions as the policy; a test compares both job by job. Between two events only
the work done changes, so a step costs only the work on the queues that it changes. A prediction
copies the present state and plays it forward, without later arrivals, until its job has ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

from replay.search.space import Point
from sia.core.playout import Arrival
from sia.model import RESTART, Job
from sia.policies.shared.elastic import least_width, most_width, size_of
from sia.policies.wfq.caps import cap
from sia.policies.wfq.queues import queue_of
from sia.policies.wfq.shares import dealt, owed_at, part_of


class SampleColumns(NamedTuple):
    """The jobs of a sample as columns, in order of submission."""

    gpus: int
    submits: Sequence[float]
    sizes: Sequence[float]
    """Size of each job in GPU-seconds on its least width."""
    works: Sequence[float]
    """Run time of each job in seconds on its own width."""
    leasts: Sequence[int]
    mosts: Sequence[int]
    speeds: Sequence[Sequence[float]]
    """Speed of each job by number of GPUs, up to its maximum; 1 on the job's own width."""
    kinds: Sequence[Job]
    """For each job, a representative with the same widths and demand; one object for equal jobs."""
    costs: Sequence[float | None]
    """Seconds of work that a stop costs each job; None for the default, infinity for all work."""


def columns(arrivals: Sequence[Arrival], gpus: int) -> SampleColumns:
    """Return the columns of a sample. All least widths must fit `gpus`. O(jobs + kinds · gpus).

    Jobs that must not be stopped are not supported.
    """
    kinds, speeds = [], []
    known: dict[object, tuple[Job, list[float]]] = {}
    for job, _ in arrivals:
        kind = job.width, least_width(job), most_width(job), job.demand
        if kind not in known:
            widest = min(most_width(job), gpus)
            known[kind] = job, [0.0, *(job.speed(k) for k in range(1, widest + 1))]
        kinds.append(known[kind][0])
        speeds.append(known[kind][1])
    return SampleColumns(
        gpus,
        [job.submit for job, _ in arrivals],
        [size_of(job, duration) for job, duration in arrivals],
        [duration for _, duration in arrivals],
        [least_width(job) for job, _ in arrivals],
        [most_width(job) for job, _ in arrivals],
        speeds,
        kinds,
        [inf if job.preemptible == RESTART else job.stop_seconds for job, _ in arrivals],
    )


def levels_of(zeta: float, delta: float) -> list[float]:
    """Return the values of ζ_min as it falls by δ, up to the first that is at most 0."""
    found = [zeta]
    while found[-1] > 0:
        found.append(zeta - len(found) * delta)
    return found


class PlayedEnds(NamedTuple):
    """Actual and predicted ends of the jobs of a sample, in seconds."""

    ends: list[float]
    predicted: list[float]


def simulate(jobs: SampleColumns, point: Point, resume_cost: float = 0.0) -> PlayedEnds:
    """Play a sample under a point, and predict each job's end at its submission."""
    present = _Present(jobs, point, resume_cost)
    predicted = []
    for job, submit in enumerate(jobs.submits):
        present.run(submit)
        present.submit(job, submit)
        predicted.append(present.copy().end_of(job))
    present.run(inf)
    return PlayedEnds(present.ends, predicted)


class _Rule:
    """The constants of a sample and point: levels, caps and queues of jobs, shares of queues."""

    def __init__(self, jobs: SampleColumns, point: Point) -> None:
        self.jobs, self.weights = jobs, point.weights
        self.gangs = max(jobs.leasts, default=1) > 1
        levels = levels_of(point.zeta, point.delta)
        known: dict[int, list[int]] = {}
        self.caps = []
        for kind in jobs.kinds:
            if id(kind) not in known:
                known[id(kind)] = [cap(kind, level) for level in levels]
            self.caps.append(known[id(kind)])
        self.levels = len(levels)
        self.queues = [queue_of(point.limits, size) for size in jobs.sizes]
        parts = [part_of(point.weights, i, jobs.gpus) for i in range(len(point.weights))]
        self.turns = [
            submit if least > 1 else owed_at(submit, size, parts[queue])
            for submit, size, least, queue in zip(
                jobs.submits, jobs.sizes, jobs.leasts, self.queues, strict=True
            )
        ]
        self._shares: dict[tuple[tuple[int, ...], int, int], list[int]] = {}

    def shares(self, use: tuple[int, ...], first: int, least: int) -> list[int]:
        """Return the whole GPUs of each queue, given how many each can use."""
        key = use, first, least
        found = self._shares.get(key)
        if found is None:
            found = dealt(self.weights, use, self.jobs.gpus, first, least)
            self._shares[key] = found
        return found


class _Present:
    """The jobs that are pending or running, and the work that each has done."""

    __slots__ = (
        "cost", "done", "due", "ends", "heap", "jobs", "line", "overhead", "rule", "running",
        "share", "since", "sums", "width",
    )  # fmt: skip

    def __init__(self, jobs: SampleColumns, point: Point, cost: float) -> None:
        rule, count = _Rule(jobs, point), len(jobs.submits)
        queues = len(point.weights)
        self.rule, self.jobs, self.cost = rule, jobs, cost
        self.line: list[list[int]] = [[] for _ in range(queues)]
        self.running = [0] * queues  # number of jobs with GPUs, at the head of each queue
        self.share = [0] * queues
        self.sums = [[0] * rule.levels for _ in range(queues)]  # sums of the caps, by level
        self.width = [0] * count
        self.done = [0.0] * count
        self.since = [0.0] * count
        self.overhead = [0.0] * count
        self.due = [inf] * count
        self.ends = [inf] * count
        self.heap: list[tuple[float, int]] = []  # (end, job); (turn, ~job) of a job that waits

    def copy(self) -> _Present:
        """Return a copy that shares only the parts that never change. O(jobs)."""
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
        turn = self.rule.turns[job]
        if turn > now:
            heappush(self.heap, (turn, ~job))
        self._deal(now, [queue])

    def run(self, until: float) -> None:
        """Process ends and turns of jobs up to a time."""
        heap = self.heap
        while heap and heap[0][0] <= until:
            self._step()

    def end_of(self, job: int) -> float:
        """Play forward until a job has ended, and return its end."""
        ends = self.ends
        while ends[job] == inf:
            self._step()
        return ends[job]

    def _step(self) -> None:
        """Process all entries of the heap's next instant, and deal if anything changed."""
        heap, due, ends = self.heap, self.due, self.ends
        now, touched, turns = heap[0][0], [], False
        while heap and heap[0][0] <= now:
            _, job = heappop(heap)
            if job < 0:
                turns = turns or (ends[~job] == inf and not self.width[~job])
            elif due[job] == now and ends[job] == inf:
                touched.append(self._leave(now, job))
        if touched or turns:
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
        """Divide the GPUs between queues, and deal to the jobs of each queue that has changed."""
        gpus = self.jobs.gpus
        use = [min(gpus, sums[-1]) for sums in self.sums]
        first, least = self._oldest(now)
        if self.rule.gangs:
            self._deal_gangs(now, use, first, least)
            return
        before = self.share
        self.share = after = self.rule.shares(tuple(use), first, least)
        for queue, share in enumerate(after):
            if share != before[queue] or queue in touched:
                self._set(now, queue, self._fill(queue, share))

    def _oldest(self, now: float) -> tuple[int, int]:
        """Return the queue and least width of the oldest job; zeros before its turn."""
        first = min((line[0] for line in self.line if line), default=None)
        if first is None or self.rule.turns[first] > now:
            return 0, 0
        return self.rule.queues[first], self.jobs.leasts[first]

    def _deal_gangs(self, now: float, use: list[int], first: int, least: int) -> None:
        """Deal to all queues; GPUs left because a gang does not fit go to other queues."""
        queues = range(len(use))
        while True:
            shares = self.rule.shares(tuple(use), first, least)
            widths = [self._fill(queue, shares[queue]) for queue in queues]
            used = [sum(each) for each in widths]
            lacking = [queue for queue in queues if used[queue] < shares[queue]]
            if not lacking:
                break
            for queue in lacking:
                use[queue] = used[queue]
        left = self.jobs.gpus - sum(used)
        if left:
            waiting = sorted(
                (self.line[queue][len(widths[queue])], queue)
                for queue in queues
                if len(widths[queue]) < len(self.line[queue])
            )
            for _, queue in waiting:
                more = self._fill(queue, used[queue] + left)
                extra = sum(more) - used[queue]
                if extra > 0:
                    widths[queue] = more
                    left -= extra
        for queue in queues:
            self._set(now, queue, widths[queue])

    def _fill(self, queue: int, share: int) -> list[int]:
        """Return the GPUs of the first jobs of a queue; caps are raised until the share is used.

        If all jobs can run on 1 GPU, it is the first level at which the caps add up to the share.
        """
        caps, leasts, line = self.rule.caps, self.jobs.leasts, self.line[queue]
        found: list[int] = []
        if not share:
            return found
        last = self.rule.levels - 1
        for level, sum_ in enumerate(self.sums[queue]):
            if sum_ < share and level < last:
                continue  # the caps of all jobs do not add up to it
            left = share
            found = []
            for job in line:
                if leasts[job] > left:
                    break
                gpus = caps[job][level]
                if gpus >= left:
                    found.append(left)
                    left = 0
                    break
                found.append(gpus)
                left -= gpus
            if not left:
                break
        return found

    def _set(self, now: float, queue: int, widths: list[int]) -> None:
        """Give the first jobs of a queue these numbers of GPUs, and stop its other jobs."""
        line, width = self.line[queue], self.width
        for job, gpus in zip(line, widths):  # noqa: B905  the others get nothing
            if width[job] != gpus:
                self._resize(now, job, gpus)
        for job in line[len(widths) : self.running[queue]]:
            self._resize(now, job, 0)
        self.running[queue] = len(widths)

    def _resize(self, now: float, job: int, gpus: int) -> None:
        """Let a job run on this number of GPUs from now on."""
        speeds = self.jobs.speeds[job]
        worked = now - self.since[job] - self.overhead[job]
        if worked > 0.0:
            self.done[job] += worked * speeds[self.width[job]]
        self.width[job] = gpus
        self.since[job] = now
        own = self.jobs.costs[job]
        if not gpus:
            self.overhead[job], self.due[job] = 0.0, inf
            if own == inf:
                self.done[job] = 0.0  # it restarts
            return
        done = self.done[job]
        overhead = 0.0
        if done:
            overhead = self.cost if own is None else min(own, done)
        self.overhead[job] = overhead
        end = now + (overhead + max(0.0, self.jobs.works[job] - done) / speeds[gpus])
        self.due[job] = end
        heappush(self.heap, (end, job))
