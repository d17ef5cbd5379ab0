"""The simulated backend: jobs that are timers in a clock that the test turns."""

import asyncio
import random

import pytest
from msgspec.structs import replace

from daemon.backends.interface import Backend, Expected
from daemon.backends.simulated.backend import RUN_TIME, TERM, SimulatedBackend
from daemon.model.inputs import Ended, Lost, Reported, Started, StartFailed, Stray
from daemon.model.job import JobSpec
from daemon.model.outputs import PreemptEffect, StartEffect
from tests.support.daemons.daemons import house


class HandClock:
    """A clock that advances only when the test says so."""

    def __init__(self, now=1000.0):
        self.time = now
        self._sleepers = []

    def now(self):
        return self.time

    async def sleep_until(self, time):
        while self.time < time:
            turned = asyncio.get_running_loop().create_future()
            self._sleepers.append(turned)
            await turned

    async def turn(self, time):
        await settle()
        self.time = time
        for turned in self._sleepers:
            if not turned.done():
                turned.set_result(None)
        self._sleepers = []
        await settle()


async def settle():
    for _ in range(5):
        await asyncio.sleep(0)


def order(job, attempt=1, **spec):
    return StartEffect(job, attempt, JobSpec(job, "vision", 1, **spec), ())


def played(story, **options):
    """Run a story of the backend, its clock and what it has said so far; say all that it said."""

    async def play():
        said = []
        clock = HandClock()
        backend = SimulatedBackend(clock, **options)
        await backend.open(house(said.append))
        await story(backend, clock, said)
        backend.check()
        await backend.close()
        return said

    return asyncio.run(play())


def test_a_job_that_has_said_how_many_iterations_it_has_reports_them():
    """It has 200 in 400 s; its second attempt begins with half of the work and loads for 10 s."""

    async def story(backend: Backend, clock, said):
        await backend.start(order("a", duration=400.0, iterations=200))
        await backend.start(order("quiet", duration=400.0))
        later = replace(order("b", duration=400.0, iterations=200), done=200.0, overhead=10.0)
        await backend.start(later)
        for time in (1060.0, 1120.0):
            await clock.turn(time)
        await backend.preempt(PreemptEffect("a", 1, 30.0, "", force=False))
        await clock.turn(1180.0)

    said = played(story, report=60.0)
    reports = [(r.job, r.iterations) for r in said if isinstance(r, Reported)]
    assert reports == [("a", 30), ("b", 125), ("a", 60), ("b", 155), ("b", 185)]


def test_jobs_last_their_duration_else_their_run_time_else_a_default():
    async def story(backend: Backend, clock, said):
        await backend.start(order("a", duration=30.0, run_time=5.0))
        await backend.start(order("b", run_time=20.0))
        await backend.start(order("c"))
        await clock.turn(1019.0)
        assert said == [Started("a", 1), Started("b", 1), Started("c", 1)]
        await clock.turn(1020.0)
        assert said[3:] == [Ended("b", 1, code=0)]
        await clock.turn(1031.0)
        assert said[4:] == [Ended("a", 1, code=0)]
        await clock.turn(1000.0 + RUN_TIME)

    assert played(story)[5:] == [Ended("c", 1, code=0)]


def test_ends_are_reported_in_order_whatever_the_order_of_starts():
    async def story(backend, clock, said):
        for name, seconds in (("long", 50.0), ("short", 10.0), ("middle", 20.0)):
            await backend.start(order(name, duration=seconds))
        await clock.turn(1010.0)
        assert said[3:] == [Ended("short", 1, code=0)]
        await clock.turn(1060.0)

    assert [ended.job for ended in played(story)[4:]] == ["middle", "long"]


def test_a_job_started_twice_runs_once():
    async def story(backend, clock, said):
        await backend.start(order("a", duration=1.0))
        await backend.start(order("a", duration=1.0))
        await clock.turn(1002.0)

    assert played(story) == [Started("a", 1), Ended("a", 1, code=0)]


def test_a_job_told_to_end_ends_at_once_and_only_once():
    async def story(backend, clock, said):
        await backend.start(order("a", duration=10.0))
        await backend.stop("a", 1, "warn")
        await backend.stop("a", 2, "end")  # another attempt: not this one
        assert said == [Started("a", 1)]
        await backend.stop("a", 1, "end")
        await backend.stop("a", 1, "end")
        await backend.start(order("a", 2, duration=60.0))
        await clock.turn(1020.0)

    assert played(story) == [Started("a", 1), Ended("a", 1, signal=TERM), Started("a", 2)]


def test_a_timer_of_an_earlier_start_does_not_end_a_later_one():
    async def story(backend, clock, said):
        await backend.start(order("a", duration=10.0))
        await backend.stop("a", 1, "end")
        await clock.turn(1005.0)
        await backend.start(order("a", duration=10.0))
        await clock.turn(1012.0)
        assert said[2:] == [Started("a", 1)]
        await clock.turn(1015.0)

    assert played(story)[3:] == [Ended("a", 1, code=0)]


def test_planned_failures_happen():
    fates = {"a": "failed", "b": "lost", "c": "start failed", "d": "done"}

    async def story(backend, clock, said):
        for job in fates:
            await backend.start(order(job, duration=10.0))
        await clock.turn(1010.0)

    said = played(story, fate=lambda order: fates[order.job])
    assert Ended("a", 1, code=1) in said
    assert [type(one) for one in said if one.job == "b"] == [Started, Lost]
    assert [type(one) for one in said if one.job == "c"] == [StartFailed]
    assert Ended("d", 1, code=0) in said


def test_a_later_daemon_s_backend_ends_what_ran_at_its_start_plus_its_duration():
    async def story(backend, clock, said):
        expected = [
            Expected(order("over", duration=10.0), started=980.0),
            Expected(order("runs", duration=60.0), started=980.0),
            Expected(order("unseen", duration=5.0)),
        ]
        unseen = await backend.reconcile(expected)
        assert unseen == [order("unseen", duration=5.0)]
        assert said == []
        await clock.turn(1000.0)
        assert said == [Ended("over", 1, code=0)]
        await clock.turn(1039.9)
        assert len(said) == 1
        await clock.turn(1040.0)

    assert played(story)[1:] == [Ended("runs", 1, code=0)]


def test_a_job_continues_from_its_reported_progress():
    async def story(backend, clock, said):
        reported = replace(order("half", duration=300.0), done=150.0)
        await backend.reconcile([Expected(reported, started=840.0, since=990.0)])
        await clock.turn(1139.0)
        assert said == []
        await clock.turn(1140.0)

    assert played(story) == [Ended("half", 1, code=0)]


def test_a_job_that_outlived_a_restart_states_what_is_unknown():
    async def story(backend, clock, said):
        await backend.start(order("known", duration=10.0))
        await backend.start(order("stray", duration=10.0))
        del said[:]
        assert await backend.reconcile([Expected(order("known", duration=10.0))]) == []
        assert said == [Started("known", 1), Stray("stray", 1)]
        await backend.stop("stray", 1, "end")
        await clock.turn(1010.0)

    assert played(story)[2:] == [Ended("stray", 1, signal=TERM), Ended("known", 1, code=0)]


def test_a_closed_backend_reports_nothing_and_continues_when_reopened():
    async def story(backend, clock, said):
        await backend.start(order("a", duration=10.0))
        await backend.close()
        await clock.turn(1020.0)
        assert said == [Started("a", 1)]
        await backend.open(house(said.append))
        await clock.turn(1021.0)

    assert played(story) == [Started("a", 1), Ended("a", 1, code=0)]


@pytest.mark.parametrize("seed", range(5))
def test_ends_come_in_sorted_order(seed):
    """Random starts, stops and turns of the clock, against a list that is sorted at each turn."""
    dice = random.Random(seed)

    async def story(backend, clock, said):
        running, wanted = {}, []
        for step in range(300):
            what = dice.choice("ssxt")
            if what == "s":
                seconds = dice.choice([0.5, 1.0, 2.5, 40.0])
                await backend.start(order(str(step), duration=seconds))
                running[str(step)] = (clock.now() + seconds, step)
            elif what == "x" and running:
                job = dice.choice(sorted(running))
                del running[job]
                await backend.stop(job, 1, "end")
                wanted.append(job)
            elif what == "t":
                now = clock.now() + dice.choice([0.5, 3.0])
                await clock.turn(now)
                due = sorted((end, job) for job, end in running.items() if end[0] <= now)
                wanted += [job for _, job in due]
                for _, job in due:
                    del running[job]
                backend.check()
        assert [one.job for one in said if isinstance(one, Ended)] == wanted
        assert len(wanted) > 50

    played(story)
