"""Why a job waits is tried: once what is named is taken away, the next pass starts the job."""

from random import Random

import pytest
from msgspec.structs import replace

from predictors.perfect import PerfectLoads, PerfectRunTimes
from sia import Core, Pool, Stream
from sia.core.playout import play
from sia.decisions import StartJob
from sia.events import (
    ForecastUpdated,
    GpusOut,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    LendingSwitched,
    PoolChanged,
    PriorityChanged,
    RunTimesUpdated,
)
from sia.explain import explain as explaining
from sia.explain.explain import explain
from sia.explain.obstacles import (
    EarlyObstacle,
    EndingJob,
    GuestObstacle,
    Length,
    LimitObstacle,
    OrderObstacle,
    OtherPools,
    Out,
    QuotaObstacle,
    Reservation,
    Rival,
    RoomObstacle,
    StartPath,
    Width,
)
from sia.limits import UNLIMITED
from sia.model import Estimate, Load
from sia.policies.elastic.fifo import ElasticFifo
from sia.policies.elastic.srtf import ElasticSrtf
from sia.policies.queues.fcfs import Fcfs
from sia.policies.queues.mmfs import MaxMin
from sia.policies.queues.ssf import Ssf
from sia.policies.sia.policy import Sia
from sia.policies.sia.recall import SiaRecall
from tests.support.budget import budget
from tests.support.builders import SMALL, job, limited, pools, random_workload, revealed
from tests.support.cores import POLICIES, PREEMPTING, photograph

ALL = [*POLICIES, *PREEMPTING, SiaRecall]


def others_of(asked):
    return [pool for pool in asked.pool.group.pools if pool is not asked.pool]


def jobs_gone(core, asked, obstacle):
    """Jobs that have ended, or were cancelled, once an obstacle is taken away."""
    pools, rank = core.state.pools, core.policy.rank
    match obstacle:
        case OrderObstacle():
            ahead = [job for job in asked.pool.waiting() if rank(job) < rank(asked)]
            assert len(ahead) == obstacle.jobs
            return ahead
        case GuestObstacle():
            guests = core.policy.guests_before(asked)
            assert sum(job.width for job in guests) == obstacle.gpus
            return guests
        case QuotaObstacle() | RoomObstacle():
            return [core.state.jobs[each.job] for each in obstacle.ends]
        case Rival() | Reservation(load=0):
            return pools[obstacle.pool].waiting()
        case OtherPools():
            return [waiting for other in others_of(asked) for waiting in other.waiting()]
    return []


def changes(core, asked, obstacle):  # noqa: PLR0911  one for each kind
    """What else has changed then."""
    now, pools, windows = core.state.now, core.state.pools, range(len(core.state.options.windows))

    def lifted(pool, **limits):
        return PoolChanged(now, pool.name, pool.quota, **limits)

    match obstacle:
        case Reservation(waiting=0):
            return [ForecastUpdated(now, [Load(obstacle.pool, i, 0) for i in windows])]
        case OtherPools():
            loads = [Load(other.name, i, 0) for other in others_of(asked) for i in windows]
            return [ForecastUpdated(now, loads)]
        case LimitObstacle(kind="lend" | "borrow"):
            lenders = [pools[obstacle.pool]] if obstacle.pool else others_of(asked)
            return [lifted(pool, **{f"{obstacle.kind}_limit": UNLIMITED}) for pool in lenders]
        case LimitObstacle() | Out():
            off = isinstance(obstacle, Out)
            return [GpusOut(now, asked.pool.name, 0) if off else LendingSwitched(now, on=True)]
        case EarlyObstacle():
            return [PriorityChanged(now, asked.job.id, obstacle.priority)]
        case Length():
            return [RunTimesUpdated(now, [Estimate(asked.job.id, obstacle.longest)])]
    return []


def start_without(core, job_id, obstacles):
    """Return the stream in which a job starts once these obstacles are removed, or None."""
    core = core.copy()
    asked = core.state.jobs[job_id]
    gone = {job for obstacle in obstacles for job in jobs_gone(core, asked, obstacle)}
    events = [
        (JobFinished if job.stream else JobCancelled)(core.state.now, job.job.id) for job in gone
    ]
    events += [event for obstacle in obstacles for event in changes(core, asked, obstacle)]
    assert events or not obstacles, obstacles
    decisions = core.step(core.state.now, events)
    core.check()
    starts = [d.stream for d in decisions if isinstance(d, StartJob) and d.job_id == job_id]
    return starts[0] if starts else None


def proved(core, job_id):
    """Explain why a job waits; assert that each exact way starts it and no part of it does."""
    waiting = core.state.jobs[job_id]
    before = photograph(core)
    said = explain(core, waiting)
    assert photograph(core) == before
    assert said.exact is any(way.exact for way in said.ways)
    for way in said.ways:
        if way.exact:
            stream = start_without(core, job_id, way.obstacles)
            assert stream is not None, (job_id, way)
            if len(said.ways) > 1 and way.obstacles:
                assert stream is (Stream.DEDICATED if way.name == "turn" else Stream.SPARE)
            if len(way.obstacles) > 1:
                wanted = [stream] if len(said.ways) > 1 else [*Stream]
                assert not any(start_without(core, job_id, [o]) in wanted for o in way.obstacles)
    return said


class Guesses:
    """A forecast that gives random loads."""

    def __init__(self, rng, owned):
        self.rng, self.owned = rng, owned

    def submitted(self, *_):
        pass

    started = finished = submitted

    def changes(self, now):
        return [
            Load(pool.name, window, self.rng.choice([0, 0, 1, 2, 5, 12]))
            for pool in self.owned
            for window in range(len(SMALL.windows))
            if self.rng.random() < 0.2
        ]


def random_state(policy, seed):
    """Return a core in a random workload with pending jobs, or None if no job is pending."""
    rng = Random(seed)
    owned, arrivals = random_workload(rng)
    if rng.random() < 0.4:
        owned = limited(rng, owned)
    arrivals = [
        arrival._replace(job=replace(arrival.job, priority=rng.choice([0, 0, 0, 1, -1])))
        for arrival in arrivals
    ]
    options = replace(
        SMALL,
        slack=rng.choice([1.0, 1.0, 1.0, 1.3, 0.6]),
        no_lending=frozenset(
            (pool.name, window) for pool in owned for window in SMALL.windows if rng.random() < 0.03
        ),
    )
    core = Core(owned, policy(), options)
    span = arrivals[-1].job.submit
    facts = [
        PoolChanged(float(rng.randint(0, int(span))), rng.choice(owned).name, rng.randint(0, 12))
        for _ in range(rng.choice([0, 0, 1, 3]))
    ]
    if rng.random() < 0.15:
        facts.append(LendingSwitched(rng.uniform(0, span), on=False))
    chance = Random(f"out {seed}")  # so that all else is as it was without
    if chance.random() < 0.3:
        name, gpus = chance.choice(owned).name, chance.randint(1, 9)
        facts.append(GpusOut(chance.uniform(0, 0.3 * span), name, gpus))
    perfect = PerfectLoads([arrival.job for arrival in arrivals], SMALL.windows)
    loads = rng.choice([None, perfect, Guesses(rng, owned)])
    until = rng.uniform(0.1, 1.0) * span
    run_times = PerfectRunTimes({arrival.job.id: arrival.duration for arrival in arrivals})
    if policy.needs.future:
        facts.append(revealed(owned, arrivals))
    facts.sort(key=lambda fact: fact.time)
    for instant in play(core, arrivals, run_times=run_times, loads=loads, facts=facts):
        if instant.now >= until and core.state.waiting:
            return rng, core
    return rng, None


# Stories


def told(core, *arrivals, now=0.0, loads=()):
    """These jobs are submitted to a core, which is given these forecasts."""
    events = [ForecastUpdated(now, [Load(*load) for load in loads])] if loads else []
    events += [JobSubmitted(now, arrival.job, arrival.duration) for arrival in arrivals]
    core.step(now, events)
    return core


def why(core, job_id):
    return proved(core, job_id).obstacles


def way(core, job_id, name):
    (found,) = [way for way in proved(core, job_id).ways if way.name == name]
    return found


def test_a_job_behind_others_waits_for_its_turn_and_for_quota():
    core = told(
        Core(pools(a=4), Fcfs(), SMALL),
        job("long").gpus(3).runs(90),
        job("short").gpus(1).runs(8),
        job("next").gpus(4).runs(1000),
        job("then").gpus(3).runs(1000),
    )
    long, short = EndingJob("long", "a", 3, 90.0), EndingJob("short", "a", 1, 8.0)
    assert why(core, "next") == (QuotaObstacle("a", 4, 0, 4, (short, long)),)
    behind = OrderObstacle(1, 4, "next")
    assert why(core, "then") == (behind, QuotaObstacle("a", 3, 0, 4, (long,)))


def test_the_policy_decides_who_is_ahead():
    core = told(Core(pools(a=4), Ssf(), SMALL), job("runs").gpus(3).runs(9))
    told(core, job("long").gpus(4).runs(90), job("short").gpus(2).runs(5), now=1.0)
    assert OrderObstacle(1, 2, "short") in why(core, "long")
    assert not any(isinstance(each, OrderObstacle) for each in why(core, "short"))


def test_a_job_with_an_unknown_run_time_starts_on_spare_gpus_once_it_is_known():
    core = told(Core(pools(a=4, b=4), Sia(), SMALL), *(job(i).gpus(4).runs(1e12) for i in "xy"))
    assert way(core, "y", "turn").obstacles == (
        QuotaObstacle("a", 4, 0, 4, (EndingJob("x", "a", 4, None),)),
    )
    assert way(core, "y", "spare").obstacles == (Length(None, 100.0),)


def test_a_job_that_runs_longer_than_expected_is_late():
    core = told(Core(pools(a=4), Sia(), SMALL), *(job(i).gpus(4).runs(5) for i in "xy"))
    core.step(9.0, [])
    late = EndingJob("x", "a", 4, 9.0, late=True)
    assert why(core, "y") == (QuotaObstacle("a", 4, 0, 4, (late,)),)


def test_the_forecast_of_another_pool_keeps_a_job_from_spare_gpus():
    core = told(
        Core(pools(a=4, b=8), Sia(), SMALL),
        job("runs").gpus(4).runs(1000),
        job("waits").gpus(4).runs(20),
        loads=[("b", 1, 6), ("b", 2, 6)],
    )
    held = Reservation("b", 20.0, 6, 0, 6, until=20.0)
    assert way(core, "waits", "spare") == StartPath(
        "spare", open=True, obstacles=(held,), exact=True
    )


@pytest.mark.parametrize(
    ("limit", "obstacle"),
    [
        ({"lend_limit": 3}, LimitObstacle("lend", "b", 3)),
        ({"borrow_limit": 3}, LimitObstacle("borrow", "a", 3)),
    ],
)
def test_a_limit_on_loans_keeps_a_job_waiting(limit, obstacle):
    quotas = {"a": 1, "b": 8}
    owned = [Pool(n, q, **(limit if obstacle.pool == n else {})) for n, q in quotas.items()]
    core = told(Core(owned, Sia(), SMALL), job("waits").gpus(6).runs(20))
    assert why(core, "waits") == (obstacle,)


def test_limits_of_several_pools_are_reported_as_one_obstacle():
    owned = [Pool("a", 1), *(Pool(f"b{i:02}", 2, lend_limit=1) for i in range(12))]
    core = told(Core(owned, Sia(), SMALL), job("waits").gpus(20).runs(20))
    assert why(core, "waits") == (LimitObstacle("lend"),)


def test_lending_that_is_off_keeps_a_job_waiting():
    core = Core(pools(a=1, b=8), Sia(), SMALL)
    core.step(0.0, [LendingSwitched(0.0, on=False)])
    told(core, job("waits").gpus(6).runs(20))
    assert why(core, "waits") == (LimitObstacle("lending"),)


def test_a_job_wider_than_all_that_could_be_lent_never_starts():
    core = told(Core(pools(a=1, b=4), Sia(), SMALL), job("wide").gpus(6).runs(20))
    said = proved(core, "wide")
    assert [(way.open, way.obstacles) for way in said.ways] == [
        (False, (Width(6, 1),)),
        (False, (Width(6, 4),)),
    ]
    assert not said.exact
    core.step(1.0, [PoolChanged(1.0, "a", 8)])
    assert core.state.jobs["wide"].stream is Stream.DEDICATED


def test_a_pool_that_is_served_first_is_named_as_an_obstacle():
    guests = [job(f"guest{i}").gpus(4).pool("z").runs(4 + i) for i in range(2)]
    core = told(Core(pools(a=4, b=4, z=1), Sia(), SMALL), *guests)
    assert all(core.state.jobs[guest.job.id].stream is Stream.SPARE for guest in guests)
    told(core, *(job(f"{i}1").gpus(4).pool(i).at(1).runs(500) for i in "ab"), now=1.0)
    room = RoomObstacle(3, 1, (EndingJob("guest0", "z", 4, 4.0),))
    assert why(core, "a1") == (room,)
    first, rival = why(core, "b1")
    assert first == room
    assert isinstance(rival, Reservation | Rival)
    assert rival.pool == "a"


def test_jobs_of_an_elastic_pool_would_take_what_others_free():
    """Once `short` has ended, `long` takes its GPU, so it is `long` that `waits` waits for."""
    core = told(
        Core(pools(a=4), ElasticFifo(), SMALL),
        job("short").gpus(1).runs(8),
        job("long").gpus(4).runs(90),
        job("waits").gpus(6).runs(8),
    )
    assert why(core, "waits") == (QuotaObstacle("a", 1, 0, 4, (EndingJob("long", "a", 3, 120.0),)),)


def test_an_elastic_job_wider_than_its_pool_can_start():
    core = told(Core(pools(a=4), ElasticFifo(), SMALL), *(job(i).gpus(9).runs(90) for i in "xy"))
    x = EndingJob("x", "a", 4, 202.5)
    assert why(core, "y") == (QuotaObstacle("a", 1, 0, 4, (x,)),)
    wide = job("wide").gpus(9).runs(90)
    wide = wide._replace(job=replace(wide.job, min_width=5))
    core = told(Core(pools(a=4), ElasticFifo(), SMALL), wide)
    assert [way.obstacles for way in proved(core, "wide").ways] == [(Width(5, 4),)]


def test_under_elastic_srtf_the_remaining_work_decides_which_jobs_are_ahead():
    core = told(
        Core(pools(a=2), ElasticSrtf(), SMALL),
        job("runs").gpus(2).runs(5),
        job("long").gpus(2).runs(90),
        job("short").gpus(2).runs(9),
    )
    assert not any(isinstance(each, OrderObstacle) for each in why(core, "short"))
    assert OrderObstacle(1, 2, "short") in why(core, "long")


def test_no_more_passes_are_made_than_allowed(monkeypatch):
    monkeypatch.setattr(explaining, "MOST_PASSES", 1)
    passes = []

    def counted(*args):
        passes.append(args)
        return explaining.start_in_copy(*args)

    core = told(
        Core(pools(a=4), Fcfs(), SMALL),
        *(job(name).gpus(4).runs(90) for name in ("runs", "next", "then")),
    )
    said = explain(core, core.state.jobs["then"], counted)
    assert len(passes) == 1
    assert not said.exact
    assert said.obstacles == (OrderObstacle(1, 4, "next"), QuotaObstacle("a", 4, 0, 4, ()))


# Random clusters


@pytest.mark.parametrize("policy", ALL)
def test_random_jobs_start_at_once_without_the_named_obstacle(policy):
    able, enough = [], budget(ci=24, soak=1000)
    for seed in range(budget(ci=40, soak=400)):
        if len(able) >= enough:
            break
        rng, core = random_state(policy, seed)
        if core is not None:
            waiting = sorted(i for i, j in core.state.jobs.items() if j.stream is None)
            said = [proved(core, each) for each in rng.sample(waiting, min(2, len(waiting)))]
            able += [each for each in said if any(way.open for way in each.ways)]
    assert sum(each.exact for each in able) >= 0.8 * len(able) > 10


def test_random_jobs_name_every_kind_of_obstacle():
    wanted = {OrderObstacle, QuotaObstacle, RoomObstacle, Reservation, Rival, OtherPools}
    wanted |= {LimitObstacle, Out, Length, Width, EarlyObstacle}
    kinds = set()
    for seed in range(500):
        if wanted <= kinds:
            return
        _, core = random_state(Sia if seed % 2 else MaxMin, seed // 2)
        for waiting in (
            [j for j in core.state.jobs.values() if j.stream is None][:2] if core else ()
        ):
            ways = explain(core, waiting).ways
            kinds.update(type(each) for way in ways for each in way.obstacles)
    assert wanted <= kinds
