"""Earliest deadline first, and the capacity scheduler, on loads small enough to follow."""

import pytest

from replay.logs.trace import PoolTable, Trace
from replay.run.run import Settings, replay_one
from sia.core.playout import Arrival
from sia.model import Job, Pool


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
