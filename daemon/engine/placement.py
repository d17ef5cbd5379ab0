"""Which GPUs are in use, by number: what the core only counts.

Without cells the engine gives jobs their numbers here; with cells the core names them. Either way
a job gets GPUs only once whoever had them is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sortedcontainers import SortedDict, SortedList

from daemon.model.job import JobSpec
from daemon.model.setup import Node
from sia.model import Nodes


class Placement:
    """The GPUs of nodes, lowest numbers first, on the node with fewest free ones that will do.

    Attributes:
        there: GPUs of nodes that are not out.
        spare: Those of them that are free.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        """All are free, and no node is out."""
        self._free: dict[str, SortedList[int]] = {n.name: SortedList(n.gpus) for n in nodes}
        self._gpus = {name: len(free) for name, free in self._free.items()}
        self._names = list(self._free)
        self._order = {name: place for place, name in enumerate(self._names)}
        self._out: dict[str, None] = {}
        self._with: SortedDict[int, SortedList[int]] = SortedDict()  # nodes by free GPUs
        self.there = self.spare = 0
        for name, gpus in self._gpus.items():
            self.there += gpus
            self._put(name)

    def out(self, node: str) -> None:
        """Give nobody GPUs of a node. O(log nodes)."""
        if node not in self._out:
            self._pick(node)
            self._out[node] = None
            self.there -= self._gpus[node]

    def back(self, node: str) -> None:
        """Give GPUs of a node again. O(log nodes)."""
        if node in self._out:
            del self._out[node]
            self._put(node)
            self.there += self._gpus[node]

    def _put(self, node: str) -> None:
        """Have a node found by its free GPUs, if it is not out."""
        free = len(self._free[node])
        if free and node not in self._out:
            if free not in self._with:
                self._with[free] = SortedList()
            self._with[free].add(self._order[node])
            self.spare += free

    def _pick(self, node: str) -> None:
        """Have it not found."""
        free = len(self._free[node])
        if free and node not in self._out:
            nodes = self._with[free]
            nodes.remove(self._order[node])
            if not nodes:
                del self._with[free]
            self.spare -= free

    @property
    def nodes(self) -> list[str]:
        """All of them."""
        return self._names

    def could(self, gpus: int, nodes: int | None = None) -> bool:
        """Whether so many would be found, were all free that are not out. O(nodes)."""
        if nodes is None:
            return gpus <= self.there
        sizes = (size for name, size in self._gpus.items() if name not in self._out)
        return gpus % nodes == 0 and sum(size >= gpus // nodes for size in sizes) >= nodes

    def find(self, gpus: int, nodes: int | None = None) -> Nodes | None:
        """GPUs for a job, on one node if any has as many; None if there are too few.

        With `nodes`, on so many, the same number on each. O(log nodes), and O(those it is on)
        where it is on several.
        """
        if gpus > self.spare:
            return None
        if nodes is not None:
            return self._find_alike(gpus, nodes)
        fits = next(self._with.irange(gpus), None)
        if fits is not None:
            return (self._some(self._with[fits][0], gpus),)
        found = []
        for many in reversed(self._with):
            for node in self._with[many]:
                found.append(self._some(node, min(many, gpus)))
                gpus -= many
                if gpus <= 0:
                    return tuple(found)
        raise AssertionError("fewer GPUs are free than were counted")

    def _find_alike(self, gpus: int, nodes: int) -> Nodes | None:
        each, rest = divmod(gpus, nodes)
        if rest or not each:
            return None
        found: list[tuple[str, tuple[int, ...]]] = []
        for many in self._with.irange(each):
            for node in self._with[many]:
                found.append(self._some(node, each))
                if len(found) == nodes:
                    return tuple(found)
        return None

    def _some(self, node: int, gpus: int) -> tuple[str, tuple[int, ...]]:
        name = self._names[node]
        return name, tuple(self._free[name][:gpus])

    def take(self, nodes: Nodes) -> None:
        """These are in use from now on. O(log nodes) each."""
        for name, gpus in nodes:
            self._pick(name)
            free = self._free[name]
            for gpu in gpus:
                free.remove(gpu)
            self._put(name)

    def free(self, nodes: Nodes) -> None:
        """These are not any more. O(log nodes) each."""
        for name, gpus in nodes:
            self._pick(name)
            self._free[name].update(gpus)
            self._put(name)

    def check(self, gpus: Mapping[str, tuple[int, ...]], used: Iterable[Nodes]) -> None:
        """Assert that these are in use, each once, and all others free. O(GPUs)."""
        left = {name: set(numbers) for name, numbers in gpus.items()}
        for nodes in used:
            for name, numbers in nodes:
                assert left[name] >= set(numbers), f"{name}: {numbers} are given twice"
                left[name] -= set(numbers)
        assert left == {name: set(free) for name, free in self._free.items()}, "GPUs in use"
        inside = {name: len(free) for name, free in left.items() if name not in self._out}
        found = {self._names[n]: many for many, nodes in self._with.items() for n in nodes}
        assert found == {name: many for name, many in inside.items() if many}, "nodes by free GPUs"
        assert self.spare == sum(inside.values()), "GPUs that are free"
        assert self.there == sum(len(gpus[name]) for name in inside), "GPUs that are there"


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

    def block_for(self, spec: JobSpec, names: Iterable[str], kept: set[str]) -> bool:
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
