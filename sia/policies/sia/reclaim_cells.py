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

from cells.placement.placing import equal_price
from cells.placement.reservations import ReservedGpus
from sia.contract.policy import Turn
from sia.contract.proposals import Proposals, Record, ReserveCells, Start
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.limits import MAX_STOPS, SLOWED
from sia.model import NEVER_STOPPED, Stream
from sia.policies.sia.cell_turns import VirtualQueue
from sia.policies.sia.guests import MOST_NAMED, Candidates, bin_of_least
from sia.policies.sia.recall import SiaRecall
from sia.state.places import Places


class ReclaimParams(Struct, frozen=True):
    """Options of `sia-reclaim`."""

    stops: Annotated[int, Meta(ge=0, le=MAX_STOPS)] = 2
    """A job that was stopped so often waits for its turn."""
    hard: bool = False
    """Jobs that must not be stopped start at their turns only: no turn is late for them, whatever
    is forecast."""


class _Missed(Struct, frozen=True):
    """The head of a pool whose turn came while jobs that must not be stopped had its cells."""

    job_id: str
    turn: float
    in_the_way: str


class _Late(Struct, frozen=True):
    """The job of a pool that was last given its turn late, and by how many seconds."""

    job_id: str
    seconds: float


class _Memory(Struct):
    """What it remembers beyond `SiaRecall`: stops of each guest; missed and late turns by pool."""

    sia: Any
    stops: dict[str, int]
    missed: dict[str, _Missed] = {}
    late: dict[str, _Late] = {}


class ReclaimInCells(SiaRecall):
    """Lends all idle cells to jobs that may be stopped, and some to others as SIA does."""

    Params = ReclaimParams
    tables = ("late_turns",)
    _before: Mapping[str, int] = MappingProxyType({})
    """Stops before a snapshot, while it is restored."""

    def attach(self, state: ClusterStateView) -> None:
        """Index running and pending jobs."""
        self._candidates = {group: Candidates(group) for group in state.groups}
        self._stops = {job: stops for job, stops in self._before.items() if job in state.jobs}
        self._idle_cells: dict[GroupStateView, ReservedGpus | None] = {}
        self._missed: dict[PoolStateView, _Missed] = {}
        self._late: dict[PoolStateView, _Late] = {}
        self._begun: list[JobStateView] = []  # own jobs that started since a pool's turns began
        if state.places is not None:  # not while a snapshot is restored
            for group in state.groups:
                first = group.pools[0].name
                self._idle_cells[group] = state.places.reservations(first, exclude_bound=True)
        super().attach(state)

    def memory(self) -> Any:
        """Return what SIA remembers, and how often each guest was stopped."""
        missed = {pool.name: found for pool, found in self._missed.items()}
        late = {pool.name: found for pool, found in self._late.items()}
        return to_builtins(_Memory(super().memory(), self._stops, missed, late))

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore turns, guests and counts of stops."""
        stored = convert(memory, _Memory)
        self._before = stored.stops
        super().resume(state, stored.sia)
        missed, late = state.pools_of(stored.missed), state.pools_of(stored.late)
        self._missed = dict(zip(missed, stored.missed.values(), strict=True))
        self._late = dict(zip(late, stored.late.values(), strict=True))
        for job in state.jobs.values():
            if job.stream is None and not self._may_be_guest(job):
                self._candidates[job.pool.group].drop(job)

    def turn(self, job: JobStateView) -> Turn | None:
        """Return when a job's turn came. Nobody says when it is expected. O(1)."""
        assert self._turns is not None, "there are cells"
        came = self._turns.turn_of(job)
        if came is None and job.stream is Stream.DEDICATED:
            came = job.start
        return Turn(inf, came=False) if came is None else Turn(came, came=True)

    def _may_be_guest(self, job: JobStateView) -> bool:
        """Return whether a pending job may start before its turn."""
        assert self._turns is not None, "there are cells"
        if job.job.min_run_time is not None:
            return False  # SIA's windows hold it
        stops = self._stops.get(job.job.id, 0)
        return _may_stop(job) and stops < self.params.stops and self._turns.turn_of(job) is None

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
        if job.stream is Stream.DEDICATED:
            self._begun.append(job)  # forgotten before the next pool's turns
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
        """Return False: whatever the forecasts, somebody may need the cells of a guest."""
        return False

    def _take_turns(
        self, pool: PoolStateView, turns: VirtualQueue, places: Places | None
    ) -> Proposals:
        """Take the turns of a pool as SIA does, and record those that were late."""
        self._begun.clear()
        yield from super()._take_turns(pool, turns, places)
        yield from self._record_late(pool)
        head = turns.first(pool, self.state.jobs)
        missed = self._missed.get(pool)
        if missed is not None and (head is None or head.job.id != missed.job_id):
            del self._missed[pool]
        if head is not None and pool not in self._missed:
            fixed = self._fixed_in_the_way(head)
            if fixed:
                names = ", ".join(fixed[:MOST_NAMED])
                self._missed[pool] = _Missed(head.job.id, self.state.now, names)

    def _record_late(self, pool: PoolStateView) -> Proposals:
        """Record the jobs that have started after their turns, and those late behind them.

        Nobody knows when the turn of a job behind a late one would have been. It was submitted by
        then, and is taken for as late as that job at most.
        """
        now = self.state.now
        for job in [each for each in self._begun if each.pool is pool]:
            missed, before = self._missed.get(pool), self._late.get(pool)
            if missed is not None and missed.job_id == job.job.id:
                turn, fixed, behind = missed.turn, missed.in_the_way, ""
            elif missed is not None:
                turn, fixed, behind = max(missed.turn, job.job.submit), "", missed.job_id
            elif before is not None:
                turn, fixed = max(now - before.seconds, job.job.submit), ""
                behind = before.job_id
            else:
                return
            if now - turn > SLOWED:
                self._late[pool] = _Late(job.job.id, now - turn)
                yield Record("late_turns", (job.job.id, pool.name, turn, now, fixed, behind))
            else:
                self._late.pop(pool, None)  # nobody waited

    def _fixed_in_the_way(self, head: JobStateView) -> list[str]:
        """Return the jobs that must not be stopped and have cells of a pool's head."""
        places, pool = self.state.places, head.pool
        assert places is not None, "there are cells"
        if pool.dedicated + head.width > pool.quota:
            return []
        names = places.blocking_spare_jobs(pool.name, head.job.width, equal_price)
        jobs, own = self.state.jobs, head.job.id
        return [name for name in names if name != own and not _may_stop(jobs[name])]

    def _clear_turn(self, job: JobStateView) -> Proposals:
        """Let a guest keep its cells if its pool can bind them; else stop guests in the way."""
        places, runs = self.state.places, job.stream is Stream.SPARE
        assert places is not None, "there are cells"
        if runs and job.job.id in self.state.jobs and not places.is_reserved(job.job.id):
            yield ReserveCells(job, around=True)
        if not places.is_home(job.job.id):
            yield from super()._clear_turn(job)

    def _settle_turn(self, job: JobStateView) -> Proposals:
        """Have a guest go on in its own cells, unless it runs there."""
        assert self.state.places is not None, "there are cells"
        if not self.state.places.is_home(job.job.id):
            yield from super()._settle_turn(job)

    def _release(self, job: JobStateView) -> Proposals:
        """Stop the guests in reserved cells before these become open cells of the pool."""
        assert self.state.places is not None, "there are cells"
        guests = self._guests()
        for guest in self.state.places.in_reserved(job.job.id):
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
