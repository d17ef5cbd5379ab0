"""The invariants of a chain, worked out anew from what is where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from cells.chain.buddy import Buddy
from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone, Root
from cells.layout.shape import Cell


def check_ground(ground: ChainState) -> None:
    """Assert that all counts and free cells are what jobs, bound cells and lost nodes make them.

    O(cells).
    """
    _check_leaves(ground)
    _check_roots(ground)
    opened, vacant = _free_leaves(ground)
    bound: dict[int, list[Root]] = {}
    for root in ground.roots.values():
        bound.setdefault(id(root.zone), []).append(root)
    for zone in ground.all_zones():
        _check_free(ground, zone, zone.open, opened.get(id(zone), set()))
        _check_free(ground, zone, zone.vacant, vacant.get(id(zone), set()))
        mine = bound.get(id(zone), [])
        for level in ground.shape.levels:
            slots = [root.slot for root in mine if root.level == level]
            assert zone.bound[level] == len(slots) == len(set(slots)), zone.name
            if zone is not ground.leaving and zone.pin is None:
                assert zone.bound[level] <= zone.quota[level], zone.name
    unbound = [sum(z.unbound(k) for z in ground.zones.values()) for k in ground.shape.levels]
    assert ground.unbound == unbound, (ground.unbound, unbound)


def _free_leaves(ground: ChainState) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Leaves that should be open, and vacant, by their zones' ids."""
    shape = ground.shape
    used = _leaves(ground, ground.cells_given())
    used |= _leaves(ground, [cell for cells in ground.out.values() for cell in cells])
    lent = _leaves(ground, ground.loans.jobs)
    opened: dict[int, set[int]] = {}
    vacant: dict[int, set[int]] = {}
    for leaf in range(ground.tops * shape.size[shape.top]):
        if leaf not in used:
            zone = id(ground.root(Cell(0, leaf)).zone)
            opened.setdefault(zone, set()).add(leaf)
            if leaf not in lent:
                vacant.setdefault(zone, set()).add(leaf)
    return opened, vacant


def _leaves(ground: ChainState, cells: Iterable[Cell]) -> set[int]:
    """Of cells none of which is within another."""
    found: set[int] = set()
    for cell in cells:
        assert found.isdisjoint(ground.shape.leaves(cell)), f"{cell} is there twice"
        found.update(ground.shape.leaves(cell))
    return found


def _check_leaves(ground: ChainState) -> None:
    """No GPU is in two jobs or bound twice; counts add up."""
    shape = ground.shape
    given = _leaves(ground, ground.cells_given())
    kept = [cell for cells in ground.out.values() for cell in cells]
    assert given.isdisjoint(_leaves(ground, kept)), "a job's cell is kept from use"
    assert given <= _leaves(ground, [root.cell() for root in ground.roots.values()])
    spare = [[0] * len(row) for row in ground.loans.gpus]
    for cell in ground.loans.jobs:
        for level in range(cell.level, shape.top + 1):
            spare[level][shape.around(cell, level).number] += shape.size[cell.level]
    assert spare == ground.loans.gpus


def _check_roots(ground: ChainState) -> None:
    """Bound cells are known by their places, and have as many jobs as they say."""
    jobs = Counter(id(ground.holder(cell)) for cell in ground.cells_given())
    assert all(ground.root(cell) is ground.holder(cell) for cell in ground.cells_given())
    for cell, root in ground.roots.items():
        assert cell == root.cell(), cell
        assert jobs[id(root)] == root.jobs, cell
        assert root.jobs or root.zone.pin is not None, f"{cell} is bound to nothing"


def _check_free(ground: ChainState, zone: CellZone, buddy: Buddy[Root], leaves: set[int]) -> None:
    """The free cells are these leaves, merged as far as bound cells allow."""
    shape = ground.shape
    found: set[int] = set()
    for level, free in enumerate(buddy.free):
        for number, root in free.items():
            cell = ground.cell(root, level, number)
            assert ground.root(cell) is root, cell
            assert found.isdisjoint(shape.leaves(cell)), f"{cell} of {zone.name!r} is free twice"
            found.update(shape.leaves(cell))
            if level < root.level:
                first = number - number % shape.fan[level + 1]
                siblings = range(first, first + shape.fan[level + 1])
                assert not all(n in free for n in siblings), f"{cell} is not merged"
    assert found == leaves, (zone.name, sorted(found ^ leaves)[:8])
