"""Rows that whole jobs keep and parts of jobs do not.

The LP has a job of eight GPUs start in eighths, as if each were a job of its own. But where 31 GPUs
are left for such jobs, three run, not 3.9. So for each slot, divide its row of capacity by a width,
count some of the narrower jobs as running, and round (mixed-integer rounding): with 32 GPUs, of the
jobs of eight and any narrower one no more than four run at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import floor, inf
from typing import NamedTuple

import numpy as np

from oracle.forms import Floats
from oracle.problem import Counts, Problem

VIOLATED = 1e-3
"""By how much a row must be broken to be worth having: below, the LP hardly moves."""

MOST = 400
"""Rows added at once, those broken most: with more, later ones are mostly repetitions."""

NOTHING = 1e-7
"""Parts of jobs that do not count as running."""

TORN = 1e-6
"""What is between this and 1 less this runs in part."""

NO_WEIGHT = 1e-12
"""Less is an error of rounding."""


class Cut(NamedTuple):
    """Σ weight · "runs in `slot`" ≤ `high`, with a weight for each task."""

    slot: int
    weights: Floats
    high: float


class _Broken(NamedTuple):
    """A row that may be added: of a slot, a divisor and so many narrower tasks as running.

    `order` are the tasks that run, those of which most runs first.
    """

    by: float
    slot: int
    divisor: int
    order: Counts
    counted: int


class Cuts:
    """Finds broken rows of one problem."""

    def __init__(self, problem: Problem) -> None:
        """O(tasks + slots)."""
        self._width = np.array([task.width for task in problem.tasks])
        self._widths = sorted({int(width) for width in self._width if width > 1}, reverse=True)
        self._capacity, self._contended = problem.capacity(), problem.contended()

    def broken(self, runs: Floats, most: int = MOST) -> list[Cut]:
        """The rows broken most, where such a part of each task (column) runs in each slot (row)."""
        found = [*self._broken(runs)]
        found.sort(key=lambda one: (-one.by, one.slot, -one.divisor))
        return [self._cut(one) for one in found[:most]]

    def _broken(self, runs: Floats) -> Iterator[_Broken]:
        torn = (runs > TORN) & (runs < 1.0 - TORN) & (self._width > 1)
        slots = np.flatnonzero(torn.any(axis=1) & self._contended)
        if not len(slots):
            return
        runs, torn = runs[slots], torn[slots]
        order = np.lexsort((np.broadcast_to(-self._width, runs.shape), -runs), axis=1)
        order = order[:, : int((runs > NOTHING).sum(axis=1).max())]
        runs, torn = np.take_along_axis(runs, order, 1), np.take_along_axis(torn, order, 1)
        width = self._width[order]
        runs[runs <= NOTHING] = 0.0
        for u in self._widths:
            own = np.flatnonzero((torn & (width >= u)).any(axis=1))
            if not len(own):
                continue
            by, counted = _most(self._capacity[slots[own]], u, width[own], runs[own])
            for i in np.flatnonzero(by > VIOLATED):
                row = own[i]
                ran = order[row][runs[row] > 0.0]
                yield _Broken(float(by[i]), int(slots[row]), u, ran, int(counted[i]))

    def _cut(self, broken: _Broken) -> Cut:
        """Tasks that do not run count too, as whoever is put in place of those that do would."""
        u, width = broken.divisor, self._width
        narrow = [int(place) for place in broken.order if width[place] < u]
        running = narrow[: broken.counted]
        left = int(self._capacity[broken.slot] - width[running].sum())
        over, high = left % u / u, float(left // u)
        of = {int(wide): _weight(wide / u, over) for wide in np.unique(width)}
        weights = np.array([of[int(wide)] for wide in width])
        for place in running:
            weights[place] = -_weight(-width[place] / u, over)
            high += weights[place]
        weights[np.abs(weights) < NO_WEIGHT] = 0.0
        return Cut(broken.slot, weights, high)


def _most(capacity: Counts, u: int, width: Counts, parts: Floats) -> tuple[Floats, Counts]:
    """By how much each slot's most broken row is, and how many narrower jobs it has as running.

    A row of `width` and `parts` is a slot: its jobs, those of which most runs first.
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
    by[over == 0.0] = -inf
    best = by.argmax(axis=1)
    pairs = np.arange(len(by)), best
    return by[pairs], np.cumsum(narrow, axis=1)[pairs[0], best - 1] * (best > 0)


def _weights(part: float, over: Floats) -> Floats:
    """`_weight` of many."""
    return floor(part) + np.maximum(0.0, (part - floor(part) - over) / (1.0 - over))


def _weight(part: float, over: float) -> float:
    """How much a job counts in a rounded row, that takes `part` of the divisor."""
    return floor(part) + max(0.0, (part - floor(part) - over) / (1.0 - over))
