"""A defect in accounts ends no step and no service: the pool's account is begun anew."""

import asyncio
from random import Random

import pytest
from msgspec import json
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.journal.journal import Journal
from daemon.journal.recovery import recover
from daemon.model.inputs import Ended, Tick
from daemon.model.job import JobPhase
from daemon.model.outputs import Accepted
from sia.virtual.virtual_clock import VirtualClock
from tests.support.daemons.daemons import FakeBackend, forget_snapshots, setup, submit, until
from tests.support.daemons.daemons import serving as served
from tests.support.daemons.lives import Life


@pytest.fixture
def defect(monkeypatch):
    """Whatever clocks are told of jobs called `bad` in this way goes wrong."""

    def begin(told, error=AssertionError):
        was = getattr(VirtualClock, told)

        def wrong(self, now, what, *rest, **more):
            if str(getattr(what, "id", what)).startswith("bad"):
                raise error("a defect")
            return was(self, now, what, *rest, **more)

        monkeypatch.setattr(VirtualClock, told, wrong)

    return begin


def life_of(every, lasts=10.0, **quotas):
    cluster = replace(setup(**quotas), policy="gssf", book_every=every)
    return Life(Engine.new(cluster), lambda spec: lasts)


@pytest.mark.parametrize("every", [1, 32])
@pytest.mark.parametrize("told", ["submitted", "started", "finished"])
def test_a_defect_restarts_the_account_of_one_pool_alone(defect, told, every):
    defect(told)
    life = life_of(every, a=2, b=2)
    pairs = [[submit(f"a{i}", "a"), submit(f"b{i}", "b")] for i in range(200)]
    story = [(1000.0 + 7 * i, pair) for i, pair in enumerate(pairs)]
    story.insert(50, (1349.5, [submit("bad", "a")]))
    life.run(story, until=1e4)
    life.engine.check()
    life.engine.settle_accounts()
    a, b = (life.engine.book.accounts[name] for name in "ab")
    assert (a.renewed, b.renewed) == (1, 0)
    assert not a.broken
    a.clock.check()
    assert b.jobs == 200
    assert 190 < a.jobs < 200  # of those that were there then nothing is said
    (told,) = [n for n in life.notices if n.kind == "account_renewed"]
    assert (told.pool, told.data) == ("a", {"times": 1})


@pytest.mark.parametrize("error", [KeyError, TypeError, ZeroDivisionError])
def test_a_defect_with_any_job_of_an_account_does_not_affect_scheduling(defect, error):
    plain, broken = life_of(1, a=1, b=4), life_of(1, a=1, b=4)
    story = [(1000.0 + 3 * i, [submit(f"bad{i}", "a", 1)]) for i in range(20)]
    plain.run(story, until=1e4)
    defect("submitted", error)
    broken.run(story, until=1e4)
    assert broken.decisions == plain.decisions
    assert broken.engine.book.accounts["a"].jobs == 0
    assert broken.engine.book.accounts["a"].renewed > 1


def test_a_restarted_account_counts_existing_jobs_as_a_new_account_does(defect):
    defect("started")
    life = life_of(1, a=2)
    engine = life.engine
    life.step(1000.0, [submit("runs"), submit("bad"), submit("waits")])
    life.step(1001.0, [submit("late")])
    twins = engine.book.accounts["a"].clock.twins
    engine.settle_accounts()
    assert {job.partition("\x1f")[0]: twin.judged for job, twin in twins.items()} == {
        "runs": False, "bad": False, "waits": False, "late": True,
    }  # fmt: skip
    life.run(until=2000.0)
    life.step(2000.0, [Tick()])
    (found,) = [account.jobs for account in engine.book.accounts.values()]
    assert found == 1


@pytest.mark.parametrize("every", [1, 32])
def test_the_ledger_sums_up_to_the_same_with_and_without_a_defect(defect, every):
    lives = []
    for _ in range(2):
        life = life_of(every, 30.0, a=1, b=4)
        story = [(1000.0 + 7 * i, [submit(f"j{i}", "a", 1)]) for i in range(30)]
        story.append((1077.5, [submit("bad", "a", 1)]))
        life.run(sorted(story, key=lambda each: each[0]), until=1e4)
        life.engine.settle_accounts()
        lives.append(life.engine.book.accounts)
        defect("started")
    whole, renewed = lives
    assert (whole["a"].renewed, renewed["a"].renewed) == (0, 1)
    assert renewed["b"].lent == pytest.approx(whole["b"].lent)
    assert renewed["a"].borrowed == pytest.approx(whole["b"].lent)


class Looked(Life):
    """After each step somebody looks, or it is restored from a snapshot."""

    looks = ""

    def step(self, now, inputs):
        self.times = [*getattr(self, "times", ()), now]
        step = super().step(now, inputs)
        if self.looks == "account":
            self.engine.settle_accounts()
        elif self.looks == "snapshot":
            self.engine = Engine.restore(self.engine.dump())
        return step


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("told", ["started", "finished"])
def test_accounts_do_not_depend_on_when_they_are_read(defect, told, seed):
    defect(told)
    rng = Random(seed)
    story, now = [], 1000.0
    for i in range(60):
        now += rng.choice([0.5, 2.0, 15.0])
        name = f"bad{i}" if rng.random() < 0.1 else f"j{i}"
        story.append((now, [submit(name, rng.choice("abc"), rng.randint(1, 2))]))
    found = []
    for looks in ("", "account", "snapshot"):
        cluster = replace(setup(a=2, b=3, c=4), policy="gssf", book_every=32)
        life = Looked(Engine.new(cluster), lambda spec: 5.0 + spec.gpus)
        life.looks = looks
        life.run(story, until=now + 500)
        life.engine.settle_accounts()
        found.append((json.decode(life.engine.dump())["book"]["accounts"], life.times))
    assert any(account["renewed"] for account in found[0][0].values())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("every", [1, 32])
def test_the_service_continues_after_a_defect_and_after_a_restart(tmp_path, defect, every):
    defect("started")
    cluster = replace(setup(a=64), book_every=every)

    async def life(names):
        backend = FakeBackend()
        async with served(tmp_path / "db", cluster, backend) as service:
            for name in names:
                assert await service.submit([submit(name)]) == [Accepted()]
            await until(lambda: service.book.job(names[0]).phase is JobPhase.RUNNING)
            backend.end(names[0])
            await until(lambda: service.book.job(names[0]).phase.over)
            assert service.ready
            service.engine.settle_accounts()
            return service.engine

    asyncio.run(life(["bad", *(f"j{i}" for i in range(40))]))
    engine = asyncio.run(life([f"k{i}" for i in range(3)]))
    assert engine.book.accounts["a"].renewed
    forget_snapshots(tmp_path / "db")
    journal = Journal(tmp_path / "db")
    again = recover(journal, cluster)
    assert again.dump() == engine.dump()
    journal.close()


def test_an_event_without_a_pool_restarts_all_accounts(monkeypatch):
    engine = Engine.new(setup(a=2, b=2))
    engine.step(1000.0, [submit("one", "a"), submit("two", "b")])
    monkeypatch.setattr("daemon.model.book.Book.job", lambda *_: None)
    engine.settle_accounts()
    monkeypatch.undo()
    engine.step(1001.0, [Tick()])
    assert [account.renewed for account in engine.book.accounts.values()] == [1, 1]
    engine.step(1002.0, [Ended("one", 1, 0)])
    engine.check()
