"""Common cells that a quota cell may be bound to: safe for other pools' unused quota.

Taking one leaves no level with more quota cells missing than before, were all spare jobs gone.
"""

from __future__ import annotations

from collections.abc import Iterator

from cells.chain.chain_state import ChainState
from cells.chain.safety import missing, splittable
from cells.layout.shape import Cell


def clean(ground: ChainState, quota: int, rack: int | None = None) -> Cell | None:
    """A vacant cell of the level: in a rack, or far from spare jobs, if possible.

    O(levels · log n) without spare jobs.
    """
    common, shape = ground.common, ground.shape
    if rack is None and common.vacant is common.open and common.open.free[quota]:
        return Cell(quota, common.open.first(quota))
    found = None if rack is None else _in_rack(ground, quota, rack)
    if found is not None:
        return found
    safe = splittable(ground, quota)
    for level in safe:
        number = _least_clean(ground, level)
        if number is not None:
            return shape.first(Cell(level, number), quota)
    # Cells with spare jobs in them are left to unused quota of their size (see `common_suffices`).
    widest = max(level for level in shape.levels if ground.unbound[level])
    holder = _from_safe(ground, safe, range(max(quota, widest), len(shape.levels)))
    holder = holder or _from_safe(ground, safe, range(quota, widest))
    return holder and shape.first(holder, quota)


def _least_clean(ground: ChainState, level: int) -> int | None:
    """An open cell of the level without any spare job, or None."""
    opened, vacant = ground.common.open, ground.common.vacant
    few, more = sorted((opened, vacant), key=lambda buddy: len(buddy.free[level]))
    if not few.free[level]:
        return None
    first = few.first(level)
    if first in more.free[level]:
        return first
    return min((number for number in few.free[level] if number in more.free[level]), default=None)


def _in_rack(ground: ChainState, quota: int, rack: int) -> Cell | None:
    """The first cell of the level in a rack that is free of spare jobs with all around it.

    It leaves so many cells without spare jobs that unused quota needs no others: what pools hold
    back stays there. O(cells of the level in it), more with spare jobs (see `Zone.clean`).
    """
    shape, common = ground.shape, ground.common
    if quota > shape.node + 1:
        return None
    safe = splittable(ground, quota, common.clean())
    for cell in _inside(ground, Cell(shape.node + 1, rack), quota):
        over = common.open.over(*cell)
        if over in safe and over == common.vacant.over(*cell):
            return cell
    return None


def _inside(ground: ChainState, cell: Cell, level: int) -> Iterator[Cell]:
    ratio = ground.shape.size[cell.level] // ground.shape.size[level]
    return (Cell(level, cell.number * ratio + k) for k in range(ratio))


def beside_spare(ground: ChainState, quota: int, level: int) -> Cell | None:
    """A cell of a quota's level that is in part lent, with a vacant one of a level in it."""
    safe = splittable(ground, quota)
    found = _from_safe(ground, safe, range(level, quota))
    return found and ground.shape.around(found, quota)


def _from_safe(ground: ChainState, safe: list[int], levels: range) -> Cell | None:
    """A vacant common cell, of the least level, that lies in an open one of a safe level."""
    common = ground.common
    for level in levels:
        for number in sorted(common.vacant.free[level]):
            if common.open.over(level, number) in safe:
                return Cell(level, number)
    return None


def open_cells(ground: ChainState, quota: int) -> list[Cell]:
    """Open cells that one of the quota's level may be taken from; the smallest there are."""
    for level in splittable(ground, quota):
        if ground.common.open.free[level]:
            return [Cell(level, number) for number in ground.common.open.free[level]]
    return []


def maimed(ground: ChainState, quota: int, level: int, *, over_spare: bool = False) -> Cell | None:
    """A cell of a quota's level above the nodes, some of which are out: with most left in it.

    Nothing in it is bound, and it has a free cell of a level: free of spare jobs or, if so asked,
    as if there were none. O(bound cells + nodes that are out · cells of the quota's level in it).
    """
    shape, common = ground.shape, ground.common
    if quota <= shape.node or not ground.out:
        return None
    around = {shape.around(Cell(shape.node, node), quota) for node in ground.out}
    bound = {shape.around(r.cell(), quota) for r in ground.roots.values() if r.level <= quota}
    buddy = common.open if over_spare else common.vacant
    sites: list[tuple[int, Cell]] = []
    for cell in around - bound:
        parts = buddy.inside(*cell) if ground.root(cell) is ground.wild else []
        if any(part >= level for part, _ in parts) and _harmless(ground, cell):
            sites.append((-sum(shape.size[part] for part, _ in parts), cell))
    return min(sites)[1] if sites else None


def _harmless(ground: ChainState, cell: Cell) -> bool:
    """No level lacks more quota cells once one is bound to this, of which parts are lost."""
    counts, unbound = ground.common.open.counts(), ground.unbound.copy()
    before = missing(ground.shape, counts, unbound)
    for level, _ in ground.common.open.inside(*cell):
        counts[level] -= 1
    unbound[cell.level] -= 1
    after = missing(ground.shape, counts, unbound)
    return all(more <= fewer for more, fewer in zip(after, before, strict=True))
