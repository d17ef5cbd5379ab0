"""Where a dedicated job's cells come from.

A pool's request takes the smallest sufficient of its cells: what is open in those already bound,
before an unbound quota cell of the same level; one without spare jobs, wherever there is one. Of
several, the first in the pool's own numbers: where its cells are bound plays no part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone, Root
from cells.layout.shape import Cell
from cells.placement.sites import beside_spare, clean, maimed, open_cells

Price = Callable[[str], float]
"""What a GPU of a spare job costs that is in the way; infinite if it cannot be had."""


def alike(job: str) -> float:  # noqa: ARG001
    """All GPUs cost the same."""
    return 1.0


class Near(NamedTuple):
    """Where a gang's cells should lie, if that is possible.

    Attributes:
        own: The rack, in the zone's own numbers, if whole racks are bound to the zone.
        rack: The rack in which a cell is best bound.
    """

    own: int | None = None
    rack: int | None = None


def place(ground: ChainState, zone: CellZone, level: int, near: Near | None = None) -> int | None:
    """Give a vacant cell to a dedicated job, binding a quota cell if need be.

    Args:
        ground: The chain.
        zone: The pool's zone or that of its pinned cell.
        level: Of the cell.
        near: Where it should lie, if that is possible.

    Returns:
        Number of the cell; None, with nothing changed, if the pool has no open cell of the level
        that is free of spare jobs and safe to take. O(levels · log n).
    """
    free, above = zone.vacant.free, level
    while not free[above]:
        if zone.quota[above] > zone.bound[above]:
            site = clean(ground, above, near and near.rack)
            if site is not None:
                ground.bind(zone, site)
                break
        above += 1
        if above == len(free):
            above = _bind_in_parts(ground, zone, level)
            if above < 0:
                return None
            break
    else:  # open cells of its own do, without another bound
        if near is not None and (beside := _in_rack(zone, above, level, near)) is not None:
            return _take_beside(ground, zone, level, beside)
    number, root = zone.vacant.pop(above, level)
    if zone.vacant is not zone.open:
        zone.open.take(level, number)
    return ground.place(root, level, number)


def _take_beside(ground: ChainState, zone: CellZone, level: int, number: int) -> int:
    """A cell of the zone that is vacant, or lies in a vacant one."""
    root = zone.vacant.root(level, number)
    zone.vacant.take(level, number)
    if zone.vacant is not zone.open:
        zone.open.take(level, number)
    return ground.place(root, level, number)


def _in_rack(zone: CellZone, above: int, level: int, near: Near) -> int | None:
    """Number of the first vacant cell of a level in the zone's rack, or None.

    Of a node any will do, as nobody asks for a larger cell; others are taken from a level above.
    O(cells of these levels in the rack · levels).
    """
    shape, vacant = zone.shape, zone.vacant
    source = shape.node if level == shape.node else above
    if near.own is None or source > shape.node:
        return None
    ratio = shape.size[shape.node + 1] // shape.size[source]
    for number in range(near.own * ratio, (near.own + 1) * ratio):
        over = vacant.over(source, number)
        if over is not None and (over == source or level == shape.node):
            return number * (shape.size[source] // shape.size[level])
    return None


def _bind_in_parts(ground: ChainState, zone: CellZone, level: int) -> int:
    """Bind a quota cell where spare jobs or lost nodes leave it a part of a level, or a larger one.

    Returns the least such level; -1, with nothing changed, if there is no such quota cell.
    """
    if not ground.loans.jobs and not ground.out:
        return -1
    wanted = zone.wanted(level)
    for find in (beside_spare, maimed):
        for quota in wanted:
            site = find(ground, quota, level)
            if site is not None:
                ground.bind(zone, site)
                return next(k for k in ground.shape.levels[level:] if zone.vacant.free[k])
    return -1


def claim(ground: ChainState, zone: CellZone, level: int, price: Price) -> int | None:
    """As `place`, but spare jobs may still run in the cell: those of the least price.

    It takes no spare job from now on. O(cells of a level · spare jobs in them).
    """
    for above in ground.shape.levels[level:]:
        held = [ground.cell(root, above, n) for n, root in zone.open.free[above].items()]
        if held:
            return _claim(ground, held, level, price)
        sites = open_cells(ground, above) if zone.unbound(above) else []
        if sites:
            _, cell = min(_cheapest(ground, cell, level, price) for cell in sites)
            ground.bind(zone, ground.shape.around(cell, above))
            return _claim(ground, [cell], level, price)
    for quota in zone.wanted(level):
        site = maimed(ground, quota, level, over_spare=True)
        if site is not None:
            root = ground.bind(zone, site)
            parts = [ground.cell(root, *part) for part in zone.open.inside(*_of(ground, root))]
            return _claim(ground, [part for part in parts if part.level >= level], level, price)
    return None


def _of(ground: ChainState, root: Root) -> tuple[int, int]:
    return root.level, ground.number(root, root.cell())


def _claim(ground: ChainState, cells: list[Cell], level: int, price: Price) -> int:
    _, cell = min(_cheapest(ground, cell, level, price) for cell in cells)
    ground.claim(ground.root(cell), cell)
    return cell.number


def fits_one(zone: CellZone, level: int) -> bool:
    """As `fits`, for one cell. O(levels)."""
    free = zone.open.free
    while level < len(free) and not free[level] and zone.quota[level] <= zone.bound[level]:
        level += 1
    return level < len(free)


def fits(zone: CellZone, levels: list[int]) -> bool:
    """The pool would have the cells, were all its nodes well and no spare jobs there. O(levels)."""
    counts = [zone.unbound(k) + len(zone.open.free[k]) for k in zone.shape.levels]
    return zone.shape.holds(counts, levels)


def _cheapest(ground: ChainState, cell: Cell, level: int, price: Price) -> tuple[float, Cell]:
    """The price of what is lent in the cell of a level in this one with least, and that cell."""

    def lent(cell: Cell) -> float:
        loans, size = ground.loans, ground.shape.size
        return sum(price(loans.jobs[each]) * size[each.level] for each in loans.at(cell))

    while cell.level > level:
        cell = min(ground.shape.children(cell), key=lent)
    return lent(cell), cell
