"""What is stated of a pool whose own windows have not earned a quantile yet.

Other pools are what it may be like: those of public logs (`predictors.loads.public_pools`), and
those here, as far as they have been watched. Of each, the peaks of its windows are known as shares
of its quota, in classes. The pool's own windows tell which of them it is like (Bayes' rule), and
count beside these: together the others count as `WORTH` windows. So a forecast is wide at first,
and follows the pool as it becomes known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from predictors.loads.public_pools import POOLS, SHARES
from sia.limits import MAX_GROUP, TICK

WORTH = 10.0
"""Windows for which kindred pools count: half of what one's own 95 % needs."""

CLASSES = len(SHARES) + 1
"""Classes of peaks: each up to one of `SHARES` of the quota, and what is above all of them."""

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Peaks = NDArray[np.int64] | NDArray[np.int32]


def public(ticks: int) -> Floats:
    """Return how often windows of public pools fell into each class: (pools, classes).

    Where windows of that length were not measured they are those of the next longer ones, whose
    peaks are higher. Of windows longer than all nothing is known: (0, classes).
    """
    longer = [length for length in POOLS if length >= ticks * TICK]
    if not longer:
        return np.zeros((0, CLASSES))
    found = np.array(list(POOLS[min(longer)].values()), float) + 1.0  # nothing is impossible
    shares: Floats = found / found.sum(axis=1, keepdims=True)
    return shares


class Kindred:
    """The classes of the windows of all pools, for one length of windows."""

    def __init__(self, quotas: Counts, ticks: int, quantile: float) -> None:
        """Take quotas in GPUs, 0 where unknown, and the length of windows in ticks."""
        self._quotas, self._quantile = quotas, quantile
        self._public = public(ticks)
        self._ends = np.array(SHARES) * quotas[:, None]  # of each class, in GPUs
        self._counts = np.zeros((len(quotas), CLASSES))

    def count(self, peaks: Peaks, rows: NDArray[np.bool_], by: int = 1) -> None:
        """Add a window of each of these pools, or with -1 forget one. O(pools · classes)."""
        classes = (peaks[:, None] > self._ends).sum(axis=1)
        self._counts[rows, classes[rows]] += by

    def recount(self, row: int, peaks: Peaks) -> None:
        """Count these windows of a pool, and no others."""
        classes = (peaks[:, None] > self._ends[row]).sum(axis=1)
        self._counts[row] = np.bincount(classes, minlength=CLASSES)

    def state(self, asked: NDArray[np.intp], worth: Floats) -> Counts:
        """Return the quantile of the pools that are asked for, in GPUs; `MAX_GROUP` if unknown.

        `worth` is how many independent windows there are of each pool. O(asked · pools · classes).
        """
        total = self._counts.sum(axis=1)
        seen = self._counts * (worth / np.maximum(total, 1.0))[:, None]
        like, weights = self._hypotheses(seen, worth)
        if not len(like):
            return np.full(len(asked), MAX_GROUP, np.int64)
        fit = seen[asked] @ np.log(like).T + np.log(np.maximum(weights, 1e-300))
        here = np.arange(len(asked)), len(self._public) + asked
        fit[here] = -np.inf  # it does not vouch for itself
        chance = np.exp(fit - fit.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        mixed = (WORTH * (chance @ like) + seen[asked]) / (WORTH + worth[asked])[:, None]
        above = 1.0 - np.cumsum(mixed, axis=1)  # the share of windows above each class
        place = (above > 1.0 - self._quantile + 1e-9).sum(axis=1)
        ends = np.concatenate([np.ceil(self._ends[asked]), np.full((len(asked), 1), MAX_GROUP)], 1)
        stated: Counts = ends[np.arange(len(asked)), np.minimum(place, CLASSES - 1)].astype(
            np.int64
        )
        stated[self._quotas[asked] == 0] = MAX_GROUP
        return stated

    def _hypotheses(self, seen: Floats, worth: Floats) -> tuple[Floats, Floats]:
        """Return the classes of public pools, then of all pools here, and the weight of each."""
        known = len(self._public)
        mean = self._public.mean(axis=0) if known else np.full(CLASSES, 1.0 / CLASSES)
        here = (seen + mean) / (worth + 1.0)[:, None]
        like = np.concatenate([self._public, here])
        own = worth / (worth + WORTH)
        weights = np.concatenate([np.full(known, 1.0 / max(known, 1)), own])
        if not weights.any():
            return np.zeros((0, CLASSES)), weights
        return like, weights
