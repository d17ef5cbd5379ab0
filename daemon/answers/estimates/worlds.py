"""Estimate start and end times by Monte Carlo simulation from the current state. Pure.

PCS (§4) simulates the current state once, with known run times. Here run times are unknown, so the
state is simulated several times. In each simulation, called a world, every job gets a run time
drawn from similar jobs that ran at least as long, and the arrivals are drawn from days of the last
two weeks. Load forecasts stay as last recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from contextlib import suppress
from math import ceil, inf

from msgspec import Raw, Struct, msgpack

from daemon.answers.estimates.recent_arrivals import DAY, RecentArrivals
from daemon.answers.simulate.futures import (
    began,
    ends,
    facts_of,
    limited,
    of_attempt,
    reported,
)
from daemon.answers.simulate.solving import PlayoutSolvers
from daemon.engine.engine import Engine
from daemon.model.book import JobRecord
from daemon.model.job import ON_GPUS
from predictors.random_forecast import draw
from predictors.run_time_distribution import RunTimeDistributions
from sia.core.core import Core
from sia.core.guard import PolicyFailedError, ask
from sia.core.playout import Arrival, Fact, Instant, no_solver, play
from sia.core.snapshot import Snapshot, dump, restore
from sia.decisions import StartJob
from sia.events import JobFinished, LendingSwitched
from sia.forecasts import RunTimes
from sia.model import Job
from sia.policies import make
from sia.policies.shared.elastic import least_width

WORLDS = 19
"""Number of worlds. Of 19 results in ascending order the 18th is the p90 (rank (n + 1) · q). A
prime, as `RunTimeDistributions.chances` requires."""

HORIZON = 7 * DAY
"""Simulated seconds, a week. An event after that is reported as beyond the horizon."""

COME = DAY
"""Arrivals are drawn for this many seconds. Later arrivals hardly change the starts of jobs that
are pending now, but would be most of the work."""

NEAR = 3600.0
"""Waits of simulated arrivals in this many seconds from now stand for the wait of a job that is
submitted now."""

MOST_NEAR = 100
"""Maximum number of such arrivals per queue: enough for a quantile of 0.9."""

FEW = 4
"""Minimum number of worlds that agree with the events since the simulation: with fewer, the p50 and
the p90 would be the same world."""

DRAWN = "\x1e"
"""Prefix of the ids of simulated arrivals; no client's job id contains this character."""


class MomentQuantiles(Struct, frozen=True, array_like=True):
    """Quantiles of a time in seconds since the epoch; infinite means beyond the horizon."""

    p50: float
    p90: float
    mean: float


class Times(Struct, frozen=True, array_like=True):
    """Start and end of a job; `start` is None if the job has started."""

    end: MomentQuantiles
    start: MomentQuantiles | None = None
    least: float = 0.0
    """Fewest seconds from the start to the end, of all that are thought possible."""


class JobOutcomes(Struct, frozen=True, array_like=True):
    """The end of a job in each world, and its start if the job was pending."""

    ends: list[float]
    starts: list[float] | None = None

    def times(self, made: float, now: float, *, runs: bool = False) -> Times | None:
        """Return the times of a job simulated at `made` whose event has not happened by `now`.

        The event is the start of a pending job and the end of a job that runs (`runs`). Return None
        if a running job has ended by `now` in all but fewer than `FEW` worlds.
        """
        if self.starts is None or runs:
            left = [end for end in self.ends if end > now or now <= made]
            return Times(spread(left)) if len(left) >= FEW else None
        starts, ends = self.starts, self.ends
        if now > made:
            pairs = [each for each in zip(starts, ends, strict=True) if each[0] > now]
            if len(pairs) < FEW:
                lasts = (_apart(*each) for each in zip(starts, ends, strict=True))
                pairs = [(s, s + t) for s, t in zip(overdue(made, now), lasts, strict=False)]
            starts, ends = [start for start, _ in pairs], [end for _, end in pairs]
        return Times(spread(ends), spread(starts), min(map(_apart, starts, ends)))


class QueueTail(Struct, frozen=True, array_like=True):
    """The start, in each world, of the last pending job of a width in a queue."""

    width: int
    starts: list[float]


class Pending(Struct, frozen=True, array_like=True):
    """Simulation results from which the wait of a job that joins a queue later is estimated."""

    tails: list[QueueTail]
    """The last pending job of each width, in queue order."""
    waits: list[tuple[int, float]]
    """Width and wait in seconds of simulated arrivals that did not start at once."""


class Outlook(Struct, frozen=True):
    """Simulation results for pending jobs, as seen from `now` (seconds since the epoch).

    Includes running jobs if the policy preempts jobs; otherwise they need no simulation.
    """

    now: float
    jobs: dict[str, Raw] = {}
    """Outcomes by job id, encoded. `times` decodes them on demand, because few are requested."""
    pools: dict[str, dict[int, Pending]] = {}
    """By pool and queue (`Policy.queue`)."""
    notes: list[str] = []
    """Notes on programs of the policy that the simulation did not solve."""

    def times(self, job_id: str, now: float | None = None, *, runs: bool = False) -> Times | None:
        """Return the times of a simulated job that is pending at `now` (or `runs`), or None.

        Worlds in which the job has started (or, if it runs, has ended) by `now` are ignored.
        """
        raw = self.jobs.get(job_id)
        if raw is None:
            return None
        return msgpack.decode(raw, type=JobOutcomes).times(
            self.now, self.now if now is None else now, runs=runs
        )

    def encode(self) -> bytes:
        """Encode as MessagePack, as JSON has no infinity."""
        return msgpack.encode(self)

    @classmethod
    def decode(cls, data: bytes) -> Outlook:
        """Decode the output of `encode`."""
        return msgpack.decode(data, type=cls)


def spread(times: Iterable[float]) -> MomentQuantiles:
    """Return the quantiles of these times, at rank (n + 1) · q, rounded up. O(n log n)."""
    ordered = sorted(times)
    count = len(ordered)
    places = (min(ceil((count + 1) * share), count) - 1 for share in (0.5, 0.9))
    p50, p90 = (ordered[place] for place in places)
    return MomentQuantiles(p50, p90, sum(ordered) / count)


def overdue(made: float, now: float) -> list[float]:
    """Return start times, one per world, of a job pending longer than in nearly all worlds.

    The probability that the job is still pending is assumed to halve each time the time since
    `made` doubles.
    """
    here = now - made
    return [now + here * i / (WORLDS - i) for i in range(WORLDS)]


def _apart(start: float, end: float) -> float:
    return end - start if end < inf else inf


def plain_job(record: JobRecord) -> Job:
    """Return the job for run-time distributions, under its public id."""
    spec = record.spec
    return Job(
        spec.id, spec.pool, record.submitted, spec.gpus, spec.user, spec.kind,
        estimate=spec.run_time,
    )  # fmt: skip


def queue_of(core: Core, core_id: str) -> int:
    """Return the queue of a job in its pool; 0 if the policy does not know the job."""
    job = core.state.jobs.get(core_id)
    if job is not None:
        with suppress(PolicyFailedError):
            queue: int = ask(core.policy, "queue", job)
            return queue
    return 0


def ran(record: JobRecord, now: float) -> float:
    """Return the seconds that a job has run; 0 if the backend has not reported yet that it runs."""
    return max(0.0, now - began(record, now)) if record.phase in ON_GPUS else 0.0


def outlook(
    engine: Engine,
    lasting: RunTimeDistributions,
    lately: RecentArrivals,
    now: float,
    worlds: int = WORLDS,
    solvers: PlayoutSolvers | None = None,
) -> Outlook:
    """Simulate the current state in this many worlds; the engine does not change.

    O(worlds · (jobs · log jobs + events until all pending jobs have started)).
    """
    return Playouts(engine, lasting, lately, now, worlds, solvers=solvers).outlook()


class Playouts:
    """Worlds simulated from the current state.

    Attributes:
        starts: Start of each pending job in each world, by core id.
        ends: End of each pending job in each world; if the policy preempts jobs, of running jobs
            too.
        facts: Planned changes, which every world has besides submissions and ends.
    """

    def __init__(
        self,
        engine: Engine,
        lasting: RunTimeDistributions,
        lately: RecentArrivals,
        now: float,
        worlds: int = WORLDS,
        only: Collection[str] | None = None,
        solvers: PlayoutSolvers | None = None,
    ) -> None:
        """Simulate until all pending jobs have started, or those in `only` (core ids).

        Without `solvers` the policy decides as after a failed program.
        """
        self.solvers = solvers
        self.engine, self.lasting, self.now, self.worlds = engine, lasting, now, worlds
        book, state = engine.book, engine.core.state
        self.stays = not engine.core.policy.needs.preemption
        self.records = {record.core: record for record in book.jobs.values() if record.core}
        self.waiting = [
            core_id
            for core_id, job in state.jobs.items()
            if job.stream is None and (only is None or core_id in only)
        ]
        self.starts: dict[str, list[float]] = {core_id: [] for core_id in self.waiting}
        asked = self.waiting if self.stays else self.records
        self.ends: dict[str, list[float]] = {core_id: [] for core_id in asked}
        self.waits: dict[tuple[str, int], list[tuple[int, float]]] = {}  # by pool and queue
        self._chances: dict[str, list[float]] = {}
        # The first event makes the core decide at once: wake-ups that were requested before are
        # lost in the copy.
        self.facts: list[Fact] = [LendingSwitched(now, book.lending), *facts_of(engine, now)]
        snapshot = dump(engine.core)
        for world in range(worlds):
            _World(self, lately, snapshot, world).play()

    def lasts(self, record: JobRecord, world: int) -> float:
        """Return the run time of a job's attempt in a world; of its whole work if it is pending."""
        job = plain_job(record)
        chances = self._chances.get(job.id)
        if chances is None:
            chances = self._chances[job.id] = self.lasting.chances(job, self.worlds)
        runs = record.stream is not None
        seconds = reported(record, self.now, chances[world]) if runs else None
        if seconds is None:
            worked = record.work(self.now)
            total = self.lasting.curve(job).quantile(chances[world], worked)
            if not runs:  # the core subtracts the work that the job has done before
                return record.done + limited(record, max(0.0, total - record.done))
            seconds = of_attempt(record, self.now, total)
        return max(ran(record, self.now), limited(record, seconds))

    def outlook(self) -> Outlook:
        """Return the combined results."""
        jobs = {}
        for core_id, record in self.records.items():
            if core_id in self.ends:
                jobs[record.spec.id] = Raw(msgpack.encode(self._runs(core_id)))
        notes = [] if self.solvers is None else self.solvers.notes()
        return Outlook(self.now, jobs, self._pools(), notes)

    def times(self, core_id: str) -> Times | None:
        """Return the times of a simulated job; None as in `JobOutcomes.times`."""
        return self._runs(core_id).times(self.now, self.now)

    def _runs(self, core_id: str) -> JobOutcomes:
        return JobOutcomes(self.ends[core_id], self.starts.get(core_id))

    def _pools(self) -> dict[str, dict[int, Pending]]:
        found: dict[str, dict[int, Pending]] = {}
        core = self.engine.core
        for name, pool in core.state.pools.items():
            last: dict[int, dict[int, str]] = {}  # by queue and width
            for job in pool.waiting():
                last.setdefault(queue_of(core, job.job.id), {})[job.job.width] = job.job.id
            queues = last.keys() | {queue for of, queue in self.waits if of == name}
            for queue in sorted(queues):
                tails = [
                    QueueTail(width, self.starts[core_id])
                    for width, core_id in last.get(queue, {}).items()
                    if core_id in self.starts
                ]
                waits = self.waits.get((name, queue), [])
                if tails or waits:
                    found.setdefault(name, {})[queue] = Pending(tails, waits)
        return found


class _DrawnRunTimes(RunTimes):
    """Estimated run times of simulated arrivals."""

    def __init__(self) -> None:
        self.estimates: dict[str, float] = {}

    def run_time(self, job: Job) -> float:
        return self.estimates[job.id]


class _Durations(dict[str, float]):
    """Run times of pending jobs in one world, computed when the jobs start."""

    def __init__(self, playouts: Playouts, world: int) -> None:
        super().__init__()
        self._playouts, self._world = playouts, world

    def __missing__(self, core_id: str) -> float:
        playouts = self._playouts
        seconds = self[core_id] = playouts.lasts(playouts.records[core_id], self._world)
        return seconds


class _World:
    """The simulation of one world."""

    def __init__(
        self, playouts: Playouts, lately: RecentArrivals, snapshot: Snapshot, world: int
    ) -> None:
        self._playouts, self._lately, self._world = playouts, lately, world
        self._core: Core = restore(snapshot, make(playouts.engine.book.setup.policy))
        self._core.tolerate()
        self._run_times, self._durations = _DrawnRunTimes(), _Durations(playouts, world)
        self._missing = set(playouts.ends)
        self._starts: dict[str, float] = {}
        self._ends: dict[str, float] = {}

    def play(self) -> None:
        """Simulate until all requested times are known, or up to the horizon."""
        if self._missing:
            self._play()
        for core_id, starts in self._playouts.starts.items():
            starts.append(self._starts.get(core_id, inf))
        for core_id, times in self._playouts.ends.items():
            times.append(self._ends.get(core_id, inf))

    def _play(self) -> None:
        playouts, now = self._playouts, self._playouts.now
        jobs = playouts.engine.book.jobs.values()
        running = ends(jobs, now, lambda record: playouts.lasts(record, self._world))
        solvers = playouts.solvers
        for instant in play(
            self._core,
            self._arrivals(now),
            run_times=self._run_times,
            facts=playouts.facts,
            running=[(end, record.core) for end, record in running],
            durations=self._durations,
            solve=no_solver if solvers is None else solvers.share(playouts.worlds),
            asked=playouts.engine.book.solving,
        ):
            if instant.now >= now + HORIZON:
                break
            self._record(instant)
            if not self._missing:
                break

    def _record(self, instant: Instant) -> None:
        for event in instant.events:
            if type(event) is JobFinished:
                self._end(event.job_id, instant.now)
        for decision in instant.decisions:
            if type(decision) is StartJob:
                self._start(decision.job_id, instant.now)

    def _end(self, core_id: str, time: float) -> None:
        if core_id in self._missing:
            self._ends[core_id] = time
            self._missing.discard(core_id)

    def _start(self, core_id: str, now: float) -> None:
        if core_id.startswith(DRAWN):
            self._wait(core_id, now)
        elif core_id not in self._starts and core_id in self._playouts.starts:
            self._starts[core_id] = now
        if self._playouts.stays and core_id in self._missing:
            self._end(core_id, now + self._durations[core_id])

    def _wait(self, core_id: str, now: float) -> None:
        """Record the wait of a simulated arrival that starts now."""
        playouts, job = self._playouts, self._core.state.jobs[core_id].job
        waited = now - job.submit
        if waited > 0 and job.submit < playouts.now + NEAR:
            queue = queue_of(self._core, core_id)
            waits = playouts.waits.setdefault((job.pool, queue), [])
            if len(waits) < MOST_NEAR:
                waits.append((job.width, waited))

    def _arrivals(self, now: float) -> list[Arrival]:
        """Return the simulated arrivals of the next `COME` seconds, in order of time."""
        playouts, found = self._playouts, list[Arrival]()
        pools, narrows = self._core.state.pools, self._core.policy.narrows
        drawn = self._lately.next(self._world, now, now + COME, now)
        for time, (job, estimate, ran_for) in sorted(drawn, key=lambda each: each[0]):
            pool = pools.get(job.pool)
            if pool is None or (least_width(job) if narrows else job.width) > pool.quota:
                continue
            number = len(found) + 1
            job_id = f"{DRAWN}{number}"
            seconds = ran_for
            if seconds is None:
                chance = draw("drawn", self._world, number) / 2.0**64
                seconds = playouts.lasting.curve(job).quantile(min(chance, 1 - 1e-9))
            self._run_times.estimates[job_id] = estimate
            arrival = Job(job_id, job.pool, time, job.width, job.user, job.name)
            found.append(Arrival(arrival, seconds))
        return found
