"""Without cells: how many GPUs that quotas count are on nodes that are out. Pure.

What may be lent comes from quotas, not from nodes. So the core is told what is out, and leaves as
many idle (`GpusOut`): else a guest would be on the GPUs that are left when their owner comes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from daemon.book import Book
from daemon.desk import Desk
from sia.events import GpusOut

OUT_LEFT = 3
"""From which `Setup.rails` on it is done."""


class Lot:
    """Pools and the nodes that their jobs may be on, which no other pool's may.

    What is out of one lot's nodes is not made up for by another's.
    """

    def __init__(self, pools: Iterable[str], nodes: Iterable[str]) -> None:
        """By names."""
        self.pools, self.nodes = set(pools), set(nodes)

    def short(self, book: Book, then: Mapping[str, bool]) -> int:
        """GPUs of its quotas that are out; of some nodes it is said whether. O(pools + nodes)."""
        out = inside = 0
        for name in self.nodes:
            node = book.nodes[name]
            gpus = len(node.gpus)
            if then.get(name, bool(node.reasons)):
                out += gpus
            else:
                inside += gpus
        owned = sum(book.pools[name].quota for name in self.pools)
        return min(out, max(0, owned - inside))


def lots_of(book: Book) -> list[Lot]:
    """All pools and nodes; one lot where there are no areas. O(areas² + nodes of areas)."""
    areas = book.setup.areas
    lots: list[Lot] = []
    for pool in book.pools:
        nodes = areas.get(pool, book.nodes)
        new = Lot([pool], (name for name in nodes if name in book.nodes))
        apart = []
        for lot in lots:
            if new.nodes.isdisjoint(lot.nodes):
                apart.append(lot)
            else:
                new.pools |= lot.pools
                new.nodes |= lot.nodes
        lots = [*apart, new]
    return lots


class Outages:
    """The engine's part that tells the core."""

    def __init__(self, desk: Desk) -> None:
        """Work at this desk."""
        self._desk = desk
        counts = desk.seats is not None and desk.book.setup.rails >= OUT_LEFT
        self._lots = lots_of(desk.book) if counts else []

    def look(self) -> None:
        """Where nodes or quotas have changed in the step, tell the core. O(pools + nodes) then."""
        desk = self._desk
        if desk.recount:
            desk.recount = False
            desk.events += self.changes(desk.now, {})

    def changes(self, now: float, then: Mapping[str, bool]) -> list[GpusOut]:
        """What the core is to be told, were some nodes out `then`, or not. O(pools + nodes)."""
        desk, found = self._desk, []
        short = [(lot, lot.short(desk.book, then)) for lot in self._lots]
        for group in desk.core.state.groups if short else ():
            names = {pool.name for pool in group.pools}
            gpus = sum(each for lot, each in short if not names.isdisjoint(lot.pools))
            if gpus != group.out:
                found.append(GpusOut(now, group.first, gpus))
        return found

    def check(self) -> None:
        """Assert that the core knows what is out. O(pools + nodes)."""
        assert self._desk.recount or not self.changes(0.0, {}), "GPUs that are out"
