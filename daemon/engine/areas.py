"""Which GPUs are in use, where the nodes of a start must be of one part of the cluster.

An area is the nodes that a pool's jobs may be on, such as a partition. Areas may share nodes, some
or all. Without areas all nodes are one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from daemon.engine.placement import Placement
from daemon.model.job import JobSpec
from daemon.model.setup import Node
from sia.model import Nodes


class AreaPlacement:
    """Seats by area; areas with the same nodes are one."""

    def __init__(self, nodes: Iterable[Node], areas: Mapping[str, Iterable[str]]) -> None:
        """All are free, and no node is out. Names of nodes that are not there are left out."""
        nodes = list(nodes)
        there = {node.name: node for node in nodes}
        parts: dict[tuple[str, ...], Placement] = {}
        self._area: dict[str, Placement] = {}
        for name, members in areas.items():
            known = tuple(node for node in there if node in set(members))
            if known not in parts:
                parts[known] = Placement(there[node] for node in known)
            self._area[name] = parts[known]
        self._all = parts.get(tuple(there)) or Placement(nodes)
        self._alone = not areas
        self._parts = list(dict.fromkeys((self._all, *parts.values())))
        self._with: dict[str, list[Placement]] = {name: [] for name in there}
        for known, seats in ((tuple(there), self._all), *parts.items()):
            for node in known:
                if seats not in self._with[node]:
                    self._with[node].append(seats)
        self._size = {node.name: len(node.gpus) for node in nodes}

    @property
    def spare(self) -> int:
        """GPUs that are free, on nodes that are not out."""
        return self._all.spare

    def out(self, node: str) -> None:
        """Give nobody GPUs of a node. O(areas that have it · log nodes)."""
        for seats in self._with[node]:
            seats.out(node)

    def back(self, node: str) -> None:
        """Give GPUs of a node again. O(areas that have it · log nodes)."""
        for seats in self._with[node]:
            seats.back(node)

    def take(self, nodes: Nodes) -> None:
        """These are in use from now on. O(areas that have them · log nodes) each."""
        for node in nodes:
            for seats in self._with[node[0]]:
                seats.take((node,))

    def free(self, nodes: Nodes) -> None:
        """These are not any more. O(areas that have them · log nodes) each."""
        for node in nodes:
            for seats in self._with[node[0]]:
                seats.free((node,))

    def find(
        self, spec: JobSpec, names: Iterable[str], kept: Iterable[str] = ()
    ) -> tuple[str, Nodes] | None:
        """GPUs for a job, all in the first of these areas that has them, and whose it is.

        None if there are too few. Those that are `kept` are for others. O(areas · log nodes), and
        O(those it is on) where it is on several.
        """
        others = [self._of(name) for name in kept]
        for name, seats in self._in_turn(names):
            if not any(self._meet(seats, other) for other in others):
                nodes = seats.find(spec.gpus, spec.nodes)
                if nodes is not None:
                    return name, nodes
        return None

    def keep(self, spec: JobSpec, names: Iterable[str], kept: set[str]) -> bool:
        """Keep for a job what comes free in the first of these areas that is large enough for it.

        Returns whether that is all GPUs that there are.
        """
        for name, seats in self._in_turn(names):
            if seats.could(spec.gpus, spec.nodes):
                kept.add(name)
                return seats is self._all
        return False

    def holds(self, spec: JobSpec, name: str) -> bool:
        """Whether an area could ever hold a job, were all its nodes in and free. O(nodes)."""
        sizes = [self._size[node] for node in self._of(name).nodes]
        if spec.nodes is None:
            return sum(sizes) >= spec.gpus
        each, rest = divmod(spec.gpus, spec.nodes)
        return not rest and sum(size >= each for size in sizes) >= spec.nodes

    def _in_turn(self, names: Iterable[str]) -> Iterator[tuple[str, Placement]]:
        """Each of these areas once."""
        if self._alone:
            yield "", self._all
            return
        seen: list[Placement] = []
        for name in names:
            seats = self._of(name)
            if seats not in seen:
                seen.append(seats)
                yield name, seats

    def _of(self, name: str) -> Placement:
        return self._area.get(name, self._all)

    @staticmethod
    def _meet(one: Placement, other: Placement) -> bool:
        """Whether two have nodes in common."""
        return one is other or not set(one.nodes).isdisjoint(other.nodes)

    def check(self, gpus: Mapping[str, tuple[int, ...]], used: Iterable[Nodes]) -> None:
        """Assert that these are in use, each once, and all others free. O(areas · GPUs)."""
        used = list(used)
        for seats in self._parts:
            mine = set(seats.nodes)
            inside = [tuple(node for node in nodes if node[0] in mine) for nodes in used]
            seats.check({name: gpus[name] for name in gpus if name in mine}, inside)
