"""Policies that plan with a solver, in a replay."""

from pathlib import Path

import pytest

from replay.run.solving import ReplaySolver
from sia import Core
from sia.contract.plugins import PluginError
from sia.contract.policy import Needs, Policy
from sia.contract.proposals import Start
from sia.contract.solvers import answer
from sia.core import playout
from sia.core.playout import Arrival, play
from sia.decisions import SolveProgram, StartJob
from sia.events import ProgramSolved
from sia.limits import MAX_ANSWERS
from sia.model import Job, Pool, Stream
from sia.program import SolveLimit
from tests.support import knapsack
from tests.support.knapsack import Knapsack
from tests.support.plugins import package, sia_with
from tests.support.programs import hard, request

pytestmark = pytest.mark.usefixtures("blank_pictures")

POOL = Pool("a", 5)
JOBS = [
    Arrival(Job("one", "a", 0.0, 1), 100.0),
    Arrival(Job("two", "a", 0.0, 2), 100.0),
    Arrival(Job("three", "a", 0.0, 3), 100.0),
]


def starts(solve, arrivals=JOBS, policy=None):
    core, found = Core([POOL], policy or Knapsack()), {}
    for now, _, decisions in play(core, arrivals, solve=solve):
        core.check()
        found.update({d.job_id: now for d in decisions if isinstance(d, StartJob)})
    return found


def test_the_answer_comes_at_the_same_instant():
    assert starts(ReplaySolver(None, 0.0)) == {"two": 0.0, "three": 0.0, "one": 100.0}


def test_a_latency_passes_in_time_of_the_log():
    assert starts(ReplaySolver(None, 7.0)) == {"two": 7.0, "three": 7.0, "one": 114.0}


def test_without_a_solver_the_policy_goes_on_without_a_plan():
    core, found = Core([POOL], Knapsack()), {}
    for now, _, decisions in play(core, JOBS):
        found.update({d.job_id: now for d in decisions if isinstance(d, StartJob)})
    assert found == {"one": 0.0, "two": 0.0, "three": 100.0}


def test_a_newer_request_replaces_an_unanswered_one():
    class Impatient(Knapsack):
        def propose(self, now, changes):
            self.is_open = False
            yield from super().propose(now, changes)

    seen = []
    solver = ReplaySolver(None, 7.0)
    late = [*JOBS[:2], Arrival(Job("three", "a", 5.0, 3), 100.0)]
    core = Core([POOL], Impatient())
    for _, events, decisions in play(core, late, solve=solver):
        seen += [each for each in (*events, *decisions) if hasattr(each, "request")]
    kinds = [(type(each), each.request) for each in seen]
    assert kinds[:4] == [
        (SolveProgram, 1), (SolveProgram, 2), (ProgramSolved, 2), (SolveProgram, 3)
    ]  # fmt: skip


def test_a_planner_that_asks_for_ever_does_not_keep_the_replay_from_ending(monkeypatch):
    monkeypatch.setattr(playout, "MAX_IDLE_WAKES", 200)

    class Restless(Knapsack):
        limit = Knapsack.limit
        round = 10.0

        def propose(self, now, changes):
            yield from super().propose(now, changes)
            if not self.is_open:
                self.asked, self.is_open = [], True
                yield knapsack.Solve(request().program, self.limit)

        def solved(self, answer):
            self.is_open = False

    never = [Arrival(Job("wide", "a", 0.0, 9), 100.0)]
    solver = ReplaySolver(None, 3.0)
    assert starts(solver, never, Restless()) == {}
    assert 100 < solver.solved < 600


def test_a_planner_that_asks_again_at_each_answer_does_not_stop_time():
    class Insatiable(Policy):
        needs = Needs(solver=True)
        asks = True

        def propose(self, now, changes):
            for job in [*self.state.jobs.values()]:
                if job.stream is None:
                    yield Start(job, Stream.DEDICATED, "it fits")
            if self.asks and self.state.jobs:
                self.asks = False
                yield knapsack.Solve(request().program, Knapsack.limit)

        def solved(self, answer):
            self.asks = True

    asked = []

    def at_once(now, request):
        asked.append(now)
        return ProgramSolved(now, request.request, "failed")

    core = Core([POOL], Insatiable())
    job = Arrival(Job("one", "a", 0.0, 1), 1000.0)
    seen = {instant.now for instant in play(core, [job], solve=at_once)}
    assert core.state.options.tick == 300.0
    assert seen == {0.0, 300.0, 600.0, 900.0, 1000.0, 1200.0}
    assert max(asked.count(now) for now in seen) == MAX_ANSWERS + 1


@pytest.mark.parametrize(
    "limit", [SolveLimit(1e-9, 3, 10**9), SolveLimit(1e-9, 10**9, 500), SolveLimit(1e-9, 1, 1)]
)
def test_a_limit_on_work_stops_at_the_same_point_each_time(limit):
    asked = request(1, hard(60, 12), limit)
    first, again = (answer(5.0, asked, timed=False) for _ in range(2))
    assert first == again
    assert first.event.status in ("feasible", "limit")
    assert first.event.time == 5.0


def test_a_program_without_a_solution_is_told_apart():
    builder = knapsack.ProgramBuilder()
    builder.binaries([1.0, 1.0])
    builder.row({0: 1.0, 1: 1.0}, low=3.0)
    assert answer(0.0, request(1, builder.build()), timed=False).event.status == "infeasible"


def test_an_unknown_solver_is_an_error_before_the_replay():
    with pytest.raises(PluginError, match=r"solver highz: .* Did you mean 'highs'\?"):
        ReplaySolver("highz", 0.0)


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    source = Path(knapsack.__file__).read_text()
    folder = tmp_path_factory.mktemp("plugin")
    return package(folder, source, policies={"knapsack": "Knapsack"})


def written(folder):
    (folder / "log.csv").write_text(
        "job_id,pool,submit,width,duration\none,a,0,1,100\ntwo,a,0,2,100\nthree,a,0,3,100\n"
    )
    (folder / "pools.csv").write_text("pool,quota\na,5\n")
    return "--trace", folder / "log.csv", "--pools", folder / "pools.csv", "--no-report"


def test_sia_replay_runs_a_policy_of_another_package_with_a_solver(plugin, tmp_path):
    asked = "replay", *written(tmp_path), "--policy", "knapsack", "--solver-latency", "7s"
    outs = [tmp_path / "first", tmp_path / "again"]
    for out in outs:
        done = sia_with(plugin, *asked, "--out", out)
        assert done.returncode == 0, done.stderr
    jobs = [(out / "knapsack" / "jobs.csv").read_bytes() for out in outs]
    assert jobs[0] == jobs[1]
    assert b"two,a,0.0,2,7.0,107.0," in jobs[0]
    assert b'"programs": ' in (outs[0] / "summary.json").read_bytes()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--policy", "knapsack", "--solver", "highz"), "solver highz: not installed; use one of"),
        (("--policy", "ssf", "--solver", "highs"), "--solver has no effect"),
        (("--policy", "ssf", "--solver-latency", "2s"), "--solver-latency has no effect"),
    ],
)
def test_misuse_of_the_solver_options_is_one_line(plugin, tmp_path, options, says):
    done = sia_with(plugin, "replay", *written(tmp_path), *options, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert says in done.stderr


def test_sia_experiment_takes_the_time_of_each_solve_and_continues_with_the_same_alone(
    plugin, tmp_path
):
    log = [*written(tmp_path)[:4], "--size", "1", "--keep", "--warmup", "0"]
    asked = "experiment", *log, "--policy", "knapsack", "--out", tmp_path / "out"
    done = sia_with(plugin, *asked, "--solver-latency", "7s")
    assert done.returncode == 0, done.stderr
    jobs = tmp_path / "out" / "runs" / "000" / "knapsack" / "jobs.csv"
    assert b"two,a,0.0,2,7.0,107.0," in jobs.read_bytes()
    again = sia_with(plugin, *asked, "--solver-latency", "8s")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "--solver-latency" in again.stderr


def test_sia_experiment_refuses_solver_options_without_effect(plugin, tmp_path):
    log = [*written(tmp_path)[:4], "--size", "1", "--out", tmp_path / "out"]
    done = sia_with(plugin, "experiment", *log, "--policy", "ssf", "--solver", "highs")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--solver has no effect" in done.stderr
