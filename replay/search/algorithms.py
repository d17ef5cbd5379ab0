"""Search algorithms: their interface, and those that are installed.

An algorithm is a class in the entry point group `sia.searches`. It proposes generations of genomes
and is told their objectives. The search provides the source of random numbers, so equal seeds give
equal results.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple, Protocol

from sia.contract.plugins import load_plugin, plugins

GROUP = "sia.searches"

Genome = tuple[float, ...]
"""A point of a space: a number from 0 to 1 for each of its dimensions."""


class Individual(NamedTuple):
    """A genome with its objectives, which are minimised."""

    genome: Genome
    values: tuple[float, ...]


class SearchAlgorithm(Protocol):
    """Proposes genomes, one generation after the other.

    It is built from the number of dimensions, the size of a generation and a source of randomness.
    """

    def ask(self) -> Sequence[Genome]:
        """Return the next generation; the search itself chooses the first points."""

    def tell(self, candidates: Sequence[Individual]) -> None:
        """Take the results of a generation, in the order in which it was asked for."""


def algorithms() -> list[str]:
    """Return the names of the installed algorithms."""
    return list(plugins(GROUP))


def make_algorithm(name: str, dimensions: int, size: int, random: Random) -> SearchAlgorithm:
    """Return a new search of `dimensions`, with `size` genomes a generation.

    Raises KeyError for a name that is not installed, PluginError if its import fails.
    """
    kind: Any = load_plugin(GROUP, name)
    made: SearchAlgorithm = kind(dimensions, size, random)
    return made


class RandomSearch:
    """Genomes drawn uniformly: the baseline for other algorithms."""

    def __init__(self, dimensions: int, size: int, random: Random) -> None:
        """Draw `size` genomes a generation."""
        self._dimensions, self._size, self._random = dimensions, size, random

    def ask(self) -> Sequence[Genome]:
        """Return new genomes."""
        return [random_genome(self._random, self._dimensions) for _ in range(self._size)]

    def tell(self, candidates: Sequence[Individual]) -> None:
        """Learn nothing."""


def random_genome(random: Random, dimensions: int) -> Genome:
    """Return a genome drawn uniformly."""
    return tuple([random.random() for _ in range(dimensions)])


def dominates(left: Sequence[float], right: Sequence[float]) -> bool:
    """Return whether the objectives `left` are nowhere worse than `right`, and somewhere better."""
    return all(a <= b for a, b in zip(left, right, strict=True)) and tuple(left) != tuple(right)


def front_of(values: Sequence[Sequence[float]]) -> list[int]:
    """Return the indices of values that no other dominates, in order; of equal ones the first.

    O(n · front).
    """
    found: list[int] = []
    for i in sorted(range(len(values)), key=lambda i: (tuple(values[i]), i)):
        # If any value dominates `i`, it comes earlier, and it is in the front or dominated by it.
        if not any(
            dominates(values[j], values[i]) or tuple(values[j]) == tuple(values[i]) for j in found
        ):
            found.append(i)
    return sorted(found)
