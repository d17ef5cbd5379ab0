"""SIA that lends all idle GPUs to jobs that may be stopped, and takes them back at a job's turn.

Each pool has a clock (`sia.virtual.turns`), which runs the pool without sharing and determines
which job has its *turn*. At its turn a pending job starts, and a running one counts within its
pool's quota from then on. Such *own* jobs are never stopped. All other running jobs are *guests*.
If idle GPUs do not suffice for a turn, guests are stopped until they do; they return to their
places in the queue. So a guest never runs later than without sharing, and neither does a job whose
GPUs it uses (docs/lending.md states when, and why).

Jobs that must not be stopped become guests in SIA's windows only.
"""

from __future__ import annotations

from itertools import islice
from math import inf
from typing import Any

from msgspec import Struct, convert, to_builtins

from sia.contract.policy import Changes, Needs, Turn, next_multiple
from sia.contract.proposals import Dedicate, Preempt, Proposals, Start, Wake
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.limits import SLOWED, UNKNOWN_RUN_TIME
from sia.model import NEVER_STOPPED, RESTART, Stream
from sia.policies.sia.guests import Candidates, Guests, bin_of_least
from sia.policies.sia.late_turns import LATE_TURNS, MOST_NAMED, NOT_TO_BE_STOPPED, LateTurn
from sia.policies.sia.own_turns import HighestPriorities, OwnTurns
from sia.policies.sia.policy import Sia
from sia.policies.sia.reclaim_cells import ReclaimInCells, ReclaimParams
from sia.virtual.turns import NextEnds, TurnClock, TurnClockSnapshot

AS_GUEST = "may be stopped when somebody's turn comes"
"""Why a guest starts."""


class _Lending:
    """The guests of a group and the jobs whose turn has come without effect so far.

    `settled` are guests that would run in their pool's own quota if everybody ahead of them ran
    there, too. They are stopped last.
    """

    def __init__(self, group: GroupStateView) -> None:
        self.candidates = Candidates(group)
        self.tried = Candidates(group)
        """Candidates that lose all their work at a stop, and may be stopped only once more."""
        self.guests = Guests()
        self.settled = Guests()
        self.claims: dict[int, JobStateView] = {}  # in order of their turns
        self.fresh: dict[int, float] = {}
        """Running jobs that have reported no work since their start, with what they had done."""
        self.behind: dict[int, JobStateView] = {}
        """Own jobs that began late and will end later than alone."""
        self.leaving = -inf
        """The time until which stopped guests may still hold their GPUs."""
        self.missed: dict[int, tuple[float, str]] = {}
        """By claim that was not served at its turn: the turn, and the jobs that held the GPUs."""
        self.latest: dict[PoolStateView, str] = {}
        """The job of each pool that was last given its turn late: it makes later turns late."""

    def drop(self, job: JobStateView) -> None:
        """Let a job be no candidate any more. O(1)."""
        if not self.candidates.drop(job):
            self.tried.drop(job)


class _Memory(Struct):
    """What `SiaReclaim` remembers. Jobs are given by number of arrival, pools by name."""

    uncovered: list[str]
    clocks: dict[str, TurnClockSnapshot]
    guests: dict[str, list[tuple[int, float]]]
    """By group, running guests in order of their starts, with their expected ends."""
    settled: dict[str, list[tuple[int, float]]]
    claims: dict[str, list[int]]
    fresh: dict[str, list[tuple[int, float]]]
    behind: dict[str, list[int]]
    leaving: dict[str, float | None]
    missed: dict[str, list[tuple[int, float, str]]]
    latest: dict[str, str]
    """By pool, the job that was last given its turn late."""
    stops: list[tuple[int, int]]
    highest: dict[str, list[tuple[float, int]]] = {}
    """By pool, times and priorities of recent jobs: times ascend, priorities fall."""


class SiaReclaim(Sia):
    """Lends whatever is idle to jobs that may be stopped, and to others as SIA does."""

    Params = ReclaimParams
    heeds = frozenset({"preemptible", "min_run_time"})
    needs = Needs(run_times=True, updates=True, loads=True, preemption=True)
    places = True
    in_cells = ReclaimInCells
    tables = (LATE_TURNS,)

    def attach(self, state: ClusterStateView) -> None:
        """Index pending and running jobs. Dedicated ones have had their turn."""
        self._begin(state)
        super().attach(state)
        self._take_over()

    def _turns_of(self, state: ClusterStateView) -> OwnTurns | None:
        """Return None: the clocks are in `_clocks`."""
        return None

    def _begin(self, state: ClusterStateView) -> None:
        self._highest = HighestPriorities(state)
        self._clocks = {pool: TurnClock(pool.quota) for pool in state.pools.values()}
        self._lendings = {group: _Lending(group) for group in state.groups}
        self._jobs: dict[int, JobStateView] = {}  # by number of arrival
        self._stops: dict[int, int] = {}  # how often each job was stopped as a guest, if it was
        self._ends = NextEnds()

    def _take_over(self) -> None:
        """Take the running jobs that another policy started."""
        for job in self.state.jobs.values():
            clock = self._clocks[job.pool]
            if job.stream is not None and job.arrival not in clock:
                self._jobs[job.arrival] = job
                if job.stream is Stream.DEDICATED:
                    clock.running(job.arrival, job.start, job.width)
                else:
                    clock.submitted(job.arrival, job.sequence, job.width, job.job.submit)
                    self._welcome(job)

    def memory(self) -> Any:
        """Return clocks, guests, claims and counts of stops."""
        lendings = {group.first: own for group, own in self._lendings.items()}
        memory = _Memory(
            [group.first for group in self._uncovered],
            {pool.name: clock.memory() for pool, clock in self._clocks.items()},
            {name: own.guests.memory() for name, own in lendings.items()},
            {name: own.settled.memory() for name, own in lendings.items()},
            {name: [*own.claims] for name, own in lendings.items()},
            {name: [*own.fresh.items()] for name, own in lendings.items()},
            {name: [*own.behind] for name, own in lendings.items()},
            {n: None if own.leaving == -inf else own.leaving for n, own in lendings.items()},
            {name: [(n, *why) for n, why in own.missed.items()] for name, own in lendings.items()},
            {pool.name: job for own in lendings.values() for pool, job in own.latest.items()},
            sorted(self._stops.items()),
            self._highest.memory(),
        )
        return to_builtins(memory)

    def resume(self, state: ClusterStateView, memory: Any) -> None:
        """Restore everything. O(n log n). Jobs that the memory lacks are taken as by `attach`."""
        kept = convert(memory, _Memory)
        self._begin(state)
        self._stops = dict(kept.stops)
        for pool, clock in zip(state.pools_of(kept.clocks), kept.clocks.values(), strict=True):
            self._clocks[pool] = TurnClock.resumed(clock)
            self._ends.put(pool.name, self._clocks[pool])
        super().attach(state)
        jobs = self._jobs = {job.arrival: job for job in state.jobs.values()}
        for group, own in self._lendings.items():
            try:
                own.guests.resume(kept.guests.get(group.first, []), jobs, self._yields)
                own.settled.resume(kept.settled.get(group.first, []), jobs, lambda _: False)
                own.claims = {number: jobs[number] for number in kept.claims.get(group.first, [])}
                own.fresh = dict(kept.fresh.get(group.first, []))
                own.behind = {number: jobs[number] for number in kept.behind.get(group.first, [])}
                leaving = kept.leaving.get(group.first)
                own.leaving = -inf if leaving is None else leaving
                own.missed = {n: (turn, why) for n, turn, why in kept.missed.get(group.first, [])}
            except KeyError as error:
                raise ValueError(f"no job with number {error} is in the cluster") from None
        for pool, job_id in zip(state.pools_of(kept.latest), kept.latest.values(), strict=True):
            self._lendings[pool.group].latest[pool] = job_id
        self._take_over()
        self._highest.resume(kept.highest, state)
        self._uncovered = dict.fromkeys(state.groups_of(kept.uncovered))
        for pool in state.pools.values():
            self._reserve(pool)

    def bin(self, job: JobStateView) -> int:
        """Return the index of the first window that covers the time without stops that a job needs.

        This time is the minimum run time of a job that may be stopped, and the whole run time of
        another job. Return the number of windows if no window is long enough, if the job may be
        stopped at any time or was stopped as often as allowed, or if it must not be stopped and
        option `hard` is set.
        """
        if not _may_stop(job):
            return len(self._windows) if self.params.hard else super().bin(job)
        return len(self._windows) if self._is_worn(job) else bin_of_least(job, self._windows)

    def submitted(self, job: JobStateView) -> None:
        """Queue a job, which may have been stopped. O(log n)."""
        number, clock = job.arrival, self._clocks[job.pool]
        own = self._lendings[job.pool.group]
        self._highest.note(job)
        if job.attempt:
            own.fresh.pop(number, None)
            if own.guests.drop(job) or own.settled.drop(job):
                self._stops[number] = self._stops.get(number, 0) + 1
        if clock.turn(number) is None:
            clock.submitted(number, job.sequence, job.width, job.job.submit)
            self._jobs[number] = job
            if not self.foresees(job):
                candidates = own.tried if self._is_last_try(job) else own.candidates
                candidates.add(job, _left(job))
        else:
            own.claims[number] = job
        super().submitted(job)

    def left(self, job: JobStateView) -> None:
        """Remove a job from its queue; one that starts before its turn is a guest. O(log n)."""
        super().left(job)
        own = self._lendings[job.pool.group]
        own.drop(job)
        own.claims.pop(job.arrival, None)
        own.missed.pop(job.arrival, None)
        if job.stream is not None:
            own.fresh[job.arrival] = job.done
            if job.stream is Stream.SPARE:
                self._welcome(job)
            elif self.state.now < own.leaving:
                own.behind[job.arrival] = job  # it may have to wait for its GPUs
            else:
                self._note_late(own, job)
        elif job.stream is None and job.job.id not in self.state.jobs:
            self._clocks[job.pool].withdrawn(job.arrival)
            self._forget(job)

    def _welcome(self, job: JobStateView) -> None:
        """Note a guest that has just started, unless it must not be stopped. O(log n)."""
        if _may_stop(job):
            pool, own = job.pool, self._lendings[job.pool.group]
            head = pool.head
            first = head is None or head.sequence > job.sequence
            settled = first and pool.dedicated + pool.spare <= pool.quota
            end = job.end(job.run_time)
            if settled:
                own.settled.add(job, end)
            else:
                own.guests.add(job, end, yields=self._yields(job))

    def _yields(self, job: JobStateView) -> bool:
        """Return whether a guest makes room for others: it keeps work, and may be stopped again."""
        return (
            not self._is_worn(job)
            and job.job.stop_seconds is not None
            and job.job.min_run_time is None
        )

    def finished(self, job: JobStateView) -> None:
        """Remove a running job. Its pool's clock counts the time that the whole job took."""
        now, own = self.state.now, self._lendings[job.pool.group]
        kept = job.runs > 1 and job.job.preemptible != RESTART
        waited = job.since > job.start and job.speed == 1.0  # for its GPUs, after it was started
        ran = job.work(now) if kept or waited else now - job.start
        own.fresh.pop(job.arrival, None)
        own.behind.pop(job.arrival, None)
        self._clocks[job.pool].ended(now, job.arrival, ran)
        if not own.guests.drop(job):
            own.settled.drop(job)
        own.claims.pop(job.arrival, None)
        self._forget(job)

    def _forget(self, job: JobStateView) -> None:
        del self._jobs[job.arrival]
        self._stops.pop(job.arrival, None)

    def progressed(self, job: JobStateView) -> None:
        """Take the new expected end of a guest. O(log n)."""
        super().progressed(job)
        own = self._lendings[job.pool.group]
        for guests in (own.guests, own.settled):
            guests.expect(job, job.end(job.run_time))
        if job.done <= own.fresh.get(job.arrival, -inf):  # it begins only now
            own.behind.pop(job.arrival, None)
            self._note_late(own, job)
        else:
            own.fresh.pop(job.arrival, None)

    def _note_late(self, own: _Lending, job: JobStateView) -> None:
        """Note whether a job that begins has had its turn before, and has lost by it."""
        turn = self._clocks[job.pool].turn(job.arrival)
        if turn is not None and job.since - turn > job.done + SLOWED:
            own.behind[job.arrival] = job

    def due(self) -> float:
        """Return when a job next ends in the schedule of its pool alone."""
        return self._ends.next

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Turns first, then SIA's windows, then guests on all that is idle."""
        pools = dict.fromkeys(changes.pools)
        if self._ends.next <= now:
            pools.update(dict.fromkeys(self.state.pools_of(self._ends.take(now))))
        for pool in pools:
            self._advance(pool, now)
        for pool in changes.pools:
            self._reserve(pool)
        groups, self._uncovered = self._uncovered, {}
        for pool in pools:
            groups[pool.group] = None
        for group in groups:
            if self._is_at_rest(group):
                continue
            yield from self._start_heads(group)
            yield from self._start_spare(group)
            yield from self._lend(group)
        wake = self._ends.next
        for own in self._groups.values():
            if own.waiting:
                wake = min(wake, next_multiple(now, self.state.options.tick))
                break
        if wake < inf:
            yield Wake(wake)

    def _is_at_rest(self, group: GroupStateView) -> bool:
        """Return whether no job of a group can start or be stopped now. O(1).

        This holds in two of five passes on pieces of Philly.
        """
        own = self._lendings[group]
        if own.claims or own.behind:
            return False
        return not self.state.waiting or (group.idle <= 0 and not own.guests.yielding)

    def _advance(self, pool: PoolStateView, now: float) -> None:
        """Find the turns of a pool that have come. Guests among them are not stopped any more."""
        clock = self._clocks[pool]
        if not clock.changed and clock.quota == pool.quota and clock.next_end > now:
            return
        own = self._lendings[pool.group]
        clock.quota = pool.quota
        for number in clock.advance(now):
            job = own.claims[number] = self._jobs[number]
            own.drop(job)
            if not own.guests.drop(job):
                own.settled.drop(job)
        self._ends.put(pool.name, clock)

    def _start_heads(self, group: GroupStateView) -> Proposals:
        """Give GPUs to jobs whose turn has come, then to heads that would fit in their quota."""
        own = self._lendings[group]
        if own.claims:
            yield from self._give_turns(group, own)
        if own.behind and (missing := self._held(own) - group.idle + group.out) > 0:
            heads = [pool.head for pool in group.pools if pool.head is not None]
            behind = {job.pool for job in own.behind.values()}
            yield from self._stop(own, missing, [head for head in heads if head.pool in behind])
        seen: set[PoolStateView] = set()
        lineup = self._groups[group].lineup
        while (pool := lineup.first(besides=seen)) is not None:
            head = pool.head
            assert head is not None, "a pool without a head is not lined up"
            seen.add(pool)
            room = pool.room - self._held(own, besides=pool)
            if head.arrival in own.claims:
                # Its turn came after that of a job of lower priority, which still lacks GPUs.
                if head.width <= min(room, pool.quota - pool.dedicated):
                    yield from self._start_own(own, head)
                    seen.discard(pool)
            elif head.width <= room and self._may_start_early(head):
                yield Start(
                    head, Stream.SPARE, "those ahead of it need no more of its pool's quota"
                )
                self._line_up(pool)
                seen.discard(pool)

    def _give_turns(self, group: GroupStateView, own: _Lending) -> Proposals:
        """Dedicate running jobs, and stop as many guests as the pending ones need."""
        starts: list[JobStateView] = []
        for job in [*own.claims.values()]:
            pool = job.pool
            if job.stream is not Stream.SPARE:
                starts.append(job)
            elif pool.dedicated + job.width <= pool.quota and group.idle >= 0:
                yield Dedicate(job, "its turn has come")
                del own.claims[job.arrival]
                self._reserve(pool)
        starts = self._that_fit(group, own, starts)
        missing = sum(job.width for job in starts) - group.idle + group.out
        if missing > 0:
            yield from self._stop(own, missing, starts)
        for job in starts:
            if job.width <= group.idle:
                yield from self._start_own(own, job)
        if own.claims:
            self._note_missed(group, own)

    def _start_own(self, own: _Lending, job: JobStateView) -> Proposals:
        """Start a job whose turn has come. If that was earlier, name the jobs that blocked it."""
        now, number, pool = self.state.now, job.arrival, job.pool
        _, fixed = own.missed.get(number, (now, ""))
        turn = self._clocks[pool].turn(number)
        if turn is None or now - turn <= SLOWED:
            yield Start(job, Stream.DEDICATED, "its turn has come")
        else:
            late = LateTurn(turn, fixed, "" if fixed else own.latest.get(pool, ""))
            yield Start(job, Stream.DEDICATED, late.reason(now, NOT_TO_BE_STOPPED))
            if job.stream is not None:
                yield late.row(job, now)
                own.latest[pool] = job.job.id
        self._reserve(pool)

    def _note_missed(self, group: GroupStateView, own: _Lending) -> None:
        """Record the missed turn, and the unstoppable guests that have GPUs. O(n)."""
        late = (job for job in own.claims.values() if job.stream is None)
        new = [job for job in late if job.arrival not in own.missed]
        if new:
            spare = (job for job in self.state.jobs.values() if job.stream is Stream.SPARE)
            mine = (job for job in spare if job.pool.group is group and not _may_stop(job))
            fixed = [job.job.id for job in mine]
            for job in new:
                own.missed[job.arrival] = self.state.now, ", ".join(fixed[:MOST_NAMED])

    def _held(self, own: _Lending, besides: PoolStateView | None = None) -> int:
        """Return the GPUs that pools with a late own job take back ahead of turns. O(late jobs).

        Such a job hides an end: alone it would have ended, and somebody's turn would have come.
        """
        if not own.behind:
            return 0
        pools = dict.fromkeys(job.pool for job in own.behind.values() if job.pool is not besides)
        return sum(max(0, min(p.quota - p.dedicated, p.pending_width)) for p in pools)

    def _that_fit(
        self, group: GroupStateView, own: _Lending, jobs: list[JobStateView]
    ) -> list[JobStateView]:
        """Return the jobs that can start if guests are stopped; in each pool in order."""
        there = group.idle + own.guests.gpus + own.settled.gpus
        left: dict[PoolStateView, int] = {}  # GPUs of its quota; 0 once a job did not fit
        fit = []
        for job in jobs:
            pool, width = job.pool, job.width
            quota = left.get(pool, pool.quota - pool.dedicated)
            if width <= min(quota, there):
                fit.append(job)
                there -= width
                left[pool] = quota - width
            else:
                left[pool] = 0
        return fit

    def _stop(self, own: _Lending, missing: int, heads: list[JobStateView]) -> Proposals:
        """Stop guests, those that lose least; settled ones last."""
        names = ", ".join(dict.fromkeys(head.pool.name for head in heads))
        stops: list[JobStateView] = []
        for settling in (False, True):
            for guests in (own.guests, own.settled):
                if missing > 0:
                    more = guests.to_stop(missing, self.state.now, settling=settling)
                    missing -= sum(job.width for job in more)
                    stops += more
        whose = f"a job of {names}" if len(heads) == 1 else f"jobs of {names}"
        yield from self._stop_all(own, stops, f"the turn of {whose} has come")

    def _stop_all(self, own: _Lending, stops: list[JobStateView], reason: str) -> Proposals:
        if stops:
            own.leaving = max(own.leaving, self.state.now + self.state.options.grace)
        for job in stops:
            yield Preempt(job, reason)
            self._reserve(job.pool)

    def _lend(self, group: GroupStateView) -> Proposals:
        """Start guests on what is idle, the one that is expected to end first at first."""
        own = self._lendings[group]
        for candidates in (own.candidates, own.tried):
            candidates.relimit()
            if candidates is own.tried and not self._may_try(group, own):
                break
            while (job := candidates.first(group.idle - self._held(own))) is not None:
                yield Start(job, Stream.SPARE, AS_GUEST)
                self._line_up(job.pool)
        if own.guests.yielding and not group.limited:
            yield from self._make_room(group, own)

    def _may_try(self, group: GroupStateView, own: _Lending) -> bool:
        """Return whether jobs that were stopped may be guests: one pool at most waits. O(pools)."""
        if not own.tried.jobs or group.idle <= 0:
            return False
        waiting = (pool for pool in group.pools if pool.pending_width)
        return next(islice(waiting, 1, None), None) is None

    def _make_room(self, group: GroupStateView, own: _Lending) -> Proposals:
        """Stop guests for jobs that are expected to end much sooner, and start these as guests.

        O(different widths) for each start.
        """
        while True:
            idle, now = group.idle - self._held(own), self.state.now
            for job in own.candidates.each_first():
                missing = job.width - idle
                stops = own.guests.to_make_room(missing, job.width, _left(job), now)
                if stops:
                    break
            else:
                return
            yield from self._stop_all(
                own, stops, f"a job of {job.pool.name} is expected to end much sooner"
            )
            if job.width > group.idle - self._held(own):
                return  # a limit on stops kept some of them
            yield Start(job, Stream.SPARE, AS_GUEST)
            self._line_up(job.pool)

    def turn(self, job: JobStateView) -> Turn | None:
        """Return when a job's turn came, or is expected by the estimates. O(n log n) of its pool.

        O(1) if it came.
        """
        clock, number = self._clocks[job.pool], job.arrival
        came = clock.turn(number)
        if came is not None:
            return Turn(came, came=True)
        if not clock.waits(number):
            return None
        jobs, now = self._jobs, self.state.now
        time = clock.expected_turn(number, now, lambda other: jobs[other].run_time)
        return Turn(time if time < UNKNOWN_RUN_TIME else inf, came=False)

    def foresees(self, job: JobStateView) -> bool:
        """Return whether forecasts decide on a pending job, because it must not be stopped."""
        return not _may_stop(job) or self._is_worn(job) or job.job.min_run_time is not None

    def lasting(self, job: JobStateView) -> float:
        """Return the time without stops that a job needs as a guest; infinity if it is none."""
        if not _may_stop(job):
            return inf if self.params.hard else job.run_time
        return inf if self._is_worn(job) else job.job.min_run_time or job.run_time

    def _is_worn(self, job: JobStateView) -> bool:
        """Return whether a job was stopped as often as allowed."""
        stops: int = self.params.stops
        return self._stops.get(job.arrival, 0) >= stops

    def _is_last_try(self, job: JobStateView) -> bool:
        """Return whether a job that loses all its work was stopped and may be once more.

        On pieces of Philly such jobs are stopped again three times as often as others are stopped,
        and gain little before. So they are guests only where nobody of another pool waits, or as
        the head of their pool (`_start_heads`), where they are stopped last.
        """
        stops: int = self.params.stops
        return 0 < self._stops.get(job.arrival, 0) == stops - 1 and job.job.preemptible == RESTART

    def _may_start_early(self, head: JobStateView) -> bool:
        """Return whether a head needs neither its turn nor a window.

        A job that cannot be stopped would block jobs of its pool with higher priority. A job that
        was stopped as often as allowed could be stopped once more: for a job that cannot be
        stopped, after a quota is reduced, or if unstoppable jobs hold the GPUs of another turn.
        """
        if head.job.min_run_time is not None:
            return False
        if not _may_stop(head):
            return not self.params.hard and self.overtaken_by(head) is None
        return not self._is_worn(head)

    def overtaken_by(self, job: JobStateView) -> int | None:
        """Return the priority of jobs that may need the GPUs of an unstoppable job, or None."""
        highest = self._highest.of(job.pool)
        if _may_stop(job) or job.job.priority >= highest:
            return None
        return highest if self._clocks[job.pool].waits(job.arrival) else None

    def _may_begin(self, head: JobStateView) -> bool:
        """Return whether a head would fit in its quota if all jobs ahead of it ran there."""
        pool = head.pool
        return pool.dedicated + pool.spare + head.width <= pool.quota

    def _why_spare(self, job: JobStateView, window: int) -> str:
        """Return why a job starts in a window; one that may be stopped may outlast it."""
        return AS_GUEST if _may_stop(job) else super()._why_spare(job, window)

    def _usable(self, group: GroupStateView, window: int) -> int:
        """Return the idle GPUs beyond those for reservations that stopping guests cannot cover."""
        own = self._lendings[group]
        idle, kept = group.idle - group.out - self._held(own), self.plan[group].reserved[window]
        able = sum(guests.gpus - guests.lasting for guests in (own.guests, own.settled))
        return min(idle, idle + able - kept)

    def _demand(self, pool: PoolStateView) -> int:
        """Count guests, too: once their turn comes they cannot be stopped for others.

        So reservations stay the same when a guest starts.
        """
        return pool.pending_width + pool.spare

    def check(self) -> None:
        """Assert that clocks, guests and candidates agree with the state."""
        super().check()
        jobs = self.state.jobs.values()
        assert self._jobs == {job.arrival: job for job in jobs}
        assert self._stops.keys() <= self._jobs.keys()
        for pool, clock in self._clocks.items():
            clock.check()
            assert all(job.arrival in clock for job in jobs if job.pool is pool), pool.name
            assert pool in self.state.dirty or self._ends.foresees(pool.name, clock), pool.name
        for group, own in self._lendings.items():
            mine = [job for job in jobs if job.pool.group is group]
            early = {job.arrival: job for job in mine if self._clocks[job.pool].waits(job.arrival)}
            assert all(early[n].stream is Stream.SPARE for n in own.guests.jobs), group.name
            assert all(early[n].stream is Stream.SPARE for n in own.settled.jobs), group.name
            assert not own.guests.jobs.keys() & own.settled.jobs.keys(), group.name
            assert not own.claims.keys() & early.keys(), group.name
            waiting = [job for job in early.values() if job.stream is None]
            able = {job.arrival: job for job in waiting if not self.foresees(job)}
            tried = {number for number, job in able.items() if self._is_last_try(job)}
            own.candidates.check(able.keys() - tried)
            own.tried.check(tried)
            assert own.missed.keys() <= {job.arrival for job in mine if job.stream is None}
            own.guests.check()
            own.settled.check()


def _may_stop(job: JobStateView) -> bool:
    """Return whether a job says that it may be stopped."""
    return job.job.preemptible not in (None, NEVER_STOPPED)


def _left(job: JobStateView) -> float:
    """Return the seconds that a pending job is expected to run."""
    left = max(0.0, job.run_time - job.done)
    return left + (min(job.job.stop_seconds or 0.0, job.done) if job.done else 0.0)
