"""Which GPUs are in use, by number: what the core only counts.

Without cells the engine gives jobs their numbers here; with cells the core names them. Either way
a job gets GPUs only once whoever had them is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sortedcontainers import SortedList

from daemon.setup import Node
from sia.model import Nodes


class Seats:
    """The GPUs of nodes, lowest numbers first, on the node with fewest free ones that will do."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        """All are free, and no node is out."""
        self._free: dict[str, SortedList[int]] = {n.name: SortedList(n.gpus) for n in nodes}
        self._order = {name: place for place, name in enumerate(self._free)}
        self._out: dict[str, None] = {}

    def out(self, node: str) -> None:
        """Give nobody GPUs of a node."""
        self._out[node] = None

    def back(self, node: str) -> None:
        """Give GPUs of a node again."""
        self._out.pop(node, None)

    def find(self, gpus: int) -> Nodes | None:
        """GPUs for a job, on one node if any has as many; None if there are too few. O(nodes)."""
        free = [
            (len(seats), self._order[name], name)
            for name, seats in self._free.items()
            if seats and name not in self._out
        ]
        fits = min((node for node in free if node[0] >= gpus), default=None)
        if fits is not None:
            return (self._some(fits[2], gpus),)
        if sum(node[0] for node in free) < gpus:
            return None
        found = []
        for many, _, name in sorted(free, key=lambda node: (-node[0], node[1])):
            found.append(self._some(name, min(many, gpus)))
            gpus -= many
            if gpus <= 0:
                break
        return tuple(found)

    def _some(self, node: str, gpus: int) -> tuple[str, tuple[int, ...]]:
        return node, tuple(self._free[node][:gpus])

    def are_free(self, nodes: Nodes) -> bool:
        """Whether all of these are."""
        return all(gpu in self._free[name] for name, gpus in nodes for gpu in gpus)

    def take(self, nodes: Nodes) -> None:
        """These are in use from now on."""
        for name, gpus in nodes:
            free = self._free[name]
            for gpu in gpus:
                free.remove(gpu)

    def free(self, nodes: Nodes) -> None:
        """These are not any more."""
        for name, gpus in nodes:
            self._free[name].update(gpus)

    def check(self, gpus: Mapping[str, tuple[int, ...]], used: Iterable[Nodes]) -> None:
        """Assert that these are in use, each once, and all others free. O(GPUs)."""
        left = {name: set(numbers) for name, numbers in gpus.items()}
        for nodes in used:
            for name, numbers in nodes:
                assert left[name] >= set(numbers), f"{name}: {numbers} are given twice"
                left[name] -= set(numbers)
        assert left == {name: set(free) for name, free in self._free.items()}, "GPUs in use"
