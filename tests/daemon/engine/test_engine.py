"""The engine, step by step: stories, and everything that may happen against a naive model."""

from collections import Counter
from random import Random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.forecasts.history import JournalHistory
from daemon.model.inputs import (
    Cancel,
    Drain,
    Ended,
    Hold,
    Lending,
    Lost,
    Release,
    Resume,
    SetPool,
    SetPriority,
    Started,
    StartFailed,
    Tick,
)
from daemon.model.job import JobPhase, PoolMode
from daemon.model.outputs import Accepted, Refused, StartEffect, StopEffect
from tests.support.budget import budget
from tests.support.daemons.daemons import job, setup, submit
from tests.support.naive.naive_engine import NaiveDaemon, NaivePool

JOBS = [f"j{i}" for i in range(40)]
NODES = {"n0": 4, "n1": 3}

SEEDS = st.integers(0, 2**32 - 1)
"""Of what happens: drawn as a whole, so that much does."""


def some_submission(rng):
    return submit(
        rng.choice(JOBS),
        rng.choice("aaabbb?" if rng.random() < 0.1 else "ab"),
        rng.randint(0, 5) if rng.random() < 0.2 else rng.randint(1, 2),
        hold=rng.random() < 0.2,
        requeue=rng.random() < 0.6,
        time_limit=rng.choice([None, 3.0, 10.0]),
        warn=4.0,
    )


def some_change(rng, now):
    return SetPool(
        rng.choice("aabb?"),
        quota=rng.choice([None, rng.randint(0, 6)]),
        state=rng.choice([None, PoolMode.OPEN, *PoolMode]),
        until=rng.choice([None, None, now + 2.0, now + 9.0]),
    )


def some_command(rng, now, book):
    job_id, node = rng.choice(JOBS), rng.choice(sorted(NODES))
    if book.jobs and rng.random() < 0.8:
        job_id = rng.choice(list(book.jobs))
    return rng.choice(
        [some_submission(rng)] * 6
        + [Cancel(job_id), Hold(job_id), Release(job_id), Release(job_id)]
        + [Drain(node), Resume(node), Resume(node), some_change(rng, now)]
    )


def some_sight(rng, book):
    """What a backend may see: mostly of a job that it was told to start."""
    placed = [r for r in book.jobs.values() if r.placed]
    job_id, attempt = rng.choice(JOBS), rng.randint(1, 3)
    if placed and rng.random() < 0.9:
        record = rng.choice(placed)
        job_id, attempt = record.spec.id, record.attempt
    return rng.choice(
        [Started(job_id, attempt)] * 3
        + [Ended(job_id, attempt, 0), Ended(job_id, attempt, 1)]
        + [StartFailed(job_id, attempt, "no"), Lost(job_id, attempt, "gone")] * 2
    )


def said(answer):
    if isinstance(answer, Refused):
        return answer.status
    return "new" if answer.new else "same"


class AgainstNaive(RuleBasedStateMachine):
    """Commands, what a backend may see, time, restarts, and steps that were never durable."""

    happened: ClassVar = Counter()

    def __init__(self):
        super().__init__()
        cluster = setup(NODES.values(), a=4, b=3)
        self.engine = Engine.new(replace(cluster, policy="fcfs"))
        self.naive = NaiveDaemon({"a": NaivePool(4), "b": NaivePool(3)}, NODES)
        self.now, self.drawn = 100.0, 0

    def step(self, inputs):
        self.naive.begin()
        self.naive.passed = self.naive.kept = self.naive.later = 0
        expected = self.naive.step(self.now, inputs)
        step = self.engine.step(self.now, inputs)
        assert [said(answer) for answer in step.answers] == expected
        stops = [(e.kind, e.job, e.attempt) for e in step.effects if isinstance(e, StopEffect)]
        assert Counter(stops) == Counter(self.naive.effects)
        decided = [(n.job, n.data["attempt"]) for n in step.notices if n.kind == "started"]
        placed = [(e.job, e.attempt, e.nodes) for e in step.effects if isinstance(e, StartEffect)]
        self.naive.seat(decided, placed)
        self.happened.update(
            type(i).__name__ + str(a) for i, a in zip(inputs, expected, strict=True)
        )
        self.happened["placed"] += len(placed)
        self.happened["passed"] += self.naive.passed
        self.happened["kept"] += self.naive.kept
        self.happened["later"] += self.naive.later
        self.happened["stopped"] += len(stops)
        self.happened["warned"] += sum(kind == "warn" for kind, _, _ in stops)

    @rule(seed=SEEDS)
    def something_happens(self, seed):
        # The number of the draw makes up for few seeds: which ones Hypothesis draws depends on the
        # constants in all modules that are loaded.
        self.drawn += 1
        rng = Random(f"{seed} {self.drawn}")
        self.now += rng.choice([0.0, 0.0, 1.0, 3.0, 10.0])
        made = [
            some_command(rng, self.now, self.engine.book)
            if rng.random() < 0.6
            else some_sight(rng, self.engine.book)
            for _ in range(rng.randint(1, 8))
        ]
        self.step(made)

    @rule(seconds=st.sampled_from([1.0, 3.0, 10.0, 4000.0]))
    def time_passes(self, seconds):
        self.now += seconds
        self.step([Tick()])

    @precondition(lambda self: self.naive.seatless)
    @rule()
    def an_hour_goes_by_while_a_job_waits_for_its_gpus(self):
        self.now += 3600.0
        for _ in range(8):  # whom GPUs are kept for then is a rare sight
            self.step([Tick()])

    @precondition(lambda self: self.engine.book.ended)
    @rule(seed=SEEDS)
    def somebody_cancels_what_is_over(self, seed):
        self.step([Cancel(Random(seed).choice([*self.engine.book.ended]))])

    @precondition(lambda self: self.naive.pools["a"].until is None and not self.naive.seatless)
    @rule(quota=st.integers(0, 3), seconds=st.sampled_from([1.0, 9.0]))
    def a_pool_has_less_for_a_while_and_another_more(self, quota, seconds):
        until = self.now + seconds
        self.step([SetPool("a", quota=quota, until=until), SetPool("b", quota=7 - quota)])

    @rule(kind=st.sampled_from([Started, Ended]), code=st.sampled_from([0, 0, 1]))
    def all_that_were_told_to_do_so(self, kind, code):
        """What a well-behaved backend sees."""
        held = (JobPhase.STARTING, JobPhase.RUNNING, JobPhase.ENDING)
        jobs = [r for r in self.engine.book.jobs.values() if r.placed and r.phase in held]
        args = (code,) if kind is Ended else ()
        self.step([kind(r.spec.id, r.attempt, *args) for r in jobs])

    @rule()
    def a_restart(self):
        data = self.engine.dump()
        self.engine = Engine.restore(data)
        assert self.engine.dump() == data

    @rule(seed=SEEDS)
    def a_step_that_was_not_durable(self, seed):
        """It is as if it had not been."""
        data, rng = self.engine.dump(), Random(seed)
        self.engine.step(
            self.now, [some_command(rng, self.now, self.engine.book) for _ in range(4)]
        )
        self.engine = Engine.restore(data)

    @invariant()
    def they_agree(self):
        self.engine.check()
        book = self.engine.book
        assert {i: r.phase for i, r in {**book.jobs, **book.ended}.items()} == self.naive.phases()
        assert {p.name: (p.quota, p.state) for p in book.pools.values()} == self.naive.modes()
        assert list(book.seatless) == self.naive.seatless


MOST_ROUNDS = 15
"""Rounds of random lives until each kind of answer was seen: what Hypothesis draws depends on the
modules that are loaded, so that a rare kind may be missing from one round."""


def test_the_engine_decides_as_the_naive_engine():
    kinds = (
        "Submitnew", "Submitsame", "Submit409", "Submit422", "Cancelnew", "Cancelsame", "Cancel409",
        "Holdnew", "Hold409", "Releasenew", "SetPoolnew", "SetPool409", "Startednew", "Endednew",
        "Ended409", "Ended404", "StartFailednew", "Lostnew", "Drainnew", "Resumenew", "placed",
        "stopped", "passed", "later", "warned", "Holdsame",
        "Releasesame", *budget(ci=(), soak=("kept",)),
    )  # fmt: skip
    least = budget(ci=0, soak=5)
    AgainstNaive.happened.clear()
    for number in range(MOST_ROUNDS):
        run_state_machine_as_test(
            seed(number)(AgainstNaive),
            settings=settings(
                max_examples=budget(ci=32, soak=400),
                stateful_step_count=40,
                deadline=None,
                database=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
        if all(AgainstNaive.happened[kind] > least for kind in kinds):
            return
    rare = [kind for kind in kinds if AgainstNaive.happened[kind] <= least]
    assert not rare, (rare, AgainstNaive.happened)


def steps(engine, now, *inputs):
    """Make one step; assert that all its commands are accepted."""
    step = engine.step(now, inputs)
    assert all(isinstance(answer, Accepted) for answer in step.answers), step.answers
    return step


def starts(step):
    return [effect.job for effect in step.effects if isinstance(effect, StartEffect)]


def test_jobs_get_gpus_by_number():
    engine = Engine.new(setup([2, 4], a=6))
    step = steps(engine, 1.0, submit("one", gpus=2), submit("two", gpus=3), submit("three"))
    assert [(e.job, e.nodes) for e in step.effects] == [
        ("one", (("n0", (0, 1)),)),
        ("two", (("n1", (0, 1, 2)),)),
        ("three", (("n1", (3,)),)),
    ]


def test_a_loan_is_reported_and_returned():
    engine = Engine.new(setup(a=2, b=2))
    step = steps(engine, 1.0, submit("mine", gpus=2), submit("more", gpus=2, run_time=3.0))
    loans = [n for n in step.notices if n.kind == "loan_opened"]
    assert [(n.job, n.pool, n.data["gpus"]) for n in loans] == [("more", "b", 2)]
    assert [record.spec.id for record in engine.book.loans()] == ["more"]
    step = steps(engine, 2.0, Ended("more", 1, 0))
    assert [n.kind for n in step.notices] == ["loan_closed", "ended"]
    assert not list(engine.book.loans())


def test_effects_that_may_be_lost_are_repeated_after_a_restart():
    engine = Engine.new(setup(a=4))
    steps(engine, 0.0, *(submit(f"{i}", time_limit=100.0, warn=90.0) for i in range(3)))
    steps(engine, 0.0, *(Started(f"{i}", 1) for i in range(3)))
    told = [StopEffect(f"{i}", 1, "warn") for i in range(3)]
    assert steps(engine, 20.0, Tick()).effects == told
    steps(engine, 30.0, Cancel("0"), Ended("1", 1, 0))
    again = Engine.restore(engine.dump())
    assert again.open_orders() == [StopEffect("0", 1, "end"), StopEffect("2", 1, "warn")]


@pytest.mark.parametrize(
    ("seen", "wanted"),
    [({"code": 0, "by_itself": True}, ("finished", "")),
     ({"code": 3, "by_itself": True}, ("failed", "")),
     ({"code": 0}, ("failed", "time limit"))],
)  # fmt: skip
def test_a_job_that_ends_by_itself_did_not_exceed_its_limit(seen, wanted):
    """The limit passes before its end is heard of, as while the daemon or the cluster is away."""
    engine = Engine.new(setup(a=1))
    steps(engine, 0.0, submit("late", time_limit=60.0, warn=0.0))
    steps(engine, 1.0, Started("late", 1))
    step = steps(engine, 100.0, Tick())
    assert step.effects == [StopEffect("late", 1, "end")]
    steps(engine, 101.0, Ended("late", 1, **seen))
    record = engine.book.job("late")
    assert (record.phase.value, record.why) == wanted


def test_a_cancelled_job_stays_cancelled_even_if_it_ended_by_itself():
    engine = Engine.new(setup(a=1))
    steps(engine, 0.0, submit("unwanted"))
    steps(engine, 1.0, Started("unwanted", 1), Cancel("unwanted"))
    steps(engine, 2.0, Ended("unwanted", 1, 0, by_itself=True))
    assert engine.book.job("unwanted").phase is JobPhase.CANCELLED


def test_a_requeued_job_has_no_placement():
    engine = Engine.new(setup([8], a=8))
    steps(engine, 0.0, submit("again", gpus=8, requeue=True))
    steps(engine, 1.0, Started("again", 1))
    steps(engine, 50.0, Lost("again", 1, "gone"), submit("first", gpus=8, priority=5))
    engine.check()
    story = JournalHistory(0.0, 60.0)
    story.add_alive(engine.book.jobs.values())
    assert [(job.id, start) for job, start in story.alive] == [
        ("again\x1f1", None),
        ("first", 50.0),
    ]
    steps(engine, 60.0, Cancel("again"))
    assert engine.book.ended["again"].decided is None


def test_an_array_is_addressed_as_one_job():
    engine = Engine.new(setup(a=1))
    step = steps(engine, 1.0, *(submit(f"x.{i}", array=(i, 3)) for i in range(3)))
    assert starts(step) == ["x.0"]
    steps(engine, 2.0, Hold("x"))
    phases = [record.phase for record in engine.book.named("x")]
    assert phases == [JobPhase.STARTING, JobPhase.HELD, JobPhase.HELD]
    step = steps(engine, 3.0, Cancel("x"))
    assert [(e.kind, e.job) for e in step.effects] == [("end", "x.0")]


def test_an_array_is_accepted_completely_or_not_at_all():
    engine = Engine.new(setup(a=4))
    steps(engine, 1.0, submit("x.1"))
    before = engine.dump()
    array = [submit(f"x.{i}", array=(i, 3)) for i in range(3)]
    answers = engine.step(1.0, array).answers
    assert [answer.detail for answer in answers] == ["another job has the id 'x.1'"] * 3
    assert engine.dump() == before
    ends = [submit("y" * 198 + f".{i}", array=(i, 11)) for i in range(11)]
    assert {answer.status for answer in engine.step(3.0, ends).answers} == {422}
    steps(engine, 4.0, *(submit(f"z.{i}", array=(i, 2)) for i in range(2)))
    wider = [submit(f"z.{i}", gpus=2, array=(i, 2)) for i in range(2)]
    assert {answer.status for answer in engine.step(5.0, wider).answers} == {409}
    again = engine.step(6.0, [submit(f"z.{i}", array=(i, 2)) for i in range(2)])
    assert again.answers == [Accepted(new=False)] * 2


def test_a_job_of_another_submission_is_not_part_of_an_array():
    engine = Engine.new(setup(a=4))
    steps(engine, 1.0, *(submit(f"x.{i}", array=(i, 2)) for i in range(2)))
    record = engine.book.jobs["x.1"]
    record.spec = replace(record.spec, array=None)  # as older journals may have it
    assert [each.spec.id for each in engine.book.named("x")] == ["x.0"]


@pytest.mark.parametrize(
    ("spec", "status"),
    [
        (job("x.7", array=(7, 3)), 422),
        (job("y", array=(0, 3)), 422),
        (job("x", "a"), 409),
        (job("new.0", array=(0, 2)), 200),
        (job("x.3", array=(3, 4)), 409),
        (job("a\x1fb"), 422),
        (job(""), 422),
        (job("z" * 201), 422),
        (job("wide", gpus=3), 422),
        (job("none", gpus=0), 422),
        (job("nowhere", "q"), 422),
        (job("odd", time_limit=-1.0), 422),
        (job("odd", time_limit=float("nan")), 422),
        (job("odd", priority=10**6), 422),
    ],
)
def test_impossible_jobs_are_refused(spec, status):
    engine = Engine.new(setup(a=2))
    steps(engine, 1.0, *(submit(f"x.{i}", array=(i, 3)) for i in range(3)))
    before = engine.dump()
    answer = engine.step(1.0, [replace(submit("_"), spec=spec)]).answers[0]
    if status == 200:
        assert answer == Accepted()
    else:
        assert answer.status == status
        assert answer.mend
        assert engine.dump() == before


def test_a_higher_priority_goes_first():
    engine = Engine.new(setup(a=1))
    steps(engine, 1.0, submit("runs"), submit("first"), submit("second"), submit("held", hold=True))
    steps(engine, 2.0, SetPriority("second", 5), SetPriority("held", 7))
    steps(engine, 3.0, Release("held"))
    assert starts(steps(engine, 4.0, Ended("runs", 1, 0))) == ["held"]
    engine = Engine.restore(engine.dump())
    assert starts(steps(engine, 5.0, Ended("held", 1, 0))) == ["second"]
    assert engine.step(6.0, [SetPriority("second", 9)]).answers[0].status == 409


def test_lending_stops_and_resumes_at_once():
    engine = Engine.new(setup(a=1, b=4))
    steps(engine, 1.0, submit("own"), Lending(on=False))
    assert starts(steps(engine, 2.0, submit("guest", run_time=3.0))) == []
    assert steps(engine, 2.0, Lending(on=False)).answers == [Accepted(new=False)]
    engine = Engine.restore(engine.dump())
    assert starts(steps(engine, 3.0, Lending(on=True))) == ["guest"]


def test_limits_on_loans_change_and_go_back():
    engine = Engine.new(setup(a=1, b=4))
    steps(engine, 1.0, submit("own"), SetPool("b", lend_limit=0, until=10.0))
    assert starts(steps(engine, 2.0, submit("guest", run_time=3.0))) == []
    assert starts(steps(engine, 10.0, Tick())) == ["guest"]
    pool = engine.book.pools["b"]
    assert (pool.lend_limit, pool.override, pool.version) == (None, None, 3)
    steps(engine, 11.0, SetPool("a", borrow_limit=1), SetPool("a", weight=2.0))
    assert starts(steps(engine, 12.0, submit("another", run_time=3.0))) == []
    assert starts(steps(engine, 13.0, Ended("guest", 1, 0))) == ["another"]
    answers = engine.step(14.0, [SetPool("a", weight=0.0), SetPool("a", lend_limit=-1)]).answers
    assert [answer.status for answer in answers] == [422, 422]
