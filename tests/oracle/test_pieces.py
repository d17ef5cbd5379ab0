"""Rows of capacity over several slots, cuts that are not alike, and what a tree leaves out."""

from math import inf
from time import perf_counter

import numpy as np
import pytest

from oracle.bounds.cuts import Cuts
from oracle.bounds.lp import prove
from oracle.bounds.master import LpResult, Master
from oracle.bounds.tree import Tree
from oracle.problem import coarse
from oracle.problem.all_starts import starts_of
from oracle.problem.coarse import together
from oracle.problem.forms import FORMS, ProgramModel
from oracle.problem.problem import Problem, Task
from sia.contract.solvers import solve
from sia.program import ProgramBuilder
from tests.oracle.test_cuts import begun_of, made_up, schedules, torn, worth
from tests.oracle.test_solve import never
from tests.support.budget import budget

CLOSE = 1e-6


@pytest.fixture
def pieces(monkeypatch):
    """Of problems of a dozen slots or more, two to four are taken together."""
    monkeypatch.setattr(coarse, "FINE", 7)
    monkeypatch.setattr(coarse, "FEW", 6)


def soon():
    return perf_counter() + 60.0


def crowded(problem, found):
    """Whether more GPUs run in a slot than there are, counted slot by slot."""
    starts, used = starts_of(problem), np.zeros(problem.slots)
    for at, part in zip(found.at, found.part, strict=True):
        used[starts.slot[at] : starts.end[at]] += part * starts.width[starts.task[at]]
    return bool((used > problem.capacity() + CLOSE).any())


def in_pieces(seed, problems):
    """Of so many problems those that have pieces and a schedule, by number."""
    rng = np.random.default_rng(seed)
    for number in range(problems):
        problem = made_up(rng)
        if together(problem) > 1 and next(schedules(problem), None) is not None:
            yield number, problem


def mastered(problem, *, strict):
    starts = starts_of(problem)
    master = Master(starts, np.arange(len(starts.task)), never, together(problem))
    master.strict = strict
    return master, master.solve(soon(), enough=0.0)


def summed_up(problem):
    """Build the LP with a row for each piece from scratch; return its lowest cost."""
    by, rows, lp, capacity = together(problem), {}, ProgramBuilder(), problem.capacity()
    for task in problem.tasks:
        parts = []
        for slot in range(task.release, task.latest + 1):
            parts.append(lp.column(task.cost(slot)))
            for used in range(slot, slot + task.length):
                row = rows.setdefault(used // by, {})
                row[parts[-1]] = row.get(parts[-1], 0.0) + task.width
        lp.exactly(parts, 1.0)
    for piece, row in rows.items():
        lp.at_most(row, float(capacity[piece * by : (piece + 1) * by].sum()))
    return solve(lp.build(), relaxed=True).bound


@pytest.mark.usefixtures("pieces")
def test_rows_of_several_slots_sum_up_theirs_and_strictly_each_slot_is_kept():
    looser = seen = 0
    for number, problem in in_pieces(5, budget(ci=50, soak=120)):
        seen += 1
        exact = solve(ProgramModel(problem, FORMS["pulse"]).program, relaxed=True).bound
        _, loose = mastered(problem, strict=False)
        assert loose.bound == pytest.approx(summed_up(problem), abs=CLOSE), number
        assert loose.fits is not crowded(problem, loose), number
        _, strict = mastered(problem, strict=True)
        assert strict.fits, number
        assert not crowded(problem, strict), number
        assert strict.bound == pytest.approx(exact, abs=CLOSE), number
        assert loose.bound <= strict.bound + CLOSE, number
        looser += loose.bound < strict.bound - CLOSE
    assert seen > 10
    assert looser > 0


@pytest.mark.usefixtures("pieces")
def test_the_bound_equals_that_of_all_slots():
    seen = 0
    for number, problem in in_pieces(6, budget(ci=30, soak=80)):
        seen += 1
        exact = solve(ProgramModel(problem, FORMS["pulse"]).program, relaxed=True).bound
        proven = prove(problem, FORMS["step"], soon())
        assert proven.finished, number
        assert exact - CLOSE <= proven.bound < exact + 1.0, number
    assert seen > 6


@pytest.mark.usefixtures("pieces")
def test_after_the_root_all_slots_are_kept_and_the_cuts_held_bind():
    held = rounds = 0
    for number, problem in in_pieces(7, budget(ci=30, soak=60)):
        starts = starts_of(problem)
        tree = Tree(starts, np.arange(len(starts.task)), never)
        for turn, _ in enumerate(tree.root(soon())):
            assert turn > 0 or not tree.master.strict, "crowded slots wait for their rows"
            rounds += 1
            parts = [own.tolist() for own in tree.parts]
            for cut in tree.master.cuts:
                assert worth(cut, problem, parts) == pytest.approx(cut.most, abs=CLOSE), number
            held += len(tree.master.cuts)
        assert tree.master.strict
        assert not crowded(problem, tree.found), number
        assert tree.bound <= min(problem.cost(each) for each in schedules(problem)) + CLOSE, number
    assert rounds > 15
    assert held > 5


def test_cuts_of_neighbouring_pieces_are_not_alike(monkeypatch):
    """The one broken most stands for those of the same pieces; alone it would be there anyhow."""
    fewer = 0
    rng = np.random.default_rng(8)
    problems = budget(ci=40, soak=80)
    for number in range(problems):
        problem = made_up(rng)
        parts = torn(rng, problem)
        begun, found = begun_of(problem, parts), {}
        for few in (problem.slots, 6):
            monkeypatch.setattr(coarse, "FINE", 7)
            monkeypatch.setattr(coarse, "FEW", max(few, 1))
            cuts = Cuts(starts_of(problem), never).broken(begun)
            found[few] = [round(worth(cut, problem, parts) - cut.most, 9) for cut in cuts]
        all_, some = found[problem.slots], found[6] if problem.slots != 6 else found.popitem()[1]
        assert len(some) <= len(all_), number
        assert not all_ or max(some) == max(all_), number
        fewer += len(some) < len(all_)
    assert fewer > problems / 4


def test_a_single_remaining_schedule_counts_even_if_the_lp_missed_it():
    """Two of three slots on one GPU: one waits for three. The LP stands torn between 0 and 4.

    What it says would be dearer leaves one start for each.
    """
    problem = Problem([Task(0, 0, 0, 9, 9, 3, 1), Task(1, 0, 0, 9, 9, 3, 1)], [1])
    starts = starts_of(problem)
    for first, last, cost in ((0, 3, 3.0), (0, 2, inf)):
        tree = Tree(starts, np.arange(len(starts.task)), never)
        dearer = np.full(len(starts.task), 5.0)
        dearer[[first, starts.first[1] + last]] = 0.0
        at = np.array([first, starts.first[1], starts.first[1] + 4])
        found = LpResult(2.5, dearer, at, np.array([1.0, 0.25, 0.75]), 0.0, exact=True)
        tree._keep(found, np.zeros(2, int), np.full(2, 9), 4.5, 2.5)
        assert tree.whole == (cost, [first, last] if cost < inf else [])
        tree.done = not tree._open
        assert tree.done
        assert tree.bound == min(cost, 4.5), "no more than what was left out costs"


def test_a_job_of_no_duration_needs_no_slots():
    starts = starts_of(Problem([Task(0, 0, 0, 0, 0, 0, 1)], [1]))
    assert Master(starts, np.arange(1), never).solve(soon()).whole
