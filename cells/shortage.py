"""Cells that cannot be honoured: lost with their nodes, or beyond a new quota."""

from __future__ import annotations

from cells.answers import Short
from cells.ground import Ground
from cells.safety import spread
from cells.shape import Cell
from cells.zones import Zone


def shortage(chain: str, ground: Ground) -> list[Short]:
    """What is missing in a chain, the largest cells first. O(bound cells + pools · levels)."""
    found: list[Short] = []
    _, missing = spread(ground)
    for level in reversed(ground.shape.levels):
        kind = ground.shape.names[level]
        pools = tuple(pool for pool, zone in ground.zones.items() if zone.unbound(level))
        if missing[level]:
            found.append(Short(chain, kind, missing[level], pools))
        found += [
            Short(chain, kind, count, (pool,), broken=True)
            for pool, count in _broken(ground, level).items()
        ]
    return found


def shrink(ground: Ground, zone: Zone) -> None:
    """Let bound cells beyond the quota leave, those with fewest jobs first."""
    for level in ground.shape.levels:
        if zone.bound[level] > zone.quota[level]:
            roots = [
                c for c, root in ground.roots.items() if root.zone is zone and c.level == level
            ]
            roots.sort(key=lambda cell: (ground.roots[cell].jobs, cell))
            for cell in roots[: zone.bound[level] - zone.quota[level]]:
                ground.leave(cell)


def _broken(ground: Ground, level: int) -> dict[str, int]:
    """Bound cells of a level, by pool, with a part on a node that is out."""
    counts: dict[str, int] = {}
    for cell in sorted(ground.roots):
        root = ground.roots[cell]
        if cell.level == level and root.zone is not ground.leaving and _has_out(ground, cell):
            counts[root.zone.name] = counts.get(root.zone.name, 0) + 1
    return counts


def _has_out(ground: Ground, cell: Cell) -> bool:
    shape = ground.shape
    if cell.level <= shape.node:
        return ground.node(cell) in ground.out
    return any(shape.around(Cell(shape.node, node), cell.level) == cell for node in ground.out)
