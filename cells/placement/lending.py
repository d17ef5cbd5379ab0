"""Placement of spare jobs.

A spare job never gets a buddy of a dedicated job's cell, a pinned cell, or a cell bound to a pool
that has a reservation. It gets the smallest vacant cell, which lies next to other spare jobs. Nodes
without dedicated jobs come first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone
from cells.layout.shape import Cell
from cells.placement.gangs import widest_first
from cells.placement.reservations import ReservedGpus

MAX_CANDIDATES = 32
"""Maximum number of vacant cells per zone and level that are examined.

If more than this many are buddies of dedicated cells, the search goes on with the next level.
"""


class _Option(NamedTuple):
    """A vacant cell that may be lent. The lowest tuple is the best option.

    Attributes:
        busy: Whether a dedicated job runs on its node.
        cell: The cell.
        alone: Whether the open cell that contains it has no spare job.
    """

    busy: bool
    cell: Cell
    alone: bool


def lend_all(
    state: ChainState, widths: Sequence[int], job: str, reservations: Sequence[ReservedGpus]
) -> list[Cell] | None:
    """Allocate vacant cells to a spare job such that all reservations stay satisfied.

    Args:
        state: The state of the chain.
        widths: GPUs of each member.
        job: The spare job.
        reservations: The reservations of each window.

    Returns:
        The cells in the order of the members, or None with nothing changed. At worst
        O(pools · levels · (windows + levels)) for each cell.
    """
    found: list[tuple[int, Cell]] = []
    for member, level in widest_first(state.shape, widths):
        cell = _lend(state, level, job, reservations)
        if cell is None:
            for _, lent in found:
                state.end_loan(lent)
            return None
        found.append((member, cell))
    return [cell for _, cell in sorted(found)]


def lend_inside(
    state: ChainState, widths: Sequence[int], job: str, within: Sequence[Cell]
) -> list[Cell] | None:
    """Allocate parts of dedicated cells, in which no spare job runs yet, to a spare job.

    Each member gets the smallest part that holds it. Returns the cells in the order of the members,
    or None with nothing changed. O(cells of these parts) for each member.
    """
    found: list[tuple[int, Cell]] = []
    for member, level in widest_first(state.shape, widths):
        parts = [part for cell in within for part in state.loans.parts(cell) if part.level >= level]
        if not parts:
            for _, lent in found:
                state.end_loan(lent)
            return None
        cell = state.shape.first(min(parts), level)
        state.loans.add(cell, job)
        found.append((member, cell))
    return [cell for _, cell in sorted(found)]


def _lend(
    state: ChainState, level: int, job: str, reservations: Sequence[ReservedGpus]
) -> Cell | None:
    if not all(each.satisfied() for each in reservations):
        return None
    best = min(_options(state, level, reservations), default=None)
    if best is None:
        return None
    cell = state.shape.first(best.cell, level)
    state.lend(cell, job)
    return cell


def _options(
    state: ChainState, level: int, reservations: Sequence[ReservedGpus]
) -> Iterator[_Option]:
    """Yield vacant cells, a few of each zone and level, from which a cell may be lent."""
    for above in state.shape.levels[level:]:
        for option in _of_level(state, state.common, above):
            if all(each.can_lend_common(level, above, alone=option.alone) for each in reservations):
                yield option
    for zone in (*state.zones.values(), state.leaving):
        if not any(each.reserves(zone) for each in reservations):
            for above in state.shape.levels[level:]:
                if zone.vacant.free[above]:
                    yield from _of_level(state, zone, above)


def _of_level(state: ChainState, zone: CellZone, level: int) -> Iterator[_Option]:
    """Yield up to two vacant cells of a level: one next to spare jobs, and one that is not.

    These are yielded for nodes with and for nodes without dedicated jobs.
    """
    node, opened = state.shape.node, zone.open.free[level]
    only = zone.vacant is zone.open or level == state.shape.top  # then all cells are alone
    seen: set[tuple[bool, bool]] = set()
    if level == 0 < node:
        if only:
            return
        seen.add((True, True))  # an unmerged open leaf has a dedicated buddy
    looked_at = 1 if only and level >= node else MAX_CANDIDATES
    for number in zone.vacant.least(level, looked_at) if zone.vacant.free[level] else ():
        over = level if number in opened else zone.open.over(level, number) or 0
        kind = (over < node, over == level)
        if kind not in seen:
            cell = state.cell(zone.vacant.free[level][number], level, number)
            if over >= node or not _is_buddy(state, cell, over):
                seen.add(kind)
                yield _Option(over < node, cell, over == level)
                if only:
                    return


def _is_buddy(state: ChainState, cell: Cell, over: int) -> bool:
    """Return whether a sibling of the open cell around a vacant cell has a dedicated job."""
    shape = state.shape
    first = shape.around(cell, over + 1).number * shape.fan[over + 1]
    return any(state.given[over][first : first + shape.fan[over + 1]])
