"""SIA-VC: virtual clocks and a reservation for each job, knowing the future (§5.1, Fig. 6).

The virtual start time of a job is its start in the no-sharing baseline; it is never recomputed.
Jobs are visited in this order. A job that can start without using an earlier job's reservation
starts; the others reserve. A start never helps an earlier job, so one sweep replaces the restarts
of Fig. 6.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, nextafter
from typing import Any

from msgspec import Struct, convert, to_builtins
from sortedcontainers import SortedList

from sia.contract.plan import ReservationProfile
from sia.contract.policy import Changes, Needs, Policy, stream_of
from sia.contract.proposals import Proposals, Start, Wake
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView
from sia.limits import NEVER, STRIDE
from sia.model import FutureJob, Job, Stream

_Place = tuple[float, int, str]
"""(virtual start, tie-breaker, job id)."""


class _Memory(Struct):
    """Pool, width, run time and virtual start of jobs that have not ended.

    `places` are those of jobs that have not started, by the first pool of their group. `left` are
    jobs that started or were withdrawn since the last sweep.
    """

    future: dict[str, tuple[str, int, float, float]]
    places: dict[str, list[_Place]]
    left: dict[str, list[str]]


class SiaVc(Policy):
    """A pass visits every job that is pending or comes before the last pending one."""

    needs = Needs(future=True)
    shares = True

    def attach(self, state: ClusterStateView) -> None:
        """Attach; the future jobs arrive in an event."""
        self._begin(state)
        super().attach(state)

    def _begin(self, state: ClusterStateView) -> None:
        self._future: dict[str, FutureJob] = {}
        self._unstarted: dict[GroupStateView, SortedList[_Place]] = {
            group: SortedList() for group in state.groups
        }
        self._places: dict[str, _Place] = {}
        self._waiting: dict[GroupStateView, dict[str, JobStateView]] = {g: {} for g in state.groups}
        # Width and end of each running job.
        self._running: dict[GroupStateView, dict[str, tuple[int, float]]] = {
            group: {} for group in state.groups
        }
        self._due: SortedList[float] = SortedList()  # virtual starts of all pending jobs
        self._left: dict[GroupStateView, dict[str, None]] = {group: {} for group in state.groups}

    def memory(self) -> Any:
        """Return what was revealed of jobs that have not ended."""
        places = {group.first: [*places] for group, places in self._unstarted.items()}
        left = {group.first: [*jobs] for group, jobs in self._left.items()}
        future = {
            job_id: (each.job.pool, each.job.width, each.run_time, each.virtual_start)
            for job_id, each in self._future.items()
        }
        return to_builtins(_Memory(future, places, left))

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore the known future. O(n · log n)."""
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
        """Order all jobs by virtual start time; ties by priority, then in the order given.

        A pool alone starts the jobs of one instant in that order, too. It matters if one of them
        runs for no time.

        Raises ValueError for a job of an unknown pool.
        """
        unknown = [f.job for f in jobs if f.job.pool not in self.state.pools]
        if unknown:
            raise ValueError(f"job {unknown[0].id}: no pool {unknown[0].pool!r}")
        for future in jobs:
            order = len(self._places) - future.job.priority * STRIDE
            place = (future.virtual_start, order, future.job.id)
            self._future[future.job.id] = future
            self._places[future.job.id] = place
            self._unstarted[self.state.pools[future.job.pool].group].add(place)

    def submitted(self, job: JobStateView) -> None:
        """Add a pending job. O(log n). Raises ValueError for a job that was not revealed."""
        if job.job.id not in self._places:
            raise ValueError(f"job {job.job.id}: not among the future jobs that SIA-VC was given")
        self._left[job.pool.group].pop(job.job.id, None)  # its priority changed
        self._waiting[job.pool.group][job.job.id] = job
        self._due.add(self._future[job.job.id].virtual_start)

    def left(self, job: JobStateView) -> None:
        """Record that a job left its queue. O(log n).

        Its place is removed before the next sweep, because a sweep may be in progress.
        """
        self._left[job.pool.group][job.job.id] = None
        del self._waiting[job.pool.group][job.job.id]
        self._due.remove(self._future[job.job.id].virtual_start)
        if job.stream is not None:
            self._run(job)

    def _run(self, job: JobStateView) -> None:
        end = _end(job.start, self._future[job.job.id].run_time)
        self._running[job.pool.group][job.job.id] = job.width, end

    def finished(self, job: JobStateView) -> None:
        """Remove a job. O(1)."""
        del self._running[job.pool.group][job.job.id]
        del self._future[job.job.id]

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Sweep the groups with pending jobs, and ask to be woken at the next virtual start."""
        for group, left in self._left.items():
            for job_id in left:
                self._unstarted[group].remove(self._places.pop(job_id))
            left.clear()
        for group in self.state.groups:
            if self._waiting[group]:
                yield from self._sweep(group, now)
        following = self._due.bisect_right(now)
        if following < len(self._due) and self._due[following] < NEVER:
            yield Wake(self._due[following])

    def _sweep(self, group: GroupStateView, now: float) -> Proposals:
        """Make one pass of Fig. 6, up to the last job that fits in the idle GPUs."""
        fitting = {i: j for i, j in self._waiting[group].items() if j.width <= group.idle}
        if not fitting:
            return
        horizon = self._horizon(now, fitting)
        busy = [*self._running[group].values()]
        view = _View(
            self.plan[group].profile, now, group.idle + sum(width for width, _ in busy), busy
        )
        for virtual_start, _, job_id in self._unstarted[group]:
            future = self._future[job_id]
            width = future.job.width
            waiting = fitting.pop(job_id, None)
            fits = waiting is not None and view.fits(width, future.run_time, group.idle)
            if waiting is not None and fits:
                stream = self._stream(waiting, virtual_start, now)
                yield Start(waiting, stream, "delays no earlier reservation")
            if waiting is not None and waiting.stream is not None:
                busy.append((width, _end(now, future.run_time)))
                fitting = {i: j for i, j in fitting.items() if j.width <= group.idle}
            else:
                if (
                    waiting is not None and not fits
                ):  # then jobs at least as wide and long do not fit either
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

    def _stream(self, job: JobStateView, virtual_start: float, now: float) -> Stream:
        """Return the stream of a start.

        If limits may restrict spare starts, only jobs whose virtual start has come use quota, so
        that they always find it.
        """
        if job.pool.group.limited and virtual_start > now:
            return Stream.SPARE
        return stream_of(job.pool, job.width)

    def _horizon(self, now: float, jobs: Iterable[str]) -> float:
        """Return when the last of these jobs would end if all started now."""
        return now + max((self._future[job_id].run_time for job_id in jobs), default=0.0)

    def check(self) -> None:
        """Assert that every pending job has a place."""
        waiting = sum(len(jobs) for jobs in self._waiting.values())
        assert waiting == self.state.waiting == len(self._due)
        for group, places in self._unstarted.items():
            left = len(self._left[group])
            assert len(places) >= len(self._waiting[group]) + left, group.name


def _end(start: float, run_time: float) -> float:
    """Return the end of a run, at least one float step after its start."""
    return max(start + run_time, nextafter(start, inf))


class _View:
    """The plan of one sweep, filled only when queried, and the queries it has rejected.

    Running jobs only release GPUs, so GPUs that are idle beyond the sum of all reservations stay
    idle. Reservations only grow during a sweep, so a job that did not fit rules out all jobs at
    least as wide and as long.
    """

    def __init__(
        self,
        profile: ReservationProfile,
        now: float,
        capacity: int,
        busy: list[tuple[int, float]],
    ) -> None:
        """Clear `profile`, which is the group's plan, and fill it in the course of the sweep.

        `busy` is (width, end) of running jobs. The sweep appends the jobs it starts.
        """
        profile.clear()
        self._now = now
        self._capacity = capacity
        self._busy = busy
        self._planned = 0  # number of entries of `busy` that are in the plan
        self._plan = profile
        self._reserved = 0  # sum of the GPUs of all reservations
        self._pending: list[tuple[int, float, float]] = []
        self._refused: dict[int, float] = {}  # width: shortest run time that did not fit

    def reserve(self, width: int, start: float, end: float) -> None:
        """Reserve GPUs for [start, end)."""
        self._reserved += width
        self._pending.append((width, start, end))

    def fits(self, width: int, run_time: float, idle: int) -> bool:
        """Return whether `width` idle GPUs are not reserved for `run_time` seconds from now."""
        if width + self._reserved <= idle:
            return True
        if width > idle:
            return False
        if any(width >= w and run_time >= t for w, t in self._refused.items()):
            return False
        now, busy = self._now, self._busy
        # An end at this instant has not been reported yet.
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
