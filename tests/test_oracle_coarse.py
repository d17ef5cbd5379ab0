"""The same jobs in coarser slots, and when the search and dives rest."""

from math import inf
from random import Random
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import oracle_naive
import pytest
from test_oracle_forms import CLOSE, as_problem, tiny

from oracle import coarse, solve
from oracle.coarse import FEW, FINE, coarser, in_order
from oracle.errors import NoScheduleError, SolverError
from oracle.forms import FORMS
from oracle.problem import Problem, Task
from oracle.solve import Solving


def many(seed, slots=12_000, jobs=60):
    """Jobs of minutes over some days."""
    rng, tasks = Random(seed), []
    for i in range(jobs):
        release = rng.randrange(slots - 2000)
        latest = release + rng.choice([0, 7, 900])
        tasks.append(Task(i, 0, release, latest, latest, rng.randint(1, 900), rng.choice([1, 8])))
    return Problem(tasks, [64])


def begun(problem, seconds=20.0, start=None):
    return Solving(problem, FORMS["step"], perf_counter() + seconds, start)


@pytest.fixture
def coarsened(monkeypatch):
    """Problems of four slots have two."""
    monkeypatch.setattr(coarse, "FINE", 3)
    monkeypatch.setattr(coarse, "FEW", 2)


def test_who_has_few_slots_needs_no_fewer():
    small = many(1)
    small = Problem([t for t in small.tasks if t.latest + t.length <= FINE], [64])
    assert small.tasks
    assert coarser(small) is None
    taken = Problem(many(1).tasks, [64], 0.0, np.zeros(20_000, dtype=np.int64))
    assert coarser(taken) is None


@pytest.mark.parametrize("seed", range(5))
def test_coarser_jobs_have_room_for_each_start_and_are_as_long_on_average(seed):
    problem = many(seed)
    fewer = coarser(problem)
    by = problem.slots / fewer.slots
    assert FEW / 2 < fewer.slots <= FEW + 2
    for own, other in zip(problem.tasks, fewer.tasks, strict=True):
        assert other.release <= other.cutoff <= other.latest
        assert other.release * by <= own.release + by
        assert other.latest * by >= own.latest - by
        assert other.length >= 1
        assert (other.position, other.width, other.weight) == (own.position, own.width, own.weight)
    mean = sum(t.length for t in problem.tasks) / sum(t.length for t in fewer.tasks)
    assert mean == pytest.approx(by, rel=0.02)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_found_there_is_a_list_for_the_fine_slots(seed):
    problem = many(seed)
    starts = in_order(problem, [task.release for task in coarser(problem).tasks])
    problem.check(starts)
    assert problem.cost(starts) == 0.0, "there is room for all at once"


@pytest.mark.usefixtures("coarsened")
def test_nothing_that_is_proven_of_coarser_slots_is_taken_for_more():
    solved = 0
    for seed in range(600, 640):
        jobs, quotas, beta = tiny(seed)
        least = oracle_naive.least(jobs, quotas, beta)
        problem = as_problem(jobs, quotas, beta)
        if least is None:
            with pytest.raises(NoScheduleError):
                begun(problem).run()
            continue
        answer = begun(problem).run()
        assert answer.status == "optimal", seed
        assert answer.cost == pytest.approx(least, abs=CLOSE), seed
        assert answer.bound <= least + CLOSE, seed
        solved += coarser(problem) is not None
    assert solved > 20


TWO = Problem([Task(0, 0, 0, 9, 9, 3, 1), Task(1, 0, 0, 9, 9, 3, 1)], [1])


@pytest.mark.usefixtures("coarsened")
@pytest.mark.parametrize("what", [NoScheduleError("none"), SolverError("it died"), MemoryError()])
def test_coarser_slots_that_come_to_nothing_cost_no_answer(what, monkeypatch):
    real, kinds = Solving._search, []

    def dies(solving):
        kinds.append(solving.problem is not TWO)
        if kinds[-1]:
            raise what
        real(solving)

    monkeypatch.setattr(Solving, "_search", dies)
    answer = begun(TWO, 5.0).run()
    assert (answer.status, answer.cost) == ("optimal", 3.0)
    assert kinds == [True, False]


@pytest.mark.usefixtures("coarsened")
def test_ctrl_c_in_coarser_slots_keeps_what_is_known_and_ends_all(monkeypatch):
    def interrupted(solving):
        assert solving.problem is not TWO
        raise KeyboardInterrupt

    monkeypatch.setattr(Solving, "_search", interrupted)
    monkeypatch.setattr(Solving, "_prove", lambda solving: solving._stop.wait(60.0))
    began = perf_counter()
    answer = begun(TWO, 60.0, [0, 9]).run()
    assert (answer.status, answer.starts) == ("interrupted", [0, 3]), (
        "in the order of coarser slots"
    )
    assert perf_counter() < began + solve.GRACE, "a prover that never began is not waited for"


class Clock:
    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(solve, "perf_counter", lambda: self.now)


def test_a_search_in_vain_rests_longer_each_time_until_something_is_better(monkeypatch):
    clock = Clock(monkeypatch)
    solving = Solving(TWO, FORMS["step"], 10_000.0, [0, 9])
    monkeypatch.setattr(solving._ended, "wait", lambda seconds: None)

    def vain(begin, number):
        clock.now += 10.0

    monkeypatch.setattr(solving, "_improve", vain)
    for times in (1, 2, 3):
        solving._look(0)
        clock.now += 10.0 * times - 1.0
        assert solving._waits
        clock.now += 2.0
        assert not solving._waits
    solving._look(0)
    assert solving._waits
    solving._offer([0, 5])
    assert not solving._waits, "there is something new to begin with"
    solving._look(0)
    clock.now += 51.0
    assert not solving._waits

    def better(begin, number):
        clock.now += 10.0
        solving._offer([0, 3])

    monkeypatch.setattr(solving, "_improve", better)
    solving._look(0)
    assert not solving._waits


def test_dives_in_vain_leave_the_more_of_the_time_to_branches(monkeypatch):
    clock, done = Clock(monkeypatch), []

    class Tree:
        nodes, new, bound, whole = 0, True, 0.0, (inf, [])
        parts = (np.zeros(10), np.zeros(10))
        master = SimpleNamespace(size=0, entries=0)
        done = False

        def __init__(self, *about):
            pass

        def root(self, until):
            yield 0.0

        def dive(self, limit, until):
            done.append("dive")
            clock.now += 10.0
            yield

        def grow(self, limit, until):
            done.append("grow")
            clock.now += 10.0

    monkeypatch.setattr("oracle.tree.Tree", Tree)
    solving = Solving(TWO, FORMS["step"], 1155.0, [0, 9])
    solving._with_tree()
    assert "".join(each[0] for each in done) == "dggdggggdggggggd"
