"""Placement of jobs on nodes (Chronus, §3.4).

Consolidated jobs take 1, 2, 4 GPUs of a node or whole nodes. Local search places the other jobs
(Alg. 1): it tries all placements of the jobs that lose most speed on several nodes, and places the
other jobs on as few nodes as possible (quasi-consolidation).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from sia.policies.chronus.leases.sizes import NodeSizes
from sia.policies.chronus.params import SEARCH
from sia.state.nodes import fewest_nodes, quasi
from sia.state.speeds import Speeds

WIDE = 16
"""Number of GPUs from which on best-effort jobs are consolidated too (§3.4.2)."""

CLOSE = 1e-9
"""A smaller gain in reward counts as rounding."""


class PlacedJob(NamedTuple):
    """A job that needs GPUs."""

    job_id: str
    width: int
    model: str = ""


Placement = dict[int, int]
"""GPUs by index of the node."""

Placements = dict[str, Placement]
"""By job; jobs that do not fit are not in it."""


class Nodes(NamedTuple):
    """The nodes of a cluster: all GPUs of each, and those that are free."""

    gpus: tuple[int, ...]
    free: tuple[int, ...]

    def fewest(self, width: int) -> int:
        """Return the smallest number of nodes with `width` GPUs, if all are free. O(n · log n)."""
        return fewest_nodes(self.gpus, width)

    @property
    def sizes(self) -> NodeSizes:
        """The sizes to which widths are rounded up on these nodes."""
        return NodeSizes(sum(self.gpus), max(self.gpus))

    def less(self, placements: Iterable[Placement]) -> Nodes:
        """Return the nodes without the GPUs of these jobs."""
        free = [*self.free]
        for placement in placements:
            for node, gpus in placement.items():
                free[node] -= gpus
        return Nodes(self.gpus, tuple(free))


def consolidated(
    jobs: Sequence[PlacedJob], nodes: Nodes, *, round_up: bool = True
) -> tuple[Placements, Nodes]:
    """Place each job on the fewest nodes, or not at all. O(jobs · nodes).

    Larger sizes come first, then the order of `jobs`. On empty nodes every job fits if the sum of
    the rounded sizes does (Proposition 1). The placements have the jobs' own widths. The returned
    nodes have neither these GPUs nor those that rounding adds: only small best-effort jobs may use
    the latter.
    """
    sizes = nodes.sizes._replace(round_up=round_up)
    kept = [*nodes.free]  # minus the rounded sizes
    found = Placements()
    for job in sorted(jobs, key=lambda job: -sizes.rounded(job.width)):
        rounded = sizes.rounded(job.width)
        place = _whole(rounded, kept, nodes) if rounded >= sizes.node else _part(rounded, kept)
        left = job.width
        if 0 < len(place) <= nodes.fewest(job.width):
            found[job.job_id] = {}
            for node, gpus in place.items():
                own = min(left, gpus)
                kept[node] -= gpus if round_up else own
                left -= own
                if own:
                    found[job.job_id][node] = own
    return found, Nodes(nodes.gpus, tuple(kept))


def _part(gpus: int, free: Sequence[int]) -> Placement:
    """Return the node with the fewest free GPUs that has at least `gpus`."""
    node = min((n for n, has in enumerate(free) if has >= gpus), key=free.__getitem__, default=None)
    return {} if node is None else {node: gpus}


def _whole(gpus: int, free: Sequence[int], nodes: Nodes) -> Placement:
    """Return empty nodes, the largest first, with `gpus` GPUs in all; {} if there are too few."""
    found: Placement = {}
    left = gpus
    for node in sorted(range(len(free)), key=lambda node: -nodes.gpus[node]):
        if left > 0 and free[node] == nodes.gpus[node] > 0:
            found[node] = free[node]
            left -= free[node]
    return found if left <= 0 else {}


class LocalSearch:
    """Places the smaller best-effort jobs (Alg. 1)."""

    def __init__(self, nodes: Nodes, speeds: Speeds, search: int = SEARCH) -> None:
        """Search among at most `search` combined placements; with 0 all jobs are quasi-placed."""
        self._nodes, self._speeds, self._search = nodes, speeds, search
        self._fewest: dict[int, int] = {}

    def reward(self, job: PlacedJob, placement: Mapping[int, int]) -> float:
        """Return the allocation reward of a placement: width times speed (Eq. 7)."""
        return job.width * self.speed(job, len(placement))

    def speed(self, job: PlacedJob, nodes: int) -> float:
        """Return the speed of a job on this number of nodes."""
        fewest = self._fewest.get(job.width)
        if fewest is None:
            fewest = self._fewest[job.width] = self._nodes.fewest(job.width)
        return self._speeds.speed(job.model, job.width, nodes, fewest)

    def potential(self, job: PlacedJob) -> float:
        """Return the largest gain of a job by a better placement (Eq. 8).

        It compares all numbers of nodes, as if all GPUs were free.
        """
        rewards = self._rewards(job)
        return max(rewards) - min(rewards)

    def _rewards(self, job: PlacedJob) -> list[float]:
        fewest = self._nodes.fewest(job.width)
        most = max(fewest, min(job.width, len(self._nodes.gpus)))
        return [job.width * self.speed(job, count) for count in range(fewest, most + 1)]

    def ordered(self, jobs: Sequence[PlacedJob]) -> list[PlacedJob]:
        """Return the jobs by descending potential, then descending width, then in their order."""
        return sorted(jobs, key=lambda job: (-self.potential(job), -job.width))

    def place(self, jobs: Sequence[PlacedJob]) -> Placements:
        """Return the placement with the highest reward among those tried, the first of equals.

        All combinations of placements of the first K jobs are tried; K is as large as the limit
        `search` allows. Placements that differ only in nodes with equally many free GPUs count
        once.
        """
        ordered = self.ordered(jobs)
        free = self._nodes.free
        count, chosen = 1, 0
        for job in ordered:
            found = sum(1 for _ in _up_to(placements_of(job.width, free), self._search + 1))
            count *= max(1, found)  # one that fits nowhere is left out
            if count > self._search:
                break
            chosen += 1
        return _Search(self, ordered, chosen, self._search).best(free)

    def most(self, job: PlacedJob) -> float:
        """Return the highest reward that a job can have."""
        return max(self._rewards(job))


class _Search:
    """A depth-first search over the placements of the first jobs."""

    def __init__(
        self, owner: LocalSearch, jobs: Sequence[PlacedJob], chosen: int, limit: int
    ) -> None:
        self._owner, self._jobs, self._chosen, self._left = owner, jobs, chosen, max(1, limit)
        most = [owner.most(job) for job in jobs]
        self._rest = [sum(most[i:]) for i in range(len(jobs) + 1)]
        self._each = max((reward / job.width for reward, job in zip(most, jobs, strict=True)),
                         default=1.0)  # fmt: skip
        self._reward, self._found = -1.0, Placements()

    def best(self, free: Sequence[int]) -> Placements:
        self._descend(0, [*free], Placements(), 0.0)
        return self._found

    def _bound(self, number: int, free: Sequence[int]) -> float:
        return min(self._rest[number], sum(free) * self._each)

    def _descend(self, number: int, free: list[int], placed: Placements, reward: float) -> None:
        if self._left <= 0 or reward + self._bound(number, free) <= self._reward + CLOSE:
            return
        if number == self._chosen:
            self._left -= 1
            self._finish(free, placed, reward)
            return
        job = self._jobs[number]
        for placement in placements_of(job.width, tuple(free)):
            for node, gpus in placement.items():
                free[node] -= gpus
            gain = self._owner.reward(job, placement)
            self._descend(number + 1, free, {**placed, job.job_id: placement}, reward + gain)
            for node, gpus in placement.items():
                free[node] += gpus
        self._descend(number + 1, free, placed, reward)  # without this job

    def _finish(self, free: Sequence[int], placed: Placements, reward: float) -> None:
        left = [*free]
        rest = Placements()
        for job in self._jobs[self._chosen :]:
            placement = quasi(job.width, left)
            if placement:
                rest[job.job_id] = placement
                reward += self._owner.reward(job, placement)
                for node, gpus in placement.items():
                    left[node] -= gpus
        if reward > self._reward + CLOSE:
            self._reward, self._found = reward, {**placed, **rest}


def placements_of(width: int, free: Sequence[int]) -> Iterator[Placement]:
    """Yield the placements of a job, those on the fewest nodes first.

    Of placements that differ only in nodes with equally many free GPUs, only the first is yielded.
    """
    order = sorted((node for node, has in enumerate(free) if has), key=lambda node: free[node])
    most = min(width, len(order))
    for count in range(1, most + 1):
        yield from _on(width, count, order, 0, free, 0)


def _on(
    width: int, count: int, order: Sequence[int], at: int, free: Sequence[int], before: int
) -> Iterator[Placement]:
    """Yield placements of `width` GPUs on exactly `count` of the nodes `order[at:]`.

    Among nodes with equally many free GPUs, a later one gets no more GPUs than an earlier one, and
    none if an earlier one gets none; `before` is the number that the node before this one got.
    """
    if not count:
        if not width:
            yield {}
        return
    if width < count or len(order) - at < count:
        return
    if sum(sorted((free[node] for node in order[at:]), reverse=True)[:count]) < width:
        return
    node = order[at]
    alike = at > 0 and free[order[at - 1]] == free[node]
    most = min(width - count + 1, free[node], before if alike else free[node])
    for gpus in range(most, 0, -1):
        for rest in _on(width - gpus, count - 1, order, at + 1, free, gpus):
            yield {node: gpus, **rest}
    later = at + 1
    while later < len(order) and free[order[later]] == free[node]:
        later += 1  # a later node of the same kind would be the same placement
    yield from _on(width, count, order, later, free, 0)


def _up_to(placements: Iterator[Placement], count: int) -> Iterator[Placement]:
    for _, placement in zip(range(count), placements, strict=False):
        yield placement


def place_all(
    nodes: Nodes, speeds: Speeds, together: Sequence[Sequence[PlacedJob]],
    small: Sequence[PlacedJob], search: int = SEARCH,
) -> tuple[Placements, float]:  # fmt: skip
    """Place consolidated jobs, one list after the other, then the small ones; and the reward."""
    found, kept = Placements(), nodes
    for jobs in together:
        placed, kept = consolidated(jobs, kept)
        found |= placed
    local = LocalSearch(nodes.less(found.values()), speeds, search)
    found |= local.place(small)
    known = {job.job_id: job for jobs in (*together, small) for job in jobs}
    return found, sum(local.reward(known[name], place) for name, place in found.items())
