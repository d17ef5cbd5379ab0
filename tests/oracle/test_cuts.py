"""Rows that whole jobs keep: no schedule breaks one, whatever the parts that broke it."""

from itertools import product

import numpy as np
import pytest

from oracle.bounds.cuts import NO_SLOT, NOBODY, Cuts
from oracle.problem.all_starts import starts_of
from oracle.problem.problem import Problem, Task
from tests.oracle.test_solve import never
from tests.support.budget import budget

CLOSE = 1e-7


def problem_of(*tasks, gpus, taken=None):
    """Of tasks as (release, latest, length, width)."""
    rows = [
        Task(i, 0, release, latest, latest, length, width)
        for i, (release, latest, length, width) in enumerate(tasks)
    ]
    return Problem(rows, [gpus], taken=taken)


def schedules(problem):
    """All schedules, by trying everything."""
    capacity = problem.capacity()
    for starts in product(*(range(task.release, task.latest + 1) for task in problem.tasks)):
        used = np.zeros(problem.slots)
        for task, start in zip(problem.tasks, starts, strict=True):
            used[start : start + task.length] += task.width
        if (used <= capacity).all():
            yield starts


def begun_of(problem, parts):
    """By slot and task, what has begun, of parts by start."""
    begun = np.zeros((problem.slots + 1, len(problem.tasks)))
    for place, (task, own) in enumerate(zip(problem.tasks, parts, strict=True)):
        begun[task.release : task.latest + 1, place] = own
    return np.cumsum(begun, axis=0)


def value(cut, starts):
    """What a schedule comes to in a row."""
    own = np.array(starts)[cut.task]
    return float(cut.weight @ ((cut.low <= own) & (own <= cut.high)))


def worth(cut, problem, parts):
    """What parts of tasks come to in a row."""
    total = 0.0
    for place, low, high, weight in zip(cut.task, cut.low, cut.high, cut.weight, strict=True):
        release = problem.tasks[place].release
        total += weight * sum(parts[place][low - release : high - release + 1])
    return total


def made_up(rng):
    """A few tasks, some of no length, and GPUs that are not there for a while."""
    gpus, tasks, choices = int(rng.choice([4, 8, 9, 16])), [], 1
    for _ in range(rng.integers(3, 8)):
        release, window = int(rng.integers(0, 6)), int(rng.integers(0, 7))
        if choices * (window + 1) > 4000:
            break
        choices *= window + 1
        length = int(rng.choice([0, 1, 2, 3, 6, 10], p=[0.05, 0.15, 0.2, 0.2, 0.2, 0.2]))
        width = int(rng.choice([1, 2, 3, 4, gpus // 2, gpus]))
        tasks.append((release, release + window, length, width))
    taken = rng.integers(0, 3, 40) if rng.random() < 0.3 else None
    return problem_of(*tasks, gpus=gpus, taken=taken)


def torn(rng, problem):
    """Parts of each task, over few of its starts or many."""
    return [
        rng.dirichlet(np.full(task.latest - task.release + 1, rng.choice([0.2, 1.0])))
        for task in problem.tasks
    ]


class Spied(Cuts):
    """Says of each row whether somebody roams in it, and whether somebody passes."""

    def broken(self, begun):
        self.kinds = []
        return super().broken(begun)

    def _cut(self, broken):
        self.kinds.append((broken.roams != NOBODY, (broken.passing != NOBODY).any()))
        return super()._cut(broken)


PROBLEMS = budget(ci=36, soak=250)


@pytest.mark.parametrize("part", range(4))
def test_no_schedule_breaks_a_row_that_torn_jobs_break(part):
    rows = roaming = passing = tight = 0
    rng = np.random.default_rng(part)
    for number in range(PROBLEMS):
        problem = made_up(rng)
        parts = torn(rng, problem)
        spied = Spied(starts_of(problem), never)
        cuts = spied.broken(begun_of(problem, parts))
        most = [-np.inf] * len(cuts)
        for starts in schedules(problem) if cuts else ():
            most = [max(so_far, value(cut, starts)) for so_far, cut in zip(most, cuts, strict=True)]
        for cut, reached, (roams, passes) in zip(cuts, most, spied.kinds, strict=True):
            assert reached <= cut.most + CLOSE, (part, number, cut)
            assert worth(cut, problem, parts) > cut.most, (part, number, cut)
            rows += 1
            roaming += roams
            passing += passes
            tight += reached > cut.most - CLOSE
    assert rows > 2 * PROBLEMS
    assert roaming > passing > PROBLEMS / 5
    assert tight > rows / 20


def test_a_span_cut_excludes_half_of_two_starts():
    """Four GPUs, two jobs of four: halves of them fit in each slot, and no row of a slot is broken.

    But one of them runs from slot 0 to 9 in half, and wherever it is there the other is not.
    """
    problem = problem_of((0, 20, 10, 4), (0, 6, 3, 4), gpus=4)
    parts = [[0.5] + [0.0] * 19 + [0.5], [0.5] + [0.0] * 5 + [0.5]]
    spied = Spied(starts_of(problem), never)
    cuts = spied.broken(begun_of(problem, parts))
    assert cuts
    assert all(roams for roams, _ in spied.kinds)
    both = [cut for cut in cuts if value(cut, (0, 0)) > cut.most and value(cut, (0, 6)) > cut.most]
    assert max(worth(cut, problem, parts) - cut.most for cut in both) == pytest.approx(0.5)


def test_a_job_that_ends_when_another_begins_counts_with_it():
    """Of nine GPUs seven are taken for nine slots, and two until slot 4.

    A job of eight is there in part from slot 5 on, beside the seven.
    """
    problem = problem_of((0, 3, 9, 4), (0, 3, 9, 3), (0, 0, 5, 2), (5, 16, 4, 8), gpus=9)
    parts = [[1.0, 0, 0, 0], [1.0, 0, 0, 0], [1.0], [0.25] + [0.0] * 10 + [0.75]]
    spied = Spied(starts_of(problem), never)
    cuts = spied.broken(begun_of(problem, parts))
    assert any(passes for _, passes in spied.kinds)
    for cut in cuts:
        assert max(value(cut, starts) for starts in schedules(problem)) <= cut.most + CLOSE


def test_the_search_ends_early_on_request():
    problem = problem_of((0, 20, 10, 4), (0, 6, 3, 4), gpus=4)
    parts = [[0.5] + [0.0] * 19 + [0.5], [0.5] + [0.0] * 5 + [0.5]]
    assert Cuts(starts_of(problem), lambda: True).broken(begun_of(problem, parts)) == []


def test_each_slot_has_its_own_capacity_row():
    problem = problem_of((0, 4, 3, 2), (2, 2, 1, 1), (9, 9, 1, 1), gpus=2)
    cut = Cuts(starts_of(problem), never).capacity(4)
    assert (cut.slot, cut.most) == (4, 2.0)
    assert cut.task.tolist() == [0], "nobody else can run in it"
    assert (cut.low.tolist(), cut.high.tolist(), cut.weight.tolist()) == ([2], [4], [2.0])
    assert all(
        cut.slot == NO_SLOT
        for cut in Cuts(starts_of(problem), never).broken(
            begun_of(problem, [[0.5, 0, 0, 0, 0.5], [1.0], [1.0]])
        )
    )
