"""Policy jvu: what ends are worth, when it kills, wrong estimates, and that nobody starves."""

from random import Random

import pytest
from msgspec.structs import replace

from predictors.perfect import PerfectRunTimes
from replay.run.solving import ReplaySolver
from sia import Core, Job, Pool
from sia.contract.labels import params_of
from sia.contract.solvers import SolverError
from sia.core.playout import Arrival, no_solver, play
from sia.core.snapshot import decode, dump, encode, restore
from sia.decisions import PreemptJob, SolveProgram, StartJob
from sia.limits import UNKNOWN_RUN_TIME
from sia.model import GpuNode, Options, Stream
from sia.policies import make
from sia.policies.jvu import outlook
from sia.policies.jvu.params import PRESETS, JvuParams
from sia.policies.jvu.policy import Jvu
from sia.policies.jvu.worth import JobWorth
from sia.state.nodes import NodeTable
from tests.support.budget import budget

RACKS = [
    GpuNode("m1", 1, ("gpu", "rack:r1")),
    GpuNode("m2", 1, ("gpu", "rack:r1")),
    GpuNode("m3", 1, ("rack:r2",)),
    GpuNode("m4", 1, ("rack:r2",)),
]
"""The cluster of Fig. 6."""


def test_words_that_no_node_has_are_not_kept():
    table = NodeTable(RACKS)
    for i in range(100):
        assert table.preferred(f"word{i}") == table.preferred(f"same:word{i}") == ()
    assert not table._preferred
    assert table.preferred("gpu") == (frozenset(("m1", "m2")),)
    assert table.attributes == ["gpu", "rack:r1", "rack:r2"]


def arrival(job_id, submit, width, duration, deadline=None, **wishes):
    deadline = None if deadline is None else float(deadline)
    made = Job(job_id, "a", float(submit), width, deadline=deadline, **wishes)
    return Arrival(made, float(duration))


def played(label, arrivals, gpus=4, nodes=(), estimates=None, solve=None, restarts=None, facts=()):
    """Play jobs; return (start, end or stop, killed) of every run by job."""
    options = Options(tick=5.0)
    core = Core([Pool("a", gpus)], make(label), options, nodes=nodes)
    durations = {a.job.id: a.duration for a in arrivals}
    known = PerfectRunTimes({**durations, **(estimates or {})})
    runs = {job_id: [] for job_id in durations}
    solve = solve or ReplaySolver(None, 0.0)
    for instant in play(core, arrivals, run_times=known, solve=solve, facts=facts):
        core.check()
        for event in instant.events:
            if type(event).__name__ == "JobFinished":
                runs[event.job_id][-1] += (instant.now, False)
        for decision in instant.decisions:
            if isinstance(decision, StartJob):
                runs[decision.job_id].append((instant.now,))
            elif isinstance(decision, PreemptJob):
                runs[decision.job_id][-1] += (instant.now, True)
        if restarts is not None and restarts.random() < 0.3:
            data = encode(dump(core))
            again = restore(decode(data), make(label))
            assert encode(dump(again)) == data
            assert again.policy.memory() == core.policy.memory()
    return runs


PAPER = [
    arrival("one", 0, 2, 20),
    arrival("two", 10, 2, 20, 35, prefers="same:rack", slowdown=1.5),
    arrival("three", 10, 2, 20, 35, prefers="gpu", slowdown=1.5),
]


@pytest.mark.parametrize("label", ["jvu", "jvu:p", "jvu:puo:greedy"])
def test_the_papers_example_kills_the_best_effort_job_and_runs_it_again(label):
    assert played(label, PAPER, nodes=RACKS) == {
        "one": [(0, 10, True), (30, 50, False)],
        "two": [(10, 30, False)],
        "three": [(10, 30, False)],
    }


@pytest.mark.parametrize("label", ["jvu", "jvu:p:delay=5"])
def test_a_plan_that_counts_as_large_decides_as_one_that_has_all_choices(label, monkeypatch):
    exact = played(label, PAPER, nodes=RACKS)
    monkeypatch.setattr(outlook, "MOST_COLUMNS", 0)
    assert played(label, PAPER, nodes=RACKS) == exact


def test_two_small_jobs_that_outweigh_one_kill_take_its_place():
    jobs = [arrival("old", 0, 4, 1000), arrival("a", 10, 2, 10), arrival("b", 10, 2, 10)]
    runs = played("jvu:p", jobs)
    assert runs["old"][0] == (0, 10, True)
    assert runs["a"] == runs["b"] == [(10, 20, False)]


def test_a_job_of_unknown_run_time_is_planned_to_end_at_an_unknown_time():
    core = Core([Pool("a", 4)], make("jvu"), Options(tick=5.0))
    jobs = [arrival("a", 0, 1, 50), arrival("b", 0, 1, 50, deadline=60)]
    known = PerfectRunTimes({"a": UNKNOWN_RUN_TIME, "b": UNKNOWN_RUN_TIME})
    said = {
        decision.reason
        for instant in play(core, jobs, run_times=known, solve=ReplaySolver(None, 0.0))
        for decision in instant.decisions
        if isinstance(decision, StartJob)
    }
    assert said == {"planned now, to end at an unknown time"}


def test_without_kills_one_deadline_is_missed():
    runs = played("jvu:base", PAPER, nodes=RACKS)
    assert runs["one"] == [(0, 20, False)]
    assert runs["two"] == [(10, 30, False)]
    assert runs["three"] == [(35, 55, False)]  # worth nothing between 15 and its deadline


def test_gpus_of_a_killed_job_become_free_after_the_delay():
    runs = played("jvu:p:delay=5", PAPER, nodes=RACKS)
    assert runs["one"][0] == (0, 10, True)
    assert runs["three"] == [(15, 35, False)]


def test_decisions_are_made_at_multiples_of_the_cycle():
    runs = played("jvu:puo:cycle=4", [arrival("one", 1, 4, 6), arrival("two", 2, 4, 6)])
    assert runs == {"one": [(4, 10, False)], "two": [(12, 18, False)]}


def test_of_equal_plans_the_one_that_starts_soonest_is_chosen():
    runs = played("jvu", [arrival("one", 0, 2, 20, 500), arrival("two", 0, 2, 20, 500)])
    assert runs == {"one": [(0, 20, False)], "two": [(0, 20, False)]}


def test_the_soonest_plan_is_found_although_it_is_worth_a_millionth_more_in_2500():
    jobs = [
        arrival("long", 0, 3, 10, 15, value=2),
        arrival("short", 0, 3, 5, 15),
        arrival("wide", 0, 4, 12, 29),
        arrival("narrow", 0, 1, 3, 9.5, value=500),
    ]
    runs = played("jvu:base:ahead=30", jobs)
    assert [runs[job_id][0][0] for job_id in ("short", "long", "wide")] == [0, 5, 15]


def test_best_effort_jobs_run_beside_jobs_with_deadlines():
    jobs = [arrival(f"slo{i}", 0, 1, 50, 60) for i in range(60)]
    runs = played("jvu", [*jobs, arrival("small", 0, 1, 5)], gpus=61)
    assert runs["small"] == [(0, 5, False)]


@pytest.mark.parametrize(("label", "killed"), [("jvu:pu", True), ("jvu:p", False)])
def test_exponential_growth_detects_an_underestimated_job_sooner(label, killed):
    """At 95 the first is expected to end at 175, or else at 100, its deadline."""
    jobs = [arrival("first", 0, 4, 400, 100), arrival("second", 10, 4, 40, 137)]
    runs = played(label, jobs, estimates={"first": 20})
    assert runs["first"][0][2] is killed


def test_an_overestimated_job_is_tried_although_it_seems_too_late():
    jobs = [arrival("slo", 0, 4, 50, 60)]
    late = {"slo": 100}
    assert played("jvu:pu", jobs, estimates=late)["slo"] == [(60, 110, False)]
    assert played("jvu:puo", jobs, estimates=late)["slo"] == [(0, 50, False)]


def test_a_stop_costs_what_the_job_states():
    urgent = arrival("slo", 50, 4, 20, 80)
    for cost, ends in ((None, 170), ("restart", 170), (10.0, 130)):
        runs = played("jvu:p", [arrival("best", 0, 4, 100, preemptible=cost), urgent])
        assert runs["best"] == [(0, 50, True), (70, ends, False)]
    runs = played("jvu:p", [arrival("best", 0, 4, 100, preemptible="never"), urgent])
    assert runs["best"] == [(0, 100, False)]


def test_with_l_the_work_lost_by_a_kill_counts_too():
    jobs = [
        arrival("long", 0, 4, 90000, value=None),
        arrival("slo", 40000, 4, 20, 40100, value=20),
    ]
    assert len(played("jvu:puo", jobs)["long"]) == 2
    assert len(played("jvu:puol", jobs)["long"]) == 1


def test_a_wide_job_does_not_starve_behind_narrow_ones():
    narrow = [arrival(f"n{i}", 10 * i, 1, 40) for i in range(100)]
    runs = played("jvu:puo:greedy:patience=200", [arrival("wide", 1, 4, 10), *narrow])
    assert runs["wide"][0][0] < 500


def test_no_job_starves_when_estimates_are_far_too_short():
    narrow = [arrival(f"n{i}", 10 * i, 1, 40, 10 * i + 45) for i in range(80)]
    short = {f"n{i}": 0.1 for i in range(80)}
    runs = played(
        "jvu:base:greedy:patience=100", [arrival("wide", 1, 4, 10), *narrow], estimates=short
    )
    assert runs["wide"][0][0] < 400


@pytest.mark.parametrize("label", ["jvu:puo:greedy:patience=50", "jvu:puo:patience=50"])
def test_an_overdue_job_keeps_others_back_only_where_it_may_run(label):
    """Two nodes of four are of the attribute that it waits for, and busy; the others are not."""
    runs = played(
        label,
        [
            arrival("busy", 0, 2, 1000, prefers="gpu"),
            arrival("late", 1, 2, 10, prefers="gpu"),
            arrival("also", 400, 2, 300, prefers="gpu"),
            arrival("plain", 500, 2, 900),
            arrival("wide", 501, 3, 10),
        ],
        nodes=RACKS,
    )
    assert runs["late"][0][0] == 1000
    assert runs["plain"][0][0] == 500
    assert runs["also"][0][0] == 1010
    assert runs["wide"][0][0] > 1000, "it would take a node for which another waits"


def test_nothing_is_solved_while_nothing_changes():
    asked = []

    def counting(now, request, solve=ReplaySolver(None, 0.0)):  # noqa: B008  one for all
        asked.append(now)
        return solve(now, request)

    played("jvu", [arrival("one", 0, 4, 1000), arrival("two", 3, 4, 10)], solve=counting)
    assert len(asked) < 8


@pytest.mark.parametrize("label", ["jvu:puo", "jvu:base", "jvu:puol:delay=7", "jvu:puo:greedy"])
def test_jobs_start_without_a_solver_and_random_stories_keep_all_invariants(label):
    for seed in range(budget(ci=3, soak=100)):
        rng = Random(seed)
        jobs = []
        for i in range(12):
            submit, duration = rng.randint(0, 200), rng.randint(1, 90)
            deadline = rng.choice([None, submit + int(duration * rng.uniform(1, 2.5))])
            prefers = rng.choice(["", "", "gpu", "same:rack", "rack:r2"])
            slowdown = rng.choice([None, 1.0, 1.5]) if prefers else None
            jobs.append(arrival(
                f"j{i}", submit, rng.randint(1, 2 if prefers else 4), duration, deadline,
                prefers=prefers, slowdown=slowdown,
                preemptible=rng.choice([None, None, 5.0, "restart", "never"]),
            ))  # fmt: skip
        jobs.sort(key=lambda each: each.job.submit)
        wrong = {each.job.id: each.duration * rng.choice([0.3, 1, 2]) for each in jobs}
        solve = no_solver if seed == 0 else ReplaySolver(None, rng.choice([0.0, 2.0, 6.0]))
        runs = played(
            f"{label}:nodes=3:iterations=300",
            jobs,
            nodes=RACKS,
            estimates=wrong,
            solve=solve,
            restarts=rng,
        )
        for each in jobs:
            assert not runs[each.job.id][-1][2]
            killed = [run for run in runs[each.job.id] if run[2]]
            assert not killed or (each.job.preemptible != "never" and "p" in label[4:8])


def test_a_restart_during_a_solve_changes_no_decision():
    arrivals = [arrival("one", 0, 4, 30), arrival("two", 2, 4, 20, 40), arrival("three", 3, 2, 9)]

    def story(restart):
        core = Core([Pool("a", 4)], Jvu(), Options(tick=5.0))
        known = PerfectRunTimes({a.job.id: a.duration for a in arrivals})
        starts = []
        for instant in play(core, arrivals, run_times=known, solve=ReplaySolver(None, 1.0)):
            if restart and any(isinstance(d, SolveProgram) for d in instant.decisions):
                other = restore(decode(encode(dump(core))), Jvu())
                core.policy.resume(core.state, other.policy.memory())
            starts += [(instant.now, d) for d in instant.decisions if isinstance(d, StartJob)]
        return starts

    assert story(restart=True) == story(restart=False)
    assert len(story(restart=True)) > 3


def test_the_value_of_an_end_follows_from_deadline_and_class():
    worth = JobWorth(JvuParams("puo"))
    slo, best = Job("s", "a", 0, 1, deadline=100), Job("b", "a", 0, 1)
    assert [worth.end(slo, end, 0) for end in (50, 100, 150, 200, 300)] == [1000, 1000, 500, 0, 0]
    assert worth.end(slo, 300, 100) == pytest.approx(1 - 0.99 * 200 / 3600)
    assert worth.end(slo, 150, 120) == 500  # the tail is still there
    assert JobWorth(JvuParams("pu")).end(slo, 101, 0) == 0
    assert JobWorth(JvuParams("pu")).end(slo, 101, 100) == pytest.approx(1, abs=1e-3)
    assert [worth.end(best, end, 0) for end in (0, 3600, 10**6)] == pytest.approx([1, 0.01, 0.01])


@pytest.mark.parametrize(
    ("label", "said"),
    [
        ("jvu:pux", "write letters of puol, each once, or base (got 'pux')"),
        ("jvu:pp", "write letters of puol, each once"),
        ("jvu:cycle=0", "cycle must be above 0 (got 0)"),
        ("jvu:cycle=nan", "cycle"),
        ("jvu:greedy:global", "write greedy or global, not both"),
        ("jvu:ahead=1:cycle=5", "ahead must be at least one cycle"),
        ("jvu:cycle=1e-9", "cycle must be at least 0.1"),
        ("jvu:ahead=1e6", "ahead must be at most 20000 cycles; raise cycle, or lower ahead"),
        ("jvu:dely=5", "jvu has no option 'dely'"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(label, said):
    with pytest.raises(ValueError, match=r"^jvu") as refused:
        make(label)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_names_options_and_a_label_keeps_its_name(preset):
    named = make(f"jvu:preset={preset}:cycle=10")
    alone = make(":".join(["jvu", *(f"{k}={v}" for k, v in PRESETS[preset].items()), "cycle=10"]))
    assert named._options == alone._options == alone.params
    assert named.params.preset == preset


def test_what_a_preset_sets_is_not_set_besides():
    with pytest.raises(ValueError, match="preset gentle sets kills; leave out either"):
        make("jvu:preset=gentle:kills=3")


@pytest.mark.parametrize(
    ("label", "has"),
    [
        ("jvu:preset=no-kills:puo", "no-kills sets features; leave .* \\(which has uo, not puo\\)"),
        ("jvu:puo:preset=no-kills", "no-kills sets features"),
        ("jvu:preset=no-kills:base", "no-kills sets features"),
        ("jvu:preset=gentle:puo", "gentle sets features"),
        ("jvu:preset=gentle:kills=5", "gentle sets kills"),
        ("jvu:preset=deadlines:patience=14400", "deadlines sets patience"),
    ],
)
def test_what_contradicts_a_preset_is_refused_also_if_it_is_the_usual_value(label, has):
    with pytest.raises(ValueError, match=rf"^{label}: preset {has}"):
        make(label)


def test_letters_and_options_that_agree_with_the_preset_may_stay():
    for label in ("jvu:preset=no-kills:uo", "jvu:ou:preset=no-kills", "jvu:preset=balanced:pu"):
        assert set(make(label)._options.letters) <= set("uop")
        assert ("p" in make(label)._options.letters) is ("no-kills" not in label)
    assert make("jvu:preset=gentle:puol:kills=1")._options == make("jvu:preset=gentle")._options


def test_with_early_a_job_that_seems_too_late_uses_idle_gpus_but_only_those():
    """An estimate of 200 s is beyond deadline + (deadline - submission), where `o` is worth 0."""
    late = {"slo": 200}
    jobs = [arrival("slo", 0, 4, 50, 60)]
    assert played("jvu:puo", jobs, estimates=late)["slo"] == [(60, 110, False)]
    assert played("jvu:puo:early", jobs, estimates=late)["slo"] == [(0, 50, False)]
    for mode in ("greedy", "global"):
        both = [*jobs, arrival("sure", 0, 4, 50, 60)]
        runs = played(f"jvu:puo:early:{mode}", both, estimates=late)
        assert runs["sure"] == [(0, 50, False)], "a deadline that can be met comes first"
        kept = [arrival("best", 0, 4, 500), arrival("slo", 5, 4, 50, 65)]
        runs = played(f"jvu:puo:early:{mode}", kept, estimates={"slo": 200})
        assert runs["best"][0] == (0, 500, False), "nothing is killed for it"


def test_early_changes_no_value_before_the_tail_is_over():
    slo = Job("s", "a", 0, 1, deadline=100)
    early, usual = (JobWorth(JvuParams("puo", early=each)) for each in (True, False))
    ends = (50, 100, 150, 199)
    assert [early.end(slo, end, 0) for end in ends] == [usual.end(slo, end, 0) for end in ends]
    assert early.end(slo, 300, 0) == usual.end(slo, 300, 100) == pytest.approx(0.945)
    assert usual.end(slo, 300, 0) == 0


def test_a_snapshot_of_a_release_without_an_option_is_restored():
    core = Core([Pool("a", 4)], make("jvu:cycle=10"), Options(tick=5.0))
    old = dump(core)
    less = {key: value for key, value in old.params.items() if key != "early"}
    assert restore(replace(old, params=less), make("jvu:cycle=10")).policy.params.cycle == 10
    with pytest.raises(ValueError, match="the snapshot is of Jvu with options"):
        restore(replace(old, params=less), make("jvu:cycle=10:early"))
    with pytest.raises(ValueError, match="the snapshot is of Jvu with options"):
        restore(replace(old, params={**less, "kills": "x"}), make("jvu:cycle=10"))


def test_the_label_takes_letters_flags_and_numbers():
    params = params_of("jvu:puol:cycle=5:ahead=600:delay=0:greedy", JvuParams)
    assert (params.letters, params.cycle, params.greedy) == ("puol", 5.0, True)
    assert params_of("jvu:base:global", JvuParams).letters == ""
    assert make("jvu").params.letters == "puo"


def test_a_solver_that_is_not_installed_is_named():
    with pytest.raises(SolverError, match="solver nobody: not installed; use one of"):
        ReplaySolver("nobody", 0.0)


# Pools that lend


def of(pool, job_id, submit, width, duration, deadline=None, **wishes):
    each = arrival(job_id, submit, width, duration, deadline, **wishes)
    return Arrival(replace(each.job, pool=pool), each.duration)


def needed(core):
    """GPUs for the pending jobs that fit in what is left of their pools' quotas."""
    found = 0
    for pool in core.state.pools.values():
        room = pool.quota - pool.dedicated
        pending = [j for j in core.state.jobs.values() if j.pool is pool and j.stream is None]
        for job in sorted(pending, key=lambda j: (j.job.deadline is None, j.sequence)):
            if job.width <= room:
                room -= job.width
                found += job.width
    return found


def lent(label, arrivals, quotas=(4, 4), estimates=None, solve=None):
    """Play jobs of pools a, b, …; return the runs as `played` does.

    No guest starts on GPUs that an owner's job waits for, and none waits where all can be killed.
    """
    pools = [Pool("abc"[i], quota) for i, quota in enumerate(quotas)]
    core = Core(pools, make(label), Options(tick=5.0, owners=True))
    known = PerfectRunTimes({a.job.id: a.duration for a in arrivals} | (estimates or {}))
    runs = {a.job.id: [] for a in arrivals}
    for instant in play(core, arrivals, run_times=known, solve=solve or ReplaySolver(None, 0.0)):
        core.check()
        for event in instant.events:
            if type(event).__name__ == "JobFinished":
                runs[event.job_id][-1] += (instant.now, False)
        guests = 0
        for decision in instant.decisions:
            if isinstance(decision, StartJob):
                runs[decision.job_id].append((instant.now,))
                guests += core.state.jobs[decision.job_id].stream is Stream.SPARE
            elif isinstance(decision, PreemptJob):
                runs[decision.job_id][-1] += (instant.now, True)
        (group,) = core.state.groups
        if guests:
            assert group.idle >= needed(core), instant.now
        if instant.decisions and instant.now % 5.0 == 0.0 and label.startswith("jvu:puo:greedy"):
            assert not needed(core), instant.now
    return runs


@pytest.mark.parametrize("label", ["jvu", "jvu:puo:greedy"])
def test_many_guests_with_deadlines_do_not_outbid_one_owner(label):
    """Twelve kills cost 12,120, and twelve deadlines are worth 12,000."""
    running = [of("a", f"g{i}", 0, 1, 300, 320) for i in range(24)]
    waiting = [of("a", f"w{i}", 5, 1, 60, 70) for i in range(12)]
    owner = of("b", "owner", 5, 12, 50)
    assert lent(label, [*running, *waiting, owner], (12, 12))["owner"] == [(5, 55, False)]


def test_a_guest_of_great_value_and_an_owner_whose_deadline_is_far_off():
    guest = of("a", "guest", 0, 8, 30, 31, value=1e5)
    runs = lent("jvu", [guest, of("b", "owner", 5, 4, 50, 5000)])
    assert (runs["guest"][0], runs["owner"]) == ((0, 5, True), [(5, 55, False)])


def test_a_pool_that_uses_its_quota_outbids_no_owner_with_its_deadlines():
    jobs = [of("a", "old", 0, 4, 100), of("a", "slo", 5, 4, 50, 60), of("b", "owner", 5, 4, 50)]
    runs = lent("jvu", jobs)
    assert runs["owner"] == [(5, 55, False)]
    assert runs["old"][0] == (0, 5, True), "its own pool's job makes room"
    assert runs["slo"] == [(5, 55, False)]


def test_without_kills_no_guest_starts_where_an_owner_waits():
    guests = [of("a", f"g{i}", 10 * i, 1, 100, 10 * i + 120) for i in range(30)]
    runs = lent("jvu:uo", [*guests, of("b", "owner", 55, 4, 50)])
    assert runs["owner"] == [(150, 200, False)], "when the two guests that had begun have ended"


def test_a_guest_that_waited_beyond_the_patience_keeps_no_owner_back():
    old = of("a", "wide", 1, 8, 50)
    owners = [of("b", f"o{i}", 20 * i, 2, 30) for i in range(30)]
    for each in lent("jvu:puo:patience=60", [owners[0], old, *owners[1:]]).items():
        if each[0].startswith("o"):
            assert each[1][0][0] == 20 * int(each[0][1:])


@pytest.mark.parametrize("label", ["jvu:puo", "jvu:uo", "jvu:puol:delay=7", "jvu:puo:greedy"])
def test_random_stories_of_pools_that_lend(label):
    for seed in range(budget(ci=3, soak=100)):
        rng, jobs = Random(seed), []
        for i in range(14):
            submit, duration = 5 * rng.randint(0, 30), rng.randint(1, 90)
            deadline = rng.choice([None, submit + int(duration * rng.uniform(1, 2.5))])
            jobs.append(of(
                rng.choice("ab"), f"j{i}", submit, rng.randint(1, 4), duration, deadline,
                value=None if deadline is None else rng.choice([None, 1.0, 5e4]),
            ))  # fmt: skip
        jobs.sort(key=lambda each: each.job.submit)
        wrong = {each.job.id: each.duration * rng.choice([0.3, 1, 2]) for each in jobs}
        lent(f"{label}:nodes=3:iterations=300:kills=100", jobs, (5, 3), wrong)
