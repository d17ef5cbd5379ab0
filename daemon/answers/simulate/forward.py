"""Run the engine in virtual time, with assumed run times.

Unlike a playout of the core, this runs the whole engine: node outages, time limits, ends of
overrides, and jobs whose GPUs are not free yet. No jobs arrive, and load forecasts stay as last
recorded. The run changes the engine, so use a copy, such as that of a forked process. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from msgspec import Struct

from daemon.answers.simulate.futures import RunTimeOf, alive, ends
from daemon.engine.engine import Engine, Step
from daemon.model.inputs import Ended, Input, Stopped, Tick
from daemon.model.outputs import Answer, PreemptEffect, StartEffect, StopEffect

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


class Forward:
    """Run an engine forward; the engine must not be used elsewhere afterwards."""

    def __init__(
        self, engine: Engine, now: float, think: RunTimeOf, pools: Collection[str] | None = None
    ) -> None:
        """Start at a time, at or after the engine's last step.

        Args:
            engine: The engine, for exclusive use.
            now: Seconds since the epoch.
            think: Returns the run time of a job; called now for running jobs and at each start.
            pools: Pools whose jobs are followed; None for all. They must not share GPUs with other
                pools, whose jobs do not move.
        """
        self._engine, self.now, self._think, self._pools = engine, now, think, pools
        engine.become_forecast()
        self._ends: list[tuple[float, int, str, int]] = []  # end, order, job, attempt
        self._order = 0
        for end, record in ends(alive(engine.book, pools), now, think):
            if record.placed:
                self._ends.append((end, self._order, record.spec.id, record.attempt))
                self._order += 1
        heapify(self._ends)
        self._stopped: list[Input] = []  # attempts that were told to stop; it takes no time
        self.starts: list[PredictedStart] = []

    def do(self, inputs: Sequence[Input]) -> list[Answer]:
        """Apply these inputs now, and return the engine's answers."""
        step = self._engine.step(self.now, inputs)
        self._take(step)
        return step.answers

    def play(self, until: float, most: int) -> Played:
        """Run up to a time, or until so many starts or the limit of steps is reached."""
        steps = 0
        while (then := self._next()) <= until and then < inf:
            if len(self.starts) >= most or steps >= STEPS + STEPS_A_START * most:
                return Played(self.now, cut=True, starts=self.starts)
            self.now = then
            self.do(self._ended() or [Tick()])
            steps += 1
        return Played(until, cut=False, starts=self.starts)

    def _next(self) -> float:
        """Return the time of the next event; infinite if there is none."""
        if self._stopped:
            return self.now
        due = max(self.now, self._engine.due)
        return min(due, self._ends[0][0]) if self._ends else due

    def _ended(self) -> list[Input]:
        """Return the ends and stops of jobs due now, with the attempt of each."""
        over, self._stopped = self._stopped, []
        ends, jobs = self._ends, self._engine.book.jobs
        while ends and ends[0][0] <= self.now:
            _, _, job_id, attempt = heappop(ends)
            record = jobs.get(job_id)
            if record is not None and record.attempt == attempt:
                over.append(Ended(job_id, attempt, 0))
        return over

    def _take(self, step: Step) -> None:
        """Record the starts and ends of a step."""
        for effect in step.effects:
            record = self._engine.book.jobs.get(effect.job)
            if record is None:
                continue  # the job ended in the same step
            spec = record.spec
            if self._pools is not None and spec.pool not in self._pools:
                continue
            if isinstance(effect, StartEffect):
                left = max(0.0, self._think(record) - effect.done) / effect.speed
                end = self.now + effect.overhead + left
                self.starts.append(PredictedStart(spec.id, spec.pool, effect.gpus, self.now, end))
                self._push(end, effect.job, effect.attempt)
            elif isinstance(effect, PreemptEffect):
                self._stopped.append(Stopped(effect.job, effect.attempt))
            elif isinstance(effect, StopEffect) and effect.kind == "end":
                self._push(self.now, effect.job, effect.attempt)

    def _push(self, end: float, job_id: str, attempt: int) -> None:
        heappush(self._ends, (end, self._order, job_id, attempt))
        self._order += 1
