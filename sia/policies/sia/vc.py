"""SIA-VC: virtual clocks and a reservation for each job, all jobs known in advance (§5.1, Fig. 6).

A job's virtual start time is its start in the no-sharing baseline and is never computed anew. Jobs
are visited in that order: who can start without touching an earlier one's reservation does, the
others reserve. A start never helps a job before it, so one sweep does what Fig. 6 restarts for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf, nextafter
from typing import Any

from msgspec import Struct, convert, to_builtins
from sortedcontainers import SortedList

from sia.limits import NEVER
from sia.model import FutureJob, Job, Stream
from sia.policies import Needs, Policy, Proposal, StartProposal, stream_of
from sia.policies.sia.plan import ReservationProfile
from sia.state.state import ClusterState, GroupState, JobState

_Place = tuple[float, int, str]
"""Virtual start, a number that tells apart those that tie, job."""


class _Memory(Struct):
    """Of jobs that have not ended: pool, width, run time, virtual start; nothing else is asked of.

    Places, by pools of their groups, of those that have not started; `left` have, or were
    withdrawn, since the last sweep.
    """

    future: dict[str, tuple[str, int, float, float]]
    places: dict[str, list[_Place]]
    left: dict[str, list[str]]


class SiaVc(Policy):
    """Every pass looks at each job that waits or comes before the last one that waits."""

    needs = Needs(future=True)
    shares = True

    def attach(self, state: ClusterState) -> None:
        """Expect the future as an event."""
        self._begin(state)
        super().attach(state)

    def _begin(self, state: ClusterState) -> None:
        self._future: dict[str, FutureJob] = {}
        self._unstarted: dict[GroupState, SortedList[_Place]] = {
            group: SortedList() for group in state.groups
        }
        self._places: dict[str, _Place] = {}
        self._waiting: dict[GroupState, dict[str, JobState]] = {g: {} for g in state.groups}
        # The width of each running job, and when it will end.
        self._running: dict[GroupState, dict[str, tuple[int, float]]] = {
            group: {} for group in state.groups
        }
        self._due: SortedList[float] = SortedList()  # virtual starts of all that wait
        self._left: dict[GroupState, dict[str, None]] = {group: {} for group in state.groups}

    def memory(self) -> Any:
        """All that was revealed of jobs that have not ended."""
        places = {group.first: [*places] for group, places in self._unstarted.items()}
        left = {group.first: [*jobs] for group, jobs in self._left.items()}
        future = {
            job_id: (each.job.pool, each.job.width, each.run_time, each.virtual_start)
            for job_id, each in self._future.items()
        }
        return to_builtins(_Memory(future, places, left))

    def resume(self, state: ClusterState, memory: Any) -> None:
        """Know the future again. O(n · log n)."""
        kept = convert(memory, _Memory)
        self._begin(state)
        for job_id, (pool, width, run_time, virtual_start) in kept.future.items():
            foreseen = Job(job_id, pool, virtual_start, width)
            self._future[job_id] = FutureJob(foreseen, run_time, virtual_start)
        for pool, places in kept.places.items():
            (group,) = state.groups_of([pool])
            self._unstarted[group].update(places)
            self._places |= {place[2]: place for place in places}
        for pool, left in kept.left.items():
            (group,) = state.groups_of([pool])
            self._left[group] = dict.fromkeys(left)
        super().attach(state)
        for job in state.jobs.values():
            if job.stream is not None:
                self._run(job)

    def revealed(self, jobs: Sequence[FutureJob]) -> None:
        """Order all jobs by virtual start time; ties go to who comes first.

        Raises ValueError for a job of an unknown pool.
        """
        unknown = [f.job for f in jobs if f.job.pool not in self.state.pools]
        if unknown:
            raise ValueError(f"job {unknown[0].id}: there is no pool {unknown[0].pool!r}")
        for future in jobs:
            place = (future.virtual_start, len(self._places), future.job.id)
            self._future[future.job.id] = future
            self._places[future.job.id] = place
            self._unstarted[self.state.pools[future.job.pool].group].add(place)

    def submitted(self, job: JobState) -> None:
        """O(log n). Raises ValueError for a job that was not foreseen."""
        if job.job.id not in self._places:
            raise ValueError(f"job {job.job.id}: SIA-VC was not told of it in advance")
        self._left[job.pool.group].pop(job.job.id, None)  # it has another priority, which is late
        self._waiting[job.pool.group][job.job.id] = job
        self._due.add(self._future[job.job.id].virtual_start)

    def left(self, job: JobState) -> None:
        """O(log n); its place is given up at the next pass, as a sweep may be under way."""
        self._left[job.pool.group][job.job.id] = None
        del self._waiting[job.pool.group][job.job.id]
        self._due.remove(self._future[job.job.id].virtual_start)
        if job.stream is not None:
            self._run(job)

    def _run(self, job: JobState) -> None:
        end = _end(job.start, self._future[job.job.id].run_time)
        self._running[job.pool.group][job.job.id] = job.width, end

    def finished(self, job: JobState) -> None:
        """O(1)."""
        del self._running[job.pool.group][job.job.id]
        del self._future[job.job.id]

    def propose(self, now: float) -> Iterator[Proposal]:
        """Sweep the groups in which somebody waits; ask to be woken at the next virtual start."""
        for group, left in self._left.items():
            for job_id in left:
                self._unstarted[group].remove(self._places.pop(job_id))
            left.clear()
        for group in self.state.groups:
            if self._waiting[group]:
                yield from self._sweep(group, now)
        following = self._due.bisect_right(now)
        if following < len(self._due) and self._due[following] < NEVER:
            yield self._due[following]

    def _sweep(self, group: GroupState, now: float) -> Iterator[Proposal]:
        """One pass of Fig. 6, as far as the last job that fits in what is idle."""
        fitting = {i: j for i, j in self._waiting[group].items() if j.width <= group.idle}
        if not fitting:
            return
        horizon = self._horizon(now, fitting)
        busy = [*self._running[group].values()]
        view = _View(now, group.idle + sum(width for width, _ in busy), busy)
        for virtual_start, _, job_id in self._unstarted[group]:
            future = self._future[job_id]
            width = future.job.width
            waiting = fitting.pop(job_id, None)
            fits = waiting is not None and view.fits(width, future.run_time, group.idle)
            if waiting is not None and fits:
                stream = self._stream(waiting, virtual_start, now)
                yield StartProposal(waiting, stream, "delays no reservation before")
            if waiting is not None and waiting.stream is not None:
                busy.append((width, _end(now, future.run_time)))
                fitting = {i: j for i, j in fitting.items() if j.width <= group.idle}
            else:
                if (
                    waiting is not None and not fits
                ):  # nor do those fit that are as wide and as long
                    fitting = {
                        i: j
                        for i, j in fitting.items()
                        if j.width < width or self._future[i].run_time < future.run_time
                    }
                    horizon = self._horizon(now, fitting)
                if virtual_start < horizon:
                    begin = max(now, virtual_start)
                    view.reserve(width, begin, begin + future.run_time)
            if not fitting:
                return

    def _stream(self, job: JobState, virtual_start: float, now: float) -> Stream:
        """Where limits may keep spare jobs back, quota is for those whose virtual start has come.

        These then always find it.
        """
        if job.pool.group.limited and virtual_start > now:
            return Stream.SPARE
        return stream_of(job.pool, job.width)

    def _horizon(self, now: float, jobs: Iterable[str]) -> float:
        """When the last of these jobs would end, if all started now."""
        return now + max((self._future[job_id].run_time for job_id in jobs), default=0.0)

    def check(self) -> None:
        """Every waiting job has its place."""
        waiting = sum(len(jobs) for jobs in self._waiting.values())
        assert waiting == self.state.waiting == len(self._due)
        for group, places in self._unstarted.items():
            left = len(self._left[group])
            assert len(places) >= len(self._waiting[group]) + left, group.name


def _end(start: float, run_time: float) -> float:
    """When a run ends; one too short for the clock's float still holds its GPUs for a moment."""
    return max(start + run_time, nextafter(start, inf))


class _View:
    """The plan of one pass, filled only when it is asked, and what it has refused before.

    What runs only gives GPUs back: what is idle beyond all reservations together stays idle.
    Reservations only grow during a pass: what did not fit once rules out all that is as wide and as
    long.
    """

    def __init__(self, now: float, capacity: int, busy: list[tuple[int, float]]) -> None:
        """Take `busy`, (width, end) of what runs, to which the sweep adds what it starts."""
        self._now = now
        self._capacity = capacity
        self._busy = busy
        self._planned = 0  # of busy, the first so many are in the plan
        self._plan = ReservationProfile()
        self._reserved = 0  # GPUs of all reservations, were they all at once
        self._pending: list[tuple[int, float, float]] = []
        self._refused: dict[int, float] = {}  # width: least run time that did not fit

    def reserve(self, width: int, start: float, end: float) -> None:
        """Promise GPUs for [start, end)."""
        self._reserved += width
        self._pending.append((width, start, end))

    def fits(self, width: int, run_time: float, idle: int) -> bool:
        """Whether so many of the idle GPUs are promised to nobody for as long."""
        if width + self._reserved <= idle:
            return True
        if width > idle:
            return False
        if any(width >= w and run_time >= t for w, t in self._refused.items()):
            return False
        now, busy = self._now, self._busy
        # An end at this instant is still to be told.
        self._pending += [(gpus, now, end) for gpus, end in busy[self._planned :] if end > now]
        self._planned = len(busy)
        until = _end(now, run_time)
        later, reserve = [], self._plan.reserve
        for promise in self._pending:
            gpus, start, end = promise
            if start >= until:
                later.append(promise)
            else:
                reserve(gpus, start, end if end > start else nextafter(start, inf))
        self._pending = later
        fits = self._plan.max_reservation(now, until) + width <= self._capacity
        if not fits:
            self._refused[width] = run_time
        return fits
