"""What is where in one chain: bound cells, dedicated and spare jobs, nodes that are out.

This is bookkeeping; what goes where is decided in `placing.py` and `lending.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy

from cells.shape import Cell, Shape
from cells.zones import Root, Zone

LEAVING = "\0leaving"
"""Name of the zone of bound cells that their pool no longer has quota for."""


class Ground:
    """The physical cells of one chain.

    Cells are named by their place in the chain here, and in zones by numbers of the zone's own:
    the root says how to get from one to the other.

    Attributes:
        common: The zone of cells bound to nobody.
        wild: The root of all common cells.
        unbound: Quota cells of each level, of all pools, that no physical cell stands for.
        roots: Bound cells.
        given: Numbers of the cells of dedicated jobs, by level.
        lent: Cells of spare jobs, with their jobs.
        spare: GPUs of spare jobs in each cell. Not counted inside a spare job's cell.
        rests: GPUs that rounding a dedicated job's width up leaves over, where they may be lent,
            with the job's cell.
        out: Cells kept from use on nodes that are bad, drained or removed, by node.
    """

    def __init__(self, shape: Shape, tops: int) -> None:
        """All cells are open and common."""
        self.shape = shape
        self.tops = 0
        self.common = Zone(shape, "")
        self.wild = Root(self.common, shape.top, 0)
        self.leaving = Zone(shape, LEAVING)
        self.zones: dict[str, Zone] = {}
        self.pins: dict[str, Zone] = {}
        self.unbound = [0] * len(shape.levels)
        self.roots: dict[tuple[int, int], Root] = {}
        self.given: list[set[int]] = [set() for _ in shape.levels]
        self.lent: dict[Cell, str] = {}
        self.spare: list[list[int]] = [[] for _ in shape.levels]
        self.rests: dict[Cell, Cell] = {}
        self.out: dict[int, set[Cell]] = {}
        self.grow(tops)

    def grow(self, tops: int) -> None:
        """Add top cells behind those there are. O(cells added)."""
        shape = self.shape
        for level in shape.levels:
            self.spare[level] += [0] * (tops * (shape.size[shape.top] // shape.size[level]))
        for index in range(self.tops, self.tops + tops):
            self._reopen(self.wild, Cell(shape.top, index))
        self.tops += tops

    def all_zones(self) -> list[Zone]:
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
        return cell.number - root.shift // self.shape.size[cell.level]

    def cell(self, root: Root, level: int, number: int) -> Cell:
        """The cell in a root that has a number in its zone."""
        return Cell(level, number + root.shift // self.shape.size[level])

    def node(self, cell: Cell) -> int:
        """Number of the node that a cell of at most its size lies on."""
        return self.shape.around(cell, self.shape.node).number

    def lender(self, cell: Cell) -> Cell | None:
        """The spare job's cell that holds it, or None. O(levels)."""
        while cell not in self.lent:
            if cell.level >= self.shape.node:
                return None
            cell = self.shape.parent(cell)
        return cell

    def lent_in(self, cell: Cell) -> list[Cell]:
        """Spare jobs' cells in it or around it, in order. O(cells in it)."""
        around = self.lender(cell)
        return [around] if around is not None else list(self._lent_cells(cell))

    def _lent_cells(self, cell: Cell) -> Iterator[Cell]:
        if cell in self.lent:
            yield cell
        elif self.spare[cell.level][cell.number]:
            for child in self.shape.children(cell):
                yield from self._lent_cells(child)

    def open_in(self, cell: Cell) -> Iterator[tuple[Root, Cell]]:
        """Largest open cells in it (or it), with their roots. O(levels) if all of it is open."""
        root = self.root(cell)
        if root.zone.open.over(cell.level, self.number(root, cell)) is not None:
            yield root, cell
        elif cell.level and cell.number not in self.given[cell.level]:
            for child in self.shape.children(cell):
                yield from self.open_in(child)

    def parts(self, cell: Cell) -> list[Cell]:
        """Largest cells in it without a spare job. O(levels) where there is none."""
        if not self._spare_near(cell):
            return [cell]
        if not self.spare[cell.level][cell.number]:
            return [] if self.lender(cell) else [cell]
        if cell in self.lent:
            return []
        return [part for child in self.shape.children(cell) for part in self.parts(child)]

    def _spare_near(self, cell: Cell) -> bool:
        """Spare jobs are in it or around it, or at least on its node."""
        above = self.shape.around(cell, max(cell.level, self.shape.node))
        return bool(self.spare[above.level][above.number])

    # Quota cells.

    def bind(self, zone: Zone, cell: Cell) -> Root:
        """Let a common cell stand for one of a zone's. O(levels · log n) if it is vacant."""
        root = Root(zone, *cell)
        zone.enter(root)
        self._count(zone, cell.level, -1)
        self.roots[cell] = root
        self._move(cell, self.wild, root)
        return root

    def unbind(self, root: Root) -> None:
        """Give a bound cell without dedicated jobs back to the common ones."""
        self._move(root.cell(), root, self.wild)
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

    def _count(self, zone: Zone, level: int, by: int) -> None:
        """Of a level's quota so many more are unbound, unless more were bound than are owned."""
        if zone.pin is None and zone.quota[level] >= zone.bound[level] + max(0, by):
            self.unbound[level] += by

    def _move(self, cell: Cell, old: Root, new: Root) -> None:
        """Let what is free in a cell be free in another root."""
        number, size = self.number(old, cell), self.shape.size
        mine, other = old.zone, new.zone
        vacant = None if mine.vacant is mine.open else mine.vacant.cut(cell.level, number)
        opened = mine.open.cut(cell.level, number)
        by = old.shift - new.shift
        if vacant is None:
            vacant = opened
        elif vacant != opened:
            other.part()
        if other.vacant is not other.open:
            for level, place in vacant:
                other.vacant.put(level, place + by // size[level], new)
        for level, place in opened:
            other.open.put(level, place + by // size[level], new)
        for zone in (mine, other):
            zone.changes += 1
            zone.join()

    def requota(self, zone: Zone, quota: list[int]) -> None:
        """Give a pool other quota. O(levels)."""
        for level in self.shape.levels:
            before = zone.unbound(level)
            zone.quota[level] = quota[level]
            self.unbound[level] += zone.unbound(level) - before
        zone.changes += 1
        self.common.changes += 1

    # Jobs.

    def place(self, root: Root, level: int, number: int) -> Cell:
        """Note that a dedicated job has a cell, by its number in the zone, no longer free there."""
        cell = Cell(level, number + root.shift // self.shape.size[level])
        self.given[level].add(cell.number)
        root.jobs += 1
        root.zone.changes += 1
        return cell

    def claim(self, root: Root, cell: Cell) -> None:
        """Give an open cell to a dedicated job while spare ones may run in it."""
        zone, number = root.zone, self.number(root, cell)
        if zone.vacant is not zone.open:
            zone.vacant.cut(cell.level, number)
        zone.open.take(cell.level, number)
        zone.join()
        self.place(root, cell.level, number)

    def free(self, cell: Cell, root: Root) -> None:
        """Take a cell from its dedicated job; unbind the bound one when that was its last.

        O(levels · log n), more where a spare job is in it.
        """
        level, number = cell
        self.given[level].remove(number)
        if self.lent or self.out or self.rests:
            self._free(cell, root)
        else:
            root.zone.open.put(level, number - root.shift // self.shape.size[level], root)
        root.zone.changes += 1
        root.jobs -= 1
        if not root.jobs and root.zone.pin is None:
            self.unbind(root)

    def _free(self, cell: Cell, root: Root) -> None:
        """As `free`, where there are spare jobs or nodes that are out."""
        if self.rests:
            self.rests = {leaf: of for leaf, of in self.rests.items() if of != cell}
        kept = self.out.get(self.node(cell)) if self.out else None
        if kept is not None:
            kept.add(cell)
        else:
            self._reopen(root, cell)

    def _reopen(self, root: Root, cell: Cell) -> None:
        """Make a cell open, and vacant as far as there are no spare jobs in it."""
        zone, parts = root.zone, self.parts(cell)
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
        self._add_spare(cell, 1)
        self.lent[cell] = job

    def end_loan(self, cell: Cell) -> None:
        """Take a cell from its spare job. O(levels · log n), more where it was claimed since."""
        self._add_spare(cell, -1)
        del self.lent[cell]
        for root, part in self.open_in(cell):
            zone = root.zone
            zone.vacant.put(part.level, self.number(root, part), root)
            zone.changes += 1
            zone.join()

    def _add_spare(self, cell: Cell, by: int) -> None:
        level, number = cell
        gpus = by * self.shape.size[level]
        for above in range(level, self.shape.top + 1):
            self.spare[above][number] += gpus
            if above < self.shape.top:
                number //= self.shape.fan[above + 1]

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
