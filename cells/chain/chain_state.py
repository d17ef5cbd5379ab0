"""What is where in one chain: bound cells, dedicated and spare jobs, nodes that are out.

This is bookkeeping; what goes where is decided in `placing.py` and `lending.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

from cells.chain.loans import SpareCells
from cells.chain.zones import CellZone, Root
from cells.layout.shape import Cell, Shape

LEAVING = "\0leaving"
"""Name of the zone of bound cells that their pool no longer has quota for."""


class ChainState:
    """The physical cells of one chain.

    Cells are named by their place in the chain here, and in zones by numbers of the zone's own:
    the root says how to get from one to the other.

    Attributes:
        common: The zone of cells bound to nobody.
        wild: The root of all common cells.
        unbound: Quota cells of each level, of all pools, that no physical cell stands for.
        roots: Bound cells.
        given: By level and number of a cell, the bound cell that it lies in if a dedicated job has
            it.
        loans: Cells of spare jobs.
        rests: GPUs that rounding a dedicated job's width up leaves over, where they may be lent.
        out: Cells kept from use on nodes that are bad, drained or removed, by node.
    """

    __slots__ = (
        "common",
        "given",
        "leaving",
        "loans",
        "out",
        "pins",
        "rests",
        "roots",
        "shape",
        "tops",
        "unbound",
        "wild",
        "zones",
    )

    def __init__(self, shape: Shape, tops: int) -> None:
        """All cells are open and common."""
        self.shape = shape
        self.tops = 0
        self.common = CellZone(shape, "")
        self.wild = Root(self.common, shape.top, 0)
        self.leaving = CellZone(shape, LEAVING)
        self.zones: dict[str, CellZone] = {}
        self.pins: dict[str, CellZone] = {}
        self.unbound = [0] * len(shape.levels)
        self.roots: dict[tuple[int, int], Root] = {}
        self.given: list[list[Root | None]] = [[] for _ in shape.levels]
        self.loans = SpareCells(shape)
        self.rests: dict[Cell, None] = {}
        self.out: dict[int, set[Cell]] = {}
        self.grow(tops)

    def grow(self, tops: int) -> None:
        """Add top cells behind those there are. O(cells added)."""
        self.loans.grow(tops)
        for level in self.shape.levels:
            self.given[level] += [None] * (tops * self.shape.size[-1] // self.shape.size[level])
        for number in range(self.tops, self.tops + tops):
            self._reopen(self.wild, Cell(self.shape.top, number))
        self.tops += tops

    def all_zones(self) -> list[CellZone]:
        """Every zone, the common one first."""
        return [self.common, *self.zones.values(), *self.pins.values(), self.leaving]

    # Where a cell is.

    def root(self, cell: Cell) -> Root:
        """The bound cell that it lies in, or the common one. O(levels)."""
        level, number = cell
        while True:
            root = self.roots.get((level, number))
            if root is not None:
                return root
            if level == self.shape.top:
                return self.wild
            level += 1
            number //= self.shape.fan[level]

    def number(self, root: Root, cell: Cell) -> int:
        """The number in its zone of a cell in a root."""
        return cell.number - root.shifts[cell.level]

    def cell(self, root: Root, level: int, number: int) -> Cell:
        """The cell in a root that has a number in its zone."""
        return Cell(level, number + root.shifts[level])

    def node(self, cell: Cell) -> int:
        """Number of the node that a cell of at most its size lies on."""
        return self.shape.around(cell, self.shape.node).number

    def open_in(self, cell: Cell) -> Iterator[tuple[Root, Cell]]:
        """Largest open cells in it (or it), with their roots. O(levels) if all of it is open."""
        root = self.root(cell)
        if root.zone.open.over(cell.level, self.number(root, cell)) is not None:
            yield root, cell
        elif cell.level and self.given[cell.level][cell.number] is None:
            for child in self.shape.children(cell):
                yield from self.open_in(child)

    def cells_given(self) -> list[Cell]:
        """Cells of dedicated jobs."""
        return [
            Cell(level, number)
            for level, given in enumerate(self.given)
            for number, root in enumerate(given)
            if root is not None
        ]

    def holder(self, cell: Cell) -> Root:
        """The bound cell that a dedicated job's cell lies in."""
        root = self.given[cell.level][cell.number]
        assert root is not None, f"{cell} is no dedicated job's"
        return root

    # Quota cells.

    def bind(self, zone: CellZone, cell: Cell, slot: int = -1) -> Root:
        """Let a common cell stand for one of a zone's. O(levels · log n) if it is vacant.

        `slot` is as in `CellZone.enter`.
        """
        level, number = cell
        root = Root(zone, level, number)
        zone.enter(root, slot)
        self._count(zone, level, -1)
        self.roots[cell] = root
        self._move(cell, self.wild, root)
        return root

    def unbind(self, root: Root) -> None:
        """Give a bound cell without dedicated jobs back to the common ones."""
        self._move(root.cell(), root, self.wild)
        del self.roots[root.level, root.number]
        self._leave(root)

    def _return(self, root: Root) -> None:
        """As `unbind`, where all of it is vacant, and no longer free in its zone."""
        self.common.open.put(root.level, root.number, self.wild)
        self.common.changes += 1
        del self.roots[root.level, root.number]
        self._leave(root)

    def leave(self, root: Root) -> None:
        """Take a bound cell from its pool; the jobs in it end there."""
        old = copy(root)
        self._leave(root)
        self.leaving.enter(root)
        self._move(root.cell(), old, root)

    def _leave(self, root: Root) -> None:
        root.zone.leave(root)
        self._count(root.zone, root.level, 1)

    def _count(self, zone: CellZone, level: int, by: int) -> None:
        """Of a level's quota so many more are unbound, unless more were bound than are owned."""
        if zone.pin is None and zone.quota[level] >= zone.bound[level] + max(0, by):
            self.unbound[level] += by

    def _move(self, cell: Cell, old: Root, new: Root) -> None:
        """Let what is free in a cell be free in another root."""
        level, number = cell
        number -= old.shifts[level]
        mine, other = old.zone, new.zone
        mine.changes += 1
        other.changes += 1
        opened = mine.open.cut(level, number)
        apart = mine.vacant is not mine.open or other.vacant is not other.open
        if apart:
            vacant = opened if mine.vacant is mine.open else mine.vacant.cut(level, number)
            if vacant != opened:
                other.part()
            if other.vacant is not other.open:
                for part, place in vacant:
                    other.vacant.put(part, place + old.shifts[part] - new.shifts[part], new)
        for part, place in opened:
            other.open.put(part, place + old.shifts[part] - new.shifts[part], new)
        if apart:
            mine.join()
            other.join()

    def requota(self, zone: CellZone, quota: list[int]) -> None:
        """Give a pool other quota. O(levels)."""
        for level in self.shape.levels:
            before = zone.unbound(level)
            zone.quota[level] = quota[level]
            self.unbound[level] += zone.unbound(level) - before
        zone.changes += 1
        self.common.changes += 1

    # Jobs.

    def place(self, root: Root, level: int, number: int) -> int:
        """Note that a dedicated job has a cell, by its number in the zone, no longer free there.

        Returns its number in the chain.
        """
        number += root.shifts[level]
        self.given[level][number] = root
        root.jobs += 1
        root.zone.changes += 1
        return number

    def claim(self, root: Root, cell: Cell) -> None:
        """Give an open cell to a dedicated job while spare ones may run in it."""
        zone, number = root.zone, self.number(root, cell)
        if zone.vacant is not zone.open:
            zone.vacant.cut(cell.level, number)
        zone.open.take(cell.level, number)
        zone.join()
        self.place(root, cell.level, number)

    def free(self, cell: Cell) -> None:
        """Take a cell from its dedicated job; unbind the bound one when that was its last.

        O(levels · log n), more where a spare job is in it.
        """
        level, number = cell
        root = self.given[level][number]
        assert root is not None, f"{cell} is no dedicated job's"
        self.given[level][number] = None
        zone = root.zone
        zone.changes += 1
        root.jobs = jobs = root.jobs - 1
        last = not jobs and zone.pin is None
        if self.loans.jobs or self.out or self.rests:
            self._free(cell, root)
            if last:
                self.unbind(root)
        elif last:
            zone.open.close(level, number - root.shifts[level], root.level)
            self._return(root)
        else:
            zone.open.put(level, number - root.shifts[level], root)

    def _free(self, cell: Cell, root: Root) -> None:
        """As `free`, where there are spare jobs or nodes that are out."""
        if self.rests:
            for leaf in self.shape.leaves(cell):
                self.rests.pop(Cell(0, leaf), None)
        kept = self.out.get(self.node(cell)) if self.out else None
        if kept is not None:
            kept.add(cell)
        else:
            self._reopen(root, cell)

    def _reopen(self, root: Root, cell: Cell) -> None:
        """Make a cell open, and vacant as far as there are no spare jobs in it."""
        zone, parts = root.zone, self.loans.parts(cell)
        if parts != [cell]:
            zone.part()
        if zone.vacant is not zone.open:
            for part in parts:
                zone.vacant.put(part.level, self.number(root, part), root)
        zone.open.put(cell.level, self.number(root, cell), root)
        zone.changes += 1

    def lend(self, cell: Cell, job: str) -> None:
        """Give a vacant cell, or a rest in a dedicated one, to a spare job.

        O(levels · log n); O(cells of the zone) for the first one there.
        """
        root = self.root(cell)
        number = self.number(root, cell)
        if cell not in self.rests:
            root.zone.part()
            root.zone.vacant.take(cell.level, number)
            root.zone.changes += 1
        self.loans.add(cell, job)

    def end_loan(self, cell: Cell) -> None:
        """Take a cell from its spare job. O(levels · log n), more where it was claimed since."""
        self.loans.remove(cell)
        for root, part in self.open_in(cell):
            zone = root.zone
            zone.vacant.put(part.level, self.number(root, part), root)
            zone.changes += 1
            zone.join()

    # Nodes.

    def take_out(self, node: int) -> None:
        """Keep what is open on a node from use; jobs on it stay."""
        found = list(self.open_in(Cell(self.shape.node, node)))
        self.out[node] = {cell for _, cell in found}
        for root, cell in found:
            zone, number = root.zone, self.number(root, cell)
            if zone.vacant is not zone.open:
                zone.vacant.cut(cell.level, number)
            zone.open.take(cell.level, number)
            zone.changes += 1
            zone.join()

    def bring_back(self, node: int) -> None:
        """Open what was kept from use."""
        for cell in sorted(self.out.pop(node)):
            self._reopen(self.root(cell), cell)
