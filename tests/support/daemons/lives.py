"""An engine in virtual time: jobs run as long as the test says."""

from heapq import heapify, heappop, heappush
from math import inf
from typing import NamedTuple

from daemon.engine.engine import Engine
from daemon.journal.journal import JournalEntry, parts_of
from daemon.model.inputs import Ended, Lost, Started, Stopped, Tick
from daemon.model.outputs import PreemptEffect, StartEffect, StopEffect
from daemon.runtime.clock import Anchor


class Life:
    """Steps one engine as the service and a backend would, and keeps its decisions.

    `lasts` says how many seconds a job runs at its own width; `breaks` after how many seconds its
    first attempt is lost. A job that is told to stop is gone at once. `forecaster` is asked before
    steps and told after them, as live.
    """

    def __init__(self, engine, lasts, *, journal=None, breaks=(), forecaster=None, keep=True):
        self.engine, self.lasts, self.breaks = engine, lasts, dict(breaks)
        self.journal, self.forecaster, self.keep = journal, forecaster, keep
        self.decisions, self.notices, self.over, self.lent = [], [], [], []
        self._ends, self._order = [], 0
        if journal is not None and not journal.last:
            for part in parts_of(0, engine.dump()):
                journal.save(part)

    def step(self, now, inputs):
        seen = [*inputs]
        if self.forecaster is not None:
            seen = self.forecaster.before(now, seen, self.engine.book)
        step = self.engine.step(now, seen)
        if self.keep:
            self.decisions += [(now, each) for each in step.decisions]
            self.notices += step.notices
            self.over += step.over
            self.lent += step.booked.lent
        if self.forecaster is not None:
            self.forecaster.after(now, step)
        if self.journal is not None:
            anchor, seq = Anchor("", 0.0, now), self.journal.last + 1
            self.journal.commit(JournalEntry.of(seq, anchor, seen, step, ()))
        if seen := [*self._carried_out(now, step.effects)]:
            self.step(now, seen)
        return step

    def _carried_out(self, now, effects):
        """Yield what a backend reports at once."""
        for effect in effects:
            key = effect.job, effect.attempt
            self._order += 1
            if isinstance(effect, StartEffect):
                lost = effect.attempt == 1 and effect.job in self.breaks
                lasts = self.breaks[effect.job] if lost else left(effect, self.lasts(effect.spec))
                heappush(self._ends, (now + lasts, self._order, *key, lost))
                yield Started(*key)
            elif isinstance(effect, PreemptEffect):
                self._ends = [end for end in self._ends if end[2:4] != key]
                heapify(self._ends)
                yield Stopped(*key)
            elif isinstance(effect, StopEffect) and effect.kind == "end":
                heappush(self._ends, (now, self._order, *key, False))

    def run(self, story=(), until=inf):
        """Make a step for each (time, inputs) in order of time, then run until nothing is left."""
        story = [*story]
        place = 0
        while True:
            coming = story[place][0] if place < len(story) else inf
            ends = self._ends[0][0] if self._ends else inf
            now = min(coming, ends, max(self.engine.due, self.engine.core.state.now))
            if now > until or now == inf or (coming == ends == inf and not self._hope()):
                return self
            inputs = []
            while self._ends and self._ends[0][0] <= now:
                _, _, job, attempt, lost = heappop(self._ends)
                inputs.append(Lost(job, attempt, "broke") if lost else Ended(job, attempt, 0))
            while place < len(story) and story[place][0] <= now:
                inputs += story[place][1]
                place += 1
            self.step(now, inputs or [Tick()])

    def _hope(self):
        """Return whether a tick may change something, as policies want ticks for pending jobs."""
        book, shadow = self.engine.book, self.engine._shadow._shadow
        return bool(shadow is not None and shadow._ends) or any(
            pool.override for pool in book.pools.values()
        )


def left(order, lasts):
    """Return the seconds that an attempt takes, of a job that lasts so long in all."""
    return order.overhead + max(0.0, lasts - order.done) / order.speed


class Lived(NamedTuple):
    start: float
    end: float


def lived(life):
    """Return the start and end of each ended job by id."""
    return {r.spec.id: Lived(r.decided, r.ended) for r in life.over if r.decided is not None}


def alive(setup, lasts, **more):
    return Life(Engine.new(setup), lasts, **more)
