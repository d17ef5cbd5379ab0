"""Earliest deadline first, and the capacity scheduler, on loads small enough to follow."""

import pytest

from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from sia.core.playout import Arrival
from sia.model import GpuNode, Job, Pool
from sia.policies.deadlines.outcomes import Outcomes, chance_to_last
from sia.state.speeds import SpeedRow


def starts(label, *jobs, gpus=4):
    """Starts and ends of jobs (id, submit, width, duration, deadline) under a policy."""
    arrivals = [Arrival(Job(n, "p", at, w, deadline=due), run) for n, at, w, run, due in jobs]
    table = PoolTable([Pool("p", gpus)])
    found = replay_one(Trace(arrivals), table, label, Settings([label]), None)
    return dict(
        zip((job[0] for job in jobs), zip(found.starts, found.ends, strict=True), strict=True)
    )


def test_edf_starts_pending_jobs_by_deadline_and_skips_those_that_do_not_fit():
    found = starts(
        "edf",
        ("runs", 0.0, 3, 100.0, 900.0),
        ("late", 1.0, 2, 50.0, 800.0),
        ("soon", 2.0, 2, 50.0, 300.0),
        ("slim", 3.0, 1, 20.0, 999.0),
    )
    assert found["runs"] == (0.0, 100.0), "a running job stays, whatever its deadline"
    assert found["slim"] == (3.0, 23.0)
    assert found["soon"] == found["late"] == (100.0, 150.0)


def test_edf_stops_best_effort_jobs_for_deadlines_and_resumes_them_later():
    found = starts("edf", ("free", 0.0, 4, 100.0, None), ("due", 10.0, 4, 50.0, 500.0))
    assert found == {"free": (0.0, 150.0), "due": (10.0, 60.0)}


def test_in_the_capacity_scheduler_each_of_two_quotas_is_blocked_by_its_first_job():
    found = starts(
        "yarn-cs:slo=75",
        ("due", 0.0, 2, 100.0, 900.0),
        ("head", 1.0, 2, 50.0, 900.0),
        ("behind", 2.0, 1, 50.0, 900.0),
        ("free", 3.0, 1, 30.0, None),
        ("next", 4.0, 1, 30.0, None),
    )
    assert found["head"][0] == 100.0
    assert found["behind"][0] == 100.0, "it would fit, but the head blocks"
    assert (found["free"][0], found["next"][0]) == (3.0, 33.0)


def test_a_job_wider_than_its_quota_never_starts_and_blocks_nobody():
    found = starts("yarn-cs:slo=50", ("wide", 0.0, 3, 10.0, 99.0), ("slim", 1.0, 1, 10.0, 99.0))
    assert found == {"wide": (None, None), "slim": (1.0, 11.0)}


@pytest.mark.parametrize("label", ["yarn-cs:slo=101", "chronus:lease=1000:be=300"])
def test_options_out_of_bounds_are_refused(label):
    with pytest.raises(KeyError):
        Settings([]).choice(label)


def test_3sigma_decides_every_minute_and_stops_only_best_effort_jobs():
    found = starts(
        "3sigma",
        ("free", 0.0, 4, 1000.0, None),
        ("due", 10.0, 3, 300.0, 500.0),
        ("more", 70.0, 4, 100.0, 500.0),
    )
    assert found["due"] == (60.0, 360.0), "it takes the GPUs of the best-effort job"
    assert found["more"] == (360.0, 460.0), "a running job with a deadline is never stopped"
    assert found["free"] == (0.0, 1420.0), "it goes on at the cycle after 460"


def test_3sigma_starts_first_what_is_in_time_only_now():
    found = starts(
        "3sigma",
        ("runs", 0.0, 4, 100.0, 200.0),
        ("late", 1.0, 4, 100.0, 500.0),
        ("soon", 2.0, 4, 100.0, 240.0),
    )
    assert found["soon"] == (120.0, 220.0)
    assert found["late"] == (240.0, 340.0)


def test_3sigma_learns_how_much_longer_jobs_took_than_they_said():
    outcomes = Outcomes()
    for ratio in (0.5, 1.0, 1.5, 2.0):
        outcomes.add(Job("j", "p", 0.0, 1, "ann"), 100.0, 100.0 * ratio)
    ratios = outcomes.of(Job("k", "p", 0.0, 1, "bob"))
    assert ratios == [0.5, 1.0, 1.5, 2.0]
    assert chance_to_last(ratios, 0.0, 1.2) == 0.5
    assert chance_to_last(ratios, 1.0, 1.6) == 0.5
    assert chance_to_last(ratios, 3.0, 3.1) == 0.0


def test_genie_takes_the_least_laxity_first_and_as_few_gpus_as_are_in_time():
    found = starts(
        "genie",
        ("runs", 0.0, 4, 100.0, 100.0),
        ("lax", 1.0, 4, 100.0, 900.0),
        ("tight", 2.0, 4, 100.0, 330.0),
        ("free", 3.0, 1, 10.0, None),
    )
    assert found["tight"] == (100.0, 300.0), "on 2 of 4 GPUs"
    assert found["lax"][0] == 100.0
    assert found["lax"][1] == 500.0, "on 1 GPU"
    assert found["free"] == (100.0, 110.0)


def test_genie_lets_jobs_that_cannot_be_in_time_wait_for_those_that_can():
    found = starts(
        "genie",
        ("runs", 0.0, 4, 100.0, None),
        ("hopeless", 1.0, 4, 100.0, 150.0),
        ("able", 2.0, 4, 100.0, 210.0),
    )
    assert (found["able"], found["hopeless"]) == ((100.0, 200.0), (200.0, 300.0))


def test_genie_runs_a_late_job_on_what_there_is_if_it_could_use_more():
    late = Job("late", "p", 10.0, 2, deadline=20.0, min_width=1, max_width=9)
    trace = Trace([Arrival(late, 100.0)])
    found = replay_one(trace, PoolTable([Pool("p", 4)]), "genie", Settings(["genie"]), None)
    assert found.ends == [60.0]


@pytest.mark.parametrize("label", ["edf", "yarn-cs:slo=100", "3sigma", "genie", "las"])
def test_rivals_run_on_nodes_at_the_speed_of_their_place(label):
    """The second job finds 1 GPU on one node and 2 on another, where its model is half as fast."""
    arrivals = [
        Arrival(Job("a", "p", 0.0, 3, deadline=9000.0, min_width=3), 600.0),
        Arrival(Job("b", "p", 0.0, 3, deadline=9000.0, model="vgg", min_width=3), 600.0),
    ]
    nodes = (GpuNode("n0", 4), GpuNode("n1", 4, free=2))
    settings = Settings([label], nodes=nodes, speeds=(SpeedRow("vgg", 4, 2, 0.5),))
    found = replay_one(Trace(arrivals), PoolTable([Pool("p", 6)]), label, settings, None)
    places = {segment.job_id: dict(segment.nodes) for segment in found.segments or ()}
    places = places or {"a": dict(found.nodes[0]), "b": dict(found.nodes[1])}
    assert (len(places["a"]), len(places["b"])) == (1, 2)
    assert found.ends == [600.0, 1200.0]


def test_only_the_users_whose_jobs_ended_last_are_remembered(monkeypatch):
    monkeypatch.setattr("sia.policies.deadlines.outcomes.MOST_USERS", 2)
    outcomes = Outcomes()
    for user in ("ann", "bob", "ann", "eve"):
        outcomes.add(Job("j", "p", 0.0, 1, user), 100.0, 150.0)
    assert set(outcomes.kept) == {"ann", "eve", ""}
    assert len(outcomes.kept[""]) == 4


def test_a_solve_that_takes_longer_than_a_cycle_does_not_stop_3sigma():
    """Each answer comes two cycles later; all jobs start all the same."""
    jobs = [Job(f"j{i}", "p", 0.0, 3, deadline=4000.0 + i) for i in range(4)]
    trace = Trace([Arrival(job, 100.0) for job in jobs])
    settings = Settings(["3sigma"], solver_latency=130.0)
    found = replay_one(trace, PoolTable([Pool("p", 4)]), "3sigma", settings, None)
    assert None not in found.ends
