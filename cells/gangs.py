"""A request for several cells at once: all or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from cells.ground import Ground
from cells.shape import Cell, Shape
from cells.zones import Zone

Find = Callable[[int, Cell | None], Cell | None]
"""Gives a cell of a level, near another if that is possible, or None."""


def members(shape: Shape, width: int) -> list[int]:
    """Levels of the cells of one member of a gang: one cell, or whole nodes."""
    if width <= shape.size[shape.node]:
        return [shape.level_of(width)]
    return [shape.node] * -(-width // shape.size[shape.node])


def all_of(ground: Ground, widths: Sequence[int], find: Find) -> list[list[Cell]] | None:
    """Cells of each member, in the order of the widths; None if one of them finds no place.

    The widest are placed first. The caller takes back what was placed.
    """
    shape = ground.shape
    found: list[list[Cell]] = [[] for _ in widths]
    near: Cell | None = None
    for place in sorted(range(len(widths)), key=lambda i: -widths[i]):
        for level in members(shape, widths[place]):
            cell = find(level, near)
            if cell is None:
                return None
            found[place].append(cell)
            near = shape.around(cell, min(shape.top, shape.node + 1))
    return [sorted(cells) for cells in found]


def best_rack(ground: Ground, zone: Zone | None, nodes: int) -> Cell | None:
    """The cell above the nodes with just enough vacant nodes for a gang, or with most.

    Of a pool, those that its request comes to first are counted. O(nodes).
    """
    shape = ground.shape
    if shape.top == shape.node:
        return None
    zones = [ground.common] if zone is None else [zone]
    if zone is not None and sum(_by_rack(ground, zone).values()) < nodes:
        zones.append(ground.common)
    racks: Counter[int] = Counter()
    for each in zones:
        racks += _by_rack(ground, each)
    enough = [(count, index) for index, count in racks.items() if count >= nodes]
    if enough:
        return Cell(shape.node + 1, min(enough)[1])
    most = min(((-count, index) for index, count in racks.items()), default=None)
    return most and Cell(shape.node + 1, most[1])


def _by_rack(ground: Ground, zone: Zone) -> Counter[int]:
    shape, rack = ground.shape, ground.shape.node + 1
    racks: Counter[int] = Counter()
    for index in zone.vacant.free[shape.node]:
        racks[index // shape.fan[rack]] += 1
    for level in range(rack, shape.top + 1):
        ratio = shape.size[level] // shape.size[rack]
        for index in zone.vacant.free[level]:
            for inner in range(index * ratio, (index + 1) * ratio):
                racks[inner] += shape.fan[rack]
    return racks
