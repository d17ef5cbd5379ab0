"""A pool as if it shared nothing: first come, first served in its own quota (§4.1, §5.1).

A `VirtualClock` hears what really happens to the jobs of one pool, and says when each would have
started alone. How long a job runs is not known before it has run: where what comes next alone hangs
on that, virtual time stands still until it is known.
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
"""What comes in virtual time: a job ends; the quota is another; a job waits, waits elsewhere in
its queue, is withdrawn; the first of the queue is to be looked at."""


BOUND_EVERY = 1000
"""Facts from one look at what is too much to the next, and entries of jobs that are gone which a
heap may have whatever it holds: both take their time."""


class VirtualClock(Struct, forbid_unknown_fields=True):
    """When each job of a pool starts if the pool shares nothing, as the policy `fcfs` would.

    By priority, then first come, first served; whoever is first and does not fit has all others
    wait. A job runs as long as it really does. One that is withdrawn leaves at that time virtually
    too, whether it waits or runs there. One wider than the quota waits in front of the others as
    long as it is really there; if it ran to its end elsewhere, it is left out from then on.

    It is a plain value, which JSON carries: the same bytes for the same story. Unknown jobs are
    left out. All that happens at one time is to be told before `advance` goes beyond that time.
    An event costs O(log n).

    Attributes:
        quota: At the virtual time (GPUs).
        told: The latest that was told.
        used: GPUs that run virtually.
        time: Of the last instant that is known.
        twins: Jobs that wait or run, virtually or really, by id.
        coming: A heap of (time, number, kind, job, value): what is known to come.
        queue: A heap of (sequence, job); those that have left or moved stay until they are first.
        due: A heap of (began, job), of jobs that run virtually and not really, and of others.
        behind: A heap of (began - started, job) of jobs that really started later, and of others.
        ready: Verdicts that nobody has taken.
        over: Jobs that are really over and wait virtually.
        bounded: How many facts there had been when it was last looked at what is too much.
        freed: (began, job) of jobs for which others were to wait too long, and of some before.
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

    @classmethod
    def of(cls, quota: int) -> Self:
        """A clock of an empty pool."""
        return cls(quota, quota)

    def adopt(self, job_id: str, width: int, since: float) -> None:
        """It has run from before the clock on, and would alone: nothing is said of it."""
        self.twins[job_id] = VirtualJob(width, 0, since, judged=False, began=since, started=since)
        self.used += width

    def submitted(self, now: float, job: Job, *, judged: bool = True) -> None:
        """It waits from now on; nothing is said of it unless it is to be `judged`."""
        self.arrivals += 1
        self.twins[job.id] = VirtualJob(job.width, self.arrivals, now, judged)
        self._note(now, JOIN, job.id, self.arrivals - job.priority * STRIDE)

    def ranked(self, now: float, job_id: str, priority: int) -> None:
        """It waits with another priority from now on."""
        twin = self.twins.get(job_id)
        if twin is not None:
            self._note(now, RANK, job_id, twin.arrival - priority * STRIDE)

    def requota(self, now: float, quota: int) -> None:
        """The pool owns so many GPUs from now on; what runs goes on."""
        self.told = quota
        self._note(now, QUOTA, "", quota)

    def started(self, now: float, job_id: str) -> None:
        """It really runs from now on."""
        twin = self.twins.get(job_id)
        if twin is not None:
            twin.started = now
            if twin.began is not None:
                self._meet(job_id, twin, twin.began, now)

    def finished(self, now: float, job_id: str) -> None:
        """It is really over."""
        twin = self.twins.get(job_id)
        if twin is None:
            return
        assert twin.started is not None, f"{job_id} ended without having started"
        twin.ended = now
        if twin.began is not None:
            self._end(job_id, twin, twin.began, twin.started, now)
            return
        self.over += 1
        if twin.width > self.told:
            self._note(now, LOOK, "", 0)

    def withdrawn(self, now: float, job_id: str) -> None:
        """It waits no more, and its virtual self is gone with it."""
        twin = self.twins.get(job_id)
        if twin is not None:
            twin.withdrawn = True
            self._note(now, GONE, job_id, 0)

    def advance(self, now: float) -> None:
        """Have virtual time pass, up to `now` and without it, as far as is known what happens.

        While nobody waits virtually, it passes even where it is not known who has left: whoever
        comes and fits would fit without them as well.
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
        """Forget what is beyond so many `over` and so many facts that are `coming`, now and then.

        Of jobs that are over and wait virtually, those submitted last are forgotten: who comes
        first is not touched by whoever comes later. Of them nothing will be known. Where virtual
        time stands still, those for which it waits give their virtual GPUs back; when they would
        have started is known. Others of the pool start too early then, if anything, as long as no
        priority or quota changes their order: one that started too early is in the way of a more
        urgent one that comes later, and has what a smaller quota no longer gives, so that such jobs
        may also start too late. O(1), and O(n log n) once in `BOUND_EVERY` facts.
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
        """Of so many that are over and wait virtually nothing will be known."""
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
        """The job for which virtual time waits, if it does. After `advance`."""
        due, lag = self._first_due(), self._lag()
        if self.coming[0][0] >= now or min(due, now + lag) >= now:
            return ""
        return self.due[0][1] if due <= now + lag else self.behind[0][1]

    def _free(self, job_id: str) -> None:
        twin = self.twins[job_id]
        assert twin.began is not None, f"{job_id} holds nobody up"
        twin.freed = True
        self.used -= twin.width
        self.freed.append((twin.began, job_id))

    def _tidy(self) -> None:
        """Drop what is left of jobs that are gone, where it is more than of those that are not."""
        twins, most = self.twins, 2 * len(self.twins) + BOUND_EVERY
        if len(self.queue) > most:
            places = {(twin.sequence, i) for i, twin in twins.items() if twin.began is None}
            self.queue = sorted(places.intersection(self.queue))
        for heap in (self.due, self.behind, self.freed):
            if len(heap) > most:
                heap[:] = sorted(entry for entry in heap if entry[1] in twins)

    def take(self) -> list[JobComparison]:
        """The verdicts since it was last asked, in the order in which they became known."""
        found, self.ready = self.ready, []
        return found

    def late(self, now: float) -> bool:
        """Whether a job waits that would run by now. After `advance`."""
        return self._first_due() + SLOWED < now

    def quiet(self) -> float:
        """Until when nothing comes to be known by itself; infinite if nothing does."""
        if not self.coming:
            return inf
        when = self.coming[0][0]
        if not self._waits():
            return when
        return when - self._lag() if when < self._first_due() else inf

    def _note(self, when: float, kind: int, job_id: str, value: int) -> None:
        self.facts += 1
        heappush(self.coming, (when, self.facts, kind, job_id, value))

    def _known(self, now: float) -> float:
        """Before when nothing can happen that is not known."""
        return min(now + self._lag(), self._first_due())

    def _first_due(self) -> float:
        """Since when a job runs virtually of which nobody knows when it will start."""
        due = self.due
        while due:
            twin = self.twins.get(due[0][1])
            if twin is not None and twin.started is None and not (twin.withdrawn or twin.freed):
                return due[0][0]
            heappop(due)
        return inf

    def _lag(self) -> float:
        """How far behind its real self a virtual job is whose end is not known; at most 0."""
        behind = self.behind
        while behind:
            twin = self.twins.get(behind[0][1])
            if twin is not None and twin.ended is None and not twin.freed:
                return behind[0][0]
            heappop(behind)
        return 0.0

    def _happen(self, when: float, kind: int, job_id: str, value: int) -> None:
        if kind == QUOTA:
            self.quota = value
            return
        if kind == LOOK:
            return
        twin = self.twins.get(job_id)
        if twin is None:  # it was put elsewhere in its queue where virtually it is over
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
        """A job that never really ran is gone."""
        del self.twins[job_id]
        if twin.began is not None:
            if not twin.freed:
                self.used -= twin.width
            if when > twin.began + SLOWED:
                self._say(job_id, twin, when)

    def _begin(self, when: float) -> None:
        """Start the jobs that come next and fit."""
        while self._waits():
            job_id = self.queue[0][1]
            twin = self.twins[job_id]
            if twin.width <= self.quota - self.used:
                self._start(when, job_id, twin)
            elif not self._never(when, job_id, twin):
                return
            heappop(self.queue)

    def _waits(self) -> bool:
        """Whether a job waits virtually, who is then the first of the queue."""
        queue = self.queue
        while queue:
            sequence, job_id = queue[0]
            twin = self.twins.get(job_id)
            if twin is not None and twin.began is None and twin.sequence == sequence:
                return True
            heappop(queue)
        return False

    def _never(self, when: float, job_id: str, twin: VirtualJob) -> bool:
        """Whether a job has ended really, and would not even have begun in what its pool owns."""
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
        """Both it and its virtual self have started."""
        if twin.ended is None and began < started and not twin.freed:
            heappush(self.behind, (began - started, job_id))
        if twin.judged:
            self._judge(job_id, began, started)

    def _judge(self, job_id: str, began: float, started: float) -> None:
        """For whoever wants to know that before the job's end."""

    def _end(
        self, job_id: str, twin: VirtualJob, began: float, started: float, ended: float
    ) -> None:
        """Its virtual self ends when as much time has passed since its own start."""
        if twin.freed:
            del self.twins[job_id]
        else:
            self._note(began + (ended - started), LEAVE, job_id, 0)
        self._say(job_id, twin, ended)

    def _say(self, job_id: str, twin: VirtualJob, ended: float, *, known: bool = True) -> None:
        if twin.judged:
            self.ready.append(
                JobComparison(
                    job_id, twin.width, twin.submit, twin.began, twin.started, ended, known
                )
            )

    def recount(self) -> None:
        """Work out what snapshots of older releases do not say. O(jobs)."""
        self.over = sum(twin.waits_over for twin in self.twins.values())

    def check(self) -> None:
        """Assert that every job is where it should be; O(n)."""
        twins = self.twins
        began = {job_id: twin for job_id, twin in twins.items() if twin.began is not None}
        holds = sum(twin.width for twin in began.values() if not twin.freed)
        assert self.used == holds, "GPUs are lost"
        assert self.over == sum(twin.waits_over for twin in twins.values()), "not so many are over"
        told = {job_id for _, _, kind, job_id, _ in self.coming if kind == JOIN}
        queued = {i for sequence, i in self.queue if i in twins and twins[i].sequence == sequence}
        assert twins.keys() - began.keys() <= queued | told, "a job waits nowhere"
        due = {i for i, t in began.items() if t.started is None and not (t.withdrawn or t.freed)}
        assert due <= {job_id for _, job_id in self.due}, "what is due is another"
        over = {i for i, twin in began.items() if twin.ended is not None or twin.withdrawn}
        leaves = {job_id for _, _, kind, job_id, _ in self.coming if kind in (LEAVE, GONE)}
        assert over <= leaves, "a job never leaves"
        assert leaves <= twins.keys(), "a job leaves twice"
