"""SIA with partial preemption (§5.5): a spare job that may be stopped is, when an owner needs it.

A job that loses c seconds when it is stopped is as good as gone within every window of which c is
no greater part than `Options.recall`. So it may start as if it were that short, and while it runs
as a spare job, that much less is held back for these windows. If a head finds its quota in use, as
many such jobs are stopped as it needs, the cheapest first; their work is kept, but for c.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from math import ceil

from cells.holds import Holds
from sia.model import Stream
from sia.policies import Needs, Preempt, Proposal, Start
from sia.policies.sia import Sia
from sia.state import GroupState, JobState, PoolState, State
from sia.turns import Turns


class SiaRecall(Sia):
    """Needs jobs of which it is known what stopping them costs; with none it is SIA."""

    needs = Needs(run_times=True, updates=True, loads=True, preemption=True)

    def attach(self, state: State) -> None:
        """Expect no spare job to run yet."""
        windows = range(len(state.options.windows))
        self._stoppable: dict[GroupState, dict[str, JobState]] = {g: {} for g in state.groups}
        # GPUs of these that could be had back within each window.
        self._gone: dict[GroupState, list[int]] = {g: [0 for _ in windows] for g in state.groups}
        # In cells: the part of what is reserved that is held back for all that.
        self._kept = {group: [1.0 for _ in windows] for group in state.groups}
        super().attach(state)
        for job in state.jobs.values():
            self._note(job)

    def bin(self, job: JobState) -> int:
        """As in SIA, or of the first window within which it could be stopped."""
        return min(super().bin(job), self._stops_within(job))

    def _stops_within(self, job: JobState) -> int:
        cost, recall = job.job.preemptible, self.state.options.recall
        if cost is None or not recall:
            return len(self.state.options.windows)
        return bisect_left(self.state.options.windows, cost / recall)

    def submitted(self, job: JobState) -> None:
        """O(1). It may have been stopped."""
        self._forget(job)
        super().submitted(job)

    def left(self, job: JobState) -> None:
        """O(windows)."""
        super().left(job)
        self._note(job)

    def finished(self, job: JobState) -> None:
        """O(windows), and O(log n) in cells."""
        super().finished(job)
        self._forget(job)

    def _note(self, job: JobState) -> None:
        group = job.pool.group
        if job.stream is Stream.SPARE and job.job.preemptible is not None:
            self._stoppable[group][job.job.id] = job
            self._count(job, job.width)

    def _forget(self, job: JobState) -> None:
        if self._stoppable[job.pool.group].pop(job.job.id, None) is not None:
            self._count(job, -job.job.width)

    def _count(self, job: JobState, gpus: int) -> None:
        gone = self._gone[job.pool.group]
        for window in range(self._stops_within(job), len(gone)):
            gone[window] += gpus

    def _usable(self, group: GroupState, window: int) -> int:
        """What is idle, but for what is reserved and could not be had back in time."""
        return min(group.idle, super()._usable(group, window) + self._gone[group][window])

    def _start_heads(self, group: GroupState) -> Iterator[Proposal]:
        """As in SIA; then heads for which others have to be stopped."""
        yield from super()._start_heads(group)
        if self._turns is not None:
            yield from self._recall_in_turn(group, self._turns)
            return
        own, stoppable = self._groups[group], self._stoppable[group]
        unhelped: set[PoolState] = set()
        while stoppable:
            most = sum(job.width for job in stoppable.values())
            first = own.lineup.first(besides=unhelped, more=most)
            if first is None:
                return
            head = first.head
            assert head is not None, "a pool without a head is not lined up"
            for job in self._in_the_way(head):
                yield Preempt(job, f"its GPUs are needed in {first.name}")
                self._reserve(job.pool)
                self._uncovered[group] = None
            if head.width <= group.idle:
                yield Start(head, Stream.DEDICATED, "head of its pool, within quota")
            if head.stream is None:
                unhelped.add(first)
            else:
                self._reserve(first)

    def _recall_in_turn(self, group: GroupState, turns: Turns) -> Iterator[Proposal]:
        """In cells: stop all that are in the way of one whose turn it is, if all may be."""
        stoppable, places = self._stoppable[group], self.state.places
        assert places is not None, "turns are of cells"
        for pool in [pool for pool in group.pools if pool in self._held_up]:
            job = turns.first(pool, self.state.jobs)
            jobs = () if job is None else places.in_the_way(pool.name, job.job.width)
            if jobs and all(job_id in stoppable for job_id in jobs):
                for stopped in [stoppable[job_id] for job_id in jobs]:
                    yield Preempt(stopped, f"its cells are needed in {pool.name}")
                    self._reserve(stopped.pool)
                    self._uncovered[group] = None
                yield from self._take_turns(pool, turns, places)

    def _in_the_way(self, head: JobState) -> list[JobState]:
        """Spare jobs to stop for a head, all of which may be; none if that would not help."""
        stoppable = self._stoppable[head.pool.group]
        missing = head.width - head.pool.idle
        chosen: list[JobState] = []
        for job in sorted(stoppable.values(), key=_cheapest):
            if missing <= 0:
                break
            chosen.append(job)
            missing -= job.width
        for job in chosen[:]:  # a wide one may have made narrow ones before it needless
            if missing + job.width <= 0:
                chosen.remove(job)
                missing += job.width
        return chosen if missing <= 0 else []

    def _window_holds(self, group: GroupState, window: int) -> Holds | None:
        """As many fewer GPUs of each pool, in proportion, as spare jobs could give back."""
        own = self._groups[group]
        if not own.holds:
            return None
        reserved = own.reserved[window]
        kept = max(0.0, 1.0 - self._gone[group][window] / reserved) if reserved else 1.0
        if kept != self._kept[group][window]:
            self._kept[group][window] = kept
            for pool in group.pools:
                if self._held[pool][window]:
                    self._hold(own.holds[window], pool, window)
        return own.holds[window]

    def _hold(self, holds: Holds, pool: PoolState, window: int) -> None:
        """As in SIA, or that part of it."""
        kept = self._kept[pool.group][window]
        holds.set(pool.name, ceil(self._held[pool][window] * kept))

    def check(self) -> None:
        """What may be stopped is counted."""
        super().check()
        for group, stoppable in self._stoppable.items():
            running = [j for j in self.state.jobs.values() if j.stream is Stream.SPARE]
            mine = [j for j in running if j.pool.group is group and j.job.preemptible is not None]
            assert stoppable == {j.job.id: j for j in mine}, group.name
            for window, gpus in enumerate(self._gone[group]):
                counted = sum(j.width for j in mine if self._stops_within(j) <= window)
                assert gpus == counted, (group.name, window)


def _cheapest(job: JobState) -> tuple[float, float, int]:
    """What stopping it costs, then who has run least."""
    return job.job.preemptible or 0.0, -job.start, job.sequence
