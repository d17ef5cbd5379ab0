"""The selector's plans against every possible plan; Proposition 1; bounds and lists."""

import json
from itertools import product
from random import Random

import pytest

from sia.contract.solvers import solve
from sia.model import Job
from sia.policies.chronus.iterations import run_seconds
from sia.policies.chronus.leases.claims import (
    Claim,
    first_lease,
    lease_cost,
    leases_before,
    leases_needed,
)
from sia.policies.chronus.leases.laxity import by_laxity
from sia.policies.chronus.leases.lists import fitted, is_impossible, least, listed, quality
from sia.policies.chronus.leases.programs import (
    LeaseGoal,
    choices,
    lease_program,
    target_program,
)
from sia.policies.chronus.leases.repair import made_room, rearranged
from sia.policies.chronus.leases.selection import Selection
from sia.policies.chronus.leases.sizes import NodeSizes
from sia.policies.chronus.placing.placement import Nodes, PlacedJob, consolidated
from tests.support.budget import budget
from tests.support.naive import naive_leases
from tests.support.shell import sia

ROUNDS = budget(ci=36, soak=2000)


def drawn(rng, node=8):
    """A few jobs that compete, as (width, needed, steps)."""
    jobs = []
    for _ in range(rng.randint(1, 4)):
        needed = rng.randint(1, 3)
        ends = sorted(rng.sample(range(1, 6), rng.randint(1, 3)))
        steps = [*zip(ends, (100.0, 80.0, 20.0), strict=False)]
        jobs.append((rng.choice([1, 2, 3, 4, 6, 8, node, node + 1]), needed, tuple(steps)))
    return jobs


def as_log(jobs, rng, cost, lease=600):
    """Write jobs that need so many leases: some end before their last one, some state a cost.

    Deadlines and later steps lie up to half a lease behind the lease by whose end they are due.
    """
    rows = ["job_id,pool,submit,width,duration,deadline,soft,preemptible"]
    for number, (width, needed, steps) in enumerate(jobs):
        own = rng.choice(["", "0", "150"])
        usable = lease - (float(own or cost))
        ends = [within * lease + rng.choice([0, 0, lease / 2]) for within, _ in steps]
        soft = "+".join(
            f"{end / ends[0]!r}:{reward:g}"
            for end, (_, reward) in zip(ends[1:], steps[1:], strict=True)
        )
        remains = needed * usable - rng.choice([0, 0, 1, usable / 2])
        rows.append(f"j{number},p,0,{width},{remains},{ends[0]},{soft},{own}")
    return "\n".join(rows) + "\n"


def solved(log, gpus, *options):
    done = sia("chronus", "solve", "--trace", log, "--gpus", gpus, "--json", *options)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_the_plan_is_the_best_of_all_plans(seed, tmp_path):
    rng = Random(seed)
    jobs = drawn(rng)
    gpus, node = rng.choice([(8, 8), (16, 8), (12, 8), (8, 0)])
    cost = rng.choice([0, 0, 60])
    (tmp_path / "log.csv").write_text(as_log(jobs, rng, cost))
    rounding = ("--resume-cost", f"{cost}s", *(() if node else ("--no-round-up",)))
    found = solved(tmp_path / "log.csv", gpus, "--lease", "10m", "--now", "0", *rounding)
    kept = naive_leases.admitted(jobs, gpus, node)
    assert [i for i, job in enumerate(found["jobs"]) if job["guaranteed"]] == kept
    reward, delay, order, _ = naive_leases.best([jobs[i] for i in kept], gpus, node)
    assert found["objective"] == pytest.approx(-reward)
    assert found["soonest"] == delay
    assert [sum(found["jobs"][i]["leases"]) for i in kept] == order
    for i in kept:
        leases = found["jobs"][i]["leases"]
        assert len(leases) == jobs[i][1]
        assert found["jobs"][i]["step"] == naive_leases.step_of(jobs[i], leases)


def claims_of(jobs, sizes, renews=()):
    return [
        Claim(f"j{i}", sizes.uses(width), needed, steps, i in renews)
        for i, (width, needed, steps) in enumerate(jobs)
    ]


def chosen(claims, room):
    """What a selection comes to; None without a plan."""
    selection = Selection.of(claims, room, None)
    if selection is None:
        return None
    while (asked := selection.question) is not None:
        selection.take(solve(asked[0].program, start=asked[1]).values or ())
    return selection.plan


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_on_nodes_of_6_no_plan_has_more_jobs_of_a_size_than_fit(seed):
    rng = Random(seed)
    jobs = drawn(rng, node=6)
    sizes = NodeSizes(12, 6)
    claims = claims_of(jobs, sizes)
    expected = naive_leases.best(jobs, 12, 6)
    if expected is None:
        assert listed(claims, sizes.room) is None
        return
    assert not is_impossible(claims, sizes.room)
    bound = least(claims, sizes.room)
    assert bound[:2] <= expected[:2]
    plan = chosen(claims, sizes.room)
    if plan is not None:
        assert quality(claims, plan)[:2] == pytest.approx(expected[:2])


def naive_impossible(claims, gpus):
    """Look at every lease: the GPUs that jobs need until then, as they cannot make up for it."""
    if any(c.leases > c.last or c.gpus > gpus for c in claims):
        return True
    return any(
        sum(c.gpus * max(0, c.leases - max(0, c.last - d)) for c in claims) > gpus * d
        for d in range(1 + max(c.last for c in claims))
    )


def test_what_is_impossible_is_seen_at_the_leases_where_jobs_begin_or_end():
    rng, found = Random(1), set()
    for _ in range(300):
        claims = [
            Claim(str(n), (rng.randint(1, 5),), rng.randint(1, 4), ((rng.randint(1, 9), 100.0),))
            for n in range(rng.randint(1, 6))
        ]
        expected = naive_impossible(claims, 4)
        assert is_impossible(claims, (4,)) is expected
        found.add(expected)
    assert found == {True, False}


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_room_is_made_only_where_a_plan_exists_and_all_meet_their_last_steps(seed):
    rng = Random(seed)
    jobs = drawn(rng) + drawn(rng)[:2]
    gpus = rng.choice([8, 16])
    sizes = NodeSizes(gpus)
    claims = claims_of(jobs, sizes)
    *others, more = claims
    can = next(naive_leases.plans(jobs, gpus, 8), None) is not None
    before = fitted(others, sizes.room)
    plans = [by_laxity(claims, sizes.room)]
    if before is not None:
        plans.append(made_room(others, sizes.room, before, more))
    for plan in plans:
        if plan is None:
            continue
        assert can
        assert plan.keys() == {claim.job_id for claim in claims}
        for claim in claims:
            leases = plan[claim.job_id]
            assert list(leases) == sorted(set(leases))
            assert len(leases) == claim.leases
            assert leases[-1] < claim.last
            assert all(
                sum(c.gpus for c in claims if k in plan[c.job_id]) <= gpus for k in leases
            )  # fmt: skip


def least_lax_first(claims, room):
    """Lease by lease: those with the least laxity get it, wider ones and earlier ones first."""
    missed, had, k = [0] * len(claims), [[] for _ in claims], 0
    waiting = [*range(len(claims))]
    while waiting:
        laxity = {n: claims[n].last - claims[n].leases - missed[n] for n in waiting}
        left = [*room]
        for n in sorted(waiting, key=lambda n: (laxity[n], -claims[n].gpus, n)):
            fits = all(use <= free for use, free in zip(claims[n].uses, left, strict=True))
            if not fits and laxity[n] <= 0:
                return None
            if fits:
                left = [free - use for use, free in zip(claims[n].uses, left, strict=True)]
                had[n].append(k)
            else:
                missed[n] += 1
        waiting = [n for n in waiting if len(had[n]) < claims[n].leases]
        k += 1
    return {claim.job_id: tuple(leases) for claim, leases in zip(claims, had, strict=True)}


@pytest.mark.parametrize("seed", range(budget(ci=100, soak=10_000)))
def test_a_plan_by_laxity_is_that_of_giving_one_lease_after_the_other(seed):
    rng = Random(seed)
    room = (rng.choice([8, 16, 48]), rng.randint(2, 8))[: rng.choice([1, 1, 2])]
    claims = []
    for number in range(rng.randint(1, 14)):
        needed, uses = rng.randint(1, 8), (rng.choice([1, 1, 2, 4, 8]), rng.randint(0, 2))
        last = needed + rng.randint(0, 15)
        claims.append(Claim(f"j{number}", uses[: len(room)], needed, ((last, 100.0),)))
    assert by_laxity(claims, room) == least_lax_first(claims, room)


def test_a_job_moves_to_a_later_lease_for_one_that_cannot_wait():
    calm = [Claim(name, (4,), 1, ((9, 100.0),)) for name in ("a", "b")]
    urgent = Claim("urgent", (8,), 1, ((1, 100.0),))
    before = {"a": (0,), "b": (0,)}
    assert made_room(calm, (8,), before, urgent) == {"a": (1,), "b": (1,), "urgent": (0,)}
    assert before == {"a": (0,), "b": (0,)}


def test_others_keep_the_steps_that_they_meet_where_that_leaves_room():
    soft = [
        Claim(name, (4,), 1, ((within, 100.0), (9, 50.0))) for name, within in (("a", 2), ("b", 1))
    ]
    before = {"a": (0,), "b": (0,)}
    urgent = Claim("urgent", (4,), 1, ((1, 100.0),))
    assert rearranged(soft, (8,), before, urgent) == {"a": (1,), "b": (0,), "urgent": (0,)}
    wide = Claim("urgent", (8,), 1, ((1, 100.0),))
    assert rearranged(soft, (8,), before, wide) == {"a": (1,), "b": (1,), "urgent": (0,)}
    alone = Claim("urgent", (8,), 2, ((2, 100.0),))
    assert rearranged(soft, (8,), before, alone) == {"a": (2,), "b": (2,), "urgent": (0, 1)}


def test_least_laxity_plans_what_no_list_of_jobs_does():
    claims = [
        Claim("long", (1,), 2, ((3, 100.0),)),
        Claim("short", (1,), 2, ((3, 100.0),)),
        Claim("other", (1,), 2, ((3, 100.0),)),
    ]
    assert fitted(claims, (2,)) is None
    assert by_laxity(claims, (2,)) == {"long": (0, 1), "short": (0, 2), "other": (1, 2)}


@pytest.mark.parametrize("seed", range(ROUNDS))
def test_steps_alone_give_a_bound_and_large_selections_the_most_reward(seed, monkeypatch):
    monkeypatch.setattr("sia.policies.chronus.leases.selection.MOST_LEASES", 0)
    rng = Random(seed)
    jobs, sizes = drawn(rng), NodeSizes(16)
    expected = naive_leases.best(jobs, 16, 8)
    if expected is None:
        return
    claims = claims_of(jobs, sizes)
    program = target_program(claims, sizes.room)
    last = sum(claim.steps[-1][1] for claim in claims)
    cost = solve(program.program).cost if program.program.costs else 0.0
    assert last - cost >= -expected[0] - 1e-6
    plan = fitted(claims, sizes.room) or by_laxity(claims, sizes.room)
    selection = Selection.of(claims, sizes.room, plan)
    if selection is None:
        return
    while (asked := selection.question) is not None:
        selection.take(solve(asked[0].program, start=asked[1]).values or ())
    assert quality(claims, selection.plan)[0] == pytest.approx(expected[0])


def test_a_selection_among_more_leases_than_a_solver_can_search_asks_for_steps_alone(monkeypatch):
    for name in ("MOST_LEASES", "MOST_ASKED"):
        monkeypatch.setattr(f"sia.policies.chronus.leases.selection.{name}", 0)
    one = Claim("one", (8,), 1, ((1, 100.0), (3, 50.0)))
    other = Claim("other", (8,), 1, ((1, 100.0), (3, 20.0)))
    selection = Selection.of([one, other], (8,), {"one": (1,), "other": (0,)})
    assert selection.goal is LeaseGoal.STEPS
    selection.take(())
    assert selection.question is None
    assert selection.plan == {"one": (1,), "other": (0,)}


def test_deadlines_far_ahead_make_no_large_programs():
    far = 10**12
    claims = [Claim(name, (3,), 2, ((4, 100.0), (far, 50.0))) for name in ("a", "b", "c")]
    assert not is_impossible(claims, (4,))
    program = lease_program(claims, (4,), LeaseGoal.REWARD)
    assert [count for _, count in program.leases] == [6, 6, 6]
    assert choices(claims) == 18
    plan = {"a": (0, 1), "b": (2, 3), "c": (4, 5)}
    assert program.plan_of(claims, program.values_of(claims, plan)) == plan
    assert program.values_of(claims, {**plan, "c": (4, 7)}) == ()


def test_a_job_with_later_steps_makes_room_for_one_without():
    soft = Claim("soft", (8,), 2, ((2, 100.0), (9, 50.0)))
    strict = Claim("strict", (8,), 2, ((3, 100.0),))
    assert listed([soft, strict], (8,)) is None
    assert fitted([soft, strict], (8,)) == {"strict": (0, 1), "soft": (2, 3)}


def test_three_jobs_of_4_do_not_fit_on_two_nodes_of_6():
    sizes = NodeSizes(12, 6)
    jobs = [(4, 1, ((1, 100.0),))] * 3
    assert listed(claims_of(jobs, sizes), sizes.room) is None
    assert listed(claims_of(jobs[:2], sizes), sizes.room) is not None
    assert sum(sizes.rounded(4) for _ in jobs) <= sizes.gpus, "Proposition 1 would allow them"


def test_friendly_jobs_that_fit_by_their_gpus_fit_on_the_fewest_nodes():
    """Proposition 1, over all counts of sizes on three nodes of 8."""
    nodes = Nodes((8, 8, 8), (8, 8, 8))
    for wholes, fours, twos, ones in product(range(4), range(7), range(0, 13, 2), range(0, 25, 3)):
        widths = [8] * wholes + [4] * fours + [2] * twos + [1] * ones
        if sum(widths) > 24:
            continue
        jobs = [PlacedJob(str(i), width) for i, width in enumerate(reversed(widths))]
        placed, _ = consolidated(jobs, nodes)
        assert len(placed) == len(jobs), (wholes, fours, twos, ones)
        assert all(len(place) == 1 for place in placed.values())


def test_sizes_are_1_2_4_or_whole_nodes():
    assert [NodeSizes(64).rounded(width) for width in (1, 2, 3, 4, 5, 8, 9, 17)] == [
        1, 2, 4, 4, 8, 8, 16, 24,
    ]  # fmt: skip
    assert [NodeSizes(60, 6).rounded(width) for width in (3, 5, 6, 7)] == [4, 6, 6, 12]
    assert NodeSizes(64, round_up=False).rounded(5) == 5


def test_of_equal_plans_the_one_that_renews_most_gpus_is_chosen():
    sizes = NodeSizes(8)
    jobs = [(8, 1, ((3, 100.0),)), (8, 1, ((3, 100.0),))]
    claims = claims_of(jobs, sizes, renews={1})
    assert chosen(claims, sizes.room) == {"j0": (1,), "j1": (0,)}
    assert chosen(claims_of(jobs, sizes), sizes.room) == {"j0": (0,), "j1": (1,)}


def test_a_plan_is_feasible_wherever_the_present_leases_lie():
    assert leases_needed(2400.0, 1200.0, 0.0) == 2
    assert leases_needed(2400.0, 1200.0, 30.0) == 3
    assert leases_needed(2340.0, 1200.0, 30.0) == 2
    job = Job("a", "p", 100.0, 1, deadline=2500.0, soft=((1.5, 20.0),))
    assert leases_before(job.steps, 0.0, 1200.0) == ((2, 100.0), (3, 20.0))
    assert leases_before(job.steps, 1200.0, 1200.0) == ((1, 100.0), (2, 20.0))
    assert first_lease(0.0, 1200.0) == 0
    assert first_lease(5.0, 1200.0) == 1
    assert first_lease(2400.0, 1200.0) == 2
    assert lease_cost(Job("a", "p", 0.0, 1, preemptible=9.0), 30.0) == 9.0
    assert lease_cost(Job("a", "p", 0.0, 1), 30.0) == 30.0
    assert lease_cost(Job("a", "p", 0.0, 1, preemptible="restart"), 30.0) > 1e300


def test_run_times_follow_from_trials_on_one_node_and_on_two():
    assert run_seconds(1.0, 1.5, 8, 8, 100) == 100.0
    assert run_seconds(1.0, 1.5, 16, 8, 100) == 150.0
    assert run_seconds(1.0, 1.5, 32, 8, 100) == 200.0
    assert run_seconds(1.0, 0.5, 32, 8, 100) == 100.0, "a faster second node is noise"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--lease", "0"), "--lease: must be above 0"),
        (("--resume-cost", "20m"), "going on costs 1200 s, a lease is 1200 s"),
    ],
)
def test_bad_input_is_one_line_with_the_mend(tmp_path, options, problem):
    (tmp_path / "log.csv").write_text("job_id,pool,submit,width,duration,deadline\na,p,0,1,60,99\n")
    done = sia("chronus", "solve", "--trace", tmp_path / "log.csv", "--gpus", "8", *options)
    assert done.returncode == 2
    assert problem in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_text_says_which_jobs_have_no_deadline(tmp_path):
    rows = ["job_id,pool,submit,width,duration,deadline", "a,p,0,1,60,99", "b,p,0,1,60,"]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    done = sia("chronus", "solve", "--trace", tmp_path / "log.csv", "--gpus", "8")
    lines = ["a: not guaranteed", "b: not guaranteed: it has no deadline"]
    assert done.stdout.splitlines()[1:] == lines


def test_the_text_says_why_a_job_cannot_have_leases(tmp_path):
    rows = ["job_id,pool,submit,width,duration,deadline,preemptible",
            "long,p,0,1,1e14,2e14,", "never,p,0,1,60,1e6,never"]  # fmt: skip
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    done = sia("chronus", "solve", "--trace", tmp_path / "log.csv", "--gpus", "8", "--lease", "1s")
    assert done.stdout.splitlines()[1:] == [
        "long: not guaranteed: it would need more than 20,000 leases",
        "never: not guaranteed: a stop would cost it all its work, or is not allowed",
    ]


def test_ties_among_too_many_leases_are_left(tmp_path):
    rows = ["job_id,pool,submit,width,duration,deadline"]
    rows += [f"{name},p,0,4,19000,1e14" for name in "abc"]
    (tmp_path / "log.csv").write_text("\n".join(rows) + "\n")
    done = sia("chronus", "solve", "--trace", tmp_path / "log.csv", "--gpus", "8", "--lease", "1s")
    assert done.stdout.count(": guaranteed, step 0, leases") == 3


def test_a_run_time_that_is_no_number_any_more_is_refused():
    trials = ("--t1", "1e308", "--gpus", "8", "--iterations", "20")
    done = sia("chronus", "estimate", *trials, "--json")
    assert done.returncode == 2
    assert done.stderr == "sia: --iterations: the run time is too long for a number; give fewer\n"
