"""The invariants of a chain, recomputed from its jobs, bound cells and lost nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from cells.chain.buddy import Buddy
from cells.chain.chain_state import ChainState
from cells.chain.zones import CellZone, Root
from cells.layout.shape import Cell


def check_chain(state: ChainState) -> None:
    """Assert that all counts and free cells follow from jobs, bound cells and lost nodes.

    O(cells).
    """
    given = state.cells_given()
    used = _check_leaves(state, given)
    _check_roots(state, given)
    opened, vacant = _free_leaves(state, used)
    bound: dict[int, list[Root]] = {}
    for root in state.roots.values():
        bound.setdefault(id(root.zone), []).append(root)
    for zone in state.all_zones():
        _check_free(state, zone, zone.open, opened.get(id(zone), set()))
        _check_free(state, zone, zone.vacant, vacant.get(id(zone), set()))
        mine = bound.get(id(zone), [])
        for level in state.shape.levels:
            slots = [root.slot for root in mine if root.level == level]
            assert zone.bound[level] == len(slots) == len(set(slots)), zone.name
            if zone is not state.leaving and zone.pin is None:
                assert zone.bound[level] <= zone.quota[level], zone.name
    unbound = [sum(z.unbound(k) for z in state.zones.values()) for k in state.shape.levels]
    assert state.unbound == unbound, (state.unbound, unbound)


def _free_leaves(
    state: ChainState, used: set[int]
) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
    """Return the leaves that should be open, and those that should be vacant, by zone id.

    `used` are the leaves of dedicated jobs and lost nodes.
    """
    shape = state.shape
    lent = _leaves(state, state.loans.jobs)
    opened: dict[int, set[int]] = {}
    unbound = set(range(state.tops * shape.size[shape.top]))
    for cell, root in state.roots.items():
        unbound.difference_update(shape.leaves(Cell(*cell)))
        opened.setdefault(id(root.zone), set()).update(shape.leaves(Cell(*cell)))
    opened.setdefault(id(state.common), set()).update(unbound)
    opened = {zone: leaves - used for zone, leaves in opened.items()}
    return opened, {zone: leaves - lent for zone, leaves in opened.items()}


def _leaves(state: ChainState, cells: Iterable[Cell]) -> set[int]:
    """Return the leaves of cells, and assert that no cell lies in another."""
    found: set[int] = set()
    for cell in cells:
        assert found.isdisjoint(state.shape.leaves(cell)), f"{cell} is there twice"
        found.update(state.shape.leaves(cell))
    return found


def _check_leaves(state: ChainState, cells: Sequence[Cell]) -> set[int]:
    """Assert that no GPU is in two jobs or bound twice, and that counts add up.

    `cells` are those of dedicated jobs. Return the leaves of these and of lost nodes.
    """
    shape = state.shape
    given = _leaves(state, cells)
    kept = _leaves(state, [cell for withheld in state.out.values() for cell in withheld])
    assert given.isdisjoint(kept), "a job's cell is withheld"
    assert given <= _leaves(state, [root.cell() for root in state.roots.values()])
    spare = [[0] * len(row) for row in state.loans.gpus]
    for cell in state.loans.jobs:
        for level in range(cell.level, shape.top + 1):
            spare[level][shape.around(cell, level).number] += shape.size[cell.level]
    assert spare == state.loans.gpus
    return given | kept


def _check_roots(state: ChainState, given: Sequence[Cell]) -> None:
    """Assert that bound cells are indexed correctly and count their jobs correctly."""
    jobs = Counter(id(state.holder(cell)) for cell in given)
    assert all(state.root(cell) is state.holder(cell) for cell in given)
    for cell, root in state.roots.items():
        assert cell == root.cell(), cell
        assert jobs[id(root)] == root.jobs, cell
        assert root.jobs or root.zone.pin is not None, f"{cell} is bound to nothing"


def _check_free(state: ChainState, zone: CellZone, buddy: Buddy[Root], leaves: set[int]) -> None:
    """Assert that free cells cover exactly these leaves and are merged within bound cells."""
    shape = state.shape
    found: set[int] = set()
    for level, free in enumerate(buddy.free):
        for number, root in free.items():
            cell = state.cell(root, level, number)
            assert state.root(cell) is root, cell
            assert found.isdisjoint(shape.leaves(cell)), f"{cell} of {zone.name!r} is free twice"
            found.update(shape.leaves(cell))
            if level < root.level:
                first = number - number % shape.fan[level + 1]
                siblings = range(first, first + shape.fan[level + 1])
                assert not all(n in free for n in siblings), f"{cell} is not merged"
    assert found == leaves, (zone.name, sorted(found ^ leaves)[:8])
