"""Prices of GPUs that nearly give the LP's bound, in seconds and without a solver.

The bound of given prices (`oracle/bounds/prices.py`) is concave: climb it. Where each task takes
its cheapest start, it has corners; where it takes each start a little, the cheaper the more, it is
smooth, and Nesterov's accelerated steps climb it fast. How little is lowered as it climbs. The
parts in which tasks then start say as much about good schedules as the LP's.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import NamedTuple

import numpy as np

from oracle.arrays import Counts, Floats
from oracle.bounds.prices import accumulated
from oracle.problem.all_starts import Starts

STEPS = 600
"""Within 0.5 % of the LP's bound on the paper's workloads; with half as many within 2 %."""

WARM, COLD = 0.4, 0.004
"""How much dearer than the cheapest a start may be that is taken nearly as often: of what a median
task costs that waits as long as it runs; at first, and at the end."""

FRESH = 5
"""Steps between two looks at all starts; between them, at those that are anything like cheap."""

CHEAP = 25.0
"""How many of those costs dearer than the cheapest a start is then looked at: of those beyond,
exp(-25) is taken."""

STEEPER, FLATTER = 2.0, 0.95
"""Factors by which the curvature is guessed anew, where a step went too far and after each."""


class Priced(NamedTuple):
    """Prices by slot, the bound that they prove, and the part of each task at each start."""

    prices: Floats
    bound: float
    parts: Floats


def ascend(starts: Starts, stop: Callable[[], bool]) -> Priced:
    """Climb from no prices; fewer steps where `stop` says so."""
    return _Climb(starts).run(stop)


class _Climb:
    """Where it stands: the starts that are cheap there."""

    def __init__(self, starts: Starts) -> None:
        self._starts = starts
        self._capacity = starts.problem.capacity().astype(np.float64)
        weights = np.array([task.weight for task in starts.problem.tasks])
        unit = max(1.0, float(np.median(starts.length))) * float(np.median(weights))
        self._warm, self._cold = WARM * unit, COLD * unit
        self._look(np.zeros(len(self._capacity)), self._warm)

    def run(self, stop: Callable[[], bool]) -> Priced:
        at = ahead = best = np.zeros(len(self._capacity))
        bound, curvature, pace = -np.inf, 1.0, 1.0
        for step in range(STEPS):
            heat = self._warm * (self._cold / self._warm) ** (step / STEPS)
            if step % FRESH == 0:
                found = self._look(at, heat)
                if found > bound:
                    bound, best = found, at
                if stop():
                    break
            value, slope = self._smooth(ahead, heat)
            new, slope_there, curvature = self._step(ahead, value, slope, heat, curvature)
            if slope_there @ (new - at) < 0.0:
                pace = 1.0  # it ran past the top
            later = (1.0 + sqrt(1.0 + 4.0 * pace * pace)) / 2.0
            ahead = np.maximum(0.0, new + (pace - 1.0) / later * (new - at))
            at, pace, curvature = new, later, curvature * FLATTER
        found = self._look(at, self._cold)
        if found > bound:
            bound, best = found, at
        return Priced(best, bound, self._parts(best))

    def _step(
        self, at: Floats, value: float, slope: Floats, heat: float, curvature: float
    ) -> tuple[Floats, Floats, float]:
        """As far as the curvature lets it, guessed higher until it holds."""
        while True:
            new = np.maximum(0.0, at + slope / curvature)
            way = new - at
            there, slope_there = self._smooth(new, heat)
            least = value + slope @ way - curvature / 2.0 * (way @ way)
            if there >= least - 1e-9 * max(1.0, abs(value)):
                return new, slope_there, curvature
            curvature *= STEEPER

    def _look(self, prices: Floats, heat: float) -> float:
        """Look at all starts: the bound of these prices; keep those that are cheap."""
        starts = self._starts
        costs = priced(starts, prices)
        least = starts.least(costs)
        cheap = np.flatnonzero(costs - least[starts.task] <= CHEAP * heat)
        self._keep(cheap)
        return float(least.sum() - prices @ self._capacity)

    def _keep(self, cheap: Counts) -> None:
        starts = self._starts
        self._cheap, self._task = cheap, starts.task[cheap]
        self._slot, self._end, self._cost = (
            starts.slot[cheap],
            starts.end[cheap],
            starts.cost[cheap],
        )
        self._width = starts.width[self._task].astype(np.float64)
        self._first = np.searchsorted(self._task, np.arange(len(starts.first)))

    def _smooth(self, prices: Floats, heat: float) -> tuple[float, Floats]:
        """The smooth bound and its slope: GPUs in use less those there are, by slot."""
        least, sums, taken = self._taken(prices, heat)
        value = least.sum() - heat * np.log(sums).sum() - prices @ self._capacity
        size, weights = len(prices) + 1, taken * self._width
        change = np.bincount(self._slot, weights, size) - np.bincount(self._end, weights, size)
        return float(value), np.cumsum(change)[:-1] - self._capacity

    def _taken(self, prices: Floats, heat: float) -> tuple[Floats, Floats, Floats]:
        sums = accumulated(prices)
        costs = self._cost + self._width * (sums[self._end] - sums[self._slot])
        least = np.minimum.reduceat(costs, self._first)
        parts = np.exp((least[self._task] - costs) / heat)
        total = np.add.reduceat(parts, self._first)
        return least, total, parts / total[self._task]

    def _parts(self, prices: Floats) -> Floats:
        parts = np.zeros(len(self._starts.task))
        parts[self._cheap] = self._taken(prices, self._cold)[2]
        return parts


def priced(starts: Starts, prices: Floats) -> Floats:
    """What each start costs, paying included."""
    sums = accumulated(prices)
    paid = sums[starts.end] - sums[starts.slot]
    return np.asarray(starts.cost + starts.width[starts.task] * paid)
