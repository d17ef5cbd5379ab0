"""Common cells to which a quota cell may be bound without harm to other pools' unused quota.

Ignoring spare jobs, binding such a cell leaves no level with more missing quota cells than before.
"""

from __future__ import annotations

from collections.abc import Iterator

from cells.chain.chain_state import ChainState
from cells.chain.safety import missing, splittable
from cells.layout.shape import Cell


def clean(state: ChainState, quota: int, rack: int | None = None) -> Cell | None:
    """Return a vacant cell of the level: in the rack, or far from spare jobs, if possible.

    O(levels · log n) without spare jobs.
    """
    common, shape = state.common, state.shape
    if rack is None and common.vacant is common.open and common.open.free[quota]:
        return Cell(quota, common.open.first(quota))
    found = None if rack is None else _in_rack(state, quota, rack)
    if found is not None:
        return found
    safe = splittable(state, quota)
    for level in safe:
        number = _least_clean(state, level)
        if number is not None:
            return shape.first(Cell(level, number), quota)
    # Cells with spare jobs are left for unused quota of their size (see `common_suffices`).
    widest = max(level for level in shape.levels if state.unbound[level])
    holder = _from_safe(state, safe, range(max(quota, widest), len(shape.levels)))
    holder = holder or _from_safe(state, safe, range(quota, widest))
    return holder and shape.first(holder, quota)


def _least_clean(state: ChainState, level: int) -> int | None:
    """Return the lowest open cell of the level without any spare job, or None."""
    opened, vacant = state.common.open, state.common.vacant
    few, more = sorted((opened, vacant), key=lambda buddy: len(buddy.free[level]))
    if not few.free[level]:
        return None
    first = few.first(level)
    if first in more.free[level]:
        return first
    return min((number for number in few.free[level] if number in more.free[level]), default=None)


def _in_rack(state: ChainState, quota: int, rack: int) -> Cell | None:
    """Return the first cell of the level in a rack without spare jobs in or around it.

    Enough cells without spare jobs remain for all unused quota, so reservations stay satisfied.
    O(cells of the level in the rack), more with spare jobs (see `CellZone.clean`).
    """
    shape, common = state.shape, state.common
    if quota > shape.node + 1:
        return None
    safe = splittable(state, quota, common.clean())
    for cell in _inside(state, Cell(shape.node + 1, rack), quota):
        over = common.open.over(*cell)
        if over in safe and over == common.vacant.over(*cell):
            return cell
    return None


def _inside(state: ChainState, cell: Cell, level: int) -> Iterator[Cell]:
    ratio = state.shape.size[cell.level] // state.shape.size[level]
    return (Cell(level, cell.number * ratio + k) for k in range(ratio))


def partly_lent_site(state: ChainState, quota: int, level: int) -> Cell | None:
    """Return a partly lent cell of the quota's level with a vacant part of at least `level`."""
    safe = splittable(state, quota)
    found = _from_safe(state, safe, range(level, quota))
    return found and state.shape.around(found, quota)


def _from_safe(state: ChainState, safe: list[int], levels: range) -> Cell | None:
    """Return a vacant common cell of the lowest level that lies in an open cell of a safe level."""
    common = state.common
    for level in levels:
        for number in sorted(common.vacant.free[level]):
            if common.open.over(level, number) in safe:
                return Cell(level, number)
    return None


def open_cells(state: ChainState, quota: int) -> list[Cell]:
    """Return the smallest open cells from which one of the quota's level may be taken."""
    for level in splittable(state, quota):
        if state.common.open.free[level]:
            return [Cell(level, number) for number in state.common.open.free[level]]
    return []


def damaged_site(
    state: ChainState, quota: int, level: int, *, over_spare: bool = False
) -> Cell | None:
    """Return a cell above node level with nodes out, the one with most GPUs left.

    Nothing in the cell is bound, and a part of at least `level` is free: vacant, or open with
    `over_spare`. O(bound cells + nodes that are out · cells of the quota's level in it).
    """
    shape, common = state.shape, state.common
    if quota <= shape.node or not state.out:
        return None
    around = {shape.around(Cell(shape.node, node), quota) for node in state.out}
    bound = {shape.around(r.cell(), quota) for r in state.roots.values() if r.level <= quota}
    buddy = common.open if over_spare else common.vacant
    sites: list[tuple[int, Cell]] = []
    for cell in around - bound:
        parts = buddy.inside(*cell) if state.root(cell) is state.common_root else []
        if any(part >= level for part, _ in parts) and _harmless(state, cell):
            sites.append((-sum(shape.size[part] for part, _ in parts), cell))
    return min(sites)[1] if sites else None


def _harmless(state: ChainState, cell: Cell) -> bool:
    """Return whether binding this damaged cell leaves no level with more missing cells."""
    counts, unbound = state.common.open.counts(), state.unbound.copy()
    before = missing(state.shape, counts, unbound)
    for level, _ in state.common.open.inside(*cell):
        counts[level] -= 1
    unbound[cell.level] -= 1
    after = missing(state.shape, counts, unbound)
    return all(more <= fewer for more, fewer in zip(after, before, strict=True))
