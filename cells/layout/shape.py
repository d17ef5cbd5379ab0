"""The geometry of one chain: cells as pairs of a level and a number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

MAX_GPUS = 2**22
"""GPUs of the largest cell, and of all together: far beyond any cluster known. Every level keeps a
number for each cell, and a count with a few digits too many must not fill the memory."""


class Cell(NamedTuple):
    """A cell of a chain: its level (0 is the leaf) and its number among the cells of that level.

    The children of cell `(l, i)` are `(l - 1, i * f)` to `(l - 1, i * f + f - 1)`, with f the
    fan-out of level l: no links are stored.
    """

    level: int
    number: int


class Shape:
    """Names, fan-outs and sizes of the levels of a chain, the leaf first.

    Attributes:
        size: Leaves (GPUs, or slices of one) of a cell of each level.
        region: Leaves, as whole top cells, that no chain has more of.

    Args:
        names: Type of each level.
        counts: Children of a cell of each level; 1 for the leaf.
        node: Level whose cells are nodes.
    """

    def __init__(self, names: Sequence[str], counts: Sequence[int], node: int) -> None:
        """Work out the sizes."""
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
        """Level of the smallest cell that holds so many GPUs. O(levels).

        The top level if none does.
        """
        return next((level for level in self.levels if self.size[level] >= width), self.top)

    def members(self, width: int) -> list[int]:
        """Levels of the cells of one member of a gang: one cell, or whole nodes. O(cells)."""
        if width <= self.size[self.node]:
            return [self.level_of(width)]
        return [self.node] * -(-width // self.size[self.node])

    def by_member(
        self, widths: Sequence[int], cells: Sequence[Cell]
    ) -> list[tuple[int, list[Cell]]]:
        """The cells of each member of a gang, with its width; given in the members' order."""
        rest = iter(cells)
        return [(width, [next(rest) for _ in self.members(width)]) for width in widths]

    def holds(self, counts: Sequence[int], wanted: Sequence[int]) -> bool:
        """Cells of the wanted levels fit together in so many of each level. O(levels · wanted)."""
        left = 0
        for level in reversed(self.levels):
            left += counts[level] - wanted.count(level)
            if left < 0:
                return False
            left *= self.fan[level]
        return True

    def parent(self, cell: Cell) -> Cell:
        """The cell around it; it must not be a top cell."""
        return Cell(cell.level + 1, cell.number // self.fan[cell.level + 1])

    def children(self, cell: Cell) -> list[Cell]:
        """The cells in it, in order; it must not be a leaf."""
        fan = self.fan[cell.level]
        first = cell.number * fan
        return [Cell(cell.level - 1, first + k) for k in range(fan)]

    def around(self, cell: Cell, level: int) -> Cell:
        """The cell of a level that it lies in, or itself."""
        return Cell(level, cell.number * self.size[cell.level] // self.size[level])

    def first(self, cell: Cell, level: int) -> Cell:
        """The first cell of a lower level in it, or itself."""
        return Cell(level, cell.number * (self.size[cell.level] // self.size[level]))

    def leaves(self, cell: Cell) -> range:
        """Numbers of its leaves."""
        size = self.size[cell.level]
        return range(cell.number * size, (cell.number + 1) * size)
