"""Both forms of the oracle's program against trying everything."""

from math import inf
from random import Random
from time import perf_counter

import oracle_naive
import pytest

from oracle.forms import FORMS, Model
from oracle.pieces import deal
from oracle.problem import Problem, Task
from oracle.proof import Proof
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


@pytest.mark.parametrize("form", FORMS)
def test_pieces_of_time_together_cost_what_the_whole_does(form):
    """Whatever the starts, and wherever it is parted: each choice is dealt out once."""
    rng = Random(3)
    for seed in range(60):
        jobs, quotas, _ = tiny(seed)
        model = Model(as_problem(jobs, quotas, 0.0), FORMS[form])
        tree = Tree(model, lambda: False)
        for _ in tree.root(perf_counter() + 20):
            pass
        if tree.rooted is None:
            continue
        root, cuts = tree.rooted
        tasks = model.problem.tasks
        at = sorted(rng.sample(range(1, model.problem.slots), min(2, model.problem.slots - 1)))
        fixed, pieces = deal(model, cuts, root.duals, at)
        assert fixed + sum(piece.least for piece in pieces) == pytest.approx(root.bound, abs=CLOSE)
        starts = [rng.randint(task.release, task.latest) for task in tasks]
        total = fixed
        for piece in pieces:
            milp = piece.model.milp
            values = piece.model.encode([starts[place] for place in piece.places])
            total += milp.offset + sum(c * v for c, v in zip(milp.costs, values, strict=True))
        assert total == pytest.approx(model.problem.cost(starts), abs=CLOSE), seed


def test_pieces_of_time_together_prove_no_more_than_the_least_cost(monkeypatch):
    """Parted where they hang together they prove less, never more; one tree settles it."""
    monkeypatch.setattr("oracle.proof.CELLS", 4)
    parted = 0
    for seed in range(700):
        jobs, quotas, _ = tiny(seed)
        least = oracle_naive.least(jobs, quotas)
        model = Model(as_problem(jobs, quotas, 0.0), FORMS["step"])
        if model.milp.impossible:
            continue
        proof, most = Proof(model, perf_counter() + 20, lambda: False), -inf
        for bound in proof.bounds(lambda: inf):
            most = max(most, bound)
            parted += len(proof._trees) > 1
        if least is None:
            assert proof.impossible, seed
            continue
        assert most <= least + CLOSE, seed
        assert proof.bound == pytest.approx(least, abs=CLOSE), seed
        starts = model.decode(proof.best)
        assert model.problem.cost(starts) == pytest.approx(least, abs=CLOSE), seed
    assert parted > 30


def test_trees_that_know_a_schedule_look_only_for_better_ones():
    for seed in range(100):
        jobs, quotas, _ = tiny(seed)
        least = oracle_naive.least(jobs, quotas)
        model = Model(as_problem(jobs, quotas, 0.0), FORMS["step"])
        if least is None:
            continue
        for before in (least, least + 0.7, inf):  # what is known until there are two nodes
            proof = Proof(model, perf_counter() + 20, lambda: False)

            def limit(proof=proof, before=before, least=least):
                return (least if proof.nodes > 1 else before) - 1e-4

            for _ in proof.bounds(limit):
                pass
            assert least - 2e-4 <= proof.bound <= least + CLOSE, (seed, before)


def test_a_tree_whose_root_is_given_up_has_proven_nothing():
    model = Model(as_problem(*tiny(2)[:2], 0.0), FORMS["step"])
    for stop, until in ((True, inf), (False, 0.0)):
        tree = Tree(model, lambda stop=stop: stop)
        assert [*tree.root(until)] == []
        tree.grow(inf, until)
        assert (tree.done, tree.bound) == (False, -inf)


def test_what_a_tree_leaves_aside_still_counts_in_its_bound():
    left = 0
    for seed in range(700):
        jobs, quotas, _ = tiny(seed)
        least = oracle_naive.least(jobs, quotas)
        tree = Tree(Model(as_problem(jobs, quotas, 0.0), FORMS["step"]), lambda: False)
        for _ in tree.root(perf_counter() + 20):
            pass
        if least is None or tree.done:
            continue
        left += 1
        tree.grow(-inf, perf_counter() + 20)
        assert tree.done
        assert tree.bound <= least + CLOSE, seed
    assert left > 10
