"""Gang allocation: all members get cells, or none does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone
from cells.layout.shape import Cell, Shape
from cells.placement.placing import Near, Price, claim, place


def widest_first(shape: Shape, widths: Sequence[int]) -> list[tuple[int, int]]:
    """Return member and level of each cell to allocate, the widest members first."""
    places = sorted(range(len(widths)), key=lambda i: -widths[i])
    return [(place, level) for place in places for level in shape.members(widths[place])]


def place_all(
    state: ChainState,
    zone: CellZone,
    widths: Sequence[int],
    over: Price | None = None,
    *,
    whole: bool = False,
) -> list[Cell] | None:
    """Allocate dedicated cells to all members of a gang, near each other if possible.

    Args:
        state: The state of the chain.
        zone: The zone of the pool or of its pinned cell.
        widths: GPUs of each member.
        over: If given, the price at which cells with spare jobs may be claimed if none is vacant.
        whole: Whether a bound quota cell must have no spare jobs in any part.

    Returns:
        The cells in the order of the members, or None with nothing changed.
        O(cells · levels · log n), plus O(vacant nodes) if several nodes are needed.
    """
    turns = widest_first(state.shape, widths)
    near = _best_racks(state, zone, turns)
    found: list[tuple[int, Cell]] = []
    for member, level in turns:
        number = place(state, zone, level, near, in_parts=not whole)
        if number is None and over is not None:
            number = claim(state, zone, level, over, whole=whole)
        if number is None:
            for _, cell in found:
                state.free(cell)
            return None
        cell = Cell(level, number)
        found.append((member, cell))
        near = _rack_of(state, cell)
    return [cell for _, cell in sorted(found)]


def _rack_of(state: ChainState, cell: Cell) -> Near:
    """Return the rack of a gang's last cell, where its next cell should be."""
    shape = state.shape
    if shape.top == shape.node:
        return Near()
    root = state.holder(cell)
    rack = shape.around(cell, shape.node + 1).number
    own = root.shifts[shape.node + 1] if root.level > shape.node else None
    return Near(None if own is None else rack - own, rack)


def _best_racks(state: ChainState, zone: CellZone, cells: Sequence[tuple[int, int]]) -> Near:
    """Return the racks with the fewest sufficient vacant nodes for a gang, or with the most."""
    shape = state.shape
    nodes = sum(level == shape.node for _, level in cells)
    if nodes < 2 or shape.top == shape.node:
        return Near()
    return Near(_best_rack(zone, nodes), _best_rack(state.common, nodes))


def _best_rack(zone: CellZone, nodes: int) -> int | None:
    """Return the best rack for `nodes` nodes, in the zone's own numbers. O(vacant nodes)."""
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
