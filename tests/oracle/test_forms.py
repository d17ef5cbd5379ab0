"""Both forms of the oracle's program against trying everything."""

from math import inf
from random import Random
from time import perf_counter

import numpy as np
import pytest
from msgspec.structs import replace

from oracle.bounds.ascent import ascend
from oracle.bounds.master import Master, columns_of
from oracle.bounds.prices import priced_bound
from oracle.bounds.tree import Tree
from oracle.problem.all_starts import starts_of
from oracle.problem.forms import CONSTANT, FORMS, ProgramModel
from oracle.problem.problem import Problem, Task
from sia.contract.solvers import solve
from sia.program import ProgramRow
from tests.support.budget import budget
from tests.support.naive import naive_oracle

CLOSE = 1e-5  # solvers' tolerance


def tiny(seed):
    """Up to six jobs in up to three pools, as the naive model takes them; some have no schedule."""
    rng = Random(seed)
    quotas = [rng.randint(1, 3) for _ in range(rng.randint(1, 3))]
    jobs = []
    for _ in range(rng.randint(1, 6)):
        pool, release = rng.randrange(len(quotas)), rng.randint(0, 4)
        cutoff = release + rng.randint(0, 3)
        jobs.append(
            (pool, release, cutoff, cutoff + rng.choice([0, 0, 1]), rng.randint(1, 4),
             rng.randint(1, quotas[pool]), rng.choice([1.0, 1.0, 0.5]), rng.choice([0.0, 2.0]))
        )  # fmt: skip
    return jobs, quotas, rng.choice([0.0, 0.0, 0.5, 2.0])


def as_problem(jobs, quotas, beta):
    return Problem([Task(i, *job) for i, job in enumerate(jobs)], quotas, beta)


def test_both_forms_find_the_least_cost_that_trying_everything_finds():
    impossible, seeds = 0, budget(ci=60, soak=600)
    for seed in range(seeds):
        jobs, quotas, beta = tiny(seed)
        least = naive_oracle.least(jobs, quotas, beta)
        problem = as_problem(jobs, quotas, beta)
        for form in FORMS.values():
            model = ProgramModel(problem, form)
            found = solve(model.program)
            if least is None:
                impossible += 1
                assert found.status == "infeasible", seed
                continue
            starts = model.decode(found.values)
            problem.check(starts)
            assert problem.cost(starts) == pytest.approx(least, abs=CLOSE), seed
            assert found.bound == pytest.approx(least, abs=CLOSE), seed
    assert 0 < impossible < seeds


def test_both_forms_have_the_same_lp_bound():
    for seed in range(40):
        problem = as_problem(*tiny(seed))
        bounds = [
            solve(ProgramModel(problem, f).program, relaxed=True).bound for f in FORMS.values()
        ]
        assert bounds[0] == pytest.approx(bounds[1], abs=CLOSE), seed


@pytest.fixture
def few_steps(monkeypatch):
    """So that prices to begin with are poor, and soon there."""
    monkeypatch.setattr("oracle.bounds.ascent.STEPS", 10)


def tree_of(problem, stop=lambda: False):
    starts = starts_of(problem)
    return Tree(starts, columns_of(starts, ascend(starts, stop), None), stop)


def rooted(problem):
    """A tree and the bounds of its root."""
    tree = tree_of(problem)
    return tree, [*tree.root(perf_counter() + 20)]


def grown(tree, limit):
    """Its bounds until it is done."""
    bounds = []
    while not tree.done:
        tree.grow(limit(), perf_counter() + 20)
        bounds.append(tree.bound)
    return bounds


def as_row(model, cut):
    """A cut in a program's variables."""
    row, high = {}, cut.most
    for place, low, last, weight in zip(cut.task, cut.low, cut.high, cut.weight, strict=True):
        task, first, cells = model.problem.tasks[place], model._first[place], model.cells[place]
        inside = low - task.release, last - task.release + 1
        for variable, coefficient in model.form.between(first, len(cells), *inside).items():
            row[variable] = row.get(variable, 0.0) + weight * coefficient
    high -= row.pop(CONSTANT, 0.0)
    return ProgramRow([*row], [*row.values()], -inf, high)


def with_rows(program, rows):
    """A program with more rows, each with an upper bound alone."""
    starts, columns, coefficients = [*program.starts], [*program.columns], [*program.coefficients]
    for row in rows:
        columns += row.columns
        coefficients += row.coefficients
        starts.append(len(columns))
    return replace(
        program,
        starts=tuple(starts),
        columns=tuple(columns),
        coefficients=tuple(coefficients),
        row_lows=program.row_lows + (None,) * len(rows),
        row_highs=program.row_highs + tuple(row.high for row in rows),
    )


def test_prices_raise_the_bound_to_that_of_the_lp_and_never_beyond():
    tight = 0
    seeds = budget(ci=15, soak=50)
    for seed in range(seeds):
        problem = as_problem(*tiny(seed)[:2], 0.0)
        found = solve(ProgramModel(problem, FORMS["step"]).program, relaxed=True)
        if found.status == "infeasible":
            continue
        starts = starts_of(problem)
        prices = ascend(starts, lambda: False)
        assert prices.bound == pytest.approx(priced_bound(problem, prices.prices)), seed
        assert prices.bound <= found.bound + CLOSE, seed
        tight += prices.bound > found.bound - 0.05
        for parts in starts.split(prices.parts):
            assert sum(parts) == pytest.approx(1.0)
    assert tight > 0.6 * seeds


def test_the_lp_with_few_columns_reaches_the_value_of_the_whole_lp():
    for seed in range(budget(ci=60, soak=400)):
        problem = as_problem(*tiny(seed)[:2], 0.0)
        found = solve(ProgramModel(problem, FORMS["step"]).program, relaxed=True)
        if found.status == "infeasible":
            continue
        starts = starts_of(problem)
        master = Master(starts, np.zeros(0, dtype=np.int64), lambda: False)
        own = master.solve(perf_counter() + 20, enough=0.0)
        assert own.exact
        assert own.bound == pytest.approx(found.bound, abs=CLOSE), seed


@pytest.mark.usefixtures("few_steps")
def test_cuts_keep_every_whole_schedule_and_raise_the_bound():
    raised = 0
    seeds = budget(ci=48, soak=120)
    for seed in range(seeds):
        jobs, quotas, _ = tiny(seed)
        least = naive_oracle.least(jobs, quotas)
        if least is None:
            continue
        problem = as_problem(jobs, quotas, 0.0)
        tree, bounds = rooted(problem)
        model = ProgramModel(problem, FORMS["step"])
        rows = [as_row(model, cut) for cut in tree.master.cuts]
        program = with_rows(model.program, [row for row in rows if row.columns])
        assert max(bounds, default=0.0) <= least + CLOSE, seed
        assert solve(program).cost == pytest.approx(least, abs=CLOSE), seed
        raised += bool(bounds) and bounds[-1] > bounds[0] + CLOSE
    assert raised > seeds / 25


@pytest.mark.usefixtures("few_steps")
def test_a_tree_proves_the_least_cost_that_trying_everything_finds():
    branched, seeds = 0, budget(ci=72, soak=500)
    for seed in range(seeds):
        jobs, quotas, _ = tiny(seed)
        least = naive_oracle.least(jobs, quotas)
        problem = as_problem(jobs, quotas, 0.0)
        tree, bounds = rooted(problem)
        bounds += grown(tree, lambda: inf)
        branched += tree.nodes > 0
        if least is None:
            assert tree.bound == inf, seed
            continue
        assert max(bounds) <= least + CLOSE, seed
        assert tree.bound == pytest.approx(least, abs=CLOSE), seed
        cost, starts = tree.whole
        problem.check(starts)
        assert problem.cost(starts) == pytest.approx(least, abs=CLOSE), seed
        assert cost == pytest.approx(least, abs=CLOSE), seed
    assert branched > 1


@pytest.mark.usefixtures("few_steps")
def test_trees_that_know_a_schedule_look_only_for_better_ones():
    for seed in range(budget(ci=18, soak=100)):
        jobs, quotas, _ = tiny(seed)
        least = naive_oracle.least(jobs, quotas)
        if least is None:
            continue
        for before in (least, least + 0.7, inf):  # what is known until there are two nodes
            tree, _ = rooted(as_problem(jobs, quotas, 0.0))

            def limit(tree=tree, before=before, least=least):
                return (least if tree.nodes > 1 else before) - 1e-4

            grown(tree, limit)
            assert least - 2e-4 <= tree.bound <= least + CLOSE, (seed, before)


def test_a_tree_whose_root_is_interrupted_proves_nothing():
    for stop, until in ((True, inf), (False, 0.0)):
        tree = tree_of(as_problem(*tiny(2)[:2], 0.0), lambda stop=stop: stop)
        assert [*tree.root(until)] == []
        tree.grow(inf, until)
        assert (tree.done, tree.bound) == (False, -inf)


@pytest.mark.usefixtures("few_steps")
def test_branches_that_a_tree_skips_count_in_its_bound(monkeypatch):
    monkeypatch.setattr(
        "oracle.bounds.cuts.ROAMS", 0
    )  # with rows of spans hardly a tree has branches
    left, seeds = 0, budget(ci=180, soak=700)
    for seed in range(seeds):
        jobs, quotas, _ = tiny(seed)
        least = naive_oracle.least(jobs, quotas)
        if least is None:
            continue
        tree, _ = rooted(as_problem(jobs, quotas, 0.0))
        if tree.done:
            continue
        left += 1
        tree.grow(-inf, perf_counter() + 20)
        assert tree.done
        assert tree.bound <= least + CLOSE, seed
    assert left > seeds / 70
