"""Why a job waits, as data: for each way in which it could start, the obstacles on that way.

An answer is true in this sense: were all that the obstacles name taken away at once, the job would
start in the pass that follows, and of nothing less would it. Where a policy cannot say that,
`Explanation.exact` is off, and what stands there are facts of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import nsmallest
from math import inf
from typing import Literal

from msgspec import Struct

from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Stream
from sia.state.state import JobState, PoolState


class EndingJob(Struct, frozen=True):
    """A running job that would make room. `end` is when it is thought to (seconds); None: unknown.

    One that has run longer than was thought may end at any time: `late`. The daemon merges those of
    a pool that the asker may not see into one, without `job` and `end`.
    """

    job: str
    pool: str
    gpus: int
    end: float | None
    late: bool = False


class OrderObstacle(Struct, frozen=True, tag="turn"):
    """Jobs of its pool stand before it. Taken away: they are withdrawn."""

    jobs: int
    gpus: int
    first: str


class QuotaObstacle(Struct, frozen=True, tag="quota"):
    """Its pool's quota has too few GPUs left, by `short`. Taken away: `ends` have ended."""

    pool: str
    short: int
    left: int
    quota: int
    ends: tuple[EndingJob, ...]


class RoomObstacle(Struct, frozen=True, tag="room"):
    """Too few GPUs are idle in its group. Taken away: `ends` have ended."""

    short: int
    idle: int
    ends: tuple[EndingJob, ...]


class Reservation(Struct, frozen=True, tag="reservation"):
    """GPUs are held back for a pool in a window (seconds). Taken away: what it says of the causes.

    `waiting` are the GPUs of jobs that wait there, this one left out: withdrawn. `load` is what
    the forecast says for the window: 0 in all windows. With `keeps` the pool was told to lend
    nothing for so long. A cause that need not go away is 0. What is held back now is so until
    `until` at the latest, unless more waits or is foreseen there by then.
    """

    pool: str
    window: float
    gpus: int
    waiting: int
    load: int
    keeps: bool
    until: float


class Rival(Struct, frozen=True, tag="rival"):
    """A pool whose jobs would be given the GPUs first. Taken away: all that wait are withdrawn."""

    pool: str
    jobs: int
    gpus: int


class OtherPools(Struct, frozen=True, tag="others"):
    """Pools, too many to go through one by one, that are served first or have GPUs held back.

    Taken away: all that waits there, and all that is foreseen there; as a whole. `gpus` are those
    of the waiting jobs, `held` those that are held back in the window (seconds); `largest` of them
    for whom.
    """

    pools: int
    jobs: int
    gpus: int
    window: float
    held: int
    largest: tuple[tuple[str, int], ...]


class LimitObstacle(Struct, frozen=True, tag="limit"):
    """Lending is off, or a pool may lend or borrow no more. Taken away: there is no such limit.

    Without a `pool` limits of more than eight pools on lending are one: there are none at all.
    """

    kind: Literal["lending", "lend", "borrow"]
    pool: str = ""
    limit: int = 0


class Out(Struct, frozen=True, tag="out"):
    """GPUs of its group are out; spare jobs leave as many idle. Taken away: all are in again."""

    gpus: int


class Length(Struct, frozen=True, tag="length"):
    """It is thought to run longer than anybody foresees. `run_time` is None if nothing is known."""

    run_time: float | None
    longest: float


class Width(Struct, frozen=True, tag="width"):
    """It is wider than its pool's quota, or than what could ever be lent: that way it never starts.

    `most` is the widest that could.
    """

    gpus: int
    most: int


Obstacle = (
    OrderObstacle
    | QuotaObstacle
    | RoomObstacle
    | Reservation
    | Rival
    | OtherPools
    | LimitObstacle
    | Out
    | Length
    | Width
)


class StartPath(Struct, frozen=True):
    """One way to start: in its turn within quota (`turn`), or on spare GPUs (`spare`).

    Not `open` where nothing that may be taken away would do.
    """

    name: str
    open: bool
    obstacles: tuple[Obstacle, ...]


class Explanation(Struct, frozen=True):
    """What a job waits for: `obstacles`, on the way that has the fewest, and all the ways."""

    obstacles: tuple[Obstacle, ...]
    ways: tuple[StartPath, ...]
    exact: bool
    """That it starts without these obstacles, and with any of them it does not."""
    unknown: str = ""
    """Where it is not: what was not worked out, for people."""


def thought_end(job: JobState, now: float) -> float:
    """When a running job is thought to end, never in the past; infinite if nobody knows."""
    if job.run_time >= UNKNOWN_RUN_TIME:
        return inf
    return max(now, job.end(job.run_time))


def leaves(job: JobState, now: float) -> EndingJob:
    """A running job as an answer shows it."""
    end = thought_end(job, now)
    late = end < inf and job.end(job.run_time) < now
    return EndingJob(job.job.id, job.pool.name, job.width, None if end == inf else end, late)


SOONEST = 64
"""Jobs that are put in order at first: few answers name more, of thousands that run."""


class ByEnd:
    """Running jobs by their thought ends, those that are late first; in order as far as is asked.

    Ties go to who arrived first.
    """

    def __init__(self, running: Iterable[JobState]) -> None:
        """O(n)."""
        self._jobs = [*running]
        self._ends = [  # with one attempt it is the same, and most have one
            j.start + j.run_time if j.attempt == 1 else j.end(j.run_time) for j in self._jobs
        ]
        self._order: list[JobState] = []
        self._last = -inf

    def __iter__(self) -> Iterator[JobState]:
        """O(n) for the first, and whenever twice as many are asked for as before."""
        at = 0
        while at < len(self._order) or self._go_on():
            yield self._order[at]
            at += 1

    def _go_on(self) -> bool:
        left = (end for end in self._ends if end > self._last)
        soonest = nsmallest(max(SOONEST, len(self._order)), left)
        if not soonest:
            return False
        ends, jobs, last = enumerate(self._ends), self._jobs, soonest[-1]
        soon = [(end, jobs[i].sequence, i) for i, end in ends if self._last < end <= last]
        self._order += (jobs[i] for _, _, i in sorted(soon))
        self._last = last
        return True


def first_to_end(order: ByEnd, gpus: int, besides: Collection[JobState] = ()) -> list[JobState]:
    """Of some running jobs those that make so many GPUs idle first, none that can be spared.

    But for such as only take part in bringing a pool below its quota. Fewer GPUs where all of them
    are not enough. Those in `besides` have ended already: dedicated
    jobs of a pool whose quota has shrunk make idle only what they have within it.
    """
    over = _Over(besides)
    return _soonest(order, gpus, over.ended, over.end)


def by_width(order: ByEnd, gpus: int) -> list[JobState]:
    """Of some running jobs those that have so many GPUs first, none that can be spared."""
    return _soonest(order, gpus, (), lambda job: job.width)


def _soonest(
    order: ByEnd, gpus: int, besides: Collection[JobState], made: Callable[[JobState], int]
) -> list[JobState]:
    chosen: list[tuple[int, JobState]] = []
    for job in order:
        if gpus <= 0:
            break
        if job not in besides:
            chosen.append((made(job), job))
            gpus -= chosen[-1][0]
    spared = set()
    for width, job in sorted(chosen, key=lambda each: (each[0], -each[1].sequence)):
        if gpus + width <= 0 and width == job.width:  # or else others make less without it
            spared.add(job)
            gpus += width
    return [job for _, job in chosen if job not in spared]


class _Over:
    """GPUs by which pools use more than their quota, as their dedicated jobs end."""

    def __init__(self, ended: Iterable[JobState]) -> None:
        self._over: dict[PoolState, int] = {}
        self.ended = set(ended)
        for job in self.ended:
            self.end(job)

    def end(self, job: JobState) -> int:
        """GPUs that are idle once this one has ended, too."""
        if job.stream is Stream.SPARE:
            return job.width
        pool = job.pool
        over = self._over.get(pool, max(0, pool.dedicated - pool.quota))
        self._over[pool] = max(0, over - job.width)
        return max(0, job.width - over)


def before(job: JobState) -> list[JobState]:
    """Those of its pool that wait before it, in order. O(n) of its pool."""
    return [other for other in job.pool.waiting() if other.sequence < job.sequence]


def turn_of(ahead: Sequence[JobState]) -> OrderObstacle:
    """The obstacle that these are."""
    return OrderObstacle(len(ahead), sum(each.gpus for each in ahead), ahead[0].job.id)


def own_jobs(job: JobState, jobs: Iterable[JobState]) -> list[JobState]:
    """Dedicated jobs of its pool that run. O(jobs)."""
    pool = job.pool
    return [each for each in jobs if each.pool is pool and each.stream is Stream.DEDICATED]


def quota_of(job: JobState, jobs: Iterable[JobState], now: float) -> QuotaObstacle | None:
    """What its pool's quota lacks for it, and whose end makes up for it first; None if nothing."""
    pool = job.pool
    short = pool.dedicated + job.gpus - pool.quota
    if short <= 0:
        return None
    chosen = by_width(ByEnd(own_jobs(job, jobs)), short)
    left = max(0, pool.quota - pool.dedicated)
    return QuotaObstacle(
        pool.name, short, left, pool.quota, tuple(leaves(each, now) for each in chosen)
    )


PLACES = "whether its GPUs would lie together"
STOPS = "who would be stopped for it"
"""What is `unknown`."""


def in_turn(job: JobState, jobs: Iterable[JobState], now: float) -> Explanation:
    """For who starts jobs within their pool's quota alone: what that lacks."""
    pool = job.pool
    if job.gpus > pool.quota:
        return closed("turn", Width(job.gpus, pool.quota), exact=False)
    quota = quota_of(job, jobs, now)
    return only("turn", [] if quota is None else [quota], exact=False)


def on_idle(job: JobState, jobs: Iterable[JobState], now: float) -> Explanation:
    """For who lends whatever is idle in a group: what that lacks. Not who else would get it."""
    pool, group = job.pool, job.pool.group
    if job.gpus > max(pool.quota, group.quota):
        return closed("spare", Width(job.gpus, group.quota), exact=False)
    found: list[Obstacle] = []
    if job.gpus > group.idle:
        mine = [each for each in jobs if each.stream is not None and each.pool.group is group]
        chosen = first_to_end(ByEnd(mine), job.gpus - group.idle)
        ends = tuple(leaves(each, now) for each in chosen)
        found.append(RoomObstacle(job.gpus - group.idle, max(0, group.idle), ends))
    elif group.limited and job.gpus > pool.room and pool.dedicated + job.gpus > pool.quota:
        if job.gpus > group.idle - group.out:
            found.append(Out(group.out))
        elif group.lending:
            own = max(0, pool.unused) + max(0, pool.borrow_limit - pool.borrows)
            borrows = job.gpus > own  # or else it is what others may lend
            limit = (
                LimitObstacle("borrow", pool.name, pool.borrow_limit)
                if borrows
                else LimitObstacle("lend")
            )
            found.append(limit)
        else:
            found.append(LimitObstacle("lending"))
    return only("spare", found, exact=False)


def only(name: str, obstacles: Iterable[Obstacle], *, exact: bool) -> Explanation:
    """An answer with one way."""
    way = StartPath(name, open=True, obstacles=tuple(obstacles))
    return Explanation(way.obstacles, (way,), exact)


def closed(name: str, never: Obstacle, *, exact: bool) -> Explanation:
    """An answer with one way that leads nowhere."""
    return Explanation((never,), (StartPath(name, open=False, obstacles=(never,)),), exact)
