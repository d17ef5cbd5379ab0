"""Estimates beside the service: refreshed in a child, given, kept, held to what happens."""

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
from daemon.answers.estimates.predict import EstimateContext, estimate, why_not
from daemon.answers.estimates.table import EstimateMemory, EstimateStore, kept_by
from daemon.answers.estimates.worlds import Outlook, outlook
from daemon.answers.simulate.fork import (
    ChildFailedError,
    ChildKilledError,
    ChildTimeoutError,
    WorkerQueue,
    child_worker,
)
from daemon.forecasts.forecaster import ended_between
from daemon.forecasts.history import SPAN
from daemon.model.book import JobRecord
from daemon.model.errors import JournalError, UnavailableError
from daemon.model.outputs import Notice
from daemon.service.service import Service

ETA_EVERY = 30.0
"""Seconds of the daemon's clock between two refreshes: who has submitted a job looks again after
about as long."""

ETA_LEAST = 2.0
"""Seconds of the machine between them where that clock is a fast one: two hours, in the demo."""

KINDNESS = 19
"""How far the child steps back for others."""

AT_ONCE = 100
"""Jobs looked at, or notices heard, before others have the loop: a few milliseconds."""

SHARE = 0.2
"""Of the loop's time, what hearing of notices may take; who hears late catches up."""

MOST_GIVEN = 500
"""Estimates of new jobs between two refreshes; of others it is the refresh that says something, so
that a thousand jobs a second do not become a thousand rows a second."""

PART = "estimates"


class EtaService:
    """When jobs start and end, as far as anybody can say.

    Attributes:
        heard: What it goes by.
        pace: How often it looks ahead.
        ready: Whether it has heard of the past.
    """

    def __init__(self, service: Service, every: float = ETA_EVERY, *, off: bool = False) -> None:
        """Nothing is known before `run`; `off` says that nobody will."""
        every = min(every, service.clock.seconds_until(service.clock.now() + every))
        self._service, self._off, self.pace = service, off, SimulationBudget(max(ETA_LEAST, every))
        self.heard, self.ready = EstimateInputs(), False
        self.kept: EstimateStore = EstimateMemory()
        self.outlook: Outlook | None = None
        self._line = WorkerQueue()
        self._changed = True
        self._bits: dict[str, int] = {}  # of jobs alive: of the waiting time, when last given
        self._given: dict[str, Given] = {}  # at submission, since the last refresh
        self._unkept: list[Given] = []

    async def run(self) -> None:
        """Go on until cancelled."""
        after = await self._begin()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._follow(after))
            group.create_task(self._refresh())

    async def _begin(self) -> int:
        """Hear of the past; returns the number of the newest notice that is in it."""
        service, heard = self._service, EstimateInputs()
        self.ready, self.outlook = False, None
        self.kept = await kept_by(service)
        await service.settled()
        after, now = service.last_notice, service.clock.now()
        alive = heard.events(service.book.jobs.values())
        ended = await ended_between(service.past_jobs, now - SPAN, now)
        given = await self.kept.since(now - SPAN)
        await asyncio.to_thread(heard.learn, [*heard.events(ended, given), *alive])
        self._bits = {each.job: _bits(each) for each in given}
        self.heard, self.ready, self._changed = heard, True, True
        return after

    async def _follow(self, after: int) -> None:
        """Hear of what happens."""
        worked, new = 0.0, list[Given]()
        async for notice in self._service.notices(after):
            began = perf_counter()  # not before: who waits for something to happen takes no time
            record = await self._job(notice.job)
            self._changed |= self.heard.hear(notice, record)
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
        """What is said to who has just submitted a job; None for an array, or of too many.

        Asked twice, it says the same.
        """
        record = self._service.book.jobs.get(job_id)
        if record is None or job_id in self._bits or len(self._given) >= MOST_GIVEN:
            return self._given.get(job_id)
        given = self.estimate(record)
        if given is not None:
            self._given[job_id] = given
            self._unkept += self._give([given])
        return given

    def _new(self, notice: Notice, record: JobRecord) -> list[Given]:
        """What is kept of a job at its submission."""
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
        """Have them be durable; where that cannot be, they count until the next restart."""
        if given:
            with suppress(JournalError):
                await self.kept.keep(given)

    async def _refresh(self) -> None:
        """Look ahead, again and again: no more than half of the time."""
        while True:
            if self._changed and self._service.ready and self.heard.lasting.knows():
                self._changed = False
                await self.look()
            await asyncio.sleep(self.pace.wait)

    async def look(self) -> None:
        """Play the present forward, and give what is due."""
        service, pace, began = self._service, self.pace, perf_counter()
        try:
            said = await child_worker(
                self._work, seconds=WITHIN, nice=KINDNESS, settled=service.settled,
                line=self._line, paused=service.watch.paused,
            )  # fmt: skip
        except (ChildTimeoutError, ChildKilledError) as error:
            self._changed = True  # or nobody would try again where nothing more happens
            pace.failed(perf_counter() - began)
            then = f"tried again in {pace.wait:,.0f} s with {pace.worlds} worlds"
            mend = "fewer jobs take less time and memory; daemon.estimates = false has none of it"
            service.parts.say(PART, f"{error}; {then}", mend)
            return
        except UnavailableError as error:
            self._changed = True
            service.parts.say(PART, str(error), "it is tried again once the journal can be read")
            return
        except ChildFailedError as error:
            service.parts.say(PART, f"a defect of the daemon: {error}", "report it")
            return
        service.parts.say(PART)
        await self.looked(Outlook.decode(said))
        pace.done(perf_counter() - began)

    async def looked(self, outlook: Outlook) -> None:
        """Go by this from now on, and give what is due."""
        self.outlook, self._given = outlook, {}
        await self._all()

    def _work(self) -> bytes:
        """In a child: play."""
        gc.freeze()  # what the daemon has is not looked through, what each world leaves is
        gc.enable()
        heard, service = self.heard, self._service
        now = service.clock.now()
        return outlook(service.engine, heard.lasting, heard.lately, now, self.pace.worlds).encode()

    async def _all(self) -> None:
        """Give to all what is due: once per power of two of how long they have been here."""
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
        return int(here).bit_length() > self._bits.get(record.spec.id, -1)

    def estimate(self, record: JobRecord) -> Given | None:
        """What is to be said of a job now; None where nothing can be. It is not given by that.

        O(worlds²) for one that the newest playout has not seen waiting.
        """
        if not self.ready:
            return None
        return estimate(self.heard, self.outlook, record, self._service.clock.now())

    def known(self, jobs: int) -> EstimateContext | None:
        """What a question of these times, of a site of so many jobs, is answered by, if at all."""
        if not self.ready:
            return None
        return EstimateContext(self.heard, self.outlook, self.pace.fits(jobs))

    def why_unknown(self, record: JobRecord) -> str:
        """Why nothing is said of a job, in words."""
        if why := why_not(record):
            return why
        if self._off:
            return "the daemon makes no estimates: daemon.estimates is false"
        if not self.ready:
            return "the daemon has not gone through its history yet"
        if not self.heard.lasting.knows():
            return "too few jobs were seen for anybody to say how long one lasts"
        return "it came after the present was last played forward, and nothing like it waits"


def _bits(given: Given) -> int:
    """The power of two of the seconds that a job had been here."""
    here = given.made - given.submitted
    return int(here).bit_length() if here < inf else 0
