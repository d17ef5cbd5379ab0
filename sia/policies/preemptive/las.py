"""Tiresias' discretised 2D-LAS: least attained service first, in queues, with preemption.

Service is measured in GPU-seconds of work. A job enters the first queue, and moves to the next one
when its service reaches the queue's threshold. Within a queue, jobs are ordered first in, first
out. A job that has been pending `promote` times as long as it has run returns to the first
queue, and its service counts from 0 again. No run-time estimates are needed.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import pairwise
from math import inf, nextafter
from typing import Annotated, Any

from msgspec import Meta, Struct, convert, to_builtins

from sia.contract.policy import Changes, Needs
from sia.contract.proposals import Proposals
from sia.contract.views import ClusterStateView, JobStateView
from sia.limits import (
    LAS_PROMOTE,
    LAS_THRESHOLDS,
    LEAST_PROMOTE,
    LEAST_THRESHOLD,
    MAX_QUEUES,
)
from sia.model import RESTART
from sia.policies.shared.ranked import Ranked


@dataclass(slots=True)
class _Life:
    """A job's queue, the time at which it entered, and its work in seconds at its last promotion.

    For a job that loses all work by a stop, `ran` is the time that it ran before the last stop.
    """

    queue: int
    entered: float
    promoted_with: float
    ran: float = 0.0


class _Memory(Struct):
    """Lives in order of arrival: (queue, entered, promoted_with, ran)."""

    lives: list[tuple[int, float, float, float]]
    timers: list[tuple[float, int, int, str]]
    reranked: list[str]


class LasParams(Struct, frozen=True):
    """Options of LAS."""

    thresholds: Annotated[
        tuple[Annotated[float, Meta(ge=LEAST_THRESHOLD)], ...],
        Meta(min_length=1, max_length=MAX_QUEUES),
    ] = LAS_THRESHOLDS
    """GPU-seconds after which a job leaves each queue except the last, ascending."""
    promote: Annotated[float, Meta(ge=LEAST_PROMOTE)] = LAS_PROMOTE
    """A job that has waited this many times its run time returns to the first queue."""

    def __post_init__(self) -> None:
        """Raise ValueError if the thresholds do not ascend."""
        if any(a >= b for a, b in pairwise(self.thresholds)):
            raise ValueError("thresholds must ascend")


class Las(Ranked):
    """Ranks jobs by queue, then by the time at which they entered it."""

    Params = LasParams
    needs = Needs(preemption=True)

    def attach(self, state: ClusterStateView) -> None:
        """Place every job in the queue that matches its work so far."""
        self._thresholds = self.params.thresholds
        self._lives: dict[str, _Life] = {}
        self._timers: list[tuple[float, int, int, str]] = []  # when, sequence, attempt, job
        for job in state.jobs.values():
            queue = bisect_right(self._thresholds, job.done * job.job.width)
            self._lives[job.job.id] = _Life(queue, job.start if job.runs else job.job.submit, 0.0)
            if job.stream is not None:
                self._expect_demotion(job)
        super().attach(state)

    def memory(self) -> Any:
        """Return the queue of each job, which its work alone does not determine, and the timers."""
        lives = (self._lives[job_id] for job_id in self.state.jobs)
        rows = [(life.queue, life.entered, life.promoted_with, life.ran) for life in lives]
        return to_builtins(_Memory(rows, self._timers, super().memory()))

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore the queue of each job and the timers."""
        kept = convert(memory, _Memory)
        if not kept.lives:  # a daemon has changed to this policy, which knows no job yet
            self.attach(state)
            return
        if any(not 0 <= row[0] <= len(self.params.thresholds) for row in kept.lives):
            raise ValueError("a job is in a queue that LAS does not have")
        self._thresholds = self.params.thresholds
        lives = zip(state.jobs, kept.lives, strict=True)
        self._lives = {job_id: _Life(*row) for job_id, row in lives}
        self._timers = []
        super().attach(state)
        heapify(kept.timers)
        self._timers = kept.timers
        self._reranked = dict.fromkeys(state.groups_of(kept.reranked))

    def waiting_rank(self, job: JobStateView) -> Any:
        """Return the queue and when the job entered it."""
        life = self._lives[job.job.id]
        return life.queue, life.entered

    def running_key(self, job: JobStateView) -> Any:
        """Return the same as `waiting_rank`."""
        return self.waiting_rank(job)

    def running_rank(self, key: Any, width: int, now: float) -> Any:
        """Return the key, which does not change with time."""
        return key

    def submitted(self, job: JobStateView) -> None:
        """Queue a job; a preempted one gets a promotion timer. O(log n)."""
        life = self._lives.get(job.job.id)
        if life is None:
            self._lives[job.job.id] = _Life(0, self.state.now, 0.0)
        elif life.queue and job.job.id in self._entries:  # it was just preempted
            if job.job.preemptible != RESTART:
                life.ran = job.done - life.promoted_with
            elif self.state.now > job.start:  # it has done no work, but has run
                life.ran = self.state.now - job.start
            due = self.state.now + self.params.promote * life.ran
            heappush(self._timers, (due, job.sequence, -job.attempt, job.job.id))
        super().submitted(job)

    def is_pinned(self, job: JobStateView) -> bool:
        """Return True also for a job that lost all its work to an earlier stop.

        Jobs of the same queue would otherwise take turns at losing their work for ever.
        """
        return super().is_pinned(job) or (job.job.preemptible == RESTART and job.runs > 1)

    def left(self, job: JobStateView) -> None:
        """Remove a job from its queue; a started one gets a demotion timer. O(log n)."""
        super().left(job)
        if job.stream is not None:
            self._expect_demotion(job)
        elif job.job.id not in self.state.jobs:  # cancelled; otherwise its priority changes
            del self._lives[job.job.id]

    def finished(self, job: JobStateView) -> None:
        """Remove a job. O(log n)."""
        super().finished(job)
        del self._lives[job.job.id]

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Demote and promote the jobs that are due, then decide."""
        timers = self._timers
        while timers and timers[0][0] <= now:
            self._due(heappop(timers))
        yield from super().propose(now, changes)

    def wake(self, now: float) -> float:
        """Return when the next job changes its queue, if a job is pending."""
        timers = self._timers
        while timers and not self._holds(timers[0]):
            heappop(timers)
        due = max(timers[0][0], nextafter(now, inf)) if timers and self.state.waiting else inf
        return min(due, super().wake(now))

    def _due(self, timer: tuple[float, int, int, str]) -> None:
        """Move a job to its next queue, entered when the timer was due."""
        if not self._holds(timer):
            return
        when, _, _, job_id = timer
        job, life = self.state.jobs[job_id], self._lives[job_id]
        life.entered = when
        if job.stream is None:
            life.queue, life.promoted_with = 0, job.done
        else:
            life.queue += 1
            self._expect_demotion(job)
        self.rerank(job)

    def _holds(self, timer: tuple[float, int, int, str]) -> bool:
        """Return whether a timer is current: same attempt, negative for a pending job."""
        job = self.state.jobs.get(timer[3])
        return job is not None and timer[2] == (-job.attempt if job.stream is None else job.attempt)

    def _expect_demotion(self, job: JobStateView) -> None:
        life = self._lives[job.job.id]
        if life.queue < len(self._thresholds):
            threshold = self._thresholds[life.queue] / job.job.width
            when = job.end(life.promoted_with + threshold)
            heappush(self._timers, (when, job.sequence, job.attempt, job.job.id))
