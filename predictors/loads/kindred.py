"""Forecasts of a pool that has too few windows of its own, from similar pools.

The other pools are those of public logs (`predictors.loads.public_pools`), and those of the site as
far as they have been observed. For each, the distribution of the peaks of its windows is known, as
shares of its quota in classes. Bayes' rule gives the probability that a pool is like each other
pool, from its own windows of an hour; also for longer windows, because a day has few of these. The
other pools together count as `WORTH` windows, in addition to the pool's own. So a forecast reserves
much at first, and follows the pool as it becomes known.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from predictors.loads.public_pools import POOLS, SHARES
from sia.limits import MAX_GROUP, TICK

WORTH = 19.0
"""Weight of the other pools together, in windows: the number of own windows that a 95 % quantile
needs."""

CLASSES = len(SHARES) + 1
"""Number of classes of peaks: one up to each of `SHARES` of the quota, and one above all."""

BATCH = 64
"""Largest number of windows that wait to be counted by class. Only a pool with too few windows of
its own needs the counts, and counting many windows together takes far less time."""

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]
Peaks = NDArray[np.int64] | NDArray[np.int32]


def public(ticks: int) -> tuple[Floats, Floats]:
    """Return the share of windows of public pools in each class, and each pool's weight.

    The shares have the shape (pools, classes). All logs have the same weight, whatever their number
    of pools, because pools of one site are similar. If windows of this length were not measured,
    the shares are those of the next longer ones, whose peaks are higher. Both results are empty if
    `ticks` is longer than all measured windows.
    """
    longer = [length for length in POOLS if length >= ticks * TICK]
    if not longer:
        return np.zeros((0, CLASSES)), np.zeros(0)
    pools = POOLS[min(longer)]
    found = np.array(list(pools.values()), float) + 1.0  # nothing is impossible
    logs = Counter(name.split()[0] for name in pools)
    weights = np.array([1.0 / (len(logs) * logs[name.split()[0]]) for name in pools])
    shares: Floats = found / found.sum(axis=1, keepdims=True)
    return shares, weights


class Kindred:
    """The classes of the windows of all pools, for one length of windows."""

    def __init__(self, quotas: Counts, ticks: int, quantile: float) -> None:
        """Take quotas in GPUs (0 if unknown), and the length of windows in ticks."""
        self._quotas, self._quantile = quotas, quantile
        self._public, self._weights = public(ticks)
        self._ends = np.array(SHARES) * quotas[:, None]  # of each class, in GPUs
        self._counts = np.zeros((len(quotas), CLASSES))
        self._late: list[tuple[Peaks, NDArray[np.bool_], int]] = []  # calls of `count`, not counted

    @property
    def public(self) -> bool:
        """Whether windows of public pools are known."""
        return len(self._public) > 0

    def count(self, peaks: Peaks, rows: NDArray[np.bool_], by: int = 1) -> None:
        """Add one window of each of these pools; with `by` -1 remove it. O(pools · classes)."""
        self._late.append((peaks.copy(), rows, by))
        if len(self._late) >= BATCH:
            self._catch_up()

    def _catch_up(self) -> None:
        """Count the windows that are not counted yet."""
        if not self._late:
            return
        peaks, rows, by = (np.array(each) for each in zip(*self._late, strict=True))
        classes = (peaks[:, :, None] > self._ends).sum(axis=2)
        np.add.at(self._counts, (np.arange(len(self._counts)), classes), rows * by[:, None])
        self._late.clear()

    def recount(self, row: int, peaks: Peaks) -> None:
        """Replace the windows of a pool by those with these peaks."""
        self._catch_up()
        classes = np.searchsorted(self._ends[row], peaks)
        self._counts[row] = np.bincount(classes, minlength=CLASSES)

    def requota(self, row: int, quota: int, peaks: Peaks) -> None:
        """Change the quota of a pool in GPUs; `peaks` has the peaks of all its windows."""
        self._catch_up()
        self._quotas[row] = quota
        self._ends[row] = np.array(SHARES) * quota
        self.recount(row, peaks)

    def likeness(self, asked: NDArray[np.intp], worth: Floats) -> Floats:
        """Return the probability that each asked pool is like each other pool: (asked, others).

        The others are the public pools, then all pools of the site. `worth` is the number of
        independent windows of each pool of the site. All probabilities are 0 if there are neither
        public pools nor windows. O(asked · others).
        """
        seen = self._seen(worth)
        weights = np.concatenate([self._weights, worth / (worth + WORTH)])
        fit = seen[asked] @ np.log(self._like(seen, worth)).T + np.log(np.maximum(weights, 1e-300))
        fit[:, weights == 0.0] = -np.inf
        fit[np.arange(len(asked)), len(self._public) + asked] = -np.inf  # none vouches for itself
        best = fit.max(axis=1, keepdims=True)
        chance: Floats = np.exp(fit - np.where(np.isfinite(best), best, 0.0))
        chance /= np.maximum(chance.sum(axis=1, keepdims=True), 1e-300)
        return chance

    def state(self, asked: NDArray[np.intp], worth: Floats, likeness: Floats) -> Counts:
        """Return the quantile of each asked pool, in GPUs; `MAX_GROUP` if unknown.

        `worth` is as in `likeness`, but of these windows. O(asked · others · classes).
        """
        seen = self._seen(worth)
        like = self._like(seen, worth)
        chance = likeness[:, likeness.shape[1] - len(like) :]  # without public pools, of the rest
        total = chance.sum(axis=1, keepdims=True)
        others = (chance @ like) / np.maximum(total, 1e-300)
        mixed = (WORTH * others + seen[asked]) / (WORTH + worth[asked])[:, None]
        above = 1.0 - np.cumsum(mixed, axis=1)  # the share of windows above each class
        place = (above > 1.0 - self._quantile + 1e-9).sum(axis=1)
        ends = np.concatenate([np.ceil(self._ends[asked]), np.full((len(asked), 1), MAX_GROUP)], 1)
        stated: Counts = ends[np.arange(len(asked)), np.minimum(place, CLASSES - 1)].astype(
            np.int64
        )
        stated[(self._quotas[asked] == 0) | (total[:, 0] <= 0.0)] = MAX_GROUP
        return stated

    def _seen(self, worth: Floats) -> Floats:
        """Return the number of independent windows of each pool of the site in each class."""
        self._catch_up()
        seen: Floats = self._counts * (worth / np.maximum(self._counts.sum(axis=1), 1.0))[:, None]
        return seen

    def _like(self, seen: Floats, worth: Floats) -> Floats:
        """Return the distribution over classes of the public pools, then of all pools here."""
        known = len(self._public)
        mean = self._weights @ self._public if known else np.full(CLASSES, 1.0 / CLASSES)
        return np.concatenate([self._public, (seen + mean) / (worth + 1.0)[:, None]])
