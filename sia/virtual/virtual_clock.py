"""The virtual clock of a pool: its schedule without sharing, first come, first served (§4.1, §5.1).

A `VirtualClock` gets the real events of one pool's jobs, and computes when each job would have
started in the baseline. A job's run time is known only after it has run. If the next virtual event
depends on an unknown run time, virtual time stops until it is known.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from math import inf
from typing import Self

from msgspec import Struct

from sia.limits import NEVER, SLOWED, STRIDE
from sia.model import Job
from sia.virtual.virtual_job import JobComparison, VirtualJob

LEAVE, QUOTA, JOIN, RANK, GONE, LOOK = range(6)
"""Kinds of virtual events: a job ends; the quota changes; a job joins the queue, changes its place
in it, is withdrawn; the head of the queue must be checked again."""


BOUND_EVERY = 1000
"""Number of facts between two runs of `bound`, and of stale heap entries that are always accepted.

Both save time.
"""


class VirtualClock(Struct, forbid_unknown_fields=True):
    """Computes when each job of a pool would start without sharing, as the policy `fcfs` would.

    Jobs start by priority, then first come, first served; a head that does not fit blocks the
    others. A job has its real run time. A withdrawn job leaves the virtual schedule at the same
    time, pending or running. A job wider than the quota blocks the queue as long as it really
    exists; once it has ended elsewhere, the clock drops it.

    The clock is a plain value with a JSON form: equal histories give equal bytes. Unknown jobs are
    ignored. Report everything that happened at a time before `advance` passes that time. Each
    report costs O(log n).

    Attributes:
        quota: The quota at the virtual time (GPUs).
        told: The latest quota reported.
        used: GPUs in use in the virtual schedule.
        time: The latest instant up to which the schedule is known.
        twins: Jobs that are pending or running, virtually or really, by id.
        coming: A heap of known future virtual events: (time, number, kind, job, value).
        queue: A heap of (sequence, job). Stale entries are removed when they reach the top.
        due: A heap of (began, job) of jobs that run virtually but not really, and stale entries.
        behind: A heap of (began - started - paused, job) of jobs that really run later than
            virtually, and stale entries.
        halted: A heap of (virtual time, job) of jobs that were really stopped, and stale entries.
            Whether such a job ends virtually after that time is unknown until it continues.
        ready: Comparisons that have not been taken yet.
        over: The number of jobs that really ended and are virtually pending.
        bounded: The value of `facts` at the last run of `bound`.
        freed: (began, job) of jobs whose virtual GPUs `bound` released, and stale entries.
    """

    quota: int
    told: int
    used: int = 0
    time: float = -NEVER
    arrivals: int = 0
    facts: int = 0
    twins: dict[str, VirtualJob] = {}
    coming: list[tuple[float, int, int, str, int]] = []
    queue: list[tuple[int, str]] = []
    due: list[tuple[float, str]] = []
    behind: list[tuple[float, str]] = []
    ready: list[JobComparison] = []
    over: int = 0
    bounded: int = 0
    freed: list[tuple[float, str]] = []
    halted: list[tuple[float, str]] = []

    @classmethod
    def of(cls, quota: int) -> Self:
        """Return the clock of a pool without jobs."""
        return cls(quota, quota)

    def adopt(self, job_id: str, width: int, since: float) -> None:
        """Add a job that was running before the clock started; it gets no comparison."""
        self.twins[job_id] = VirtualJob(width, 0, since, judged=False, began=since, started=since)
        self.used += width

    def submitted(self, now: float, job: Job, *, judged: bool = True) -> None:
        """Add a pending job. It gets a comparison only if `judged`."""
        self.arrivals += 1
        self.twins[job.id] = VirtualJob(job.width, self.arrivals, now, judged)
        self._note(now, JOIN, job.id, self.arrivals - job.priority * STRIDE)

    def ranked(self, now: float, job_id: str, priority: int) -> None:
        """Change the priority of a pending job."""
        twin = self.twins.get(job_id)
        if twin is not None:
            self._note(now, RANK, job_id, twin.arrival - priority * STRIDE)

    def requota(self, now: float, quota: int) -> None:
        """Change the pool's quota. Running jobs continue."""
        self.told = quota
        self._note(now, QUOTA, "", quota)

    def started(self, now: float, job_id: str) -> None:
        """Record that a job really started, or continued after a stop."""
        twin = self.twins.get(job_id)
        if twin is None:
            return
        if twin.stopped is not None:
            twin.paused += now - twin.stopped
            twin.stopped = None
            self._track(job_id, twin)
            return
        twin.started = now
        if twin.began is not None:
            self._meet(job_id, twin, twin.began, now)

    def stopped(self, now: float, job_id: str) -> None:
        """Record that a job was really stopped and is pending again; it has not ended."""
        twin = self.twins.get(job_id)
        if twin is not None and twin.started is not None and twin.stopped is None:
            twin.stopped = now
            self._track(job_id, twin)

    def lost(self, now: float, job_id: str, seconds: float) -> None:
        """Record the seconds of work that a stopped job must repeat, which it would not alone.

        Negative seconds are work that it did after it was counted as stopped.
        """
        twin = self.twins.get(job_id)
        if twin is not None and twin.started is not None and twin.ended is None:
            twin.paused += min(seconds, twin.ran(now))
            self._track(job_id, twin)

    def finished(self, now: float, job_id: str) -> None:
        """Record that a job really ended."""
        twin = self.twins.get(job_id)
        if twin is None:
            return
        assert twin.started is not None, f"{job_id} ended without having started"
        if twin.stopped is not None:
            twin.paused += now - twin.stopped
            twin.stopped = None
        twin.ended = now
        if twin.began is not None:
            self._end(job_id, twin, twin.began, twin.started, now)
            return
        self.over += 1
        if twin.width > self.told:
            self._note(now, LOOK, "", 0)

    def withdrawn(self, now: float, job_id: str) -> None:
        """Record that a pending job was withdrawn. It leaves the virtual schedule too."""
        twin = self.twins.get(job_id)
        if twin is not None:
            twin.withdrawn = True
            self._note(now, GONE, job_id, 0)

    def advance(self, now: float) -> None:
        """Advance virtual time up to, but not including, `now`, as far as the schedule is known.

        While no job is virtually pending, time also passes unknown ends: a new job that fits would
        fit without the running jobs as well.
        """
        coming = self.coming
        while coming and coming[0][0] < now:
            when = coming[0][0]
            if self._waits() and when >= self._known(now):
                return
            when = max(when, self.time)
            self.time = when
            while coming and coming[0][0] <= when:
                _, _, kind, job_id, value = heappop(coming)
                self._happen(when, kind, job_id, value)
            self._begin(when)

    def bound(self, now: float, jobs: int, facts: int) -> None:
        """Limit memory: keep at most `jobs` jobs in `over` and about `facts` entries in `coming`.

        Of the jobs that ended and are virtually pending, those submitted last are dropped, because
        later jobs do not affect earlier ones; their comparison is unknown. If virtual time is
        stopped, the jobs that it waits for release their virtual GPUs; their virtual start is
        known. Other jobs of the pool then start too early, if anything, as long as priorities and
        quotas do not change their order. A job that started too early can delay a more urgent later
        one, or occupy GPUs that a reduced quota no longer has, so that such jobs may also start too
        late.

        O(1), and O(n log n) once in `BOUND_EVERY` facts.
        """
        if self.facts < self.bounded + BOUND_EVERY:
            return
        self.bounded = self.facts
        if self.over > jobs:
            self._forget(self.over - jobs)
        while len(self.coming) > facts and (late := self._awaited(now)):
            self._free(late)
            self._begin(self.time)
            self.advance(now)
        self._tidy()

    def _forget(self, count: int) -> None:
        """Drop the last `count` jobs that ended and are virtually pending."""
        twins = self.twins
        last = [job_id for job_id in reversed(twins) if twins[job_id].waits_over][:count]
        for job_id in reversed(last):
            self._say(job_id, twins[job_id], twins[job_id].ended or 0.0, known=False)
            del twins[job_id]
        self.over -= len(last)
        gone = set(last)
        self.coming = [fact for fact in self.coming if fact[3] not in gone]
        heapify(self.coming)

    def _awaited(self, now: float) -> str:
        """Return the job that stops virtual time, or "". Call after `advance`."""
        due, halt, lag = self._first_due(), self._first_halt(), self._lag()
        first = min(due, halt, now + lag)
        if self.coming[0][0] >= now or first >= now:
            return ""
        if due == first:
            return self.due[0][1]
        return self.halted[0][1] if halt == first else self.behind[0][1]

    def _free(self, job_id: str) -> None:
        twin = self.twins[job_id]
        assert twin.began is not None, f"{job_id} has not started virtually"
        twin.freed = True
        self.used -= twin.width
        self.freed.append((twin.began, job_id))

    def _tidy(self) -> None:
        """Remove stale entries from heaps in which they outnumber the current ones."""
        twins, most = self.twins, 2 * len(self.twins) + BOUND_EVERY
        if len(self.queue) > most:
            places = {(twin.sequence, i) for i, twin in twins.items() if twin.began is None}
            self.queue = sorted(places.intersection(self.queue))
        for heap in (self.due, self.behind, self.freed, self.halted):
            if len(heap) > most:
                heap[:] = sorted(entry for entry in heap if entry[1] in twins)

    def take(self) -> list[JobComparison]:
        """Return the comparisons since the last call, in the order in which they became known."""
        found, self.ready = self.ready, []
        return found

    def late(self, now: float) -> bool:
        """Return whether a pending job would already run in the baseline. Call after `advance`."""
        return self._first_due() + SLOWED < now

    def quiet(self) -> float:
        """Return the next time at which something becomes known without a report, or infinity."""
        if not self.coming:
            return inf
        when = self.coming[0][0]
        if not self._waits():
            return when
        first = self._first_due()
        if self.halted:  # few pools have jobs that were stopped
            first = min(first, self._first_halt())
        return when - self._lag() if when < first else inf

    def _note(self, when: float, kind: int, job_id: str, value: int) -> None:
        self.facts += 1
        heappush(self.coming, (when, self.facts, kind, job_id, value))

    def _known(self, now: float) -> float:
        """Return the time before which every virtual event is known."""
        known = min(now + self._lag(), self._first_due())
        return min(known, self._first_halt()) if self.halted else known

    def _first_due(self) -> float:
        """Return the earliest virtual start of a job that has not really started, or infinity."""
        due = self.due
        while due:
            twin = self.twins.get(due[0][1])
            if twin is not None and twin.started is None and not (twin.withdrawn or twin.freed):
                return due[0][0]
            heappop(due)
        return inf

    def _lag(self) -> float:
        """Return the largest lead of a virtual run over the real run, as seconds ≤ 0.

        Only jobs that run and whose end is unknown count.
        """
        behind = self.behind
        while behind:
            lead, job_id = behind[0]
            twin = self.twins.get(job_id)
            if twin is not None and twin.stopped is None and lead == self._lead(twin):
                return lead
            heappop(behind)
        return 0.0

    @staticmethod
    def _lead(twin: VirtualJob) -> float:
        """Return by how much a job's virtual run is ahead of its real one, as seconds ≤ 0."""
        if twin.began is None or twin.started is None or twin.ended is not None or twin.freed:
            return 0.0
        return min(0.0, twin.began - twin.started - twin.paused)

    def _first_halt(self) -> float:
        """Return the virtual time up to which all stopped jobs are known to run, or infinity."""
        halted = self.halted
        while halted:
            until, job_id = halted[0]
            twin = self.twins.get(job_id)
            if twin is not None and until == self._halt(twin):
                return until
            heappop(halted)
        return inf

    @staticmethod
    def _halt(twin: VirtualJob) -> float:
        """Return the virtual time up to which a stopped job is known to run, or infinity."""
        if twin.began is None or twin.stopped is None or twin.freed:
            return inf
        return twin.began + twin.ran(twin.stopped)

    def _track(self, job_id: str, twin: VirtualJob) -> None:
        """Update until when a job is known to run virtually, after a real stop or start."""
        if (halt := self._halt(twin)) < inf:
            heappush(self.halted, (halt, job_id))
        elif (lead := self._lead(twin)) < 0:
            heappush(self.behind, (lead, job_id))

    def _happen(self, when: float, kind: int, job_id: str, value: int) -> None:
        if kind == QUOTA:
            self.quota = value
            return
        if kind == LOOK:
            return
        twin = self.twins.get(job_id)
        if twin is None:  # its priority changed after its virtual end
            assert kind == RANK, f"{job_id} is gone twice"
        elif kind == LEAVE:
            self.used -= twin.width
            del self.twins[job_id]
        elif kind == GONE:
            self._go(when, job_id, twin)
        elif twin.began is None:
            twin.sequence = value
            heappush(self.queue, (value, job_id))

    def _go(self, when: float, job_id: str, twin: VirtualJob) -> None:
        """Remove a job that was withdrawn without having run."""
        del self.twins[job_id]
        if twin.began is not None:
            if not twin.freed:
                self.used -= twin.width
            if when > twin.began + SLOWED:
                self._say(job_id, twin, when)

    def _begin(self, when: float) -> None:
        """Start pending jobs as long as the head fits."""
        while self._waits():
            job_id = self.queue[0][1]
            twin = self.twins[job_id]
            if twin.width <= self.quota - self.used:
                self._start(when, job_id, twin)
            elif not self._never(when, job_id, twin):
                return
            heappop(self.queue)

    def _waits(self) -> bool:
        """Return whether a job is virtually pending; it is then at the top of the queue."""
        queue = self.queue
        while queue:
            sequence, job_id = queue[0]
            twin = self.twins.get(job_id)
            if twin is not None and twin.began is None and twin.sequence == sequence:
                return True
            heappop(queue)
        return False

    def _never(self, when: float, job_id: str, twin: VirtualJob) -> bool:
        """Return whether the head has really ended and is wider than the quota; if so, drop it."""
        ended = twin.ended
        if ended is None or ended > when or twin.width <= max(self.quota, self.told):
            return False
        self._say(job_id, twin, ended)
        del self.twins[job_id]
        self.over -= 1
        return True

    def _start(self, when: float, job_id: str, twin: VirtualJob) -> None:
        self.used += twin.width
        twin.began = when
        if twin.started is not None:
            self._meet(job_id, twin, when, twin.started)
            if twin.ended is not None:
                self.over -= 1
                self._end(job_id, twin, when, twin.started, twin.ended)
        elif not twin.withdrawn:
            heappush(self.due, (when, job_id))

    def _meet(self, job_id: str, twin: VirtualJob, began: float, started: float) -> None:
        """Compare a job that has started both really and virtually."""
        if began < started or twin.paused or twin.stopped is not None:
            self._track(job_id, twin)
        if twin.judged:
            self._judge(job_id, began, started)

    def _judge(self, job_id: str, began: float, started: float) -> None:
        """Do nothing. A subclass can use this to learn of a delay before the job ends."""

    def _end(
        self, job_id: str, twin: VirtualJob, began: float, started: float, ended: float
    ) -> None:
        """Schedule the virtual end: the real run time after the virtual start."""
        if twin.freed:
            del self.twins[job_id]
        else:
            self._note(began + (ended - started - twin.paused), LEAVE, job_id, 0)
        self._say(job_id, twin, ended)

    def _say(self, job_id: str, twin: VirtualJob, ended: float, *, known: bool = True) -> None:
        if twin.judged:
            self.ready.append(
                JobComparison(
                    job_id,
                    twin.width,
                    twin.submit,
                    twin.began,
                    twin.started,
                    ended,
                    known,
                    twin.paused,
                )
            )

    def check(self) -> None:
        """Assert that every job is where it should be. O(n)."""
        twins = self.twins
        began = {job_id: twin for job_id, twin in twins.items() if twin.began is not None}
        holds = sum(twin.width for twin in began.values() if not twin.freed)
        assert self.used == holds, "GPUs in use"
        assert self.over == sum(twin.waits_over for twin in twins.values()), "number of ended jobs"
        announced = {job_id for _, _, kind, job_id, _ in self.coming if kind == JOIN}
        queued = {i for sequence, i in self.queue if i in twins and twins[i].sequence == sequence}
        assert twins.keys() - began.keys() <= queued | announced, "a pending job is in no queue"
        due = {i for i, t in began.items() if t.started is None and not (t.withdrawn or t.freed)}
        assert due <= {job_id for _, job_id in self.due}, "a job is missing in due"
        halted = {i for i, twin in began.items() if self._halt(twin) < inf}
        assert halted <= {job_id for _, job_id in self.halted}, "a job is missing in halted"
        over = {i for i, twin in began.items() if twin.ended is not None or twin.withdrawn}
        leaves = {job_id for _, _, kind, job_id, _ in self.coming if kind in (LEAVE, GONE)}
        assert over <= leaves, "a job never leaves"
        assert leaves <= twins.keys(), "a job leaves twice"
