"""Strict priority: jobs with a deadline first, then best effort; the rival of JamaisVu's §6.1."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import Struct

from sia.contract.policy import Changes, Needs, Policy, is_barred, stream_of
from sia.contract.proposals import Preempt, ProposalResult, Proposals, Start
from sia.contract.views import GroupStateView, JobStateView
from sia.model import NEVER_STOPPED
from sia.state.nodes import NodeCounts


class PrioParams(Struct, frozen=True):
    """The options of `prio`."""

    kill: bool = False
    """Whether running best-effort jobs are killed for a job with a deadline that does not fit."""


class Prio(Policy):
    """Uses no run times: in each group the first job that does not fit blocks the others.

    Jobs with a deadline come before all others, in order of priority and arrival. A pass costs
    O(n log n) in the jobs of the changed groups.
    """

    Params = PrioParams
    needs = Needs(preemption=True)
    shares = True
    on_nodes = True
    heeds = frozenset({"deadline", "prefers", "slowdown", "strl", "preemptible"})

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start jobs in order until one does not fit."""
        for group in changes.groups:
            yield from self._serve(group, now)

    def _serve(self, group: GroupStateView, now: float) -> Proposals:
        for job in self._queue(group):
            if is_barred(job):
                continue
            if self.params.kill and job.job.deadline is not None:
                yield from self._make_room(job, now)
            nodes = self._place(job, {})
            if nodes is None:
                return
            what = "best effort" if job.job.deadline is None else "a job with a deadline"
            reason = f"{what}, and no job before it waits"
            result = yield Start(job, stream_of(job.pool, job.width), reason, nodes=nodes)
            if result is not ProposalResult.DONE:
                return

    @staticmethod
    def _queue(group: GroupStateView) -> list[JobStateView]:
        waiting = (job for pool in group.pools for job in pool.waiting())
        return sorted(waiting, key=lambda job: (job.job.deadline is None, job.sequence))

    def _make_room(self, job: JobStateView, now: float) -> Proposals:
        """Kill as few best-effort jobs as needed, those that have run the shortest time first."""
        victims: list[JobStateView] = []
        freed: dict[str, int] = {}
        if self._place(job, freed) is not None:
            return
        for victim in self._victims(job.pool.group, now):
            victims.append(victim)
            for name, gpus in self._held(victim):
                freed[name] = freed.get(name, 0) + gpus
            if self._place(job, freed) is not None:
                break
        else:
            return
        for victim in [*victims]:
            fewer = dict(freed)
            for name, gpus in self._held(victim):
                fewer[name] -= gpus
            if self._place(job, fewer) is not None:
                freed = fewer
                victims.remove(victim)
        for victim in victims:
            yield Preempt(victim, f"job {job.job.id} has a deadline", kill=True)

    def _victims(self, group: GroupStateView, now: float) -> list[JobStateView]:
        running = (
            job
            for job in self.state.jobs.values()
            if job.stream is not None
            and job.pool.group is group
            and job.job.deadline is None
            and job.job.preemptible != NEVER_STOPPED
        )
        return sorted(running, key=lambda job: (now - job.start, -job.sequence))

    def _held(self, job: JobStateView) -> Iterable[tuple[str, int]]:
        table = self.state.nodes
        return [("", job.frees)] if table is None else table.frees(job.job.id).items()

    def _place(self, job: JobStateView, freed: dict[str, int]) -> NodeCounts | None:
        """Return GPUs for a job, with those that kills would free; None if there are too few."""
        table, group = self.state.nodes, job.pool.group
        if table is None:
            return () if job.width <= group.idle - group.out + freed.get("", 0) else None
        if job.width > group.idle + sum(freed.values()):
            return None
        for names in self._sets(job):
            free = {
                name: table.free(name) + freed.get(name, 0) for name in table.nodes if name in names
            }
            if sum(free.values()) < job.width:
                continue
            found, left = [], job.width
            for name in sorted(free, key=lambda each: -free[each]):
                count = min(left, free[name])
                if count:
                    found.append((name, count))
                    left -= count
            return tuple(found)
        return None

    def _sets(self, job: JobStateView) -> Iterator[frozenset[str]]:
        """Return the sets of nodes on which a job may run, the preferred ones first."""
        table = self.state.nodes
        assert table is not None
        return (place.nodes for place in table.places(job.job))
