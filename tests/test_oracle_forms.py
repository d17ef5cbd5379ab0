"""Both forms of the oracle's program against trying everything."""

from random import Random
from time import perf_counter

import oracle_naive
import pytest

from oracle.forms import FORMS, Model
from oracle.problem import Problem, Task
from oracle.solver import solve
from oracle.tree import Tree

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


@pytest.mark.parametrize("part", range(4))
def test_both_forms_find_the_least_cost_that_trying_everything_finds(part):
    impossible = 0
    for seed in range(part * 150, part * 150 + 150):
        jobs, quotas, beta = tiny(seed)
        least = oracle_naive.least(jobs, quotas, beta)
        problem = as_problem(jobs, quotas, beta)
        for form in FORMS.values():
            model = Model(problem, form)
            found = solve(model.milp)
            if least is None:
                impossible += 1
                assert found.status == "infeasible", seed
                continue
            starts = model.decode(found.values)
            problem.check(starts)
            assert problem.cost(starts) == pytest.approx(least, abs=CLOSE), seed
            assert found.bound == pytest.approx(least, abs=CLOSE), seed
    assert 0 < impossible < 200


def test_both_forms_have_the_same_lp_bound():
    for seed in range(40):
        problem = as_problem(*tiny(seed))
        bounds = [solve(Model(problem, f).milp, relaxed=True).bound for f in FORMS.values()]
        assert bounds[0] == pytest.approx(bounds[1], abs=CLOSE), seed


def test_cuts_keep_every_whole_schedule_and_raise_the_bound():
    raised = 0
    for seed in range(120):
        jobs, quotas, _ = tiny(seed)
        least = oracle_naive.least(jobs, quotas)
        if least is None:
            continue
        model = Model(as_problem(jobs, quotas, 0.0), FORMS["step"])
        tree = Tree(model, lambda: False)
        bounds = [found.bound for found in tree.root(perf_counter() + 20)]
        model.milp.rows += [cut.row for cut in tree.cuts]
        assert max(bounds, default=0.0) <= least + CLOSE, seed
        assert solve(model.milp).cost == pytest.approx(least, abs=CLOSE), seed
        raised += bool(bounds) and bounds[-1] > bounds[0] + CLOSE
    assert raised > 5
