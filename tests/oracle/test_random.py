"""The oracle against trying everything, on awkward problems and with all its parts small."""

from math import inf
from random import Random
from time import perf_counter

import pytest

from oracle.errors import NoScheduleError
from oracle.problem.forms import FORMS
from oracle.problem.problem import Goal, Problem, Task
from oracle.run.run import SolveSettings as Asked
from oracle.run.run import run
from oracle.search.solve import Solving
from replay.logs.trace import PoolTable, Trace
from sia.core.playout import Arrival
from sia.model import Job, Pool
from tests.support.budget import budget
from tests.support.naive import naive_oracle

CLOSE = 1e-5  # solvers' tolerance, in proportion
SLOT = 300.0
CHOICES = 4000  # schedules to be tried for one problem, at most

PROBLEMS = budget(ci=90, soak=3000)
LOGS = budget(ci=36, soak=1000)


def awkward(rng):
    """Jobs as the naive model takes them, some wider than their pool, some of no length.

    Widths do not divide what there is; costs are whole, weighted, priced or both.
    """
    quotas = [rng.choice([1, 2, 3, 5, 7]) for _ in range(rng.randint(1, 4))]
    kind, jobs, choices = rng.choice(["plain", "weighted", "priced", "both"]), [], 1
    for _ in range(rng.randint(2, 8)):
        pool, release = rng.randrange(len(quotas)), rng.choice([0, 0, 1, 3, rng.randint(0, 8)])
        cutoff = release + rng.randint(0, 7)
        latest = cutoff + (rng.randint(0, 2) if kind in ("priced", "both") else 0)
        choices *= latest - release + 1
        if choices > CHOICES:
            break
        length = 0 if rng.random() < 0.04 else rng.randint(1, rng.choice([2, 4, 9]))
        width = rng.randint(1, sum(quotas) if rng.random() < 0.3 else quotas[pool])
        weight = rng.choice([0.31, 0.5, 1.7]) if kind in ("weighted", "both") else 1.0
        price = {"priced": float(rng.randint(0, 3)), "both": 2 * rng.random()}.get(kind, 0.0)
        jobs.append((pool, release, cutoff, latest, length, width, weight, price))
    return jobs, quotas, rng.choice([0.0, 0.0, 0.0, 0.4, 2.5])


@pytest.mark.parametrize("part", range(3))
def test_for_random_problems_and_times_the_answer_is_correct(part, monkeypatch):
    """The bound is valid, `optimal` is claimed only for optima, and schedules are feasible."""
    optimal = hurried = none = 0
    for seed in range(part, PROBLEMS, 3):
        rng = Random(seed)
        monkeypatch.setattr("oracle.problem.all_starts.MOST_STARTS", rng.choice([10**6, 10**6, 0]))
        monkeypatch.setattr("oracle.bounds.ascent.STEPS", rng.choice([1, 10, 30]))
        monkeypatch.setattr("oracle.bounds.slot_cells.FIRST", rng.choice([1, 2, 20]))
        monkeypatch.setattr("oracle.bounds.slot_cells.SPARE_SLOTS", rng.choice([0, 1, 5]))
        jobs, quotas, beta = awkward(rng)
        problem = Problem([Task(i, *job) for i, job in enumerate(jobs)], quotas, beta)
        least = naive_oracle.least(jobs, quotas, beta)
        seconds = rng.choice([60.0, 60.0, 0.06, 0.2])
        form = FORMS[rng.choice(["step", "step", "pulse"])]
        try:
            answer = Solving(problem, form, perf_counter() + seconds).run()
        except NoScheduleError:
            assert least is None, seed
            none += 1
            continue
        if least is None:
            assert (answer.status, answer.starts) == ("time", None), seed
            continue
        assert answer.bound <= least + CLOSE * max(1.0, least), seed
        assert answer.cost >= least - 1e-9, seed
        if answer.starts is not None:
            problem.check(answer.starts)
            assert answer.cost == pytest.approx(problem.cost(answer.starts)), seed
        if answer.status == "optimal":
            assert answer.cost <= least + CLOSE * max(1.0, least), seed
            optimal += 1
        else:
            assert (answer.status, seconds < 1.0) == ("time", True), seed
            hurried += 1
    assert optimal > PROBLEMS / 3 / 4
    assert none > 0


def small_log(rng):
    """A few jobs in pools of two groups, some of which share nothing."""
    pools = [
        Pool(f"p{i}", rng.choice([1, 2, 3, 4, 6]), group=rng.choice("gh"), share=rng.random() < 0.8)
        for i in range(rng.randint(1, 4))
    ]
    rows = []
    for _ in range(rng.randint(2, 7)):
        pool = rng.choice(pools)
        submit = float(rng.choice([0, 0, 300, rng.randint(0, 2000)]))
        length = float(rng.choice([1, 300, rng.randint(0, 1800)]))
        rows.append((submit, pool.name, rng.randint(1, pool.quota), length))
    rows.sort()
    jobs = [Job(f"j{i}", pool, at, width) for i, (at, pool, width, _) in enumerate(rows)]
    return Trace([Arrival(job, row[3]) for job, row in zip(jobs, rows, strict=True)]), pools


def naively_alone(jobs, pools):
    """Starts in slots of FCFS in each pool by itself; `jobs` are (pool, submit, width, length)."""
    starts = [0] * len(jobs)
    for pool in pools:
        now, running = 0, []
        for i, (name, submit, width, length) in enumerate(jobs):
            if name == pool.name:
                now = max(now, submit)
                while sum(w for end, w in running if end > now) + width > pool.quota:
                    now = min(end for end, _ in running if end > now)
                running.append((now + length, width))
                starts[i] = now
    return starts


def naively(log, pools, goal):
    """The least objective and the least waiting, in slots; None where there is too much to try."""
    jobs = [
        (
            a.job.pool,
            int(-(-a.job.submit // SLOT)),
            a.job.width,
            max(1, int(-(-a.duration // SLOT))),
        )
        for a in log.arrivals
    ]
    alone, groups = naively_alone(jobs, pools), {}
    for pool in pools:
        groups.setdefault(pool.group if pool.share else pool.name + " alone", []).append(pool)
    objective = waiting = 0.0
    for members in groups.values():
        names = [pool.name for pool in members]
        own = [i for i, job in enumerate(jobs) if job[0] in names]
        if not own:
            continue
        jcts = {i: alone[i] + jobs[i][3] - jobs[i][1] for i in own}
        mean, choices, rows = sum(jcts.values()) / len(own), 1, []
        for i in own:
            name, submit, width, length = jobs[i]
            weight = mean / jcts[i] if goal.weighted else 1.0
            latest = alone[i] + int(goal.slowdown_pct) * jcts[i] // 100
            choices *= latest - submit + 1
            price = goal.price * weight if goal.slowdown_pct else 0.0
            rows.append((names.index(name), submit, alone[i], latest, length, width, weight, price))
        if choices > CHOICES:
            return None
        quotas = [pool.quota for pool in members]
        objective += naive_oracle.least(rows, quotas, goal.beta)
        waiting += naive_oracle.least([(*row[:6], 1.0, 0.0) for row in rows], quotas)
    return objective, waiting


def test_the_outcome_is_correct_for_all_groups_of_a_log(monkeypatch):
    """Whatever is asked for: a bound on the objective, one on waiting, and nobody is slowed."""
    monkeypatch.setattr("oracle.run.run.LEFT_OVER", 0.0)
    monkeypatch.setattr("oracle.bounds.ascent.STEPS", 20)
    optimal = 0
    for seed in range(LOGS):
        rng = Random(seed)
        log, pools = small_log(rng)
        percent = rng.choice([0, 0, 29, 35, 58, 100])
        beta, price = rng.choice([0.0, 0.0, 1.0]), rng.choice([0.0, 0.4, 1.0, 3.0])
        goal = Goal(beta, rng.random() < 0.4, float(percent), price)
        least = naively(log, pools, goal)
        if least is None:
            continue
        asked = Asked(
            SLOT, rng.choice([60.0, 60.0, 0.3]), rng.choice(["step", "pulse"]), goal, seed
        )
        found = run(log, PoolTable(pools), asked, perf_counter())
        objective, waiting = least
        slightly = CLOSE * max(1.0, objective)
        assert found.cost_bound <= objective + slightly, seed
        assert objective - slightly <= found.cost < inf, seed
        assert found.wait_bound <= SLOT * waiting + 1e-3, seed
        if found.status == "optimal":
            assert found.cost <= objective + slightly, seed
            optimal += 1
        if not percent:
            pairs = zip(found.schedule.starts, found.instance.baseline.starts, strict=True)
            assert all(start <= alone for start, alone in pairs), seed
    assert optimal > LOGS / 4
