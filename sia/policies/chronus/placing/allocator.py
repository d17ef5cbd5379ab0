"""Placement of the jobs of a cycle, and of trials, on known nodes (Chronus, §3.4).

The allocator reads from the table of nodes which GPUs jobs hold. It stores only the GPUs of the
profiler.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sia.contract.views import JobStateView
from sia.policies.chronus.leases.sizes import NodeSizes
from sia.policies.chronus.placing.moves import StayingJob, fewest_moves
from sia.policies.chronus.placing.placement import (
    LocalSearch,
    Nodes,
    PlacedJob,
    Placement,
    Placements,
    consolidated,
)
from sia.policies.chronus.profiler import RunningTrial
from sia.state.nodes import NodeCounts, NodeTable, quasi

Reserved = dict[str, int]
"""GPUs of the profiler by node."""


class Allocator:
    """Places the jobs of a group on its nodes.

    Attributes:
        reserved: GPUs of the profiler by node.
        node: GPUs of the largest node.
    """

    def __init__(self, table: NodeTable, *, round_up: bool, search: int) -> None:
        """Start without a profiler."""
        self._table, self._round_up, self._search = table, round_up, search
        self.reserved: Reserved = {}
        self._names = [*table.nodes]
        self._gpus = tuple(node.gpus for node in table.nodes.values())
        self._usable = tuple(node.usable for node in table.nodes.values())
        self._at = {name: n for n, name in enumerate(self._names)}
        self.node = max(self._gpus)
        self._rounding = NodeSizes(sum(self._gpus), self.node, round_up)

    def free(
        self, stuck: Iterable[JobStateView], reserved: Reserved | None = None
    ) -> tuple[int, ...]:
        """Return the GPUs of each node that are neither the profiler's nor of these jobs.

        Nodes that are out have none: jobs stay on them, but no job starts there.
        """
        left = [*self._usable]
        for name in self._table.out:
            left[self._at[name]] = 0
        for name, gpus in (self.reserved if reserved is None else reserved).items():
            left[self._at[name]] -= gpus
        for job in stuck:
            for name, gpus in self._table.held(job.job.id).items():
                left[self._at[name]] -= gpus
        return tuple(max(0, gpus) for gpus in left)

    def less(self, free: Sequence[int], *taken: NodeCounts) -> tuple[int, ...]:
        """Return the free GPUs of each node without those in `taken`."""
        left = [*free]
        for nodes in taken:
            for name, gpus in nodes:
                left[self._at[name]] -= gpus
        return tuple(left)

    # The profiler

    def reserve(
        self, capacity: int, trials: Sequence[RunningTrial], firm: Iterable[JobStateView]
    ) -> Reserved | None:
        """Return GPUs for a profiler of this capacity; None if firm jobs hold too many.

        The result includes the GPUs of running trials and uses as few nodes as possible. New nodes
        are those without firm jobs, the last ones first. On nodes that are out it keeps only the
        GPUs of trials.
        """
        used, out = _used(trials), self._table.out
        found = {n: used.get(n, 0) if n in out else gpus for n, gpus in self.reserved.items()}
        found = {n: gpus for n, gpus in found.items() if gpus}
        more = capacity - sum(found.values())
        for name in sorted(found, key=lambda n: (used.get(n, 0), self._at[n])) if more < 0 else ():
            less = min(-more, found[name] - used.get(name, 0))
            found[name] -= less
            more += less
        left = self.free(firm, {}) if more > 0 else ()
        order = [*found, *(name for name in reversed(self._names) if name not in found)]
        for name in sorted(order, key=lambda n: self._is_touched(n, left)) if more > 0 else ():
            gpus = min(more, max(0, left[self._at[name]] - found.get(name, 0)))
            if gpus:
                found[name] = found.get(name, 0) + gpus
                more -= gpus
        return {n: gpus for n, gpus in found.items() if gpus} if more <= 0 else None

    @property
    def trying(self) -> int:
        """The GPUs of the profiler on nodes that take jobs."""
        return sum(gpus for name, gpus in self.reserved.items() if name not in self._table.out)

    def _is_touched(self, name: str, left: Sequence[int]) -> bool:
        return left[self._at[name]] < self._table.nodes[name].gpus

    def trial(self, gpus: int, nodes: int, trials: Sequence[RunningTrial]) -> NodeCounts | None:
        """Return GPUs of the profiler for a trial on `nodes` nodes; None if it must wait.

        `trials` run or begin now. If the profiler could never have such nodes, the trial may use
        any of its GPUs.
        """
        used = _used(trials)
        unseen = _used(t for t in trials if not (t.first and self._table.of(t.job_id)))
        there = {
            name: min(size - used.get(name, 0), self._table.free(name) - unseen.get(name, 0))
            for name, size in self.reserved.items()
        }
        each = -(-gpus // nodes)
        found = _alike(there, each, nodes)
        if found is None and _alike(self.reserved, each, nodes) is None:
            names = [*there]
            spread = quasi(gpus, [max(0, there[name]) for name in names])
            return tuple((names[n], count) for n, count in spread.items()) or None
        return found

    # Jobs

    def fits(self, together: Iterable[JobStateView], free: Sequence[int]) -> bool:
        """Return whether all these jobs fit if each of them may move."""
        sizes = self._rounding._replace(free=tuple(free), gpus=sum(free))
        uses = [sizes.uses(job.width) for job in together]
        sums = map(sum, zip(*uses, strict=True)) if uses else ()
        return all(need <= have for need, have in zip(sums, sizes.room, strict=False))

    def place(
        self,
        together: Sequence[JobStateView],
        small: Sequence[JobStateView],
        stuck: Sequence[JobStateView],
    ) -> dict[str, NodeCounts]:
        """Return the GPUs of each job of a cycle; jobs that do not fit are missing.

        As few jobs of `together` as possible move; other jobs move whenever this helps them. Small
        running jobs stay if their GPUs are free, and the local search places the other small jobs.
        """
        free = self.free(stuck)
        found = self._together(together, free)
        own = [*free]
        for placement in found.values():
            _take(own, placement)
        movable = list[JobStateView]()
        for job in small:
            held = self._held(job)
            if held and self._may_stay(held, own):
                found[job.job.id] = held
                _take(own, held)
            else:
                movable.append(job)
        search = LocalSearch(Nodes(self._gpus, tuple(own)), self._table.speeds, self._search)
        found |= search.place([_placed(job) for job in movable])
        return {job_id: self._named(placement) for job_id, placement in found.items()}

    def _together(self, jobs: Sequence[JobStateView], free: Sequence[int]) -> Placements:
        """Place the rounded jobs."""
        found, left = Placements(), [*free]
        staying: dict[int, list[StayingJob]] = {}
        starting: list[JobStateView] = []
        for job in jobs:
            held = self._held(job)
            kept = self._kept(job, held)
            if not kept or not self._may_stay(kept, left):
                starting.append(job)
                continue
            found[job.job.id] = held
            _take(left, kept)
            rounded = self._rounding.rounded(job.width)
            if rounded < self.node and not any(self._is_out(n) for n in held):
                staying.setdefault(next(iter(kept)), []).append(StayingJob(job.job.id, rounded))
        if self._round_up and starting:
            starting += self._moving(jobs, starting, staying, left, found)
        placed, _ = consolidated(
            [_placed(job) for job in starting],
            Nodes(self._gpus, tuple(left)),
            round_up=self._round_up,
        )
        return found | placed

    def _moving(
        self,
        jobs: Sequence[JobStateView],
        starting: Sequence[JobStateView],
        staying: Mapping[int, Sequence[StayingJob]],
        left: list[int],
        found: Placements,
    ) -> list[JobStateView]:
        """Remove the jobs that must move from `found`, add their GPUs to `left`; return them."""
        wanted = [self._rounding.rounded(job.width) for job in starting]
        moved = fewest_moves(self._rounding, left, staying, wanted)
        known = {job.job.id: job for job in jobs}
        for job_id in moved or ():
            job = known[job_id]
            for n, gpus in self._kept(job, found.pop(job_id)).items():
                left[n] += gpus
        return [known[job_id] for job_id in moved or ()]

    def between(
        self, job: JobStateView, trials: Sequence[RunningTrial], *, together: bool
    ) -> NodeCounts:
        """Return idle GPUs for a job that starts between cycles, when no job moves; () if none."""
        used = _used(t for t in trials if t.first)
        idle = []
        for name in self._names:
            kept = self.reserved.get(name, 0) - used.get(name, 0)
            idle.append(max(0, self._table.free(name) - kept))
        nodes, placed = Nodes(self._gpus, tuple(idle)), _placed(job)
        if together:
            found, _ = consolidated([placed], nodes, round_up=self._round_up)
        else:
            found = LocalSearch(nodes, self._table.speeds, self._search).place([placed])
        return self._named(found.get(job.job.id, {}))

    def is_where(self, job: JobStateView, places: Mapping[str, NodeCounts]) -> bool:
        """Return whether a running job already has its GPUs in `places`."""
        return dict(places.get(job.job.id, ())) == self._table.held(job.job.id)

    def _may_stay(self, held: Placement, left: Sequence[int]) -> bool:
        """Return whether a job can stay where it runs; on nodes that are out it always can."""
        return all(left[n] >= gpus or self._is_out(n) for n, gpus in held.items())

    def _is_out(self, n: int) -> bool:
        return self._names[n] in self._table.out

    def _held(self, job: JobStateView) -> Placement:
        return {self._at[name]: gpus for name, gpus in self._table.held(job.job.id).items()}

    def _kept(self, job: JobStateView, held: Placement) -> Placement:
        """Return the job's GPUs rounded up where it runs; {} if it is not on the fewest nodes."""
        rounded = self._rounding.rounded(job.width)
        if not held or not self._round_up:
            return held
        if rounded < self.node:
            return dict.fromkeys(held, rounded) if len(held) == 1 else {}
        whole = {n: self._gpus[n] for n in held}
        return whole if sum(whole.values()) == rounded else {}

    def _named(self, placement: Placement) -> NodeCounts:
        return tuple((self._names[n], gpus) for n, gpus in placement.items())


def _placed(job: JobStateView) -> PlacedJob:
    return PlacedJob(job.job.id, job.job.width, job.job.model)


def _take(left: list[int], placement: Mapping[int, int]) -> None:
    for n, gpus in placement.items():
        left[n] = max(0, left[n] - gpus)  # jobs stay on nodes that are out, which have none left


def _used(trials: Iterable[RunningTrial]) -> dict[str, int]:
    """Return the GPUs of these trials by node."""
    used: dict[str, int] = {}
    for trial in trials:
        for name, gpus in trial.nodes:
            used[name] = used.get(name, 0) + gpus
    return used


def _alike(free: Mapping[str, int], each: int, count: int) -> NodeCounts | None:
    """Return `count` nodes with `each` free GPUs, the fullest ones, or None."""
    able = sorted((name for name, gpus in free.items() if gpus >= each), key=free.__getitem__)
    return tuple((name, each) for name in able[:count]) if len(able) >= count else None
