"""The profiler: short trials of new jobs on reserved GPUs (Chronus, §3.2).

Trials run first in, first out; the head of the queue blocks. A job no wider than a node has a trial
with its width, a wider job one trial on one node and one on two. The profiler only keeps the books;
the policy starts and stops the jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, inf
from typing import NamedTuple

from msgspec import Struct

from sia.contract.policy import Awaited, next_multiple
from sia.model import LATE
from sia.policies.chronus.params import ChronusParams
from sia.state.nodes import NodeCounts
from sia.wording import counted

HOUR = 3600.0
"""Seconds between changes of the capacity, and length of the past that determines it (§3.2.3)."""


class TrialRow(NamedTuple):
    """A trial that has ended. Times are in seconds."""

    job_id: str
    start: float
    end: float
    gpus: int


class WaitingTrial(NamedTuple):
    """A trial that waits for GPUs."""

    job_id: str
    gpus: int
    first: bool
    """Whether it runs the job, and does not only keep GPUs."""


class RunningTrial(NamedTuple):
    """A trial that runs."""

    start: float
    job_id: str
    gpus: int
    first: bool
    nodes: NodeCounts = ()
    """The trial's GPUs on each node, if nodes are known."""


TrialPlace = Callable[[int, int, Sequence[RunningTrial]], NodeCounts | None]
"""Called with GPUs, nodes and the other trials; returns a place for a trial, or None if it must
wait."""


class ProfilerMemory(Struct):
    """The memory of a `Profiler`."""

    capacity: int
    target: int
    queue: list[WaitingTrial] = []
    running: list[RunningTrial] = []
    held: dict[str, list[tuple[int, str, int]]] = {}
    submitted: int = 0
    entered: dict[str, int] = {}
    interval: int = -1
    recent: list[tuple[float, int]] = []
    hour: int = 0


class Profiler:
    """The trials of one sharing group.

    Attributes:
        kept: Its memory: the capacity and the capacity to reach; pending and running trials; jobs
            of each user that are not admitted yet (number, id, width) and the number of submitted
            ones; the number of the interval and the GPUs admitted in it by user; submissions of the
            last hour; the number of the latest hour in which the capacity was decided.
    """

    def __init__(
        self, params: ChronusParams, gpus: int, node: int, *, in_turn: bool = False
    ) -> None:
        """Begin with `capacity`, or `floor`; without trials if that would leave no GPUs.

        With `in_turn` each trial runs the job, so that the second begins after the first: a daemon
        cannot run a job twice at a time. Else the second one only keeps its GPUs.
        """
        self._params, self._node, self._in_turn = params, node, in_turn
        capacity = params.first_capacity if params.first_capacity < gpus else 0
        self.kept = ProfilerMemory(capacity, capacity, [], [], {}, 0, {}, -1, [], 0)

    @property
    def capacity(self) -> int:
        """GPUs of the profiler."""
        return self.kept.capacity

    @property
    def used(self) -> int:
        """GPUs of running trials."""
        return sum(trial.gpus for trial in self.kept.running)

    def sizes(self, width: int) -> tuple[int, ...]:
        """Return the GPUs of each trial of a job."""
        return (width,) if width <= self._node else (self._node, 2 * self._node)

    def nodes(self, gpus: int) -> int:
        """Return the smallest number of nodes for this number of GPUs."""
        return -(-gpus // self._node)

    def tries(self, width: int) -> bool:
        """Return whether jobs of this width have trials: their widest trial must fit."""
        return max(self.sizes(width)) <= max(self.kept.capacity, self.kept.target)

    def submit(self, job_id: str, user: str, width: int, now: float) -> None:
        """Take a job. O(1)."""
        kept = self.kept
        kept.recent.append((now, sum(self.sizes(width))))
        kept.held.setdefault(user, []).append((kept.submitted, job_id, width))
        kept.submitted += 1

    def _enter(self, job_id: str, width: int) -> None:
        for number, gpus in enumerate(self.sizes(width)):
            self.kept.queue.append(WaitingTrial(job_id, gpus, self._in_turn or number == 0))

    def let_in(self, now: float) -> None:
        """Admit as many jobs of each user as this interval allows, in order of arrival.

        Jobs without a user are always admitted. O(users).
        """
        kept, entered = self.kept, list[tuple[int, str, int]]()
        interval = int((now + LATE) // self._params.profile)
        if interval != kept.interval:
            kept.interval, kept.entered = interval, {}
        for user in [*kept.held]:
            jobs = kept.held[user]
            while jobs:
                gpus, before = sum(self.sizes(jobs[0][2])), kept.entered.get(user, 0)
                if user and before and before + gpus > self._params.user:
                    break
                kept.entered[user] = before + gpus
                entered.append(jobs.pop(0))
            if not jobs:
                del kept.held[user]
        for _, job_id, width in sorted(entered):
            self._enter(job_id, width)

    def over(self, now: float) -> list[RunningTrial]:
        """Remove and return the trials whose time is over."""
        done = [t for t in self.kept.running if t.start + self._params.profile <= now]
        self.kept.running = [t for t in self.kept.running if t not in done]
        return done

    @property
    def beside(self) -> int:
        """GPUs of running second trials, which do not run the job."""
        return sum(trial.gpus for trial in self.kept.running if not trial.first)

    @property
    def idle(self) -> int:
        """GPUs of the profiler on which no job runs."""
        return self.capacity - self.used + self.beside

    def begin(self, now: float, idle: int, place: TrialPlace | None = None) -> list[RunningTrial]:
        """Start the trials that fit, in order; the first that does not fit blocks.

        A trial that would run a job which is still in its trial is skipped. `idle` is the number of
        the group's GPUs on which no job runs.
        """
        kept, begun = self.kept, list[RunningTrial]()
        free = min(kept.capacity - self.used, idle - self.beside)
        busy, at = {trial.job_id for trial in kept.running}, 0
        while at < len(kept.queue):
            job_id, gpus, first = kept.queue[at]
            if first and job_id in busy:
                at += 1
                continue
            if gpus > free:
                break
            nodes = () if place is None else place(gpus, self.nodes(gpus), kept.running)
            if nodes is None:
                break
            kept.queue.pop(at)
            busy.add(job_id)
            begun.append(RunningTrial(now, job_id, gpus, first, nodes))
            kept.running.append(begun[-1])
            free -= gpus
        return begun

    def is_tried(self, job_id: str) -> bool:
        """Return whether a job has no trial left."""
        kept = self.kept
        return job_id not in {
            *(trial.job_id for trial in kept.queue),
            *(trial.job_id for trial in kept.running),
        }

    def forget(self, job_id: str, now: float) -> list[TrialRow]:
        """Drop the trials of a job that ended or left; return those that were running."""
        kept = self.kept
        rows = [TrialRow(t.job_id, t.start, now, t.gpus) for t in kept.running if t[1] == job_id]
        kept.running = [t for t in kept.running if t.job_id != job_id]
        kept.queue = [t for t in kept.queue if t.job_id != job_id]
        for user, jobs in [*kept.held.items()]:
            kept.held[user] = [job for job in jobs if job[1] != job_id]
            if not kept.held[user]:
                del kept.held[user]
        return rows

    def awaits(self, job_id: str, now: float) -> Awaited:
        """Return what a job waits for that has not had all its trials. O(trials)."""
        kept, ahead = self.kept, 0
        for trial in kept.queue:
            if trial.job_id == job_id:
                before = f", with {counted(ahead, 'GPU')} of trials ahead of it" if ahead else ""
                what = f"its trial on {counted(trial.gpus, 'GPU')} of {kept.capacity:,}{before}"
                return Awaited(what, None)
            ahead += trial.gpus
        end = min(
            (t.start + self._params.profile for t in kept.running if t[1] == job_id), default=0.0
        )
        if end:
            return Awaited("the end of its trial", end)
        profile = self._params.profile
        return Awaited("its user to be let in for further trials", next_multiple(now, profile))

    def aim(self, now: float) -> None:
        """Decide the capacity for the next hour, once an hour; see `resize`."""
        kept, params = self.kept, self._params
        hour = int((now + LATE) // HOUR)
        if params.capacity is not None or not kept.target or hour == kept.hour:
            return
        kept.hour = hour
        begin = hour * HOUR - HOUR
        kept.recent = [each for each in kept.recent if each[0] >= begin]
        gpus = sum(each for at, each in kept.recent if at < hour * HOUR)
        needed = ceil(gpus / HOUR * params.profile / self._node) * self._node
        kept.target = max(params.floor, needed)

    def resize(self, most: int) -> None:
        """Change the capacity towards its aim: up to at most `most`, and down when trials end."""
        kept = self.kept
        if kept.capacity < kept.target:
            kept.capacity = max(kept.capacity, min(kept.target, most))
        elif kept.capacity > kept.target:
            kept.capacity = max(kept.target, self.used)

    def due(self, now: float) -> float:
        """Return when a trial, interval or hour ends next, in seconds, or infinity."""
        kept, profile = self.kept, self._params.profile
        if not profile:
            return inf
        times = [trial.start + profile for trial in kept.running]
        if kept.held:
            times.append((int((now + LATE) // profile) + 1) * profile)
        return min(times, default=inf)
