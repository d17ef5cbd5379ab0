"""The design of an experiment: all runs are drawn and checked before the first begins (§6.1)."""

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
"""Additional fix if the log has one pool."""

NO_JOB = "no job"
TOO_WIDE = "only jobs wider than its quota"
TOO_LARGE = "more work than any quota allows"


class PieceDesign(NamedTuple):
    """Random pieces of the log: `runs` runs for each number of queues, each `length` seconds long.

    Each pool's load is drawn from U(`loads`). Pieces begin at second `since` of the log or later.
    """

    queues: Sequence[int]
    runs: int
    length: float
    loads: tuple[float, float]
    seed: int = 0
    since: float | None = None
    step: int = 1
    """Quotas are rounded up to multiples of this number of GPUs."""


class Sizes(NamedTuple):
    """The whole log, with all quotas multiplied by each of `sizes` (Fig. 18).

    With `withdraw`, each size is replayed a second time, with this number of pools not sharing (♣
    in Table 17).
    """

    sizes: Sequence[float]
    withdraw: int = 0
    step: int = 1
    """As in `PieceDesign`."""


class Piece(NamedTuple):
    """The input of one run: jobs of the pools in `table` submitted in [begin, begin + length).

    `begin` becomes second 0. `loads` are the loads to which the quotas were scaled. If `whole`, the
    run replays the whole log, and the `withdraw` most idle pools do not share.
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
        """Return the history before the piece, for forecasts; None for the whole log.

        `starts` is the start time of each job of the log.
        """
        return None if self.whole else past_of(trace.arrivals, starts, self.table, self.begin)

    def cut(self, trace: Trace) -> Trace:
        """Return the jobs of the piece, including those wider than their pool's quota."""
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
    """The jobs of one pool in order of submission, with the cumulative work before each."""

    submits: list[float] = field(default_factory=list)
    widths: list[int] = field(default_factory=list)
    work: list[float] = field(default_factory=lambda: [0.0])  # GPU-seconds

    def add(self, arrival: Arrival) -> None:
        self.submits.append(arrival.job.submit)
        self.widths.append(arrival.job.width)
        self.work.append(self.work[-1] + arrival.job.width * arrival.duration)

    def fit(self, begin: float, length: float, load: float, step: int) -> tuple[int, str]:
        """Return the quota on which a window's jobs are `load`, and why it is unsuitable, or "".

        The quota is rounded up to a multiple of `step`, which lowers the load a little. O(log jobs)
        plus the number of jobs before the first one that fits.
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


def plan_pieces(trace: Trace, table: PoolTable | None, design: PieceDesign) -> list[Piece]:
    """Draw the pools, window and loads of every run, from the pools of `table` or of the log.

    Run k depends only on the log, the seed, the number of queues and k, so an experiment with more
    runs extends an earlier one. Raises UserError if a run cannot be drawn.
    """
    logs: dict[str, _PoolLog] = {}
    for arrival in trace.arrivals:
        logs.setdefault(arrival.job.pool, _PoolLog()).add(arrival)
    pools = [Pool(name, 1) for name in logs] if table is None else [*table.pools]
    pools.sort(key=lambda pool: pool.name)
    _refuse(trace, logs, pools, design)
    first, last = _span(trace, design)
    return [
        _draw(logs, pools, design, (first, last), k * len(design.queues) + i, queues)
        for k in range(design.runs)
        for i, queues in enumerate(design.queues)
    ]


def _refuse(
    trace: Trace, logs: Mapping[str, _PoolLog], pools: Sequence[Pool], design: PieceDesign
) -> None:
    idle = [pool.name for pool in pools if pool.name not in logs]
    if idle:
        raise UserError(
            f"--pools: {some(idle)}: no job in the log; remove these pools from the file"
        )
    if max(design.queues) > len(pools):
        raise UserError(
            f"--queues {max(design.queues)}: the log has only "
            f"{counted(len(pools), 'pool')}; use fewer" + ONE_POOL * (len(pools) == 1)
        )
    _refuse_length(trace, design)


def _refuse_length(trace: Trace, design: PieceDesign) -> None:
    """Raise UserError if no piece of that length fits into the log, or after `since`."""
    first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
    weeks, span = design.length / WEEK, f"from second {first:,.0f} to second {last:,.0f}"
    if design.length > last - first:
        raise UserError(
            f"--weeks {weeks:g}: the log spans only {(last - first) / WEEK:.3g} weeks, {span}; "
            "use fewer"
        )
    if design.since is not None and design.length > last - design.since:
        raise UserError(
            f"--from {as_typed(design.since)}: too late for a piece of --weeks {weeks:g}: jobs of "
            f"the log were submitted {span}; use at most {floor(last - design.length)}s, or fewer "
            "weeks"
        )


def _span(trace: Trace, design: PieceDesign) -> tuple[float, float]:
    """Return the time range of the log from which pieces are drawn."""
    first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
    return first if design.since is None else max(first, design.since), last


def _draw(
    logs: Mapping[str, _PoolLog],
    pools: Sequence[Pool],
    design: PieceDesign,
    span: tuple[float, float],
    run: int,
    queues: int,
) -> Piece:
    """Draw windows until one has enough pools with a job that fits."""
    first, last = span
    random = Random(f"{design.seed}/{queues}/{run // len(design.queues)}")  # noqa: S311  no secret
    failed: Counter[tuple[str, str]] = Counter()
    for _ in range(WINDOWS_DRAWN):
        # A whole second: times that were equal in the log stay exactly equal after the shift.
        begin = first + random.randrange(int(last - first - design.length) + 1)
        loads = {pool.name: random.uniform(*design.loads) for pool in pools}
        fitting = []
        for pool in pools:
            quota, why = logs[pool.name].fit(begin, design.length, loads[pool.name], design.step)
            if why:
                failed[pool.name, why] += 1
            else:
                fitting.append(Pool(pool.name, quota, pool.group, pool.share))
        if len(fitting) >= queues:
            chosen = sorted(random.sample(fitting, queues), key=lambda pool: pool.name)
            _refuse_giants(chosen)
            drawn = {pool.name: loads[pool.name] for pool in chosen}
            return Piece(run, PoolTable(chosen), begin, design.length, drawn)
    raise UserError(
        f"--queues {queues}: none of {WINDOWS_DRAWN:,} random windows has that many pools with a "
        f"job that fits: {_reasons(failed)}; use fewer queues, more weeks or less load"
    )


def _reasons(failed: Counter[tuple[str, str]]) -> str:
    most = sorted(failed.items(), key=lambda item: (-item[1], item[0]))
    return some([f"{pool} had {why} in {count:,}" for (pool, why), count in most])


def plan_sizes(trace: Trace, table: PoolTable, design: Sizes) -> list[Piece]:
    """Return one or two runs per size. Raises UserError for a log or quotas that are too large."""
    first, last = trace.arrivals[0].job.submit, trace.arrivals[-1].job.submit
    if last - first > MAX_HOURS * HOUR:
        raise UserError(
            f"--trace: the log spans {decimal((last - first) / 3600, 0)} hours, more than "
            f"{MAX_HOURS:,}; write its times in seconds, or cut it with sia trace slice"
        )
    if design.withdraw >= len(table.pools):
        raise UserError(
            f"--withdraw {design.withdraw}: the pools file has only "
            f"{counted(len(table.pools), 'pool')}; withdraw fewer"
        )
    kinds = (0, design.withdraw) if design.withdraw else (0,)
    pieces: list[Piece] = []
    for size in design.sizes:
        scaled = _scaled(table, size, design.step)
        if not playable(trace, scaled).arrivals:
            raise UserError(
                f"--size {size:g}: no job of the log can run in these pools; use a larger size"
            )
        for kind in kinds:
            run = len(pieces)
            pieces.append(Piece(run, scaled, 0.0, last, size=size, withdraw=kind, whole=True))
    return pieces


def _scaled(table: PoolTable, size: float, step: int) -> PoolTable:
    """Return the table with all quotas multiplied by `size` and rounded up to `step`.

    A quota becomes at least 1 GPU; a quota of 0 stays 0.
    """

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
            "use a smaller --size"
        )
    if sum(pool.quota for pool in pools) > MAX_GROUP:
        raise UserError(f"the pools would have more than {MAX_GROUP:,} GPUs; use fewer pools")
