"""The answer to an STRL problem: the chosen leaves, their nodes, and the value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from sia.policies.jvu.strl.compiler import ChosenLeaf, CompiledStrl
from sia.policies.jvu.strl.expressions import (
    Choose,
    Expression,
    JobScope,
    Kill,
    Leaf,
    Max,
    Min,
    Scale,
    Sum,
)
from sia.program import TOLERANCE


class PlacedLeaf(NamedTuple):
    """A chosen leaf, with its units by node."""

    number: int
    """Its number among all leaves, from left to right."""
    leaf: Leaf
    job: str
    units: dict[str, int]

    @property
    def total(self) -> int:
        """The number of units that it takes or frees."""
        return sum(self.units.values())


class StrlAnswer(NamedTuple):
    """The chosen leaves, and their value."""

    objective: float
    chosen: list[PlacedLeaf]


def answer_of(compiled: CompiledStrl, values: Sequence[float]) -> StrlAnswer:
    """Return the answer for a solution of a compiled problem. O(leaves + chosen units)."""
    placed = _Placer(compiled).place(compiled.read(values))
    solved = -compiled.program.cost(values)
    exact = _Worth({each.number: each.total for each in placed}).of(compiled.problem.goal) or 0.0
    # The value is summed from the leaves, so that it has no tolerance of the solver.
    close = abs(exact - solved) <= TOLERANCE * max(1.0, abs(exact))
    return StrlAnswer(exact if close else solved, placed)


class _Worth:
    """Adds up values from the leaves to the top; None means that a part is not chosen.

    A part counts as chosen if one of its leaves is. Exception: a `barrier` of at most 0 is reached
    without a chosen leaf.
    """

    def __init__(self, counts: Mapping[int, int]) -> None:
        self._counts, self._number = counts, -1

    def of(self, expression: Expression) -> float | None:
        if isinstance(expression, Choose | Kill):
            return self._leaf(expression)
        if isinstance(expression, Max | Sum):
            found = [value for part in expression.parts if (value := self.of(part)) is not None]
            return sum(found) if found else None
        if isinstance(expression, Min):
            values = [self.of(part) for part in expression.parts]
            if all(value is None for value in values):
                return None
            return min(0.0 if value is None else value for value in values)
        value = self.of(expression.part)
        if value is None or isinstance(expression, JobScope):
            return value
        return value * expression.factor if isinstance(expression, Scale) else expression.value

    def _leaf(self, leaf: Leaf) -> float | None:
        self._number += 1
        count = self._counts.get(self._number)
        if count is None:
            return None
        value = leaf.value if isinstance(leaf, Choose) else -leaf.cost
        return value * count / leaf.k if leaf.linear and leaf.k else value


class _Placer:
    """Gives chosen leaves nodes within their partitions, the earliest first."""

    def __init__(self, compiled: CompiledStrl) -> None:
        self._compiled = compiled
        problem, parts = compiled.problem, compiled.partitions.parts
        where = {node: at for at, part in enumerate(parts) for node in part.nodes}
        self._held: dict[tuple[int, int], list[str]] = {}
        """By partition and holding: the nodes of its units."""
        self._units: dict[int, list[tuple[str, list[tuple[int, int]]]]] = {}
        """By partition: node of each unit, and when it is in use (slots)."""
        free = dict(problem.nodes)
        for number, holding in enumerate(problem.held):
            for node, count in holding.units.items():
                self._held.setdefault((where[node], number), []).extend([node] * count)
                free[node] -= count
        for node, count in free.items():
            units = self._units.setdefault(where[node], [])
            units.extend((node, []) for _ in range(count))

    def place(self, chosen: Sequence[ChosenLeaf]) -> list[PlacedLeaf]:
        placed = [
            PlacedLeaf(each.number, each.leaf, each.job, self._free(each))
            for each in chosen
            if isinstance(each.leaf, Kill)
        ]
        now, slots = self._compiled.problem.now, self._compiled.slots
        for (at, number), nodes in self._held.items():  # units that no kill frees
            _, last = slots(now, self._compiled.problem.held[number].end)
            self._units.setdefault(at, []).extend((node, [(0, last)]) for node in nodes)
        takes = [each for each in chosen if isinstance(each.leaf, Choose)]
        placed += [
            PlacedLeaf(each.number, each.leaf, each.job, self._take(each))
            for each in sorted(takes, key=lambda each: (each.leaf[2], each.number))
        ]
        return sorted(placed)

    def _free(self, chosen: ChosenLeaf) -> dict[str, int]:
        """Free units of holders, which use them before and after."""
        leaf = chosen.leaf
        assert isinstance(leaf, Kill)
        problem, slots = self._compiled.problem, self._compiled.slots
        found: dict[str, int] = {}
        for (at, number), count in chosen.units.items():
            nodes = self._held[at, number]
            end = problem.held[number].end
            _, first = slots(problem.now, max(leaf.begin, problem.now))
            busy = [(0, first)]
            if leaf.until < end:
                busy.append(slots(leaf.until, end))
            for node in nodes[:count]:
                found[node] = found.get(node, 0) + 1
                self._units.setdefault(at, []).append((node, [*busy]))
            del nodes[:count]
        return found

    def _take(self, chosen: ChosenLeaf) -> dict[str, int]:
        leaf = chosen.leaf
        assert isinstance(leaf, Choose)
        first, last = self._compiled.slots(leaf.start, leaf.start + leaf.duration)
        found: dict[str, int] = {}
        for (at, _), count in chosen.units.items():
            units = self._units[at]
            there = [unit for unit in units if _is_free(unit[1], first, last)]
            # A unit that its holder takes back may be the only one left: see `Kill.until`.
            for node, busy in [*there, *(unit for unit in units if unit not in there)][:count]:
                busy.append((first, last))
                found[node] = found.get(node, 0) + 1
        return found


def _is_free(busy: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    return all(end <= first or last <= begin for begin, end in busy)


def describe(placed: PlacedLeaf) -> Mapping[str, object]:
    """Return a chosen leaf as plain values."""
    leaf = placed.leaf
    job = {"job": placed.job} if placed.job else {}
    name = ("l" if leaf.linear else "") + ("nck" if isinstance(leaf, Choose) else "killnck")
    if isinstance(leaf, Choose):
        share = placed.total / leaf.k if leaf.linear and leaf.k else 1.0
        times = {"start": leaf.start, "end": leaf.start + leaf.duration}
        worth = leaf.value * share
    else:
        share = placed.total / leaf.k if leaf.linear and leaf.k else 1.0
        times = {"from": leaf.begin, "until": leaf.until}
        worth = -leaf.cost * share
    return {"leaf": placed.number, "operator": name, **job, "k": leaf.k, **times,
            "value": worth, "units": placed.units}  # fmt: skip
