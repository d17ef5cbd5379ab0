"""Compile an STRL problem to an integer program, and read its solution (Alg. 1).

Each choice has a binary indicator; each leaf has an integer number of units from each partition of
its set. A demand row connects both, and a supply row for each partition and slot limits the used
units. Supply rows are needed only in slots in which a use begins, because the available units never
become fewer in between.

A planner that decides again before later starts are due may relax these: they take units from their
sets as a whole, as if a job could move within its set while it runs. This saves a column for each
partition of each of their sets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import ceil, floor, inf
from typing import NamedTuple

from sia.policies.jvu.strl.expressions import (
    Barrier,
    Choose,
    Expression,
    JobScope,
    Kill,
    Leaf,
    Max,
    Min,
    Scale,
    StrlProblem,
    Sum,
    Units,
    parts_of,
)
from sia.policies.jvu.strl.partitions import HeldUnits, partitions_of
from sia.program import Program, ProgramBuilder

SNAP = 1e-9
"""A time this close to the boundary of a slot, relative to its number, is the boundary."""


class _Terms(NamedTuple):
    """A value: Σ coefficient · column."""

    columns: dict[int, float]
    low: float
    high: float


class _Take(NamedTuple):
    """Columns of a leaf: units from a partition, or freed from a holding in it.

    The units are `factor` times the column.
    """

    partition: int
    """Index of the partition; for a relaxed leaf the number of partitions plus that of its set."""
    holding: int
    column: int
    factor: int


class CompiledLeaf(NamedTuple):
    """A leaf that can be chosen, in the order from left to right of all leaves."""

    number: int
    leaf: Leaf
    job: str
    """The job of the enclosing scope; empty outside any scope."""
    column: int
    """Its indicator, or -1 for a linear leaf, which has no indicator of its own."""
    takes: list[_Take]


class _Use(NamedTuple):
    """Units in use from one slot until before another; negative for units that a kill frees."""

    first: int
    last: int
    column: int
    units: int
    """Number of units for a column value of 1."""


class ChosenLeaf(NamedTuple):
    """A leaf of a solution, and its units by partition and, for kills, by holding."""

    number: int
    leaf: Leaf
    job: str
    units: dict[tuple[int, int], int]
    """Number of units by (partition, holding); holding is -1 for units that are taken."""


class CompiledStrl:
    """A program, and how to read its solutions.

    Attributes:
        program: Minimises minus the value.
        leaves: The leaves that can be chosen.
        partitions: The partitions of the problem.
    """

    def __init__(self, problem: StrlProblem, loose_from: float = inf) -> None:
        """Compile a problem. O(leaves · partitions + supply).

        Starts at `loose_from` (seconds) or later are relaxed: they use their sets as a whole.
        """
        self.problem, self._loose_from = problem, loose_from
        self.partitions = partitions_of(problem)
        self.leaves: list[CompiledLeaf] = []
        self._builder = ProgramBuilder()
        self._parents: dict[int, int] = {}  # by indicator, the indicator that it depends on
        self._loose: dict[Units, int] = {}
        """Sets from which units are taken as a whole, by their numbers."""
        self._freed: dict[tuple[int, int], list[tuple[int, int]]] = {}
        """By partition and holding: column, units for each; each unit is freed once."""
        self._most: dict[int, int] = {}
        """Upper bound of each column of units; indicators are at most 1."""
        self._numbered = 0
        value = self._goal(problem.goal)
        for column, worth in value.columns.items():
            self._builder.costs[column] -= worth
        self._supply()
        self.program: Program = self._builder.build()

    def _goal(self, goal: Expression) -> _Terms:
        possible = self._possible(goal, "")
        return _Terms({}, 0.0, 0.0) if possible is None else self._optional(possible, None)

    # Expressions that can be chosen

    def _possible(self, expression: Expression, job: str) -> _Node | None:
        """Return an expression without its impossible parts, or None if none is left. O(leaves)."""
        if isinstance(expression, Choose):
            return self._possible_choice(expression, job)
        if isinstance(expression, Kill):
            return self._possible_kill(expression, job)
        if isinstance(expression, JobScope):
            return self._possible(expression.part, expression.job)
        parts = [self._possible(part, job) for part in parts_of(expression)]
        found = [part for part in parts if part is not None]
        if isinstance(expression, Max | Sum):
            return _Node(expression, found, [], optional=True)
        if len(found) < len(parts):
            return None
        optional = isinstance(expression, Scale) and found[0].optional
        return _Node(expression, found, [], optional)

    def _possible_choice(self, leaf: Choose, job: str) -> _Node | None:
        number = self._number()
        problem = self.problem
        if not problem.now <= leaf.start < problem.now + problem.horizon:
            return None
        among = self.partitions.of[leaf.units]
        there = sum(self.partitions.parts[at].units for at in among)
        if not leaf.linear and leaf.k > there:
            return None
        eligible = [(at, -1, self.partitions.parts[at].units) for at in among]
        return _Node(leaf, [], eligible, leaf.linear, number, job)

    def _possible_kill(self, leaf: Kill, job: str) -> _Node | None:
        number = self._number()
        begin = max(leaf.begin, self.problem.now)
        if not begin < min(leaf.until, self.problem.now + self.problem.horizon):
            return None
        eligible = [
            (at, held.holding, held.k)
            for at in self.partitions.of[leaf.units]
            for held in self.partitions.parts[at].held
            if held.end > begin and (not job or held.job == job)
        ]
        there = sum(count for _, _, count in eligible)
        if not leaf.linear and leaf.k > there:
            return None
        return _Node(leaf, [], eligible, leaf.linear, number, job)

    def _number(self) -> int:
        self._numbered += 1
        return self._numbered - 1

    # Columns and demand

    def _optional(self, node: _Node, above: int | None) -> _Terms:
        """Return the value of an optional part.

        It can be chosen only if the column `above` is 1; always if `above` is None.
        """
        if node.optional:
            return self._value(node, above)
        return self._value(node, self._indicator(above))

    def _indicator(self, above: int | None) -> int:
        column = self._builder.binaries([0.0])
        if above is not None:
            self._parents[column] = above
            self._builder.at_most({column: 1.0, above: -1.0}, 0.0)
        return column

    def _value(self, node: _Node, chosen: int | None) -> _Terms:
        """Return the value of an expression that is chosen if the column `chosen` is 1."""
        kind = node.expression
        if isinstance(kind, Choose | Kill):
            return self._leaf(node, kind, chosen)
        if isinstance(kind, Sum):
            return _total([self._optional(part, chosen) for part in node.parts])
        if isinstance(kind, Max):
            return self._best(node.parts, chosen)
        if isinstance(kind, Scale):
            value = self._value(node.parts[0], chosen)
            return _scaled(value, kind.factor)
        assert chosen is not None, "only what may stay out goes without an indicator"
        if isinstance(kind, Min):
            return self._least([self._value(part, chosen) for part in node.parts])
        assert isinstance(kind, Barrier)
        value = self._value(node.parts[0], chosen)
        terms = _scaled(value, -1.0).columns
        terms[chosen] = terms.get(chosen, 0.0) + kind.value
        self._builder.at_most(terms, 0.0)
        return _Terms({chosen: kind.value}, min(0.0, kind.value), max(0.0, kind.value))

    def _best(self, parts: Sequence[_Node], chosen: int | None) -> _Terms:
        """Return the value of at most one of the parts."""
        if not parts:
            return _Terms({}, 0.0, 0.0)
        if len(parts) == 1:
            return self._optional(parts[0], chosen)
        first = self._builder.binaries([0.0] * len(parts))
        columns = range(first, first + len(parts))
        terms = dict.fromkeys(columns, 1.0)
        if chosen is None:
            self._builder.at_most(terms, 1.0)
        else:
            self._parents.update(dict.fromkeys(columns, chosen))
            self._builder.at_most({**terms, chosen: -1.0}, 0.0)
        values = [self._value(part, at) for part, at in zip(parts, columns, strict=True)]
        found: dict[int, float] = {}
        for value in values:
            found.update(value.columns)
        low, high = min(v.low for v in values), max(v.high for v in values)
        return _Terms(found, min(0.0, low), max(0.0, high))

    def _least(self, values: Sequence[_Terms]) -> _Terms:
        """Return a column that is at most each of the values."""
        low = min(0.0, *(value.low for value in values))
        high = max(0.0, min(value.high for value in values))
        column = self._builder.column(0.0, low, high)
        for value in values:
            self._builder.at_most({column: 1.0, **_scaled(value, -1.0).columns}, 0.0)
        return _Terms({column: 1.0}, low, high)

    def _leaf(self, node: _Node, leaf: Leaf, chosen: int | None) -> _Terms:
        worth = leaf.value if isinstance(leaf, Choose) else -leaf.cost
        count, builder = leaf.k, self._builder
        takes: list[_Take] = []
        there = sum(units for _, _, units in node.eligible)
        if chosen is not None and self._is_loose(node, leaf):
            number = self._loose.setdefault(leaf.units, len(self._loose))
            takes.append(_Take(len(self.partitions.parts) + number, -1, chosen, count))
        elif chosen is not None and not leaf.linear and count == there:
            takes += [_Take(at, holding, chosen, most) for at, holding, most in node.eligible]
        elif chosen is not None and not leaf.linear and len(node.eligible) == 1:
            at, holding, _ = node.eligible[0]
            takes.append(_Take(at, holding, chosen, count))
        else:
            for at, holding, there in node.eligible:
                most = min(count, there)
                column = builder.column(0.0, 0.0, float(most), whole=True)
                self._most[column] = most
                takes.append(_Take(at, holding, column, 1))
            terms = {take.column: 1.0 for take in takes}
            if chosen is not None:
                terms[chosen] = -float(count)
            bound = float(count) if chosen is None else 0.0
            builder.row(terms, -inf if leaf.linear else 0.0, bound)
        if isinstance(leaf, Kill):
            for take in takes:
                key = take.partition, take.holding
                self._freed.setdefault(key, []).append((take.column, take.factor))
        own = -1 if leaf.linear or chosen is None else chosen
        self.leaves.append(CompiledLeaf(node.number, leaf, node.job, own, takes))
        if own >= 0:
            return _Terms({own: worth}, min(0.0, worth), max(0.0, worth))
        each = worth / count if count else 0.0
        return _Terms({t.column: each for t in takes}, min(0.0, worth), max(0.0, worth))

    # Supply

    def _is_loose(self, node: _Node, leaf: Leaf) -> bool:
        return (
            isinstance(leaf, Choose)
            and leaf.start >= self._loose_from
            and not leaf.linear
            and len(node.eligible) > 1
        )

    def _used(self, leaf: Leaf, take: _Take) -> Iterator[_Use]:
        """Yield when units of a take are in use, or freed."""
        column, units = take.column, take.factor
        if isinstance(leaf, Choose):
            first, last = self.slots(leaf.start, leaf.start + leaf.duration)
            if first < last:
                yield _Use(first, last, column, units)
            return
        held = self._held(take.partition, take.holding)
        begin = max(leaf.begin, self.problem.now)
        _, first = self.slots(self.problem.now, begin)
        _, last = self.slots(self.problem.now, held.end)
        if first < last:
            yield _Use(first, last, column, -units)
        if leaf.until < held.end:  # the holder is back
            again, _ = self.slots(leaf.until, held.end)
            again = max(again, first)
            if again < last:
                yield _Use(again, last, column, units)

    def _held(self, partition: int, holding: int) -> HeldUnits:
        held = self.partitions.parts[partition].held
        return next(each for each in held if each.holding == holding)

    def slots(self, begin: float, end: float) -> tuple[int, int]:
        """Return the first slot that [begin, end) touches, and the one after the last."""
        if end <= begin:
            at = max(0, ceil(self._slot(begin)))
            return at, at
        most = ceil(self._slot(self.problem.now + self.problem.horizon))
        return max(0, floor(self._slot(begin))), min(most, ceil(self._slot(end)))

    def _slot(self, time: float) -> float:
        exact = (time - self.problem.now) / self.problem.slot
        near = round(exact)
        return near if abs(exact - near) <= SNAP * max(1.0, abs(exact)) else exact

    def _supply(self) -> None:
        """Add the rows that limit the used units of each partition and freed ones of holdings."""
        count = len(self.partitions.parts)
        uses: dict[int, list[_Use]] = {}
        for leaf in self.leaves:
            for take in leaf.takes:
                if take.partition < count:
                    uses.setdefault(take.partition, []).extend(self._used(leaf.leaf, take))
        for at, found in sorted(uses.items()):
            self._bound([at], found, 0)
        self._supply_loosely()
        for (at, holding), frees in self._freed.items():
            if len(frees) > 1:
                terms: dict[int, int] = {}
                for column, units in frees:
                    terms[column] = terms.get(column, 0) + units
                held = float(self._held(at, holding).k)
                self._builder.at_most({c: float(n) for c, n in terms.items()}, held)

    def _supply_loosely(self) -> None:
        """Add the rows of sets from which units are taken as a whole.

        Uses of subsets and partitions inside the set also count.
        """
        count, of = len(self.partitions.parts), self.partitions.of
        inside = {units: {*of[units]} for units in self._loose}
        for parts in inside.values():
            there = {
                count + number for each, number in self._loose.items() if inside[each] <= parts
            }
            within, uses, begin = parts | there, list[_Use](), inf
            for leaf in self.leaves:
                takes = [take for take in leaf.takes if take.partition in within]
                all_in = len(takes) == len(leaf.takes) > 1 and leaf.column >= 0
                if all_in and isinstance(leaf.leaf, Choose):  # its units add up to k
                    takes = [_Take(takes[0].partition, -1, leaf.column, leaf.leaf.k)]
                for take in takes:
                    found = [*self._used(leaf.leaf, take)]
                    uses += found
                    if take.partition >= count and found:
                        begin = min(begin, found[0].first)
            if begin < inf:
                self._bound([*parts], uses, int(begin))

    def _bound(self, parts: Sequence[int], uses: Sequence[_Use], begin: int) -> None:
        """Limit the used units of some partitions together, from slot `begin` on."""
        there = [self.partitions.parts[at] for at in parts]
        units = sum(part.units for part in there)
        busy = [
            (self.slots(self.problem.now, each.end)[1], each.k)
            for part in there
            for each in part.held
        ]
        seen: dict[tuple[tuple[int, int], ...], int] = {}
        slots = sorted({use.first for use in uses if use.units > 0 and use.first >= begin})
        for slot in slots:
            terms: dict[int, int] = {}
            for first, last, column, count in uses:
                if first <= slot < last:
                    terms[column] = terms.get(column, 0) + count
            left = units - sum(count for last, count in busy if slot < last)
            most = self._most
            if sum(n * most.get(column, 1) for column, n in terms.items() if n > 0) > left:
                key = tuple((column, n) for column, n in terms.items() if n)
                seen[key] = min(left, seen.get(key, left))
        for key, left in seen.items():
            self._builder.at_most({column: float(n) for column, n in key}, left)

    # Solutions

    def read(self, values: Sequence[float]) -> list[ChosenLeaf]:
        """Return the leaves that a solution chooses, from left to right. O(columns)."""
        found = []
        for number, leaf, job, column, takes in self.leaves:
            units = {
                (take.partition, take.holding): round(values[take.column]) * take.factor
                for take in takes
                if round(values[take.column])
            }
            if units or (column >= 0 and values[column] > 0.5):
                found.append(ChosenLeaf(number, leaf, job, units))
        return sorted(found)

    def start(self, chosen: Mapping[int, Mapping[tuple[int, int], int]]) -> tuple[float, ...]:
        """Return the values of a solution that chooses these leaves, given by number.

        The units are as in `ChosenLeaf`. The expression to maximise must contain no `min`.
        """
        values = [0.0] * len(self.program.costs)
        for number, _, _, column, takes in self.leaves:
            units = chosen.get(number)
            if units is None:
                continue
            at = column
            for take in takes:
                if take.column != column:
                    values[take.column] = float(units.get((take.partition, take.holding), 0))
                    at = self._parents.get(take.column, at)
            while at >= 0:
                values[at] = 1.0
                at = self._parents.get(at, -1)
        return tuple(values)


class _Node(NamedTuple):
    """An expression that can be chosen."""

    expression: Expression
    parts: list[_Node]
    eligible: list[tuple[int, int, int]]
    """For a leaf: (partition, holding or -1, maximum of units) of each source."""
    optional: bool
    """Whether it may be chosen without units and value, so that it needs no indicator."""
    number: int = -1
    job: str = ""


def _total(values: Sequence[_Terms]) -> _Terms:
    columns: dict[int, float] = {}
    for value in values:
        for column, worth in value.columns.items():
            columns[column] = columns.get(column, 0.0) + worth
    return _Terms(columns, sum(v.low for v in values), sum(v.high for v in values))


def _scaled(value: _Terms, factor: float) -> _Terms:
    columns = {column: factor * worth for column, worth in value.columns.items()}
    low, high = sorted((factor * value.low, factor * value.high))
    return _Terms(columns, low, high)
