"""The market of rounds against trying everything, equilibria, and `sia market`."""

import json
from itertools import combinations
from math import exp, fsum, log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay.fairness.equilibrium import equilibrium, leontief
from sia.contract.solvers import solve
from sia.policies.shockwave.estimates import PresentCount
from sia.policies.shockwave.market import (
    Market,
    MarketJob,
    best_plan,
    counts_of,
    greedy,
    planned,
    program,
    start_of,
)
from tests.support.shell import sia

FIT = st.floats(5, 80)


@st.composite
def markets(draw, jobs=4, rounds=4, gpus=4):
    gpus = draw(st.integers(1, gpus))

    def job(name):
        regimes = draw(st.lists(st.tuples(st.integers(1, 9), FIT), min_size=1, max_size=3))
        done = draw(st.integers(0, 9))
        left = sum(epochs for epochs, _ in regimes)
        return MarketJob(
            name, draw(st.integers(1, gpus)), done, done + left, draw(st.floats(100, 5000)),
            draw(st.floats(0.2, 3)), regimes, draw(st.sampled_from([0.5, 1.0, 2.0])),
            draw(st.booleans()),
        )  # fmt: skip

    found = [job(f"j{i}") for i in range(draw(st.integers(1, jobs)))]
    k, lam = draw(st.sampled_from([1.0, 5.0])), draw(st.sampled_from([0.0, 1e-3, 1.0, 10.0]))
    return Market(gpus, 120.0, draw(st.integers(1, rounds)), k, lam, found)


def naive(market):
    """The best objective of all plans, and the fewest starts by counts of rounds that have it."""
    jobs = market.jobs
    sets = [
        chosen
        for size in range(len(jobs) + 1)
        for chosen in combinations(range(len(jobs)), size)
        if sum(jobs[j].width for j in chosen) <= market.gpus
    ]
    states = {((0,) * len(jobs), tuple(j for j, job in enumerate(jobs) if job.running)): 0}
    for _ in range(market.rounds):
        following = {}
        for (counts, last), starts in states.items():
            for chosen in sets:
                state = tuple(c + (j in chosen) for j, c in enumerate(counts)), chosen
                more = starts + len(set(chosen) - set(last))
                following[state] = min(more, following.get(state, more))
        states = following
    usable = {
        state: starts
        for state, starts in states.items()
        if all(c <= market.most(job) for c, job in zip(state[0], jobs, strict=True))
    }
    best = max(market.objective(counts) for counts, _ in usable)
    fewest = {}
    for (counts, _), starts in usable.items():
        if market.objective(counts) >= best - 1e-12:
            fewest[counts] = min(starts, fewest.get(counts, starts))
    return best, fewest


def starts_of(market, plan):
    return sum(
        cell and not (row[t - 1] if t else job.running)
        for job, row in zip(market.jobs, plan, strict=True)
        for t, cell in enumerate(row)
    )


def solved(market):
    values = solve(program([market]), start=start_of([market]), heuristics=True).values
    return best_plan(market, counts_of([market], values)[0])


def check_plan(market, plan):
    """No GPU twice, none idle that a job could use, no round that a job cannot use."""
    for t in range(market.rounds):
        idle = market.gpus - sum(
            job.width for job, row in zip(market.jobs, plan, strict=True) if row[t]
        )
        assert idle >= 0
        for job, row in zip(market.jobs, plan, strict=True):
            assert row[t] or sum(row[:t]) == market.most(job) or job.width > idle
    for job, row in zip(market.jobs, plan, strict=True):
        assert sum(row) <= market.most(job)


@settings(max_examples=25)
@given(markets())
def test_the_program_is_as_good_as_trying_everything(market):
    best, fewest = naive(market)
    found = solved(market)
    check_plan(market, found.plan)
    assert found.objective == pytest.approx(best, rel=1e-9, abs=1e-12)
    assert starts_of(market, found.plan) == min(fewest.values())


@settings(max_examples=8)
@given(markets(jobs=12, rounds=12, gpus=9))
def test_larger_markets_are_bounded_and_the_greedy_plan_is_feasible(market):
    start = start_of([market])
    assert program([market]).violation(start) == ""
    rough = planned(market, greedy(market))
    check_plan(market, rough.plan)
    answer = solve(program([market]), start=start, gap=1e-4, nodes=50, heuristics=True)
    plan = best_plan(market, counts_of([market], answer.values)[0])
    check_plan(market, plan.plan)
    assert plan.objective >= rough.objective - 1e-9
    assert plan.objective <= -answer.bound / market.scale + 1e-6 * abs(plan.objective)


def test_equal_rounds_are_placed_with_the_fewest_starts_then_the_most_urgent_first():
    def job(name, ftf, *, running=False):
        return MarketJob(name, 1, 0, 10, 1000, ftf, [(2, 100.0)], 1.0, running)

    jobs = [job("a", 1.0, running=True), job("b", 1.0), job("c", 3.0)]
    assert planned(Market(1, 100.0, 6, 5, 1, jobs), [2, 2, 2]).plan == [
        [1, 1, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1], [0, 0, 1, 1, 0, 0],
    ]  # fmt: skip


def test_of_equal_plans_that_give_other_numbers_of_rounds_one_with_fewer_starts_is_taken():
    """Either both get two rounds of three, or one all and the other one: 2/3 · 2/3 < 3/3 · 1/3."""
    short = MarketJob("a", 1, 0, 4, 400, 1.0, [(4, 100.0)])
    jobs = [short, short._replace(id="b", running=True), short._replace(id="c", width=2)]
    market = Market(2, 100.0, 2, 0, 0, jobs)
    plan = best_plan(market, [1, 1, 1])
    assert plan.objective == pytest.approx(naive(market)[0])
    assert starts_of(market, plan.plan) == min(naive(market)[1].values())


def test_of_jobs_that_are_alike_those_that_run_get_the_most_rounds():
    """Which of them gets more is all the same for the objective, but not for the starts."""
    alike = MarketJob("a", 1, 0, 10, 1000, 1.0, [(10, 100.0)])
    jobs = [alike, alike._replace(id="b", running=True), alike._replace(id="c", running=True)]
    assert best_plan(Market(2, 100.0, 1, 5, 1, jobs), [1, 0, 1]).plan == [[0], [1], [1]]


def test_the_most_urgent_comes_soonest_even_if_two_others_could_run_instead():
    jobs = [
        MarketJob(name, width, 0, 10, 1000, ftf, [(1, 100.0)])
        for name, width, ftf in (("a", 1, 2.0), ("b", 1, 2.0), ("c", 2, 3.0))
    ]
    assert planned(Market(2, 100.0, 2, 5, 1, jobs), [1, 1, 1]).plan == [[0, 1], [0, 1], [1, 0]]


def test_jobs_that_must_not_be_stopped_run_on_where_the_pool_has_become_too_small_for_all():
    jobs = [
        MarketJob(name, 4, 0.0, 10.0, 1000.0, 1.0, [(10.0, 100.0)], running=True, pinned=True)
        for name in ("a", "b")
    ]
    plan = best_plan(Market(4, 120.0, 4, 5.0, 1.0, jobs), None).plan
    assert [sum(row) for row in plan] == [4, 0]


def test_two_markets_are_solved_as_one_program():
    jobs = [MarketJob(f"j{i}", 1, 0, 10, 500 + i, 1 + i / 9, [(10, 50.0)]) for i in range(5)]
    pair = [Market(2, 120.0, 3, 5, 1, jobs), Market(1, 120.0, 3, 5, 0, jobs[:2])]
    both = counts_of(pair, solve(program(pair), start=start_of(pair)).values)
    for market, counts in zip(pair, both, strict=True):
        assert best_plan(market, counts).objective == pytest.approx(solved(market).objective)


def test_a_dynamic_market_counts_what_a_change_of_speed_gives():
    """§1: 20 rounds, at twice the speed from the tenth on, give 30 u0 and not 20."""
    job = MarketJob("a", 1, 0, 40, 1500, 1, [(10, 60.0), (30, 30.0)])
    assert job.epochs_after(20 * 60.0) == 30


def test_the_example_of_appendix_g_speeds_up_inside_the_window():
    job = MarketJob("a", 1, 5, 60, 4000, 1, [(10, 120.0), (45, 60.0)])
    assert job.epochs_after(20 * 60.0) == 15
    assert job.epochs_after(30 * 60.0) == 25


def test_welfare_in_expectation_averages_what_drawn_trajectories_reach():
    slow, quick = [(10, 60.0)], [(10, 30.0)]
    job = MarketJob("a", 1, 0, 10, 450, 1, [(10, 45.0)], draws=[slow, quick])
    assert job.utility(300.0) == pytest.approx((5 + 10) / 2 / 10)
    assert job._replace(draws=()).utility(300.0) == pytest.approx(300 / 45 / 10)


@given(st.lists(st.tuples(st.floats(0, 9), st.sampled_from([1, -1])), max_size=9))
def test_the_average_number_of_present_jobs_is_the_area_divided_by_the_time(steps):
    count, now, area = PresentCount(), 0.0, 0.0
    for wait, by in steps:
        area += count.count * wait
        now += wait
        count.change(now, by)
    assert count.area(now) == pytest.approx(area)
    if now:
        assert count.average(0.0, 0.0, now) == pytest.approx(area / now)


# Equilibria

SHARES = st.lists(
    st.floats(0.1, 9) | st.sampled_from([0.0, 1.0, 2.0]), min_size=3, max_size=3
).filter(any)


@settings(max_examples=10)
@given(st.lists(st.tuples(st.floats(0.5, 3), SHARES), min_size=2, max_size=4))
def test_an_equilibrium_clears_the_market_and_is_proportional_and_envy_free(jobs):
    budgets, utilities = [b for b, _ in jobs], [u for _, u in jobs]
    found = equilibrium(budgets, leontief(utilities))
    prices = [price for (price,) in found.prices]
    assert fsum(prices) == pytest.approx(fsum(budgets), rel=1e-7)
    for budget, gains, gain in zip(budgets, utilities, found.gains, strict=True):
        # nobody finds a round that gives more for the money than it gets
        best = max(u / price for u, price in zip(gains, prices, strict=True) if price)
        assert gain == pytest.approx(budget * best, rel=1e-7)
        assert gain >= budget / fsum(budgets) * fsum(gains) * (1 - 1e-7)
    assert found.objective == pytest.approx(
        fsum(b * log(g) for b, g in zip(budgets, found.gains, strict=True))
    )


@settings(max_examples=8)
@given(
    st.lists(
        st.lists(st.tuples(st.floats(0.2, 5), st.floats(0.2, 5)), min_size=2, max_size=2),
        min_size=2, max_size=3,
    )
)  # fmt: skip
def test_leontief_utilities_are_what_budgets_buy_at_the_prices(needs):
    budgets = [1.0 + place for place in range(len(needs))]
    found = equilibrium(budgets, needs)
    spent = fsum(price for row in found.prices for price in row)
    assert spent == pytest.approx(fsum(budgets), rel=1e-7)
    for budget, job, gain in zip(budgets, needs, found.gains, strict=True):
        unit = min(
            fsum(price * need for price, need in zip(row, needed, strict=True))
            for row, needed in zip(found.prices, job, strict=True)
        )
        assert gain == pytest.approx(budget / unit, rel=1e-7)


# The commands


def ask(tmp_path, verb, value, *more):
    path = tmp_path / "in.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return sia("market", verb, path, *more)


WINDOW = {
    "gpus": 2, "round": 100, "rounds": 3, "k": 2, "lambda": 1,
    "jobs": [
        {"id": "a", "width": 1, "done": 0, "epochs": 10, "total": 500, "ftf": 1.5, "budget": 1,
         "running": True, "regimes": [[5, 50], [5, 50]]},
        {"id": "b", "width": 2, "done": 5, "epochs": 10, "total": 500, "ftf": 1.2, "budget": 1,
         "running": False, "regimes": [[5, 50]]},
    ],
}  # fmt: skip


def test_the_plan_of_two_jobs_is_the_one_worked_out_by_hand(tmp_path):
    found = json.loads(ask(tmp_path, "solve", WINDOW, "--json").stdout)
    assert set(found) == {"objective", "bound", "gap", "plan", "epochs"}
    assert found["plan"] == {"a": [1, 1, 1], "b": [0, 0, 0]}
    assert found["epochs"] == {"a": 6.0, "b": 5.0}
    assert found["gap"] == pytest.approx(0, abs=1e-9)
    assert found["objective"] == pytest.approx(
        (1.5**2 * log(0.6) + 1.2**2 * log(0.5)) / 4 - (200 + 2 * 250) / 2 / 1000
    )
    assert "###" in ask(tmp_path, "solve", WINDOW).stdout
    empty = json.loads(ask(tmp_path, "solve", WINDOW | {"jobs": []}, "--json").stdout)
    assert empty["plan"] == {}


def test_contention_is_averaged_over_the_life_of_the_job(tmp_path):
    jobs = [
        {"id": "a", "width": 1, "submit": 0, "attained": 40, "remaining": 60},
        {"id": "b", "width": 1, "submit": 50, "attained": 30, "remaining": 0, "end": 80},
        {"id": "c", "width": 1, "submit": 100, "attained": 0, "remaining": 10},
    ]
    cluster = {"gpus": 1, "now": 100, "jobs": jobs}
    found = json.loads(ask(tmp_path, "estimate", cluster, "--json").stdout)
    assert found["jobs"]["a"] == {
        "contention": pytest.approx(1.3), "ftf": pytest.approx((100 + 60 * 1.3) / (100 * 1.3)),
    }  # fmt: skip
    assert found["jobs"]["b"] == {"contention": 2.0, "ftf": pytest.approx(30 / 60)}
    assert found["jobs"]["c"] == {"contention": 2.0, "ftf": pytest.approx(20 / 20)}
    assert found["bound"] == 70
    assert "1 m 10 s" in ask(tmp_path, "estimate", cluster).stdout


def test_two_jobs_buy_what_each_likes(tmp_path):
    sale = {"budgets": [1, 1], "utilities": [[1, 2], [2, 1]]}
    found = json.loads(ask(tmp_path, "equilibrium", sale, "--json").stdout)
    assert found["gains"] == pytest.approx([2, 2])
    assert found["prices"] == pytest.approx([1, 1])
    assert exp(found["objective"]) == pytest.approx(4)
    assert "Prices" in ask(tmp_path, "equilibrium", sale).stdout
    shared = {"budgets": [1, 3], "needs": [[[1]], [[1]]]}
    found = json.loads(ask(tmp_path, "equilibrium", shared, "--json").stdout)
    assert found["gains"] == pytest.approx([0.25, 0.75])
    assert found["prices"] == [pytest.approx([4])]


def _first(**wrong):
    return WINDOW | {"jobs": [WINDOW["jobs"][0] | wrong]}


@pytest.mark.parametrize(
    ("verb", "value", "line"),
    [
        ("solve", WINDOW | {"k": -1}, "k is -1; write a number from 0 to 100"),
        ("solve", WINDOW | {"lambda": -1}, "lambda is -1"),
        ("solve", WINDOW | {"rounds": 0}, "rounds is 0"),
        ("solve", WINDOW | {"gpus": 0}, "gpus is 0"),
        ("solve", WINDOW | {"gpus": 1}, "job b: width 2 on 1 GPUs; make it fit"),
        ("solve", WINDOW | {"jobs": WINDOW["jobs"] * 2}, "job a is listed twice"),
        ("solve", _first(budget=0), "budget is 0"),
        ("solve", _first(regimes=[[1, 0]]), "[1, 0]"),
        ("solve", _first(regimes=[[1e308, 2]]), "at most 1e+15"),
        ("solve", _first(budget=1e308), "budget is 1e+308"),
        ("solve", _first(epochs=9, done=10), "10 of 9 epochs"),
        ("solve", '{"gpus": NaN, "jobs": []}', "correct the file"),
        ("solve", '{"gpus": 2,\n', "line 1: the JSON ends too soon; complete it"),
        ("estimate", {"gpus": 1, "now": 0, "jobs": [
            {"id": 1, "width": 1, "submit": 5, "attained": 0, "remaining": 1}]}, "after now"),
        ("equilibrium", {"budgets": [0], "utilities": [[1]]}, "budget 0 of job 0"),
        ("equilibrium", {"budgets": [1], "utilities": [[0]]}, "job 0 gains in no round"),
        ("equilibrium", {"budgets": [1]}, "write either utilities or needs"),
        ("equilibrium", {"budgets": [1, 1], "utilities": [[1], [1, 2]]}, "as many rounds"),
        ("equilibrium", {"budgets": [1], "needs": [[[0]]]}, "job 0 needs nothing in a round"),
    ],
)  # fmt: skip
def test_wrong_input_costs_one_line(tmp_path, verb, value, line):
    done = ask(tmp_path, verb, value, "--json")
    assert done.returncode == 2
    assert line in done.stderr
    assert len(done.stderr.splitlines()) == 1
