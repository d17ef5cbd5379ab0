"""The plan that is kept between submissions, against one that is made anew for each question."""

from random import Random

import pytest

from sia.policies.chronus.leases.claims import Claim
from sia.policies.chronus.leases.lists import joined
from sia.policies.chronus.standing import StandingPlan
from tests.support.budget import budget

ROOM = (16, 3)


def job(rng, number):
    """A job of up to four GPUs that may also need one of the places."""
    needed = rng.randint(1, 4)
    uses = (rng.randint(1, 4), rng.randint(0, 1))
    return Claim(f"j{number}", uses, needed, ((needed + rng.randint(0, 8), 100.0),))


@pytest.mark.parametrize("seed", range(budget(ci=20, soak=1000)))
def test_jobs_come_change_and_go_and_the_same_leases_are_free_as_in_a_new_plan(seed):
    rng, kept = Random(seed), StandingPlan((), ROOM, (), {})
    for number in range(60):
        more = job(rng, number)
        plan = joined([*kept.claims.values()], ROOM, kept.plan, more)
        leases = kept.find(more)
        assert leases == (None if plan is None else plan[more.job_id])
        assert leases is None or not kept.is_hopeless(more)
        if leases is not None:
            kept.put(more, leases)
            assert kept.find_later(more) is not None
        elif kept.claims:
            kept.drop(rng.choice([*kept.claims]))
        if kept.claims and rng.random() < 0.3:  # a job has worked for one of its leases meanwhile
            claim = kept.claims[rng.choice([*kept.claims])]
            if claim.leases > 1:
                one_less = claim._replace(leases=claim.leases - 1)
                kept.put(one_less, kept.plan[claim.job_id][:-1])
        assert kept.holds


def test_a_job_with_too_few_or_late_leases_or_without_room_is_noticed():
    kept, job = StandingPlan((), (4,), (), {}), Claim("a", (4,), 2, ((3, 100.0),))
    kept.put(job, (0, 1))
    assert kept.holds
    kept.put(job, (0,))
    assert not kept.holds
    kept.put(job, (0, 3))
    assert not kept.holds
    kept.put(job, (0, 2))
    kept.put(job._replace(job_id="b"), (1, 2))
    assert not kept.holds
    kept.drop("b")
    assert kept.holds
    assert kept.is_hopeless(job._replace(leases=4))
    assert kept.is_hopeless(job._replace(uses=(5,)))
