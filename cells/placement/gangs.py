"""A request for several cells at once: all or nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone
from cells.layout.shape import Cell, Shape
from cells.placement.placing import Near, Price, claim, place


def in_turn(shape: Shape, widths: Sequence[int]) -> list[tuple[int, int]]:
    """Member and level of each cell to be found, the widest members first."""
    places = sorted(range(len(widths)), key=lambda i: -widths[i])
    return [(place, level) for place in places for level in shape.members(widths[place])]


def place_all(
    ground: ChainState, zone: CellZone, widths: Sequence[int], over: Price | None = None
) -> list[Cell] | None:
    """Give all members dedicated cells, near each other if possible.

    Args:
        ground: The chain.
        zone: The pool's zone or that of its pinned cell.
        widths: GPUs of each member.
        over: Where none is vacant, cells are claimed that spare jobs are in, by their price.

    Returns:
        The cells in the order of the members, or None with nothing changed.
        O(cells · levels · log n), and O(vacant nodes) where several nodes are asked for.
    """
    turns = in_turn(ground.shape, widths)
    near = _best_racks(ground, zone, turns)
    found: list[tuple[int, Cell]] = []
    for member, level in turns:
        number = place(ground, zone, level, near)
        if number is None and over is not None:
            number = claim(ground, zone, level, over)
        if number is None:
            for _, cell in found:
                ground.free(cell)
            return None
        cell = Cell(level, number)
        found.append((member, cell))
        near = _rack_of(ground, cell)
    return [cell for _, cell in sorted(found)]


def _rack_of(ground: ChainState, cell: Cell) -> Near:
    """Where a gang goes on that has a cell."""
    shape = ground.shape
    if shape.top == shape.node:
        return Near()
    root = ground.holder(cell)
    rack = shape.around(cell, shape.node + 1).number
    own = root.shifts[shape.node + 1] if root.level > shape.node else None
    return Near(None if own is None else rack - own, rack)


def _best_racks(ground: ChainState, zone: CellZone, cells: Sequence[tuple[int, int]]) -> Near:
    """The racks with just enough vacant nodes for a gang, or with most."""
    shape = ground.shape
    nodes = sum(level == shape.node for _, level in cells)
    if nodes < 2 or shape.top == shape.node:
        return Near()
    return Near(_best_rack(zone, nodes), _best_rack(ground.common, nodes))


def _best_rack(zone: CellZone, nodes: int) -> int | None:
    """In the zone's own numbers. O(vacant nodes)."""
    shape, rack = zone.shape, zone.shape.node + 1
    racks: Counter[int] = Counter()
    for number, root in zone.vacant.free[shape.node].items():
        if root.level > shape.node:
            racks[number // shape.fan[rack]] += 1
    for level in shape.levels[rack:]:
        ratio = shape.size[level] // shape.size[rack]
        for number in zone.vacant.free[level]:
            racks.update(
                dict.fromkeys(range(number * ratio, (number + 1) * ratio), shape.fan[rack])
            )
    best = min(
        ((count < nodes, abs(count - nodes), rack) for rack, count in racks.items()), default=None
    )
    return best and best[2]
