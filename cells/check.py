"""The invariants of a chain, worked out anew from what is where."""

from __future__ import annotations

from cells.ground import Ground
from cells.shape import Cell
from cells.zones import Zone


def check_ground(ground: Ground) -> None:
    """Assert that all counts and free cells are what jobs, bound cells and lost nodes make them.

    O(cells).
    """
    _check_leaves(ground)
    zones = [ground.common, ground.leaving, *ground.zones.values(), *ground.pins.values()]
    opened: dict[int, set[int]] = {id(zone): set() for zone in zones}
    vacant: dict[int, set[int]] = {id(zone): set() for zone in zones}
    for top in range(ground.tops):
        for leaf in ground.shape.leaves(Cell(ground.shape.top, top)):
            cell = Cell(0, leaf)
            if not ground.in_use(cell):
                owner = id(ground.owner(cell)[0])
                opened[owner].add(leaf)
                if ground.lender(cell) is None:
                    vacant[owner].add(leaf)
    for zone in zones:
        _check_free(ground, zone, zone.open.free, opened[id(zone)])
        _check_free(ground, zone, zone.vacant.free, vacant[id(zone)])
        bound = [cell for cell, root in ground.roots.items() if root.zone is zone]
        for level in ground.shape.levels:
            assert zone.bound[level] == sum(cell.level == level for cell in bound), zone.name
            if zone is not ground.leaving and zone.pin is None:
                assert zone.bound[level] <= zone.quota[level], zone.name
    unbound = [sum(z.unbound(k) for z in ground.zones.values()) for k in ground.shape.levels]
    assert ground.unbound == unbound, (ground.unbound, unbound)


def _check_leaves(ground: Ground) -> None:
    """No GPU is in two jobs, or bound twice; counts add up."""
    shape = ground.shape
    seen: set[int] = set()
    for cell in ground.dedicated:
        assert seen.isdisjoint(shape.leaves(cell)), f"{cell} is given twice"
        seen.update(shape.leaves(cell))
    lent: set[int] = set()
    spare = [[0] * len(row) for row in ground.spare]
    for cell in ground.lent:
        assert lent.isdisjoint(shape.leaves(cell)), f"{cell} is lent twice"
        lent.update(shape.leaves(cell))
        for level in range(cell.level, shape.top + 1):
            spare[level][shape.around(cell, level).number] += shape.size[cell.level]
    assert spare == ground.spare
    bound: set[int] = set()
    for cell, root in ground.roots.items():
        assert bound.isdisjoint(shape.leaves(cell)), f"{cell} is bound twice"
        bound.update(shape.leaves(cell))
        inside = [c for c in ground.dedicated if _within(ground, c, cell)]
        assert len(inside) == root.jobs, cell
        assert inside or root.zone.pin is not None, f"{cell} is bound to nothing"
    assert seen <= bound
    for node, count in enumerate(ground.busy):
        assert count == sum(ground.node(c) == node for c in ground.dedicated), node


def _within(ground: Ground, cell: Cell, other: Cell) -> bool:
    return cell.level <= other.level and ground.shape.around(cell, other.level) == other


def _check_free(ground: Ground, zone: Zone, free: object, leaves: set[int]) -> None:
    """The free cells are these leaves, merged as far as bound cells allow."""
    shape = ground.shape
    assert isinstance(free, list)
    found: set[int] = set()
    for level, indices in enumerate(free):
        for index in indices:
            cell = Cell(level, index)
            assert found.isdisjoint(shape.leaves(cell)), f"{cell} of {zone.name!r} is free twice"
            found.update(shape.leaves(cell))
            _, top = ground.owner(cell)
            if level < top:
                siblings = shape.children(shape.parent(cell))
                assert not all(c.number in indices for c in siblings), f"{cell} is not merged"
    assert found == leaves, (zone.name, sorted(found ^ leaves)[:8])
