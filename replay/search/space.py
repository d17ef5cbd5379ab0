"""The space of a search: what its dimensions mean as settings of `wfq` (§3.3).

The heuristic space has four dimensions: T, W, ζ and δ. The raw space has the number of queues, each
limit and each weight instead of T and W; it is there to measure the benefit of the heuristics.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import ceil, log10
from typing import NamedTuple

from replay.search.algorithms import Genome
from sia.console.errors import UserError
from sia.policies.wfq.queues import limits_of, weights_of

LEAST_W, MOST_W = -1.0, 4.0
"""Bounds of W. With 4, each queue has a fiftieth of the weight of the one before, which is nearly a
strict priority; below -1, almost only the longest jobs would run."""

LEAST_DELTA, MOST_DELTA = 0.05, 1.0
"""Bounds of δ. With 1, the first step removes all caps; below 0.05, steps hardly differ."""

MOST_QUEUES = 12
"""Largest number of queues of a point; at most one per GPU. With more, whole GPUs of a pool of 64
could not represent the weights, and a label would be too long for the name of a folder."""

LEAST_WEIGHT = 0.01
"""Smallest weight of a raw queue; the largest is 1."""

DIGITS, LIMIT_DIGITS, WEIGHT_DIGITS = 3, 6, 4
"""Significant digits of T, of limits (rounded up) and of weights in labels."""

ROUNDING = 1e-9
"""Relative tolerance for rounding errors of sums of squares."""


class Point(NamedTuple):
    """Settings of `wfq`: the label, and the queues that it gives with this history."""

    label: str
    limits: tuple[float, ...]
    """The largest size of each queue but the last, in GPU-seconds, ascending."""
    weights: tuple[float, ...]
    """The weight of each queue; the queue of the smallest jobs comes first."""
    zeta: float
    delta: float

    @property
    def settings(self) -> tuple[tuple[float, ...], tuple[float, ...], float, float]:
        """All settings without the label: equal settings decide equally."""
        return self.limits, self.weights, self.zeta, self.delta

    @property
    def exact(self) -> str:
        """The label with limits and weights, which means the same on every log."""
        return queues_label(self.limits, self.weights, self.zeta, self.delta)


def queues_label(
    limits: Sequence[float], weights: Sequence[float], zeta: float, delta: float
) -> str:
    """Return the label for given queues."""
    parts = [f"weights={'+'.join(f'{weight:g}' for weight in weights)}"]
    if limits:
        parts.insert(0, f"sizes={'+'.join(map(_limit, limits))}")
    return ":".join(["wfq", *parts, f"zeta={zeta:g}", f"delta={delta:g}"])


def _limit(value: float) -> str:
    """Format a limit without an exponent, as the `+` of one would separate two limits."""
    return f"{value:.0f}" if value >= 10.0**LIMIT_DIGITS else f"{value:.{LIMIT_DIGITS}g}"


def spread_of(sizes: Sequence[float]) -> float:
    """Return about the smallest T that gives one queue: the maximum of C² up to any size.

    It exceeds C² of all sizes if the largest sizes are similar. `sizes` must ascend. O(n).
    """
    most = mean = squares = 0.0
    for count, size in enumerate(sizes, 1):
        step = size - mean
        mean += step / count
        squares += step * (size - mean)
        most = max(most, squares / count / (mean * mean))
    return most * (1.0 + ROUNDING)


class Space(ABC):
    """Turns genomes into points. `dimensions` is the length of a genome."""

    dimensions: int

    def __init__(self, sizes: Sequence[float], gpus: int, *, capped: bool = True) -> None:
        """Take the sizes of the history in ascending order. Raises UserError.

        `capped` is whether some jobs use additional GPUs less efficiently; else ζ and δ have no
        effect.
        """
        self.capped = capped
        if sizes[0] == sizes[-1]:
            raise UserError(
                f"all {len(sizes):,} jobs of the history have the same size, so that there is "
                "nothing to sort into queues; give a log with jobs of several sizes"
            )
        self.sizes, self.gpus = sizes, gpus
        self.queues = min(MOST_QUEUES, gpus)

    def caps(self, genes: Sequence[float]) -> tuple[float, float]:
        """Return ζ and δ of two genes; without caps if these would have no effect."""
        if not self.capped:
            return 0.0, 1.0
        zeta, delta = genes
        return round(zeta, 2), round(LEAST_DELTA + delta * (MOST_DELTA - LEAST_DELTA), 2)

    @abstractmethod
    def point(self, genome: Genome) -> Point:
        """Return the point of a genome. Values are rounded, so that labels are short."""

    @abstractmethod
    def first(self) -> list[Genome]:
        """Return extreme genomes to begin with: FIFO, then fair, short jobs first and others."""


class HeuristicSpace(Space):
    """T, W, ζ and δ. T is drawn by its logarithm, from one queue to the largest number."""

    def __init__(self, sizes: Sequence[float], gpus: int, *, capped: bool = True) -> None:
        """Find the bounds of T."""
        super().__init__(sizes, gpus, capped=capped)
        self.dimensions = 4 if capped else 2
        self.highest = _rounded(spread_of(sizes))
        self.lowest = self._lowest()

    def _lowest(self) -> float:
        """Return the smallest T, to 3 digits, that does not give too many queues."""
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
        part, decay, *rest = genome
        spread = _rounded(self.lowest * (self.highest / self.lowest) ** part)
        decay = round(LEAST_W + decay * (MOST_W - LEAST_W), 2) + 0.0
        zeta, delta = self.caps(rest)
        limits = [_rounded(limit, LIMIT_DIGITS) for limit in limits_of(self.sizes, spread)]
        weights = [
            float(f"{weight:.{WEIGHT_DIGITS}g}") for weight in weights_of(len(limits) + 1, decay)
        ]
        label = f"wfq:T={spread:g}:W={decay:g}:zeta={zeta:g}:delta={delta:g}"
        return Point(label, tuple(limits), tuple(weights), zeta, delta)

    def first(self) -> list[Genome]:
        """Return FIFO, FIFO with caps, equal weights, short jobs first, and points between."""
        even, short = (w_gene(decay) for decay in (0.0, 1.0))
        queues = [(1.0, even), (0.0, even), (0.0, 1.0), (0.5, short), (0.8, short)]
        return _with_caps(queues, capped=self.capped)


def w_gene(decay: float) -> float:
    """Return the gene for a value of W."""
    return (decay - LEAST_W) / (MOST_W - LEAST_W)


def _with_caps(queues: Sequence[Sequence[float]], *, capped: bool) -> list[Genome]:
    """Return genomes with these first genes: without caps and, if `capped`, with usual ones."""
    if not capped:
        return [tuple(genes) for genes in queues]
    return [(*genes, *caps) for genes in queues for caps in ((0.0, 1.0), (0.6, 0.15))]


class RawSpace(Space):
    """The number of queues, their limits and weights, ζ and δ.

    A gene of a limit is a quantile of the sizes, so that every limit divides the jobs; weights are
    drawn by their logarithm.
    """

    def __init__(
        self, sizes: Sequence[float], gpus: int, queues: int | None = None, *, capped: bool = True
    ) -> None:
        """Allow up to this number of queues; by default as many as the heuristic space."""
        super().__init__(sizes, gpus, capped=capped)
        self.queues = queues or self.queues
        self.dimensions = 2 * self.queues + 2 * capped

    def point(self, genome: Genome) -> Point:
        """Return the settings with the queues of a genome; empty queues are left out."""
        most = self.queues
        queues = min(most, 1 + int(genome[0] * most))
        parts, shares = genome[1:queues], genome[most : most + queues]
        last = len(self.sizes) - 1
        drawn = {_rounded(self.sizes[round(part * last)]) for part in parts}
        limits = tuple(sorted(limit for limit in drawn if limit < self.sizes[-1]))
        weights = tuple(
            float(f"{LEAST_WEIGHT ** (1.0 - share):.3g}") for share in shares[: len(limits) + 1]
        )
        if not limits:
            weights = (1.0,)
        zeta, delta = self.caps(genome[2 * most :])
        label = queues_label(limits, weights, zeta, delta)
        return Point(label, limits, weights, zeta, delta)

    def first(self) -> list[Genome]:
        """Return the extremes of the heuristics, with equal numbers of jobs in all queues."""
        n = self.queues
        parts = [i / n for i in range(1, n)]
        even, steep = [1.0] * n, [1.0 - i / max(1, n - 1) for i in range(n)]
        queues = [(0.0, *parts, *even), (1.0, *parts, *even), (1.0, *parts, *steep)]
        return _with_caps(queues, capped=self.capped)


SPACES: dict[str, type[HeuristicSpace | RawSpace]] = {
    "heuristics": HeuristicSpace,
    "queues": RawSpace,
}


def _rounded(value: float, digits: int = DIGITS) -> float:
    """Return a number rounded up to this number of significant digits."""
    rounded = float(f"{value:.{digits}g}")
    step = 10.0 ** (ceil(log10(value)) - digits)
    return rounded if rounded >= value else float(f"{rounded + step:.{digits}g}")
