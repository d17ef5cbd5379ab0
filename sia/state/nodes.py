"""The nodes of a cluster whose nodes differ: the GPUs of each job, and its speed on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sia.model import GpuNode, Job, Nodes
from sia.state.speeds import SpeedRow, Speeds
from sia.state.strl import ALL, asks_of, durations, wanted_of

SAME = "same:"
"""Prefix of a preference for nodes with the same value of an attribute: `same:rack`."""

NodeCounts = tuple[tuple[str, int], ...]
"""(node, GPUs), each node once."""


class JobPlace(NamedTuple):
    """A set of nodes on which a job may run."""

    nodes: frozenset[str]
    slowdown: float
    """Factor on its run time there."""
    among: str = ""
    """The set in the job's own STRL, if it has any."""


class NodeTable:
    """Free and used GPUs of each node.

    Attributes:
        nodes: The nodes by name, in the order given.
        attributes: All words that nodes have, sorted.
        speeds: Speeds of models by number of nodes.
        out: The nodes that take no jobs.
    """

    def __init__(self, nodes: Iterable[GpuNode], speeds: Iterable[SpeedRow] = ()) -> None:
        """Start with all usable GPUs free. Raises ValueError for a name that is given twice."""
        given = list(nodes)
        self.nodes: dict[str, GpuNode] = {node.name: node for node in given}
        if len(self.nodes) < len(given):
            raise ValueError("two nodes have the same name")
        self.attributes = sorted({word for node in given for word in node.attributes})
        self.speeds = Speeds(speeds)
        self.out: dict[str, None] = {}
        self._free: dict[str, list[int]] = {node.name: [*range(node.usable)] for node in given}
        self._fewest: dict[int, int] = {}
        self._sizes = [node.gpus for node in given]
        self._of: dict[str, Nodes] = {}
        self._preferred: dict[str, tuple[frozenset[str], ...]] = {}

    @property
    def gpus(self) -> int:
        """The GPUs of all nodes that can be used."""
        return sum(node.usable for node in self.nodes.values())

    def free(self, node: str) -> int:
        """Return the number of free GPUs of a node; none if it is out."""
        return 0 if node in self.out else len(self._free[node])

    def take_out(self, node: str) -> None:
        """Start no more jobs on a node; its jobs continue. Raises ValueError if unknown."""
        if node not in self.nodes:
            raise ValueError(f"no node {node!r}")
        self.out[node] = None

    def bring_back(self, node: str) -> None:
        """Allow starts on a node again, if it was out."""
        self.out.pop(node, None)

    def of(self, job_id: str) -> Nodes:
        """Return the GPUs of a running job; empty if it has none."""
        return self._of.get(job_id, ())

    def held(self, job_id: str) -> dict[str, int]:
        """Return the number of GPUs of a running job on each node."""
        return {node: len(gpus) for node, gpus in self.of(job_id)}

    def frees(self, job_id: str) -> dict[str, int]:
        """Return the number of GPUs of each node that become usable if a job stops."""
        return {node: len(gpus) for node, gpus in self.of(job_id) if node not in self.out}

    def preferred(self, prefers: str) -> tuple[frozenset[str], ...]:
        """Return the sets of nodes within any of which a job runs at full speed.

        A job without a preference has one set of all nodes. If no node has the attribute, there is
        no set. Names in parentheses are a set of a job's STRL. O(1) amortised, or O(names).
        """
        found = self._preferred.get(prefers)
        if found is None:
            found = tuple(self._sets(prefers))
            # Unknown words and lists of nodes are not cached: their number is unlimited.
            if found and not prefers.startswith("("):
                self._preferred[prefers] = found
        return found

    def _sets(self, prefers: str) -> Iterable[frozenset[str]]:
        if not prefers:
            yield frozenset(self.nodes)
        elif prefers.startswith("("):
            names = prefers[1:-1].split()
            if all(name in self.nodes for name in names):
                yield frozenset(names)
        elif prefers.startswith(SAME):
            values: dict[str, list[str]] = {}
            for node in self.nodes.values():
                value = node.value(prefers.removeprefix(SAME))
                if value is not None:
                    values.setdefault(value, []).append(node.name)
            yield from map(frozenset, values.values())
        elif prefers in self.attributes:
            yield frozenset(n.name for n in self.nodes.values() if prefers in n.attributes)

    def places(self, job: Job) -> list[JobPlace]:
        """Return the sets of nodes within any of which a job may run, the preferred ones first.

        Of a job that brings STRL these are the sets on which some start is worth something, the
        fastest first, and of equally fast ones in the order of the text. Of a job that needs one
        node they are single nodes that are large enough.
        """
        found = self._places(job)
        if not job.one_node:
            return found
        single: dict[tuple[str, str], JobPlace] = {}
        for place in found:
            for name, node in self.nodes.items():
                if name in place.nodes and node.usable >= job.width:
                    alone = JobPlace(frozenset([name]), place.slowdown, place.among)
                    single.setdefault((name, place.among), alone)
        return [*single.values()]

    def _places(self, job: Job) -> list[JobPlace]:
        if job.strl:
            long = durations(wanted_of(asks_of(job.strl)))
            least = min(long.values(), default=1.0)
            return [
                JobPlace(nodes, seconds / least, among)
                for among, seconds in sorted(long.items(), key=lambda each: each[1])
                for nodes in self.preferred("" if among == ALL else among)
            ]
        found = [JobPlace(nodes, 1.0) for nodes in self.preferred(job.prefers)]
        if job.prefers and job.slowdown is not None:
            found.append(JobPlace(frozenset(self.nodes), job.slowdown))
        return found

    def slowdown(self, job: Job, names: Iterable[str]) -> float | None:
        """Return the factor on a job's run time on these nodes; None if it cannot run there."""
        there = frozenset(names)
        spread = 1.0
        if job.model:
            spread = self.speeds.speed(job.model, job.width, len(there), self.fewest(job.width))
        if not job.prefers and not job.strl and not job.one_node:
            return 1.0 / spread
        slow = min(
            (each.slowdown for each in self.places(job) if there <= each.nodes), default=None
        )
        return None if slow is None else slow / spread

    def fewest(self, width: int) -> int:
        """Return the smallest number of nodes with `width` GPUs if all are free. O(1) amortised."""
        found = self._fewest.get(width)
        if found is None:
            found = self._fewest[width] = fewest_nodes(self._sizes, width)
        return found

    def room(self, job: Job) -> int:
        """Return the GPUs of the widest place on which a job can run at all."""
        anywhere = job.slowdown is not None or not (job.prefers or job.strl)
        if anywhere and not job.one_node:
            return self.gpus
        sets = (place.nodes for place in self.places(job))
        return max((sum(self.nodes[name].usable for name in each) for each in sets), default=0)

    def why_not(self, job: Job, width: int, wanted: NodeCounts) -> str:
        """Return in one line why a job cannot start on these GPUs, or an empty string."""
        counts = dict(wanted)
        if len(counts) < len(wanted) or sum(counts.values()) != width:
            return f"needs {width} GPUs of named nodes, got {wanted}"
        for node, gpus in wanted:
            if node not in self.nodes or not 0 < gpus <= self.nodes[node].gpus:
                return f"node {node} has no {gpus} GPUs"
        for node, gpus in wanted:
            if gpus > self.free(node):
                return f"node {node} has {self.free(node)} free GPUs, not {gpus}"
        return ""

    def closest(self, job: Job, width: int) -> NodeCounts:
        """Return free GPUs for a job, on as few nodes as possible; empty if there are too few.

        They are on nodes that it prefers, if these suffice, and never where it cannot run.
        O(nodes of its places).
        """
        for place in self.places(job):
            there = [name for name in self.nodes if name in place.nodes]
            found = quasi(width, [self.free(name) for name in there])
            if found:
                return tuple((there[n], gpus) for n, gpus in found.items())
        return ()

    def take(self, job_id: str, wanted: NodeCounts) -> Nodes:
        """Give a job the wanted number of GPUs of each node, those with the lowest indices."""
        taken = []
        for node, gpus in wanted:
            free = self._free[node]
            taken.append((node, tuple(free[:gpus])))
            del free[:gpus]
        self._of[job_id] = found = tuple(taken)
        return found

    def give_back(self, job_id: str) -> None:
        """Free the GPUs of a job."""
        for node, gpus in self._of.pop(job_id, ()):
            self._free[node] = sorted([*self._free[node], *gpus])

    def restore(self, job_id: str, nodes: Nodes) -> None:
        """Give a job exactly these GPUs. Raises ValueError if one of them is not free."""
        for node, gpus in nodes:
            free = self._free.get(node, [])
            if not set(gpus) <= set(free) or len(set(gpus)) < len(gpus):
                raise ValueError(f"job {job_id}: GPUs {gpus} of node {node} are not free")
            self._free[node] = [gpu for gpu in free if gpu not in gpus]
        self._of[job_id] = nodes

    def check(self, running: Mapping[str, int]) -> None:
        """Assert that each running job has its width in GPUs, and each GPU at most one job."""
        assert self._of.keys() == running.keys()
        for job_id, nodes in self._of.items():
            assert sum(len(gpus) for _, gpus in nodes) == running[job_id], job_id
        used = [(node, gpu) for nodes in self._of.values() for node, gpus in nodes for gpu in gpus]
        free = [(node, gpu) for node, gpus in self._free.items() for gpu in gpus]
        there = [(node.name, gpu) for node in self.nodes.values() for gpu in range(node.usable)]
        assert sorted(used + free) == sorted(there)


def fewest_nodes(sizes: Iterable[int], width: int) -> int:
    """Return the smallest number of nodes of these sizes with `width` GPUs. O(n · log n)."""
    left, count = width, 0
    for gpus in sorted(sizes, reverse=True):
        if left <= 0:
            break
        left -= gpus
        count += 1
    return max(1, count)


def quasi(width: int, free: Sequence[int]) -> dict[int, int]:
    """Return a placement on few nodes, as GPUs by node index; empty if too few GPUs are free.

    The job goes to the node with the fewest free GPUs among those that can hold it. If there is
    none, the node with the most free GPUs takes as many as it has, and so on with the remaining
    GPUs.
    """
    if sum(free) < width:
        return {}
    left = [*free]
    found: dict[int, int] = {}
    while width:
        node = min((n for n, has in enumerate(left) if has >= width), key=left.__getitem__,
                   default=-1)  # fmt: skip
        if node < 0:
            node = max(range(len(left)), key=left.__getitem__)
        taken = min(width, left[node])
        found[node] = taken
        left[node] -= taken
        width -= taken
    return found
