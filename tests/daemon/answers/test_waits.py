"""How long jobs waited in their queue, as estimates have it: not while held, nor as they ran."""

import pytest

from daemon.answers.estimates.observations import EstimateInputs
from daemon.engine.engine import Engine
from daemon.model.book import JobRecord
from daemon.model.inputs import Ended, Hold, Lost, Release, SetPool, Started
from daemon.model.job import JobPhase, JobSpec, PoolMode
from tests.support.daemons.daemons import setup, submit

DAY = 86400.0
COUNT = 20
"""Jobs of a story: more than those before which nothing is said."""


class Life:
    """An engine of one pool of 4 GPUs, and who hears of it."""

    def __init__(self):
        self.engine, self.heard = Engine.new(setup(a=4)), EstimateInputs()
        self.now, self.over = 1000.0, []

    def step(self, *inputs, after=0.0):
        self.now += after
        step = self.engine.step(self.now, inputs)
        self.over += step.over
        known = {record.spec.id: record for record in self.over} | self.engine.book.jobs
        for notice in step.notices:
            self.heard.hear(notice, known.get(notice.job))

    def end(self, job_id, after=60.0):
        self.step(Ended(job_id, self.engine.book.jobs[job_id].attempt, code=0), after=after)

    def waited(self):
        """How long those waited that did, as who was there says and as who is told of it."""
        told = EstimateInputs()
        told.learn([*told.events(self.over)])
        return self.heard.waits.beyond("a", 0.0), told.waits.beyond("a", 0.0)


def held(life, name):
    life.step(submit(name, "a", 4, hold=True))
    life.step(Release(name), after=3 * DAY)


def held_later(life, name):
    life.step(submit(f"before-{name}", "a", 4))
    life.step(submit(name, "a", 4))
    life.step(Hold(name))
    life.end(f"before-{name}")
    life.step(Release(name), after=3 * DAY)


def pool_held(life, name):
    life.step(SetPool("a", state=PoolMode.HOLD))
    life.step(submit(name, "a", 4))
    life.step(SetPool("a", state=PoolMode.OPEN), after=3 * DAY)


def queued_again(life, name):
    life.step(submit(name, "a", 4, requeue=True))
    life.step(Started(name, 1))
    life.step(Lost(name, 1, "its node went away"), after=7200.0)


@pytest.mark.parametrize("story", [held, held_later, pool_held, queued_again])
def test_a_job_that_starts_when_it_is_queued_has_not_waited(story):
    life = Life()
    for i in range(COUNT):
        story(life, f"j{i}")
        assert life.engine.book.jobs[f"j{i}"].phase is JobPhase.STARTING
        life.end(f"j{i}")
    assert life.waited() == ((None, None), (None, None))


def test_a_held_jobs_wait_counts_from_its_release():
    life = Life()
    for i in range(COUNT):
        life.step(submit(f"full{i}", "a", 4))
        life.step(submit(f"j{i}", "a", 4, hold=True))
        life.step(Release(f"j{i}"), after=3 * DAY)
        life.end(f"full{i}", after=600.0)
        life.end(f"j{i}")
    assert life.waited() == ((600.0, 600.0), (600.0, 600.0))


def test_a_job_that_an_earlier_release_requeued_has_waited_for_an_unknown_time():
    heard = EstimateInputs()
    old = [
        JobRecord(JobSpec(f"j{i}", "a", 1), 0.0, 1.0, stays=2, decided=DAY, ended=DAY + 1.0)
        for i in range(COUNT)
    ]
    heard.learn(heard.events(old))
    assert heard.waits.beyond("a", 0.0) == (None, None)
