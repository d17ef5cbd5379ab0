"""Estimate start and end times: simulate in a child process, store and calibrate estimates."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from time import perf_counter

from daemon.answers.estimates.calibration import Given
from daemon.answers.estimates.observations import EstimateInputs
from daemon.answers.estimates.pacing import WITHIN, SimulationBudget
from daemon.answers.estimates.predict import EstimateContext, estimate, suffices, why_not
from daemon.answers.estimates.table import EstimateMemory, EstimateStore, estimate_store
from daemon.answers.estimates.worlds import Outlook, outlook, queue_of
from daemon.answers.simulate.fork import (
    ChildFailedError,
    ChildKilledError,
    ChildTimeoutError,
    WorkerQueue,
    child_worker,
)
from daemon.answers.simulate.solving import PlayoutSolvers
from daemon.forecasts.forecaster import ended_between
from daemon.forecasts.history import SPAN
from daemon.model.book import JobRecord
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.outputs import Notice
from daemon.service.service import Service
from predictors.run_times.survival import LEAST

ETA_EVERY = 30.0
"""Seconds of the daemon's clock between two refreshes: users look again after about as long."""

ETA_LEAST = 2.0
"""Minimum real seconds between two refreshes when the daemon's clock runs faster than real time. In
the demo these are two hours of its clock."""

KINDNESS = 19
"""Niceness added to the child process."""

AT_ONCE = 100
"""Number of jobs or notices processed before control returns to the event loop: a few
milliseconds."""

SHARE = 0.2
"""Maximum fraction of the event loop's time for processing notices; the remaining ones wait."""

MOST_GIVEN = 500
"""Maximum number of estimates at submission between two refreshes. Further jobs get theirs at the
next refresh, so that a thousand submissions a second do not write a thousand rows a second."""

SOLVING = 10.0
"""Seconds that the solver of the policy's programs may use in all worlds together: half a second
for each of 19 worlds, so that a what-if question still has time for a few worlds."""

NONE_GIVEN = -1
"""Value of `_bits` for a job without an estimate. For other jobs `_bits` has the bit length of the
age, in seconds, at which they got their last estimate."""

PART = "estimates"


class EtaService:
    """Estimate when jobs start and end.

    Attributes:
        heard: Observations that the estimates are based on.
        pace: Interval and size of the simulations.
        ready: Whether the history has been read.
    """

    def __init__(self, service: Service, every: float = ETA_EVERY, *, off: bool = False) -> None:
        """Start without estimates until `run` is called; `off` means that it never is."""
        every = min(every, service.clock.seconds_until(service.clock.now() + every))
        self._service, self._off, self.pace = service, off, SimulationBudget(max(ETA_LEAST, every))
        self.heard, self.ready = EstimateInputs(), False
        self.store: EstimateStore = EstimateMemory()
        self.outlook: Outlook | None = None
        self._line = WorkerQueue()
        self._changed = True
        self._bits: dict[str, int] = {}  # by active job: bit length of its age at its last estimate
        self._given: dict[str, Given] = {}  # at submission, since the last refresh, by job
        self._unkept: list[Given] = []
        self._retuned = asyncio.Event()
        self._lacking = asyncio.Event()  # an elastic job needs a simulation for its estimate

    async def run(self) -> None:
        """Run until cancelled."""
        after = await self._begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(after))
            group.create_task(self._refresh())

    async def _begin(self) -> int:
        """Read the history; return the number of the newest notice that it includes."""
        service, heard = self._service, EstimateInputs()
        self.ready, self.outlook = False, None
        self.store = await estimate_store(service)
        await service.settled()
        after, now = service.last_notice, service.clock.now()
        alive = heard.events(service.book.jobs.values())
        ended = await ended_between(service.observed_jobs, now - SPAN, now)
        given = await self.store.since(now - SPAN)
        changes = heard.changes(given, service.book.setup.tuned)
        await asyncio.to_thread(heard.learn, [*heard.events(ended, given), *alive, *changes])
        self._bits = {each.job: _bits(each) for each in given}
        self.heard, self.ready, self._changed = heard, True, True
        return after

    async def _follow(self, after: int) -> None:
        """Process notices as they are published."""
        worked, new = 0.0, list[Given]()
        async for notice in self._service.notices(after):
            began = perf_counter()  # the time spent waiting for a notice does not count
            record = await self._job(notice.job)
            self._changed |= self.heard.hear(notice, record)
            if notice.kind == "policy":
                self._forget()
            if record is not None:
                new += self._new(notice, record)
            worked += perf_counter() - began
            if not notice.seq % AT_ONCE or notice.seq >= self._service.last_notice:
                await self._keep(new)
                new = []
                await asyncio.sleep(worked * (1.0 / SHARE - 1.0))
                worked = 0.0

    async def _job(self, job_id: str) -> JobRecord | None:
        if not job_id:
            return None
        return self._service.book.job(job_id) or await self._service.past_job(job_id)

    def at_submission(self, job_id: str) -> Given | None:
        """Return the estimate for a newly submitted job; None for an array or above `MOST_GIVEN`.

        A second call for the same job returns the same estimate.
        """
        record = self._service.book.jobs.get(job_id)
        if record is None or job_id in self._bits or len(self._given) >= MOST_GIVEN:
            return self._given.get(job_id)
        given = self.estimate(record)
        if given is not None:
            self._given[job_id] = given
            self._unkept += self._give([given])
        if self._service.engine.core.policy.needs.resizing and not why_not(record):
            # A policy that resizes jobs may take GPUs of running jobs for the new one. Only a
            # simulation that includes the new job can estimate its end, so request one early.
            # Other policies do not change widths: for them the estimate above is used until the
            # next regular simulation.
            self._changed = True
            self._lacking.set()
        return given

    def _forget(self) -> None:
        """Drop all estimates after a change of the policy's options, and simulate again.

        The simulation does not wait for the regular interval.
        """
        self.outlook, self._given = None, {}
        self._bits = dict.fromkeys(self._bits, NONE_GIVEN)
        self._retuned.set()
        self._lacking.set()

    def _new(self, notice: Notice, record: JobRecord) -> list[Given]:
        """Return the new estimates to store after a notice, including that of a new job."""
        if notice.kind == "submitted":
            self.at_submission(record.spec.id)
        new, self._unkept = self._unkept, []
        return new

    def _give(self, given: Sequence[Given]) -> list[Given]:
        for each in given:
            self._bits[each.job] = _bits(each)
            self.heard.calibration.give(each)
        return [*given]

    async def _keep(self, given: Sequence[Given]) -> None:
        """Store estimates. If the journal is unavailable, they last until the next restart."""
        if given:
            with suppress(JournalError):
                await self.store.keep(given)

    async def _refresh(self) -> None:
        """Simulate repeatedly, using at most half of one core."""
        while True:
            if self._changed and self._service.ready and self._knows():
                self._changed = False
                await self.look()
            await self._until_due()

    async def _until_due(self) -> None:
        """Wait for the next simulation.

        A change of the policy's options starts it at once. A new job under a policy that resizes
        jobs starts it early, but not before the pause that follows each simulation has ended.
        """
        wait = self.pace.wait
        rest = min(wait, max(ETA_LEAST, self.pace.rest))
        for event, seconds in ((self._retuned, rest), (self._lacking, wait - rest)):
            with suppress(TimeoutError):
                await asyncio.wait_for(event.wait(), seconds)
                break
        self._retuned.clear()
        self._lacking.clear()

    async def look(self) -> None:
        """Simulate the current state, and record the estimates that are due."""
        service, pace, began = self._service, self.pace, perf_counter()
        try:
            answer = await child_worker(
                self._work, seconds=WITHIN, nice=KINDNESS, settled=service.settled,
                line=self._line, paused=service.watch.paused,
            )  # fmt: skip
        except (ChildTimeoutError, ChildKilledError) as error:
            self._changed = True  # retry even if nothing else happens
            pace.failed(perf_counter() - began)
            then = f"next try in {pace.wait:,.0f} s with {pace.worlds} simulated worlds"
            mend = "reduce the number of active jobs, or set daemon.estimates = false"
            service.parts.say(PART, f"{error}; {then}", mend)
            return
        except UnavailableError as error:
            self._changed = True
            service.parts.say(
                PART, str(error), "the daemon retries when the journal can be read again"
            )
            return
        except ChildFailedError as error:
            service.parts.say(PART, f"internal error: {error}", "report it")
            return
        service.parts.say(PART)
        await self.looked(Outlook.decode(answer))
        pace.done(perf_counter() - began)

    async def looked(self, outlook: Outlook) -> None:
        """Use this simulation result from now on, and record the estimates that are due."""
        self.outlook, self._given = outlook, {}
        await self._all()

    def _work(self) -> bytes:
        """Run the simulation; called in the child process."""
        gc.freeze()  # collect the garbage of each world, without scanning the objects of the daemon
        gc.enable()
        heard, service = self.heard, self._service
        now = service.clock.now()
        solvers = PlayoutSolvers(service.engine.core.policy, service.solver, SOLVING)
        return outlook(
            service.engine, heard.lasting, heard.lately, now, self.pace.worlds, solvers
        ).encode()

    async def _all(self) -> None:
        """Record due estimates: a job gets one when its age passes a power of two seconds."""
        jobs = self._service.book.jobs
        self._bits = {job_id: bits for job_id, bits in self._bits.items() if job_id in jobs}
        new: list[Given] = []
        for i, job_id in enumerate([*jobs]):
            record = jobs.get(job_id)
            if record is not None and self._is_due(record):
                given = self.estimate(record)
                new += self._give([given] if given is not None else [])
            if not i % AT_ONCE:
                await self._keep(new)
                new = []
                await asyncio.sleep(0)
        await self._keep(new)

    def _is_due(self, record: JobRecord) -> bool:
        here = self._service.clock.now() - record.submitted
        return int(here).bit_length() > self._bits.get(record.spec.id, NONE_GIVEN)

    def _knows(self) -> bool:
        """Return whether any job can be estimated. O(active jobs) until enough jobs have run."""
        self._advance()
        return self.heard.lasting.knows() or any(
            map(self._suffices, self._service.book.jobs.values())
        )

    def _advance(self) -> None:
        """Count jobs that have run, until enough are counted.

        An ended job is counted only some time after its end, and there may be no event then.
        """
        if not self.heard.lasting.knows():
            self.heard.lasting.advance(self._service.clock.now())

    def _suffices(self, record: JobRecord) -> bool:
        shares = self._service.engine.core.policy.shares
        return suffices(self.heard, record, shares=shares)

    def estimate(self, record: JobRecord) -> Given | None:
        """Return the current estimate of a job without recording it; None where there is none.

        O(worlds²) for a job that was not pending in the newest simulation.
        """
        if not self.ready:
            return None
        self._advance()
        core = self._service.engine.core
        return estimate(
            self.heard, self.outlook, record, self._service.clock.now(),
            queue_of(core, record.core), resizes=core.policy.needs.resizing,
            shares=core.policy.shares,
        )  # fmt: skip

    def known(self, jobs: int) -> EstimateContext | None:
        """Return the context of a what-if question about `jobs` jobs; None before `ready`."""
        if not self.ready:
            return None
        self._advance()
        return EstimateContext(self.heard, self.outlook, self.pace.fits(jobs))

    def why_unknown(self, record: JobRecord) -> str:
        """Return the reason why a job has no estimate."""
        if why := why_not(record):
            return why
        if self._off:
            return "estimates are turned off (daemon.estimates = false)"
        if not self.ready:
            return "the daemon is still reading its history"
        self._advance()
        if not self._suffices(record):
            return self._too_little(record)
        return "the job is newer than the last simulation, and no similar job is pending"

    def _too_little(self, record: JobRecord) -> str:
        """Return what is missing for an estimate of this job."""
        lasting, pool = self.heard.lasting, record.spec.pool
        seen = lasting.observed()
        have = "has" if seen == 1 else "have"
        shares = self._service.engine.core.policy.shares
        silent = lasting.unstated(None if shares else pool)
        of, do = "" if shares else f" of pool {pool}", "does" if silent == 1 else "do"
        return (
            f"not known yet: {LEAST:.0f} jobs must have run first, and {seen} {have}; or all active"
            f" jobs{of} must state their run times (--estimate), and {silent} {do} not"
        )


def _bits(given: Given) -> int:
    """Return the bit length of the job's age, in seconds, when the estimate was made."""
    here = given.made - given.submitted
    return int(here).bit_length() if here < inf else 0
