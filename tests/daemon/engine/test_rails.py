"""Guard rails: budgets, and forecasts that drift, keep a pool from lending for a while."""

from datetime import UTC, datetime
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.engine.guardrails import LATE_REST
from daemon.lending.accounts import BOOK_WITHIN
from daemon.model.account import Lent
from daemon.model.calendar import began, moment, month_of
from daemon.model.inputs import Cancel, Configured, Ended, ForecastHealth, SetPool, Tick
from daemon.model.limits import NO_BUDGET
from daemon.model.outputs import Refused
from daemon.model.setup import Budget
from sia.model import Job
from sia.virtual.virtual_clock import VirtualClock
from tests.support.budget import budget
from tests.support.daemons.daemons import setup, submit
from tests.support.daemons.lives import Life

JUNE = datetime(2026, 6, 10, tzinfo=UTC).timestamp()


def life_of(cluster, lasts, **more):
    return Life(Engine.new(cluster), lambda spec: lasts.get(spec.id, 50.0), **more)


def kept(life, kind="lending_kept"):
    return [(n.time, n.pool, n.data["reason"]) for n in life.notices if n.kind == kind]


def budgeted(**budgets):
    return replace(setup(a=2, b=4), budgets={"b": Budget(**budgets)})


def borrowers(n, lasts=50.0, gpus=2):
    """Jobs of a that want b's GPUs, beside one that has all of a's for long."""
    return [submit(f"w{i}", "a", gpus, lasts) for i in range(n)]


@given(st.integers(0, 4_000_000_000))
def test_months_are_those_of_the_calendar(now):
    number, end = month_of(float(now))
    told = datetime.fromtimestamp(now, UTC)
    assert divmod(number, 12) == (told.year, told.month - 1)
    following = datetime(told.year + told.month // 12, told.month % 12 + 1, 1, tzinfo=UTC)
    assert end == following.timestamp()
    assert moment(float(now)) == f"{told:%Y-%m-%d %H:%M} UTC"


def test_a_pool_lends_no_more_hours_than_its_budget_until_the_month_is_over():
    """Two GPUs for half an hour are an hour: what is under way goes on, nothing new begins."""
    life = life_of(
        replace(budgeted(lend_budget_hours=1.0), policy="gssf"),
        {"full": 1e7, "long": 2000.0, "after": 50.0, "later": 50.0},
    )
    story = [
        (JUNE - 1.0, [submit("full", "a", 2, 1e7)]),
        (JUNE, [submit("long", "a", 2, 50.0)]),
        (JUNE + 2500.0, [submit("after", "a", 2, 50.0)]),
    ]
    july = datetime(2026, 7, 1, tzinfo=UTC).timestamp()
    life.run(story, until=july + 100)
    life.engine.check()
    started = {n.job: n.time for n in life.notices if n.kind == "started"}
    assert started["long"] == JUNE
    assert kept(life) == [(JUNE + 1800.0, "b", "hours")]
    assert started["after"] == july
    assert kept(life, "lending_resumed") == [(july, "b", "hours")]
    (told,) = [n for n in life.notices if n.kind == "lending_kept"]
    assert told.data["why"] == "lent 1.0 of 1 GPU-hours this month (UTC)"


@given(st.integers(0, 4_000_000_000))
def test_a_month_begins_where_the_one_before_ends(now):
    number, end = month_of(float(now))
    assert began(number) <= now < end == began(number + 1)


@pytest.mark.parametrize("every", [1, 32])
def test_short_loans_in_a_quiet_cluster_are_as_many_hours_as_the_ledger_says(every):
    """Ten seconds on two GPUs, each five minutes: nothing else happens in between."""
    life = life_of(
        replace(budgeted(lend_budget_hours=1.0), policy="gssf", book_every=every), {"full": 1e7}
    )
    life.lasts = lambda spec: 1e7 if spec.id == "full" else 10.0
    story = [(JUNE, [submit("full", "a", 2, 1e7)])]
    story += [(JUNE + 300.0 * i, [submit(f"w{i}", "a", 2, 10.0)]) for i in range(1, 100)]
    life.run(story, until=JUNE + 300 * 100)
    life.engine.settle_accounts()
    book = life.engine.book
    assert book.pools["b"].spent.seconds == pytest.approx(book.accounts["b"].lent) == 99 * 20.0
    assert kept(life) == []


def lent_in(life, now):
    """GPU-seconds of the month up to now by the ledger, by lender."""
    (month, _), sums = month_of(now), dict.fromkeys("abc", 0.0)
    rows = [*life.lent, *life.engine.book.rows]
    for job_id, loans in life.engine.book.lent.items():
        for lender, (to, gpus, since) in loans.items():
            rows.append(Lent(job_id, lender, to, gpus, since, now))
    for row in rows:
        sums[row.lender] += row.gpus * max(0.0, row.end - max(row.start, began(month)))
    return sums


class Restored(Life):
    """Now and then its engine is restored from a snapshot."""

    restores = False

    def step(self, now, inputs):
        if self.restores and int(now) % 3 == 0:
            self.engine = Engine.restore(self.engine.dump())
        return super().step(now, inputs)


@settings(max_examples=budget(ci=20, soak=400), deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from([1, 32]), st.booleans())
def test_in_random_histories_lent_hours_equal_the_ledger(rng, every, restores):
    """Quotas change, jobs are cancelled, months end, daemons restart, budgets are set anew."""
    hours = {name: Budget(lend_budget_hours=rng.choice([0.02, 0.1, 50.0])) for name in "abc"}
    cluster = replace(setup(a=2, b=4, c=6), policy=rng.choice(["gssf", "mmfs", "sia"]))
    cluster = replace(cluster, budgets=hours, book_every=every)
    now = datetime(2026, 7, 1, tzinfo=UTC).timestamp() - rng.choice([0, 100, 300])
    story = []
    for i in range(40):
        now += rng.choice([0.5, 3.0, 40.0])
        pool = rng.choice("abc")
        asked = [submit(f"j{i}", pool, rng.randint(1, 4), rng.choice([1.0, 15.0, 90.0]))]
        if rng.random() < 0.2:
            asked.append(Cancel(f"j{rng.randint(0, i)}"))
        if rng.random() < 0.1:
            asked.append(SetPool("c", quota=rng.randint(4, 8)))
        if rng.random() < 0.1:
            slack = replace(cluster.options, slack=1.0 + i)
            asked.append(Configured(replace(cluster, options=slack)))
        if i and rng.random() < 0.1:
            asked.append(SetPool(pool, lend_budget_hours=rng.choice([NO_BUDGET, 0.05, 50.0])))
        story.append((now, asked))
    life = Restored(Engine.new(cluster), lambda spec: 1.0 + len(spec.id) * spec.gpus * 7)
    life.restores = restores
    end = now + 200
    life.run(story, until=end)
    life.step(end, [Tick()])
    life.engine.settle_accounts()
    life.engine.check()
    month, _ = month_of(end)
    for name, seconds in lent_in(life, end).items():
        spent = life.engine.book.pools[name].spent
        told = 0.0 if spent.month != month else spent.upto(end)
        assert told == pytest.approx(seconds), name


FOURS = {"full": 1e5, "guest": 100.0, "own": 30.0}
"""How long jobs last in pools of four GPUs each."""


def late_story(until=1e4, **budgets):
    """a's guest on b's GPUs overruns: one job of b begins 90 s late. Then a wants to borrow."""
    cluster = replace(budgeted(**budgets), policy="gssf")
    cluster = replace(cluster, pools=tuple(replace(p, quota=4) for p in cluster.pools))
    life = life_of(cluster, FOURS)
    story = [
        *((100.0 + 20 * i, [submit(f"b-{i}", "b", 1, 5.0)]) for i in range(4)),
        (1000.0, [submit("full", "a", 4), submit("guest", "a", 4)]),
        (1010.0, [submit("own", "b", 4)]),  # alone it would run now; the guest stays until 1100
        *((1200.0 + 100 * i, [submit(f"b{i}", "b", 1)]) for i in range(8)),
        (2300.0, [submit("again", "a", 2)]),
    ]
    life.run(story, until=until)
    life.engine.check()
    assert life.engine.book.accounts["b"].slowed == (until > 1100.0)
    return life


def starts(life):
    return {n.job: n.time for n in life.notices if n.kind == "started"}


def test_a_group_with_a_late_job_lends_nothing_while_it_waits_and_for_a_while_after():
    life = late_story(slowed_budget_pct=25.0)
    late = [(t, pool) for t, pool, reason in kept(life) if reason == "late"]
    assert [pool for _, pool in late] == ["a", "b"]
    assert 1010.0 < late[0][0] <= 1100.0 == starts(life)["own"]
    over = [(t, pool) for t, pool, reason in kept(life, "lending_resumed") if reason == "late"]
    assert over == [(1100.0 + LATE_REST, "a"), (1100.0 + LATE_REST, "b")]
    assert starts(life)["again"] == 1100.0 + LATE_REST
    began = [n for n in life.notices if n.kind == "lending_kept"]
    (told,) = {n.data["why"] for n in began if n.data["reason"] == "late"}
    words = "1 pending job of b would already run without sharing; lending resumes"
    assert told == f"{words} 1 h after the last of them has started"


def test_a_pool_lends_until_one_more_slowed_job_would_be_too_many():
    """One of four may be slowed: with one of five it lends no more, with one of seven again."""
    life = late_story(slowed_budget_pct=25.0)
    stopped, resumed = (
        [t for t, pool, reason in kept(life, kind) if (pool, reason) == ("b", "slowed")]
        for kind in ("lending_kept", "lending_resumed")
    )
    assert len(stopped) == len(resumed) == 1
    assert 1010.0 < stopped[0] <= 1100.0 < resumed[0] == 1350.0 + BOOK_WITHIN


def test_the_first_slowed_job_is_allowed_but_no_second_and_none_with_a_budget_of_zero():
    """At 0.1 % a pool lends from the beginning; after one, not until there are 2,000 jobs."""
    life = late_story(slowed_budget_pct=0.1)
    assert starts(life)["guest"] == 1000.0
    assert list(life.engine.book.pools["b"].kept) == ["slowed"]
    assert "again" not in starts(life)
    none = life_of(budgeted(slowed_budget_pct=0.0), {})
    none.step(1000.0, [])
    assert list(none.engine.book.pools["b"].kept) == ["slowed"]


def test_a_pool_lends_until_its_minutes_of_delay_are_spent_and_again_in_the_next_month():
    """One job of b begins 90 s late: with a minute b lends no more this month, with two it does."""
    one, two = (late_story(slowed_budget_minutes=minutes) for minutes in (1.0, 2.0))
    assert [n for n in kept(two) if n[2] == "minutes"] == []
    assert starts(two)["again"] == 1100.0 + LATE_REST
    assert kept(two, "lending_resumed") == [(1100.0 + LATE_REST, pool, "late") for pool in "ab"]
    assert [n for n in kept(one) if n[2] == "minutes"] == [(1100.0, "b", "minutes")]
    assert "again" not in starts(one)
    words = "jobs that it started this month (UTC) began 1.5 min later than without sharing"
    limit = "the budget is 1 min"
    assert why_of(one, "b", 1e4)["minutes"] == (
        f"{words}; {limit}; the next month begins at 1970-02-01 00:00 UTC"
    )
    february = 31 * 86400.0
    assert one.engine.due == february
    one.step(february, [Tick()])
    assert kept(one, "lending_resumed")[-1] == (february, "b", "minutes")
    assert starts(one)["again"] == february
    assert one.engine.delayed_minutes("b", february) == 0.0


def test_minutes_are_counted_from_the_moment_at_which_their_budget_is_set():
    life = late_story(until=2000.0)
    assert life.engine.delayed_minutes("b", 2000.0) is None
    life.step(2001.0, [SetPool("b", slowed_budget_minutes=0.0)])
    assert life.engine.delayed_minutes("b", 2001.0) == 0.0
    assert why_of(life, "b", 2001.0)["minutes"].endswith("allows none, so the pool never lends")
    life.step(2002.0, [SetPool("b", slowed_budget_minutes=0.5)])
    assert not life.engine.book.pools["b"].kept
    life.engine.check()


def test_minutes_are_counted_anew_after_the_pools_clock_was_restarted():
    """What its jobs had lost before is unknown then, so that less is known than at the begin."""
    life = late_story(until=2000.0, slowed_budget_minutes=9.0)
    assert life.engine.delayed_minutes("b", 2000.0) == 1.5
    pool = life.engine.book.pools["b"]
    pool.delayed_from = (pool.delayed_from[0], 7200.0)
    life.step(2001.0, [SetPool("b", weight=2.0)])
    assert pool.delayed_from[1] == 90.0


def test_without_a_budget_in_its_group_no_pool_stops_lending():
    life = late_story(until=1150.0, slowed_budget_pct=25.0)
    assert list(life.engine.book.pools["a"].kept) == ["late"]
    life.step(1151.0, [SetPool("b", slowed_budget_pct=NO_BUDGET)])
    assert not any(pool.kept for pool in life.engine.book.pools.values())
    life.engine.check()


def test_drift_stops_pools_from_lending_until_it_ends():
    life = life_of(replace(setup(a=2, b=4), policy="gssf"), {"full": 1e4, "one": 5.0, "two": 5.0})
    story = [
        (1000.0, [ForecastHealth({"b": "7 of 20 forecasts missed"})]),
        (1001.0, [submit("full", "a", 2), submit("one", "a", 2)]),
        (2000.0, [ForecastHealth({"b": "8 of 20 forecasts missed"})]),
        (3000.0, [ForecastHealth({})]),
    ]
    life.run(story, until=4000.0)
    started = {n.job: n.time for n in life.notices if n.kind == "started"}
    assert started["one"] == 3000.0
    assert kept(life) == [(1000.0, "b", "drift")]
    assert kept(life, "lending_resumed") == [(3000.0, "b", "drift")]


def test_limits_set_during_a_lending_ban_apply_afterwards():
    life = life_of(replace(setup(a=2, b=4), policy="gssf"), {})
    life.step(1000.0, [ForecastHealth({"b": "why"})])
    life.step(1001.0, [SetPool("b", lend_limit=3)])
    pool = life.engine.core.state.pools["b"]
    assert pool.lend_limit == 0
    life.engine.check()
    life.step(1002.0, [SetPool("b", quota=5, lend_budget_hours=2.0), ForecastHealth({})])
    life.engine.check()
    assert pool.lend_limit == 3
    life.step(1003.0, [SetPool("b", lend_budget_hours=NO_BUDGET, until=2000.0)])
    assert life.engine.book.pools["b"].lend_budget_hours is None
    life.step(2000.0, [])
    assert life.engine.book.pools["b"].lend_budget_hours == 2.0
    for wrong in (SetPool("b", slowed_budget_pct=101.0), SetPool("b", lend_budget_hours=-2.0)):
        (answer,) = life.step(2001.0, [wrong]).answers
        assert isinstance(answer, Refused)
        assert answer.status == 422


def test_the_configuration_sets_other_budgets():
    engine = Engine.new(budgeted(lend_budget_hours=1.0))
    life = Life(engine, lambda spec: 1.0)
    life.step(1000.0, [SetPool("b", lend_budget_hours=5.0)])
    life.step(1001.0, [Configured(budgeted(lend_budget_hours=1.0))])
    assert engine.book.pools["b"].lend_budget_hours == 5.0
    life.step(1002.0, [Configured(budgeted(slowed_budget_pct=0.5))])
    pool = engine.book.pools["b"]
    assert (pool.lend_budget_hours, pool.slowed_budget_pct) == (None, 0.5)
    engine.check()


@pytest.mark.parametrize("seed", range(6))
def test_a_restart_in_the_middle_changes_nothing(seed):
    rng = Random(seed)
    cluster = replace(
        setup(a=2, b=4), policy="gssf",
        budgets={"a": Budget(slowed_budget_pct=10.0), "b": Budget(0.02, 5.0, 0.5)},
    )  # fmt: skip
    story, now = [], 1000.0
    for i in range(40):
        now += rng.choice([1, 5, 20])
        story.append((now, [submit(f"j{i}", rng.choice("aab"), rng.randint(1, 2))]))
        if rng.random() < 0.2:
            story.append((now + 0.5, [Cancel(f"j{rng.randrange(i + 1)}")]))
    lasts = {f"j{i}": float(rng.randint(1, 60)) for i in range(40)}
    whole = life_of(cluster, lasts).run(story, until=story[-1][0])
    cut = life_of(cluster, lasts)
    middle = story[20][0]
    cut.run([each for each in story if each[0] < middle], until=middle - 0.25)
    cut.engine = Engine.restore(cut.engine.dump())
    cut.run([each for each in story if each[0] >= middle], until=story[-1][0])
    assert [n for n in cut.notices if "lending" in n.kind] == [
        n for n in whole.notices if "lending" in n.kind
    ]
    assert kept(whole)
    whole.engine.check()


def test_a_clock_hears_of_a_priority_after_the_virtual_end_of_the_job():
    """It began late in truth: what was told of it meanwhile comes after it has left virtually."""
    clock = VirtualClock.of(1)
    clock.submitted(0.0, Job("one", "a", 0.0, 1))
    clock.advance(1.0)
    clock.ranked(50.0, "one", 3)
    clock.started(100.0, "one")
    clock.finished(110.0, "one")
    clock.advance(200.0)
    assert [(v.job_id, v.later) for v in clock.take()] == [("one", 100.0)]
    clock.check()


def why_of(life, pool, now):
    return life.engine.not_lending_reasons(pool, now)


def test_the_reason_and_the_end_of_a_lending_ban_are_stated_in_words():
    life = late_story(until=1099.0, slowed_budget_pct=25.0)
    waits = "1 pending job of b would already run without sharing; lending resumes 1 h after"
    assert why_of(life, "a", 1099.0)["late"] == f"{waits} the last of them has started"
    life = late_story(until=1150.0, slowed_budget_pct=25.0)
    again = "lending resumes at 1970-01-01 01:18 UTC"
    assert why_of(life, "a", 1150.0) == {"late": f"no job of its group is late now; {again}"}
    assert life.engine.book.pools["a"].kept["late"] == f"{waits} the last of them has started"
    assert why_of(life, "b", 1150.0)["slowed"] == (
        "1 of its 5 jobs started later than without sharing; one more would exceed 25 %; "
        "lending resumes after 2 more jobs without a delayed one"
    )
    none = life_of(budgeted(slowed_budget_pct=0.0), {})
    none.step(1000.0, [])
    assert why_of(none, "b", 1000.0)["slowed"].endswith(
        "; a budget of 0 % allows none, so the pool never lends"
    )


def test_a_pool_lends_again_after_the_stated_number_of_jobs():
    life = late_story(until=1150.0, slowed_budget_pct=25.0)
    for i, more in enumerate((2, 1)):
        assert f"after {more} more job" in why_of(life, "b", 1200.0 + 10 * i)["slowed"]
        life.step(1200.0 + 10 * i, [submit(f"more{i}", "b", 1, 1.0)])
        life.step(1205.0 + 10 * i, [Ended(f"more{i}", 1, 0)])
    life.step(1215.0 + BOOK_WITHIN, [])
    assert "slowed" not in life.engine.book.pools["b"].kept


def test_lent_hours_are_reported_up_to_the_moment_of_the_question():
    cluster = replace(budgeted(lend_budget_hours=1.0), policy="gssf")
    life = life_of(cluster, {"full": 1e7, "long": 1e7})
    story = [(JUNE - 1.0, [submit("full", "a", 2, 1e7)]), (JUNE, [submit("long", "a", 2, 1.0)])]
    life.run(story, until=JUNE + 1801.0)
    for hours in (1, 3):
        assert why_of(life, "b", JUNE + hours * 3600.0)["hours"] == (
            f"lent {2 * hours}.0 of 1 GPU-hours this month (UTC); "
            "the next month begins at 2026-07-01 00:00 UTC"
        )


def test_a_pool_that_lends_again_reports_the_reason():
    life = late_story(slowed_budget_pct=25.0)
    said = {
        (n.pool, n.data["reason"]): n.data["why"]
        for n in life.notices
        if n.kind == "lending_resumed"
    }
    assert said["a", "late"] == "no job of its group was late for 1 h"
    assert said["b", "slowed"] == (
        "1 of its 7 jobs started later than without sharing; one more would not exceed 25 %"
    )
    life = late_story(until=1150.0, slowed_budget_pct=25.0)
    life.step(1151.0, [SetPool("b", slowed_budget_pct=NO_BUDGET)])
    gone = {n.data["why"] for n in life.notices if n.kind == "lending_resumed"}
    assert gone == {
        "no pool of its group has a budget of delayed jobs now", "the budget was removed"
    }  # fmt: skip
