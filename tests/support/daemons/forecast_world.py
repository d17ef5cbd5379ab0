"""An engine and its forecaster in virtual time, and a history to read."""

from heapq import heappop, heappush
from random import Random

from daemon.engine.engine import Engine
from daemon.forecasts.forecaster import (
    Predictors,
)
from daemon.forecasts.history import JournalHistory
from daemon.model.inputs import (
    Ended,
    Started,
    Submit,
)
from daemon.model.setup import Setup
from sia.model import Pool
from tests.support.daemons.daemons import job

HOUR, DAY = 3600.0, 86400.0

MONDAY = 1_700_000_400.0
"""Some time since the epoch, a multiple of a tick."""

POOLS = (Pool("a", 8), Pool("b", 8))
SETUP = Setup(POOLS, policy="sia")


class World:
    """An engine, its jobs and its forecaster; virtual time, each job ends by itself."""

    def __init__(self, setup=SETUP, label="peaks+survival", seed=0):
        self.engine = Engine.new(setup)
        self.setup = setup
        self.random = Random(seed)
        self.predictors = Predictors(setup, label)
        self.forecaster = None
        self.ends = []
        self.over = []
        self.now = MONDAY
        self.taken = []  # all inputs of all steps

    def begin(self):
        story = JournalHistory(self.now, self.now)
        self.forecaster = self.predictors.make(story, None, None)

    def step(self, *inputs):
        if self.forecaster is not None:
            inputs = self.forecaster.before(self.now, inputs, self.engine.book)
        step = self.engine.step(self.now, inputs)
        self.taken += inputs
        self.over += step.over
        if self.forecaster is not None:
            self.forecaster.after(self.now, step)
        started = []
        for effect in step.effects:
            record = self.engine.book.jobs[effect.job]
            end = self.now + (record.spec.duration or 60.0)
            heappush(self.ends, (end, effect.job, effect.attempt))
            started.append(Started(effect.job, effect.attempt))
        if started:
            self.step(*started)
        return step

    def wait(self, until):
        """Advance the time: jobs end, and the forecaster gets its ticks."""
        while True:
            due = min(
                self.ends[0][0] if self.ends else until,
                max(self.now, self.forecaster.due) if self.forecaster else until,
                max(self.now, self.engine.due),
            )
            if due >= until:
                break
            self.now = due
            ended = []
            while self.ends and self.ends[0][0] <= self.now:
                _, job_id, attempt = heappop(self.ends)
                ended.append(Ended(job_id, attempt, code=0))
            self.step(*ended)
        self.now = until

    def live(self, hours):
        """Jobs of two users come at random; those of `short` last minutes, of `long` hours."""
        end = self.now + hours * HOUR
        count = len(self.taken)
        while True:
            gap = self.random.expovariate(1 / 900)
            if self.now + gap >= end:
                break
            self.wait(self.now + gap)
            count += 1
            user = self.random.choice(("short", "long"))
            seconds = self.random.uniform(60, 240) if user == "short" else 2.5 * HOUR
            spec = job(f"j{count}", self.random.choice("ab"), 1, user=user, duration=seconds)
            self.step(Submit(spec))
        self.wait(end)

    def story(self):
        """What the journal and the book know of it."""
        story = JournalHistory(MONDAY, self.now)
        story.add_alive(self.engine.book.jobs.values())
        story.add_ended(self.over)
        return story


def read_from(records):
    """As the journal reads: newest first, in pages."""

    async def read(before, limit):
        numbered = list(enumerate(records, 1))
        older = [(n, r) for n, r in numbered if not before or n < before]
        return older[::-1][:limit]

    return read
