"""Where a dedicated job's cells come from.

A pool's request takes the smallest sufficient of its cells: what is open in those already bound,
before an unbound quota cell of the same level; one without spare jobs, wherever there is one.
"""

from __future__ import annotations

from cells.ground import Ground
from cells.safety import splittable
from cells.shape import Cell
from cells.zones import Zone


def place(
    ground: Ground, zone: Zone, level: int, job: str, near: Cell | None = None
) -> Cell | None:
    """Give a vacant cell to a dedicated job, binding a quota cell if need be.

    Args:
        ground: The chain.
        zone: The pool's zone or that of its pinned cell.
        level: Of the cell.
        job: Who gets it.
        near: A cell in which it should lie, if that is possible.

    Returns:
        The cell; None, with nothing changed, if the pool has no open cell of the level that is
        free of spare jobs and safe to take. O(levels · log n).
    """
    found = near and _vacant(ground, zone, level, near)
    found = found or _vacant(ground, zone, level, None)
    if found is None:
        return None
    cell = ground.shape.first(found, level)
    ground.place(cell, job)
    return cell


def claim(ground: Ground, zone: Zone, level: int, job: str) -> Cell | None:
    """As `place`, but spare jobs may still run in the cell: as few GPUs of them as can be.

    It takes no spare job from now on. O(cells of a level).
    """
    held = [k for k in range(level, len(ground.shape.levels)) if zone.open.free[k]]
    wanted = zone.smallest_quota(level)
    options = sorted([(k, 0) for k in held] + [(q, 1) for q in wanted])
    for source, unbound in options:
        if not unbound:
            cells = [Cell(source, i) for i in zone.open.free[source]]
        else:
            cells = _open_cells(ground, source)
        if cells:
            _, cell = min(_least_spare(ground, cell, level) for cell in cells)
            if unbound:
                ground.bind(zone, ground.shape.around(cell, source))
            ground.place(cell, job)
            return cell
    return None


def fits(ground: Ground, zone: Zone, levels: list[int]) -> bool:
    """The pool would have the cells, were all its nodes well and no spare jobs there. O(levels)."""
    counts = [zone.unbound(k) + len(zone.open.free[k]) for k in ground.shape.levels]
    return ground.shape.holds(counts, levels)


def _vacant(ground: Ground, zone: Zone, level: int, near: Cell | None) -> Cell | None:
    """A vacant cell of the zone that holds one of the level; a quota cell is bound if need be."""
    held = zone.vacant.smallest(level)
    wanted = zone.smallest_quota(level)
    if near is not None and held is not None and not (wanted and wanted[0] < held.level):
        beside = zone.vacant.within(level, near)
        return beside if beside and beside.level == min(held.level, near.level) else None
    if held is not None and not (wanted and wanted[0] < held.level):
        return held
    for quota in wanted:
        if held is not None and quota >= held.level:
            break
        cell = _clean(ground, quota, near)
        if cell is not None:
            ground.bind(zone, cell)
            return cell
    if held is not None:
        return held
    for quota in wanted:
        vacant = _beside_spare(ground, quota, level, near)
        if vacant is not None:
            ground.bind(zone, ground.shape.around(vacant, quota))
            return zone.vacant.smallest(level)
    return None


def _clean(ground: Ground, quota: int, near: Cell | None) -> Cell | None:
    """A common cell of the level, vacant and safe to bind; far from spare jobs if possible."""
    common, shape = ground.common, ground.shape
    safe = splittable(ground, quota)
    for level in safe if near is None else ():
        few, more = sorted((common.open.free[level], common.vacant.free[level]), key=len)
        index = next((i for i in few if i in more), None)
        if index is not None:
            return shape.first(Cell(level, index), quota)
    # Cells with spare jobs in them are left to unused quota of their size (see `common_suffices`).
    widest = max(level for level in shape.levels if ground.unbound[level])
    found = _from_safe(ground, safe, range(max(quota, widest), len(shape.levels)), near)
    found = found or _from_safe(ground, safe, range(quota, widest), near)
    if found is not None and found.level < quota:  # all of a smaller `near`
        return shape.around(found, quota)
    return found and shape.first(found, quota)


def _beside_spare(ground: Ground, quota: int, level: int, near: Cell | None) -> Cell | None:
    """A vacant cell in a common one of the quota's level that is in part lent."""
    safe = splittable(ground, quota)
    return _from_safe(ground, safe, range(level, quota), near)


def _from_safe(ground: Ground, safe: list[int], levels: range, near: Cell | None) -> Cell | None:
    """The first of the smallest vacant common cells that lie in an open one of a safe level."""
    common, shape = ground.common, ground.shape
    for level in levels:
        if near is not None and near.level > level:
            ratio = shape.size[near.level] // shape.size[level]
            indices = common.vacant.free[level].irange(
                near.number * ratio, (near.number + 1) * ratio - 1
            )
        elif near is not None:
            around = shape.around(near, level).number
            indices = iter([around] if around in common.vacant.free[level] else [])
        else:
            indices = iter(common.vacant.free[level])
        for index in indices:
            holder = common.open.over(Cell(level, index))
            if holder is not None and holder.level in safe:
                return Cell(level, index) if near is None or near.level >= level else near
    return None


def _open_cells(ground: Ground, quota: int) -> list[Cell]:
    """Open common cells that one of the quota's level may be taken from; the smallest there are."""
    for level in splittable(ground, quota):
        if ground.common.open.free[level]:
            return [Cell(level, index) for index in ground.common.open.free[level]]
    return []


def _least_spare(ground: Ground, cell: Cell, level: int) -> tuple[int, Cell]:
    """GPUs lent in the cell of a level in this one with fewest of them, and that cell."""
    while cell.level > level:
        cell = min(ground.shape.children(cell), key=lambda child: _lent(ground, child))
    return _lent(ground, cell), cell


def _lent(ground: Ground, cell: Cell) -> int:
    around = ground.lender(cell)
    if around is not None:
        return ground.shape.size[around.level]
    return ground.spare[cell.level][cell.number]
