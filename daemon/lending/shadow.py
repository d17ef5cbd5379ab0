"""`lending shadow`: a second core, which lends, beside the one that does not; nobody acts on it.

It hears the same facts as the real core, but for ends: a job ends in it when as much time has gone
by since its start there as it took in truth. That is known at once where the job runs in truth as
well and began no later; where it still waits in truth, it ends when it was thought to, and what it
borrowed is put right once it is over in truth. What it would have borrowed is summed up then, by
who lends and who borrows. The real core is only read: it decides as with lending off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from typing import Any

from daemon.model.account import ShadowJob, ShadowLoan, ShadowState
from sia.core.core import Core
from sia.core.snapshot import Snapshot, dump, restore
from sia.decisions import Decision, MoveLoan, StartJob
from sia.events import (
    Event,
    ForecastUpdated,
    GpusOut,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    LendingSwitched,
    NodeBack,
    NodeOut,
    PoolChanged,
    PriorityChanged,
    RunTimesUpdated,
    TimePassed,
)
from sia.limits import SLOWED, UNKNOWN_RUN_TIME

ALIKE = (PoolChanged, GpusOut, NodeOut, NodeBack, ForecastUpdated, JobSubmitted)
"""Facts that are the same in both."""


TOLD_WITHIN = 60.0
"""Seconds after which an end there is looked at, and as many more until people hear what came of
it, where no step of the real core comes before: each step is a commit, and what an end there brings
about is worked out for its own time in any case."""


class ShadowCore:
    """The second core and what it is for; `kept` is all that is to be remembered of it besides."""

    def __init__(self, kept: ShadowState, core: Core) -> None:
        """Go on with these."""
        self.kept, self.core = kept, core
        self._recorded: list[tuple[float, Sequence[Event], Sequence[Decision]]] = []
        self._ends: list[tuple[float, str]] = []
        for core_id, twin in kept.twins.items():
            self._expect(core_id, twin, twin.began)
        heapify(self._ends)

    @classmethod
    def begin(cls, kept: ShadowState, real: Core, now: float) -> ShadowCore:
        """Begin with a copy of the real core that lends from now on. O(n log n)."""
        kept.since = kept.since or now
        kept.unknown += sum(bool(twin.spent or twin.loans) for twin in kept.twins.values())
        kept.twins = {
            job.job.id: ShadowJob(job.pool.name, began=job.start, real=job.start)
            for job in real.state.jobs.values()
            if job.stream is not None
        }
        core = restore(dump(real), load_like(real))
        made = cls(kept, core)
        made._step(now, [LendingSwitched(now, on=True)])
        return made

    def dump(self) -> Snapshot:
        """The second core, as plain values."""
        return dump(self.core)

    @property
    def due(self) -> float:
        """When it wants to be asked at the latest; infinite if never."""
        wake = self.core.wake
        told = self.kept.told[0].at + 2 * TOLD_WITHIN if self.kept.told else inf
        return min(told, self._next_end() + TOLD_WITHIN, wake if wake > -inf else inf)

    def _next_end(self) -> float:
        """When a job ends there next; infinite if that is not known of any."""
        ends = self._ends
        while ends and not self._ends_then(ends[0][1]):
            heappop(ends)
        return ends[0][0] if ends else inf

    def record(self, now: float, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        """Hear what the real core was told and decided, if anything: time has passed. O(1).

        It is looked at after the step: nobody is to wait for that.
        """
        self._recorded.append((now, events, decisions))

    def settle(self) -> None:
        """Look at what has been heard; at once or later comes to the same. As steps of a core.

        Raises ValueError where a fact does not fit the second core, which is of no use then.
        """
        heard, self._recorded = self._recorded, []
        for now, events, decisions in heard:
            self._follow(now, events, decisions)

    def _follow(self, now: float, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        self._catch_up(now)
        new = {event.job.id: event.job.pool for event in events if type(event) is JobSubmitted}
        for decision in decisions:
            if type(decision) is StartJob:
                self._began_really(now, decision.job_id, new)
        self._step(now, self._facts(now, events, new))

    def _catch_up(self, now: float) -> None:
        """Have what ended there before now have ended then: of that the real core knows nothing."""
        while (end := self._next_end()) < now:
            self._step(end, [])

    def _facts(self, now: float, events: Iterable[Event], new: Mapping[str, str]) -> list[Event]:
        """What the second core is to hear of it."""
        jobs = self.core.state.jobs
        facts: list[Event] = []
        for event in events:
            if isinstance(event, ALIKE):
                facts.append(event)
            elif type(event) is JobFinished:
                facts += self._ended_really(now, event.job_id)
            elif type(event) is JobCancelled:
                facts += self._withdrawn(now, event, fresh=event.job_id in new)
            elif type(event) is PriorityChanged:
                job = jobs.get(event.job_id)
                if event.job_id in new or (job is not None and job.stream is None):
                    facts.append(event)
            elif type(event) is RunTimesUpdated:
                there = [
                    each for each in event.estimates
                    if each.job_id in new
                    or ((job := jobs.get(each.job_id)) is not None and job.stream is None)
                ]  # fmt: skip
                if there:
                    facts.append(RunTimesUpdated(event.time, there))
        return facts

    def _began_really(self, now: float, core_id: str, new: Mapping[str, str]) -> None:
        twin = self._twin(core_id, new.get(core_id, ""))
        twin.real = now
        if twin.began is not None:
            self._compare(twin.began, now)

    def _compare(self, began: float, real: float) -> None:
        kept = self.kept
        if real > began + SLOWED:
            kept.sooner, kept.gained = kept.sooner + 1, kept.gained + real - began
        elif began > real + SLOWED:
            kept.later, kept.lost = kept.later + 1, kept.lost + began - real

    def _twin(self, core_id: str, pool: str = "") -> ShadowJob:
        twin = self.kept.twins.get(core_id)
        if twin is None:
            pool = pool or self.core.state.jobs[core_id].pool.name
            twin = self.kept.twins[core_id] = ShadowJob(pool)
        return twin

    def _ended_really(self, now: float, core_id: str) -> list[Event]:
        twin = self.kept.twins.get(core_id)
        if twin is None or twin.real is None:
            return []
        twin.ran = now - twin.real
        if twin.over is not None:
            self._settle(core_id, twin)
        elif twin.began is not None and twin.began + twin.ran <= now:
            return [self._over(now, core_id, twin)]
        elif twin.began is not None:
            heappush(self._ends, (twin.began + twin.ran, core_id))
        return []

    def _withdrawn(self, now: float, event: JobCancelled, *, fresh: bool) -> list[Event]:
        """A job is gone that waited in truth."""
        job = self.core.state.jobs.get(event.job_id)
        if fresh or (job is not None and job.stream is None):
            return [event]
        twin = self.kept.twins.get(event.job_id)
        if twin is None:
            return []
        found: list[Event] = []
        if twin.over is None:
            found.append(self._over(now, event.job_id, twin))
        self.kept.unknown += bool(twin.spent)
        self.kept.twins.pop(event.job_id, None)
        return found

    def _expect(self, core_id: str, twin: ShadowJob, began: float | None) -> None:
        """Have a job end in time, where that is known or has to be guessed."""
        if began is None or not self._ends_then(core_id):
            return
        if twin.ran is not None:
            self._ends.append((began + twin.ran, core_id))
        elif (run_time := self.core.state.jobs[core_id].run_time) < UNKNOWN_RUN_TIME:
            self._ends.append((began + run_time, core_id))

    def _ends_then(self, core_id: str) -> bool:
        """Whether a job ends there at a time that is known, or guessed: else when it does in truth.

        It may have begun in truth since that was last asked, in a later step of the same time.
        """
        twin = self.kept.twins.get(core_id)
        if twin is None or twin.began is None or twin.over is not None:
            return False
        return twin.ran is not None or twin.real is None or twin.real > twin.began

    def _over(self, now: float, core_id: str, twin: ShadowJob) -> JobFinished:
        """A job ends in the second core."""
        self._spend(now, twin)
        twin.over, twin.loans = now, {}
        if twin.ran is not None:
            self._settle(core_id, twin)
        return JobFinished(now, core_id)

    def _spend(self, now: float, twin: ShadowJob) -> None:
        for lender, gpus in twin.loans.items():
            twin.spent[lender] = twin.spent.get(lender, 0.0) + gpus * (now - twin.since)
        twin.since = now

    def _settle(self, core_id: str, twin: ShadowJob) -> None:
        """It is over in both: what it borrowed counts for as long as it ran in truth."""
        assert twin.began is not None, "it is over there"
        assert twin.over is not None, "it is over there"
        assert twin.ran is not None, "it is over in truth"
        ran = twin.over - twin.began
        for lender, seconds in twin.spent.items():
            sums = self.kept.lent.setdefault(lender, {})
            more = seconds if ran == twin.ran else seconds * twin.ran / ran if ran else 0.0
            sums[twin.pool] = sums.get(twin.pool, 0.0) + more
        del self.kept.twins[core_id]

    def _step(self, now: float, facts: list[Event]) -> None:
        """Ends that have come, the facts, and what the second core decides."""
        gone = {event.job_id for event in facts if type(event) is JobFinished}
        while self._ends and self._ends[0][0] <= now:
            core_id = heappop(self._ends)[1]
            if core_id not in gone and self._ends_then(core_id):
                gone.add(core_id)
                facts.append(self._over(now, core_id, self.kept.twins[core_id]))
        core = self.core
        if now >= core.wake > -inf:
            facts.append(TimePassed(now))
        if facts:
            self._carry_out(now, core.step(now, facts))

    def _carry_out(self, now: float, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if type(decision) is StartJob:
                self._start(now, decision)
            elif type(decision) is MoveLoan:
                self._move(now, decision)

    def _start(self, now: float, start: StartJob) -> None:
        core_id = start.job_id
        twin = self._twin(core_id)
        twin.began = twin.since = now
        if twin.real is not None and twin.real < now:
            self._compare(now, twin.real)
        twin.loans = {lender: gpus for lender, gpus in start.loans if lender != twin.pool}
        if twin.loans:
            self.kept.jobs += 1
            for lender, gpus in twin.loans.items():
                self.kept.told.append(ShadowLoan(core_id, lender, gpus, twin.pool, now))
        before = len(self._ends)
        self._expect(core_id, twin, now)
        if len(self._ends) > before:
            heappush(self._ends, self._ends.pop())

    def _move(self, now: float, move: MoveLoan) -> None:
        twin = self.kept.twins.get(move.job_id)
        if twin is None:
            return
        self._spend(now, twin)
        had = twin.loans.get(move.previous, 0)
        if move.previous != twin.pool:
            if had < move.gpus:
                return  # a loan from before all this
            twin.loans[move.previous] = had - move.gpus
            if not twin.loans[move.previous]:
                del twin.loans[move.previous]
        if move.donor != twin.pool:
            twin.loans[move.donor] = twin.loans.get(move.donor, 0) + move.gpus

    def check(self) -> None:
        """Assert that the second core and what is remembered of it agree. O(n)."""
        self.core.check()
        jobs = self.core.state.jobs
        for core_id, twin in self.kept.twins.items():
            runs = twin.began is not None and twin.over is None
            assert runs == (core_id in jobs and jobs[core_id].stream is not None), core_id


def load_like(core: Core) -> Any:
    """A policy of the same kind, with nothing indexed yet."""
    return type(core.policy)()
