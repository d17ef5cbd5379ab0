"""What the runs of an experiment are: drawn and checked before the first of them begins (§6.1)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from random import Random
from typing import NamedTuple

from replay.logs.limits import MAX_HOURS, WINDOWS_DRAWN
from replay.logs.past import PastJobs, past_of
from replay.logs.slice import scaled_quota, slice_trace
from replay.logs.trace import PoolTable, Trace, playable
from sia.console.errors import UserError
from sia.core.playout import Arrival
from sia.events import PoolChanged
from sia.limits import MAX_GROUP, MAX_QUOTA
from sia.model import Pool
from sia.wording import HOUR, WEEK, as_typed, counted, decimal, some

ONE_POOL = ", or make one pool several with sia trace split"
"""Mend where a log has one pool."""

NO_JOB = "no job"
TOO_WIDE = "only jobs wider than its quota"
TOO_LARGE = "more work than any quota allows"


class PieceDesign(NamedTuple):
    """What is asked for: so many runs for each number of queues, each `length` seconds of the log.

    Each pool's load comes from U(`loads`); pieces begin at second `since` of the log or later.
    """

    queues: Sequence[int]
    runs: int
    length: float
    loads: tuple[float, float]
    seed: int = 0
    since: float | None = None
    step: int = 1
    """Quotas are rounded up to multiples of so many GPUs."""


class Sizes(NamedTuple):
    """The other thing to ask for: the whole log, with all quotas times each of `sizes` (Fig. 18).

    With `withdraw`, each size a second time, with so many pools that do not share (Table 17's ♣).
    """

    sizes: Sequence[float]
    withdraw: int = 0
    step: int = 1
    """As in `PieceDesign`."""


class Piece(NamedTuple):
    """What one run replays: the jobs of the pools in `table` submitted in [begin, begin + length).

    `begin` becomes second 0. The `whole` log is replayed as it is; of its pools, the `withdraw`
    ones that idle most keep to themselves. `loads` are those that the quotas were scaled to.
    """

    run: int
    table: PoolTable
    begin: float
    length: float
    loads: Mapping[str, float] = {}
    size: float = 1.0
    withdraw: int = 0
    whole: bool = False

    def past(self, trace: Trace, starts: Mapping[str, float]) -> PastJobs | None:
        """What forecasts may learn from before the piece begins; None before the whole log.

        `starts` says when each job of the log started.
        """
        return None if self.whole else past_of(trace.arrivals, starts, self.table, self.begin)

    def cut(self, trace: Trace) -> Trace:
        """This piece of the log. Jobs wider than their pool's quota are still in it."""
        if self.whole:
            return Trace(trace.arrivals, trace.columns, trace.extras)
        end = self.begin + self.length
        low, high = (bisect_left(trace.arrivals, t, key=_submit) for t in (self.begin, end))
        near = Trace(trace.arrivals[low:high], trace.columns, trace.extras)
        names = [pool.name for pool in self.table.pools]
        piece, _ = slice_trace(near, self.table, begin=self.begin, end=end, pools=names)
        return Trace(piece.arrivals, piece.columns, piece.extras)


def _submit(arrival: Arrival) -> float:
    return arrival.job.submit


@dataclass
class _PoolLog:
    """The jobs of one pool in order of submission, and the work before each of them."""

    submits: list[float] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    work: list[float] = field(default_factory=lambda: [0.0])  # GPU-seconds

    def add(self, arrival: Arrival) -> None:
        self.submits.append(arrival.job.submit)
        self.widths.append(arrival.job.width)
        self.work.append(self.work[-1] + arrival.job.width * arrival.duration)

    def fit(self, begin: float, length: float, load: float, step: int) -> tuple[int, str]:
        """The quota that makes a window's jobs that load, and why the pool is of no use with it.

        It is a multiple of `step`, so that the load may be a little less. O(log jobs), plus the
        jobs in front of the first one that is narrow enough.
        """
        low, high = (bisect_left(self.submits, time) for time in (begin, begin + length))
        quota = _up(scaled_quota(self.work[high] - self.work[low], load, length), step)
        if low == high:
            return quota, NO_JOB
        if quota > MAX_QUOTA:
            return quota, TOO_LARGE
        fits = any(self.widths[i] <= quota for i in range(low, high))
        return quota, "" if fits else TOO_WIDE


def _up(quota: int, step: int) -> int:
    return -(-quota // step) * step


def plan_pieces(trace: Trace, table: PoolTable | None, asked: PieceDesign) -> list[Piece]:
    """Draw pools, weeks and loads of every run: those of `table`, or any pool of the log.

    What run k of so many queues draws depends on the log, the seed, the queues and k alone: a later
    experiment with more runs only adds to it. Raises UserError for what cannot be drawn.
    """
    logs: dict[str, _PoolLog] = {}
    for arrival in trace.arrivals:
        logs.setdefault(arrival.job.pool, _PoolLog()).add(arrival)
    pools = [Pool(name, 1) for name in logs] if table is None else [*table.pools]
    pools.sort(key=lambda pool: pool.name)
    _refuse(trace, logs, pools, asked)
    first, last = _span(trace, asked)
    return [
        _draw(logs, pools, asked, (first, last), k * len(asked.queues) + i, queues)
        for k in range(asked.runs)
        for i, queues in enumerate(asked.queues)
    ]


def _refuse(
    trace: Trace, logs: Mapping[str, _PoolLog], pools: Sequence[Pool], asked: PieceDesign
) -> None:
    idle = [pool.name for pool in pools if pool.name not in logs]
    if idle:
        raise UserError(
            f"--pools: {some(idle)}: no job in the whole log; remove such pools from the file"
        )
    if max(asked.queues) > len(pools):
        raise UserError(
            f"--queues {max(asked.queues)}: the log has only "
            f"{counted(len(pools), 'pool')}; ask for fewer" + ONE_POOL * (len(pools) == 1)
        )
    _refuse_length(trace, asked)


def _refuse_length(trace: Trace, asked: PieceDesign) -> None:
    """Raise UserError where no piece of that length fits into the log, or after `since`."""
    first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
    weeks, span = asked.length / WEEK, f"from second {first:,.0f} to second {last:,.0f}"
    if asked.length > last - first:
        raise UserError(
            f"--weeks {weeks:g}: the log spans only {(last - first) / WEEK:.3g} weeks, {span}; "
            "ask for fewer"
        )
    if asked.since is not None and asked.length > last - asked.since:
        raise UserError(
            f"--from {as_typed(asked.since)}: too late for a piece of --weeks {weeks:g}: the "
            f"log's jobs came {span}; use at most {floor(last - asked.length)}s, or fewer weeks"
        )


def _span(trace: Trace, asked: PieceDesign) -> tuple[float, float]:
    """Where pieces may lie."""
    first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
    return first if asked.since is None else max(first, asked.since), last


def _draw(
    logs: Mapping[str, _PoolLog],
    pools: Sequence[Pool],
    asked: PieceDesign,
    span: tuple[float, float],
    run: int,
    queues: int,
) -> Piece:
    """Draw windows until one has enough pools with a job that fits."""
    first, last = span
    random = Random(f"{asked.seed}/{queues}/{run // len(asked.queues)}")  # noqa: S311  no secret
    failed: Counter[tuple[str, str]] = Counter()
    for _ in range(WINDOWS_DRAWN):
        # A whole second: what fell together in the log still does, to the last bit.
        begin = first + random.randrange(int(last - first - asked.length) + 1)
        loads = {pool.name: random.uniform(*asked.loads) for pool in pools}
        fitting = []
        for pool in pools:
            quota, why = logs[pool.name].fit(begin, asked.length, loads[pool.name], asked.step)
            if why:
                failed[pool.name, why] += 1
            else:
                fitting.append(Pool(pool.name, quota, pool.group, pool.share))
        if len(fitting) >= queues:
            chosen = sorted(random.sample(fitting, queues), key=lambda pool: pool.name)
            _refuse_giants(chosen)
            drawn = {pool.name: loads[pool.name] for pool in chosen}
            return Piece(run, PoolTable(chosen), begin, asked.length, drawn)
    raise UserError(
        f"--queues {queues}: none of {WINDOWS_DRAWN:,} windows drawn has so many pools with a job "
        f"that fits: {_reasons(failed)}; ask for fewer queues, more weeks or less load"
    )


def _reasons(failed: Counter[tuple[str, str]]) -> str:
    most = sorted(failed.items(), key=lambda item: (-item[1], item[0]))
    return some([f"{pool} had {why} in {count:,}" for (pool, why), count in most])


def plan_sizes(trace: Trace, table: PoolTable, asked: Sizes) -> list[Piece]:
    """A run a size, or two. Raises UserError for a log or quotas that are too large."""
    first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
    if last - first > MAX_HOURS * HOUR:
        raise UserError(
            f"--trace: it spans {decimal((last - first) / 3600, 0)} hours, more than "
            f"{MAX_HOURS:,}; write its times in seconds, or cut it with sia trace slice"
        )
    if asked.withdraw >= len(table.pools):
        raise UserError(
            f"--withdraw {asked.withdraw}: the pools file has only "
            f"{counted(len(table.pools), 'pool')}; leave some"
        )
    kinds = (0, asked.withdraw) if asked.withdraw else (0,)
    pieces: list[Piece] = []
    for size in asked.sizes:
        scaled = _scaled(table, size, asked.step)
        if not playable(trace, scaled).arrivals:
            raise UserError(f"--size {size:g}: no job of the log can run in these pools")
        for kind in kinds:
            run = len(pieces)
            pieces.append(Piece(run, scaled, 0.0, last, size=size, withdraw=kind, whole=True))
    return pieces


def _scaled(table: PoolTable, size: float, step: int) -> PoolTable:
    """All quotas times `size`, at least 1 GPU each, rounded up to `step`; none stays none."""

    def scale(quota: int) -> int:
        return _up(max(1, round(quota * size)), step) if quota else 0

    pools = [Pool(p.name, scale(p.quota), p.group, p.share) for p in table.pools]
    changes = [PoolChanged(c.time, c.pool, scale(c.quota)) for c in table.changes]
    scaled = PoolTable(pools, changes)
    _refuse_giants(
        [Pool(name, max(quota for _, quota in steps)) for name, steps in scaled.quotas().items()]
    )
    return scaled


def _refuse_giants(pools: Sequence[Pool]) -> None:
    largest = max(pools, key=lambda pool: pool.quota)
    if largest.quota > MAX_QUOTA:
        raise UserError(
            f"pool {largest.name} would have {largest.quota:,} GPUs, more than {MAX_QUOTA:,}; "
            "ask for a smaller --size"
        )
    if sum(pool.quota for pool in pools) > MAX_GROUP:
        raise UserError(f"the pools would have more than {MAX_GROUP:,} GPUs; ask for fewer of them")
