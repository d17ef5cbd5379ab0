"""The same jobs in coarser slots, and when the search and dives rest."""

from math import inf
from random import Random
from threading import Event
from time import perf_counter
from types import SimpleNamespace

import numpy as np
import pytest

from oracle.errors import NoScheduleError
from oracle.problem import coarse
from oracle.problem.coarse import FEW, FINE, coarser, in_order, together
from oracle.problem.forms import FORMS
from oracle.problem.problem import Problem, Task
from oracle.search import solve
from oracle.search.polish import Polish
from oracle.search.scheduling_rounds import PATIENT
from oracle.search.solve import Solving
from sia.contract.solvers import SolverError
from tests.oracle.test_forms import CLOSE, as_problem, tiny
from tests.support.budget import budget
from tests.support.naive import naive_oracle


def many(seed, slots=12_000, jobs=60, longest=900):
    """Jobs of some slots over many."""
    rng, tasks = Random(seed), []
    for i in range(jobs):
        release = rng.randrange(slots - 2000)
        latest = release + rng.choice([0, 7, 900])
        tasks.append(
            Task(i, 0, release, latest, latest, rng.randint(1, longest), rng.choice([1, 8]))
        )
    return Problem(tasks, [64])


def begun(problem, seconds=120.0, start=None):
    return Solving(problem, FORMS["step"], perf_counter() + seconds, start)


@pytest.fixture
def coarsened(monkeypatch):
    """Problems of four slots have two, however other their jobs are there."""
    monkeypatch.setattr(coarse, "BLUR", inf)
    monkeypatch.setattr(coarse, "FINE", 3)
    monkeypatch.setattr(coarse, "FEW", 2)


def test_few_slots_are_not_coarsened():
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
    by = together(problem)
    assert FEW / 2 < fewer.slots <= FEW + 2
    for own, other in zip(problem.tasks, fewer.tasks, strict=True):
        assert other.release <= other.cutoff <= other.latest
        assert other.release * by <= own.release + by
        assert other.latest * by >= own.latest - by
        assert other.length >= 1
        assert other.length == 1 or abs(other.length * by - own.length) <= by / 2
        assert (other.position, other.width, other.weight) == (own.position, own.width, own.weight)
    mean = sum(t.length for t in problem.tasks) / sum(t.length for t in fewer.tasks)
    assert mean == pytest.approx(by, rel=0.02)


def test_coarser_slots_are_refused_if_they_distort_short_jobs():
    """Each of a slot or two would be five times as long, and the queues with them."""
    assert coarser(many(1, longest=2)) is None
    assert coarser(many(1, longest=40)) is not None


@pytest.mark.parametrize("seed", range(5))
def test_coarse_starts_give_an_order_for_the_fine_slots(seed):
    problem = many(seed)
    starts = in_order(problem, [task.release for task in coarser(problem).tasks])
    problem.check(starts)
    assert problem.cost(starts) == 0.0, "there is room for all at once"


@pytest.mark.usefixtures("coarsened")
def test_bounds_of_coarser_slots_are_not_overstated():
    solved, seeds = 0, budget(ci=12, soak=40)
    for seed in range(600, 600 + seeds):
        jobs, quotas, beta = tiny(seed)
        least = naive_oracle.least(jobs, quotas, beta)
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
    assert solved > seeds / 2


TWO = Problem([Task(0, 0, 0, 9, 9, 3, 1), Task(1, 0, 0, 9, 9, 3, 1)], [1])


@pytest.mark.usefixtures("coarsened")
@pytest.mark.parametrize(
    "what", [NoScheduleError("none"), SolverError("it died"), MemoryError(), IndexError("odd")]
)
def test_coarser_slots_without_a_result_do_not_prevent_an_answer(what, monkeypatch):
    real, kinds = Solving._search, []

    def dies(solving):
        kinds.append(solving.problem is not TWO)
        if kinds[-1]:
            raise what
        real(solving)

    monkeypatch.setattr(Solving, "_search", dies)
    answer = begun(TWO, 60.0).run()
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
    assert perf_counter() < began + solve.GRACE, "provers end as soon as they are told to"


def test_programs_find_jobs_that_move_as_far_as_in_coarser_slots(monkeypatch):
    """One machine that is taken until 100, then a long job, then a short one that should be first.

    It would move by 300 slots, from 400, and the long one by the ten that the short one takes.
    """
    tasks = [Task(0, 0, 0, 700, 700, 300, 1), Task(1, 0, 50, 700, 700, 10, 1)]
    taken = np.zeros(1100, dtype=np.int64)
    taken[:100] = 1
    problem = Problem(tasks, [1], taken=taken)
    found = {}
    for few in (problem.slots, -(-problem.slots // 12)):
        monkeypatch.setattr(coarse, "FINE", 500)
        monkeypatch.setattr(coarse, "FEW", few)
        polish, starts = Polish(problem, FORMS["step"], 0), [100, 400]
        polish._methods = [method for method in polish._methods if method.step == together(problem)]
        for _ in range(20):
            starts = polish.better(starts, [], 5.0)
            problem.check(starts)
        found[few] = starts
    assert [*found.values()] == [[100, 400], [110, 100]], "no gap is left, though steps are of 12"


def test_the_local_search_is_the_rarer_the_more_often_it_was_in_vain(monkeypatch):
    solving, done = begun(TWO, 60.0, [0, 9]), []
    solving._parts = [[1.0], [1.0]]
    monkeypatch.setattr(solve, "ROUND", 0.0)

    def searched(search, *about):
        done.append("s")
        if len(done) == 11:
            search.best, search.cost = [0, 3], 3.0

    monkeypatch.setattr(solve.Search, "run", searched)
    for number in range(13):
        before = len(done)
        solving._improve(solving._draft.known.starts, number)
        done += "p" * (before == len(done))
    assert "".join(done) == "spppspppppsps"


@pytest.mark.usefixtures("coarsened")
def test_ctrl_c_ends_all_at_the_end_of_coarser_slots(monkeypatch):
    real = Solving._search

    def solved(solving):
        real(solving)
        if solving.problem is not TWO:
            raise KeyboardInterrupt

    monkeypatch.setattr(Solving, "_search", solved)
    answer = begun(TWO, 60.0).run()
    assert answer.status == "interrupted"
    assert sorted(answer.starts) == [0, 3], "what coarser slots came to is kept"


@pytest.mark.usefixtures("coarsened")
@pytest.mark.parametrize("coarse_too", [False, True])
def test_ctrl_c_while_the_prover_is_waited_for_loses_nothing(monkeypatch, coarse_too):
    class Ended(Event):
        def wait(self, timeout=None):
            if timeout == solve.GRACE:
                raise KeyboardInterrupt
            return super().wait(timeout)

    real = Solving._search

    def waits(solving):
        if coarse_too or solving.problem is TWO:
            solving._ended.__class__ = Ended
        real(solving)

    monkeypatch.setattr(Solving, "_search", waits)
    answer = begun(TWO, 60.0).run()
    assert (answer.status, answer.cost) == ("interrupted", 3.0)


@pytest.mark.usefixtures("coarsened")
def test_a_solved_problem_has_no_coarser_slots_solved(monkeypatch):
    apart, solved = Problem([TWO.tasks[0], TWO.tasks[1]._replace(release=4)], [1]), []
    assert coarser(apart) is not None
    monkeypatch.setattr(Solving, "_search", lambda solving: solved.append(solving.problem))
    answer = begun(apart, 60.0, [0, 4]).run()
    assert (answer.status, answer.cost) == ("optimal", 0.0)
    assert solved == [apart]


@pytest.mark.usefixtures("coarsened")
def test_while_coarser_slots_are_solved_something_is_proven(monkeypatch):
    real, bounds = Solving._search, []

    def looked(solving):
        if solving.problem is not TWO:
            until = perf_counter() + 20.0
            while not outer.bound and perf_counter() < until:
                pass
            bounds.append(outer.bound)
        real(solving)

    monkeypatch.setattr(Solving, "_search", looked)
    outer = begun(TWO, 60.0)
    outer.run()
    assert bounds == [pytest.approx(3.0)], "of two jobs of three slots one waits for the other"


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
    for _ in range(PATIENT):
        solving._round(0)
        assert not solving._paused, "not yet"
    for times in (1, 2, 3):
        solving._round(0)
        clock.now += 10.0 * times - 1.0
        assert solving._paused
        clock.now += 2.0
        assert not solving._paused
    solving._round(0)
    assert solving._paused
    solving._offer([0, 5])
    assert not solving._paused, "there is something new to begin with"
    solving._round(0)
    clock.now += 51.0
    assert not solving._paused

    def better(begin, number):
        clock.now += 10.0
        solving._offer([0, 3])

    monkeypatch.setattr(solving, "_improve", better)
    solving._round(0)
    assert not solving._paused


class Stub:
    """A tree of which there is always a new node, and nothing is known; `parts` for each task."""

    nodes, new, bound, whole, done, found = 0, True, 0.0, (inf, []), False, None
    parts = (np.zeros(10), np.zeros(10))
    master = SimpleNamespace(size=0, entries=0)

    def __init__(self, *about):
        pass

    def root(self, until):
        yield 0.0


def proving(monkeypatch, seconds, grows=lambda solving, done: None, new=None, within=None):
    """The prover of TWO, told in dives and branches of ten seconds; `grows` is what comes of one.

    Returns what was done in turn, by first letters.
    """
    clock, done = Clock(monkeypatch), []

    class Tree(Stub):
        def dive(self, limit, until):
            done.append("dive")
            clock.now += 10.0
            yield

        def grow(self, limit, until):
            grows(solving, done)
            done.append("grow")
            clock.now += 10.0

    def better(polish, starts, hints, seconds):
        done.append("program")
        clock.now += 10.0
        return [0, 5]

    if new is not None:
        Tree.new = property(lambda tree: new(done))
    monkeypatch.setattr("oracle.bounds.tree.Tree", Tree)
    monkeypatch.setattr(Polish, "better", better)
    solving = Solving(TWO, FORMS["step"], clock.now + seconds, [0, 9], within=within)
    solving._coarse_over.set()
    solving._with_tree()
    return "".join(each[0] for each in done)


def test_dives_in_vain_leave_the_more_of_the_time_to_branches(monkeypatch):
    done = proving(monkeypatch, 155.0)
    assert done == "dggdggggdggggggd"


def test_a_dive_whose_list_is_the_best_was_not_in_vain(monkeypatch):
    def grows(solving, done):
        if done[-1] == "dive" and done.count("dive") < 4:
            solving._offer([0, 9 - done.count("dive")])

    done = proving(monkeypatch, 115.0, grows)
    assert done == "dgdgdgdggggg", "the fourth was"


def test_programs_get_the_time_after_a_dive_if_proofs_do_not_count(monkeypatch):
    took = []
    within = solve.SearchHooks(lambda: False, took.append)
    done = proving(
        monkeypatch, 65.0, new=lambda done: len(done) > 1 and "dive" not in done, within=within
    )
    assert done == "ggdpppp"
    assert took == [[0, 9], [0, 5]]


@pytest.mark.usefixtures("coarsened")
def test_coarser_slots_end_where_the_prover_needs_no_schedules_any_more(monkeypatch):
    real, coarse_began, began = Solving._search, Event(), perf_counter()

    def searched(solving):
        if solving.problem is not TWO:
            coarse_began.set()
        real(solving)

    def prove(solving):
        if solving.problem is TWO:
            assert coarse_began.wait(20.0)
            solving._raise_bound(3.0)
        else:
            solving._stop.wait(60.0)

    monkeypatch.setattr(Solving, "_search", searched)
    monkeypatch.setattr(Solving, "_prove", prove)
    answer = begun(TWO, 200.0, [0, 3]).run()
    assert (answer.status, answer.cost) == ("optimal", 3.0)
    assert perf_counter() < began + 50.0, "of the hundred seconds that they have"


def test_the_root_is_solved_without_a_search(monkeypatch):
    monkeypatch.setattr(Solving, "_search", lambda solving: solving._ended.wait(60.0))
    answer = begun(TWO, 60.0, [0, 9]).run()
    assert (answer.status, answer.cost) == ("optimal", 3.0)


def test_an_infeasible_problem_has_no_coarser_slots_solved(monkeypatch, coarsened):
    began = perf_counter()

    def prove(solving):
        if solving.problem is TWO:
            raise NoScheduleError("none")
        solving._stop.wait(100.0)

    monkeypatch.setattr(Solving, "_prove", prove)
    with pytest.raises(NoScheduleError):
        begun(TWO, 200.0).run()
    assert perf_counter() < began + 50.0


def test_ctrl_c_in_the_local_search_keeps_what_it_found(monkeypatch):
    def searched(search, *about):
        search.best, search.cost = [0, 3], 3.0
        raise KeyboardInterrupt

    monkeypatch.setattr(solve.Search, "run", searched)
    monkeypatch.setattr(Solving, "_prove", lambda solving: solving._stop.wait(60.0))
    answer = begun(TWO, 60.0, [0, 9]).run()
    assert (answer.status, answer.starts) == ("interrupted", [0, 3])
