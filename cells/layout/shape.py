"""The geometry of one chain, with cells as pairs of level and number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_GPUS = 2**22
"""Largest number of GPUs in a cell or a cluster; no known cluster comes near it.

Memory grows with the number of cells, so without this limit a mistyped count could exhaust it.
"""


class Cell(NamedTuple):
    """A cell of a chain: its level (0 is the leaf) and its number among the cells of that level.

    With fan-out f of level l, the children of cell `(l, i)` are `(l - 1, i * f)` to `(l - 1, i * f
    + f - 1)`. No links are stored.
    """

    level: int
    number: int


class Shape:
    """Names, fan-outs and sizes of the levels of a chain, the leaf first.

    Attributes:
        size: Leaves (GPUs or slices of a GPU) in a cell of each level.
        region: An upper bound on the leaves of a chain, rounded up to whole top cells.

    Args:
        names: The cell type of each level.
        counts: The number of children of a cell of each level; 1 for the leaf.
        node: The level whose cells are nodes.
    """

    def __init__(self, names: Sequence[str], counts: Sequence[int], node: int) -> None:
        """Compute the sizes."""
        self.names = tuple(names)
        self.fan = tuple(counts)
        self.node = node
        self.levels = range(len(names))
        self.top = len(names) - 1
        sizes = [1]
        for count in self.fan[1:]:
            sizes.append(sizes[-1] * count)
        self.size = tuple(sizes)
        self.region = -(-MAX_GPUS // sizes[-1]) * sizes[-1]

    def level_of(self, width: int) -> int:
        """Return the level of the smallest cell with at least `width` GPUs. O(levels).

        Returns the top level if no cell is that large.
        """
        return next((level for level in self.levels if self.size[level] >= width), self.top)

    def members(self, width: int) -> list[int]:
        """Return the levels of one member's cells: one cell, or whole nodes. O(cells)."""
        if width <= self.size[self.node]:
            return [self.level_of(width)]
        return [self.node] * -(-width // self.size[self.node])

    def by_member(
        self, widths: Sequence[int], cells: Sequence[Cell]
    ) -> list[tuple[int, list[Cell]]]:
        """Group a gang's cells by member, each group with the member's width, in member order."""
        rest = iter(cells)
        return [(width, [next(rest) for _ in self.members(width)]) for width in widths]

    def can_hold(self, counts: Sequence[int], wanted: Sequence[int]) -> bool:
        """Return whether cells of the wanted levels fit into `counts` cells. O(levels · wanted)."""
        left = 0
        for level in reversed(self.levels):
            left += counts[level] - wanted.count(level)
            if left < 0:
                return False
            left *= self.fan[level]
        return True

    def parent(self, cell: Cell) -> Cell:
        """Return the parent of a cell that is not a top cell."""
        return Cell(cell.level + 1, cell.number // self.fan[cell.level + 1])

    def children(self, cell: Cell) -> list[Cell]:
        """Return the children, in order, of a cell that is not a leaf."""
        fan = self.fan[cell.level]
        first = cell.number * fan
        return [Cell(cell.level - 1, first + k) for k in range(fan)]

    def around(self, cell: Cell, level: int) -> Cell:
        """Return the cell of a level that contains this cell, or the cell itself."""
        return Cell(level, cell.number * self.size[cell.level] // self.size[level])

    def first(self, cell: Cell, level: int) -> Cell:
        """Return the first cell of a lower level inside this cell, or the cell itself."""
        return Cell(level, cell.number * (self.size[cell.level] // self.size[level]))

    def leaves(self, cell: Cell) -> range:
        """Return the numbers of its leaves."""
        size = self.size[cell.level]
        return range(cell.number * size, (cell.number + 1) * size)
