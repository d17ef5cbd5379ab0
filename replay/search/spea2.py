"""SPEA2, the strength Pareto evolutionary algorithm (Zitzler, Laumanns, Thiele 2001).

The fitness of a candidate is the sum of the strengths of those that dominate it; among equals,
candidates in crowded regions are worse. An archive of fixed size keeps the front, and thins it out
where it is densest. Each objective is divided by its range before distances are measured, because
objectives have different units.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import dist, isqrt
from random import Random

from replay.search.algorithms import Genome, Individual, dominates, random_genome

CROSSOVER = 0.9
"""Share of children that mix two parents; the others are mutated copies of one."""

SPREAD_CROSSED, SPREAD_MUTATED = 1.0, 3.0
"""Distribution indices of simulated binary crossover and polynomial mutation: the larger, the
nearer are children to their parents. The usual 15 and 20 are for tens of thousands of evaluations;
with the few hundred that simulations allow they found less than chance on two test functions."""


class Spea2:
    """Breeds generations by binary tournaments in an archive of the size of a generation."""

    def __init__(self, dimensions: int, size: int, random: Random) -> None:
        """Start with an empty archive of `size` candidates."""
        self._dimensions, self._size, self._random = dimensions, size, random
        self.archive: list[Individual] = []
        self._fitness: list[float] = []

    def tell(self, candidates: Sequence[Individual]) -> None:
        """Choose the next archive from it and a generation. O(n² log n), n = both sizes."""
        union: dict[Individual, None] = dict.fromkeys([*self.archive, *candidates])
        pool = list(union)
        self.archive = select(pool, self._size)
        self._fitness = fitness(self.archive)

    def ask(self) -> Sequence[Genome]:
        """Return children of the archive; random genomes while there are too few parents."""
        if len(self.archive) < 2:
            return [random_genome(self._random, self._dimensions) for _ in range(self._size)]
        children: list[Genome] = []
        while len(children) < self._size:
            pair = self._parent(), self._parent()
            if self._random.random() < CROSSOVER:
                pair = _crossed(self._random, *pair)
            children += (_mutated(self._random, child) for child in pair)
        return children[: self._size]

    def _parent(self) -> Genome:
        """Return the fitter of two archived candidates drawn at random."""
        i, j = (self._random.randrange(len(self.archive)) for _ in range(2))
        return self.archive[i if self._fitness[i] <= self._fitness[j] else j].genome


def fitness(candidates: Sequence[Individual]) -> list[float]:
    """Return the fitness of each candidate: below 1 if none dominates it; lower is better.

    The strength of a candidate is the number that it dominates; its raw fitness is the sum of the
    strengths of those that dominate it. The density added to it is 1 / (2 + distance to the k-th
    nearest), with k = √n. O(n² log n).
    """
    values = [candidate.values for candidate in candidates]
    beaten_by: list[list[int]] = [[] for _ in values]
    strength = [0] * len(values)
    for i, own in enumerate(values):
        for j, other in enumerate(values):
            if dominates(own, other):
                strength[i] += 1
                beaten_by[j].append(i)
    nth = isqrt(len(values))
    places = _scaled(values)
    found = []
    for i, own in enumerate(places):
        away = sorted(dist(own, other) for other in places)  # the first is the distance to itself
        density = 1.0 / (2.0 + away[min(nth, len(away) - 1)])
        found.append(sum(strength[j] for j in beaten_by[i]) + density)
    return found


def select(candidates: Sequence[Individual], size: int) -> list[Individual]:
    """Return the next archive (environmental selection), in order of the candidates.

    It consists of the candidates that none dominates. If they are fewer than `size`, the fittest
    others are added; if they are more, the one nearest to another is removed until they fit.
    """
    ranks = fitness(candidates)
    best = [i for i, rank in enumerate(ranks) if rank < 1]
    if len(best) < size:
        rest = sorted((rank, i) for i, rank in enumerate(ranks) if rank >= 1)
        best += [i for _, i in rest[: size - len(best)]]
    elif len(best) > size:
        best = _thinned([candidate.values for candidate in candidates], best, size)
    return [candidates[i] for i in sorted(best)]


def _thinned(values: Sequence[Sequence[float]], kept: list[int], size: int) -> list[int]:
    """Remove the candidate with the nearest neighbour, ties by the next nearest, until they fit.

    O(n² log n) for each one removed.
    """
    places = dict(zip(kept, _scaled([values[i] for i in kept]), strict=True))
    while len(places) > size:
        crowded = min(
            places,
            key=lambda i: (
                sorted(dist(places[i], other) for j, other in places.items() if j != i),
                i,
            ),
        )
        del places[crowded]
    return list(places)


def _scaled(values: Sequence[Sequence[float]]) -> list[tuple[float, ...]]:
    """Divide each objective by its range among these values."""
    lows = [min(column) for column in zip(*values, strict=True)]
    highs = [max(column) for column in zip(*values, strict=True)]
    return [
        tuple(
            (value - low) / (high - low) if high > low else 0.0
            for value, low, high in zip(own, lows, highs, strict=True)
        )
        for own in values
    ]


def _crossed(random: Random, left: Genome, right: Genome) -> tuple[Genome, Genome]:
    """Return two children by simulated binary crossover; each dimension is mixed with 50 %."""
    pairs = []
    for a, b in zip(left, right, strict=True):
        if random.random() < 0.5:
            drawn = random.random()
            power = 1.0 / (SPREAD_CROSSED + 1.0)
            beta = (2 * drawn) ** power if drawn < 0.5 else (0.5 / (1.0 - drawn)) ** power
            mean, half = (a + b) / 2, beta * (b - a) / 2
            pairs.append((_within(mean - half), _within(mean + half)))
        else:
            pairs.append((a, b))
    return tuple(a for a, _ in pairs), tuple(b for _, b in pairs)


def _mutated(random: Random, genome: Genome) -> Genome:
    """Return a genome with on average one dimension changed, by polynomial mutation."""
    changed = []
    for value in genome:
        if random.random() * len(genome) < 1.0:
            drawn = random.random()
            power = 1.0 / (SPREAD_MUTATED + 1.0)
            step = (2 * drawn) ** power - 1.0 if drawn < 0.5 else 1.0 - (2 * (1.0 - drawn)) ** power
            value = _within(value + step)  # noqa: PLW2901
        changed.append(value)
    return tuple(changed)


def _within(value: float) -> float:
    return min(1.0, max(0.0, value))
