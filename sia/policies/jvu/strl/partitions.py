"""Partitions: units of nodes that belong to the same sets of a problem (§4.1.2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sia.policies.jvu.strl.expressions import StrlHolding, StrlProblem, Units, leaves_of


class HeldUnits(NamedTuple):
    """Units of one partition that one running job holds."""

    holding: int
    """Its index among the problem's holdings."""
    job: str
    k: int
    end: float


class Partition(NamedTuple):
    """Units of which each set contains all or none."""

    nodes: tuple[str, ...]
    units: int
    held: tuple[HeldUnits, ...]


class Partitions:
    """The partitions of a problem, and those of each of its sets.

    Attributes:
        parts: The partitions, in the order of their first nodes.
        of: By set, the indices of its partitions, ascending.
    """

    def __init__(
        self, nodes: Mapping[str, int], held: Sequence[StrlHolding], sets: list[Units]
    ) -> None:
        """Divide the nodes. O(nodes + sum of the sizes of the different sets)."""
        member: dict[str, list[int]] = {node: [] for node in nodes}
        different = dict.fromkeys(sets)
        for index, units in enumerate(different):
            for node in units:
                member[node].append(index)
        alike: dict[tuple[int, ...], list[str]] = {}
        for node, inside in member.items():
            alike.setdefault(tuple(inside), []).append(node)
        self.of: dict[Units, list[int]] = {units: [] for units in different}
        keys = [*different]
        self.parts: list[Partition] = []
        where: dict[str, int] = {}
        for sets_of, names in alike.items():
            for index in sets_of:
                self.of[keys[index]].append(len(self.parts))
            where.update(dict.fromkeys(names, len(self.parts)))
            self.parts.append(Partition(tuple(names), sum(nodes[n] for n in names), ()))
        held_by: dict[int, list[HeldUnits]] = {}
        for number, holding in enumerate(held):
            counts: dict[int, int] = {}
            for node, count in holding.units.items():
                counts[where[node]] = counts.get(where[node], 0) + count
            for at, count in counts.items():
                found = HeldUnits(number, holding.job, count, holding.end)
                held_by.setdefault(at, []).append(found)
        for at, units_held in held_by.items():
            self.parts[at] = self.parts[at]._replace(held=tuple(units_held))


def partitions_of(problem: StrlProblem) -> Partitions:
    """Return the partitions of a problem. O(leaves + sizes of its different sets)."""
    sets = [leaf.units for leaf in leaves_of(problem.goal)]
    return Partitions(problem.nodes, problem.held, sets)
