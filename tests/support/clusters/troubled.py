"""Random histories of clusters (failures, changed quotas, preemption) and the core's decisions."""

from contextlib import suppress
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from cells.cells import Cells
from cells.layout.spec import Spec
from replay.cluster.cells_file import whole_spec
from replay.logs.trace import PoolTable
from sia import Core
from sia.contract.proposals import Start
from sia.decisions import ResizeJob, StartJob, WakeAt
from sia.events import (
    ForecastUpdated,
    GpusOut,
    JobCancelled,
    JobFinished,
    JobPreempted,
    JobProgressed,
    JobSubmitted,
    LendingSwitched,
    NodeBack,
    NodeOut,
    PoolChanged,
    PriorityChanged,
    RunTimesUpdated,
    TimePassed,
)
from sia.limits import NEVER
from sia.model import Estimate, Load, Stream
from sia.policies.preemptive.las import Las, LasParams
from sia.policies.sia.recall import RecallParams, SiaRecall
from tests.sia.policies.test_policies import random_choices
from tests.sia.test_places import random_story
from tests.support.builders import limited, random_workload, revealed
from tests.support.clusters.cells import TYPES
from tests.support.cores import random_quotas

MOST = 100
"""Steps of a history: enough for many jobs to end."""


class Step(NamedTuple):
    now: float
    events: list
    answer: bytes


def step(core, now, events):
    """The decisions of a step, their bytes, and refused proposals."""
    try:
        decisions = core.step(now, events)
    except ValueError as error:
        return [], repr(error).encode()
    return decisions, msgspec.json.encode(decisions)


def rash(policy):
    """Return the policy with invalid proposals of starts in the middle of some passes."""

    class Rash(policy):
        def propose(self, now, changes):
            left, result, proposals = int(now) % 7, None, super().propose(now, changes)
            with suppress(StopIteration):
                while True:
                    proposal = proposals.send(result)
                    running = [job for job in self.state.jobs.values() if job.stream]
                    left -= isinstance(proposal, Start)
                    if isinstance(proposal, Start) and not left and running:
                        yield Start(running[0], Stream.SPARE, "again")
                    result = yield proposal

    Rash.__name__ = policy.__name__
    return Rash


class History:
    """Applies given events, ends of started jobs, and failures; `steps` holds the results."""

    def __init__(self, core, facts, durations, rng):
        self.first, self.core = core.copy(), core
        self.durations, self.rng = durations, rng
        self.facts = sorted(facts, key=lambda fact: fact.time)
        self.ends, self.starts, self.wake = [], 0, inf
        self.steps = []
        while len(self.steps) < MOST and (now := self.next_time()) < inf:
            self.live(now, [*self.happen(now), *self.trouble(now)])

    def next_time(self):
        while self.ends and not self.holds(self.ends[0]):
            heappop(self.ends)
        facts = [fact.time for fact in self.facts[:1]]
        return min([self.wake, *facts, *(end[0] for end in self.ends[:1])])

    def holds(self, end):
        job = self.core.state.jobs.get(end[2])
        return job is not None and job.attempt == end[3] and job.stream is not None

    def happen(self, now):
        while self.ends and self.ends[0][0] <= now:
            end = heappop(self.ends)
            if self.holds(end):
                yield JobFinished(now, end[2])
        while self.facts and self.facts[0].time <= now:
            yield self.facts.pop(0)
        if self.wake <= now:
            self.wake = inf
            yield TimePassed(now)

    def trouble(self, now):
        rng, state = self.rng, self.core.state
        waiting = [job.job.id for job in state.jobs.values() if job.stream is None]
        if rng.random() < 0.1:
            windows = range(len(state.options.windows))
            loads = [Load(p, w, rng.randint(0, 9)) for p in state.pools for w in windows]
            yield ForecastUpdated(now, rng.sample(loads, k=rng.randint(1, len(loads))))
        if waiting and self.core.policy.needs.updates and rng.random() < 0.1:
            yield RunTimesUpdated(now, [Estimate(rng.choice(waiting), float(rng.randint(0, 200)))])
        yield from self.progress(now)
        if waiting and rng.random() < 0.1:
            yield PriorityChanged(now, rng.choice(waiting), rng.randint(-2, 2))
        if rng.random() < 0.03:
            yield LendingSwitched(now, on=rng.random() < 0.6)
        if rng.random() < 0.05:  # refused on cells, after the earlier proposals were carried out
            yield GpusOut(now, rng.choice([*state.pools]), rng.choice([0, 0, 2, 6]))
        if waiting and rng.random() < 0.05:
            yield JobCancelled(now, rng.choice(waiting))
        if rng.random() < 0.05:
            yield JobCancelled(
                now, "nobody"
            )  # refused after the earlier proposals were carried out

    def progress(self, now):
        """Reports of running jobs, and of what stopped jobs have kept."""
        rng, jobs = self.rng, self.core.state.jobs.values()
        running = [job for job in jobs if job.stream is not None]
        if running and rng.random() < 0.1:
            job = rng.choice(running)
            done = job.work(now) + rng.choice([0.0, 1.0, 20.0])
            speed, whole = rng.choice([0.5, 1.0, 3.0]), rng.choice([None, done + 10.0])
            yield JobProgressed(now, job.job.id, done, speed, whole, rng.choice([None, 2]))
        stopped = [job for job in jobs if job.stream is None and job.attempt]
        if stopped and rng.random() < 0.3:
            job = rng.choice(stopped)
            yield JobPreempted(now, job.job.id, job.done + rng.choice([0.0, 0.5]))
        if stopped and rng.random() < 0.1:
            yield JobFinished(now, rng.choice(stopped).job.id)  # it ended while it was stopped

    def live(self, now, events):
        decisions, answer = step(self.core, now, events)
        self.steps.append(Step(now, events, answer))
        for decision in decisions:
            if isinstance(decision, WakeAt):
                self.wake = decision.time
            elif isinstance(decision, StartJob | ResizeJob):
                job = self.core.state.jobs[decision.job_id]
                self.starts += 1
                end = max(job.end(self.durations[job.job.id]), now)
                heappush(self.ends, (end, self.starts, job.job.id, job.attempt))


def options_of(rng, owned):
    """Draw settings of the operator."""
    return replace(
        random_choices(rng, owned),
        resume_cost=rng.choice([0.0, 3.5]),
    )


def drawn(policy, rng):
    """Return a policy with random options, which sometimes makes invalid proposals."""
    made = rash(policy) if rng.random() < 0.3 else policy
    if issubclass(policy, Las):
        return made(LasParams((32.0, 256.0), rng.choice([1.0, 3.0])))
    if issubclass(policy, SiaRecall):
        return made(RecallParams(rng.choice([0.1, 0.5])))
    return made()


def odd(rng, job):
    """Return the job with random user, priority, preemption cost, widths and speed-up."""
    points = tuple((gpus, 100 / gpus**0.7) for gpus in sorted(rng.sample(range(1, 12), k=3)))
    return replace(
        job,
        submit=float(job.submit),
        user=rng.choice(["", "anna"]),
        preemptible=rng.choice([None, 0.0, 0.5, 5.0, "restart", "never"]),
        min_width=rng.randint(0, job.width),
        max_width=rng.choice([0, job.width, 2 * job.width]),
        demand=rng.choice([(), points]),
        priority=rng.choice([0, 0, 0, 1, -1]),
    )


def submissions(rng, arrivals):
    """Give each job a run-time estimate close to its run time."""
    for job, duration in arrivals:
        run_time = float(duration) * rng.choice([0.5, 1.0, 1.0, 2.0])
        yield JobSubmitted(job.submit, odd(rng, job), run_time)


def troubled(policy, rng):
    """Draw a history in which quotas change."""
    owned, arrivals = random_workload(rng)
    owned = limited(rng, owned) if rng.random() < 0.5 else owned
    quotas = rng.choice([[], _with_limits(rng, random_quotas(rng, owned, arrivals))])
    facts = [*submissions(rng, arrivals), *quotas]
    if policy.needs.future:
        future = revealed(owned, arrivals, quotas)
        jobs = [replace(f, virtual_start=min(f.virtual_start, NEVER)) for f in future.jobs]
        facts.append(replace(future, time=min(fact.time for fact in facts), jobs=jobs))
    core = Core(owned, drawn(policy, rng), options_of(rng, owned))
    return History(core, facts, {a.job.id: float(a.duration) for a in arrivals}, rng)


def _with_limits(rng, quotas):
    return [
        replace(changed, lend_limit=rng.choice([None, 0, 4]), weight=rng.choice([None, 1.0, 2.0]))
        for changed in quotas
    ]


def troubled_in_cells(policy, rng):
    """Draw such a history on nodes, some of which fail for a while."""
    owned, arrivals = random_story(rng)
    owned = limited(rng, owned) if rng.random() < 0.3 else owned
    spec = whole_spec(Spec(TYPES, (), ()), PoolTable(owned))
    cells = Cells(spec)
    arrivals = [
        a._replace(job=replace(a.job, width=max(1, a.job.width - rng.choice([0, 0, 1]))))
        for a in arrivals
    ]
    facts = [*submissions(rng, arrivals), *_quotas(rng, owned), *_lost(rng, cells)]
    core = Core(owned, drawn(policy, rng), options_of(rng, owned), cells)
    return History(core, facts, {a.job.id: float(a.duration) for a in arrivals}, rng)


def _quotas(rng, owned):
    """Reduce quotas for a while, or split the nodes of a pool into halves."""
    for pool in owned:
        nodes = pool.quota // 8
        if rng.random() < 0.4:
            fewer, start = rng.randint(0, nodes), float(rng.randint(0, 200))
            kind, each = rng.choice([("node", 1), ("quad", 2)])
            own = {"node": {kind: fewer * each}} if fewer else {}
            yield PoolChanged(start, pool.name, 8 * fewer, own)
            yield PoolChanged(start + 100.0, pool.name, pool.quota, {"node": {"node": nodes}})


def _lost(rng, cells):
    for node in cells.nodes():
        if rng.random() < 0.3:
            start = float(rng.randint(0, 200))
            yield NodeOut(start, node, rng.choice(["bad", "drained"]))
            yield NodeBack(start + rng.randint(1, 100), node)
