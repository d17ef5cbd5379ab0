"""Count GPUs of quotas that are on nodes out of service, for daemons without cells.

How much may be lent follows from quotas, not from nodes. So the core is told how many GPUs are out
(`GpusOut`) and keeps the same number idle. Otherwise guests could run on the remaining GPUs when
the owner needs them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from daemon.engine.step import StepContext, StepObserver
from daemon.model.book import Book
from sia.events import GpusOut


class OutageChange(NamedTuple):
    """A planned change at a time: a node goes out or comes back, or a quota changes."""

    time: float
    node: str = ""
    out: bool = False
    pool: str = ""
    quota: int = 0


class AreaGroup:
    """Nodes of one or several areas, and the pools that can use no other nodes.

    Attributes:
        owned: GPUs of these pools: their quotas, or their running jobs after a quota was lowered.
        inside: GPUs of nodes that are in.
        out: GPUs of nodes that are out.
    """

    def __init__(self, pools: Iterable[str], nodes: Iterable[str]) -> None:
        """Create it from names, with all counts 0."""
        self.pools, self.nodes = frozenset(pools), frozenset(nodes)
        self.owned = self.inside = self.out = 0

    @property
    def short(self) -> int:
        """Number of GPUs that the pools own but that are out."""
        return min(self.out, max(0, self.owned - self.inside))

    def turn(self, gpus: int, *, out: bool) -> None:
        """Count a node that goes out or comes back."""
        self.out += gpus if out else -gpus
        self.inside -= gpus if out else -gpus


class AreaSet:
    """Areas that are connected by common nodes, directly or indirectly.

    GPUs of other areas cannot replace GPUs that are out here. One area may lack GPUs although all
    areas together have enough, so the largest shortage counts.
    """

    def __init__(self, parts: Iterable[AreaGroup]) -> None:
        """Create it from the whole and each of its areas."""
        self.parts = tuple(parts)

    @property
    def short(self) -> int:
        """Number of GPUs that are out: the largest shortage of a part. O(areas)."""
        return max(part.short for part in self.parts)


def area_sets_of(book: Book) -> list[AreaSet]:
    """Group all pools and nodes; one set if there are no areas. O(areas² + nodes of areas)."""
    areas = book.setup.areas
    if not areas:
        return [AreaSet([AreaGroup(book.pools, book.nodes)])]
    pools_of: dict[frozenset[str], list[str]] = {}
    everywhere = frozenset(book.nodes)
    for pool in book.pools:
        nodes = everywhere.intersection(areas[pool]) if pool in areas else everywhere
        pools_of.setdefault(nodes, []).append(pool)
    linked: list[list[frozenset[str]]] = []
    for area in pools_of:
        near = [lot for lot in linked if any(not area.isdisjoint(other) for other in lot)]
        merged = [area, *(other for lot in near for other in lot)]
        linked = [*(lot for lot in linked if lot not in near), merged]
    lots = []
    for lot in linked:
        whole = frozenset[str]().union(*lot)
        within = {nodes: [a for a in lot if a <= nodes] for nodes in dict.fromkeys([whole, *lot])}
        lots.append(
            AreaSet(AreaGroup((p for a in those for p in pools_of[a]), nodes)
                for nodes, those in within.items())
        )  # fmt: skip
    return lots


class OutageCount:
    """Counts GPUs that are out, by area."""

    def __init__(self, book: Book) -> None:
        """Count the present state. O(pools + nodes of areas)."""
        self.sets = area_sets_of(book)
        self._gpus = {name: len(node.gpus) for name, node in book.nodes.items()}
        self._of_node: dict[str, list[AreaGroup]] = {name: [] for name in book.nodes}
        self._of_pool: dict[str, list[AreaGroup]] = {name: [] for name in book.pools}
        self._set_of: dict[str, AreaSet] = {}
        for lot in self.sets:
            for part in lot.parts:
                for name in part.nodes:
                    self._of_node[name].append(part)
                    part.inside += self._gpus[name]
                for name in part.pools:
                    self._of_pool[name].append(part)
                    self._set_of[name] = lot
        self._out: set[str] = set()
        self._owned = dict.fromkeys(book.pools, 0)
        for name, node in book.nodes.items():
            self.turn(name, out=bool(node.reasons))

    def turn(self, node: str, *, out: bool) -> None:
        """Count a node as out or in. O(its areas)."""
        if (node in self._out) is out:
            return
        self._out ^= {node}
        for part in self._of_node[node]:
            part.turn(self._gpus[node], out=out)

    def own(self, pool: str, gpus: int) -> None:
        """Set the number of GPUs that a pool owns. O(its areas)."""
        more = gpus - self._owned[pool]
        if more:
            self._owned[pool] = gpus
            for part in self._of_pool[pool]:
                part.owned += more

    def short(self, pools: Iterable[str]) -> int:
        """Return how many GPUs of these pools, which form a sharing group, are out. O(pools)."""
        return sum(lot.short for lot in dict.fromkeys(self._set_of[name] for name in pools))


class Outages(StepObserver):
    """Tells the core how many GPUs of each sharing group are out."""

    def __init__(self, context: StepContext) -> None:
        """Work on this context."""
        self._context = context
        self._count = OutageCount(context.book) if context.placement is not None else None
        self._overcommitted = False  # whether a pool uses more GPUs than its quota

    def before_pass(self) -> None:
        """Tell the core where the number has changed.

        O(1) if no node and no quota has changed; else O(changed nodes + pools).
        """
        context, count = self._context, self._count
        if count is None or not (
            context.changed_nodes or context.quotas_changed or self._overcommitted
        ):
            return
        for node in context.changed_nodes:
            count.turn(node, out=bool(context.book.nodes[node].reasons))
        if context.quotas_changed or self._overcommitted:
            self._overcommitted = self._own(count)
        context.changed_nodes, context.quotas_changed = {}, False
        context.events += (
            GpusOut(context.now, group.first, gpus)
            for group, gpus in zip(context.core.state.groups, self._shorts(count), strict=True)
            if gpus != group.out
        )

    def ahead(self, edges: Iterable[OutageChange]) -> Iterator[GpusOut]:
        """Yield the events that planned changes will cause, in order of time.

        Other quotas stay as they are. O(pools + nodes of areas), and O(pools) for each change.
        """
        if self._count is None:
            return
        count, groups = OutageCount(self._context.book), self._context.core.state.groups
        self._own(count)
        known = [group.out for group in groups]
        for edge in edges:
            if edge.node:
                count.turn(edge.node, out=edge.out)
            else:
                count.own(edge.pool, edge.quota)
            shorts = self._shorts(count)
            for i, group in enumerate(groups):
                if shorts[i] != known[i]:
                    yield GpusOut(edge.time, group.first, shorts[i])
            known = shorts

    def _own(self, count: OutageCount) -> bool:
        """Count quotas again; return True if a pool uses more GPUs than its quota."""
        over = False
        pools = self._context.core.state.pools
        for name, record in self._context.book.pools.items():
            runs = pools[name].dedicated
            over |= runs > record.quota
            count.own(name, max(record.quota, runs))
        return over

    def _shorts(self, count: OutageCount) -> list[int]:
        """Return the number of GPUs that are out, for each sharing group."""
        if not any(lot.short for lot in count.sets):
            return [0] * len(self._context.core.state.groups)
        groups = self._context.core.state.groups
        return [count.short(pool.name for pool in group.pools) for group in groups]

    def check(self) -> None:
        """Assert that the counts are right and that the core has them. O(pools + nodes)."""
        context, count = self._context, self._count
        if count is None or context.changed_nodes or context.quotas_changed or self._overcommitted:
            return
        anew = OutageCount(context.book)
        self._own(anew)
        assert self._shorts(anew) == self._shorts(count), "GPUs that are out"
        groups = context.core.state.groups
        assert self._shorts(count) == [group.out for group in groups], (
            "GPUs that the core counts as out"
        )
