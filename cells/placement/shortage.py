"""Cells that cannot be honoured: lost with their nodes, or beyond a reduced quota."""

from __future__ import annotations

from cells.chain.chain_state import ChainState
from cells.chain.safety import missing
from cells.chain.zones import CellZone, Root
from cells.layout.requests import CellShortage
from cells.layout.shape import Cell


def shortage(chain: str, state: ChainState) -> list[CellShortage]:
    """Return a chain's missing cells, the largest first. O(bound cells + pools · levels)."""
    found: list[CellShortage] = []
    lacking = missing(state.shape, state.common.open.counts(), state.unbound)
    for level in reversed(state.shape.levels):
        kind = state.shape.names[level]
        pools = tuple(pool for pool, zone in state.zones.items() if zone.unbound(level))
        if lacking[level]:
            found.append(CellShortage(chain, kind, lacking[level], pools))
        found += [
            CellShortage(chain, kind, count, (pool,), broken=True)
            for pool, count in _broken(state, level).items()
        ]
    return found


def shrink(state: ChainState, zone: CellZone) -> None:
    """Release bound cells beyond the quota, those with the fewest jobs first."""
    for level in state.shape.levels:
        if zone.bound[level] > zone.quota[level]:
            mine = [r for r in state.roots.values() if r.zone is zone and r.level == level]
            mine.sort(key=lambda root: (root.jobs, root.slot))
            for root in mine[: zone.bound[level] - zone.quota[level]]:
                state.leave(root)


def _broken(state: ChainState, level: int) -> dict[str, int]:
    """Count a level's bound cells with a part on a node that is out, by pool."""
    counts: dict[str, int] = {}
    for root in sorted(state.roots.values(), key=Root.cell):
        mine = root.level == level and root.zone is not state.leaving
        if mine and _has_out(state, root.cell()):
            counts[root.zone.name] = counts.get(root.zone.name, 0) + 1
    return counts


def _has_out(state: ChainState, cell: Cell) -> bool:
    shape = state.shape
    if cell.level <= shape.node:
        return state.node(cell) in state.out
    return any(shape.around(Cell(shape.node, node), cell.level) == cell for node in state.out)
