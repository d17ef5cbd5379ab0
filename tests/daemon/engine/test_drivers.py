"""Replay and engine decide alike: the same policy, the same jobs, event for event."""

from heapq import heappop, heappush
from math import inf
from random import Random

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.model.book import job_of
from daemon.model.inputs import Answered, Ended, Started, Stopped, Submit, Tick
from daemon.model.job import JobSpec
from daemon.model.outputs import PreemptEffect, StartEffect
from daemon.model.setup import Setup
from predictors.perfect import PerfectRunTimes
from sia import Core
from sia.core.playout import Arrival, play
from sia.decisions import PreemptJob, ResizeJob, StartJob
from sia.events import JobFinished
from sia.policies import load, make, names
from tests.support.budget import budget
from tests.support.builders import SMALL, random_workload

ROUNDS = budget(ci=5, soak=200)

WITHOUT_TRIALS = {"chronus": "chronus:profile=0"}
"""The profiler leaves too few GPUs for some jobs, so that an engine would never be done."""

LIVE = [WITHOUT_TRIALS.get(name, name) for name in names() if not load(name).needs.future]


def elastic(rng, arrival):
    """The job with widths, priority and a cost of stops."""
    job = arrival.job
    changed = replace(
        job,
        min_width=rng.randint(1, job.width),
        max_width=job.width,
        preemptible=rng.choice([None, 0.0, 3.0, "restart", "never"]),
        priority=rng.choice([0, 0, 0, 1]),
    )
    return Arrival(changed, max(1.0, float(arrival.duration)))  # the engine takes 0 for unknown


def urgent(rng, arrival):
    """The job sooner, often with a deadline, and most without a word on what a stop costs."""
    job, duration = arrival.job.submitted_at(arrival.job.submit // 2), arrival.duration + 1.0
    changed = replace(
        job,
        deadline=rng.choice([None, job.submit + duration * rng.uniform(1.0, 3.0)]),
        preemptible=rng.choice([None, None, None, 3.0, "never"]),
    )
    return Arrival(changed, duration)


def told(now, events, decisions):
    """Ends, starts, stops and new widths, by the job's own id."""
    for job_id in sorted(job_of(each.job_id) for each in events if isinstance(each, JobFinished)):
        yield now, "end", job_id
    for each in decisions:
        if isinstance(each, StartJob | ResizeJob):
            yield now, type(each).__name__, job_of(each.job_id), each.width, each.stream
        elif isinstance(each, PreemptJob):
            yield now, "kill" if each.kill else "stop", job_of(each.job_id)


def replayed(policy, owned, arrivals, options):
    core = Core(owned, make(policy), options)
    run_times = PerfectRunTimes({a.job.id: a.duration for a in arrivals})
    for now, events, decisions in play(core, arrivals, run_times=run_times):
        yield from told(now, events, decisions)


class Machine:
    """Runs what the engine orders; orders are carried out at once."""

    def __init__(self, policy, owned, arrivals, options):
        self.engine = Engine.new(Setup(tuple(owned), policy, options, resizes=False))
        self.arrivals = [*arrivals]
        self.durations = {a.job.id: a.duration for a in arrivals}
        self.ends, self.starts, self.seen = [], 0, []

    def live(self):
        while (now := self.next_time()) < inf:
            inputs = [*self.due(now)] or [Tick()]
            while inputs:  # what the backend reports at once makes further steps of the instant
                step = self.engine.step(now, inputs)
                self.engine.check()
                self.seen += told(now, step.events, step.decisions)
                inputs = [*self.carried_out(now, step.effects), *self.solved(now)]
        return self.seen

    def solved(self, now):
        """What a daemon without a solver answers, as a replay without one does."""
        asked = self.engine.book.solving
        if asked is not None:
            yield Answered(asked.request, "failed")

    def next_time(self):
        while self.ends and not self.runs(*self.ends[0][2:]):
            heappop(self.ends)
        submits = [arrival.job.submit for arrival in self.arrivals[:1]]
        return min([self.engine.due, *submits, *(end[0] for end in self.ends[:1])])

    def runs(self, job_id, attempt):
        record = self.engine.book.jobs.get(job_id)
        return record is not None and record.attempt == attempt

    def due(self, now):
        while self.ends and self.ends[0][0] <= now:
            _, _, job_id, attempt = heappop(self.ends)
            if self.runs(job_id, attempt):
                yield Ended(job_id, attempt, code=0)
        while self.arrivals and self.arrivals[0].job.submit <= now:
            job, duration = self.arrivals.pop(0)
            spec = JobSpec(
                job.id, job.pool, job.width, min_width=job.min_width, max_width=job.max_width,
                preemptible=job.preemptible, priority=job.priority, deadline=job.deadline,
            )  # fmt: skip
            yield Submit(spec, duration)

    def carried_out(self, now, effects):
        for effect in effects:
            if isinstance(effect, StartEffect):
                record = self.engine.book.jobs[effect.job]
                job = self.engine.core.state.jobs[record.core]
                self.starts += 1
                end = max(now, job.end(self.durations[effect.job]))
                heappush(self.ends, (end, self.starts, effect.job, effect.attempt))
                yield Started(effect.job, effect.attempt)
            elif isinstance(effect, PreemptEffect):
                yield Stopped(effect.job, effect.attempt)


@pytest.mark.parametrize("cost", [0.0, 3.0])
@pytest.mark.parametrize("policy", LIVE)
def test_replay_and_engine_decide_alike(policy, cost):
    for seed in range(ROUNDS):
        rng = Random(seed)
        owned, arrivals = random_workload(rng)
        arrivals = [elastic(rng, arrival) for arrival in arrivals]
        options = replace(SMALL, resume_cost=cost)
        live = Machine(policy, owned, arrivals, options).live()
        assert live == [*replayed(policy, owned, arrivals, options)], f"seed {seed}"


@pytest.mark.parametrize("cost", [0.0, 3.0])
@pytest.mark.parametrize("policy", ["jvu:puo:cycle=1", "prio:kill"])
def test_replay_and_engine_decide_alike_where_work_is_lost(policy, cost):
    kills = 0
    for seed in range(ROUNDS):
        rng = Random(seed)
        owned, arrivals = random_workload(rng)
        arrivals = [urgent(rng, arrival) for arrival in arrivals]
        options = replace(SMALL, resume_cost=cost)
        live = Machine(policy, owned, arrivals, options).live()
        assert live == [*replayed(policy, owned, arrivals, options)], f"seed {seed}"
        kills += sum(each[1] == "kill" for each in live)
    assert kills > 0
