"""Fairness has its price: the sweep over beta, against trying everything."""

import json
from random import Random
from time import perf_counter

import pytest

import oracle.study.sweep
from oracle.cli.sweep import _show
from oracle.problem.problem import Goal
from oracle.run.run import START, instance_of
from oracle.study.sweep import described, sweep
from oracle.study.sweep_figures import names_of
from replay.logs.trace import PoolTable
from replay.run.run import Settings, replay_one
from sia.model import Pool
from tests.oracle.test_solve import SLOT, STORY, TWO, files_of, log_of
from tests.support.budget import budget
from tests.support.naive import naive_oracle
from tests.support.shell import sia

BETAS = (0.0, 0.5, 2.0, 8.0, 32.0)

CLOSE = 1e-4


def say_nothing(progress):
    pass


def told_nobody(beta):
    return say_nothing


def tiny(seed):
    """Two pools and so few short jobs that all schedules can be tried."""
    random = Random(seed)
    rows = [
        (f"j{i}", random.choice("ab"), SLOT * random.randint(0, 3), random.randint(1, 2),
         SLOT * random.randint(1, 3))
        for i in range(6)
    ]  # fmt: skip
    rows.sort(key=lambda row: row[2])
    return instance_of(log_of(*rows), TWO, SLOT, Goal())


def least(instance, beta):
    """The least cost there is, by trying everything."""
    [(_, problem)] = instance.problems
    jobs = [
        (t.pool, t.release, t.cutoff, t.latest, t.length, t.width, t.weight, t.price)
        for t in problem.tasks
    ]
    return naive_oracle.least(jobs, problem.quotas, beta)


def test_a_higher_price_of_slowdowns_gives_fewer_of_them_and_no_less_waiting():
    traded = 0
    seeds = budget(ci=6, soak=12)
    for seed in range(seeds):
        instance = tiny(seed)
        points = sweep(instance, BETAS, 20.0, told_nobody)
        assert [point.beta for point in points] == list(BETAS)
        assert {point.status for point in points} == {"optimal"}, seed
        for point in points:
            assert point.cost == pytest.approx(least(instance, point.beta), abs=CLOSE), seed
            assert point.bound <= point.cost + CLOSE
        waits = [described(instance, point)["wait_s"] for point in points]
        shares = [point.unfairness for point in points]
        assert waits == sorted(waits), seed
        assert shares == sorted(shares, reverse=True), seed
        traded += waits[0] < waits[-1] and shares[0] > shares[-1]
    assert traded >= seeds / 4


def test_without_time_the_first_schedule_stands_and_is_no_optimum():
    instance = tiny(1)
    known = replay_one(instance.trace, TWO, START, Settings([START]), instance.baseline)
    for point in sweep(instance, BETAS, -1.0, told_nobody):
        assert point.status == "time"
        assert point.schedule.starts == known.starts
        assert point.bound == 0.0 < point.cost


def test_a_schedule_found_at_one_price_is_used_at_all_prices(monkeypatch):
    """Where time is left for the last one only, those before it have its schedule as well."""
    instance = tiny(0)
    begun = [point.cost for point in sweep(instance, [1.9, 2.0], -1.0, told_nobody)]

    def last_only(instance, beta, found, seconds, tell, solve=oracle.study.sweep._solve):
        return solve(instance, beta, found, seconds if beta == 2.0 else -1.0, tell)

    monkeypatch.setattr("oracle.study.sweep._solve", last_only)
    first, last = sweep(instance, [1.9, 2.0], 20.0, told_nobody)
    assert (first.status, last.status) == ("time", "optimal")
    assert last.cost < begun[1]
    assert first.cost < begun[0]


def test_gains_are_counted_by_pool():
    """In the story the job behind the long one is the only one that can start sooner."""
    instance = instance_of(STORY, TWO, SLOT, Goal())
    [point] = sweep(instance, [0.0], 20.0, told_nobody)
    pools = described(instance, point)["pools"]
    assert (pools["a"]["jobs"], pools["a"]["sooner"], pools["a"]["sooner_pct"]) == (2, 1, 50.0)
    assert (pools["a"]["alone_s"], pools["a"]["wait_s"]) == (3600.0, 0.0)
    assert pools["a"]["gone_pct"] == 100.0
    assert (pools["b"]["jobs"], pools["b"]["sooner"], pools["b"]["gone_pct"]) == (1, 0, None)


def test_groups_that_share_nothing_are_solved_apart_and_counted_together():
    table = PoolTable([Pool("a", 2), Pool("b", 2), Pool("c", 2, share=False)])
    log = log_of(*[(a.job.id, a.job.pool, a.job.submit, 2, a.duration) for a in STORY.arrivals],
                 ("lonely", "c", 1000, 1, 600))  # fmt: skip
    instance = instance_of(log, table, SLOT, Goal())
    assert len(instance.problems) == 2
    points = sweep(instance, [0.0, 1.0], 20.0, told_nobody)
    assert {point.status for point in points} == {"optimal"}
    assert described(instance, points[0])["wait_s"] == 0.0


def test_a_sweep_leaves_a_table_and_a_picture(tmp_path):
    out = tmp_path / "out"
    given = "--beta", "3,0", "--time-limit", "2m", "--out", out
    ran = sia("oracle", "sweep", *files_of(tmp_path), *given)
    assert ran.returncode == 0, ran.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "sweep.csv", "sweep.json", "sweep.png", "sweep.svg",
    ]  # fmt: skip
    told = json.loads((out / "sweep.json").read_text())
    points = told["points"]
    assert [(p["beta"], p["status"], p["wait_s"]) for p in points] == [
        (0.0, "optimal", 0.0), (3.0, "optimal", 0.0),
    ]  # fmt: skip
    assert "of 3 jobs" in ran.stdout
    assert (out / "sweep.csv").read_text().splitlines()[1].startswith("0.0,optimal,0.0,0.0,")


def test_prices_with_the_same_schedule_are_named_together():
    points = [
        {"beta": beta, "unfairness_slots": shares, "wait_s": wait}
        for beta, shares, wait in [
            (0.0, 9.0, 3600.0), (0.3, 9.0 + 1e-9, 3600.0), (1.0, 9.0, 3600.0), (3.0, 8.0, 7200.0),
        ]
    ]  # fmt: skip
    assert names_of(points) == {(9.0, 1.0): "0, 0.3, 1", (8.0, 2.0): "3"}


def test_ctrl_c_keeps_the_prices_that_are_done(monkeypatch):
    """Groups that were not begun when it came are not begun any more."""
    table = PoolTable([Pool("a", 2), Pool("b", 2), Pool("c", 2, share=False)])
    rows = [(a.job.id, a.job.pool, a.job.submit, 2, a.duration) for a in STORY.arrivals]
    log = log_of(*rows, ("c1", "c", 1000, 1, 600))
    instance = instance_of(log, table, SLOT, Goal())
    left = []

    def search(solving):
        solving._ended.wait()
        if solving.problem.beta == 2.0:
            left.append(solving._until - perf_counter())
            if len(left) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr("oracle.search.solve.Solving._search", search)
    monkeypatch.setattr(
        "oracle.search.solve.Solving._closed", lambda solving: not solving.problem.beta
    )
    points = sweep(instance, [0.0, 2.0, 3.0], 20.0, told_nobody)
    assert [(point.beta, point.status) for point in points] == [
        (0.0, "optimal"), (2.0, "interrupted"),
    ]  # fmt: skip
    assert left[0] > 0 >= left[1]


def test_tables_of_many_prices_fit_a_terminal(capsys):
    log = log_of(*[(f"j{i}", "pool-with-a-name-that-is-long", 9 * i, 1, 900) for i in range(4)])
    table = PoolTable([Pool("pool-with-a-name-that-is-long", 1), Pool("b", 2)])
    instance = instance_of(log, table, SLOT, Goal())
    points = [described(instance, p) for p in sweep(instance, range(9), 0.1, told_nobody)]
    _show(points)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    assert said.count("start earlier than in the baseline, by beta") == 2


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--beta", "-1", "write numbers from 0"),
        ("--beta", "much", "write numbers separated by commas"),
        ("--beta", "nan", "write numbers from 0"),
        ("--slot", "0", "whole number of seconds"),
        ("--time-limit", "soon", "is not a time"),
    ],
)
def test_misuse_is_one_line_and_leaves_nothing(option, value, words, tmp_path):
    out = tmp_path / "out"
    ran = sia("oracle", "sweep", *files_of(tmp_path), option, value, "--out", out)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert words in ran.stderr
    assert not out.exists()
