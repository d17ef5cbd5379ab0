"""Track which GPUs are in use, by node and index; the core only counts GPUs.

Without cells the engine assigns GPUs here; with cells the core does. A GPU is assigned to a job
only when its previous job has released it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sortedcontainers import SortedDict, SortedList

from daemon.model.book import Book, JobRecord
from daemon.model.job import JobPhase, JobSpec
from daemon.model.setup import Node
from sia.core.core import Core
from sia.model import Nodes
from sia.state.state import GroupState


class Placement:
    """Assign GPUs by node: best fit, lowest index first.

    Attributes:
        there: Number of GPUs of nodes in service.
        spare: Number of these that are free.
    """

    def __init__(self, nodes: Iterable[Node]) -> None:
        """Start with all GPUs free and no node out."""
        self._free: dict[str, SortedList[int]] = {n.name: SortedList(n.gpus) for n in nodes}
        self._gpus = {name: len(free) for name, free in self._free.items()}
        self._names = list(self._free)
        self._order = {name: place for place, name in enumerate(self._names)}
        self._out: dict[str, None] = {}
        self._with: SortedDict[int, SortedList[int]] = SortedDict()  # nodes by number of free GPUs
        self.there = self.spare = 0
        for name, gpus in self._gpus.items():
            self.there += gpus
            self._put(name)

    def out(self, node: str) -> None:
        """Stop assigning GPUs of a node. O(log nodes)."""
        if node not in self._out:
            self._pick(node)
            self._out[node] = None
            self.there -= self._gpus[node]

    def back(self, node: str) -> None:
        """Assign GPUs of a node again. O(log nodes)."""
        if node in self._out:
            del self._out[node]
            self._put(node)
            self.there += self._gpus[node]

    def _put(self, node: str) -> None:
        """Enter a node in the index by its free GPUs, unless it is out."""
        free = len(self._free[node])
        if free and node not in self._out:
            if free not in self._with:
                self._with[free] = SortedList()
            self._with[free].add(self._order[node])
            self.spare += free

    def _pick(self, node: str) -> None:
        """Remove a node from the index."""
        free = len(self._free[node])
        if free and node not in self._out:
            nodes = self._with[free]
            nodes.remove(self._order[node])
            if not nodes:
                del self._with[free]
            self.spare -= free

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes."""
        return self._names

    def fits_when_empty(self, gpus: int, nodes: int | None = None) -> bool:
        """Return whether a request would fit if all GPUs of nodes in service were free.

        O(nodes).
        """
        if nodes is None:
            return gpus <= self.there
        sizes = (size for name, size in self._gpus.items() if name not in self._out)
        return gpus % nodes == 0 and sum(size >= gpus // nodes for size in sizes) >= nodes

    def find(self, gpus: int, nodes: int | None = None) -> Nodes | None:
        """Find free GPUs, on one node if possible; None if there are too few.

        With `nodes`, find the same number of GPUs on each of that many nodes. O(log nodes), and
        O(nodes of the job) for several nodes.
        """
        if gpus > self.spare:
            return None
        if nodes is not None:
            return self._find_even(gpus, nodes)
        fits = next(self._with.irange(gpus), None)
        if fits is not None:
            return (self._take_first(self._with[fits][0], gpus),)
        found = []
        for many in reversed(self._with):
            for node in self._with[many]:
                found.append(self._take_first(node, min(many, gpus)))
                gpus -= many
                if gpus <= 0:
                    return tuple(found)
        raise AssertionError("fewer GPUs are free than `spare` says")

    def _find_even(self, gpus: int, nodes: int) -> Nodes | None:
        each, rest = divmod(gpus, nodes)
        if rest or not each:
            return None
        found: list[tuple[str, tuple[int, ...]]] = []
        for many in self._with.irange(each):
            for node in self._with[many]:
                found.append(self._take_first(node, each))
                if len(found) == nodes:
                    return tuple(found)
        return None

    def _take_first(self, node: int, gpus: int) -> tuple[str, tuple[int, ...]]:
        name = self._names[node]
        return name, tuple(self._free[name][:gpus])

    def find_on(self, wanted: Mapping[str, int]) -> Nodes | None:
        """Find this number of free GPUs on each of these nodes; None if one is out or has too few.

        O(their GPUs).
        """
        out, free = self._out, self._free
        if any(name in out or len(free[name]) < gpus for name, gpus in wanted.items()):
            return None
        return tuple((name, tuple(self._free[name][:gpus])) for name, gpus in wanted.items())

    def take(self, nodes: Nodes) -> None:
        """Mark GPUs as used. O(log nodes) each."""
        for name, gpus in nodes:
            self._pick(name)
            free = self._free[name]
            for gpu in gpus:
                free.remove(gpu)
            self._put(name)

    def free(self, nodes: Nodes) -> None:
        """Mark GPUs as free. O(log nodes) each."""
        for name, gpus in nodes:
            self._pick(name)
            self._free[name].update(gpus)
            self._put(name)

    def check(self, gpus: Mapping[str, tuple[int, ...]], used: Iterable[Nodes]) -> None:
        """Assert that exactly these GPUs are in use, each once. O(GPUs)."""
        left = {name: set(numbers) for name, numbers in gpus.items()}
        for nodes in used:
            for name, numbers in nodes:
                assert left[name] >= set(numbers), f"{name}: {numbers} are in use twice"
                left[name] -= set(numbers)
        assert left == {name: set(free) for name, free in self._free.items()}, "GPUs in use"
        inside = {name: len(free) for name, free in left.items() if name not in self._out}
        found = {self._names[n]: many for many, nodes in self._with.items() for n in nodes}
        assert found == {name: many for name, many in inside.items() if many}, "nodes by free GPUs"
        assert self.spare == sum(inside.values()), "GPUs that are free"
        assert self.there == sum(len(gpus[name]) for name in inside), "GPUs that are there"


class AreaPlacement:
    """Track free GPUs by area; areas with the same nodes are one area.

    An area is the set of nodes that a pool's jobs may use together, such as a partition. Areas may
    share nodes. Without areas all nodes are one area.
    """

    def __init__(self, nodes: Iterable[Node], areas: Mapping[str, Iterable[str]]) -> None:
        """Start with all GPUs free and no node out. Unknown names of nodes are ignored."""
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
        for known, part in ((tuple(there), self._all), *parts.items()):
            for node in known:
                if part not in self._with[node]:
                    self._with[node].append(part)
        self._size = {node.name: len(node.gpus) for node in nodes}

    @property
    def spare(self) -> int:
        """Number of free GPUs on nodes in service."""
        return self._all.spare

    def out(self, node: str) -> None:
        """Stop assigning GPUs of a node. O(its areas · log nodes)."""
        for part in self._with[node]:
            part.out(node)

    def back(self, node: str) -> None:
        """Assign GPUs of a node again. O(its areas · log nodes)."""
        for part in self._with[node]:
            part.back(node)

    def take(self, nodes: Nodes) -> None:
        """Mark GPUs as used. O(their areas · log nodes) each."""
        for node in nodes:
            for part in self._with[node[0]]:
                part.take((node,))

    def free(self, nodes: Nodes) -> None:
        """Mark GPUs as free. O(their areas · log nodes) each."""
        for node in nodes:
            for part in self._with[node[0]]:
                part.free((node,))

    def find(
        self, job: JobRecord, names: Iterable[str], blocked: Iterable[str] = ()
    ) -> tuple[str, Nodes] | None:
        """Find GPUs for a job, all in the first of these areas that has enough.

        Return the area and the GPUs; None if no area has enough. Nodes of `blocked` areas are not
        used. O(areas · log nodes), and O(nodes of the job) for several nodes.
        """
        gpus, many = _wanted(job)
        others = [self._of(name) for name in blocked]
        for name, part in self._in_turn(names):
            if not any(self._overlap(part, other) for other in others):
                nodes = part.find(gpus, many)
                if nodes is not None:
                    return name, nodes
        return None

    def find_on(self, wanted: Mapping[str, int]) -> Nodes | None:
        """Find GPUs of the nodes that the core has chosen; see `Placement.find_on`."""
        return self._all.find_on(wanted)

    def block_for(self, job: JobRecord, names: Iterable[str], blocked: set[str]) -> bool:
        """Block, for a job, the first of these areas that is large enough for it.

        Adds the area to `blocked`, and returns whether the area is the whole cluster.
        """
        for name, part in self._in_turn(names):
            if part.fits_when_empty(*_wanted(job)):
                blocked.add(name)
                return part is self._all
        return False

    def could_hold(self, spec: JobSpec, name: str) -> bool:
        """Return whether a job would fit in an area if all its nodes were in service and free.

        O(nodes).
        """
        sizes = [self._size[node] for node in self._of(name).nodes]
        if spec.nodes is None:
            return sum(sizes) >= spec.gpus
        each, rest = divmod(spec.gpus, spec.nodes)
        return not rest and sum(size >= each for size in sizes) >= spec.nodes

    def _in_turn(self, names: Iterable[str]) -> Iterator[tuple[str, Placement]]:
        """Yield each of these areas once."""
        if self._alone:
            yield "", self._all
            return
        seen: list[Placement] = []
        for name in names:
            part = self._of(name)
            if part not in seen:
                seen.append(part)
                yield name, part

    def _of(self, name: str) -> Placement:
        return self._area.get(name, self._all)

    @staticmethod
    def _overlap(one: Placement, other: Placement) -> bool:
        """Return whether two areas have nodes in common."""
        return one is other or not set(one.nodes).isdisjoint(other.nodes)

    def check(self, gpus: Mapping[str, tuple[int, ...]], used: Iterable[Nodes]) -> None:
        """Assert that exactly these GPUs are in use, each once. O(areas · GPUs)."""
        used = list(used)
        for part in self._parts:
            mine = set(part.nodes)
            inside = [tuple(node for node in nodes if node[0] in mine) for nodes in used]
            part.check({name: gpus[name] for name in gpus if name in mine}, inside)


def _wanted(job: JobRecord) -> tuple[int, int | None]:
    """Return the numbers of GPUs and of nodes of a job; a resized job needs no number of nodes."""
    return job.gpus, None if job.width else job.spec.nodes


class LeftGpus:
    """GPUs that jobs have been ordered to leave but still occupy, during the starts of one step.

    The core counts a job's GPUs as free when it decides to stop the job. Until the job has stopped,
    no other job may start on them.

    With cells, the GPUs of these jobs are known. Without cells only numbers are known: a job may
    start if its sharing group certainly has enough free GPUs. If not, the jobs after it wait, too,
    so that a wide job does not wait forever.
    """

    def __init__(self, book: Book, core: Core) -> None:
        """Count the GPUs. O(jobs that leave GPUs + jobs that wait for GPUs)."""
        self._cells = core.state.places is not None
        self._pools = core.state.pools
        self._busy: set[tuple[str, int]] = set()
        self._free = {group: group.idle for group in core.state.groups}
        self._tight: set[GroupState] = set()
        for job_id in book.leaving:
            record = book.jobs[job_id]
            if self._cells:
                self._busy.update((node, gpu) for node, gpus in record.nodes for gpu in gpus)
                continue
            group = self._group(record)
            self._tight.add(group)
            counted = record.gpus if record.core and record.phase is not JobPhase.STOPPING else 0
            self._free[group] -= max(0, record.taken - counted)
        if not self._cells:
            for job_id in book.seatless:
                record = book.jobs[job_id]
                self._free[self._group(record)] += record.gpus

    def _group(self, record: JobRecord) -> GroupState:
        return self._pools[record.spec.pool].group

    def free_for(self, record: JobRecord) -> bool:
        """Return whether a job's GPUs are free; if so, count them as used."""
        if self._cells:
            wanted = {(node, gpu) for node, gpus in record.nodes for gpu in gpus}
            return self._busy.isdisjoint(wanted)
        group = self._group(record)
        if group not in self._tight:
            return True
        if record.gpus > self._free[group]:
            self._free[group] = 0  # the jobs behind it wait as well
            return False
        self._free[group] -= record.gpus
        return True
