"""Policies in rounds: the grid, who goes on, shares, the filter, and plans made anew."""

import pytest
from msgspec.structs import replace

from sia import Core, Job, Pool
from sia.contract.solvers import answer
from sia.core.playout import Arrival, no_solver, play
from sia.core.snapshot import dump, plain_params, restore
from sia.decisions import PreemptJob, ResizeJob, SolveProgram, StartJob
from sia.model import Options, Regime
from sia.policies import make
from sia.policies.shockwave.policy import PRESETS
from sia.policies.shockwave.shares import Gavel, MaxSteps, Ossp, ShareFacts
from tests.support.shell import digests, sia


def regimes(*parts):
    return tuple(Regime(str(config), epochs, seconds) for config, epochs, seconds in parts)


def arrival(name, seconds, at=0.0, width=1, **more):
    return Arrival(Job(name, "all", at, width, **more), seconds)


def told(label, arrivals, gpus=2, solve=no_solver, **options):
    """Return (time, what, job) of each start and stop, and the core."""
    core = Core([Pool("all", gpus)], make(label), Options(**options))
    run_times = _RunTimes(arrivals)
    seen = []
    for instant in play(core, arrivals, run_times=run_times, solve=solve):
        core.check()
        seen += [
            (instant.now, type(decision).__name__, decision.job_id)
            for decision in instant.decisions
            if isinstance(decision, StartJob | PreemptJob | ResizeJob)
        ]
    return seen


class _RunTimes:
    def __init__(self, arrivals):
        self._known = {a.job.id: a.duration for a in arrivals}

    def run_time(self, job):
        return self._known[job.id]

    def __getattr__(self, _):
        return lambda *_: []


ROUNDS = ["gavel", "gandiva-fair", "ossp", "mst", "ftf", "allox", "filter", "shockwave"]


@pytest.mark.parametrize("label", ROUNDS)
def test_a_job_that_arrives_or_ends_within_a_round_counts_from_the_next_round_on(label):
    seen = told(label, [arrival("a", 150), arrival("b", 60, at=10), arrival("c", 60, at=240)], 1)
    assert seen[0] == (0, "StartJob", "a")
    assert all(now % 120 == 0 for now, _, _ in seen)
    assert {job for _, what, job in seen if what == "StartJob"} == {"a", "b", "c"}


@pytest.mark.parametrize("label", ROUNDS)
def test_a_job_that_stays_keeps_its_gpus(label):
    assert told(label, [arrival("a", 1000), arrival("b", 1000)]) == [
        (0, "StartJob", "a"), (0, "StartJob", "b"),
    ]  # fmt: skip


@pytest.mark.parametrize("label", ROUNDS)
def test_a_job_that_must_not_be_stopped_keeps_its_gpus_in_every_round(label):
    jobs = [arrival("a", 1000, preemptible="never"), arrival("b", 200), arrival("c", 100, at=130)]
    assert (0, "StartJob", "a") in (seen := told(label, jobs, gpus=1)) or seen
    assert ("PreemptJob", "a") not in {(what, job) for _, what, job in seen}


@pytest.mark.parametrize("label", ROUNDS)
def test_a_job_is_not_stopped_before_it_has_run_for_its_least_run_time(label):
    jobs = [arrival("a", 2000, min_run_time=900.0), arrival("b", 2000, at=130, min_run_time=900.0)]
    since = {}
    for now, what, job in told(label, jobs, gpus=1):
        if what == "PreemptJob":
            assert now - since[job] >= 900
        since[job] = now


def facts(name, width, remaining, steps=1.0):
    return ShareFacts(name, width, remaining, 0.0, 0.0, steps)


class _Quota:
    quota = 4


def test_each_share_policy_reaches_its_own_objective():
    jobs = [facts("a", 1, 100, 3), facts("b", 4, 100, 4), facts("c", 4, 300, 20)]
    gavel = Gavel().divide(_Quota, jobs, {})
    assert gavel == {"a": 1.0, "b": pytest.approx(1.5 / 4), "c": pytest.approx(1.5 / 4)}
    ossp = Ossp().divide(_Quota, jobs, {})
    assert ossp == {
        name: pytest.approx(r / 425) for name, r in (("a", 100), ("b", 100), ("c", 300))
    }
    most = MaxSteps().divide(_Quota, jobs, {})
    assert most["c"] == 1.0
    assert 0 < most["b"] < most["a"] < 1e-6


@pytest.mark.parametrize(
    ("fractions", "widths"),
    [
        ("1", {"A": 2, "B": 1, "C": 1}),
        ("2/3", {"A": 2, "B": 2}),
        ("1/3", {"A": 3, "B": 1}),
    ],
)
def test_the_filter_deals_gpus_in_turn_up_to_width(fractions, widths):
    """Table 1's jobs: three elastic ones on four GPUs, in rounds of a second."""
    jobs = [
        arrival("A", 4, width=3, min_width=1), arrival("B", 4, width=2, min_width=1),
        arrival("C", 3, width=2, min_width=1),
    ]  # fmt: skip
    core = Core([Pool("all", 4)], make(f"filter:f={fractions}:round=1"))
    first = next(iter(play(core, jobs, run_times=_RunTimes(jobs))))
    started = {d.job_id: d.width for d in first.decisions if isinstance(d, StartJob)}
    own = {"A": 3, "B": 2, "C": 2}
    assert {job_id: width or own[job_id] for job_id, width in started.items()} == widths


def test_a_fixed_filter_of_all_jobs_gives_what_table_1_says():
    jobs = [
        arrival("A", 4, width=3, min_width=1), arrival("B", 4, width=2, min_width=1),
        arrival("C", 3, width=2, min_width=1),
    ]  # fmt: skip
    core = Core([Pool("all", 4)], make("filter:f=1:round=1"))
    ends = {}
    for instant in play(core, jobs, run_times=_RunTimes(jobs)):
        ends |= {e.job_id: instant.now for e in instant.events if type(e).__name__ == "JobFinished"}
    assert ends == {"A": 7, "B": 6, "C": 5}
    rho = {name: ends[name] * 4 / (work * 3) for name, work in (("A", 12), ("B", 8), ("C", 6))}
    assert max(rho.values()) == pytest.approx(1.11, abs=0.005)
    assert sum(ends.values()) / 3 == 6.0


@pytest.mark.parametrize(
    "label",
    ["filter:f=0", "filter:f=1.1", "filter:f=x", "filter:f=1/0", "filter:f=1/2*0",
     "shockwave:k=-1", "shockwave:k=nan", "shockwave:lambda=-1", "shockwave:rounds=0",
     "shockwave:predict=guess", "shockwave:draws=101", "shockwave:noise=101", "shockwave:round=0",
     "shockwave:preset=cheap", "shockwave:preset=fair:k=3", "shockwave:preset=fair:k=5",
     "gavel:round=nan"],
)  # fmt: skip
def test_options_out_of_range_are_refused_in_one_line(label):
    with pytest.raises(ValueError, match=label.split(":", maxsplit=1)[0]) as caught:
        make(label)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_k_and_lambda_and_the_window_if_it_is_not_given(name):
    k, lam, rounds = PRESETS[name]
    same = make(f"shockwave:k={k:g}:lambda={lam:g}:rounds={rounds}").params
    asked = make(f"shockwave:preset={name}").params
    assert asked.weights == same.weights == (k, lam)
    assert asked.window == same.window == rounds
    for given in (7, 20):
        assert make(f"shockwave:preset={name}:rounds={given}").params.window == given
    assert (make("shockwave").params.weights, make("shockwave").params.window) == ((5, 1), 20)


def solver(programs):
    def solve(now, asked):
        programs.append(now)
        return answer(now, asked, timed=False).event

    return solve


CHANGING = [
    Arrival(
        Job("a", "all", 0.0, 1, mode="accordion", regimes=regimes((8, 10, 30), (16, 40, 15))), 900.0
    ),
    arrival("b", 500, at=10),
    arrival("c", 500, at=20),
]


def test_a_window_is_planned_anew_when_jobs_come_end_or_change():
    eager, lazy = [], []
    told("shockwave", CHANGING, 2, solver(eager))
    told("shockwave:lazy", CHANGING, 2, solver(lazy))
    assert eager[:2] == [0, 120]
    assert set(lazy) < set(eager)
    assert len(eager) == len(lazy) + 1  # the change of a


def test_the_outlook_says_what_is_planned_what_it_would_cost_and_what_will_change():
    core = Core([Pool("all", 1)], make("shockwave"))
    parts = regimes((8, 100, 30), (16, 100, 15))
    jobs = [
        arrival("a", 4500, mode="accordion", regimes=parts), arrival("b", 5000, budget=3.0)
    ]  # fmt: skip
    for instant in play(core, jobs, run_times=_RunTimes(jobs), solve=solver([])):
        if instant.now >= 120:
            break
    a, b = (core.policy.outlook(core.state.jobs[name]) for name in "ab")
    assert (b.weight, b.place, b.jobs) == (pytest.approx(3 * b.fairness**5), 1, 2)
    assert sum(map(sum, zip(a.plan, b.plan, strict=False))) <= 20
    assert b.plan[0] == 1
    assert (a.other, b.begins, b.round) == ("b", 120.0, 120.0)
    assert a.loss > 1
    assert (a.changes_after, a.speed) == (pytest.approx(100 * 30), 2.0)
    assert b.changes_after == 0


def test_a_policy_with_drawn_trajectories_starts_all_jobs():
    seen = told("shockwave:draws=4", CHANGING, 1, solver([]))
    assert {job for _, what, job in seen if what == "StartJob"} == {"a", "b", "c"}


def test_a_short_job_that_waited_too_long_for_a_finite_weight_is_planned_all_the_same():
    jobs = [arrival("long", 9000, preemptible="never"), arrival("short", 1, at=10)]
    seen = told("shockwave:k=100", jobs, 1, solver([]))
    assert [(what, job) for _, what, job in seen] == [("StartJob", "long"), ("StartJob", "short")]


def test_a_window_that_is_used_up_is_planned_anew():
    programs = []
    told("shockwave:rounds=2", [arrival("a", 1000), arrival("b", 1000)], 1, solver(programs))
    assert programs[:4] == [0, 240, 480, 720]


def test_a_plan_shorter_than_todays_windows_is_used_up_all_the_same():
    """A snapshot may be of a version whose preset had windows of fewer rounds."""
    jobs, programs = [arrival("a", 1000), arrival("b", 1000)], []
    old = Core([Pool("all", 1)], make("shockwave:rounds=2"))
    for instant in play(old, jobs, run_times=_RunTimes(jobs), solve=solver(programs)):
        if instant.now >= 120:
            break
    today = make("shockwave:rounds=4")
    core = restore(replace(dump(old), params=plain_params(today)), today)
    assert any(isinstance(each, SolveProgram) for each in core.step(240.0, []))


@pytest.mark.parametrize("status", ["failed", "infeasible", "limit"])
def test_without_a_solver_jobs_start_all_the_same(status):
    def broken(now, asked):
        return replace(no_solver(now, asked), status=status)

    seen = told("shockwave", CHANGING, 2, broken)
    assert {job for _, what, job in seen if what == "StartJob"} == {"a", "b", "c"}


def test_a_late_answer_is_not_waited_for_longer_than_a_round():
    def slow(now, asked):
        return replace(answer(now, asked, timed=False).event, time=now + 150.0)

    seen = told("shockwave", CHANGING, 2, slow)
    assert {job for _, what, job in seen if what == "StartJob"} == {"a", "b", "c"}
    assert min(now for now, _, _ in seen) == 120


def test_a_job_with_a_larger_budget_gets_more_rounds():
    jobs = [arrival("poor", 5000), arrival("rich", 5000, budget=50.0)]
    seen = told("shockwave:lambda=0", jobs, 1, solver([]))
    assert seen[0] == (0, "StartJob", "rich")


def test_the_policy_asks_a_solver():
    core = Core([Pool("all", 1)], make("shockwave"))
    first = next(iter(play(core, [arrival("a", 100)], run_times=_RunTimes([arrival("a", 100)]))))
    assert any(isinstance(decision, SolveProgram) for decision in first.decisions)


def test_the_same_bytes_come_out_whatever_the_hash_seed(tmp_path):
    rows = [
        f"j{i},all,{i * 50},{1 + i % 3},900,{'gns' if i % 2 else 'static'},"
        + ("8:20:30;16:20:15" if i % 2 else "8:30:30")
        for i in range(12)
    ]
    head = "job_id,pool,submit,width,duration,mode,regimes"
    (tmp_path / "log.csv").write_text("\n".join([head, *rows]) + "\n")
    (tmp_path / "pools.csv").write_text("pool,quota\nall,4\n")
    found = []
    for seed in (None, "2"):  # that of this process is random
        out = tmp_path / f"out-{seed}"
        done = sia(
            "replay", "--trace", tmp_path / "log.csv", "--pools", tmp_path / "pools.csv",
            "--policy", ",".join(ROUNDS), "--no-report", "--out", out, hash_seed=seed,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found.append(digests(out))
    assert found[0] == found[1]
