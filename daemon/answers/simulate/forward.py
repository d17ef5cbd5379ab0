"""The engine run forward in virtual time: all that it would do itself, were jobs to run as thought.

Unlike a playout of the core this is the whole of it: nodes that are out, limits of time, overrides
that end, jobs whose GPUs are not free yet. Nothing arrives, and what was last foreseen stays so.
It changes the engine: for a copy of it, as a child process has one. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush
from math import inf

from msgspec import Struct

from daemon.answers.simulate.futures import RunTimeOf, alive, ends
from daemon.engine.engine import Engine, Step
from daemon.model.inputs import Ended, Input, Tick
from daemon.model.outputs import Answer, StartEffect

STEPS = 10_000
"""Steps that may be played in any case: a month of ticks, five minutes each."""

STEPS_A_START = 10
"""Steps more for each start: mostly ends, and few of them start nobody."""


class PredictedStart(Struct, frozen=True, gc=False, array_like=True):
    """A job that starts, and when it is thought to end. Times are seconds since the epoch."""

    job: str
    pool: str
    gpus: int
    start: float
    end: float


class Played(Struct, frozen=True, gc=False):
    """What came of it up to a time, the starts in order."""

    until: float
    cut: bool
    """Whether it would have gone on, had more been allowed."""
    starts: list[PredictedStart]


class Forward:
    """One future of an engine, which is its own from now on."""

    def __init__(
        self, engine: Engine, now: float, think: RunTimeOf, pools: Collection[str] | None = None
    ) -> None:
        """Begin at a time, at or after the engine's last step.

        Args:
            engine: Nobody else uses it.
            now: Seconds since the epoch.
            think: How long jobs run; asked at their starts, and now of those that run.
            pools: Only their jobs are looked at; None for all. They must share nothing with others,
                whose jobs stay where they are.
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
        self.starts: list[PredictedStart] = []

    def do(self, inputs: Sequence[Input]) -> list[Answer]:
        """Have these happen now. The answers are those of the real thing."""
        step = self._engine.step(self.now, inputs)
        self._take(step)
        return step.answers

    def play(self, until: float, most: int) -> Played:
        """Go on up to a time, for so many starts at most, and not for ever without any."""
        steps = 0
        while (then := self._next()) <= until and then < inf:
            if len(self.starts) >= most or steps >= STEPS + STEPS_A_START * most:
                return Played(self.now, cut=True, starts=self.starts)
            self.now = then
            self.do(self._ended() or [Tick()])
            steps += 1
        return Played(until, cut=False, starts=self.starts)

    def _next(self) -> float:
        """When something happens next; infinite if nothing does."""
        due = max(self.now, self._engine.due)
        return min(due, self._ends[0][0]) if self._ends else due

    def _ended(self) -> list[Input]:
        """Jobs that end at this moment, each of the attempt that it is in."""
        over: list[Input] = []
        ends, jobs = self._ends, self._engine.book.jobs
        while ends and ends[0][0] <= self.now:
            _, _, job_id, attempt = heappop(ends)
            record = jobs.get(job_id)
            if record is not None and record.attempt == attempt:
                over.append(Ended(job_id, attempt, 0))
        return over

    def _take(self, step: Step) -> None:
        """See what a step has started and ended."""
        for effect in step.effects:
            record = self._engine.book.jobs.get(effect.job)
            if record is None:
                continue  # it was over in the same step
            spec = record.spec
            if self._pools is not None and spec.pool not in self._pools:
                continue
            if isinstance(effect, StartEffect):
                end = self.now + self._think(record)
                self.starts.append(PredictedStart(spec.id, spec.pool, spec.gpus, self.now, end))
                self._push(end, effect.job, effect.attempt)
            elif effect.kind == "end":
                self._push(self.now, effect.job, effect.attempt)

    def _push(self, end: float, job_id: str, attempt: int) -> None:
        heappush(self._ends, (end, self._order, job_id, attempt))
        self._order += 1
