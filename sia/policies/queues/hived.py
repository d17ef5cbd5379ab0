"""HiveD*: dedicated starts first, then starts on any idle GPUs, run to completion (§6.1).

In a cluster with cells, cells are allocated as by HiveD (`cells`), but jobs are not preempted.
"""

from __future__ import annotations

from sia.contract.policy import Changes, Policy, is_barred, stream_of
from sia.contract.proposals import Proposals, Start
from sia.contract.views import ClusterStateView, GroupStateView, JobStateView, PoolStateView
from sia.model import Stream
from sia.policies.shared.fifo import FifoQueue
from sia.policies.shared.lineup import Lineup


class HiveD(Policy):
    """Starts heads within quota, then the first pending jobs that fit in the idle GPUs.

    The star marks a difference to HiveD: opportunistic jobs are not preempted, so an owner may find
    its GPUs in use.
    """

    shares = True
    places = True

    def attach(self, state: ClusterStateView) -> None:
        """Line up heads within quota, and index each group's jobs by width."""
        self._lineups = {group: Lineup(group) for group in state.groups}
        self._queues: dict[GroupStateView, dict[int, FifoQueue]] = {
            group: {} for group in state.groups
        }
        super().attach(state)
        for pool in state.pools.values():
            self._line_up(pool)

    def submitted(self, job: JobStateView) -> None:
        """Add a job to its group's queue. O(1)."""
        queues = self._queues[job.pool.group]
        queue = queues.get(job.width)
        if queue is None:
            queue = queues[job.width] = FifoQueue()
        queue.add(job)

    def left(self, job: JobStateView) -> None:
        """Remove a job from its group's queue. O(1)."""
        queues = self._queues[job.pool.group]
        del queues[job.width].jobs[job.sequence]
        if not queues[job.width].jobs:
            del queues[job.width]

    def propose(self, now: float, changes: Changes) -> Proposals:
        """Start heads within quota, then other jobs, in the groups that changed."""
        for pool in changes.pools:
            self._line_up(pool)
        for group in changes.groups:
            yield from self._serve(group)

    def _serve(self, group: GroupStateView) -> Proposals:
        """Start jobs of one group. O(pools) for a head, O(different widths) for another job.

        In a group with limits on loans, another job costs O(jobs that the limits keep back).
        """
        placeless: dict[PoolStateView, JobStateView] = {}  # heads that found no cells
        room = group.idle  # jobs wider than this find no spare cells
        while True:
            first = self._lineups[group].first(by=_arrival, besides=placeless)
            if first is not None:
                head = first.head
                assert head is not None, "a pool without a head is not lined up"
                yield Start(head, Stream.DEDICATED, "head of its pool, within quota")
                if head.stream is None:
                    placeless[first] = head
                else:
                    self._line_up(first)
                continue
            room = min(room, group.idle)
            fitting = [queue for width, queue in self._queues[group].items() if width <= room]
            firsts = _unbarred(fitting) if group.limited else [q.jobs[q.first()] for q in fitting]
            if not firsts:
                return
            job = min(firsts, key=_sequence)
            places = self.state.places
            stream = Stream.SPARE if places else stream_of(job.pool, job.width)
            yield Start(job, stream, "fits in the idle GPUs")
            if places is not None and job.stream is None:
                room = places.narrower(job.pool.name, job.width)
                continue
            if placeless.get(job.pool) is job:
                del placeless[job.pool]
            self._line_up(job.pool)

    def _line_up(self, pool: PoolStateView) -> None:
        head = pool.head
        if head is not None and pool.dedicated + head.width <= pool.quota:
            self._lineups[pool.group].put(pool, head.width)
        else:
            self._lineups[pool.group].drop(pool)

    def check(self) -> None:
        """Assert that every pending job is queued, and every head within quota is lined up."""
        for group, queues in self._queues.items():
            queued = sorted(s for queue in queues.values() for s in queue.jobs)
            waiting = [job for pool in group.pools for job in pool.waiting()]
            assert queued == sorted(job.sequence for job in waiting), group.name
            if not any(pool in self.state.dirty for pool in group.pools):
                heads = {p: head.width for p in group.pools if (head := p.head)}
                within = {p: w for p, w in heads.items() if p.dedicated + w <= p.quota}
                self._lineups[group].check(within)


def _unbarred(queues: list[FifoQueue]) -> list[JobStateView]:
    """Return the first job of each queue that limits on loans let start."""
    firsts = []
    for queue in queues:
        jobs = (queue.jobs[sequence] for sequence in sorted(queue.jobs))
        first = next((job for job in jobs if not is_barred(job)), None)
        if first is not None:
            firsts.append(first)
    return firsts


def _sequence(job: JobStateView) -> int:
    return job.sequence


def _arrival(pool: PoolStateView) -> int:
    head = pool.head
    assert head is not None, "a pool without a head is not lined up"
    return head.sequence
