"""The engine's part for GPUs that quotas count and that are on nodes that are out, without cells.

What may be lent comes from quotas, not from nodes. So the core is told what is out, and leaves as
many idle (`GpusOut`): else a guest would be on the GPUs that are left when their owner comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from daemon.engine.step import StepContext, StepObserver
from daemon.model.book import Book
from sia.events import GpusOut


class OutageChange(NamedTuple):
    """Something that is to happen at a time: a node goes or comes back, or a quota is another."""

    time: float
    node: str = ""
    out: bool = False
    pool: str = ""
    quota: int = 0


class AreaGroup:
    """Nodes that are an area, or several with nodes in common, and the pools that have no others.

    Attributes:
        owned: GPUs of these pools: their quotas, and what runs beyond a quota that was lowered.
        inside: GPUs of nodes that are in.
        out: Those of nodes that are out.
    """

    def __init__(self, pools: Iterable[str], nodes: Iterable[str]) -> None:
        """By names; nothing is counted yet."""
        self.pools, self.nodes = frozenset(pools), frozenset(nodes)
        self.owned = self.inside = self.out = 0

    @property
    def short(self) -> int:
        """GPUs that are owned, and out."""
        return min(self.out, max(0, self.owned - self.inside))

    def turn(self, gpus: int, *, out: bool) -> None:
        """A node with so many GPUs goes, or comes back."""
        self.out += gpus if out else -gpus
        self.inside -= gpus if out else -gpus


class AreaSet:
    """Areas that are linked by nodes in common: what is out of them no others make up for.

    The whole may have enough where one of its areas has not: the worst of them counts.
    """

    def __init__(self, parts: Iterable[AreaGroup]) -> None:
        """The whole, and each area."""
        self.parts = tuple(parts)

    @property
    def short(self) -> int:
        """GPUs that are out. O(areas)."""
        return max(part.short for part in self.parts)


def lots_of(book: Book) -> list[AreaSet]:
    """All pools and nodes; one lot where there are no areas. O(areas² + nodes of areas)."""
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
    """What is out, by parts; kept up to date."""

    def __init__(self, book: Book) -> None:
        """Of the present. O(pools + nodes of areas)."""
        self.lots = lots_of(book)
        self._gpus = {name: len(node.gpus) for name, node in book.nodes.items()}
        self._of_node: dict[str, list[AreaGroup]] = {name: [] for name in book.nodes}
        self._of_pool: dict[str, list[AreaGroup]] = {name: [] for name in book.pools}
        self._lot_of: dict[str, AreaSet] = {}
        for lot in self.lots:
            for part in lot.parts:
                for name in part.nodes:
                    self._of_node[name].append(part)
                    part.inside += self._gpus[name]
                for name in part.pools:
                    self._of_pool[name].append(part)
                    self._lot_of[name] = lot
        self._out: set[str] = set()
        self._owned = dict.fromkeys(book.pools, 0)
        for name, node in book.nodes.items():
            self.turn(name, out=bool(node.reasons))

    def turn(self, node: str, *, out: bool) -> None:
        """A node is out, or in. O(areas that have it)."""
        if (node in self._out) is out:
            return
        self._out ^= {node}
        for part in self._of_node[node]:
            part.turn(self._gpus[node], out=out)

    def own(self, pool: str, gpus: int) -> None:
        """A pool has so many. O(areas that have its own)."""
        more = gpus - self._owned[pool]
        if more:
            self._owned[pool] = gpus
            for part in self._of_pool[pool]:
                part.owned += more

    def short(self, pools: Iterable[str]) -> int:
        """GPUs that are out of those that a sharing group uses. O(pools)."""
        return sum(lot.short for lot in dict.fromkeys(self._lot_of[name] for name in pools))


class Outages(StepObserver):
    """Tells the core what is out."""

    def __init__(self, context: StepContext) -> None:
        """Work at this context."""
        self._context = context
        self._count = OutageCount(context.book) if context.placement is not None else None
        self._over = False  # some pool runs more than its quota: looked at until it does not

    def before_pass(self) -> None:
        """Tell the core where it is other than it knows.

        Nothing where no node and no quota has changed; O(nodes that did) and O(pools) else.
        """
        context, count = self._context, self._count
        if count is None or not (context.changed_nodes or context.quotas_changed or self._over):
            return
        for node in context.changed_nodes:
            count.turn(node, out=bool(context.book.nodes[node].reasons))
        if context.quotas_changed or self._over:
            self._over = self._own(count)
        context.changed_nodes, context.quotas_changed = {}, False
        context.events += (
            GpusOut(context.now, group.first, gpus)
            for group, gpus in zip(context.core.state.groups, self._shorts(count), strict=True)
            if gpus != group.out
        )

    def ahead(self, edges: Iterable[OutageChange]) -> Iterator[GpusOut]:
        """What the core would be told of things to come, in order of time.

        O(pools + nodes of areas), and O(pools) for each. Quotas are as they are but for these.
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
        """Count quotas anew; whether some pool runs more than its own."""
        over = False
        pools = self._context.core.state.pools
        for name, record in self._context.book.pools.items():
            runs = pools[name].dedicated
            over |= runs > record.quota
            count.own(name, max(record.quota, runs))
        return over

    def _shorts(self, count: OutageCount) -> list[int]:
        """Of each sharing group."""
        if not any(lot.short for lot in count.lots):
            return [0] * len(self._context.core.state.groups)
        groups = self._context.core.state.groups
        return [count.short(pool.name for pool in group.pools) for group in groups]

    def check(self) -> None:
        """Assert that what is counted is so, and that the core knows it. O(pools + nodes)."""
        context, count = self._context, self._count
        if count is None or context.changed_nodes or context.quotas_changed or self._over:
            return
        anew = OutageCount(context.book)
        self._own(anew)
        assert self._shorts(anew) == self._shorts(count), "GPUs that are out"
        groups = context.core.state.groups
        assert self._shorts(count) == [group.out for group in groups], "GPUs that are known as out"
