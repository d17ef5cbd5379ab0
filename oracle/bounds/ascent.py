"""Compute prices of GPUs whose bound is close to the LP's, in seconds and without a solver.

The bound of given prices (`oracle/bounds/prices.py`) is a concave function. With each task at its
cheapest start it has corners. With a soft minimum over all starts it is smooth, and Nesterov's
accelerated gradient ascent maximises it fast. The temperature of the soft minimum falls during the
ascent. The resulting fractions of tasks at their starts are as useful to the search as the LP's.
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
"""Number of steps: the bound is then within 0.5 % of the LP's on the paper's workloads; with half
as many it is within 2 %."""

WARM, COLD = 0.4, 0.004
"""First and last temperature, relative to the cost of a median task that waits as long as it runs.
A start that is dearer than the cheapest one by the temperature has the weight 1/e."""

FRESH = 5
"""Number of steps between two evaluations of all starts; the other steps use only cheap starts."""

CHEAP = 25.0
"""A start is cheap if it is dearer than the cheapest one by at most this many temperatures. All
other starts have weights below exp(-25)."""

STEEPER, FLATTER = 2.0, 0.95
"""Factors on the estimated curvature: after a step that was too long, and after each other step."""


class Priced(NamedTuple):
    """Prices by slot, their bound, and the fraction of each task at each start."""

    prices: Floats
    bound: float
    parts: Floats


def ascend(starts: Starts, stop: Callable[[], bool]) -> Priced:
    """Maximise the bound, beginning with zero prices; end early if `stop` returns true."""
    return _Climb(starts).run(stop)


class _Climb:
    """The state of the ascent, with the starts that are cheap at the current prices."""

    def __init__(self, starts: Starts) -> None:
        self._starts = starts
        self._capacity = starts.problem.capacity().astype(np.float64)
        weights = np.array([task.weight for task in starts.problem.tasks])
        unit = max(1.0, float(np.median(starts.length))) * float(np.median(weights))
        self._warm, self._cold = WARM * unit, COLD * unit
        self._evaluate(np.zeros(len(self._capacity)), self._warm)

    def run(self, stop: Callable[[], bool]) -> Priced:
        at = ahead = best = np.zeros(len(self._capacity))
        bound, curvature, pace = -np.inf, 1.0, 1.0
        for step in range(STEPS):
            heat = self._warm * (self._cold / self._warm) ** (step / STEPS)
            if step % FRESH == 0:
                found = self._evaluate(at, heat)
                if found > bound:
                    bound, best = found, at
                if stop():
                    break
            value, slope = self._smooth(ahead, heat)
            new, slope_there, curvature = self._step(ahead, value, slope, heat, curvature)
            if slope_there @ (new - at) < 0.0:
                pace = 1.0  # overshot: restart the momentum
            later = (1.0 + sqrt(1.0 + 4.0 * pace * pace)) / 2.0
            ahead = np.maximum(0.0, new + (pace - 1.0) / later * (new - at))
            at, pace, curvature = new, later, curvature * FLATTER
        found = self._evaluate(at, self._cold)
        if found > bound:
            bound, best = found, at
        return Priced(best, bound, self._parts(best))

    def _step(
        self, at: Floats, value: float, slope: Floats, heat: float, curvature: float
    ) -> tuple[Floats, Floats, float]:
        """Make one step; increase the curvature estimate until the step is valid."""
        while True:
            new = np.maximum(0.0, at + slope / curvature)
            way = new - at
            there, slope_there = self._smooth(new, heat)
            least = value + slope @ way - curvature / 2.0 * (way @ way)
            if there >= least - 1e-9 * max(1.0, abs(value)):
                return new, slope_there, curvature
            curvature *= STEEPER

    def _evaluate(self, prices: Floats, heat: float) -> float:
        """Evaluate all starts: return the bound of these prices and store the cheap starts."""
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
        """Return the smoothed bound and its gradient: GPUs in use minus capacity, by slot."""
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
    """Return the cost of each start plus the price of its GPUs."""
    sums = accumulated(prices)
    paid = sums[starts.end] - sums[starts.slot]
    return np.asarray(starts.cost + starts.width[starts.task] * paid)
