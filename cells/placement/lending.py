"""Where a spare job's cells come from.

Never in a buddy of a dedicated job's cell, nor in a pinned cell, nor in cells bound to a pool that
holds anything back. In the smallest vacant cells, which are those beside other spare jobs: on nodes
without dedicated jobs first, then beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone
from cells.layout.shape import Cell
from cells.placement.gangs import in_turn
from cells.placement.holds import ReservedGpus

LOOKED_AT = 32
"""Vacant cells of a level of a zone that are looked at for some that may be lent: where so many are
buddies of dedicated cells, the next larger ones do."""


class _Option(NamedTuple):
    """A vacant cell that may be lent; the least is the best.

    Attributes:
        busy: A dedicated job is on its node.
        cell: The cell.
        alone: No spare job is in the open cell that it lies in.
    """

    busy: bool
    cell: Cell
    alone: bool


def lend_all(
    ground: ChainState, widths: Sequence[int], job: str, holds: Sequence[ReservedGpus]
) -> list[Cell] | None:
    """Give a spare job vacant cells that leave all that is held back free of spare jobs.

    Args:
        ground: The chain.
        widths: GPUs of each member.
        job: Who gets them.
        holds: What is held back, window by window.

    Returns:
        The cells in the order of the members, or None with nothing changed.
        O(pools · levels · (windows + levels)) for each cell at worst.
    """
    found: list[tuple[int, Cell]] = []
    for member, level in in_turn(ground.shape, widths):
        cell = _lend_rest(ground, job, holds) if ground.rests and not level else None
        cell = cell or _lend(ground, level, job, holds)
        if cell is None:
            for _, lent in found:
                ground.end_loan(lent)
            return None
        found.append((member, cell))
    return [cell for _, cell in sorted(found)]


def _lend(ground: ChainState, level: int, job: str, holds: Sequence[ReservedGpus]) -> Cell | None:
    if not all(each.kept() for each in holds):
        return None
    best = min(_options(ground, level, holds), default=None)
    if best is None:
        return None
    cell = ground.shape.first(best.cell, level)
    ground.lend(cell, job)
    return cell


def _options(ground: ChainState, level: int, holds: Sequence[ReservedGpus]) -> Iterator[_Option]:
    """Vacant cells, a few of each zone and level, that one of a level may be lent from."""
    for above in ground.shape.levels[level:]:
        for option in _of_level(ground, ground.common, above):
            if all(each.common_spares(level, above, alone=option.alone) for each in holds):
                yield option
    for zone in (*ground.zones.values(), ground.leaving):
        if not any(each.needs(zone) for each in holds):
            for above in ground.shape.levels[level:]:
                if zone.vacant.free[above]:
                    yield from _of_level(ground, zone, above)


def _of_level(ground: ChainState, zone: CellZone, level: int) -> Iterator[_Option]:
    """Of the vacant cells of a level: one beside spare jobs and one that is not, if there are.

    On nodes without dedicated jobs, and on others.
    """
    node, opened = ground.shape.node, zone.open.free[level]
    only = zone.vacant is zone.open or level == ground.shape.top  # all of them are alone
    seen: set[tuple[bool, bool]] = set()
    if level == 0 < node:
        if only:
            return
        seen.add((True, True))  # an open leaf that is not merged has a dedicated buddy
    looked_at = 1 if only and level >= node else LOOKED_AT
    for number in zone.vacant.least(level, looked_at) if zone.vacant.free[level] else ():
        over = level if number in opened else zone.open.over(level, number) or 0
        kind = (over < node, over == level)
        if kind not in seen:
            cell = ground.cell(zone.vacant.free[level][number], level, number)
            if over >= node or not _is_buddy(ground, cell, over):
                seen.add(kind)
                yield _Option(over < node, cell, over == level)
                if only:
                    return


def _is_buddy(ground: ChainState, cell: Cell, over: int) -> bool:
    """The open cell of a level around a vacant one has a dedicated job's cell as its sibling."""
    shape = ground.shape
    first = shape.around(cell, over + 1).number * shape.fan[over + 1]
    return any(ground.given[over][first : first + shape.fan[over + 1]])


def _lend_rest(ground: ChainState, job: str, holds: Sequence[ReservedGpus]) -> Cell | None:
    """Give a GPU to a spare job that rounding a dedicated job's width up left over, or None.

    Not of a pool that holds anything back: when its job ends, the rest is a part of its cells.
    O(rests · (levels + windows)).
    """
    cell = next((leaf for leaf in ground.rests if _lendable(ground, leaf, holds)), None)
    if cell is not None:
        ground.lend(cell, job)
    return cell


def _lendable(ground: ChainState, rest: Cell, holds: Sequence[ReservedGpus]) -> bool:
    if ground.loans.around(rest) is not None or ground.node(rest) in ground.out:
        return False
    zone = ground.root(rest).zone
    return not any(each.needs(zone) for each in holds)
