"""Why a job waits under SIA: the least that has to go away for the next pass to start it.

For each way to start, its turn within quota and a spare start, obstacles are gathered until a
pass over what is left (`sia_sketch`) starts the job; those without which it starts as well are then
left out again, one by one, and where few are left all parts of them are tried.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable
from itertools import count
from math import ceil

from sia.explain.glance import never_in_turn, never_spare
from sia.explain.why import (
    ByEnd,
    Explanation,
    Obstacle,
    StartPath,
    before,
    by_width,
    first_to_end,
    own_jobs,
)
from sia.limits import UNLIMITED
from sia.model import Stream
from sia.policies.explain.counterfactual import Sketch
from sia.policies.explain.pass_inputs import ROUNDING, Others, PassInputs
from sia.policies.explain.sia_named import Subject, named, others_of
from sia.policies.explain.why_least import MANY, ROUNDS, EnoughError, Kind, Least, Unit
from sia.state.state import JobState, PoolState

MOST_TRIALS = 400
"""Trials for one answer, nearly all of which end before a pass: a bound on time."""

MOST_POOLS, FEWEST_PASSES = 20_000, 30
"""Pools of the group, summed over all passes that are thought through; passes that are in any case.
A pass over a thousand pools takes some milliseconds; few answers need twenty."""


class Inquiry:
    """One question about one waiting job."""

    def __init__(
        self, ground: PassInputs, job: JobState, jobs: Iterable[JobState], now: float
    ) -> None:
        """`jobs` are all that run or wait."""
        self._ground, self._job, self._now = ground, job, now
        self._all = jobs
        self._options = ground.options
        self._bin = bisect_left(ground.options.windows, job.run_time)
        self._before = before(job)
        self._ahead = sum(each.width for each in self._before)
        self._window = self._bin
        self._rivals: dict[PoolState, None] = {}
        self._mine: list[JobState] | None = None
        self._order: ByEnd | None = None
        self._trials = 0
        self._passes = max(FEWEST_PASSES, MOST_POOLS // len(ground.group.pools))
        self._least = Least(self._tried)

    def answer(self) -> Explanation:
        """What it waits for."""
        if self._least.starts(()):
            ways = (
                StartPath("turn", open=True, obstacles=()),
                StartPath("spare", open=True, obstacles=()),
            )
            return Explanation((), ways, exact=True)
        exact = True
        turn, spare = never_in_turn(self._job), never_spare(self._job, self._options)
        found: list[tuple[Unit, ...]] = []
        if turn is None:
            units, sure = self._least.of(self._in_turn(), Stream.DEDICATED)
            turn, exact = self._way("turn", units), exact and sure
            found.append(units)
        if spare is None:
            units, sure = self._least.of(self._on_spare(), None)
            spare, exact = self._way("spare", units), exact and sure
            found.append(units)
        ways = (turn, spare)
        if not found:
            return Explanation((*turn.obstacles, *spare.obstacles), ways, exact)
        fewest = found[0] if len(found[0]) <= len(found[-1]) else found[-1]
        best, sure = self._least.of(fewest, None)
        return Explanation(self._named(best), ways, exact and sure)

    def _sketch(self, units: Collection[Unit]) -> Sketch:
        return Sketch(self._ground, self._job, units)

    @property
    def _tired(self) -> bool:
        return self._trials > MOST_TRIALS or self._passes <= 0

    def _tried(self, units: Collection[Unit], stream: Stream | None) -> bool:
        self._trials += 1
        if self._tired:
            raise EnoughError
        if Sketch(self._ground, self._job, units, light=True).hopeless(self._ahead):
            return False
        self._passes -= 1
        found = self._sketch(units).run(stream)
        return found is not None and stream in (None, found)

    def _running(self) -> list[JobState]:
        if self._mine is None:
            group = self._ground.group
            self._mine = [j for j in self._all if j.stream is not None and j.pool.group is group]
        return self._mine

    def _end_for(self, units: list[Unit], gpus: int) -> None:
        """Have enough jobs end for so many GPUs to be idle."""
        ended = {unit.of for unit in units if unit.kind is Kind.END}
        missing = gpus - Sketch(self._ground, self._job, units, light=True).idle
        if missing > 0:
            if self._order is None:
                self._order = ByEnd(self._running())
            chosen = first_to_end(self._order, missing, ended)
            units += [Unit(Kind.END, each) for each in chosen]

    def _in_turn(self) -> list[Unit]:
        """What keeps it from a start as the head of its pool."""
        job, units = self._job, list[Unit]()
        if self._before:
            units.append(Unit(Kind.TURN, job.pool))
        short = job.pool.dedicated + job.width - job.pool.quota
        if short > 0:
            ends = by_width(ByEnd(own_jobs(job, self._running())), short)
            units += [Unit(Kind.END, each) for each in ends]
        self._end_for(units, job.width)
        self._outdo(units, Stream.DEDICATED)
        return units

    def _outdo(self, units: list[Unit], stream: Stream | None) -> None:
        """Take those away who would start before it, until it starts."""
        for turn in count():
            sketch = self._sketch(units)
            self._passes -= 1
            rivals = sketch.ahead(stream)
            found = sketch.run(stream)
            if (found is not None and stream in (None, found)) or self._tired:
                return
            new = [pool for pool in dict.fromkeys(sketch.started) if not _names(units, pool)]
            if not new:
                return
            if turn or len(new) > MANY or _pools(units):
                new += rivals
            self._add(units, [Unit(Kind.QUEUE, pool) for pool in new], everybody=turn >= ROUNDS)
            self._rivals.update(dict.fromkeys(new))

    def _add(self, units: list[Unit], more: Iterable[Unit], *, everybody: bool = False) -> None:
        """Take more away of pools; where these are many, of all of them together."""
        own = self._job.pool
        units[:] = dict.fromkeys([*units, *more])
        pools = _pools(units) - {own}
        if len(pools) <= MANY:
            return
        if everybody:
            pools.update(pool for pool in self._ground.group.pools if pool is not own)
        units[:] = [unit for unit in units if unit.kind not in _OF_POOLS or unit.of is own]
        units.append(Unit(Kind.OTHERS, Others(pools, self._ground)))

    def _on_spare(self) -> list[Unit]:
        """What keeps it from a start on what nobody will need."""
        units: list[Unit] = []
        job = self._job
        gpus = job.width
        if job.pool.dedicated + job.width > job.pool.quota:  # else it may get its turn, too
            gpus += self._for_itself(job.pool)
        self._end_for(units, gpus)
        sketch = self._sketch(units)
        self._window = min(
            range(self._bin, len(self._options.windows)), key=lambda i: (sketch.reserved[i], i)
        )
        self._unreserve(units, sketch)
        self._outdo(units, None)
        if self._ground.group.limited and not self._starts_within(units):
            self._lift(units)
            self._outdo(units, None)
        if not self._starts_within(units):
            self._make_sure(units)
        return units

    def _starts_within(self, units: list[Unit]) -> bool:
        try:
            return self._least.starts(units)
        except EnoughError:
            return True

    def _unreserve(self, units: list[Unit], sketch: Sketch) -> None:
        """Take away reservations, the largest first, until enough is usable."""
        window, width = self._window, self._job.width
        missing = width - (sketch.idle - sketch.reserved[window])
        held = {pool: sketch.held(pool, window) for pool in self._ground.group.pools}
        pools = sorted((pool for pool in held if held[pool]), key=lambda pool: -held[pool])
        causes: list[Unit] = []
        for pool in pools:
            if missing <= 0:
                break
            causes += self._causes(pool)
            missing -= held[pool]
            if pool is self._job.pool:
                missing += self._for_itself(pool)
        self._add(units, causes)
        if missing > 0:
            units += self._out()

    def _out(self) -> list[Unit]:
        return [Unit(Kind.OUT, None)] if self._ground.group.out else []

    def _for_itself(self, pool: PoolState) -> int:
        """GPUs that are held back for the job itself, in any case."""
        wanted = ceil(self._job.gpus * self._options.slack - ROUNDING)
        return min(wanted, max(0, pool.quota - pool.dedicated))

    def _own_share(self, units: list[Unit]) -> None:
        """Have jobs end until there are as many GPUs as are held back, in its pool, for itself."""
        while True:
            sketch = self._sketch(units)
            missing = self._job.width - (sketch.idle - sketch.reserved[self._window])
            if missing <= 0 or self._starts_within(units):
                return
            ended = len(units)
            self._end_for(units, sketch.idle + missing)
            if len(units) == ended:
                return

    def _causes(self, pool: PoolState) -> list[Unit]:
        """All that may make a reservation of a pool."""
        causes = []
        if self._window in self._ground.keeps[pool]:
            causes.append(Unit(Kind.KEEP, pool))
        if pool.load[self._window]:
            causes.append(Unit(Kind.LOAD, pool))
        if others_of(self._job, pool):
            causes.append(Unit(Kind.QUEUE, pool))
        return causes

    def _lift(self, units: list[Unit]) -> None:
        """Take limits away: its own first, then others', until there is room."""
        group, job = self._ground.group, self._job
        if not group.lending:
            units.append(Unit(Kind.LENDING, None))
        if job.pool.borrow_limit < UNLIMITED:
            units.append(Unit(Kind.BORROW, job.pool))
        sketch = self._sketch(units)
        missing = job.width - sketch.room(self._window)
        limited = [pool for pool in group.pools if pool.lend_limit < UNLIMITED]
        limited.sort(key=lambda pool: -sketch.unlent(pool, self._window))
        lift: list[Unit] = []
        for pool in limited:
            if missing <= 0:
                break
            lift.append(Unit(Kind.LEND, pool))
            missing -= sketch.unlent(pool, self._window)
        self._lend(units, lift)

    def _lend(self, units: list[Unit], lift: list[Unit]) -> None:
        """Take limits on lending away; where they are many, all of them together."""
        if len(lift) > MANY:
            units[:] = [unit for unit in units if unit.kind is not Kind.LEND]
            lift = [Unit(Kind.LENDS, None)]
        units += (unit for unit in lift if unit not in units)

    def _make_sure(self, units: list[Unit]) -> None:
        """Take away all that is in the way of anybody: what is not in its way is left out later."""
        pools = self._ground.group.pools
        self._add(units, [unit for pool in pools for unit in self._causes(pool)], everybody=True)
        units += (unit for unit in self._out() if unit not in units)
        if self._ground.group.limited:
            limits = [Unit(Kind.LEND, pool) for pool in pools if pool.lend_limit < UNLIMITED]
            self._lend(units, limits)
        self._own_share(units)
        if not self._starts_within(units):  # it will have to be its turn, in this way, too
            units += (unit for unit in self._in_turn() if unit not in units)
            self._outdo(units, None)

    def _named(self, units: Collection[Unit]) -> tuple[Obstacle, ...]:
        asked = Subject(self._ground, self._job, self._before, self._window, self._now)
        return named(asked, units, self._rivals)

    def _way(self, name: str, units: Collection[Unit]) -> StartPath:
        return StartPath(name, open=True, obstacles=self._named(units))


_OF_POOLS = (Kind.QUEUE, Kind.LOAD, Kind.KEEP, Kind.OTHERS)


def _pools(units: Iterable[Unit]) -> set[PoolState]:
    """Pools of which something is taken away that waits or is held back."""
    found: set[PoolState] = set()
    for kind, of in units:
        if kind is Kind.OTHERS:
            found |= of.pools
        elif kind in _OF_POOLS:
            found.add(of)
    return found


def _names(units: Iterable[Unit], pool: PoolState) -> bool:
    """Whether what waits in a pool is taken away already."""
    return Unit(Kind.QUEUE, pool) in units or any(
        unit.kind is Kind.OTHERS and pool in unit.of.pools for unit in units
    )
