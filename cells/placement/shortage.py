"""Cells that cannot be honoured: lost with their nodes, or beyond a new quota."""

from __future__ import annotations

from cells.chain.chain_state import ChainState
from cells.chain.safety import missing
from cells.chain.zones import CellZone, Root
from cells.layout.requests import CellShortage
from cells.layout.shape import Cell


def shortage(chain: str, ground: ChainState) -> list[CellShortage]:
    """What is missing in a chain, the largest cells first. O(bound cells + pools · levels)."""
    found: list[CellShortage] = []
    lacking = missing(ground.shape, ground.common.open.counts(), ground.unbound)
    for level in reversed(ground.shape.levels):
        kind = ground.shape.names[level]
        pools = tuple(pool for pool, zone in ground.zones.items() if zone.unbound(level))
        if lacking[level]:
            found.append(CellShortage(chain, kind, lacking[level], pools))
        found += [
            CellShortage(chain, kind, count, (pool,), broken=True)
            for pool, count in _broken(ground, level).items()
        ]
    return found


def shrink(ground: ChainState, zone: CellZone) -> None:
    """Let bound cells beyond the quota leave, those with fewest jobs first."""
    for level in ground.shape.levels:
        if zone.bound[level] > zone.quota[level]:
            mine = [r for r in ground.roots.values() if r.zone is zone and r.level == level]
            mine.sort(key=lambda root: (root.jobs, root.slot))
            for root in mine[: zone.bound[level] - zone.quota[level]]:
                ground.leave(root)


def _broken(ground: ChainState, level: int) -> dict[str, int]:
    """Bound cells of a level, by pool, with a part on a node that is out."""
    counts: dict[str, int] = {}
    for root in sorted(ground.roots.values(), key=Root.cell):
        mine = root.level == level and root.zone is not ground.leaving
        if mine and _has_out(ground, root.cell()):
            counts[root.zone.name] = counts.get(root.zone.name, 0) + 1
    return counts


def _has_out(ground: ChainState, cell: Cell) -> bool:
    shape = ground.shape
    if cell.level <= shape.node:
        return ground.node(cell) in ground.out
    return any(shape.around(Cell(shape.node, node), cell.level) == cell for node in ground.out)
