"""Placement of dedicated jobs.

A request takes the smallest sufficient cell of its pool. An open part of a bound cell comes before
an unbound quota cell of the same level, and a cell without spare jobs before one with them. Of
several, the lowest in the pool's own numbers is taken, so the choice does not depend on where the
pool's cells are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from cells.chain.chain_state import ChainState
from cells.chain.safety import splittable
from cells.chain.zones import CellZone, Root
from cells.layout.shape import Cell
from cells.placement.sites import clean, damaged_site, open_cells, partly_lent_site

Price = Callable[[str], float]
"""The price of one GPU of a spare job that blocks a place; infinite if it must not be taken."""


def equal_price(job: str) -> float:  # noqa: ARG001
    """Return the same price for every GPU."""
    return 1.0


class Near(NamedTuple):
    """The preferred location of a gang's cells.

    Attributes:
        own: The rack, in the zone's own numbers, if whole racks are bound to the zone.
        rack: The physical rack in which to bind a cell.
    """

    own: int | None = None
    rack: int | None = None


def place(
    state: ChainState,
    zone: CellZone,
    level: int,
    near: Near | None = None,
    *,
    in_parts: bool = True,
) -> int | None:
    """Allocate a vacant cell to a dedicated job, binding a quota cell if necessary.

    Args:
        state: The state of the chain.
        zone: The zone of the pool or of its pinned cell.
        level: The level of the cell.
        near: Where the cell should be, if possible.
        in_parts: Whether a quota cell may be bound to a cell that spare jobs partly use.

    Returns:
        The number of the cell. None, with nothing changed, if the pool has no open cell of this
        level that is free of spare jobs and safe to take. O(levels · log n).
    """
    free, above = zone.vacant.free, level
    while not free[above]:
        if zone.quota[above] > zone.bound[above]:
            site = clean(state, above, near and near.rack)
            if site is not None:
                state.bind(zone, site)
                break
        above += 1
        if above == len(free):
            above = _bind_in_parts(state, zone, level) if in_parts else -1
            if above < 0:
                return None
            break
    else:  # a vacant cell is already bound to the zone
        if near is not None and (neighbour := _in_rack(zone, above, level, near)) is not None:
            return _take_beside(state, zone, level, neighbour)
    number, root = zone.vacant.pop(above, level)
    if zone.vacant is not zone.open:
        zone.open.take(level, number)
    return state.place(root, level, number)


def _take_beside(state: ChainState, zone: CellZone, level: int, number: int) -> int:
    """Allocate a specific cell of the zone that is vacant or lies in a vacant one."""
    root = zone.vacant.root(level, number)
    zone.vacant.take(level, number)
    if zone.vacant is not zone.open:
        zone.open.take(level, number)
    return state.place(root, level, number)


def _in_rack(zone: CellZone, above: int, level: int, near: Near) -> int | None:
    """Return the number of the first vacant cell of a level in the zone's rack, or None.

    For a whole node, any vacant node does, because no request needs a larger cell. Smaller cells
    are taken from the level `above`. O(cells of these levels in the rack · levels).
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


def _bind_in_parts(state: ChainState, zone: CellZone, level: int) -> int:
    """Bind a quota cell of which spare jobs or lost nodes leave a vacant part of at least `level`.

    Returns the lowest level of a vacant part, or -1, with nothing changed, if there is none.
    """
    if not state.loans.jobs and not state.out:
        return -1
    wanted = zone.wanted(level)
    for find in (partly_lent_site, damaged_site):
        for quota in wanted:
            site = find(state, quota, level)
            if site is not None:
                state.bind(zone, site)
                return next(k for k in state.shape.levels[level:] if zone.vacant.free[k])
    return -1


def claim(
    state: ChainState, zone: CellZone, level: int, price: Price, *, whole: bool = False
) -> int | None:
    """Allocate a cell in which spare jobs may still run, choosing the lowest total price.

    The cell accepts no further spare job. If a quota cell has to be bound, `whole` counts all of
    its spare jobs. O(cells of a level · spare jobs in them).
    """
    for above in state.shape.levels[level:]:
        held = [state.cell(root, above, n) for n, root in zone.open.free[above].items()]
        if held:
            return _claim(state, held, level, price)
        sites = open_cells(state, above) if zone.unbound(above) else []
        if sites:
            least = above if whole else level
            _, cell = min(_cheapest(state, cell, least, price) for cell in sites)
            state.bind(zone, state.shape.around(cell, above))
            return _claim(state, [cell], level, price)
    for quota in zone.wanted(level):
        site = damaged_site(state, quota, level, over_spare=True)
        if site is not None:
            root = state.bind(zone, site)
            parts = [state.cell(root, *part) for part in zone.open.inside(*_of(state, root))]
            return _claim(state, [part for part in parts if part.level >= level], level, price)
    return None


def _of(state: ChainState, root: Root) -> tuple[int, int]:
    return root.level, state.number(root, root.cell())


def _claim(state: ChainState, cells: list[Cell], level: int, price: Price) -> int:
    _, cell = min(_cheapest(state, cell, level, price) for cell in cells)
    state.claim(state.root(cell), cell)
    return cell.number


def bind_around(state: ChainState, zone: CellZone, cells: Sequence[Cell]) -> bool:
    """Bind the common cells in which a spare job runs to the pool, and give them to a holder.

    This is possible only if a request would bind such quota cells now, and other pools' unused
    quota does not need these cells. Otherwise returns False, with nothing changed. O(cells · levels
    · log n).
    """
    level = cells[0].level
    alike = zone.pin is None and all(cell.level == level for cell in cells)
    if not alike or zone.open.free[level] or zone.unbound(level) < len(cells):
        return False
    for i, cell in enumerate(cells):
        common = state.root(cell) is state.common_root
        if not common or state.common.open.over(*cell) not in splittable(state, level):
            for bound in cells[:i]:
                state.free(bound)
            return False
        state.claim(state.bind(zone, cell), cell)
    return True


def fits_one(zone: CellZone, level: int) -> bool:
    """Do the same as `fits` for one cell. O(levels)."""
    free = zone.open.free
    while level < len(free) and not free[level] and zone.quota[level] <= zone.bound[level]:
        level += 1
    return level < len(free)


def fits(zone: CellZone, levels: list[int]) -> bool:
    """Return whether the zone has cells of these levels, ignoring lost nodes and spare jobs.

    O(levels).
    """
    counts = [zone.unbound(k) + len(zone.open.free[k]) for k in zone.shape.levels]
    return zone.shape.can_hold(counts, levels)


def _cheapest(state: ChainState, cell: Cell, level: int, price: Price) -> tuple[float, Cell]:
    """Return the cell of `level` in this one whose lent GPUs cost least, with their price."""

    def lent(cell: Cell) -> float:
        loans, size = state.loans, state.shape.size
        return sum(price(loans.jobs[each]) * size[each.level] for each in loans.at(cell))

    while cell.level > level:
        cell = min(state.shape.children(cell), key=lent)
    return lent(cell), cell
