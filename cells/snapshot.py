"""All that is known of cells, as plain values; what follows from it is worked out anew.

Kept are facts: which cells are bound to whom, and under which of the zone's own numbers; who is in
which cells; which nodes are out. What is free follows from them, as free cells always merge as far
as they can.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from cells.chain.chain_state import LEAVING, ChainState
from cells.layout.shape import Cell
from cells.layout.spec import CellsError, Spec, Top


class Binding(NamedTuple):
    """A cell that stands for a quota cell of a pool; pinned ones are not said.

    Attributes:
        chain: Its chain.
        pool: Whose it is; `LEAVING` if it is beyond its pool's quota.
        cell: The cell.
        slot: Its number among the bound cells of its zone and level.
    """

    chain: str
    pool: str
    cell: Cell
    slot: int


class CellHolder(NamedTuple):
    """A job, or a reservation, with its cells.

    Attributes:
        name: Its name.
        chain: The chain of its cells.
        widths: GPUs of each member.
        cells: In the order of the members.
        spare: It is a spare job.
        reserved: No job is in them.
    """

    name: str
    chain: str
    widths: tuple[int, ...]
    cells: tuple[Cell, ...]
    spare: bool = False
    reserved: bool = False


class RemovedNode(NamedTuple):
    """A node that was removed: its chain, its number there, and what it was called."""

    chain: str
    number: int
    name: str


@dataclass(frozen=True, slots=True)
class CellsSnapshot:
    """Cells at one moment.

    Attributes:
        spec: What a cells file would say now; no node is marked as bad. Nodes that are gone are
            called `gone_name`.
        lend_rests: As in `Cells`.
        pools: All pools that are known, in their order.
        zones: All that ever were: so the cells of one leave it before those of another.
        out: Nodes that are out, and why.
        gone: Nodes that were removed.
        bound: Bound cells, those of a zone and level in the order of their slots.
        tenants: All that have cells.
        rests: GPUs that rounding up leaves over, by chain, in the order in which they are lent.
    """

    spec: Spec
    lend_rests: bool
    pools: tuple[str, ...]
    zones: tuple[str, ...]
    out: tuple[tuple[str, str], ...]
    gone: tuple[RemovedNode, ...]
    bound: tuple[Binding, ...]
    tenants: tuple[CellHolder, ...]
    rests: tuple[tuple[str, int], ...]

    def quotas(self) -> dict[str, dict[str, dict[str, int]]]:
        """As `Ownership.set_quotas` takes them."""
        quotas: dict[str, dict[str, dict[str, int]]] = {pool: {} for pool in self.pools}
        for quota in self.spec.quotas:
            chains = quotas.setdefault(quota.pool, {})
            chains.setdefault(quota.chain, {})[quota.type] = quota.count
        return quotas


def gone_name(chain: str, number: int) -> str:
    """What a removed node is called in a specification: names may be used again."""
    return f"\0gone {chain} {number}"


def all_well(spec: Spec) -> Spec:
    """The same without bad nodes. O(nodes)."""
    return replace(spec, tops=tuple(map(well, spec.tops)))


def well(top: Top) -> Top:
    """The same without bad nodes."""
    if not any(node.bad for node in top.nodes):
        return top
    return replace(top, nodes=tuple(replace(node, bad=False) for node in top.nodes))


def renamed(spec: Spec, node: str, name: str) -> Spec:
    """The same with another name for a node, wherever it stands. O(nodes)."""
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


def bound_in(chain: str, ground: ChainState) -> Iterator[Binding]:
    """Bound cells of a chain but for pinned ones. O(n · log n)."""
    for root in sorted(ground.roots.values(), key=lambda root: (root.slot, root.cell())):
        if root.zone.pin is None:
            yield Binding(chain, root.zone.name, root.cell(), root.slot)


def checked(ground: ChainState, cell: Cell, job: str) -> Cell:
    """The cell, if the chain has such a one. Raises CellsError."""
    level, number = cell
    if level not in ground.shape.levels or not 0 <= number < cells_of(ground, level):
        raise CellsError(
            f"{job}: the chain has no cell {level}, {number}; restore another snapshot"
        )
    return cell


def cells_of(ground: ChainState, level: int) -> int:
    """Cells of a level."""
    return ground.tops * (ground.shape.size[ground.shape.top] // ground.shape.size[level])


def bind(ground: ChainState, bound: Binding) -> None:
    """Bind a cell again, as those of lower slots are. O(levels · log n). Raises CellsError."""
    zone = ground.leaving if bound.pool == LEAVING else ground.zones.get(bound.pool)
    if zone is None:
        raise CellsError(f"a cell is bound to {bound.pool!r}; no pool has this name")
    level, number = checked(ground, bound.cell, bound.pool)
    if zone is not ground.leaving and zone.bound[level] >= zone.quota[level]:
        raise CellsError(f"{bound.pool}: more cells are bound than it owns; restore another one")
    if ground.common.open.over(level, number) is None:
        raise CellsError(
            f"{bound.pool}: cell {level}, {number} is bound twice; restore another one"
        )
    if not zone.highest(level) <= bound.slot < cells_of(ground, level):
        raise CellsError(
            f"{bound.pool}: slot {bound.slot} is taken or too high; write them in order"
        )
    ground.bind(zone, bound.cell, bound.slot)


def give(ground: ChainState, job: str, cells: Sequence[Cell]) -> None:
    """Give a dedicated job its cells again, before any spare one. Raises CellsError."""
    for cell in cells:
        root = ground.root(checked(ground, cell, job))
        number, opened = ground.number(root, cell), root.zone.open
        if root is ground.wild or opened.over(cell.level, number) is None:
            level, place = cell
            raise CellsError(f"{job}: cell {level}, {place} is another's; restore another snapshot")
        opened.take(cell.level, number)
        ground.place(root, cell.level, number)


def lend(ground: ChainState, job: str, cells: Sequence[Cell]) -> None:
    """Give a spare job its cells again, once dedicated ones have theirs. Raises CellsError."""
    for cell in cells:
        checked(ground, cell, job)
        if cell.level > ground.shape.node or ground.loans.at(cell):
            raise CellsError(f"{job}: cell {cell.level}, {cell.number} is lent twice, or too large")
        for root, part in list(ground.open_in(cell)):
            root.zone.part()
            root.zone.vacant.take(part.level, ground.number(root, part))
            root.zone.changes += 1
        ground.loans.add(cell, job)


def leave_over(ground: ChainState, rest: int) -> None:
    """Let a GPU be one that rounding up leaves over. Raises CellsError."""
    cell = checked(ground, Cell(0, rest), "a rest")
    shape = ground.shape
    if not any(ground.given[k][shape.around(cell, k).number] for k in shape.levels):
        raise CellsError(f"GPU {rest} is said to be a rest, but is nobody's; restore another one")
    ground.rests[cell] = None
