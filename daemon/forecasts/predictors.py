"""Query predictors before each step, and inform them after each step.

The answers are inputs of the step, so the journal contains them and a replay queries no predictor.
Predictors store no state on disk: after a restart they get the history from the journal
(`daemon.forecasts.history`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import NamedTuple

from msgspec.structs import replace

from daemon.engine.engine import Step
from daemon.forecasts.drift import DESIGNED
from daemon.forecasts.history import JournalHistory
from daemon.model.book import Book
from daemon.model.inputs import Estimated, Foreseen, Input, Submit
from daemon.model.job import JobSpec
from sia.decisions import Decision, PreemptJob, StartJob
from sia.events import JobCancelled, JobFinished, JobProgressed, JobSubmitted, PoolChanged
from sia.forecasts import Aside, Loads, RunTimes
from sia.limits import TICK
from sia.model import Job, Load


class _KnownJob(NamedTuple):
    """A job that has not ended. Times are seconds."""

    job: Job
    run_time: float
    """Estimated run time in seconds."""
    start: float | None = None
    """Time of the job's first start."""
    since: float | None = None
    """Time of the job's latest start, while it runs."""
    ran: float = 0.0
    """Seconds that the job had run before its latest stop."""

    def ran_until(self, now: float) -> float:
        """Return the seconds that the job has run."""
        return self.ran if self.since is None else self.ran + now - self.since


def _job_of(spec: JobSpec, now: float) -> Job:
    """Return a job for a query to a predictor, before the core has the job."""
    gpus = max(1, spec.gpus)
    return Job(spec.id, spec.pool, now, gpus, spec.user, spec.kind, estimate=spec.run_time)


class Forecaster:
    """The predictors of one policy, which are informed of durable steps only.

    Attributes:
        curious: True if the forecasts may have changed since the last query.
        forgets: Whether `forget` has an effect.
        stated_by_pool: Whether there are forecasts of loads, which are to hold for each pool by
            itself.
        designed: The share of forecasts of loads that are to be too low.
    """

    def __init__(
        self,
        run_times: RunTimes | None,
        loads: Loads | None,
        *,
        updates: bool,
        forgets: bool = False,
        stated_by_pool: bool = False,
        designed: float = DESIGNED,
    ) -> None:
        """Use these predictors; with `updates`, estimates of pending jobs may change."""
        self._run_times, self._loads, self._updates = run_times, loads, updates
        self.forgets, self.stated_by_pool, self.designed = forgets, stated_by_pool, designed
        self._jobs: dict[str, _KnownJob] = {}  # by core id
        self._asked: dict[str, Job] = {}  # queried jobs whose submission may yet be refused
        self._stale: dict[
            tuple[str, int], int
        ] = {}  # forecasts in the core from another forecaster
        self._first: Sequence[
            Load
        ] = ()  # forecasts at the end of the history, until the first query
        self._next = -inf  # the next tick
        self.curious = True

    @property
    def due(self) -> float:
        """Latest time of the next query: the next tick; infinite if never."""
        return self._next if self._loads is not None or self._updates else inf

    def hear(
        self, story: JournalHistory, begins: Mapping[str, float] = MappingProxyType({})
    ) -> None:
        """Read the history, and forecast all loads.

        For pools in `begins`, read it from that second on.

        Takes seconds; the first forecast of 1,000 pools alone takes up to 0.4 s.
        """
        estimates: dict[str, float] = {}
        if self._run_times is not None:
            estimates = story.tell_run_times(self._run_times)
        if self._loads is not None:
            story.tell_loads(self._loads, estimates)
            for pool, begin in begins.items():
                self._loads.forget(pool, begin)
            self._first = self._loads.changes(story.end)
        for job, start in story.alive:
            self._jobs[job.id] = _KnownJob(job, estimates.get(job.id, 0.0), start, start)

    def work_aside(self, aside: Aside) -> None:
        """Let `aside` do long work of the predictors."""
        if self._run_times is not None:
            self._run_times.work_aside(aside)

    def correct(self, loads: Sequence[Load]) -> None:
        """Use the core's forecasts as the current ones; reset those that are not made here."""
        self._stale = {(load.pool, load.window): load.gpus for load in loads if load.gpus}
        self.curious = True

    def forget(self, pool: str, before: float) -> None:
        """Forecast the loads of a pool without observations from before `before` (seconds)."""
        if self._loads is not None:
            self._loads.forget(pool, before)
            self.curious = True

    def before(self, now: float, inputs: Sequence[Input], book: Book) -> list[Input]:
        """Return the inputs of a step with forecasts: loads first, then run times of new jobs."""
        self.curious = False
        self._next = (now // TICK + 1.0) * TICK
        asked: list[Input] = []
        if self._loads is not None and (loads := self._load_changes(now)):
            asked.append(Foreseen(loads))
        if self._run_times is None:
            return [*asked, *inputs]
        if self._updates and (estimates := self._run_times.changes(now)):
            asked.append(Estimated(estimates))
        return [*asked, *self._estimated(now, inputs, book)]

    def guess(self, now: float, spec: JobSpec) -> float:
        """Return the estimated run time of `spec` if it were submitted now; 0 if unknown."""
        if self._run_times is None:
            return 0.0
        return self._run_times.guess(now, _job_of(spec, now))

    def _load_changes(self, now: float) -> Sequence[Load]:
        """Return changed loads; at first also resets of loads from another forecaster."""
        assert self._loads is not None
        loads = list(self._loads.changes(now))
        if self._first:
            first = {(load.pool, load.window): load for load in (*self._first, *loads)}
            loads, self._first = [*first.values()], ()
        if self._stale:
            for load in loads:
                self._stale.pop((load.pool, load.window), None)
            loads += [Load(pool, window, 0) for pool, window in self._stale]
            self._stale = {}
        return loads

    def _estimated(self, now: float, inputs: Sequence[Input], book: Book) -> list[Input]:
        """Return the inputs, with estimates for new jobs.

        The predictor decides how far to trust the submitter's estimate: if jobs were declared short
        and ran long, lenders would get their GPUs back late.
        """
        assert self._run_times is not None
        new: dict[int, Job] = {}
        for place, asked in enumerate(inputs):
            if type(asked) is Submit:
                spec = asked.spec
                if spec.id not in self._asked and book.job(spec.id) is None:
                    new[place] = self._asked[spec.id] = _job_of(spec, now)
        found = list(inputs)
        if not new:
            return found
        estimates = self._run_times.run_times(list(new.values()))
        for place, estimate in zip(new, estimates, strict=True):
            asked = inputs[place]
            assert type(asked) is Submit
            found[place] = replace(asked, run_time=estimate)
        return found

    def after(self, now: float, step: Step) -> None:
        """Process a step, once it is durable."""
        for event in step.events:
            if type(event) is JobSubmitted:
                self._submitted(now, event)
            elif type(event) is JobFinished:
                self._gone(now, event.job_id, ended=True)
            elif type(event) is JobCancelled:
                self._gone(now, event.job_id, ended=False)
            elif type(event) is JobProgressed:
                self._progressed(now, event)
            elif type(event) is PoolChanged and self._loads is not None:
                self._loads.requota(now, event.pool, event.quota)
                self.curious = True
        self._carried_out(now, step.decisions)
        for job in self._asked.values():  # refused, or held
            if self._run_times is not None:
                self._run_times.withdrawn(now, job)
        self._asked.clear()

    def _carried_out(self, now: float, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            if type(decision) is StartJob:
                self._started(now, decision.job_id)
            elif type(decision) is PreemptJob:
                self._stopped(now, decision.job_id)

    def _submitted(self, now: float, event: JobSubmitted) -> None:
        job = event.job
        if self._asked.pop(job.id, None) is None and self._run_times is not None:
            self._run_times.run_time(
                job
            )  # requeued; the predictor must know it, and its answer is not needed
        if self._loads is not None:
            self._loads.submitted(now, job)
        self._jobs[job.id] = _KnownJob(job, event.run_time)
        self.curious = True

    def _started(self, now: float, core_id: str) -> None:
        known = self._jobs.get(core_id)
        if known is None:
            return  # ended in the same step
        first = known.start is None
        self._jobs[core_id] = known._replace(start=known.start if not first else now, since=now)
        if not first:
            return  # it starts again after a stop
        job, run_time = known.job, known.run_time
        if self._run_times is not None:
            self._run_times.started(now, job)
        if self._loads is not None:
            self._loads.started(now, job, run_time)
        self.curious = True

    def _stopped(self, now: float, core_id: str) -> None:
        known = self._jobs.get(core_id)
        if known is not None and known.since is not None:
            self._jobs[core_id] = known._replace(ran=known.ran_until(now), since=None)

    def _progressed(self, now: float, event: JobProgressed) -> None:
        known = self._jobs.get(event.job_id)
        if known is not None and self._run_times is not None:
            said = event.done, event.speed, event.overhead
            self._run_times.progressed(now, known.job, *said)
            self.curious = True

    def _gone(self, now: float, core_id: str, *, ended: bool) -> None:
        known = self._jobs.pop(core_id, None)
        if known is None:
            return
        job = known.job
        if not ended or known.start is None:
            if self._run_times is not None:
                self._run_times.withdrawn(now, job)
            if self._loads is not None:
                self._loads.withdrawn(now, job)
        else:
            if self._run_times is not None:
                self._run_times.finished(now, job, known.ran_until(now))
            if self._loads is not None:
                self._loads.finished(now, job)
        self.curious = True
