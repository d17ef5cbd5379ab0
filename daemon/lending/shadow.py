"""Shadow lending: a second core makes loans that are simulated, while the real core makes none.

The shadow core gets the real core's events, except ends. A job ends in the shadow core when it has
run there for its real run time. This run time is known if the job started no later in reality.
Otherwise the estimate is used until the job has really ended, and its borrowed GPU-hours are
corrected then. The sums by lender and borrower include only jobs that have really ended.

A job that the shadow core stops is queued there again, with the work that it keeps. The real core
is only read: its decisions are those with lending off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import inf
from typing import Any

from daemon.model.account import ShadowJob, ShadowLoan, ShadowState
from sia.core.core import Core
from sia.core.snapshot import Snapshot, dump, restore
from sia.decisions import (
    Decision,
    DedicateJob,
    MoveLoan,
    PreemptJob,
    ResizeJob,
    SolveProgram,
    StartJob,
)
from sia.events import (
    Event,
    ForecastUpdated,
    GpusOut,
    JobCancelled,
    JobFinished,
    JobProgressed,
    JobSubmitted,
    LendingSwitched,
    NodeBack,
    NodeOut,
    PolicyTuned,
    PoolChanged,
    PriorityChanged,
    ProgramSolved,
    RunTimesUpdated,
    TimePassed,
)
from sia.limits import SLOWED, UNKNOWN_RUN_TIME

ALIKE = (PolicyTuned, PoolChanged, GpusOut, NodeOut, NodeBack, ForecastUpdated, JobSubmitted)
"""Events that both cores get unchanged."""


TOLD_WITHIN = 60.0
"""Maximum seconds until an end in the shadow core is processed, and again until its notices are
sent, if the real core needs no step before. Each step is a commit, so steps for this are rare; an
end is processed as of its own time in any case."""


_End = tuple[float, str, int]
"""End of a job in the shadow core: its time, the job, its attempt there."""


class ShadowCore:
    """Runs the shadow core. `kept` is all of its state besides the core."""

    def __init__(self, state: ShadowState, core: Core) -> None:
        """Continue from this state and core."""
        self.state, self.core = state, core
        core.tolerate()
        self._recorded: list[tuple[float, Sequence[Event] | ProgramSolved, Sequence[Decision]]] = []
        self._ends: list[_End] = []
        for core_id, twin in state.twins.items():
            self._schedule_end(core_id, twin)

    @classmethod
    def begin(
        cls, state: ShadowState, real: Core, now: float, asked: SolveProgram | None
    ) -> ShadowCore:
        """Start from a copy of the real core and its open request, with lending on. O(n log n)."""
        state.solving = asked
        state.since = state.since or now
        state.unknown += sum(bool(twin.spent or twin.loans) for twin in state.twins.values())
        state.twins = {
            job.job.id: ShadowJob(job.pool.name, began=job.start, real=job.start)
            for job in real.state.jobs.values()
            if job.stream is not None
        }
        core = restore(dump(real), load_like(real))
        made = cls(state, core)
        made._step(now, [LendingSwitched(now, on=True)])
        return made

    def dump(self) -> Snapshot:
        """Return the shadow core as plain values."""
        return dump(self.core)

    @property
    def due(self) -> float:
        """Time of the next step that the shadow core needs; infinite if it needs none."""
        report = self.state.told[0].at + 2 * TOLD_WITHIN if self.state.told else inf
        return min(report, self._next_end() + TOLD_WITHIN, self.core.wake)

    def _next_end(self) -> float:
        """Time of the next end in the shadow core; infinite if no end has a time."""
        ends = self._ends
        while ends and not self._is_valid(ends[0]):
            heappop(ends)
        return ends[0][0] if ends else inf

    def record(self, now: float, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        """Queue the real core's events and decisions of a time; `settle` processes them. O(1)."""
        self._recorded.append((now, events, decisions))

    def settle(self) -> None:
        """Process the queue. The result is the same whenever this is called. Costs steps of a core.

        Raises ValueError if an event does not fit the shadow core, which must then be restarted.
        """
        heard, self._recorded = self._recorded, []
        for now, events, decisions in heard:
            if isinstance(events, ProgramSolved):
                self._hear(events)
            else:
                self._follow(now, events, decisions)

    def hear(self, answer: ProgramSolved) -> None:
        """Queue the answer to a request of this core. O(1)."""
        self._recorded.append((answer.time, answer, ()))

    def _hear(self, answer: ProgramSolved) -> None:
        """Close the open request if this is its answer; the core ignores any other answer."""
        self._catch_up(answer.time)
        asked = self.state.solving
        if asked is not None and asked.request == answer.request:
            self.state.solving = None
        self._step(answer.time, [answer])

    def _follow(self, now: float, events: Sequence[Event], decisions: Sequence[Decision]) -> None:
        self._catch_up(now)
        new = {event.job.id: event.job.pool for event in events if type(event) is JobSubmitted}
        for decision in decisions:
            if type(decision) is StartJob:
                self._really_started(now, decision.job_id, new)
        self._step(now, self._facts(now, events, new))

    def _catch_up(self, now: float) -> None:
        """Process the ends in the shadow core before this time, each at its own time."""
        while (end := self._next_end()) < now:
            self._step(end, [])

    def _facts(self, now: float, events: Iterable[Event], new: Mapping[str, str]) -> list[Event]:
        """Translate the real core's events for the shadow core."""
        jobs = self.core.state.jobs
        facts: list[Event] = []
        for event in events:
            if isinstance(event, ALIKE) or self._is_progress(event):
                facts.append(event)
            elif type(event) is JobFinished:
                facts += self._really_ended(now, event.job_id)
            elif type(event) is JobCancelled:
                facts += self._really_cancelled(now, event, fresh=event.job_id in new)
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

    def _is_progress(self, event: Event) -> bool:
        """Return whether this is progress of a job that runs alike in both cores."""
        if type(event) is not JobProgressed:
            return False
        core_id = event.job_id
        job, twin = self.core.state.jobs.get(core_id), self.state.twins.get(core_id)
        running = job is not None and job.stream is not None
        return running and twin is not None and twin.began == twin.real and not twin.changed

    def _really_started(self, now: float, core_id: str, new: Mapping[str, str]) -> None:
        twin = self._twin(core_id, new.get(core_id, ""))
        twin.real = now
        if twin.began is not None:
            self._compare(twin.began, now)

    def _compare(self, began: float, real: float) -> None:
        state = self.state
        if real > began + SLOWED:
            state.sooner, state.gained = state.sooner + 1, state.gained + real - began
        elif began > real + SLOWED:
            state.later, state.lost = state.later + 1, state.lost + began - real

    def _twin(self, core_id: str, pool: str = "") -> ShadowJob:
        twin = self.state.twins.get(core_id)
        if twin is None:
            pool = pool or self.core.state.jobs[core_id].pool.name
            twin = self.state.twins[core_id] = ShadowJob(pool)
        return twin

    def _really_ended(self, now: float, core_id: str) -> list[Event]:
        twin = self.state.twins.get(core_id)
        if twin is None or twin.real is None:
            return []
        twin.ran = now - twin.real
        if twin.over is not None:
            self._sum_up(core_id, twin)
        elif self._has_own_end(core_id):
            if self._end(core_id, twin) <= now:
                return [self._end_job(now, core_id, twin)]
            self._schedule_end(core_id, twin)
        return []

    def _really_cancelled(self, now: float, event: JobCancelled, *, fresh: bool) -> list[Event]:
        """Return the shadow core's events for a pending job that has left the real core."""
        job = self.core.state.jobs.get(event.job_id)
        if fresh or (job is not None and job.stream is None):
            stopped = self.state.twins.pop(event.job_id, None)
            self.state.unknown += stopped is not None and bool(stopped.spent)
            return [event]
        twin = self.state.twins.get(event.job_id)
        if twin is None:
            return []
        found: list[Event] = []
        if twin.over is None:
            found.append(self._end_job(now, event.job_id, twin))
        self.state.unknown += bool(twin.spent)
        self.state.twins.pop(event.job_id, None)
        return found

    def _schedule_end(self, core_id: str, twin: ShadowJob) -> None:
        """Schedule a job's end in the shadow core, by its run time or an estimate of it."""
        if not self._has_own_end(core_id):
            return
        job = self.core.state.jobs[core_id]
        if twin.ran is not None or job.run_time < UNKNOWN_RUN_TIME:
            heappush(self._ends, (self._end(core_id, twin), core_id, job.attempt))

    def _end(self, core_id: str, twin: ShadowJob) -> float:
        """Return when a job that runs in the shadow core ends there."""
        job = self.core.state.jobs[core_id]
        run_time = job.run_time if twin.ran is None else twin.ran
        assert twin.began is not None, "it runs"
        return job.end(run_time) if twin.changed else twin.began + run_time

    def _is_valid(self, end: _End) -> bool:
        """Return whether the attempt still runs in the shadow core and ends then."""
        time, core_id, attempt = end
        return (
            self._has_own_end(core_id)
            and self.core.state.jobs[core_id].attempt == attempt
            and self._end(core_id, self.state.twins[core_id]) == time
        )

    def _has_own_end(self, core_id: str) -> bool:
        """Return whether the time of a job's end in the shadow core is determined there.

        If not, the job waits there, or ends when it really ends. The result may change when the job
        really starts.
        """
        twin, job = self.state.twins.get(core_id), self.core.state.jobs.get(core_id)
        if twin is None or twin.began is None or job is None or job.stream is None:
            return False
        return twin.ran is not None or twin.changed or twin.real is None or twin.real > twin.began

    def _end_job(self, now: float, core_id: str, twin: ShadowJob) -> JobFinished:
        """End a job in the shadow core."""
        self._count_loans(now, twin)
        twin.over, twin.loans = now, {}
        if twin.ran is not None:
            self._sum_up(core_id, twin)
        elif twin.changed:
            twin.assumed = self.core.state.jobs[core_id].run_time
        return JobFinished(now, core_id)

    def _count_loans(self, now: float, twin: ShadowJob) -> None:
        for lender, gpus in twin.loans.items():
            twin.spent[lender] = twin.spent.get(lender, 0.0) + gpus * (now - twin.since)
        twin.since = now

    def _sum_up(self, core_id: str, twin: ShadowJob) -> None:
        """Add a job that has ended in both cores to the sums.

        The GPU-hours that it borrowed are scaled to its real run time.
        """
        assert twin.began is not None, "it has ended in the shadow core"
        assert twin.over is not None, "it has ended in the shadow core"
        assert twin.ran is not None, "it has really ended"
        ran = twin.over - twin.began
        if twin.changed:  # between its start and its end it also waited, or was slower
            ran = twin.assumed or twin.ran
        for lender, seconds in twin.spent.items():
            sums = self.state.lent.setdefault(lender, {})
            more = seconds if ran == twin.ran else seconds * twin.ran / ran if ran else 0.0
            sums[twin.pool] = sums.get(twin.pool, 0.0) + more
        del self.state.twins[core_id]

    def _step(self, now: float, facts: list[Event]) -> None:
        """Make one step of the shadow core: due ends, these events, and the core's decisions."""
        gone = {event.job_id for event in facts if type(event) is JobFinished}
        while self._ends and self._ends[0][0] <= now:
            end = heappop(self._ends)
            core_id = end[1]
            if core_id not in gone and self._is_valid(end):
                gone.add(core_id)
                facts.append(self._end_job(now, core_id, self.state.twins[core_id]))
        core = self.core
        if now >= core.wake:
            facts.append(TimePassed(now))
        if facts:
            self._carry_out(now, core.step(now, facts))

    def _carry_out(self, now: float, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if type(decision) is StartJob:
                self._start(now, decision)
            elif isinstance(decision, PreemptJob | DedicateJob | ResizeJob):
                self._change(now, decision)
            elif type(decision) is MoveLoan:
                self._move(now, decision)
            elif type(decision) is SolveProgram:
                self.state.solving = decision

    def _start(self, now: float, start: StartJob) -> None:
        core_id = start.job_id
        twin = self._twin(core_id)
        twin.since = now
        if twin.began is None:  # else it goes on after a stop
            twin.began = now
            if twin.real is not None and twin.real < now:
                self._compare(now, twin.real)
        twin.loans = {lender: gpus for lender, gpus in start.loans if lender != twin.pool}
        if twin.loans:
            self.state.jobs += 1
            for lender, gpus in twin.loans.items():
                self.state.told.append(ShadowLoan(core_id, lender, gpus, twin.pool, now))
        self._schedule_end(core_id, twin)

    def _change(self, now: float, decision: PreemptJob | DedicateJob | ResizeJob) -> None:
        """Follow a decision that ends or replaces the loans of a job in the shadow core."""
        twin = self._twin(decision.job_id)
        self._count_loans(now, twin)
        twin.loans = {}
        if type(decision) is DedicateJob:
            return
        twin.changed = True
        if type(decision) is ResizeJob:
            twin.loans = {lender: gpus for lender, gpus in decision.loans if lender != twin.pool}
            self._schedule_end(decision.job_id, twin)

    def _move(self, now: float, move: MoveLoan) -> None:
        twin = self.state.twins.get(move.job_id)
        if twin is None:
            return
        self._count_loans(now, twin)
        had = twin.loans.get(move.previous, 0)
        if move.previous != twin.pool:
            if had < move.gpus:
                return  # a loan from before shadow mode
            twin.loans[move.previous] = had - move.gpus
            if not twin.loans[move.previous]:
                del twin.loans[move.previous]
        if move.donor != twin.pool:
            twin.loans[move.donor] = twin.loans.get(move.donor, 0) + move.gpus

    def check(self) -> None:
        """Assert that the shadow core and `kept` agree. O(n)."""
        self.core.check()
        asked, committer = self.state.solving, self.core.committer
        if asked is not None:
            assert (asked.request, True) == (committer.requests, committer.open_request)
        jobs = self.core.state.jobs
        for core_id, twin in self.state.twins.items():
            there = twin.began is not None and twin.over is None
            job = jobs.get(core_id)
            runs = job is not None and (job.stream is not None or twin.changed)
            assert there == runs, core_id


def load_like(core: Core) -> Any:
    """Return a new policy of the same kind and options, without state."""
    return type(core.policy)(core.policy.params)
