"""At first sight a job is told what it lacks, and nothing that is not so."""

import pytest

from sia.explain.why import (
    Length,
    LimitObstacle,
    OrderObstacle,
    OtherPools,
    Out,
    QuotaObstacle,
    RoomObstacle,
    Width,
)
from sia.policies.sia.policy import Sia
from sia.policies.sia.vc import SiaVc
from tests.sia.test_why import random_state
from tests.support.cores import POLICIES, photograph


@pytest.mark.parametrize("policy", [p for p in POLICIES if p is not SiaVc])
def test_what_is_seen_at_a_glance_is_so(policy):
    seen = set()
    for seed in range(40):
        _, core = random_state(policy, seed)
        if core is None:
            continue
        before = photograph(core)
        for job in [job for job in core.state.jobs.values() if job.stream is None]:
            said = core.policy.glance(job)
            for each in [each for way in said.ways for each in way.obstacles]:
                seen.add(type(each))
                so(core, job, each)
            assert not said.exact
        assert photograph(core) == before
    assert {RoomObstacle if policy.shares else QuotaObstacle, Width} <= seen


def so(core, job, each):
    pool, group = job.pool, job.pool.group
    match each:
        case OrderObstacle():
            assert 0 < each.jobs < len(pool.waiting())
        case QuotaObstacle():
            assert pool.dedicated + job.width == pool.quota + each.short
            assert not each.ends
        case RoomObstacle():
            assert job.width == group.idle + each.short
        case LimitObstacle():
            assert group.limited
        case Out():
            assert each.gpus == group.out > 0
        case Length():
            assert job.run_time > each.longest
        case Width():
            assert job.width > each.most
        case OtherPools():
            window = core.state.options.windows.index(each.window)
            assert each.held <= sum(core.policy._held[pool][window] for pool in group.pools)
            assert each.pools < len(group.pools)
        case _:
            raise AssertionError(each)


def test_for_whom_gpus_are_held_back_is_seen_at_a_glance():
    held = 0
    for seed in range(150):
        _, core = random_state(Sia, seed)
        for job in core.state.jobs.values() if core else ():
            if job.stream is None:
                ways = core.policy.glance(job).ways
                held += any(isinstance(each, OtherPools) for way in ways for each in way.obstacles)
    assert held > 5
