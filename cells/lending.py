"""Where a spare job's cells come from.

Never on a node where a dedicated job runs: its buddies stay free. Never in a pinned cell. In the
smallest vacant cells, which are those beside other spare jobs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cells.ground import Ground
from cells.holds import Holds
from cells.shape import Cell
from cells.zones import Zone

LOOKED_AT = 64
"""Vacant cells of a level that are looked at for one beside spare jobs: they stand close together,
so that more are rarely needed."""


def lend(ground: Ground, level: int, job: str, holds: Sequence[Holds]) -> Cell | None:
    """Give a vacant cell to a spare job, if all that is held back is still free of spare jobs.

    Returns:
        The cell, or None with nothing changed. O(pools · (pools + levels²)) at worst, where each
        pool has vacant cells beyond its jobs' nodes; O(pools + levels²) where the first will do.
    """
    for found in sorted(_candidates(ground, level)):
        cell = ground.shape.first(found, level)
        ground.lend(cell, job)
        if all(each.kept() for each in holds):
            return cell
        ground.end_loan(cell)
    return None


def _candidates(ground: Ground, level: int) -> Iterator[Cell]:
    for zone in (ground.common, *ground.zones.values(), ground.leaving):
        roots = [above for above in ground.shape.levels if zone.bound[above]]
        if zone is ground.common or (roots and roots[-1] > ground.shape.node):
            for above in range(level, len(ground.shape.levels)):
                yield from _of_level(ground, zone, above)


def _of_level(ground: Ground, zone: Zone, level: int) -> Iterator[Cell]:
    """Of the vacant cells of a level without a dedicated neighbour: one beside spare, one not."""
    seen: set[bool] = set()
    looked = 0
    for index in zone.vacant.free[level]:
        cell = Cell(level, index)
        if level > ground.shape.node or not ground.busy[ground.node(cell)]:
            alone = index in zone.open.free[level]
            if alone not in seen:
                seen.add(alone)
                yield cell
            looked += 1
            if len(seen) == 2 or looked == LOOKED_AT:
                return


def lend_rest(ground: Ground, job: str) -> Cell | None:
    """Give a GPU to a spare job that rounding a dedicated job's width up left over, or None.

    O(rests · levels).
    """
    cell = next((leaf for leaf in ground.rests if _lendable(ground, leaf)), None)
    if cell is not None:
        ground.lend(cell, job)
    return cell


def _lendable(ground: Ground, rest: Cell) -> bool:
    return ground.lender(rest) is None and ground.node(rest) not in ground.out
