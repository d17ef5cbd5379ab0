"""At first sight a job is told facts, and none that the trials contradict."""

import pytest
from msgspec.structs import replace

from daemon.answers.explain.wording import needed
from sia import Core
from sia.events import JobSubmitted
from sia.explain.explain import explain
from sia.explain.glance import glance
from sia.explain.obstacles import (
    EarlyObstacle,
    GuestObstacle,
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
from sia.model import Stream
from sia.policies.sia.policy import Sia
from sia.policies.sia.recall import SiaRecall
from tests.sia.test_why import ALL, random_state
from tests.support import builders
from tests.support.budget import budget
from tests.support.builders import SMALL, pools
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
def test_trials_do_not_contradict_the_quick_look(policy):
    for core, job in waiting_jobs(policy, budget(ci=9, soak=150)):
        seen = {way.name: way for way in glance(core.policy, job).ways}
        tried = explain(core, job)
        assert [way.name for way in tried.ways] == [*seen]
        for way in tried.ways:
            assert way.open is seen[way.name].open
            if way.exact and not way.obstacles and not policy.needs.preemption:
                lacking = (QuotaObstacle, RoomObstacle, LimitObstacle, Out, Width)
                assert not isinstance(seen[way.name].obstacles, lacking)


def assert_fact(core, job, each):  # noqa: C901  one for each kind of obstacle
    pool, group = job.pool, job.pool.group
    needs, _ = core.policy.widths(job)
    match each:
        case OrderObstacle():
            assert 0 < each.jobs < len(pool.waiting())
        case GuestObstacle():
            assert core.state.jobs[each.first].stream is Stream.SPARE
            assert core.state.jobs[each.first].sequence < job.sequence
        case QuotaObstacle():
            assert pool.dedicated + needs == pool.quota + each.short
            assert not each.ends
        case RoomObstacle():
            assert needs == group.idle + each.short
        case LimitObstacle():
            assert group.limited
        case Out():
            assert each.gpus == group.out > 0
        case EarlyObstacle():
            assert job.job.priority < each.priority
        case Length():
            assert job.run_time > each.longest
        case Width():
            assert needs > each.most
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


def test_the_quick_look_sees_reservations_of_other_pools():
    held = 0
    for core, job in waiting_jobs(Sia, 150):
        ways = glance(core.policy, job).ways
        kinds = Reservation | OtherPools
        held += any(isinstance(each, kinds) for way in ways for each in way.obstacles)
    assert held > 5


def test_a_head_behind_a_guest_of_its_own_pool_waits_for_the_guest():
    """The guest is too wide for what is left of the quota, and keeps its place before the head."""
    core = Core(pools(a=4, b=4), SiaRecall(), SMALL)
    guest = builders.job("guest").gpus(3).runs(1000)
    guest = guest._replace(job=replace(guest.job, preemptible=0))
    for i, each in enumerate(
        (builders.job("own").gpus(3).runs(1000), guest, builders.job("head").runs(1e12))
    ):
        core.step(float(i), [JobSubmitted(float(i), each.job, each.duration)])
    assert core.state.jobs["guest"].stream is Stream.SPARE
    head = core.state.jobs["head"]
    (within, _) = glance(core.policy, head).ways
    assert within.obstacles == (GuestObstacle(1, 3, "guest"),)
    tried = explain(core, head)
    assert (tried.exact, tried.obstacles) == (True, (GuestObstacle(1, 3, "guest"),))
    assert needed(tried, core.state.now)[0] == (
        "Waiting for its pool's guest guest to end: placed before it (3 GPUs)"
    )
