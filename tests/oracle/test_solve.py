"""The oracle as a whole: its bounds hold, its schedules are schedules, and it always answers."""

import json
import sys
from dataclasses import replace
from itertools import count
from math import inf
from random import Random
from threading import Event, Thread
from time import perf_counter

import numpy as np
import pytest

from oracle.bounds.prices import priced_bound
from oracle.bounds.size import refuse_too_large
from oracle.bounds.slot_cells import cells_of, fitted
from oracle.errors import NoScheduleError
from oracle.problem.forms import FORMS, ProgramModel
from oracle.problem.problem import Goal, Problem, Task
from oracle.problem.slots import slotted
from oracle.run.run import LEFT_OVER, instance_of, lp_bound, run, waiting
from oracle.run.run import SolveSettings as Asked
from oracle.search.incumbent import Incumbent
from oracle.search.polish import Polish
from oracle.search.search import Search
from oracle.search.solve import Solving
from replay.logs.trace import PoolTable, Trace
from replay.run.output import write_pools, write_trace
from replay.run.run import Settings, replay_one
from replay.synthetic.paper import PRESETS, synthesize
from sia.console.errors import UserError
from sia.contract import solvers
from sia.contract.solvers import Solved, SolverError
from sia.core.playout import Arrival
from sia.events import PoolChanged
from sia.model import Job, Pool
from tests.oracle.test_forms import CLOSE, as_problem, tiny
from tests.support.budget import budget
from tests.support.builders import crowded
from tests.support.files import written
from tests.support.naive import naive_oracle
from tests.support.plugins import package, python_with
from tests.support.shell import sia

SLOT = 300.0


def solving(problem, seconds=120.0, start=None):
    return Solving(problem, FORMS["step"], perf_counter() + seconds, start).run()


def never():
    return False


def log_of(*rows):
    """Jobs of (id, pool, submit, width, duration)."""
    return Trace([Arrival(Job(i, pool, float(s), w), float(d)) for i, pool, s, w, d in rows])


TWO = PoolTable([Pool("a", 2), Pool("b", 2)])
STORY = log_of(
    ("long", "a", 10, 2, 3600), ("behind", "a", 20, 2, 600), ("b's", "b", 900, 2, 900)
)  # fmt: skip


def files_of(folder, log=STORY, table=TWO):
    write_trace(folder / "log.csv", log)
    write_pools(folder / "pools.csv", table)
    return "--trace", folder / "log.csv", "--pools", folder / "pools.csv"


def test_the_solver_finds_and_proves_the_least_cost():
    for seed in range(600, budget(ci=625, soak=680)):
        jobs, quotas, beta = tiny(seed)
        least = naive_oracle.least(jobs, quotas, beta)
        if least is None:
            with pytest.raises(NoScheduleError):
                solving(as_problem(jobs, quotas, beta))
            continue
        answer = solving(as_problem(jobs, quotas, beta))
        assert answer.status == "optimal", seed
        assert answer.cost == pytest.approx(least, abs=CLOSE), seed
        assert answer.bound <= least + CLOSE, seed


def test_a_short_horizon_only_lowers_the_bound():
    tight = 0
    seeds = budget(ci=15, soak=60)
    for seed in range(seeds):
        jobs, quotas, _ = tiny(seed)
        least = naive_oracle.least(jobs, quotas)
        if least is None:
            continue
        problem, bounds = as_problem(jobs, quotas, 0.0), []
        fitted(problem, FORMS["step"], inf, [0] * len(jobs), bounds.append, never)
        assert max(bounds) <= least + CLOSE, seed
        full = solvers.solve(ProgramModel(problem, FORMS["step"]).program, relaxed=True).bound
        tight += max(bounds) == pytest.approx(full, abs=1e-3)
    assert tight > 0.6 * seeds


def test_any_prices_give_a_bound():
    for seed in range(60):
        jobs, quotas, _ = tiny(seed)
        least = naive_oracle.least(jobs, quotas)
        problem = as_problem(jobs, quotas, 0.0)
        prices = np.random.default_rng(seed).exponential(0.3, problem.slots)
        assert least is None or priced_bound(problem, prices) <= least + 1e-9


def test_the_search_keeps_to_windows_and_capacity_and_never_gets_worse():
    rng = Random(1)
    tasks, clock = [], 0
    for i in range(60):
        clock += rng.randint(0, 2)
        width, length = rng.choice([1, 2, 4]), rng.randint(1, 12)
        tasks.append(Task(i, 0, clock, 10**4, 10**4, length, width))
    problem = Problem(tasks, [4])
    starts, free = [], 0
    for task in tasks:  # one after the other
        starts.append(max(task.release, free))
        free = starts[-1] + task.length
    search = Search(problem, starts, 1)
    search.run(1.0)
    problem.check(search.best)
    assert problem.cost(search.best) == pytest.approx(search.cost)
    assert search.cost < 0.6 * problem.cost(starts)


def test_a_program_of_some_jobs_never_makes_a_schedule_worse():
    log, table = synthesize(PRESETS["base"], 2, 0.5)
    instance = instance_of(log, table, SLOT, Goal())
    problem = instance.problems[0][1]
    alone = [task.latest for task in problem.tasks]  # FCFS's own, in each pool
    polish, starts = Polish(problem, FORMS["step"], 1), alone
    for _ in range(12):
        better = polish.better(starts, [], 5.0)
        problem.check(better)
        assert problem.cost(better) <= problem.cost(starts)
        starts = better
    assert problem.cost(starts) < 0.7 * problem.cost(alone)


def test_a_policy_that_slows_somebody_may_wait_less_than_the_bound():
    """Which is why the bound is said of schedules that slow nobody."""
    log, table = synthesize(PRESETS["fewer-wide"], 7, 0.5)
    instance = instance_of(log, table, SLOT, Goal())
    schedule = replay_one(instance.trace, table, "gssf", Settings(["gssf"]), instance.baseline)
    proven = lp_bound(instance, "step", perf_counter() + 60).bound
    assert waiting(instance.trace, schedule) < proven


def test_a_bound_of_several_groups_shares_the_time_and_says_whether_that_was_its_end(monkeypatch):
    pools = [Pool(name, 2, group=name) for name in "ab"]
    rows = [(f"{p}{i}", p, 300 * i, 2, 3000) for i in range(4) for p in "ab"]
    instance = instance_of(log_of(*rows), PoolTable(pools), SLOT, Goal())
    assert len(instance.problems) == 2
    with monkeypatch.context() as stopped:
        stopped.setattr("oracle.run.run.perf_counter", lambda: 100.0)
        assert [instance.turn(i, 110.0) for i in range(2)] == [105.0, 110.0]
    assert lp_bound(instance, "step", perf_counter() + 20.0).finished
    assert lp_bound(instance, "step", perf_counter() - 1.0) == (0.0, False, 0, 0)


@pytest.mark.parametrize("goal", [Goal(weighted=True), Goal(beta=1.0), Goal(slowdown_pct=50.0)])
def test_the_time_limit_is_kept_for_every_objective(goal):
    """With all the time in the world each of these takes minutes."""
    log, table = crowded(2, 1.0)
    began = perf_counter()
    found = run(log, table, Asked(SLOT, LEFT_OVER + 1.0, goal=goal), began)
    assert found.status == "time"
    assert perf_counter() - began < 30.0
    assert 0 < found.wait_bound <= found.wait


def test_a_bound_on_waiting_that_cannot_be_proven_costs_no_answer(monkeypatch):
    monkeypatch.setattr("oracle.run.run.prove", dies)
    found = run(STORY, TWO, Asked(SLOT, 20.0, goal=Goal(weighted=True)), perf_counter())
    assert (found.status, found.wait_bound) == ("optimal", 0.0)


def test_the_schedule_whose_starts_are_the_cutoffs_is_one_to_begin_with(monkeypatch):
    """Here the long job is last, which `sia-vc` would not have it."""
    monkeypatch.setattr("oracle.search.solve.ascend", dies)
    monkeypatch.setattr("oracle.search.solve.Search.run", lambda *_: None)
    one = PoolTable([Pool("a", 2)])
    rows = [("long", "a", 0, 2, 6000), ("x", "a", 0, 2, 300), ("y", "a", 300, 2, 300)]
    cutoffs = {"long": 600.0, "x": 0.0, "y": 300.0}
    found = run(log_of(*rows), one, Asked(SLOT, 9.0), perf_counter(), cutoffs)
    assert (found.status, found.schedule.starts) == ("failed", [600.0, 0.0, 300.0])


def test_submissions_and_durations_are_rounded_up_to_slots():
    found = slotted(
        log_of(("x", "a", 0, 1, 300), ("y", "a", 1, 1, 301), ("z", "a", 600, 1, 1)), SLOT
    )
    assert [(a.job.submit, a.duration) for a in found.arrivals] == [
        (0.0, 300.0), (300.0, 600.0), (600.0, 300.0),
    ]  # fmt: skip


@pytest.mark.parametrize("slot", [0.0, 0.5, 1.5])
def test_slots_are_whole_seconds(slot):
    with pytest.raises(UserError, match="whole number of seconds"):
        slotted(STORY, slot)


def test_a_slot_in_the_wrong_unit_is_refused():
    log = log_of(("x", "a", 0, 1, 1), ("y", "a", 10**9, 1, 1))
    with pytest.raises(UserError, match="use a longer slot"):
        slotted(log, 1.0)


def test_quotas_that_change_are_refused():
    table = PoolTable(TWO.pools, [PoolChanged(5.0, "a", 1)])
    with pytest.raises(UserError, match="quota changes"):
        instance_of(STORY, table, SLOT, Goal())


def test_a_percent_of_slowdown_is_exact():
    """In floats 29 / 100 * 100 is 28.999999999999996, and a legal slot would be refused."""
    found = [Goal(slowdown_pct=float(percent)).late(100) for percent in range(1001)]
    assert found == [*range(1001)]
    assert Goal(slowdown_pct=12.5).late(100) == 12
    assert Goal(slowdown_pct=0.1).late(1000) == 1


def test_the_slowdown_is_a_part_of_the_jct_alone_whatever_the_cutoffs():
    """Of the job behind the long one it is 14 slots; the problem begins in slot 1 of the log."""
    goal = Goal(slowdown_pct=50.0)
    for cutoffs, cutoff in ((None, 13), ({"behind": 20 * SLOT}, 20)):
        task = instance_of(STORY, TWO, SLOT, goal, cutoffs).problems[0][1].tasks[1]
        assert (task.cutoff, task.latest) == (cutoff - 1, cutoff - 1 + 7)


def test_a_cutoff_before_its_submission_is_refused():
    with pytest.raises(NoScheduleError, match="before its submission"):
        instance_of(STORY, TWO, SLOT, Goal(), {"behind": 0.0})


def test_without_a_solver_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(solvers, "_loaded", dict)
    with pytest.raises(SolverError, match="pip install highspy"):
        solving(as_problem(*tiny(1)))


def dies(*arguments, **options):
    raise SolverError("it died")


def has_none(*arguments, **options):
    return Solved("infeasible", None, inf, inf)


def hard():
    """A problem that is not solved at once, and a schedule of it."""
    log, table = crowded(2, 1.0)
    instance = instance_of(log, table, SLOT, Goal())
    problem = instance.problems[0][1]
    return problem, [task.latest for task in problem.tasks]


@pytest.mark.parametrize(
    ("where", "what"),
    [
        ("oracle.bounds.master.Lp.solve", dies),
        ("oracle.bounds.master.Lp.solve", has_none),
        ("oracle.search.solve.Polish.better", dies),
        ("oracle.search.solve.Search.run", dies),
        ("oracle.search.solve.ascend", dies),
    ],
)
def test_a_solver_that_dies_leaves_the_best_known_answer(where, what, monkeypatch):
    """In the thread or beside it, and where its tolerance lets it say that there is no schedule."""
    monkeypatch.setattr(where, what)
    monkeypatch.setattr("oracle.search.solve.LISTS", 0.05)  # searching begins before the proof ends
    monkeypatch.setattr("oracle.search.solve.ROUND", 0.05)
    problem, start = hard()
    answer = solving(problem, start=start)
    assert answer.status == "failed"
    problem.check(answer.starts)
    assert answer.bound <= answer.cost <= problem.cost(start)


def test_a_solver_that_dies_before_there_is_a_schedule_says_why(monkeypatch):
    monkeypatch.setattr("oracle.bounds.slot_cells.solve", dies)
    with pytest.raises(SolverError, match="it died"):
        solving(hard()[0])


def test_an_invalid_initial_schedule_is_ignored():
    two = Problem([Task(0, 0, 0, 9, 9, 3, 1), Task(1, 0, 0, 9, 9, 3, 1)], [1])
    for start in ([0, 2], [0, 10], [-1, 3]):  # at once, late, early
        answer = solving(two, start=start)
        assert (answer.status, answer.cost) == ("optimal", 3.0)


def test_the_schedule_of_a_solver_is_checked():
    best = Incumbent(Problem([Task(0, 0, 0, 9, 9, 3, 1), Task(1, 0, 0, 9, 9, 3, 1)], [1]))
    assert not best.offer([0, 2])
    assert best.known == (inf, None)
    assert best.offer([0, 4])
    assert not best.offer([5, 0])
    assert best.known == (4.0, [0, 4])


def test_a_cost_always_belongs_to_its_schedule():
    best, rng = Incumbent(Problem([Task(0, 0, 0, 10**5, 10**5, 1, 1)], [1])), Random(1)
    drawn = [[rng.randrange(10**5) for _ in range(budget(ci=600, soak=3000))] for _ in range(4)]
    threads = [Thread(target=lambda own=own: [best.offer([s]) for s in own]) for own in drawn]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        cost, starts = best.known
        assert starts is None or starts == [cost]
    sys.setswitchinterval(before)
    least = min(map(min, drawn))
    assert best.known == (least, [least])


def test_without_a_schedule_the_search_draws_again_and_rests_between_draws(monkeypatch):
    done, enough = [], Event()

    def finds_nothing(problem, parts, seed, seconds, stop):
        done.append(seed)
        if seed == 5:
            enough.set()

    class Ended(Event):
        def wait(self, timeout=None):
            done.append("rest")
            return super().wait(timeout and min(timeout, 0.01))

    monkeypatch.setattr("oracle.search.solve.from_parts", finds_nothing)
    monkeypatch.setattr("oracle.search.solve.Solving._with_tree", lambda *_: enough.wait(60.0))
    solving = Solving(hard()[0], FORMS["step"], perf_counter() + 120.0)
    solving._ended = Ended()
    assert solving.run().starts is None
    first = done.index(0)
    assert done[first : first + 11] == [0, "rest", 1, "rest", 2, "rest", 3, "rest", 4, "rest", 5]


def test_with_a_price_of_fairness_it_is_no_worse_than_the_search_without(monkeypatch):
    """What that finds is weighed at the price. Both try equally often: time goes by with looks."""
    problem, start = hard()
    priced = replace(problem, beta=1.0)

    def without_proof(solving):
        solving._lp_ready.set()  # nobody waits for an LP that does not come
        solving._stop.wait()

    monkeypatch.setattr("oracle.search.solve.Solving._prove", without_proof)

    def found(problem):
        looks = count()
        for module in ("oracle.search.solve", "oracle.search.search"):
            monkeypatch.setattr(f"{module}.perf_counter", lambda: 0.1 * next(looks))
        return Solving(problem, FORMS["step"], 20.0, start).run()

    plainly, fairly = found(problem), found(priced)
    assert fairly.cost <= priced.cost(plainly.starts) < priced.cost(start) / 2


def test_too_little_memory_leaves_the_best_known_answer(monkeypatch):
    def fills(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr("oracle.search.solve.ascend", fills)
    monkeypatch.setattr("oracle.search.solve.Search.run", lambda *_: None)
    problem = Problem([Task(0, 0, 0, 9, 9, 3, 1), Task(1, 0, 0, 9, 9, 3, 1)], [1])
    assert solving(problem, start=[0, 5])[:4] == ("memory", [0, 5], 5.0, 0.0)


def test_a_program_that_cannot_fit_is_refused_before_it_is_built(monkeypatch):
    found = instance_of(STORY, TWO, SLOT, Goal()).problems
    size = refuse_too_large(found, "step")
    monkeypatch.setattr("oracle.bounds.size.MAX_NONZEROS", size.nonzeros - 1)
    with pytest.raises(UserError, match="longer --slot or a shorter --window"):
        refuse_too_large(found, "step")


def test_a_time_limit_of_zero_returns_the_best_known_schedule():
    problem = Problem([Task(0, 0, 0, 9, 9, 3, 1), Task(1, 0, 0, 9, 9, 3, 1)], [1])
    answer = solving(problem, seconds=-1.0, start=[0, 5])
    assert answer == ("time", [0, 5], 5.0, 0.0, 0, 0)


def test_cbc_agrees_with_highs():
    if "cbc" not in solvers.solvers():
        pytest.skip("PuLP 4 brings no CBC")
    for seed in range(12):
        program = ProgramModel(as_problem(*tiny(seed)), FORMS["step"]).program
        ours, theirs = solvers.solve(program), solvers.solve(program, solver="cbc")
        assert ours.status == theirs.status, seed
        assert ours.cost == pytest.approx(theirs.cost, abs=CLOSE), seed


def test_cbc_returns_no_partial_schedule_when_it_is_stopped_early():
    if "cbc" not in solvers.solvers():
        pytest.skip("PuLP 4 brings no CBC")
    problem, _ = hard()
    cells = [cells_of(task, 60) for task in problem.tasks]
    model = ProgramModel(problem, FORMS["step"], cells)
    for seconds in (0.05, 0.5, 2.0):
        found = solvers.solve(model.program, seconds=seconds, solver="cbc")
        assert found.values is None or all(min(v, 1 - v) < CLOSE for v in found.values)
    assert solvers.solve(model.program, seconds=0.05, solver="cbc").values is None


def test_the_story_of_a_job_that_need_not_wait(tmp_path, checker):
    """The job behind the long one runs on b's GPUs before b needs them: alone it waits an hour."""
    out = tmp_path / "out"
    ran = sia("oracle", "solve", *files_of(tmp_path), "--time-limit", "2m", "--out", out)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith("optimal: total waiting 0 s")
    told = json.loads((out / "oracle.json").read_text())
    assert (told["status"], told["total_wait_s"], told["bound_wait_s"]) == ("optimal", 0.0, 0.0)
    assert (told["gap"], told["baseline_wait_s"], told["measures"]["slowed"]) == (0.0, 3600.0, 0)
    wrong, measures = checker(out / "trace.csv", out / "pools.csv", out, "oracle")
    assert wrong == []
    assert measures["speedup_mean"] == pytest.approx(told["measures"]["speedup_mean"])
    wrong, _ = checker(tmp_path / "log.csv", tmp_path / "pools.csv", out / "real", "oracle")
    assert wrong == []


def test_fairness_weights_and_a_slowdown_change_what_is_least(tmp_path, checker):
    out = tmp_path / "out"
    more = "--beta", "2", "--weighted", "--slowdown-pct", "10", "--slowdown-price", "3"
    ran = sia("oracle", "solve", *files_of(tmp_path), *more, "--time-limit", "2m", "--out", out)
    assert ran.returncode == 0, ran.stderr
    told = json.loads((out / "oracle.json").read_text())
    assert told["objective"] >= told["objective_bound"] > 0
    assert told["total_wait_s"] >= told["bound_wait_s"]
    assert checker(out / "trace.csv", out / "pools.csv", out, "oracle")[0] == []


def test_the_bound_can_be_computed_alone(tmp_path):
    out = tmp_path / "out"
    ran = sia("oracle", "bound", *files_of(tmp_path), "--out", out)
    assert ran.returncode == 0, ran.stderr
    told = json.loads((out / "oracle.json").read_text())
    assert (told["status"], told["bound_wait_s"], told["total_wait_s"]) == ("bound only", 0.0, None)


def test_cutoffs_can_come_from_another_schedule(tmp_path):
    cutoffs = written(tmp_path, "job_id,start\nbehind,3900\n", "cutoffs.csv")
    given = "--cutoffs", cutoffs, "--time-limit", "2m", "--out", tmp_path / "out"
    ran = sia("oracle", "solve", *files_of(tmp_path), *given)
    assert ran.returncode == 0, ran.stderr
    cutoffs.write_text("job_id,start\nbehind,soon\n")
    ran = sia("oracle", "solve", *files_of(tmp_path), *given)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "cutoffs.csv: row 2" in ran.stderr


def test_a_solver_of_another_package_is_used_if_it_ranks_first_or_is_asked_for(tmp_path):
    source = """if True:
        from sia.contract.solvers import Solved, Solver

        class Oracle(Solver):
            rank = -1

            @classmethod
            def solve(cls, program, request):
                return Solved("optimal", [0.0] * len(program.costs), 7.0, 7.0)

        class Absent(Oracle):
            @classmethod
            def available(cls):
                return False
    """
    folder = package(tmp_path, source, solvers={"delphi": "Oracle", "absent": "Absent"})
    program = """if True:
        from oracle.solver.solvers import has_highs
        from sia.program import ProgramBuilder
        from sia.contract.solvers import solve, solvers
        builder = ProgramBuilder()
        builder.binaries([5.0])
        one = builder.build()
        print(solvers()[:2], has_highs(), solve(one).cost, solve(one, solver="highs").cost)
    """
    done = python_with(folder, "-c", program)
    assert (done.stderr, done.stdout) == ("", "['delphi', 'highs'] False 7.0 0.0\n")
