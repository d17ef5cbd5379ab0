"""The cells of spare jobs in one chain."""

from __future__ import annotations

from collections.abc import Iterator

from cells.layout.shape import Cell, Shape


class SpareCells:
    """Cells of spare jobs. None is larger than a node.

    Attributes:
        jobs: The job in each cell.
        gpus: By level and number, the GPUs of spare jobs in each cell. Cells inside a spare job's
            cell are not counted.

    Args:
        shape: The shape of the chain.
    """

    def __init__(self, shape: Shape) -> None:
        """Start without cells."""
        self._shape = shape
        self.jobs: dict[Cell, str] = {}
        self.gpus: list[list[int]] = [[] for _ in shape.levels]

    def grow(self, tops: int) -> None:
        """Append top cells. O(cells added)."""
        size = self._shape.size
        for level in self._shape.levels:
            self.gpus[level] += [0] * (tops * (size[-1] // size[level]))

    def add(self, cell: Cell, job: str) -> None:
        """Record a spare job in a cell. O(levels)."""
        self.jobs[cell] = job
        self._count(cell, self._shape.size[cell.level])

    def remove(self, cell: Cell) -> None:
        """Remove the spare job from a cell. O(levels)."""
        del self.jobs[cell]
        self._count(cell, -self._shape.size[cell.level])

    def _count(self, cell: Cell, gpus: int) -> None:
        for level in self._shape.levels[cell.level :]:
            self.gpus[level][self._shape.around(cell, level).number] += gpus

    def around(self, cell: Cell) -> Cell | None:
        """Return the spare job's cell that contains a cell, or None. O(levels)."""
        while cell not in self.jobs:
            if cell.level >= self._shape.node:
                return None
            cell = self._shape.parent(cell)
        return cell

    def at(self, cell: Cell) -> list[Cell]:
        """Return the spare jobs' cells in or around a cell, in order. O(cells in it)."""
        around = self.around(cell)
        return [around] if around is not None else list(self._inside(cell))

    def _inside(self, cell: Cell) -> Iterator[Cell]:
        if cell in self.jobs:
            yield cell
        elif self.gpus[cell.level][cell.number]:
            for child in self._shape.children(cell):
                yield from self._inside(child)

    def within(self, cell: Cell) -> int:
        """Return the GPUs of spare jobs in a cell, or in the spare cell around it. O(levels)."""
        around = self.around(cell)
        return self._shape.size[around.level] if around else self.gpus[cell.level][cell.number]

    def parts(self, cell: Cell) -> list[Cell]:
        """Return the largest parts of a cell without spare jobs. O(levels) if its node has none."""
        near = self._shape.around(cell, max(cell.level, self._shape.node))
        if not self.gpus[near.level][near.number]:
            return [cell]
        return [] if self.around(cell) else list(self._parts(cell))

    def _parts(self, cell: Cell) -> Iterator[Cell]:
        if not self.gpus[cell.level][cell.number]:
            yield cell
        elif cell not in self.jobs:
            for child in self._shape.children(cell):
                yield from self._parts(child)
