"""The tree: what dives and probes do, and that neither moves what is proven."""

from itertools import count
from math import inf
from threading import Event, Semaphore
from time import perf_counter

import numpy as np
import pytest

from oracle.bounds.ascent import ascend
from oracle.bounds.cuts import TORN
from oracle.bounds.master import Master, columns_of
from oracle.bounds.tree import Tree
from oracle.problem.all_starts import starts_of
from oracle.problem.forms import FORMS
from oracle.problem.problem import Goal
from oracle.run.run import instance_of
from oracle.search.polish import Polish
from oracle.search.search import Search
from oracle.search.solve import Solving
from oracle.solver.highs import NO_LIMIT
from tests.oracle.test_coarse import Stub
from tests.oracle.test_solve import never
from tests.support.budget import budget
from tests.support.builders import crowded

SLOT = 300.0
CLOSE = 1e-6


def busy(seed, hours):
    log, table = crowded(seed, hours / 24)
    return instance_of(log, table, SLOT, Goal()).problems[0][1]


def soon():
    return perf_counter() + 60.0


def rooted(problem):
    starts = starts_of(problem)
    tree = Tree(starts, columns_of(starts, ascend(starts, never), None), never)
    for _ in tree.root(soon()):
        pass
    return tree


TORN_AT_THE_ROOT = budget(
    ci=((1, 12), (2, 9), (5, 10)), soak=((1, 18), (3, 18), (5, 18), (7, 18), (10, 18), (13, 18))
)
"""Workloads (seed, hours) of 60 to 130 jobs whose LPs are torn after the root's cuts."""

SOON_DONE = budget(ci=((2, 9), (5, 10)), soak=((2, 18), (7, 18), (19, 18)))
"""Workloads of the same kind whose trees need branches and end in seconds."""


def test_a_dive_finds_a_schedule_proves_nothing_and_is_done_once_from_a_node():
    steps = came = again = 0
    for seed, hours in TORN_AT_THE_ROOT:
        problem = busy(seed, hours)
        tree = rooted(problem)
        bound = tree.bound
        assert tree.new or tree.done
        for _ in tree.dive(lambda: inf, soon()):
            steps += 1
        found = tree.found
        assert found.bound >= bound - CLOSE * bound, seed
        assert tree.bound == bound, seed
        if found.whole:
            cost, schedule = tree.whole
            problem.check(schedule)
            assert problem.cost(schedule) == cost >= bound - CLOSE * bound, seed
            came += 1
        assert not tree.new
        assert list(tree.dive(lambda: inf, soon())) == []
        tree.grow(inf, soon())
        again += tree.new
    assert steps > 10
    assert came > 0
    assert again > 0


def test_a_dive_ends_where_it_costs_as_much_as_the_best():
    tree = rooted(busy(*TORN_AT_THE_ROOT[0]))
    assert list(tree.dive(lambda: tree.bound, soon())) == []


def test_a_stuck_dive_continues_another_way(monkeypatch):
    """The LPs of two in three windows are made to say that somebody starts nowhere."""
    calls, tried = count(), []
    whole_cut = Tree._cut

    def cut(self, *limits):
        found = whole_cut(self, *limits)
        return found._replace(short=1.0) if next(calls) % 3 else found

    limit = Master.limit
    monkeypatch.setattr(Tree, "_cut", cut)
    monkeypatch.setattr(
        Master, "limit", lambda self, *windows: (tried.append(windows), limit(self, *windows))
    )
    tree = rooted(busy(*TORN_AT_THE_ROOT[0]))
    tried.clear()
    calls = count()
    steps = sum(1 for _ in tree.dive(lambda: inf, soon()))
    assert steps > 3
    thirds = list(zip(tried[::3], tried[2::3], tried[3::3], strict=False))
    others = 0
    for before, (lows, highs), (low, high) in thirds:
        (place,) = np.flatnonzero((low != before[0]) | (high != before[1]))
        others += high[place] + 1 == lows[place] or low[place] - 1 == highs[place]
    # where it ends, the other way may be no better either
    assert others == len(thirds) >= steps - 1


def test_the_search_pauses_during_a_dive(monkeypatch):
    """After the dive the search begins again; the tree waits for that and ends the solve."""
    diving, searched, looked, begun, dives = Event(), Event(), Semaphore(0), [], []

    def spied(owner, name, tell):
        whole = getattr(owner, name)
        monkeypatch.setattr(owner, name, lambda self, *more: (tell(), whole(self, *more))[1])

    def begins():
        begun.append(diving.is_set())
        if dives and not diving.is_set():
            searched.set()

    spied(Search, "run", begins)
    spied(Polish, "better", begins)
    spied(Solving, "_round", lambda: looked.release() if diving.is_set() else None)

    problem = busy(3, 12)

    class Diving(Stub):
        parts = tuple(np.zeros(task.latest - task.release + 1) for task in problem.tasks)

        def dive(self, limit, until):
            diving.set()
            dives.append(until)
            for _ in range(4):
                assert looked.acquire(timeout=60.0)
            diving.clear()
            yield

        def grow(self, limit, until):
            searched.wait(60.0)
            self.done = True

    monkeypatch.setattr("oracle.bounds.tree.Tree", Diving)
    monkeypatch.setattr(
        "oracle.search.solve.DIVE", -1.0
    )  # it dives however good the best is by then
    first = [task.latest for task in problem.tasks]
    Solving(problem, FORMS["step"], perf_counter() + 120.0, first).run()
    assert dives
    assert begun.count(True) <= len(dives), "of each, one that was just about to begin"
    assert searched.is_set(), "after the dive it goes on"


def test_after_a_dive_the_tree_proves_what_it_would_have_proven():
    settled = 0
    for seed, hours in SOON_DONE:
        problem = busy(seed, hours)
        answer = Solving(problem, FORMS["step"], perf_counter() + 60.0).run()
        tree = rooted(problem)
        for _ in tree.dive(lambda: inf, soon()):
            pass
        until = perf_counter() + 60.0
        while not tree.done and perf_counter() < until:
            tree.grow(answer.cost + 1.0, until)
        assert tree.bound <= answer.cost + CLOSE * answer.cost, seed
        if tree.done and answer.status == "optimal":
            assert tree.bound == pytest.approx(answer.cost, rel=1e-5), seed
            settled += 1
    assert settled > 0


def test_a_probe_says_no_more_than_a_half_costs_and_leaves_the_lp_where_it_was(monkeypatch):
    probed = rose = 0
    for seed, hours in TORN_AT_THE_ROOT:
        master = rooted(busy(seed, hours)).master
        before = master.solve(soon())
        task, slot = master.starts.task[before.at], master.starts.slot[before.at]
        torn = np.unique(task[(before.part > TORN) & (before.part < 1.0 - TORN)])
        for place in torn[:8].tolist():
            by = int(slot[task == place].min())
            few = master.probe(place, by)
            with monkeypatch.context() as patched:
                patched.setattr("oracle.solver.highs.PROBE", NO_LIMIT)
                whole = master.probe(place, by)
            for some, all_ in zip(few, whole, strict=True):
                assert before.bound - 1e-3 * before.bound <= some <= all_ + 1e-6 * all_, seed
                rose += some > before.bound + 0.1
                probed += 1
            assert master.solve(soon()).bound == pytest.approx(before.bound, rel=1e-6), seed
    assert probed > 15
    assert rose > 3


def test_rows_of_capacity_come_where_starts_that_were_added_break_them():
    """From one start for each task, the LP comes to the bound that it has from many."""
    came = 0
    for seed, hours in TORN_AT_THE_ROOT:
        problem = busy(seed, hours)
        starts = starts_of(problem)
        many = Master(starts, columns_of(starts, ascend(starts, never), None), never)
        last = np.append(starts.first[1:], len(starts.task)) - 1
        few = Master(starts, last, never)
        assert few.cuts == []
        found = few.solve(soon(), enough=1e-7)
        assert found.bound == pytest.approx(many.solve(soon(), enough=1e-7).bound, rel=1e-5)
        came += len(few.cuts)
        used = np.zeros(problem.slots + 1)
        for at, part in zip(found.at, found.part, strict=True):
            used[starts.slot[at] : starts.end[at]] += part * starts.width[starts.task[at]]
        assert (used[:-1] <= problem.capacity() + 1e-4).all()
    assert came > 0
