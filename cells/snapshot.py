"""Snapshots of cells as plain values.

A snapshot holds facts only: which cells are bound to which pool and under which slot, which job has
which cells, which nodes are out. The free cells follow from these facts, because free cells always
merge as far as they can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cells.chain.chain_state import LEAVING, ChainState
from cells.layout.shape import Cell
from cells.layout.spec import CellsError, Spec, Top


class Binding(NamedTuple):
    """A physical cell that stands for a quota cell of a pool. Pinned cells are left out.

    Attributes:
        chain: Its chain.
        pool: The pool, or `LEAVING` if the cell is beyond its pool's quota.
        cell: The cell.
        slot: Its number among the bound cells of its zone and level.
    """

    chain: str
    pool: str
    cell: Cell
    slot: int


class CellHolder(NamedTuple):
    """A job or a reservation, with its cells.

    Attributes:
        name: The name of the job or reservation.
        chain: The chain of its cells.
        widths: GPUs of each member.
        cells: Its cells, in the order of the members.
        spare: Whether this is a spare job.
        reserved: Whether this is a reservation without a job.
    """

    name: str
    chain: str
    widths: tuple[int, ...]
    cells: tuple[Cell, ...]
    spare: bool = False
    reserved: bool = False


class RemovedNode(NamedTuple):
    """A removed node: its chain, its number there, and its former name."""

    chain: str
    number: int
    name: str


@dataclass(frozen=True, slots=True)
class CellsSnapshot:
    """The state of all cells at one moment.

    Attributes:
        spec: The current specification, without bad nodes. Removed nodes are named by `gone_name`.
        pools: All known pools, in order.
        zones: All pools that ever had a zone. Their order decides which zone's cells are freed
            first.
        out: Nodes that are out, with the reason.
        gone: Removed nodes.
        bound: Bound cells; those of one zone and level are in the order of their slots.
        tenants: All jobs and reservations with cells.
    """

    spec: Spec
    pools: tuple[str, ...]
    zones: tuple[str, ...]
    out: tuple[tuple[str, str], ...]
    gone: tuple[RemovedNode, ...]
    bound: tuple[Binding, ...]
    tenants: tuple[CellHolder, ...]

    def quotas(self) -> dict[str, dict[str, dict[str, int]]]:
        """Return the quotas in the form that `Ownership.set_quotas` takes."""
        quotas: dict[str, dict[str, dict[str, int]]] = {pool: {} for pool in self.pools}
        for quota in self.spec.quotas:
            chains = quotas.setdefault(quota.pool, {})
            chains.setdefault(quota.chain, {})[quota.type] = quota.count
        return quotas


def gone_name(chain: str, number: int) -> str:
    """Return the placeholder name of a removed node, because its real name may be used again."""
    return f"\0gone {chain} {number}"


def without_bad_nodes(spec: Spec) -> Spec:
    """Return the specification with no node marked as bad. O(nodes)."""
    return replace(spec, tops=tuple(map(without_bad, spec.tops)))


def without_bad(top: Top) -> Top:
    """Return the top cell with no node marked as bad."""
    if not any(node.bad for node in top.nodes):
        return top
    return replace(top, nodes=tuple(replace(node, bad=False) for node in top.nodes))


def renamed(spec: Spec, node: str, name: str) -> Spec:
    """Return the specification with one node renamed in top and pinned cells. O(nodes)."""
    tops = tuple(
        replace(top, nodes=tuple(replace(n, name=name) if n.name == node else n for n in top.nodes))
        if any(n.name == node for n in top.nodes)
        else top
        for top in spec.tops
    )
    pinned = tuple(
        replace(pin, nodes=tuple(name if each == node else each for each in pin.nodes))
        for pin in spec.pinned
    )
    return replace(spec, tops=tops, pinned=pinned)


def bindings(chain: str, state: ChainState) -> Iterator[Binding]:
    """Yield the bound cells of a chain except pinned ones. O(n · log n)."""
    for root in sorted(state.roots.values(), key=lambda root: (root.slot, root.cell())):
        if root.zone.pin is None:
            yield Binding(chain, root.zone.name, root.cell(), root.slot)


def checked(state: ChainState, cell: Cell, job: str) -> Cell:
    """Return the cell if the chain has it. Raises CellsError."""
    level, number = cell
    if level not in state.shape.levels or not 0 <= number < cells_of(state, level):
        raise CellsError(
            f"{job}: the chain has no cell ({level}, {number}); restore another snapshot"
        )
    return cell


def cells_of(state: ChainState, level: int) -> int:
    """Return the number of cells of a level."""
    return state.tops * (state.shape.size[state.shape.top] // state.shape.size[level])


def restore_binding(state: ChainState, bound: Binding) -> None:
    """Bind a cell, in ascending order of slots. O(levels · log n). Raises CellsError."""
    zone = state.leaving if bound.pool == LEAVING else state.zones.get(bound.pool)
    if zone is None:
        raise CellsError(
            f"a cell is bound to unknown pool {bound.pool!r}; restore another snapshot"
        )
    level, number = checked(state, bound.cell, bound.pool)
    if zone is not state.leaving and zone.bound[level] >= zone.quota[level]:
        raise CellsError(f"{bound.pool}: more cells bound than owned; restore another snapshot")
    if state.common.open.over(level, number) is None:
        raise CellsError(
            f"{bound.pool}: cell ({level}, {number}) is bound twice; restore another snapshot"
        )
    if not zone.highest(level) <= bound.slot < cells_of(state, level):
        raise CellsError(
            f"{bound.pool}: slot {bound.slot} is taken or too high; list slots in ascending order"
        )
    state.bind(zone, bound.cell, bound.slot)


def restore_dedicated(state: ChainState, job: str, cells: Sequence[Cell]) -> None:
    """Restore a dedicated job's cells. Call this before `restore_spare`. Raises CellsError."""
    for cell in cells:
        root = state.root(checked(state, cell, job))
        number, opened = state.number(root, cell), root.zone.open
        if root is state.common_root or opened.over(cell.level, number) is None:
            level, place = cell
            raise CellsError(
                f"{job}: cell ({level}, {place}) is not free; restore another snapshot"
            )
        opened.take(cell.level, number)
        state.place(root, cell.level, number)


def restore_spare(state: ChainState, job: str, cells: Sequence[Cell]) -> None:
    """Restore a spare job's cells, after all dedicated jobs have theirs. Raises CellsError."""
    for cell in cells:
        checked(state, cell, job)
        if cell.level > state.shape.node or state.loans.at(cell):
            raise CellsError(
                f"{job}: cell ({cell.level}, {cell.number}) is lent twice or larger than a node; "
                "restore another snapshot"
            )
        for root, part in list(state.open_in(cell)):
            root.zone.split_vacant()
            root.zone.vacant.take(part.level, state.number(root, part))
            root.zone.changes += 1
        state.loans.add(cell, job)
