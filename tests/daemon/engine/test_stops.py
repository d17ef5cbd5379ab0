"""Jobs that are stopped and go on: told to stop, stopped, and then a further attempt."""

from random import Random

import pytest
from msgspec.structs import replace

from daemon.answers.explain.explain import explain, turn_of
from daemon.doors.views.resources import job_view
from daemon.engine.engine import Engine
from daemon.model.access import Principal, Role
from daemon.model.inputs import (
    Cancel,
    Configured,
    Ended,
    Hold,
    Lost,
    Release,
    Requeued,
    Resized,
    SetPool,
    Started,
    StartFailed,
    Stopped,
    Tick,
)
from daemon.model.job import JobPhase, PoolMode
from daemon.model.outputs import PreemptEffect, ResizeEffect, StartEffect, StopEffect
from daemon.model.setup import Setup
from daemon.wire.explain import TurnView
from sia.decisions import PreemptJob
from sia.events import JobPreempted
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import Pool
from tests.support.budget import budget
from tests.support.clusters.cells import spec
from tests.support.daemons.daemons import SMALL, setup, submit

GRACE = 30.0


def cluster(policy="srtf", nodes=(), **quotas):
    return replace(setup(nodes, **quotas), policy=policy, grace=GRACE)


class Story:
    """An engine whose steps the test makes, one after another."""

    def __init__(self, made):
        self.engine = Engine.new(made)

    def at(self, now, *inputs):
        step = self.engine.step(now, [*inputs] or [Tick()])
        self.engine.check()
        data = self.engine.dump()
        self.engine = Engine.restore(data)
        assert self.engine.dump() == data
        return step

    def phase(self, job_id):
        return self.engine.book.job(job_id).phase

    def record(self, job_id):
        return self.engine.book.job(job_id)


def started(step):
    return [(e.job, e.attempt) for e in step.effects if isinstance(e, StartEffect)]


def told(step):
    return [(e.job, e.attempt, e.force) for e in step.effects if isinstance(e, PreemptEffect)]


def kinds(step):
    return [notice.kind for notice in step.notices]


def stopping(made=None, run_time=1000.0, **more):
    """Return a story in which a long job has run for 100 s and is told to stop for a short one."""
    story = Story(made or cluster(a=2))
    assert started(story.at(0.0, submit("long", gpus=2, run_time=run_time, **more))) == [
        ("long", 1)
    ]
    story.at(0.0, Started("long", 1))
    step = story.at(100.0, submit("short", gpus=2, run_time=10.0))
    assert told(step) == [("long", 1, False)]
    assert started(step) == []
    assert story.phase("long") is JobPhase.STOPPING
    return story


@pytest.mark.parametrize("nodes", [(), (2,)])
def test_a_start_waits_until_the_stopped_job_is_gone(nodes):
    story = stopping(cluster(a=2, nodes=nodes))
    assert started(story.at(110.0)) == []
    step = story.at(120.0, Stopped("long", 1))
    assert started(step) == [("short", 1)]
    assert JobPreempted(120.0, "long", 120.0, lost=-20.0) in step.events
    assert story.phase("long") is JobPhase.PENDING
    assert story.record("long").stops == 1
    story.at(121.0, Started("short", 1))
    step = story.at(140.0, Ended("short", 1, 0))
    (start,) = step.effects
    assert (start.job, start.attempt, start.done) == ("long", 2, 120.0)


def test_a_stop_is_reported_by_its_events():
    story = Story(cluster(a=2))
    story.at(0.0, submit("long", gpus=2, run_time=1000.0))
    story.at(0.0, Started("long", 1))
    step = story.at(100.0, submit("short", gpus=2, run_time=10.0))
    assert kinds(step) == ["submitted", "preempted", "stopping", "started"]
    (notice,) = story.at(120.0, Stopped("long", 1)).notices
    assert (notice.kind, notice.data) == (
        "stopped",
        {"attempt": 1, "done": 120.0, "lost": 0.0, "took": 20.0},
    )


def test_a_job_that_does_not_stop_is_ended_when_its_grace_time_is_over():
    story = stopping()
    assert told(story.at(129.0)) == []
    step = story.at(130.0)
    assert told(step) == [("long", 1, True)]
    assert "stop_forced" in kinds(step)
    assert told(story.at(200.0)) == []
    assert started(story.at(201.0, Ended("long", 1, None, 9))) == [("short", 1)]


@pytest.mark.parametrize("end", [Ended("long", 1, 1), Ended("long", 1, None, 9)])
def test_a_job_that_dies_while_it_stops_has_not_failed(end):
    story = stopping()
    assert started(story.at(120.0, end)) == [("short", 1)]
    assert story.phase("long") is JobPhase.PENDING
    assert story.record("long").done == 120.0


def test_a_job_that_exits_with_0_while_it_stops_has_finished():
    story = stopping()
    assert started(story.at(120.0, Ended("long", 1, 0))) == [("short", 1)]
    assert story.phase("long") is JobPhase.FINISHED
    assert not story.engine.core.state.jobs.keys() - {"short"}


def test_a_job_that_failed_before_the_stop_arrived_has_failed():
    story = stopping()
    story.at(120.0, Ended("long", 1, 3, by_itself=True))
    assert story.phase("long") is JobPhase.FAILED


@pytest.mark.parametrize("gone", [Lost("long", 1, "power"), StartFailed("long", 1, "no")])
def test_a_job_that_is_lost_while_it_stops_keeps_what_earlier_attempts_did(gone):
    story = stopping()
    story.at(120.0, Stopped("long", 1))
    story.at(120.0, Started("short", 1))
    story.at(150.0, Ended("short", 1, 0))
    story.at(150.0, Started("long", 2))
    story.at(200.0, submit("other", gpus=2, run_time=10.0))
    assert story.phase("long") is JobPhase.STOPPING
    story.at(210.0, replace(gone, attempt=2))
    assert story.phase("long") is JobPhase.PENDING
    assert story.record("long").done == 120.0


def test_a_cancelled_job_does_not_resume():
    story = stopping()
    step = story.at(110.0, Cancel("long"))
    assert [e for e in step.effects if isinstance(e, StopEffect)] == [StopEffect("long", 1, "end")]
    assert started(step) == []  # its GPUs are not free yet
    assert started(story.at(115.0, Stopped("long", 1))) == [("short", 1)]
    assert story.phase("long") is JobPhase.CANCELLED


def test_a_stopped_job_that_starts_again_waits_for_its_earlier_attempt():
    story = stopping()
    step = story.at(110.0, Cancel("short"))  # it was never ordered: the long job may go on
    assert started(step) == []
    assert story.phase("long") is JobPhase.STOPPING
    assert list(story.engine.book.seatless) == ["long"]
    step = story.at(125.0, Stopped("long", 1))
    assert started(step) == [("long", 2)]
    assert story.engine.core.state.jobs["long"].done == 125.0
    assert story.engine.core.state.jobs["long"].since == 125.0


def test_a_job_that_starts_again_may_be_cancelled_as_it_stops():
    story = stopping()
    story.at(110.0, Cancel("short"))
    step = story.at(125.0, Stopped("long", 1), Cancel("long"))
    assert started(step) == []
    assert story.phase("long") is JobPhase.CANCELLED
    assert not story.engine.core.state.jobs


def test_the_cost_of_resuming_counts_even_if_it_exceeds_the_work():
    made = cluster(a=2)
    made = replace(made, options=replace(made.options, resume_cost=600.0))
    story = Story(made)
    story.at(0.0, submit("long", gpus=2, run_time=5000.0))
    story.at(0.0, Started("long", 1))
    story.at(55.0, submit("short", gpus=2, run_time=1.0))
    story.at(60.0, Stopped("long", 1))
    story.at(60.0, Started("short", 1))
    assert started(story.at(65.0, Ended("short", 1, 0))) == [("long", 2)]
    story.at(67.0, Started("long", 2))
    core = story.engine.core.state.jobs["long"]
    assert core.work(700.0) == story.record("long").work(700.0) == 60.0 + 33.0


def test_a_preemptive_policy_learns_the_progress_of_running_jobs():
    story = Story(cluster("fcfs", a=2))
    story.at(0.0, submit("j", gpus=2, run_time=1000.0))
    story.at(50.0, Started("j", 1))
    story.at(60.0, Configured(cluster("srtf", a=2)))
    core = story.engine.core.state.jobs["j"]
    assert core.work(100.0) == story.record("j").work(100.0) == 50.0


def narrowing():
    """Return a story in which a job runs on 8 GPUs and is told to go on on 2."""
    story = Story(replace(cluster("emmfs", (8,), a=2, b=6), resizes=True))
    story.at(0.0, submit("x", gpus=2, run_time=1000.0, min_width=1, max_width=8))
    story.at(0.0, Started("x", 1))
    step = story.at(100.0, submit("y", "b", 4, run_time=9.0), submit("z", "b", 2, run_time=9.0))
    assert [(e.job, e.width) for e in step.effects if isinstance(e, ResizeEffect)] == [("x", 2)]
    return story


def test_the_core_counts_a_narrower_width_once_the_job_has_it():
    story = narrowing()
    step = story.at(160.0, Resized("x", 1, 2, (("n0", (0, 1)),)))
    assert started(step) == [("y", 1), ("z", 1)]
    core = story.engine.core.state.jobs["x"]
    assert core.work(200.0) == story.record("x").work(200.0)


def test_a_job_that_should_widen_before_it_has_narrowed_is_stopped():
    story = narrowing()
    step = story.at(101.0, Cancel("z"))
    assert story.record("x").gpus == 4
    assert told(step) == [("x", 1, False)]
    assert not [e for e in step.effects if isinstance(e, ResizeEffect)]
    story.at(102.0, Resized("x", 1, 2, (("n0", (0, 1)),)))
    (start,) = (e for e in story.at(103.0, Stopped("x", 1)).effects if e.job == "x")
    assert (start.attempt, start.width) == (2, 4)


def test_a_start_that_was_not_yet_sent_is_withdrawn():
    story = stopping()
    step = story.at(105.0, submit("shorter", gpus=2, run_time=1.0))
    assert told(step) == []
    assert story.phase("short") is JobPhase.PENDING
    assert started(story.at(120.0, Stopped("long", 1))) == [("shorter", 1)]
    assert story.record("short").attempt == 0
    assert started(story.at(130.0, Ended("shorter", 1, 0))) == [("short", 1)]


def test_a_job_that_restarts_keeps_no_work():
    story = stopping(preemptible="restart")
    story.at(120.0, Stopped("long", 1))
    assert (story.record("long").done, story.record("long").ran) == (0.0, 0.0)
    assert story.engine.core.state.jobs["long"].done == 0.0


@pytest.mark.parametrize("gone", [Stopped("long", 1), Ended("long", 1, 1), Lost("long", 1, "gone")])
def test_a_killed_job_keeps_no_work(gone):
    story = Story(cluster("prio:kill", a=2))
    story.at(0.0, submit("long", gpus=2, run_time=1000.0))
    story.at(0.0, Started("long", 1))
    step = story.at(100.0, submit("urgent", gpus=2, run_time=10.0, deadline=200.0))
    assert told(step) == [("long", 1, False)]
    assert story.engine.core.state.jobs["long"].done == 0.0
    step = story.at(120.0, gone)
    (notice,) = (each for each in step.notices if each.kind == "stopped")
    assert (notice.data["done"], notice.data["lost"]) == (0.0, 120.0)
    assert (story.record("long").done, story.record("long").ran) == (0.0, 0.0)
    assert story.engine.core.state.jobs["long"].done == 0.0
    story.at(121.0, Started("urgent", 1))
    (start,) = (e for e in story.at(140.0, Ended("urgent", 1, 0)).effects if e.job == "long")
    assert (start.attempt, start.done) == (2, 0.0)


def test_a_killed_job_loses_no_more_than_the_stop_cost_that_it_states():
    story = Story(cluster("prio:kill", a=2))
    story.at(0.0, submit("long", gpus=2, run_time=1000.0, preemptible=30.0))
    story.at(0.0, Started("long", 1))
    story.at(100.0, submit("urgent", gpus=2, run_time=10.0, deadline=200.0))
    story.at(120.0, Stopped("long", 1))
    assert story.record("long").done == story.engine.core.state.jobs["long"].done == 120.0


def test_a_time_limit_counts_the_attempts_whose_work_is_kept():
    story = stopping(time_limit=300.0, warn=0.0)
    story.at(120.0, Stopped("long", 1))
    story.at(120.0, Started("short", 1))
    story.at(150.0, Ended("short", 1, 0))
    story.at(150.0, Started("long", 2))
    assert story.at(329.0).effects == []
    assert story.at(330.0).effects == [StopEffect("long", 2, "end")]


def test_a_stopped_job_keeps_its_work_and_not_its_place_when_it_is_held():
    story = stopping()
    story.at(120.0, Stopped("long", 1))
    story.at(121.0, Hold("long"))
    story.at(122.0, Release("long"))
    assert story.engine.core.state.jobs["long\x1f1"].done == 120.0
    story.at(123.0, Started("short", 1))
    (start,) = story.at(140.0, Ended("short", 1, 0)).effects
    assert (start.job, start.attempt, start.done) == ("long", 2, 120.0)


def test_a_job_that_stops_while_its_pool_is_put_on_hold_waits_outside():
    story = stopping()
    story.at(110.0, SetPool("a", state=PoolMode.HOLD))
    assert started(story.at(120.0, Stopped("long", 1))) == [("short", 1)]
    assert list(story.engine.book.pools["a"].waiting) == ["long"]
    story.at(130.0, Ended("short", 1, 0))
    (start,) = story.at(140.0, SetPool("a", state=PoolMode.OPEN)).effects
    assert (start.job, start.attempt, start.done) == ("long", 2, 120.0)


def test_a_backend_may_hold_a_job_that_stops():
    story = stopping()
    story.at(110.0, Cancel("short"))
    step = story.at(120.0, Requeued("long", 1, "its owner holds it", hold=True))
    assert started(step) == []
    assert story.phase("long") is JobPhase.HELD
    (start,) = story.at(130.0, Release("long")).effects
    assert (start.attempt, start.done) == (2, 120.0)


def test_an_order_is_repeated_until_the_job_is_gone():
    story = stopping(checkpoint="USR1")
    order = PreemptEffect("long", 1, GRACE, "USR1")
    assert story.engine.open_orders() == [order]
    story.at(120.0, Stopped("long", 1))
    assert story.engine.open_orders() == []


def test_a_report_about_an_earlier_attempt_changes_nothing():
    story = stopping()
    story.at(120.0, Stopped("long", 1))
    answer = story.at(121.0, Stopped("long", 1)).answers[0]
    assert answer.status == 409
    assert story.record("long").stops == 1


def test_a_wide_job_is_not_overtaken_forever_if_the_backend_chooses_nodes():
    story = Story(cluster(a=6))
    for i in range(4):
        story.at(0.0, submit(f"long{i}", run_time=1000.0))
        story.at(0.0, Started(f"long{i}", 1))
    assert len(told(story.at(10.0, submit("wide", gpus=5, run_time=50.0)))) == 3
    step = story.at(12.0, submit("small", run_time=100.0), Stopped("long3", 1))
    assert len(told(step)) == 1
    assert started(step) == []  # three GPUs are free, and the wide job is first
    step = story.at(13.0, Stopped("long2", 1), Stopped("long1", 1))
    assert started(step) == [("wide", 1)]
    assert started(story.at(14.0, Stopped("long0", 1))) == [("small", 1)]


def test_a_job_that_was_stopped_often_enough_runs_to_its_end():
    story = stopping(replace(cluster(a=2), stops_per_job=1))
    assert (
        JobPreempted(120.0, "long", 120.0, last=True, lost=-20.0)
        in story.at(120.0, Stopped("long", 1)).events
    )
    story.at(120.0, Started("short", 1))
    assert started(story.at(130.0, Ended("short", 1, 0))) == [("long", 2)]
    story.at(130.0, Started("long", 2))
    step = story.at(140.0, submit("other", gpus=2, run_time=10.0))
    assert told(step) == []
    assert story.phase("long") is JobPhase.RUNNING
    assert words(story, "long")[-1] == "it will not be stopped again: stops_per_job = 1 in [daemon]"
    story.at(141.0, Cancel("long"))


def test_a_job_is_stopped_a_limited_number_of_times_per_hour():
    options = replace(cluster(a=2).options, stops_per_hour=1)
    story = stopping(replace(cluster(a=2), options=options), run_time=1e5)
    story.at(120.0, Stopped("long", 1))
    story.at(120.0, Started("short", 1))
    story.at(130.0, Ended("short", 1, 0))
    story.at(130.0, Started("long", 2))
    step = story.at(140.0, submit("other", gpus=2, run_time=10.0))
    assert (told(step), started(step)) == ([], [])
    no_stop = "No job is stopped for it in the next 59 m 20 s: stops_per_hour = 1 in [daemon]"
    assert no_stop in words(story, "other")
    assert told(story.at(3699.0)) == []
    assert told(story.at(3705.0)) == [("long", 2, False)]
    assert not any("stops_per_hour" in line for line in words(story, "short"))


class World:
    """What a backend does: attempts have their GPUs until they are gone."""

    def __init__(self, rng, gpus, nodes):
        self.rng, self.gpus, self.nodes = rng, gpus, nodes
        self.alive = {}  # job -> (attempt, gpus, nodes)
        self.told = set()
        self.narrows = {}  # job -> the width that it is to go on with
        self.narrowed = self.kept_width = 0  # how often jobs did, or could not
        self.runs = []  # (job, attempt) that were started
        self.unheard = []

    def hear(self, step):
        for effect in step.effects:
            if isinstance(effect, StartEffect):
                self.start(effect)
            elif isinstance(effect, ResizeEffect):
                self.narrows[effect.job] = effect.width
            elif isinstance(effect, PreemptEffect) or effect.kind == "end":
                self.told.add(effect.job)

    def start(self, order):
        assert order.job not in self.alive, f"{order.job} runs twice"
        assert (order.job, order.attempt) not in self.runs, "an attempt is started twice"
        self.runs.append((order.job, order.attempt))
        self.alive[order.job] = order.attempt, order.gpus, order.nodes
        self.narrows.pop(order.job, None)
        assert sum(gpus for _, gpus, _ in self.alive.values()) <= self.gpus, "more GPUs than exist"
        used = [(n, g) for _, _, nodes in self.alive.values() for n, gs in nodes for g in gs]
        assert len(used) == len(set(used)), "GPUs are in use twice"
        self.unheard.append(Started(order.job, order.attempt))

    def see(self):
        """Return some of what may be seen now."""
        seen, self.unheard = self.unheard, []
        for job_id in [job_id for job_id in self.narrows if self.rng.random() < 0.4]:
            if job_id in self.alive:
                seen.append(self.resize(job_id, self.narrows.pop(job_id)))
        for job_id, (attempt, _, _) in [*self.alive.items()]:
            kind = self.rng.random()
            if kind > (0.5 if job_id in self.told else 0.06):
                continue
            del self.alive[job_id]
            if job_id in self.told and kind < 0.3:
                seen.append(Stopped(job_id, attempt))
            else:
                seen.append(
                    self.rng.choice([
                        Ended(job_id, attempt, 0), Ended(job_id, attempt, 0),
                        Ended(job_id, attempt, 1), Ended(job_id, attempt, None, 9),
                        Lost(job_id, attempt, "gone"), Requeued(job_id, attempt, "why"),
                    ])
                )  # fmt: skip
            self.told.discard(job_id)
            self.narrows.pop(job_id, None)
        return seen

    def resize(self, job_id, width):
        """Let a job leave GPUs; or it could not, and says so by the width that it keeps."""
        attempt, gpus, nodes = self.alive[job_id]
        if self.rng.random() < 0.2:
            self.kept_width += 1
            return Resized(job_id, attempt, gpus, nodes)
        self.narrowed += 1
        seats = [(node, gpu) for node, gpus in nodes for gpu in gpus][:width]
        fewer = {}
        for node, gpu in seats:
            fewer[node] = (*fewer.get(node, ()), gpu)
        self.alive[job_id] = attempt, width, tuple(fewer.items())
        return Resized(job_id, attempt, width, tuple(fewer.items()))


def some_job(rng, i):
    width = rng.randint(1, 4)
    elastic = {"min_width": 1, "max_width": 4} if rng.random() < 0.5 else {}
    cost = rng.choice([None, 0.0, 5.0, "restart", None])
    return submit(
        f"j{i}", rng.choice("ab"), width, run_time=rng.choice([1.0, 20.0, 300.0]),
        preemptible=cost, requeue=True, **elastic,
    )  # fmt: skip


def live(policy, seed, nodes=()):
    """Live through random stops, ends, cancels, holds and restarts; return the engine."""
    rng = Random(seed)
    engine = Engine.new(replace(cluster(policy, nodes, a=4, b=4), resizes=bool(seed % 2)))
    world, now, stops = World(rng, 8, nodes), 0.0, 0
    for i in range(120):
        now += rng.choice([0.0, 1.0, 5.0, 40.0])
        known = [*engine.book.jobs]
        inputs = world.see()
        if i < 90:
            inputs += [some_job(rng, f"{i}.{k}") for k in range(rng.randint(0, 2))]
        if known and rng.random() < 0.2:
            job_id = rng.choice(known)
            inputs.append(rng.choice([Cancel(job_id), Hold(job_id), Release(job_id)]))
        if rng.random() < 0.05:
            mode = rng.choice([PoolMode.HOLD, PoolMode.OPEN, PoolMode.OPEN])
            inputs.append(SetPool(rng.choice("ab"), state=mode))
        rng.shuffle(inputs)
        step = engine.step(now, inputs or [Tick()])
        stops += sum(isinstance(e, PreemptEffect) for e in step.effects)
        world.hear(step)
        engine.check()
        if rng.random() < 0.1:
            data = engine.dump()
            engine = Engine.restore(data)
            assert engine.dump() == data
            orders = [e for e in engine.open_orders() if isinstance(e, PreemptEffect)]
            assert {e.job for e in orders} >= {
                r.spec.id for r in engine.book.jobs.values() if r.phase is JobPhase.STOPPING
            }
    return engine, world, now, stops


POLICIES = ["srtf", "srsf", "las", "emmfs", "sia-recall"]

SEEDS = budget(ci=[1, 5], soak=range(40))
"""In the last of the two a job of elastic max-min keeps its width."""


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("nodes", [(), (3, 5)])
def test_whatever_happens_no_gpu_is_used_twice_and_every_job_ends(policy, nodes):
    stopped = narrowed = kept_width = 0
    for seed in SEEDS:
        engine, world, now, stops = live(policy, seed, nodes)
        stopped += stops
        world.hear(engine.step(now, [SetPool(name, state=PoolMode.OPEN) for name in "ab"]))
        held = [r.spec.id for r in engine.book.jobs.values() if r.phase is JobPhase.HELD]
        step = engine.step(now, [Release(job_id) for job_id in held] or [Tick()])
        world.hear(step)
        for _ in range(2000):
            if not engine.book.jobs:
                break
            now += 10.0
            world.hear(engine.step(now, world.see() or [Tick()]))
            engine.check()
        assert not engine.book.jobs
        assert not world.alive
        assert not engine.core.state.jobs
        assert not engine.book.leaving
        narrowed, kept_width = narrowed + world.narrowed, kept_width + world.kept_width
    assert stopped
    assert (narrowed > 0, kept_width > 0) == (policy == "emmfs",) * 2


@pytest.mark.parametrize(("cost", "lost"), [("restart", 230.0), (60.0, 60.0)])
def test_gains_and_costs_of_recall_are_counted(cost, lost):
    story = Story(cluster("sia-recall:recall=1", a=2, b=2))
    story.at(0.0, submit("own", gpus=2, run_time=1e6))
    guest = submit("guest", gpus=2, run_time=1000.0, preemptible=cost)
    assert started(story.at(1.0, Started("own", 1), guest)) == [("guest", 1)]
    story.at(1.0, Started("guest", 1))
    step = story.at(201.0, submit("owner", pool="b", gpus=2, run_time=100.0))
    assert told(step) == [("guest", 1, False)]
    assert not story.engine.book.turns["a"].stops, "it has not stopped yet"
    assert started(story.at(231.0, Stopped("guest", 1))) == [("owner", 1)]
    found = story.engine.book.turns["a"]
    assert (found.stops, found.ran, found.lost, found.left) == (1, 460.0, 2 * lost, 770.0)


def words(story, job_id, now=0.0):
    engine = story.engine
    who = Principal("op", Role.OPERATOR, frozenset())
    return explain(engine.book, engine.core, story.record(job_id), who, now=now).words


def test_why_mentions_stops():
    story = stopping()
    why = "jobs of a higher rank need its GPUs"
    assert words(story, "long") == [f"it is being stopped, and will start again later: {why}"]
    story.at(130.0)
    assert words(story, "long")[1:] == ["its grace time is over, so the backend ends it"]
    story.at(140.0, Stopped("long", 1))
    kept = (
        f"it was stopped once, the last time because {why}; "
        "the daemon assumes that it keeps 2 m 20 s of work"
    )
    assert words(story, "long")[-1] == kept
    story.at(141.0, Started("short", 1))
    story.at(151.0, Ended("short", 1, 0))
    story.at(152.0, Started("long", 2))
    assert words(story, "long")[-1] == kept
    view = job_view(story.record("long"))
    assert (view.stops, view.kept, view.preempted) == (1, 140.0, why)


def lending(**settings):
    """A cloud whose site says that its jobs may be stopped, under `sia-reclaim`."""
    return replace(cluster("sia-reclaim", a=1, b=1), preemptible="restart", **settings)


def test_jobs_that_state_no_stop_cost_have_that_of_the_site():
    story = Story(lending())
    story.at(0.0, submit("own", "a"), submit("guest", "a"), submit("stays", "a"))
    assert [each.phase for each in story.engine.book.jobs.values()][:2] == [JobPhase.STARTING] * 2
    story.at(0.0, Started("own", 1), Started("guest", 1))
    step = story.at(10.0, submit("owner", "b"))
    assert [each.job for each in step.effects if isinstance(each, PreemptEffect)] == ["guest"]
    story.at(12.0, Stopped("guest", 1))
    assert story.record("guest").kept == 0.0, "a restart loses all work"
    assert story.phase("owner") is JobPhase.STARTING


def test_a_job_with_preemptible_never_is_not_stopped_whatever_the_site_allows():
    story = Story(lending())
    own = submit("guest", "a", run_time=1.0)
    story.at(0.0, submit("own", "a"), replace(own, spec=replace(own.spec, preemptible="never")))
    story.at(0.0, Started("own", 1), Started("guest", 1))
    step = story.at(10.0, submit("owner", "b"))
    assert not [each for each in step.effects if isinstance(each, PreemptEffect)]
    assert story.phase("owner") is JobPhase.PENDING


def test_existing_jobs_follow_a_changed_setting_of_the_site():
    story = Story(replace(lending(), preemptible=None))
    story.at(0.0, submit("own", "a", run_time=1e9), submit("other", "a", run_time=1e9))
    story.at(0.0, Started("own", 1))
    assert story.phase("other") is JobPhase.PENDING, "nobody lends it a GPU for so long"
    step = story.at(5.0, Configured(lending()))
    assert started(step) == [("other", 1)]
    assert {each.job.preemptible for each in story.engine.core.state.jobs.values()} == {"restart"}
    story.at(6.0, Started("other", 1))
    step = story.at(7.0, Configured(replace(lending(), preemptible=None)), submit("owner", "b"))
    assert not [each for each in step.effects if isinstance(each, PreemptEffect)]


def guests_and_owner():
    """Return a story in which pool b's job takes GPU and work from a guest of pool a."""
    story = Story(lending())
    own, guest = submit("own", "a", run_time=500.0), submit("guest", "a", run_time=400.0)
    story.at(0.0, own, guest)
    story.at(0.0, Started("own", 1), Started("guest", 1))
    return story


def test_why_does_not_say_that_a_guest_may_be_stopped_that_must_not_be():
    story = Story(lending())
    story.at(0.0, submit("own", "a"), submit("fast", "a"))
    story.at(0.0, Started("own", 1), Started("fast", 1))
    story.at(30.0, Ended("fast", 1, 0))
    story.at(40.0, submit("stays", "a", preemptible="never"))
    story.at(50.0, Ended("own", 1, 0))
    story.at(50.0, Started("stays", 1))
    expected = (
        "it is a guest: its turn, which is its start in its pool alone, is expected in 30 s; "
        "it will not be stopped before, because its preemptible does not allow it"
    )
    assert words(story, "stays")[-1] == expected


def test_why_asks_for_no_time_limit_where_the_run_time_does_not_matter():
    story = Story(lending())
    story.at(0.0, submit("own", "a"), submit("lasts", "a", min_run_time=172800.0, time_limit=60.0))
    asked = "waiting for a minimum run time of 1 m 40 s or less: 2 d is asked for"
    assert asked in words(story, "lasts")[1]
    story = Story(cluster("sia-reclaim:hard", a=1, b=1))
    story.at(0.0, submit("own", "a"), submit("stays", "a", preemptible="never"))
    only = "It starts at its turn only: "
    assert words(story, "stays")[1] == (
        f"{only}it must not be stopped, and the policy has the option hard"
    )
    story = Story(replace(cluster("sia-reclaim:stops=1", a=1, b=1), preemptible="restart"))
    story.at(0.0, submit("own", "a"), submit("guest", "a"))
    story.at(0.0, Started("own", 1), Started("guest", 1))
    story.at(10.0, submit("owner", "b"))
    story.at(12.0, Stopped("guest", 1))
    assert f"{only}it was stopped as often as the policy allows (option stops)" in words(
        story, "guest"
    )


def test_why_says_who_is_a_guest_and_when_its_turn_is_expected():
    story = guests_and_owner()
    alone = "its turn, which is its start in its pool alone,"
    assert words(story, "own")[-1] == f"{alone} came 0 s ago; it will not be stopped for other jobs"
    expected = (
        "is expected in 8 m 20 s; until then it may be stopped when the turn of another job comes"
    )
    assert words(story, "guest")[-1] == f"it is a guest: {alone} {expected}"
    story.at(10.0, submit("owner", "b"))
    assert (
        words(story, "own")[-1] == f"{alone} came 10 s ago; it will not be stopped for other jobs"
    )
    story.at(12.0, Stopped("guest", 1))
    assert f"{alone} is expected in 8 m 8 s" in words(story, "guest")
    view = turn_of(story.engine.core, story.record("guest"))
    assert view == TurnView(500.0, came=False, guest=False)


def test_why_counts_from_the_question_where_nothing_has_happened_for_a_while():
    story = guests_and_owner()
    assert "came 1 m 40 s ago" in words(story, "own", now=100.0)[-1]
    assert "is expected in 6 m 40 s" in words(story, "guest", now=100.0)[-1]
    assert "is expected in 0 s" in words(story, "guest", now=600.0)[-1], "its pass is to come"


def test_turns_guests_stops_and_waste_are_counted_by_pool():
    story = guests_and_owner()
    story.at(10.0, submit("owner", "b"))
    story.at(12.0, Stopped("guest", 1))
    story.at(12.0, Started("owner", 1))
    sums = story.engine.book.turns
    assert (sums["a"].turns, sums["a"].guests, sums["a"].stops, sums["a"].lost) == (1, 1, 1, 12.0)
    assert (sums["b"].turns, sums["b"].late, sums["b"].latest) == (1, 1, 2.0), "guests take time"
    story.at(100.0, Ended("own", 1, 0))
    assert (sums := story.engine.book.turns)["a"].turns == 2, "the guest starts at its turn"
    assert not sums["a"].late


def test_a_turn_that_waits_for_a_guest_in_cells_is_counted_and_named():
    quotas = {"a": {"node": 1}, "b": {"node": 1}}
    made = Setup((Pool("a", 8), Pool("b", 8)), options=SMALL, cells=spec(racks=1, quotas=quotas))
    story = Story(replace(made, policy="sia"))
    story.at(0.0, submit("own", "a", 8, 900.0), submit("guest", "a", 8, 90.0))
    story.at(0.0, Started("own", 1), Started("guest", 1))
    story.at(20.0, submit("owner", "b", 8))
    assert words(story, "owner")[-1].endswith("came 0 s ago")
    step = story.at(100.0, Ended("guest", 1, 0))
    assert started(step) == [("owner", 1)]
    sums = story.engine.book.turns
    assert (sums["a"].turns, sums["a"].late, sums["a"].guests) == (1, 0, 1)
    assert (sums["b"].turns, sums["b"].late, sums["b"].latest) == (1, 1, 80.0)
    story.at(100.0, Started("owner", 1))
    assert any("its turn came 80s ago; in the way: guest" in line for line in words(story, "owner"))


@pytest.mark.parametrize(("run_time", "left"), [(400.0, 388.0), (UNKNOWN_RUN_TIME, 0.0)])
def test_what_stopped_guests_had_left_is_counted_where_it_is_known(run_time, left):
    story = Story(lending())
    story.at(0.0, submit("own", "a", run_time=500.0), submit("guest", "a", run_time=run_time))
    story.at(0.0, Started("own", 1), Started("guest", 1))
    story.at(10.0, submit("owner", "b"))
    story.at(12.0, Stopped("guest", 1))
    sums = story.engine.book.turns["a"]
    assert (sums.stops, sums.left) == (1, left)


def test_a_guest_that_runs_on_has_had_its_turn():
    story = guests_and_owner()
    story.at(100.0, Ended("own", 1, 0))
    assert story.engine.book.turns["a"].turns == 2
    assert words(story, "guest")[-1].endswith("came 0 s ago; it will not be stopped for other jobs")


def test_work_that_a_stop_cost_is_no_part_of_the_pool_alone():
    story = guests_and_owner()
    story.at(10.0, submit("owner", "b"))
    story.at(12.0, Stopped("guest", 1))
    story.at(12.0, Started("owner", 1))
    story.at(500.0, Ended("own", 1, 0))
    story.at(500.0, Started("guest", 2), submit("next", "a", run_time=10.0))
    story.at(900.0, Ended("guest", 2, 0))
    story.at(900.0, Started("next", 1))
    story.at(910.0, Ended("next", 1, 0), Ended("owner", 1, 0))
    for now in range(911, 950):
        story.at(float(now))
    account = story.engine.book.accounts["a"]
    assert (account.jobs, account.slowed) == (3, 0)
    assert account.took == account.took_alone == 500.0 + 900.0 + 410.0


def reclaiming():
    """Pools of one, one and two nodes whose jobs may be stopped."""
    quotas = {"a": {"node": 1}, "b": {"node": 1}, "c": {"node": 2}}
    owned = tuple(Pool(name, 8 * cells["node"]) for name, cells in quotas.items())
    cells = Setup(owned, options=SMALL, cells=spec(quotas=quotas))
    return Engine.new(replace(cells, policy="sia-reclaim", preemptible=5.0))


def test_a_restored_daemon_stops_nobody_for_a_job_that_has_ended():
    """`ended` keeps its place in its pool's queue, although it ran in spare cells."""
    engine, decided = reclaiming(), []
    for now, each in [
        (160, submit("twice", "b", 8, 90.0)),
        (505, submit("other", "a", 8, 3000.0)),
        (506, submit("guest", "b", 8, 4.0)),
        (507, submit("ended", "b", 4, 4.0)),
        (527, Lost("ended", 1, "gone")),
        (742, submit("owner", "c", 8, 500.0)),
        (842, Requeued("twice", 1, "again", hold=False)),
        (942, submit("next", "b", 2, 3000.0)),
    ]:
        twin = Engine.restore(engine.dump())
        decided.append(engine.step(now, [each]).decisions)
        assert twin.step(now, [each]).decisions == decided[-1], now
    assert engine.core.policy._turns.ahead(engine.core.state.pools["b"]) > 0
    assert not any(isinstance(each, PreemptJob) for made in decided for each in made)


def test_cells_that_were_reserved_are_released_around_a_job_that_must_not_be_stopped():
    """The cells of `ended` were reserved while `guest`, which must not be stopped, was in them."""
    engine = reclaiming()
    for now, each in [
        (1136, submit("short", "c", 2, 18.0)),
        (1216, submit("head", "b", 1, 3000.0, preemptible="never")),
        (1316, submit("own", "c", 8, 500.0)),
        (1416, submit("other", "a", 4, 90.0, preemptible="never")),
        (1424, submit("stopped", "b", 8, 500.0)),
        (1499, Ended("short", 1, 0)),
        (1702, submit("guest", "b", 8, 4.0, preemptible="never")),
        (1703, submit("small", "b", 1, 4.0, preemptible="restart")),
        (1813, Stopped("stopped", 1)),
        (1834, Ended("head", 1, 0)),
        (1916, submit("ended", "c", 2, 500.0)),
        (2137, Ended("small", 1, 0)),
        (2207, submit("next", "c", 2, 500.0)),
    ]:
        engine.step(now, [each])
    reserved = engine.core.state.places.in_reserved
    assert [*reserved("ended")] == ["guest"]
    engine.step(2217, [Ended("ended", 1, 0)])
    engine.check()
    assert engine.book.refused == {}
    assert engine.book.jobs["guest"].phase is JobPhase.STARTING
