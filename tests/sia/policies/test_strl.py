"""STRL: the paper's example, every operator against brute force, and invalid texts."""

from random import Random

import pytest

from oracle.solver.highs import DENSE
from sia.contract.solvers import solve
from sia.policies.jvu.strl.answer import answer_of
from sia.policies.jvu.strl.compiler import CompiledStrl
from sia.policies.jvu.strl.expressions import (
    Barrier,
    Choose,
    JobScope,
    Kill,
    Max,
    Min,
    Scale,
    StrlHolding,
    StrlProblem,
    Sum,
    leaves_of,
)
from sia.policies.jvu.strl.text import MAX_OPTIONS, parse_strl
from sia.state.strl import MAX_DEPTH, StrlError
from tests.support.naive.naive_strl import best_value, fits

PAPER = """
(node m1 1 gpu rack:r1) (node m2 1 gpu rack:r1) (nodes m3 m4)   ; Fig. 6
(now 10) (slot 10) (horizon 40) (held job1 (m2 m3) 20)
(maximise (sum
  (job job1 (killnck (m2 m3) 2 10 20 11))
  (job job2 (max (nck gpu 2 10 20 100) (nck (m3 m4) 2 10 20 100) (nck all 2 20 20 1)))
  (job job3 (max (nck rack:r1 2 10 20 100) (nck all 2 20 20 1)))))
"""


def solved(problem):
    compiled = CompiledStrl(problem)
    compiled.program.check()
    result = solve(compiled.program, heuristics=True)
    assert result.status == "optimal"
    return answer_of(compiled, result.values)


def test_the_example_of_the_paper_kills_the_best_effort_job_for_two_deadlines():
    answer = solved(parse_strl(PAPER))
    assert answer.objective == 189
    assert [(each.job, each.units) for each in answer.chosen] == [
        ("job1", {"m2": 1, "m3": 1}),
        ("job2", {"m3": 1, "m4": 1}),
        ("job3", {"m1": 1, "m2": 1}),
    ]
    assert {each.leaf.start for each in answer.chosen[1:]} == {10}


class Stories:
    """Random small problems."""

    def __init__(self, seed):
        self.random = Random(seed)
        r = self.random
        self.nodes = {f"m{i}": r.randint(1, 2) for i in range(r.randint(1, 3))}
        self.now, self.slot = r.choice([(0.0, 10.0), (10.0, 5.0), (7.5, 2.5)])
        self.horizon = self.slot * r.choice([1, 2, 3, 2.5])
        self.held = tuple(self.holdings())
        self.left = 5

    def holdings(self):
        r, free = self.random, dict(self.nodes)
        for job in ("one", "two")[: r.randint(0, 2)]:
            units = {n: k for n in free if (k := r.randint(0, free[n]))}
            for node, count in units.items():
                free[node] -= count
            if units:
                yield StrlHolding(job, units, self.now + self.slot * r.choice([0.5, 1, 2, 4]))

    def units(self):
        names = [n for n in self.nodes if self.random.random() < 0.6]
        return frozenset(names or self.nodes)

    def leaf(self):
        self.left -= 1
        r, linear = self.random, self.random.random() < 0.4
        if self.held and r.random() < 0.35:
            begin = self.now + self.slot * r.choice([-1, 0, 0, 0.5, 1, 5])
            # A holder that comes back is counted, not placed: on one node both are the same.
            last = max(h.end for h in self.held) + r.choice([0, self.slot])
            if len(self.nodes) == 1 and r.random() < 0.5:
                last = begin + self.slot * r.choice([-1, 0, 0.5, 1])
            return Kill(
                self.units(), r.randint(0, 2), begin, last, r.choice([1, 2.5, 7, -1]), linear
            )
        start = self.now + self.slot * r.choice([-1, 0, 0, 0.5, 1, 2, 3])
        span = self.slot * r.choice([0, 0.5, 1, 1, 1.5, 2])
        value = r.choice([1, 3, 10, 0.1, 1000, -2])
        return Choose(self.units(), r.randint(0, 3), start, span, value, linear)

    def expression(self, depth):
        r = self.random
        if depth == 0 or self.left <= 1 or r.random() < 0.2:
            return self.leaf()
        kind = r.choice([Max, Sum, Sum, Min, Scale, Barrier, JobScope])
        if kind in (Max, Sum, Min):
            return kind(tuple(self.expression(depth - 1) for _ in range(r.randint(1, 3))))
        first = {Scale: [0, 0.5, 2], Barrier: [-1, 0, 2, 3, 10], JobScope: ["one", "two", "new"]}
        return kind(r.choice(first[kind]), self.expression(depth - 1))

    def problem(self):
        goal = Sum(tuple(self.expression(3) for _ in range(2)))
        return StrlProblem(self.nodes, self.now, self.slot, self.horizon, self.held, goal)


@pytest.mark.parametrize("block", range(8))
def test_every_operator_is_worth_what_brute_force_finds(block):
    for seed in range(60 * block, 60 * block + 60):
        problem = Stories(seed).problem()
        assert sum(1 for _ in leaves_of(problem.goal)) < 12
        answer = solved(problem)
        assert answer.objective == pytest.approx(best_value(problem), abs=1e-6), seed
        used = [(each.leaf, each.units) for each in answer.chosen if isinstance(each.leaf, Choose)]
        assert fits(problem._replace(held=()), used), seed


def test_taken_loosely_a_problem_is_worth_at_least_as_much_and_the_same_on_one_partition():
    """Moving within a set while it runs can only help a job."""
    more = 0
    for seed in range(60):
        problem = Stories(seed).problem()
        exact = solved(problem).objective
        compiled = CompiledStrl(problem, loose_from=problem.now)
        result = solve(compiled.program, heuristics=True)
        loose = -compiled.program.cost(result.values)
        assert loose >= exact - 1e-6, seed
        if len(compiled.partitions.parts) == 1:
            assert loose == pytest.approx(exact, abs=1e-6), seed
        more += loose > exact + 1e-6
    assert more < 10


def test_a_dense_program_whose_work_is_limited_is_worth_as_much():
    """Many jobs want four units; presolve is left out there."""
    rnd, jobs = Random(3), []
    for i in range(12):
        width, value = rnd.choice([1, 2, 4]), rnd.randint(1, 99)
        starts = (
            Choose(frozenset(["m"]), width, 10 * at, 200, value - at / 100) for at in range(24)
        )
        jobs.append(JobScope(f"j{i}", Max(tuple(starts))))
    program = CompiledStrl(StrlProblem({"m": 4}, 0, 10, 240, (), Sum(tuple(jobs)))).program
    assert program.nonzeros >= DENSE * len(program.row_lows)
    free = solve(program, heuristics=True)
    limited = solve(program, heuristics=True, nodes=100, iterations=20_000)
    assert limited.status == "optimal"
    assert limited.cost == pytest.approx(free.cost)


def test_the_comparison_detects_a_fault_of_the_compiler():
    wrong = 0
    for seed in range(60):
        problem = Stories(seed).problem()
        blind = problem._replace(held=())  # as if running jobs held nothing
        wrong += solved(blind).objective != pytest.approx(best_value(problem), abs=1e-6)
    assert wrong > 5


def goal(text):
    return parse_strl(f"(nodes m1 m2) (slot 10) (horizon 20) (maximise {text})").goal


def test_texts_are_parsed_into_expressions():
    both = frozenset(("m1", "m2"))
    assert goal("(scale 2 (barrier 3 (min (lnck all 2 0 10 5))))") == Scale(
        2, Barrier(3, Min((Choose(both, 2, 0, 10, 5, linear=True),)))
    )
    assert goal("(job j (lkillnck (m1 m2) 1 0 10 4))") == JobScope(
        "j", Kill(both, 1, 0, 10, 4, linear=True)
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(nck all 3 0 10 5)", 0),  # there are two units
        ("(lnck all 4 0 10 8)", 4),  # two of four
        ("(nck all 2 20 10 5)", 0),  # starts at the end of the horizon
        ("(nck all 2 -1 10 5)", 0),  # starts in the past
        ("(nck all 2 10 1e6 5)", 5),  # is worth all, though it reaches beyond the horizon
        ("(sum (nck all 2 0 10 5) (nck all 2 10 10 5))", 10),  # half open
        ("(sum (nck all 2 0 11 5) (nck all 2 10 10 5))", 5),  # a slot touched is used
        ("(max (nck (m1) 1 0 10 5) (nck (m2) 1 0 10 4))", 5),
        ("(min (nck (m1) 1 0 10 5) (nck (m2) 1 0 10 4))", 4),
        ("(barrier 5 (nck all 2 0 10 4))", 0),
        ("(barrier 4 (nck all 2 0 10 5))", 4),
        ("(killnck all 1 0 10 -5)", 0),  # nobody holds anything
    ],
)
def test_the_rules_of_the_language_are_enforced(text, value):
    problem = parse_strl(f"(nodes m1 m2) (slot 10) (horizon 20) (maximise {text})")
    assert solved(problem).objective == value == best_value(problem)


CLUSTER = "(nodes m1) (slot 10) (horizon 20) "


@pytest.mark.parametrize("operator", ["nck", "lnck", "killnck", "lkillnck"])
def test_units_of_an_empty_set_are_never_chosen_and_no_error(operator):
    both = f"(max ({operator} () 1 0 1 50) (nck all 1 0 1 3))"
    assert solved(parse_strl(f"{CLUSTER}(maximise {both})")).objective == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(nodes m1", "line 1, column 1: this parenthesis is not closed; write"),
        ("(nodes m1))", "line 1, column 11: this parenthesis closes nothing; remove it"),
        ("(" * 10**6, f"column {MAX_DEPTH + 1}: more than {MAX_DEPTH} parentheses are open; join"),
        ("now", "'now' stands alone; put it in parentheses"),
        ("()", "the parentheses are empty"),
        ("(nods m1)", "unknown operator 'nods'; use one of node, nodes"),
        (CLUSTER + "(maximise (nkc all 1 0 1 1))", "unknown operator 'nkc'; use one of nck"),
        (CLUSTER + "\n(maximise (nck (m2) 1 0 1 1))", "line 2, column 17: unknown node 'm2'; add"),
        (CLUSTER + "(maximise (nck gpu 1 0 1 1))", "unknown attribute 'gpu'; use one"),
        (CLUSTER + "(maximise (nck m1 1 0 1 1))", "'m1' is a node, no attribute; write (m1)"),
        (CLUSTER + "(maximise (nck all -1 0 1 1))", "K is '-1'; write a whole number"),
        (CLUSTER + "(maximise (nck all 1.5 0 1 1))", "K is '1.5'; write a whole number"),
        (CLUSTER + "(maximise (nck all 1 0 -1 1))", "DUR is '-1'; write a number of at least 0"),
        (CLUSTER + "(maximise (nck all 1 0 1 nan))", "VALUE is 'nan'; write a number"),
        (CLUSTER + "(maximise (nck all 1 0 1 inf))", "VALUE is 'inf'; write a number"),
        (CLUSTER + "(maximise (nck all 1 0 1))", "nck has 4 arguments; write (nck SET K"),
        (CLUSTER + "(maximise (scale -1 (nck all 1 0 1 1)))", "FACTOR is '-1'; write a number"),
        (
            f"{CLUSTER}(maximise {'(scale 1e15 ' * 30}(nck all 1 0 1 1){')' * 31}",
            "line 1, column 420: VALUE is '1', times inf by scale; use smaller factors",
        ),
        (
            f"{CLUSTER}(maximise {'(scale 1e15 ' * 30}(nck all 1 0 1 0){')' * 31}",
            "VALUE is '0', times inf by scale; use smaller factors",
        ),
        (CLUSTER + "(maximise (scale 1e9 (barrier 2e6 (nck all 1 0 1 1))))", "VALUE is '2e6', t"),
        (CLUSTER + "(maximise (scale 1e9 (killnck all 1 0 1 2e6)))", "COST is '2e6', times 1e+09"),
        (CLUSTER + "(maximise (sum))", "sum has 0 arguments; write (sum EXPR…)"),
        (CLUSTER + "(maximise 5)", "'5' is no expression; write an operator"),
        (CLUSTER, "0 forms say what to maximise; write (maximise EXPR) once"),
        (CLUSTER + "(slot 5) (maximise (nck all 1 0 1 1))", "2 forms say slot; write (slot"),
        ("(nodes m1) (slot 0) (horizon 1) (maximise (nck all 1 0 1 1))", "slot is 0; write"),
        (CLUSTER + "(held j (m1 m1) 9)", "2 units of 'm1' are held; it has 1"),
        ("(nodes m1 m1)", "node 'm1' is repeated; name"),
        ("(node m1 -1)", "UNITS is '-1'; write a whole number from 0"),
        (
            CLUSTER + f"(maximise (max {'(nck all 1 0 1 1)' * 1000}))",
            f"max has 1000 options; give at most {MAX_OPTIONS}",
        ),
        (
            CLUSTER + f"(maximise (job j (sum {'(nck all 1 0 1 1)' * 1000})))",
            f"job 'j' has 1000 options; give at most {MAX_OPTIONS}",
        ),
    ],
)  # fmt: skip
def test_an_error_names_the_place_and_the_fix(text, said):
    with pytest.raises(StrlError) as refused:
        parse_strl(text)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
