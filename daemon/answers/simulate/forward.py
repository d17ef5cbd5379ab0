"""Run the engine in virtual time, with assumed run times.

Unlike a playout of the core, this runs the whole engine, with node outages, time limits, ends of
overrides, and jobs that wait until their GPUs become free. No jobs arrive, and the load forecasts
stay as last recorded. The run changes the engine, so pass a copy, such as that of a forked process.
Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from msgspec import Struct

from daemon.answers.simulate.futures import RunTimeOf, alive, began, ends
from daemon.engine.engine import Engine, Step
from daemon.model.book import JobRecord
from daemon.model.inputs import Answered, Ended, Input, Resized, Started, Stopped, Tick
from daemon.model.job import JobPhase
from daemon.model.outputs import Answer, PreemptEffect, ResizeEffect, StartEffect, StopEffect
from sia.core.playout import End, Playout, Solve, no_solver
from sia.model import Stream

STEPS = 10_000
"""Maximum number of steps of a run that starts no job: a month of ticks, one in five minutes."""

STEPS_A_START = 10
"""Steps added to this maximum for each start: most steps end jobs, and few of them start any."""


class PredictedStart(Struct, frozen=True, gc=False, array_like=True):
    """A predicted start and end of a job. Times are seconds since the epoch."""

    job: str
    pool: str
    gpus: int
    start: float
    end: float


class Played(Struct, frozen=True, gc=False):
    """The result of a run up to a time, with the starts in order."""

    until: float
    cut: bool
    """True if the run stopped at its limit of starts or steps."""
    starts: list[PredictedStart]
    ends: dict[str, float] = {}
    """Time at which each job ended, by job id."""
    guests: dict[str, int] = {}
    """Number of starts of guests in each pool, under a policy that stops jobs."""
    stops: dict[str, int] = {}
    """Number of stops of each pool's jobs."""


class EnginePlayout(Playout[Step]):
    """Plays an engine forward; the engine must not be used elsewhere afterwards.

    Attributes:
        now: Time of the last step.
        starts: The starts so far, in order.
        ends: When jobs ended so far, by id.
    """

    def __init__(
        self,
        engine: Engine,
        now: float,
        run_time_of: RunTimeOf,
        pools: Collection[str] | None = None,
        solve: Solve = no_solver,
    ) -> None:
        """Start at a time, at or after the engine's last step.

        Args:
            engine: The engine, for exclusive use.
            now: Seconds since the epoch.
            run_time_of: Called once for each running job now, and for each job at its start.
            pools: Pools whose jobs are simulated; None for all. These pools must not share GPUs
                with other pools, because the jobs of other pools stay as they are.
            solve: Solves the policy's programs, beginning with the one that is open now.
        """
        super().__init__(stops=True, solve=solve)
        engine.become_forecast()
        self._engine, self.now, self._run_time_of, self._pools = engine, now, run_time_of, pools
        self._follows = engine.core.policy.needs.preemption  # it needs all start times
        self._seen: list[Input] = []  # by job: number of its valid scheduled end
        self._latest: dict[str, int] = {}  # by job: sequence number of its valid scheduled end
        for end, record in ends(alive(engine.book, pools), now, run_time_of):
            if record.placed and record.phase is not JobPhase.STOPPING:
                self.schedule_end(end, record.spec.id, record.attempt)
        for record in alive(engine.book, pools):
            if record.phase is JobPhase.STOPPING:
                self._seen.append(Stopped(record.spec.id, record.attempt))
            elif record.phase is JobPhase.STARTING and record.placed and self._follows:
                self._seen.append(Started(record.spec.id, record.attempt))
            elif record.phase is JobPhase.RUNNING and record.spec.id in engine.book.leaving:
                self._seen.append(_resized(record))
        self._asked = 0  # number of the latest program that was solved
        self.starts: list[PredictedStart] = []
        self.ends: dict[str, float] = {}
        self._guests, self._stops = Counter[str](), Counter[str]()  # by pool
        self._plan_step()

    def apply(self, inputs: Sequence[Input]) -> list[Answer]:
        """Apply these inputs now, and return the engine's answers."""
        return self._apply(inputs).answers

    def play(self, until: float, most: int) -> Played:
        """Run up to a time, or until `most` jobs have started or the limit of steps is reached."""
        instants, steps = self.instants(until), 0
        while len(self.starts) < most and steps < STEPS + STEPS_A_START * most:
            if next(instants, None) is None:
                return self._played(until, cut=False)
            steps += 1
        cut = self.next_time() <= until
        return self._played(self.now if cut else until, cut=cut)

    def _played(self, until: float, *, cut: bool) -> Played:
        return Played(until, cut, self.starts, self.ends, self._guests, self._stops)

    def step(self, now: float, ended: Sequence[End]) -> Step:
        """Report ends, reactions to effects and a solver's answer to the engine; else a tick."""
        self.now = now
        inputs, self._seen = self._seen, []
        inputs += (Ended(job_id, attempt, 0) for _, _, job_id, attempt in ended)
        if (answer := self.heard(now)) is not None:
            inputs.append(Answered(answer.request, answer.status, answer.values, answer.bound))
        self.ends.update((job_id, now) for _, _, job_id, _ in ended)
        made = self._apply(inputs or [Tick()])
        for each in inputs:
            record = self._engine.book.jobs.get(each.job) if isinstance(each, Resized) else None
            if record is not None and record.phase is JobPhase.RUNNING:
                end = began(record, now) + self._run_time_of(record)
                self.schedule_end(max(now, end), record.spec.id, record.attempt)
        return made

    def is_valid(self, end: End) -> bool:
        """Return True if this end is valid for the job's current attempt and its current GPUs."""
        _, number, job_id, attempt = end
        record = self._engine.book.jobs.get(job_id)
        return record is not None and record.attempt == attempt and self._latest[job_id] == number

    def schedule_end(self, end: float, job_id: str, attempt: int) -> None:
        """Schedule the end of an attempt; it replaces an end scheduled for the job before."""
        super().schedule_end(end, job_id, attempt)
        self._latest[job_id] = self._scheduled

    def _apply(self, inputs: Sequence[Input]) -> Step:
        """Make a step; record its starts, and schedule the ends of its jobs."""
        step = self._engine.step(self.now, inputs)
        for effect in step.effects:
            record = self._engine.book.jobs.get(effect.job)
            if record is None:
                continue  # the job ended in the same step
            spec = record.spec
            if self._pools is not None and spec.pool not in self._pools:
                continue
            if isinstance(effect, StartEffect):
                end = self.now + self._run_time_of(record)
                self.starts.append(PredictedStart(spec.id, spec.pool, effect.gpus, self.now, end))
                self.schedule_end(end, effect.job, effect.attempt)
                if self._follows:
                    self._seen.append(Started(effect.job, effect.attempt))
                    self._guests[spec.pool] += record.stream is Stream.SPARE
            elif isinstance(effect, PreemptEffect):
                self._seen.append(Stopped(effect.job, effect.attempt))
                self._stops[spec.pool] += 1
            elif isinstance(effect, ResizeEffect):
                self._seen.append(_resized(record))
            elif isinstance(effect, StopEffect) and effect.kind == "end":
                self.schedule_end(self.now, effect.job, effect.attempt)
        self._plan_step()
        return step

    def _plan_step(self) -> None:
        """Solve the program that the policy asks for, and set the time of the next step."""
        engine, asked = self._engine, self._engine.book.solving
        if asked is None:
            self._answer = None
        elif asked.request != self._asked:
            self._asked = asked.request
            self.ask(self.now, asked, engine.core.state.options.tick)
        due = engine.due if self._answer is None else min(engine.due, self._answer.time)
        self.due = self.now if self._seen else max(self.now, due)


def _resized(record: JobRecord) -> Resized:
    """Return an attempt's report that it has narrowed itself as it was told to."""
    left, nodes = record.gpus, list[tuple[str, tuple[int, ...]]]()
    for node, gpus in record.nodes:
        if kept := gpus[:left]:
            nodes.append((node, kept))
        left -= len(kept)
    return Resized(record.spec.id, record.attempt, record.gpus, tuple(nodes))
