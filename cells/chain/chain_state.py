"""The state of one chain: bound cells, dedicated and spare jobs, and nodes that are out.

This module only does the bookkeeping. `placing.py` and `lending.py` decide where jobs go.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

from cells.chain.loans import SpareCells
from cells.chain.zones import CellZone, Root
from cells.layout.shape import Cell, Shape

LEAVING = "\0leaving"
"""Name of the zone of bound cells for which their pool no longer has quota."""


class ChainState:
    """The physical cells of one chain.

    Here a cell has its physical number in the chain. In a zone it has a number of that zone; its
    root converts between the two.

    Attributes:
        common: The zone of cells that are not bound.
        common_root: The root of all common cells.
        unbound: Unbound quota cells of each level, of all pools.
        roots: Bound cells by level and number.
        given: By level and number, the root of each cell that a dedicated job has, else None.
        loans: Cells of spare jobs.
        out: By node that is bad, drained or removed: its cells that are withheld from use.
    """

    __slots__ = (
        "common",
        "common_root",
        "given",
        "leaving",
        "loans",
        "out",
        "pins",
        "roots",
        "shape",
        "tops",
        "unbound",
        "zones",
    )

    def __init__(self, shape: Shape, tops: int) -> None:
        """Start with all cells open and common."""
        self.shape = shape
        self.tops = 0
        self.common = CellZone(shape, "")
        self.common_root = Root(self.common, shape.top, 0)
        self.leaving = CellZone(shape, LEAVING)
        self.zones: dict[str, CellZone] = {}
        self.pins: dict[str, CellZone] = {}
        self.unbound = [0] * len(shape.levels)
        self.roots: dict[tuple[int, int], Root] = {}
        self.given: list[list[Root | None]] = [[] for _ in shape.levels]
        self.loans = SpareCells(shape)
        self.out: dict[int, set[Cell]] = {}
        self.grow(tops)

    def grow(self, tops: int) -> None:
        """Append top cells. O(cells added)."""
        self.loans.grow(tops)
        for level in self.shape.levels:
            self.given[level] += [None] * (tops * self.shape.size[-1] // self.shape.size[level])
        for number in range(self.tops, self.tops + tops):
            self._reopen(self.common_root, Cell(self.shape.top, number))
        self.tops += tops

    def all_zones(self) -> list[CellZone]:
        """Return every zone, the common one first."""
        return [self.common, *self.zones.values(), *self.pins.values(), self.leaving]

    # Where a cell is.

    def root(self, cell: Cell) -> Root:
        """Return the root of a cell: the bound cell that contains it, or the common root.

        O(levels).
        """
        level, number = cell
        while True:
            root = self.roots.get((level, number))
            if root is not None:
                return root
            if level == self.shape.top:
                return self.common_root
            level += 1
            number //= self.shape.fan[level]

    def number(self, root: Root, cell: Cell) -> int:
        """Return a cell's number in the zone of its root."""
        return cell.number - root.shifts[cell.level]

    def cell(self, root: Root, level: int, number: int) -> Cell:
        """Return the physical cell for a number in the zone of a root."""
        return Cell(level, number + root.shifts[level])

    def node(self, cell: Cell) -> int:
        """Return the number of the node that contains a cell no larger than a node."""
        return self.shape.around(cell, self.shape.node).number

    def open_in(self, cell: Cell) -> Iterator[tuple[Root, Cell]]:
        """Yield the largest open cells in a cell, with roots. O(levels) if all of it is open."""
        root = self.root(cell)
        if root.zone.open.over(cell.level, self.number(root, cell)) is not None:
            yield root, cell
        elif cell.level and self.given[cell.level][cell.number] is None:
            for child in self.shape.children(cell):
                yield from self.open_in(child)

    def cells_given(self) -> list[Cell]:
        """Return the cells of dedicated jobs."""
        return [
            Cell(level, number)
            for level, given in enumerate(self.given)
            for number, root in enumerate(given)
            if root is not None
        ]

    def holder(self, cell: Cell) -> Root:
        """Return the root of a dedicated job's cell."""
        root = self.given[cell.level][cell.number]
        assert root is not None, f"{cell} does not belong to a dedicated job"
        return root

    # Quota cells.

    def bind(self, zone: CellZone, cell: Cell, slot: int = -1) -> Root:
        """Bind a common cell to a zone. O(levels · log n) if the cell is vacant.

        `slot` is as in `CellZone.enter`.
        """
        level, number = cell
        root = Root(zone, level, number)
        zone.enter(root, slot)
        self._count(zone, level, -1)
        self.roots[cell] = root
        self._move(cell, self.common_root, root)
        return root

    def unbind(self, root: Root) -> None:
        """Return a bound cell without dedicated jobs to the common cells."""
        self._move(root.cell(), root, self.common_root)
        del self.roots[root.level, root.number]
        self._leave(root)

    def _return(self, root: Root) -> None:
        """Unbind a cell that is vacant and already marked as used in its zone."""
        self.common.open.put(root.level, root.number, self.common_root)
        self.common.changes += 1
        del self.roots[root.level, root.number]
        self._leave(root)

    def leave(self, root: Root) -> None:
        """Take a bound cell away from its pool. The jobs in it continue until they end."""
        old = copy(root)
        self._leave(root)
        self.leaving.enter(root)
        self._move(root.cell(), old, root)

    def _leave(self, root: Root) -> None:
        root.zone.leave(root)
        self._count(root.zone, root.level, 1)

    def _count(self, zone: CellZone, level: int, by: int) -> None:
        """Adjust the unbound quota of a level, unless more cells are bound than owned."""
        if zone.pin is None and zone.quota[level] >= zone.bound[level] + max(0, by):
            self.unbound[level] += by

    def _move(self, cell: Cell, old: Root, new: Root) -> None:
        """Move the free parts of a cell from one root to another."""
        level, number = cell
        number -= old.shifts[level]
        mine, other = old.zone, new.zone
        mine.changes += 1
        other.changes += 1
        opened = mine.open.cut(level, number)
        differs = mine.vacant is not mine.open or other.vacant is not other.open
        if differs:
            vacant = opened if mine.vacant is mine.open else mine.vacant.cut(level, number)
            if vacant != opened:
                other.split_vacant()
            if other.vacant is not other.open:
                for part, place in vacant:
                    other.vacant.put(part, place + old.shifts[part] - new.shifts[part], new)
        for part, place in opened:
            other.open.put(part, place + old.shifts[part] - new.shifts[part], new)
        if differs:
            mine.merge_vacant()
            other.merge_vacant()

    def set_quota(self, zone: CellZone, quota: list[int]) -> None:
        """Change a pool's quota. O(levels)."""
        for level in self.shape.levels:
            before = zone.unbound(level)
            zone.quota[level] = quota[level]
            self.unbound[level] += zone.unbound(level) - before
        zone.changes += 1
        self.common.changes += 1

    # Jobs.

    def place(self, root: Root, level: int, number: int) -> int:
        """Record a dedicated job's cell by its number in the zone, and return its physical number.

        The cell must already be marked as used in the zone.
        """
        number += root.shifts[level]
        self.given[level][number] = root
        root.jobs += 1
        root.zone.changes += 1
        return number

    def claim(self, root: Root, cell: Cell) -> None:
        """Allocate an open cell to a dedicated job although spare jobs may run in it."""
        zone, number = root.zone, self.number(root, cell)
        if zone.vacant is not zone.open:
            zone.vacant.cut(cell.level, number)
        zone.open.take(cell.level, number)
        zone.merge_vacant()
        self.place(root, cell.level, number)

    def free(self, cell: Cell) -> None:
        """Release a dedicated job's cell, and unbind its root if this was the last cell in it.

        O(levels · log n), more if a spare job is in the cell.
        """
        level, number = cell
        root = self.given[level][number]
        assert root is not None, f"{cell} does not belong to a dedicated job"
        self.given[level][number] = None
        zone = root.zone
        zone.changes += 1
        root.jobs = jobs = root.jobs - 1
        last = not jobs and zone.pin is None
        if self.loans.jobs or self.out:
            self._free(cell, root)
            if last:
                self.unbind(root)
        elif last:
            zone.open.close(level, number - root.shifts[level], root.level)
            self._return(root)
        else:
            zone.open.put(level, number - root.shifts[level], root)

    def _free(self, cell: Cell, root: Root) -> None:
        """Release a cell while there are spare jobs or nodes that are out."""
        kept = self.out.get(self.node(cell)) if self.out else None
        if kept is not None:
            kept.add(cell)
        else:
            self._reopen(root, cell)

    def _reopen(self, root: Root, cell: Cell) -> None:
        """Mark a cell as open, and as vacant where no spare job is in it."""
        zone, parts = root.zone, self.loans.parts(cell)
        if parts != [cell]:
            zone.split_vacant()
        if zone.vacant is not zone.open:
            for part in parts:
                zone.vacant.put(part.level, self.number(root, part), root)
        zone.open.put(cell.level, self.number(root, cell), root)
        zone.changes += 1

    def is_given(self, cell: Cell) -> bool:
        """Return whether a dedicated job has this cell or one around it. O(levels)."""
        around = (self.shape.around(cell, level) for level in self.shape.levels[cell.level :])
        return any(self.given[level][number] is not None for level, number in around)

    def lend(self, cell: Cell, job: str) -> None:
        """Allocate a vacant cell to a spare job.

        O(levels · log n); O(cells of the zone) for the first spare job in a zone.
        """
        root = self.root(cell)
        number = self.number(root, cell)
        root.zone.split_vacant()
        root.zone.vacant.take(cell.level, number)
        root.zone.changes += 1
        self.loans.add(cell, job)

    def end_loan(self, cell: Cell) -> None:
        """Release a spare job's cell. O(levels · log n), more if the cell was claimed since."""
        self.loans.remove(cell)
        for root, part in self.open_in(cell):
            zone = root.zone
            zone.vacant.put(part.level, self.number(root, part), root)
            zone.changes += 1
            zone.merge_vacant()

    # Nodes.

    def take_out(self, node: int) -> None:
        """Withhold the open cells of a node from use. Jobs on the node stay."""
        found = list(self.open_in(Cell(self.shape.node, node)))
        self.out[node] = {cell for _, cell in found}
        for root, cell in found:
            zone, number = root.zone, self.number(root, cell)
            if zone.vacant is not zone.open:
                zone.vacant.cut(cell.level, number)
            zone.open.take(cell.level, number)
            zone.changes += 1
            zone.merge_vacant()

    def bring_back(self, node: int) -> None:
        """Open the cells that were withheld."""
        for cell in sorted(self.out.pop(node)):
            self._reopen(self.root(cell), cell)
