"""Promises under `chronus` where all news come some milliseconds late: random stories."""

from heapq import heappop, heappush
from random import Random

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.model.inputs import Answered, Ended, Started, Stopped, Tick
from daemon.model.outputs import PreemptEffect, StartEffect
from tests.support.budget import budget
from tests.support.daemons.daemons import setup, submit

LEASE = 1200.0
MOST_LATE = 0.15
JOBS = 12


class LateDaemon:
    """An engine whose jobs run as estimated, and to which all news come late."""

    def __init__(self, seed):
        self.random, self.news, self.count = Random(seed), [], 0
        quotas = {"a": self.random.choice([4, 8]), "b": 4}
        made = replace(setup(**quotas), policy="chronus:profile=0")
        self.engine = Engine.new(replace(made, options=replace(made.options, owners=True)))
        self.run_times, self.runs, self.ends, self.promised, self.broken = {}, {}, {}, {}, []
        at, cost = 0.0, self.random.choice([0.0, 30.0])
        for number in range(JOBS):
            at += self.random.choice([0.0, 300.0, self.random.uniform(0, 1500)])
            self.plan(at, lambda name=f"j{number}", at=at: self.job(name, at, quotas, cost))

    def job(self, name, at, quotas, cost):
        """A job that mostly fills its leases exactly; its deadline leaves a few leases at most."""
        pool, seconds = (
            self.random.choice("ab"),
            self.random.choice([1170.0, 1200.0, 2400.0, 3600.0]),
        )
        self.run_times[name] = seconds
        leases = (at + seconds) // LEASE + self.random.choice([1, 1, 2, 4])
        deadline = None if self.random.random() < 0.25 else LEASE * leases
        gpus = self.random.choice([1, 2, 4, quotas[pool]])
        return submit(name, pool, gpus=gpus, run_time=seconds, preemptible=cost, deadline=deadline)

    def plan(self, at, news):
        """Let the engine hear something late; `news` makes the input, or returns None."""
        self.count += 1
        heappush(self.news, (at + self.random.uniform(0.005, MOST_LATE), self.count, news))

    def live(self):
        """Go on until all jobs have ended."""
        while self.news or len(self.ends) < JOBS:
            late = self.engine.due + self.random.uniform(0.005, MOST_LATE)
            now = min(late, self.news[0][0]) if self.news else late
            inputs = [Tick()]
            while self.news and self.news[0][0] <= now:
                heard = heappop(self.news)[2]()
                inputs += [] if heard is None else [heard]
            self.follow(now, self.engine.step(now, inputs))
        self.engine.check()

    def follow(self, now, step):
        for effect in step.effects:
            run = effect.job, effect.attempt
            if isinstance(effect, StartEffect):
                self.runs[effect.job] = effect.attempt
                self.plan(
                    now, lambda effect=effect, run=run, now=now: self.started(effect, run, now)
                )
            elif isinstance(effect, PreemptEffect):
                self.plan(now, lambda run=run: self.over(run, Stopped(*run)))
        for notice in step.notices:
            if notice.kind == "promised":
                self.promised[notice.job] = notice.data["latest"]
            elif notice.kind == "rejected" and notice.data.get("was_promised"):
                self.broken.append((now, notice.job))
        if self.engine.book.solving is not None:
            request = self.engine.book.solving.request
            self.plan(now, lambda: Answered(request, "error", []))

    def started(self, effect, run, now):
        """The attempt begins; it ends when the rest of its work is done."""
        if self.runs.get(effect.job) != effect.attempt:
            return None
        end = now + MOST_LATE + effect.overhead + self.run_times[effect.job] - effect.done
        self.plan(end, lambda: self.over(run, Ended(*run, 0), end))
        return Started(*run)

    def over(self, run, news, end=None):
        """An attempt has ended or stopped, unless it had before."""
        job, attempt = run
        if self.runs.get(job) != attempt:
            return None
        del self.runs[job]
        if end is not None:
            self.ends[job] = end
        return news


@pytest.mark.parametrize("seed", range(budget(ci=6, soak=300)))
def test_news_that_come_late_break_no_promise_of_jobs_that_fill_their_leases(seed):
    story = LateDaemon(seed)
    story.live()
    assert story.promised
    assert story.broken == []
    for job, latest in story.promised.items():
        assert story.ends[job] <= latest + 0.02 * LEASE
