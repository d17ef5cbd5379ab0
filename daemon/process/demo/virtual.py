"""A daemon in virtual time: engine, forecasts and journal process many days at once.

The jobs are those of a crowd, and run as long as they state. The same seed gives the same days.
"""

from __future__ import annotations

from contextlib import closing
from heapq import heappop, heappush
from math import inf
from pathlib import Path

from daemon.config.config import Config
from daemon.doors.views.series.sampler import Gathered, store
from daemon.engine.engine import Engine, Step
from daemon.forecasts.forecaster import Predictors
from daemon.forecasts.history import SPAN, JournalHistory
from daemon.journal.journal import Journal, JournalEntry
from daemon.journal.recovery import recover
from daemon.journal.rows import parts_of
from daemon.model.inputs import Ended, Input, Started, Submit, Tick
from daemon.model.outputs import StartEffect
from daemon.process.build import setup_of
from daemon.process.demo.setting import spec_of
from daemon.runtime.clock import Anchor
from replay.synthetic.teams import Crowd
from sia.wording import MINUTE

SAMPLED = 15 * MINUTE
"""Seconds between two samples for the charts: as in the demo itself, whose hour takes a second."""


class VirtualDaemon:
    """Plays a daemon and its users from the end of its journal on.

    Attributes:
        engine: The engine, as of the last step.
        now: The daemon's time.
    """

    def __init__(self, config: Config, crowd: Crowd, origin: float) -> None:
        """Continue a journal; the crowd's second 0 is `origin` on the daemon's clock."""
        assert isinstance(config.database, Path), "the demo uses a file"
        self.crowd, self.origin = crowd, origin
        self.journal = Journal(
            config.database, keep_records=config.retention, keep_history=config.history
        )
        # Nobody has been promised anything yet; a sync for each step would take most of the time.
        self.journal.store.run("PRAGMA synchronous=OFF")
        setup = setup_of(config, None, {})
        self.engine: Engine = recover(self.journal, setup)
        anchor = self.journal.anchor()
        assert anchor is not None, "the journal has begun"
        self.now = anchor.now
        past = JournalHistory(self.now - SPAN, self.now)
        past.add_ended(record for _, record in reversed(self.journal.history(0, 10**9)))
        self._forecaster = Predictors(setup, config.forecast).make(past, None, None)
        self._coming: list[tuple[float, int, Input]] = []
        self._count = 0
        self._gathered, self._sampled = Gathered(), self.now

    def play(self, until: float) -> None:
        """Simulate up to this time."""
        while (now := self._next()) <= until:
            self._sample(now)
            self.now = now
            self._step(now)
        self._sample(until)
        self.now = until

    def _sample(self, until: float) -> None:
        """Take the samples of the time in which nothing has happened since the last step."""
        engine = self.engine
        while self._sampled + SAMPLED <= until:
            self._sampled += SAMPLED
            engine.settle_accounts()
            self._gathered.sample_pools(engine, self._sampled)
            self._gathered.sample_users(engine.book.jobs.values(), self._sampled)

    def close(self) -> None:
        """Write a snapshot, from which a daemon continues, and close the journal."""
        with closing(self.journal) as journal:
            for part in parts_of(journal.last, self.engine.dump()):
                journal.save(part)
            store(journal, self._gathered, self.now)

    def _next(self) -> float:
        """Return the time of the next event."""
        times = (
            self.origin + self.crowd.next,
            self._coming[0][0] if self._coming else inf,
            self.engine.due,
            self._forecaster.due,
        )
        return max(self.now, min(times))

    def _step(self, now: float) -> None:
        inputs: list[Input] = []
        while self._coming and self._coming[0][0] <= now:
            inputs.append(heappop(self._coming)[2])
        while self.origin + self.crowd.next <= now:
            due = self.crowd.due(self.crowd.next)
            inputs += (Submit(spec_of(arrival)) for arrival in due)
        if not inputs and self.engine.due <= now:
            inputs = [Tick()]
        inputs = self._forecaster.before(now, inputs, self.engine.book)
        if not inputs:
            return
        step = self.engine.step(now, inputs)
        self._forecaster.after(now, step)
        entry = JournalEntry.of(self.journal.last + 1, Anchor("", 0.0, now), inputs, step, ())
        self.journal.commit(entry)
        self._follow(now, step)

    def _follow(self, now: float, step: Step) -> None:
        """Start jobs, and tell users that their jobs have ended."""
        for effect in step.effects:
            assert isinstance(effect, StartEffect), "nobody stops jobs here"
            self._plan(now, Started(effect.job, effect.attempt))
            assert effect.spec.duration is not None, "the crowd says how long its jobs last"
            self._plan(now + effect.spec.duration, Ended(effect.job, effect.attempt, 0))
        for record in step.over:
            self.crowd.ended(now - self.origin, record.spec.id)

    def _plan(self, time: float, what: Input) -> None:
        self._count += 1
        heappush(self._coming, (time, self._count, what))
