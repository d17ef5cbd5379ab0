"""Cutting planes: rows that all integer schedules satisfy and fractional ones may violate.

*Slot cuts*: the LP can start a job of eight GPUs in eighths. If 31 GPUs are left for such jobs, it
runs 3.9 of them, although only three fit. The cut divides a slot's capacity row by a width, counts
some narrower jobs as running, and applies mixed-integer rounding. With 32 GPUs, for example, at
most four of the jobs of eight GPUs and any narrower job run at once.

*Span cuts*: the LP can also run one half of a job in the morning and one at noon, beside jobs that
run all day. In a span of slots, one job *roams*: it counts wherever it runs in the span. Other jobs
count if they run in the whole span, because they then run beside the roaming job. Jobs that end or
start within the span can *pass*: they count in the span's first or last slot, its base. Where the
roaming job is elsewhere than at the base, its weight is reduced by the GPUs of the passing jobs.
These rows are also rounded. On one machine without passing jobs, they are the inequalities of van
den Akker, van Hoesel and Savelsbergh.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from math import floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from oracle.arrays import Counts, Floats
from oracle.problem.all_starts import Starts
from oracle.problem.coarse import together

MIN_VIOLATION = 1e-3
"""Minimum violation of a cut that is added: a smaller one hardly changes the LP."""

MOST = 400
"""Maximum number of slot cuts, and of span cuts, in a round: further ones are mostly redundant."""

NOTHING = 1e-7
"""Fractions of jobs up to this count as 0."""

TORN = 1e-6
"""A task is torn (fractional) if its value is between this and 1 minus this."""

NO_WEIGHT = 1e-12
"""Weights below this count as rounding errors."""

ROAMS = 12
"""Maximum number of cuts in a round with the same roaming task: further ones are similar."""

PLACES = 24
"""Number of starts of a roaming task, with the largest fractions, around which spans are built."""

SOME = 0.02
"""Minimum fraction of a task at a start around which longer spans are built."""

BESIDE = (0, 1, 3, 7, 15)
"""Numbers of slots by which a span extends before a start or after an end. Each gives other passing
tasks."""

PASS = 8
"""Maximum number of candidates for passing tasks: beside a task of eight GPUs no more fit."""

AT_ONCE = 256
"""Number of neighbouring slots or spans evaluated together, because the same few tasks run in
them."""

NOBODY, NO_SLOT = -1, -1


class CuttingPlane(NamedTuple):
    """Σ weight · "`task` starts in slots `low` to `high`" ≤ `most`; a task may occur twice.

    `slot` is set if the cut is the capacity row of a slot.
    """

    task: Counts
    low: Counts
    high: Counts
    weight: Floats
    most: float
    slot: int = NO_SLOT


class _Spans(NamedTuple):
    """Spans of slots (first to last), with the base for passing tasks and the roaming task."""

    first: Counts
    last: Counts
    base: Counts
    roams: Counts

    def some(self, at: Counts | NDArray[np.bool_] | slice) -> _Spans:
        """Return the spans at these indices."""
        return _Spans(*(own[at] for own in self))


class _Counted(NamedTuple):
    """For spans (rows), the fraction of each task (column) that counts, and the passing tasks.

    `away` is the fraction of the roaming task elsewhere than at the base; it counts with width
    `left` there.
    """

    spans: _Spans
    tasks: Counts
    parts: Floats
    passing: Counts
    away: Floats
    left: Counts


class _Broken(NamedTuple):
    """A violated cut: a span, a divisor, and the number of narrower tasks counted as running.

    `order` has the tasks that count, by descending fraction; an index beyond the last task stands
    for the roaming task where it is elsewhere than at the base.
    """

    by: float
    first: int
    last: int
    base: int
    roams: int
    passing: Counts
    left: int
    capacity: int
    divisor: int
    order: Counts
    counted: int


def _rank(one: _Broken) -> tuple[float, ...]:
    """Return a sort key: largest violation first."""
    return -one.by, one.first, one.last, one.base, one.roams, -one.divisor


class Cuts:
    """Separates cuts of one problem."""

    def __init__(self, starts: Starts, stop: Callable[[], bool]) -> None:
        """Prepare the separation, which ends early if `stop` returns true. O(starts)."""
        self._starts, self._stop = starts, stop
        self._width, self._length = starts.width, starts.length
        self._latest = starts.slot[np.append(starts.first[1:], 0) - 1]
        self._widths = sorted({int(width) for width in self._width if width > 1}, reverse=True)
        problem = starts.problem
        self._capacity, self._contended = problem.capacity(), problem.contended()
        self._together = together(problem)

    def broken(self, begun: Floats, most: int = MOST) -> list[CuttingPlane]:
        """Return the most violated cuts.

        `begun` has shape (slots, tasks): the fraction of each task that has started by each slot.
        """
        of_slots = [one for some in self._slots(begun) for one in self._broken(some)]
        of_spans = [one for some in self._roaming(begun) for one in self._broken(some)]
        some = *self._chosen(of_slots, most), *self._chosen(of_spans, most)
        return [self._cut(one) for one in some]

    def capacity(self, slot: int) -> CuttingPlane:
        """Return the capacity row of a slot."""
        cut = self._row(slot, slot, self._width.astype(np.float64), float(self._capacity[slot]))
        return cut._replace(slot=slot)

    def _chosen(self, found: list[_Broken], most: int) -> list[_Broken]:
        """Return the most violated cuts, without most of the similar ones."""
        roamed, alike, some = Counter[int](), set[tuple[int, ...]](), list[_Broken]()
        for one in sorted(found, key=_rank):
            first, last = one.first // self._together, one.last // self._together
            like = first, last, one.base == one.first, one.roams, one.divisor
            if like in alike or (one.roams != NOBODY and roamed[one.roams] == ROAMS):
                continue
            alike.add(like)
            roamed[one.roams] += 1
            some.append(one)
            if len(some) == most:
                break
        return some

    def _slots(self, begun: Floats) -> Iterator[_Counted]:
        """Yield slots in which wide tasks are torn, for slot cuts."""
        slots = np.flatnonzero(self._contended)
        for some in _some(slots):
            near = self._near(begun, some)
            runs = _running(begun, some, some, near, self._length)
            torn = (runs > TORN) & (runs < 1.0 - TORN) & (self._width[near] > 1)
            kept = torn.any(axis=1)
            own, rows = some[kept], int(kept.sum())
            spans = _Spans(own, own, own, np.full(rows, NOBODY))
            nobody = np.zeros((rows, 0), dtype=np.int64)
            zero = np.zeros(rows, dtype=np.int64)
            yield _Counted(spans, near, runs[kept], nobody, zero.astype(np.float64), zero)

    def _roaming(self, begun: Floats) -> Iterator[_Counted]:
        """Yield spans in which torn tasks roam, for span cuts."""
        spans = self._spans(begun)
        for at in _some(np.argsort(spans.base, kind="stable")):
            if self._stop():
                return
            yield self._counted(begun, spans.some(at))

    def _near(self, begun: Floats, slots: Counts) -> Counts:
        """Return the tasks of which a fraction runs between the first and last of these slots."""
        before = slots[0] - self._length
        ended = np.where(before < 0, 0.0, begun[np.maximum(before, 0), np.arange(len(before))])
        return np.flatnonzero(begun[slots[-1]] - ended > NOTHING)

    def _spans(self, begun: Floats) -> _Spans:
        """Return spans between the end of a start of a torn task and a later start of it."""
        torn = np.flatnonzero(((begun > TORN) & (begun < 1.0 - TORN)).any(axis=0))
        torn = torn[(self._width[torn] > 1) & (self._length[torn] > 0)]
        pairs = [self._around(begun, place) for place in torn.tolist()]
        if not pairs:
            none = np.zeros(0, dtype=np.int64)
            return _Spans(none, none, none, none)
        first, last, roams = np.unique(np.concatenate(pairs, axis=1), axis=1)
        bases = np.concatenate([first, last])
        spans = _Spans(np.tile(first, 2), np.tile(last, 2), bases, np.tile(roams, 2))
        return spans.some(self._contended[bases])

    def _around(self, begun: Floats, place: int) -> Counts:
        """Return the (first, last, task) of spans in which a task roams, shape (3, spans)."""
        part, length = np.diff(begun[:, place], prepend=0.0), self._length[place]
        starts = np.sort(np.argsort(-part, kind="stable")[:PLACES])
        starts = starts[part[starts] > NOTHING]
        first, last = (grid.ravel() for grid in np.meshgrid(starts + length - 1, starts))
        starts = starts[part[starts] > SOME]
        for beside in BESIDE:
            first = np.concatenate([first, starts - 1 - beside, starts + length - 1])
            last = np.concatenate([last, starts, starts + length + beside])
        kept = (first >= 0) & (first < last) & (last < len(self._capacity))
        return np.array([first[kept], last[kept], np.full(kept.sum(), place)])

    def _counted(self, begun: Floats, spans: _Spans) -> _Counted:
        """Return what counts in the spans whose roaming task is partly away from the base."""
        near = np.union1d(self._near(begun, spans.base), spans.roams)
        runs = _running(begun, spans.base, spans.base, near, self._length)
        row, roams = np.arange(len(runs)), np.searchsorted(near, spans.roams)
        before = spans.first - self._length[spans.roams]
        ended = np.where(before < 0, 0.0, begun[np.maximum(before, 0), spans.roams])
        away = begun[spans.last, spans.roams] - ended - runs[row, roams]
        kept = away > TORN
        spans, runs, away, roams = spans.some(kept), runs[kept], away[kept], roams[kept]
        row, width = np.arange(len(runs)), self._width[near]
        parts = _running(begun, spans.first, spans.last, near, self._length)
        more = runs - parts - away[:, None]
        more[row, roams] = 0.0
        passing, left = _passing(more, width, width[roams])
        for own in (*passing.T, roams):
            some = np.flatnonzero(own != NOBODY)
            parts[some, own[some]] = runs[some, own[some]]
        passing = np.where(passing == NOBODY, NOBODY, near[passing])
        return _Counted(spans, near, parts, passing, away, left)

    def _broken(self, counted: _Counted) -> Iterator[_Broken]:
        """Yield the violated cuts of spans."""
        spans, parts = counted.spans, counted.parts
        rows = len(parts)
        if not rows:
            return
        some = np.flatnonzero((parts > NOTHING).any(axis=0))
        parts = np.concatenate([parts[:, some], counted.away[:, None]], axis=1)
        width = np.broadcast_to(self._width[counted.tasks[some]], (rows, len(some)))
        width = np.concatenate([width, counted.left[:, None]], axis=1)
        there = np.append(counted.tasks[some], len(self._width))
        order = np.lexsort((-width, -parts), axis=1)
        order = order[:, : int((parts > NOTHING).sum(axis=1).max())]
        parts, width = np.take_along_axis(parts, order, 1), np.take_along_axis(width, order, 1)
        parts[parts <= NOTHING] = 0.0
        # An upper bound on the capacity wherever the roaming task is.
        ends = zip(spans.first, spans.last, strict=True)
        capacity = np.array([self._capacity[first : last + 1].max() for first, last in ends])
        torn = (parts > TORN) & (parts < 1.0 - TORN)
        for u in self._widths:
            own = np.flatnonzero((torn & (width >= u)).any(axis=1))
            if not len(own):
                continue
            by, running = _most(capacity[own], u, width[own], parts[own])
            for i in np.flatnonzero(by > MIN_VIOLATION):
                at = own[i]
                yield _Broken(
                    float(by[i]), int(spans.first[at]), int(spans.last[at]), int(spans.base[at]),
                    int(spans.roams[at]), counted.passing[at], int(counted.left[at]),
                    int(capacity[at]), u, there[order[at][parts[at] > 0.0]], int(running[i]),
                )  # fmt: skip

    def _cut(self, broken: _Broken) -> CuttingPlane:
        """Build a cut; tasks that do not run get the weight of running tasks of their width."""
        u, width = broken.divisor, np.append(self._width, broken.left)
        narrow = [int(place) for place in broken.order if width[place] < u]
        running = narrow[: broken.counted]
        left = int(broken.capacity - width[running].sum())
        over, most = left % u / u, float(left // u)
        widths, which = np.unique(width, return_inverse=True)
        weights = np.array([_weight(wide / u, over) for wide in widths])[which]
        for place in running:
            weights[place] = -_weight(-width[place] / u, over)
            most += weights[place]
        weights[np.abs(weights) < NO_WEIGHT] = 0.0
        cut = self._row(broken.first, broken.last, weights[:-1], most)
        return cut if broken.roams == NOBODY else self._with_roaming(cut, broken, weights)

    def _row(self, first: int, last: int, weights: Floats, most: float) -> CuttingPlane:
        """Return the row of tasks that run throughout a span."""
        task = np.flatnonzero(weights)
        return self._clipped(
            task, last - self._length[task] + 1, np.full(len(task), first), weights[task], most
        )

    def _with_roaming(self, cut: CuttingPlane, broken: _Broken, weights: Floats) -> CuttingPlane:
        """Add the passing tasks at the base, and the roaming task everywhere in the span."""
        first, last, base, roams = broken.first, broken.last, broken.base, broken.roams
        length = int(self._length[roams])
        passing = broken.passing[broken.passing != NOBODY]
        others = ~np.isin(cut.task, [*passing, roams])
        at_base = np.append(passing, roams)
        away = (first + 1, last) if base == first else (first - length + 1, last - length)
        return self._clipped(
            np.concatenate([cut.task[others], at_base, [roams]]),
            np.concatenate([cut.low[others], base - self._length[at_base] + 1, away[:1]]),
            np.concatenate([cut.high[others], np.full(len(at_base), base), away[1:]]),
            np.concatenate([cut.weight[others], weights[at_base], weights[-1:]]),
            cut.most,
        )

    def _clipped(
        self, task: Counts, low: Counts, high: Counts, weight: Floats, most: float
    ) -> CuttingPlane:
        """Restrict a cut to existing starts."""
        low = np.maximum(low, self._starts.release[task])
        high = np.minimum(high, self._latest[task])
        some = (low <= high) & (weight != 0.0)
        return CuttingPlane(task[some], low[some], high[some], weight[some], most)


def _some(at: Counts) -> Iterator[Counts]:
    """Yield batches of AT_ONCE."""
    for begin in range(0, len(at), AT_ONCE):
        yield at[begin : begin + AT_ONCE]


def _running(begun: Floats, first: Counts, last: Counts, tasks: Counts, length: Counts) -> Floats:
    """Return the fraction of each task (column) that runs throughout `first` to `last` (row)."""
    before = last[:, None] - length[tasks]
    ended = begun[np.maximum(before, 0), tasks]
    ended[before < 0] = 0.0
    return np.asarray(np.maximum(0.0, begun[first[:, None], tasks] - ended))


def _passing(more: Floats, widths: Counts, width: Counts) -> tuple[Counts, Counts]:
    """Choose the passing tasks of each span, and return the width left of the roaming task.

    Tasks pass if they increase the violation, while at least one GPU of the roaming task is left.
    `more` is the increase per unit of width by each task (column), `width` the width of the roaming
    task.
    """
    order = np.argsort(-more, axis=1, kind="stable")[:, :PASS]
    left, row = width.copy(), np.arange(len(width))
    passing = np.full(order.shape, NOBODY)
    for rank, own in enumerate(order.T):
        taken = (more[row, own] > TORN) & (widths[own] < left)
        passing[taken, rank] = own[taken]
        left -= np.where(taken, widths[own], 0)
    return passing, left


def _most(capacity: Counts, u: int, width: Counts, parts: Floats) -> tuple[Floats, Counts]:
    """Return each slot's largest violation, and its number of narrower jobs counted as running.

    A row of `width` and `parts` has a slot's jobs by descending fraction.
    """
    narrow = (width < u) & (parts > 0.0)
    shape = len(width), width.shape[1] + 1
    left = np.tile(capacity[:, None], shape[1])
    left[:, 1:] -= np.cumsum(width * narrow, axis=1)
    over = left % u / u
    by = -(left // u).astype(np.float64)
    for of in np.unique(width[parts > 0.0]):
        own = parts * (width == of)
        if of >= u:
            by += _weights(of / u, over) * own.sum(axis=1)[:, None]
            continue
        sums, counts = np.zeros(shape), np.zeros(shape)
        sums[:, 1:] = np.cumsum(own, axis=1)
        counts[:, 1:] = np.cumsum(own > 0.0, axis=1)
        by += _weights(of / u, over) * (sums[:, -1:] - sums)
        by -= _weights(-of / u, over) * (sums - counts)
    best = by.argmax(axis=1)
    pairs = np.arange(len(by)), best
    return by[pairs], np.cumsum(narrow, axis=1)[pairs[0], best - 1] * (best > 0)


def _weights(part: float, over: Floats) -> Floats:
    """Vectorised `_weight`."""
    return floor(part) + np.maximum(0.0, (part - floor(part) - over) / (1.0 - over))


def _weight(part: float, over: float) -> float:
    """Return the rounded weight of a job whose width is `part` of the divisor."""
    return floor(part) + max(0.0, (part - floor(part) - over) / (1.0 - over))
