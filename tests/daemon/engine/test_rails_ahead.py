"""Budgets are planned ahead, and looking at few pools comes to the same as looking at all."""

from datetime import UTC, datetime

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.model.inputs import Cancel, Configured, Ended, ForecastHealth, Foreseen, SetPool, Tick
from daemon.model.limits import NO_BUDGET
from daemon.model.setup import Budget
from daemon.model.timers import FEW
from sia.model import Load
from tests.support.budget import budget
from tests.support.daemons.daemons import setup, submit
from tests.support.daemons.lives import Life

JUNE = datetime(2026, 6, 10, tzinfo=UTC).timestamp()
JULY = datetime(2026, 7, 1, tzinfo=UTC).timestamp()


def lending(hours=1.0):
    """Pool a is full for long; b has 8 GPUs to lend, and a budget."""
    made = replace(setup(a=2, b=8), policy="gssf")
    return replace(made, budgets={"b": Budget(lend_budget_hours=hours)})


def live(cluster, story, lasts, until, begin=JUNE):
    life = Life(Engine.new(cluster), lambda spec: lasts.get(spec.id, 1e7))
    life.run([(begin - 1.0, [submit("full", "a", 2, 1e7)]), *story], until=until)
    life.engine.check()
    return life


def told(life, *kinds):
    return [(n.time, n.kind) for n in life.notices if n.kind in kinds]


def started(life):
    return {n.job: n.time for n in life.notices if n.kind == "started"}


def test_the_expected_remainder_of_loans_counts_as_lent():
    """2 · 2 GPUs for 1,000 s are more than an hour: the third is lent nothing, at once."""
    guests = [submit(f"g{i}", "a", 2, 1000.0) for i in range(2)]
    story = [(JUNE, guests), (JUNE + 60.0, [submit("third", "a", 2, 1000.0)])]
    life = live(lending(), story, dict.fromkeys(("g0", "g1", "third"), 1000.0), JULY + 10)
    assert told(life, "lending_kept") == [(JUNE, "lending_kept")]
    (kept,) = [n for n in life.notices if n.kind == "lending_kept"]
    assert kept.data["why"] == (
        "lent 0.0 of 1 GPU-hours this month (UTC); open loans are expected to add 1.1"
    )
    assert life.engine.book.accounts["b"].lent <= 4000.0  # not 6,000
    assert started(life)["third"] == JULY


def test_a_loan_that_ends_early_returns_its_remaining_expected_hours():
    """Both are over after 100 s of 1,000: in that very step the third is lent its GPUs."""
    guests = [submit(f"g{i}", "a", 2, 1000.0) for i in range(2)]
    story = [(JUNE, guests), (JUNE + 60.0, [submit("third", "a", 2, 1000.0)])]
    life = live(lending(), story, {"g0": 100.0, "g1": 1000.0, "third": 10.0}, JUNE + 5000.0)
    assert told(life, "lending_kept", "lending_resumed")[:2] == [
        (JUNE, "lending_kept"), (JUNE + 100.0, "lending_resumed"),
    ]  # fmt: skip
    assert started(life)["third"] == JUNE + 100.0


def test_a_job_that_exceeds_its_estimate_uses_up_the_budget_over_time():
    story = [(JUNE, [submit("long", "a", 2, 50.0)])]
    life = live(lending(), story, {"long": 5000.0}, JUNE + 6000.0)
    assert told(life, "lending_kept") == [(JUNE + 1800.0, "lending_kept")]


def test_the_expected_remainder_counts_in_its_month():
    """A minute before July two GPUs for an hour: 120 GPU-seconds in June, the rest in July."""
    story = [(JULY - 60.0, [submit("long", "a", 2, 3600.0)])]
    life = live(lending(hours=0.5), story, {"long": 3600.0}, JULY + 100.0)
    assert told(life, "lending_kept") == [(JULY, "lending_kept")]
    life = live(lending(hours=2.0), story, {"long": 3600.0}, JULY + 1000.0)
    assert told(life, "lending_kept") == []
    assert life.engine.book.pools["b"].spent.upto(JULY + 1000.0) == 2000.0


def test_a_changed_budget_applies_at_once_within_the_same_month():
    story = [
        (JUNE, [submit("g", "a", 2, 1000.0)]),
        (JUNE + 10.0, [SetPool("b", lend_budget_hours=0.5)]),
        (JUNE + 20.0, [SetPool("b", lend_budget_hours=float(NO_BUDGET))]),
        (JUNE + 30.0, [SetPool("b", lend_budget_hours=0.1)]),
    ]
    life = live(lending(), story, {"g": 1000.0}, JUNE + 40.0)
    assert [time - JUNE for time, _ in told(life, "lending_kept", "lending_resumed")] == [
        10,
        20,
        30,
    ]


def test_a_used_up_budget_causes_no_further_steps():
    cluster = lending()
    life = live(cluster, [(JUNE, [submit("g", "a", 2, 1e7)])], {"g": 1e7}, JUNE + 10.0)
    life.step(JUNE + 20.0, [SetPool("b", lend_budget_hours=float(NO_BUDGET))])
    life.step(JULY + 1.0, [Tick()])
    assert life.engine.due > JULY + 1.0
    life.step(JULY + 101.0, [SetPool("b", lend_budget_hours=100.0)])
    assert life.engine.book.pools["b"].spent.upto(JULY + 101.0) == 202.0


def test_a_job_that_becomes_late_between_two_checks_is_detected_at_that_moment():
    """A step half a millisecond after it came, in which it is not late yet; then nothing."""
    cluster = replace(setup(a=2, b=2), policy="gssf")
    cluster = replace(cluster, budgets={"b": Budget(slowed_budget_pct=50.0)})
    story = [
        (JUNE, [submit("guest", "a", 2, 50.0)]),
        (JUNE + 10.0, [submit("waits", "b", 2, 50.0)]),
        (JUNE + 10.0005, [Tick()]),
    ]
    life = live(cluster, story, {}, JUNE + 11.0)
    late = [n for n in life.notices if n.kind == "lending_kept" and n.data["reason"] == "late"]
    assert {n.pool for n in late} == {"a", "b"}
    assert JUNE + 10.001 < late[0].time < JUNE + 10.004


def test_a_budget_removed_before_any_check_is_not_counted():
    """As first command; a daemon that begins anew after it decides as the one that went on."""
    gone, again = (SetPool("b", lend_budget_hours=hours) for hours in (float(NO_BUDGET), 1.0))
    steps = [
        (JUNE + 2.0, [submit("guest", "a", 2, 1e5)]),
        (JUNE + 7200.0, [again]),
        (JUNE + 7201.0, [Ended("guest", 1, 0)]),
        (JUNE + 7202.0, [submit("next", "a", 1, 10.0)]),
    ]
    live = Engine.new(lending(hours=5.0))
    live.step(JUNE, [gone])
    live.step(JUNE + 1.0, [submit("full", "a", 2, 1e7)])
    other = Engine.restore(live.dump())
    for now, inputs in steps:
        assert live.step(now, inputs).decisions == other.step(now, inputs).decisions
        assert live.dump() == other.dump()
        live.check()
        other.check()
    assert live.book.pools["b"].spent.lends == 1


@pytest.mark.parametrize("hours", [1e5, NO_BUDGET])
def test_no_more_checks_are_planned_than_there_are_pools(hours):
    """However many loans begin and end; a look at another time is in place of the one before."""
    life = live(lending(hours=1e5), [], {}, JUNE)
    life.step(JUNE + 0.5, [SetPool("b", lend_budget_hours=float(hours))])
    planned = life.engine._rails._hours._timers
    for i in range(200):
        known = (5.0,) if i % 2 else ()
        life.engine.step(JUNE + 2.0 * i + 1, [submit(f"g{i}", "a", 1, *known)])
        life.engine.step(JUNE + 2.0 * i + 2, [Ended(f"g{i}", 1, 0)])
        assert len(planned) <= FEW + 2 * len(life.engine.book.pools)
    assert life.engine.book.pools["b"].spent.seconds == 200.0


class Watched:
    """An engine, and beside it one that looks at all pools in each step, as the first did."""

    def __init__(self, cluster, *, restores):
        self.engine, self.naive, self.restores = Engine.new(cluster), Engine.new(cluster), restores

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def step(self, now, inputs):
        if self.restores and int(now) % 3 == 0:
            self.engine = Engine.restore(self.engine.dump())
        self.naive._context.recheck_pools = True
        for pool in self.naive.book.pools.values():
            if pool.spent is not None:
                pool.spent.look = 0.0
        said, step = self.naive.step(now, inputs), self.engine.step(now, inputs)
        assert step.decisions == said.decisions
        assert step.notices == said.notices
        assert kept_of(self.engine) == kept_of(self.naive)
        self.engine.check()
        return step


def kept_of(engine):
    return {name: (p.kept, p.told, p.rests_until) for name, p in engine.book.pools.items()}


def exact(rng, most):
    """Sums of such times are what they should be: not a bit is rounded."""
    return max(1, round(rng.uniform(0, most) * 64)) / 64


def rough(rng, most):
    """Any times: of sums of these each partition is another number."""
    return rng.uniform(0.01, most)


def some_story(rng, some):
    tale, lasts, now = [], {}, JULY - rng.choice([0.0, 200.0, 1000.0])
    for i in range(40):
        now += rng.choice([0.0, 1.0, some(rng, 20), some(rng, 60), rng.choice([60.0, 2000.0])])
        length = some(rng, rng.choice([20.0, 90.0]))
        lasts[f"j{i}"] = length * rng.choice([0.25, 1.0, 1.0, 2.0])
        asked = [submit(f"j{i}", rng.choice("aabc"), rng.randint(1, 3), length)]
        if rng.random() < 0.2:
            asked.append(Cancel(f"j{rng.randint(0, i)}"))
        if rng.random() < 0.2:
            asked.append(rng.choice([
                SetPool(rng.choice("bc"), quota=rng.randint(2, 5)),
                SetPool(rng.choice("abc"), lend_budget_hours=rng.choice([0.01, 0.1, NO_BUDGET])),
                SetPool(rng.choice("abc"), slowed_budget_pct=rng.choice([0.0, 5.0, NO_BUDGET])),
                SetPool(rng.choice("abc"), slowed_budget_minutes=rng.choice([0.0, 0.5, NO_BUDGET])),
                SetPool("b", lend_budget_hours=0.02, until=now + 50.0),
                ForecastHealth({"b": "wrong"}), ForecastHealth(),
                Foreseen([Load("c", rng.randrange(3), 2)]),
            ]))  # fmt: skip
        tale.append((now, asked))
    return tale, lasts


def some_cluster(rng, policy):
    budgets = {
        name: Budget(
            rng.choice([None, 0.01, 0.05]),
            rng.choice([None, 0.0, 10.0]),
            rng.choice([None, 0.0, 0.2, 1.0]),
        )
        for name in "abc"
    }
    made = setup(a=2, b=4, c=4)
    return replace(made, policy=policy, budgets=budgets, book_every=4)


@given(st.randoms(use_true_random=False), st.sampled_from(["sia", "gssf", "mmfs"]), st.booleans())
@settings(
    max_examples=budget(ci=15, soak=300), deadline=None, suppress_health_check=list(HealthCheck)
)
def test_checking_some_pools_gives_the_same_as_checking_all(rng, policy, restores):
    tale, lasts = some_story(rng, exact)
    watched = Watched(some_cluster(rng, policy), restores=restores)
    life = Life(watched, lambda spec: lasts[spec.id])
    assert life.run(tale).over


class Doubled:
    """An engine that goes on, and beside it one that is restored every now and then."""

    def __init__(self, cluster, rng):
        self.engine, self.other, self.rng = Engine.new(cluster), Engine.new(cluster), rng

    def __getattr__(self, name):
        return getattr(self.engine, name)

    def step(self, now, inputs):
        if self.rng.random() < 0.2:
            self.other = Engine.restore(self.other.dump())
        step, said = self.engine.step(now, inputs), self.other.step(now, inputs)
        assert step.decisions == said.decisions
        assert step.notices == said.notices
        assert self.engine.due == self.other.due
        assert self.engine.dump() == self.other.dump()
        self.engine.check()
        self.other.check()
        return step


@given(st.randoms(use_true_random=False), st.sampled_from(["sia", "gssf", "mmfs"]))
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_restored_engine_has_the_same_bytes_as_one_that_continued(rng, policy):
    """At random times, while budgets are added, removed and changed."""
    cluster, other = (some_cluster(rng, policy) for _ in range(2))
    tale, lasts = some_story(rng, rough)
    tale[20][1].append(Configured(other))
    life = Life(Doubled(cluster, rng), lambda spec: lasts[spec.id])
    assert life.run(tale).over
