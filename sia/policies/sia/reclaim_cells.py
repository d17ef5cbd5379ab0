"""`sia-reclaim` in a cluster with cells.

A pool's jobs lie where they would lie in the pool alone (`cell_turns`): when a job's turn comes, it
gets the cells of its own pool that it would have alone, and guests in the way are stopped. Guests
fill the rest, and never a free part of a cell that is bound to a pool, where they would change the
places of the pool's next jobs.

A guest whose own turn comes goes on in its own cells at once. If its pool can bind the cells in
which it runs, it runs on. Otherwise it is stopped and restarts there; only a job whose work pays
for a later stop may stay. A job that ended as a guest keeps cells reserved from its turn on, for as
long as it ran. Guests use these cells, too, and are stopped when the reservation ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from types import MappingProxyType
from typing import Annotated, Any

from msgspec import Meta, Struct, convert, to_builtins

from cells.placement.reservations import ReservedGpus
from sia.contract.policy import Turn
from sia.contract.proposals import Proposals, Start
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView
from sia.limits import MAX_STOPS
from sia.model import NEVER_STOPPED, Stream
from sia.policies.sia.guests import Candidates, bin_of_least
from sia.policies.sia.late_turns import NOT_TO_BE_STOPPED
from sia.policies.sia.recall import SiaRecall


class ReclaimParams(Struct, frozen=True):
    """Options of `sia-reclaim`."""

    stops: Annotated[int, Meta(ge=0, le=MAX_STOPS)] = 2
    """A job that was stopped so often waits for its turn."""
    hard: bool = False
    """Jobs that must not be stopped start at their turns only: no turn is late for them, whatever
    is forecast."""


class _Memory(Struct):
    """What it remembers beyond `SiaRecall`: stops of each guest."""

    sia: Any
    stops: dict[str, int]


class ReclaimInCells(SiaRecall):
    """Lends all idle cells to jobs that may be stopped, and some to others as SIA does."""

    Params = ReclaimParams
    held_up_by = NOT_TO_BE_STOPPED
    _before: Mapping[str, int] = MappingProxyType({})
    """Stops before a snapshot, while it is restored."""

    def attach(self, state: ClusterStateView) -> None:
        """Index running and pending jobs."""
        self._candidates = {group: Candidates(group) for group in state.groups}
        self._stops = {job: stops for job, stops in self._before.items() if job in state.jobs}
        self._idle_cells: dict[GroupStateView, ReservedGpus | None] = {}
        if state.places is not None:  # not while a snapshot is restored
            for group in state.groups:
                first = group.pools[0].name
                self._idle_cells[group] = state.places.reservations(first, exclude_bound=True)
        super().attach(state)

    def memory(self) -> Any:
        """Return what SIA remembers, and how often each guest was stopped."""
        return to_builtins(_Memory(super().memory(), self._stops))

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore turns, guests and counts of stops."""
        stored = convert(memory, _Memory)
        self._before = stored.stops
        super().resume(state, stored.sia)
        for job in state.jobs.values():
            if job.stream is None and not self._may_be_guest(job):
                self._candidates[job.pool.group].drop(job)

    def turn(self, job: JobStateView) -> Turn | None:
        """Return when a job's turn came. Nobody says when it is expected. O(1)."""
        return super().turn(job) or Turn(inf, came=False)

    def _may_be_guest(self, job: JobStateView) -> bool:
        """Return whether a pending job may start before its turn."""
        assert self._turns is not None, "there are cells"
        if job.job.min_run_time is not None:
            return False  # SIA's windows hold it
        stops = self._stops.get(job.job.id, 0)
        return _may_stop(job) and stops < self.params.stops and self._turns.turn_of(job) is None

    def foresees(self, job: JobStateView) -> bool:
        """Return whether forecasts decide on a pending job, because it must not be stopped."""
        return not self._may_be_guest(job)

    def lasting(self, job: JobStateView) -> float:
        """Return the time without stops that a job needs as a guest; infinity if it is none."""
        if not _may_stop(job):
            return inf if self.params.hard else job.run_time
        worn = self._stops.get(job.job.id, 0) >= self.params.stops
        return inf if worn else job.job.min_run_time or job.run_time

    def submitted(self, job: JobStateView) -> None:
        """Queue a job, which may be a guest that was stopped. O(log n)."""
        job_id, group = job.job.id, job.pool.group
        if job_id in self._stoppable[group].jobs:
            self._stops[job_id] = self._stops.get(job_id, 0) + 1
        super().submitted(job)
        if self._may_be_guest(job):
            self._candidates[group].add(job, max(0.0, job.run_time - job.done))

    def left(self, job: JobStateView) -> None:
        """Remove a job from its queue. O(log n)."""
        super().left(job)
        self._candidates[job.pool.group].drop(job)
        if job.stream is None and job.job.id not in self.state.jobs:
            self._stops.pop(job.job.id, None)

    def finished(self, job: JobStateView) -> None:
        """Remove a running job. O(log n)."""
        super().finished(job)
        self._stops.pop(job.job.id, None)

    def bin(self, job: JobStateView) -> int:
        """Return the window of a job that must not be stopped for some time; others need none."""
        if not _may_stop(job):
            return len(self._windows) if self.params.hard else super().bin(job)
        often = self._stops.get(job.job.id, 0) >= self.params.stops
        return len(self._windows) if often else bin_of_least(job, self._windows)

    def _stops_within(self, job: JobStateView) -> int:
        """Return the number of windows: no reservation relies on a stop."""
        return len(self._windows)

    def _may_stay(self, job: JobStateView) -> bool:
        """Return False: another pool may need the cells of a guest, whatever the forecasts."""
        return False

    def _is_waited_for(self, guest: JobStateView) -> bool:
        """Return whether a guest must not be stopped."""
        return not _may_stop(guest)

    def _release(self, job: JobStateView) -> Proposals:
        """Stop the guests in reserved cells before these become open cells of the pool."""
        assert self.state.places is not None, "there are cells"
        guests = self._guests()
        for guest in self.state.places.in_reserved(job.job.id):
            if guest in guests:  # another must not be stopped, and runs on
                yield from self._stop_in_cells(guests[guest], job)
        yield from super()._release(job)

    def _start_spare(self, group: GroupStateView) -> Proposals:
        """Start jobs in SIA's windows, then guests, the one expected to end first at first."""
        yield from super()._start_spare(group)
        assert self._turns is not None, "there are cells"
        candidates = self._candidates[group]
        candidates.relimit()
        yield from self._lend(group, candidates)
        for ended in self._turns.ended() if candidates.jobs else ():
            if ended.pool.group is group:
                yield from self._lend(group, candidates, ended.job.id)

    def _lend(self, group: GroupStateView, candidates: Candidates, inside: str = "") -> Proposals:
        """Start guests in idle cells, or inside the cells reserved for a job that has ended."""
        places = self.state.places
        assert places is not None, "there are cells"
        most = group.idle
        while True:
            most = min(most, group.idle, places.idle_inside(inside) if inside else group.idle)
            job = candidates.first(most)
            if job is None:
                return
            reason = "may be stopped when somebody's turn comes"
            holds = self._idle_cells[group]
            yield Start(job, Stream.SPARE, reason, holds=holds, inside=inside)
            if job.stream is None:
                most = places.narrower(job.pool.name, job.width)
            else:
                self._reserve(job.pool)

    def check(self) -> None:
        """Assert that exactly the jobs which may become guests are candidates."""
        super().check()
        for group, candidates in self._candidates.items():
            pending = (job for pool in group.pools for job in pool.waiting())
            candidates.check({job.arrival for job in pending if self._may_be_guest(job)})
        assert self._stops.keys() <= self.state.jobs.keys()


def _may_stop(job: JobStateView) -> bool:
    """Return whether a job says that it may be stopped."""
    return job.job.preemptible not in (None, NEVER_STOPPED)
