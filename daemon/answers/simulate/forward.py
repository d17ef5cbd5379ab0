"""Run the engine in virtual time, with assumed run times.

Unlike a playout of the core, this runs the whole engine: node outages, time limits, ends of
overrides, and jobs whose GPUs are not free yet. No jobs arrive, and load forecasts stay as last
recorded. The run changes the engine, so use a copy, such as that of a forked process. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from msgspec import Struct

from daemon.answers.simulate.futures import RunTimeOf, alive, ends
from daemon.engine.engine import Engine, Step
from daemon.model.inputs import Answered, Ended, Input, Stopped, Tick
from daemon.model.job import JobPhase
from daemon.model.outputs import Answer, PreemptEffect, StartEffect, StopEffect
from sia.core.playout import End, Playout, Solve, no_solver

STEPS = 10_000
"""Base limit of steps: a month of ticks, five minutes each."""

STEPS_A_START = 10
"""Steps added to the limit per start: most steps end jobs, and few of them start none."""


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


class EnginePlayout(Playout[Step]):
    """Plays an engine forward; the engine must not be used elsewhere afterwards.

    Attributes:
        now: Time of the last step.
        starts: The starts so far, in order.
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
            run_time_of: Called now for running jobs, and at each start.
            pools: Pools whose jobs are followed; None for all. They must not share GPUs with other
                pools, whose jobs do not move.
            solve: Solves the policy's programs, and first the one that is open.
        """
        super().__init__(stops=True, solve=solve)
        engine.become_forecast()
        self._engine, self.now, self._run_time_of, self._pools = engine, now, run_time_of, pools
        self._stopped: list[Input] = []  # attempts that were told to stop; it takes no time
        for end, record in ends(alive(engine.book, pools), now, run_time_of):
            if record.placed and record.phase is not JobPhase.STOPPING:
                self.schedule_end(end, record.spec.id, record.attempt)
        for record in alive(engine.book, pools):
            if record.phase is JobPhase.STOPPING:
                self._stopped.append(Stopped(record.spec.id, record.attempt))
        self._asked = 0  # number of the latest program that was solved
        self.starts: list[PredictedStart] = []
        self._plan_step()

    def apply(self, inputs: Sequence[Input]) -> list[Answer]:
        """Apply these inputs now, and return the engine's answers."""
        return self._apply(inputs).answers

    def play(self, until: float, most: int) -> Played:
        """Run up to a time, or until so many starts or the limit of steps is reached."""
        instants, steps = self.instants(until), 0
        while len(self.starts) < most and steps < STEPS + STEPS_A_START * most:
            if next(instants, None) is None:
                return Played(until, cut=False, starts=self.starts)
            steps += 1
        cut = self.next_time() <= until
        return Played(self.now if cut else until, cut=cut, starts=self.starts)

    def step(self, now: float, ended: Sequence[End]) -> Step:
        """Report stops, these ends and a solver's answer to the engine, or make a tick."""
        self.now = now
        inputs, self._stopped = self._stopped, []
        inputs += (Ended(job_id, attempt, 0) for _, _, job_id, attempt in ended)
        if (answer := self.heard(now)) is not None:
            inputs.append(Answered(answer.request, answer.status, answer.values, answer.bound))
        return self._apply(inputs or [Tick()])

    def is_valid(self, end: End) -> bool:
        """Return whether the end is that of the job's current attempt."""
        _, _, job_id, attempt = end
        record = self._engine.book.jobs.get(job_id)
        return record is not None and record.attempt == attempt

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
            elif isinstance(effect, PreemptEffect):
                self._stopped.append(Stopped(effect.job, effect.attempt))
            elif isinstance(effect, StopEffect) and effect.kind == "end":
                self.schedule_end(self.now, effect.job, effect.attempt)
        self._plan_step()
        return step

    def _plan_step(self) -> None:
        """Solve what the policy asks for, and set when the next step is due."""
        engine, asked = self._engine, self._engine.book.solving
        if asked is None:
            self._answer = None
        elif asked.request != self._asked:
            self._asked = asked.request
            self.ask(self.now, asked, engine.core.state.options.tick)
        due = engine.due if self._answer is None else min(engine.due, self._answer.time)
        self.due = self.now if self._stopped else max(self.now, due)
