"""The space of a search: what its dimensions mean as settings of `wfq` (§3.3).

The heuristic space has four dimensions: T, W, ζ and δ. The raw space has the number of queues, each
limit and each weight in place of T and W; it is there to show what the heuristics are worth.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import ceil, exp, fsum, log10
from typing import NamedTuple

from replay.search.algorithms import Genome
from sia.console.errors import UserError

LEAST_W, MOST_W = -1.0, 3.0
"""Bounds of W. With 3, each queue has a twentieth of the weight of the one before; below -1 only
the longest jobs would run."""

LEAST_DELTA, MOST_DELTA = 0.05, 1.0
"""Bounds of δ. With 1 the first step takes all caps away; below 0.05 steps hardly differ."""

MOST_QUEUES = 12
"""Most queues of a point, unless the cluster has fewer GPUs. With more, whole GPUs of a pool of 64
could not follow the weights, and a label would be too long for the name of a folder."""

LEAST_WEIGHT = 0.01
"""Smallest weight of a raw queue beside the largest, 1."""

DIGITS, LIMIT_DIGITS, WEIGHT_DIGITS = 3, 6, 4
"""Significant digits of T, of limits (rounded up) and of weights in labels."""


class Point(NamedTuple):
    """Settings of `wfq`: its label, and the queues that the label makes of the history."""

    label: str
    limits: tuple[float, ...]
    """The largest size of each queue but the last, in GPU-seconds, ascending."""
    weights: tuple[float, ...]
    """Of each queue, that of the smallest jobs first."""
    zeta: float
    delta: float

    @property
    def settings(self) -> tuple[tuple[float, ...], tuple[float, ...], float, float]:
        """Everything that decides, without the label."""
        return self.limits, self.weights, self.zeta, self.delta

    @property
    def exact(self) -> str:
        """The label with limits and weights, which means the same on every log."""
        return queues_label(self.limits, self.weights, self.zeta, self.delta)


def queues_label(
    limits: Sequence[float], weights: Sequence[float], zeta: float, delta: float
) -> str:
    """Return the label of given queues."""
    parts = [f"weights={'+'.join(f'{weight:g}' for weight in weights)}"]
    if limits:
        parts.insert(0, f"sizes={'+'.join(map(_limit, limits))}")
    return ":".join(["wfq", *parts, f"zeta={zeta:g}", f"delta={delta:g}"])


def _limit(value: float) -> str:
    """Return a limit without an exponent, whose `+` would separate two limits."""
    return f"{value:.0f}" if value >= 10.0**LIMIT_DIGITS else f"{value:.{LIMIT_DIGITS}g}"


def limits_of(sizes: Sequence[float], spread: float) -> tuple[float, ...]:
    """Return the limits of queues in each of which C² of the sizes is at most `spread` (T).

    `sizes` ascend. A queue opens at the next size that would take C², the population variance
    by the squared mean, above T; equal sizes stay together. O(n).
    """
    limits = []
    count, mean, squares = 0, 0.0, 0.0  # Welford's sums
    before = sizes[0]
    for size in sizes:
        count += 1
        step = size - mean
        mean += step / count
        squares += step * (size - mean)
        if size != before and squares / count / (mean * mean) > spread:
            limits.append(before)
            count, mean, squares = 1, size, 0.0
        before = size
    return tuple(limits)


def weights_of(queues: int, decay: float) -> tuple[float, ...]:
    """Return the weights e^(−iW) / Σ of queues, that of the smallest jobs first."""
    raw = [exp(-i * decay) for i in range(queues)]
    total = fsum(raw)
    return tuple([each / total for each in raw])


def spread_of(sizes: Sequence[float]) -> float:
    """Return the least T that makes one queue: the most C² of the sizes up to any of them.

    This is more than C² of all sizes if the largest ones are much alike. O(n).
    """
    most = mean = squares = 0.0
    for count, size in enumerate(sizes, 1):
        step = size - mean
        mean += step / count
        squares += step * (size - mean)
        most = max(most, squares / count / (mean * mean))
    return most


class Space(ABC):
    """Turns genomes into points. `dimensions` is the length of a genome."""

    dimensions: int

    def __init__(self, sizes: Sequence[float], gpus: int) -> None:
        """Take the sizes of the history in ascending order. Raises UserError."""
        if sizes[0] == sizes[-1]:
            raise UserError(
                f"all {len(sizes):,} jobs of the history have the same size, so that there is "
                "nothing to sort into queues; give a log with jobs of several sizes"
            )
        self.sizes, self.gpus = sizes, gpus
        self.queues = min(MOST_QUEUES, gpus)

    @abstractmethod
    def point(self, genome: Genome) -> Point:
        """Return what a genome stands for. Values are rounded, so that labels are short."""

    @abstractmethod
    def first(self) -> list[Genome]:
        """Return the extremes to begin with: FIFO first, then fair, short jobs first and more."""


class HeuristicSpace(Space):
    """T, W, ζ and δ. T is drawn by its logarithm, from as many queues as there may be to one."""

    dimensions = 4

    def __init__(self, sizes: Sequence[float], gpus: int) -> None:
        """Find the bounds of T."""
        super().__init__(sizes, gpus)
        self.highest = _rounded(spread_of(sizes))
        self.lowest = self._lowest()

    def _lowest(self) -> float:
        """Return the smallest T, to 3 digits, with no more queues than there may be."""
        low, high = self.highest / 1e6, self.highest
        while high / low > 1.01:
            middle = _rounded((low * high) ** 0.5)
            if len(limits_of(self.sizes, middle)) < self.queues:
                high = middle
            else:
                low = middle
        return high

    def point(self, genome: Genome) -> Point:
        """Return the settings with T, W, ζ and δ of a genome."""
        part, decay, zeta, delta = genome
        spread = _rounded(self.lowest * (self.highest / self.lowest) ** part)
        decay = round(LEAST_W + decay * (MOST_W - LEAST_W), 2) + 0.0
        zeta = round(zeta, 2)
        delta = round(LEAST_DELTA + delta * (MOST_DELTA - LEAST_DELTA), 2)
        limits = [_rounded(limit, LIMIT_DIGITS) for limit in limits_of(self.sizes, spread)]
        weights = [
            float(f"{weight:.{WEIGHT_DIGITS}g}") for weight in weights_of(len(limits) + 1, decay)
        ]
        label = f"wfq:T={spread:g}:W={decay:g}:zeta={zeta:g}:delta={delta:g}"
        return Point(label, tuple(limits), tuple(weights), zeta, delta)

    def first(self) -> list[Genome]:
        """Return FIFO, FIFO with caps, equal weights, short jobs first, and points between."""
        none, short = -LEAST_W / (MOST_W - LEAST_W), (1 - LEAST_W) / (MOST_W - LEAST_W)
        return [
            (1.0, none, 0.0, 1.0),  # FIFO: one queue without caps
            (1.0, none, 0.6, 0.15),  # one queue with caps
            (0.0, none, 0.0, 1.0),  # many queues of equal weight
            (0.0, none, 0.6, 0.15),
            (0.0, 1.0, 0.0, 1.0),  # nearly shortest job first
            (0.0, 1.0, 0.6, 0.15),
            (0.5, short, 0.0, 1.0),
            (0.5, short, 0.6, 0.15),
            (0.8, short, 0.6, 0.15),
            (0.8, none, 0.6, 0.15),
        ]


class RawSpace(Space):
    """The number of queues, ζ and δ, then the limits and the weights themselves.

    A limit is a quantile of the sizes, so that each draw splits the jobs; weights are drawn by
    their logarithm.
    """

    def __init__(self, sizes: Sequence[float], gpus: int, queues: int | None = None) -> None:
        """Allow up to so many queues; by default as many as the heuristics may make."""
        super().__init__(sizes, gpus)
        self.queues = queues or self.queues
        self.dimensions = 3 + (self.queues - 1) + self.queues

    def point(self, genome: Genome) -> Point:
        """Return the settings with the queues of a genome; empty queues are left out."""
        number, zeta, delta = genome[:3]
        queues = min(self.queues, 1 + int(number * self.queues))
        parts, shares = genome[3 : 2 + queues], genome[2 + self.queues :][:queues]
        last = len(self.sizes) - 1
        drawn = {_rounded(self.sizes[round(part * last)]) for part in parts}
        limits = tuple(sorted(limit for limit in drawn if limit < self.sizes[-1]))
        weights = tuple(
            float(f"{LEAST_WEIGHT ** (1.0 - share):.3g}") for share in shares[: len(limits) + 1]
        )
        if not limits:
            weights = (1.0,)
        zeta = round(zeta, 2)
        delta = round(LEAST_DELTA + delta * (MOST_DELTA - LEAST_DELTA), 2)
        label = queues_label(limits, weights, zeta, delta)
        return Point(label, limits, weights, zeta, delta)

    def first(self) -> list[Genome]:
        """Return the extremes of the heuristics, with as many jobs in each queue."""
        n = self.queues
        parts = [i / n for i in range(1, n)]
        even, steep = [1.0] * n, [1.0 - i / max(1, n - 1) for i in range(n)]
        return [
            (queues, zeta, delta, *parts, *weights)
            for queues, weights in ((0.0, even), (1.0, even), (1.0, steep))
            for zeta, delta in ((0.0, 1.0), (0.6, 0.15))
        ]


SPACES: dict[str, type[HeuristicSpace | RawSpace]] = {
    "heuristics": HeuristicSpace,
    "queues": RawSpace,
}


def _rounded(value: float, digits: int = DIGITS) -> float:
    """Return a number rounded up to so many significant digits."""
    rounded = float(f"{value:.{digits}g}")
    step = 10.0 ** (ceil(log10(value)) - digits)
    return rounded if rounded >= value else float(f"{rounded + step:.{digits}g}")
