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

    Attributes:
        used: GPUs in each cell that its zone cannot give: dedicated, or on nodes that are out; in
            common cells also bound ones. Not counted inside a dedicated or bound cell.
        spare: GPUs of spare jobs in each cell. Not counted inside a spare job's cell.
        busy: Cells of dedicated jobs on each node.
        unbound: Quota cells of each level, of all pools, that no physical cell stands for.
        rests: GPUs that rounding a dedicated job's width up leaves over, where they may be lent,
            with the job's cell.
        out: Cells kept from use on nodes that are bad, drained or removed, by node.
    """

    def __init__(self, shape: Shape, tops: int) -> None:
        """All cells are open and common."""
        self.shape = shape
        self.tops = 0
        self.used: list[list[int]] = [[] for _ in shape.levels]
        self.spare: list[list[int]] = [[] for _ in shape.levels]
        self.busy: list[int] = []
        self.common = Zone(shape, "")
        self.leaving = Zone(shape, LEAVING)
        self.zones: dict[str, Zone] = {}
        self.pins: dict[str, Zone] = {}
        self.unbound = [0] * len(shape.levels)
        self.roots: dict[Cell, Root] = {}
        self.dedicated: dict[Cell, str] = {}
        self.lent: dict[Cell, str] = {}
        self.rests: dict[Cell, Cell] = {}
        self.out: dict[int, set[Cell]] = {}
        self.grow(tops)

    def grow(self, tops: int) -> None:
        """Add top cells behind those there are. O(cells added)."""
        shape = self.shape
        for level in shape.levels:
            cells = tops * (shape.size[shape.top] // shape.size[level])
            self.used[level] += [0] * cells
            self.spare[level] += [0] * cells
        self.busy += [0] * (tops * (shape.size[shape.top] // shape.size[shape.node]))
        for index in range(self.tops, self.tops + tops):
            self.common.open.put(Cell(shape.top, index), shape.top)
            self.common.vacant.put(Cell(shape.top, index), shape.top)
        self.tops += tops

    def copy(self) -> Ground:
        """One of its own. O(cells)."""
        other = copy(self)
        other.used = [row[:] for row in self.used]
        other.spare = [row[:] for row in self.spare]
        other.busy, other.unbound = self.busy[:], self.unbound[:]
        other.common, other.leaving = self.common.copy(), self.leaving.copy()
        other.zones = {name: zone.copy() for name, zone in self.zones.items()}
        other.pins = {name: zone.copy() for name, zone in self.pins.items()}
        new = {id(self.leaving): other.leaving}
        new |= {id(zone): other.zones[name] for name, zone in self.zones.items()}
        new |= {id(zone): other.pins[name] for name, zone in self.pins.items()}
        other.roots = {c: Root(new[id(root.zone)], root.jobs) for c, root in self.roots.items()}
        other.dedicated, other.lent = self.dedicated.copy(), self.lent.copy()
        other.rests = self.rests.copy()
        other.out = {node: cells.copy() for node, cells in self.out.items()}
        return other

    # Where a cell is.

    def owner(self, cell: Cell) -> tuple[Zone, int]:
        """The zone it lies in, and the level up to which that zone's cells merge. O(levels)."""
        level, index = cell
        while True:
            root = self.roots.get(Cell(level, index))
            if root is not None:
                return root.zone, level
            if level == self.shape.top:
                return self.common, level
            level += 1
            index //= self.shape.fan[level]

    def root(self, cell: Cell) -> Cell:
        """The bound cell that it lies in. O(levels)."""
        _, level = self.owner(cell)
        return self.shape.around(cell, level)

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

    def in_use(self, cell: Cell) -> bool:
        """It lies in a dedicated job's cell or in one kept from use. O(levels)."""
        if cell.level > self.shape.node:
            return False
        out = self.out.get(self.node(cell), ())
        while cell not in self.dedicated and cell not in out:
            if cell.level == self.shape.node:
                return False
            cell = self.shape.parent(cell)
        return True

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

    def regions(self, cell: Cell) -> Iterator[tuple[Zone, int, Cell]]:
        """Largest open cells in it (or it), with their zones and roots' levels."""
        if not self.in_use(cell):
            zone, level = self.owner(cell)
            yield from self._regions(cell, zone, level)

    def _regions(self, cell: Cell, zone: Zone, top: int) -> Iterator[tuple[Zone, int, Cell]]:
        root = self.roots.get(cell)
        if root is not None:
            zone, top = root.zone, cell.level
        if not self.used[cell.level][cell.number]:
            yield zone, top, cell
        elif cell.level and cell not in self.dedicated and not self._kept(cell):
            for child in self.shape.children(cell):
                yield from self._regions(child, zone, top)

    def _kept(self, cell: Cell) -> bool:
        return cell.level <= self.shape.node and cell in self.out.get(self.node(cell), ())

    def parts(self, cell: Cell) -> list[Cell]:
        """Largest cells in it without a spare job. O(levels) where there is none."""
        if not self.spare[cell.level][cell.number]:
            return [] if self.lender(cell) else [cell]
        if cell in self.lent:
            return []
        return [part for child in self.shape.children(cell) for part in self.parts(child)]

    # Changes.

    def _count(self, rows: list[list[int]], cell: Cell, top: int, gpus: int) -> None:
        level, index = cell
        while True:
            rows[level][index] += gpus
            if level == top:
                return
            level += 1
            index //= self.shape.fan[level]

    def _close(self, zone: Zone, cell: Cell) -> None:
        zone.open.take(cell)
        for part in self.parts(cell):
            zone.vacant.take(part)

    def _reopen(self, zone: Zone, cell: Cell, top: int) -> None:
        zone.open.put(cell, top)
        for part in self.parts(cell):
            zone.vacant.put(part, top)

    def bind(self, zone: Zone, cell: Cell) -> None:
        """Let an open common cell stand for one of a zone's. O(levels · log n) without spare."""
        shape = self.shape
        self._close(self.common, cell)
        if cell.level < shape.top:
            self._count(self.used, shape.parent(cell), shape.top, shape.size[cell.level])
        self.roots[cell] = Root(zone)
        self._bound(zone, cell.level, 1)
        self._reopen(zone, cell, cell.level)

    def unbind(self, cell: Cell) -> None:
        """Give a bound cell without dedicated jobs back to the common ones."""
        shape, zone = self.shape, self.roots[cell].zone
        assert not self.roots[cell].jobs, f"{cell} has jobs"
        open_cells = [c for _, _, c in self._regions(cell, zone, cell.level)]
        for c in open_cells:
            self._close(zone, c)
        del self.roots[cell]
        self._bound(zone, cell.level, -1)
        if cell.level < shape.top:
            kept = self.used[cell.level][cell.number] - shape.size[cell.level]
            self._count(self.used, shape.parent(cell), shape.top, kept)
        for c in open_cells:
            self._reopen(self.common, c, shape.top)

    def leave(self, cell: Cell) -> None:
        """Take a bound cell from its pool; the jobs in it end there."""
        zone = self.roots[cell].zone
        open_cells = [c for _, _, c in self._regions(cell, zone, cell.level)]
        for c in open_cells:
            self._close(zone, c)
        self._bound(zone, cell.level, -1)
        self.roots[cell].zone = self.leaving
        self.leaving.bound[cell.level] += 1
        for c in open_cells:
            self._reopen(self.leaving, c, cell.level)

    def _bound(self, zone: Zone, level: int, by: int) -> None:
        before = zone.unbound(level)
        zone.bound[level] += by
        if zone.pin is None:
            self.unbound[level] += zone.unbound(level) - before

    def requota(self, zone: Zone, quota: list[int]) -> None:
        """Give a pool other quota. O(levels)."""
        for level in self.shape.levels:
            before = zone.unbound(level)
            zone.quota[level] = quota[level]
            self.unbound[level] += zone.unbound(level) - before

    def place(self, cell: Cell, job: str) -> None:
        """Give an open cell in a bound one to a dedicated job. O(levels · log n) without spare."""
        zone, top = self.owner(cell)
        self._close(zone, cell)
        self._count(self.used, cell, top, self.shape.size[cell.level])
        self.dedicated[cell] = job
        self.roots[self.shape.around(cell, top)].jobs += 1
        self.busy[self.node(cell)] += 1

    def free(self, cell: Cell) -> None:
        """Take a cell from its dedicated job; unbind the bound one when that was its last."""
        zone, top = self.owner(cell)
        root = self.roots[self.shape.around(cell, top)]
        del self.dedicated[cell]
        if self.rests:
            self.rests = {leaf: of for leaf, of in self.rests.items() if of != cell}
        root.jobs -= 1
        self.busy[self.node(cell)] -= 1
        kept = self.out.get(self.node(cell))
        if kept is not None:
            kept.add(cell)
        else:
            self._count(self.used, cell, top, -self.shape.size[cell.level])
            self._reopen(zone, cell, top)
        if not root.jobs and zone.pin is None:
            self.unbind(self.shape.around(cell, top))

    def lend(self, cell: Cell, job: str) -> None:
        """Give a vacant cell, or a rest in a dedicated one, to a spare job. O(levels · log n)."""
        if not self.in_use(cell):
            self.owner(cell)[0].vacant.take(cell)
        self._count(self.spare, cell, self.shape.top, self.shape.size[cell.level])
        self.lent[cell] = job

    def end_loan(self, cell: Cell) -> None:
        """Take a cell from its spare job. O(levels · log n), more where it was claimed since."""
        self._count(self.spare, cell, self.shape.top, -self.shape.size[cell.level])
        del self.lent[cell]
        for zone, top, c in self.regions(cell):
            zone.vacant.put(c, top)

    def take_out(self, node: int) -> None:
        """Keep what is open on a node from use; jobs on it stay."""
        self.out[node] = set()
        cells = list(self.regions(Cell(self.shape.node, node)))
        for zone, top, cell in cells:
            self._close(zone, cell)
            self._count(self.used, cell, top, self.shape.size[cell.level])
        self.out[node].update(cell for _, _, cell in cells)

    def bring_back(self, node: int) -> None:
        """Open what was kept from use."""
        for cell in sorted(self.out.pop(node)):
            zone, top = self.owner(cell)
            self._count(self.used, cell, top, -self.shape.size[cell.level])
            self._reopen(zone, cell, top)
