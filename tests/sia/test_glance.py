"""At first sight a job is told facts, and none that the trials contradict."""

import pytest

from sia.explain.explain import explain
from sia.explain.glance import glance
from sia.explain.obstacles import (
    Length,
    LimitObstacle,
    OrderObstacle,
    OtherPools,
    Out,
    QuotaObstacle,
    Reservation,
    RoomObstacle,
    Width,
)
from sia.policies.sia.policy import Sia
from tests.sia.test_why import ALL, random_state
from tests.support.cores import photograph


def waiting_jobs(policy, seeds):
    for seed in range(seeds):
        _, core = random_state(policy, seed)
        for job in [job for job in core.state.jobs.values() if job.stream is None] if core else ():
            yield core, job


@pytest.mark.parametrize("policy", ALL)
def test_a_quick_look_states_only_facts(policy):
    seen = set()
    for core, job in waiting_jobs(policy, 40):
        before = photograph(core)
        said = glance(core.policy, job)
        assert photograph(core) == before
        assert not said.exact
        for each in [each for way in said.ways for each in way.obstacles]:
            seen.add(type(each))
            assert_fact(core, job, each)
    assert {RoomObstacle if policy.shares else QuotaObstacle} <= seen


@pytest.mark.parametrize("policy", ALL)
def test_trials_do_not_contradict_what_is_seen_at_first_sight(policy):
    for core, job in waiting_jobs(policy, 15):
        seen = {way.name: way for way in glance(core.policy, job).ways}
        tried = explain(core, job)
        assert [way.name for way in tried.ways] == [*seen]
        for way in tried.ways:
            assert way.open is seen[way.name].open
            if way.exact and not way.obstacles and not policy.needs.preemption:
                lacking = (QuotaObstacle, RoomObstacle, LimitObstacle, Out, Width)
                assert not isinstance(seen[way.name].obstacles, lacking)


def assert_fact(core, job, each):
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
        case Reservation():
            window = core.state.options.windows.index(each.window)
            assert each.gpus == core.policy.plan[group].held[core.state.pools[each.pool]][window]
        case OtherPools():
            window = core.state.options.windows.index(each.window)
            assert each.held <= sum(
                core.policy.plan[group].held[pool][window] for pool in group.pools
            )
            assert each.pools < len(group.pools)
        case _:
            raise AssertionError(each)


def test_reservations_of_other_pools_are_seen_at_first_sight():
    held = 0
    for core, job in waiting_jobs(Sia, 150):
        ways = glance(core.policy, job).ways
        kinds = Reservation | OtherPools
        held += any(isinstance(each, kinds) for way in ways for each in way.obstacles)
    assert held > 5
