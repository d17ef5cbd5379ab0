"""Why a job waits is true: without what is named it starts at once, with any part of it not."""

from collections import Counter
from itertools import chain, combinations
from operator import attrgetter
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
)
from sia.explain.why import (
    EndingJob,
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
from sia.model import Load
from sia.policies.easy import Easy
from sia.policies.explain import sia_why
from sia.policies.fcfs import Fcfs
from sia.policies.gssf import GlobalSsf
from sia.policies.hived import HiveD
from sia.policies.mmfs import MaxMin
from sia.policies.sia.policy import Sia
from sia.policies.sia.vc import SiaVc
from sia.policies.sjf import Sjf
from sia.policies.ssf import Ssf
from tests.support.builders import SMALL, job, limited, pools, random_workload
from tests.support.cores import POLICIES, photograph

RANKS = {
    Sjf: lambda job: (-job.job.priority, job.run_time, job.sequence),
    Ssf: lambda job: (-job.job.priority, job.run_time * job.width, job.sequence),
    GlobalSsf: lambda job: (-job.job.priority, job.run_time * job.width, job.sequence),
}
"""Who is before whom in a pool, where it is not who came first."""

PLAIN = [Fcfs, Ssf, Sjf, Easy, GlobalSsf, MaxMin, HiveD]

# The naive model: take away what is named from a copy of the core, and see.


def units(obstacles, pool):
    """What is named, as far apart as it can be taken."""
    found = []
    for each in obstacles:
        match each:
            case OrderObstacle():
                found.append(("turn", pool))
            case QuotaObstacle() | RoomObstacle():
                found += [("end", leaves.job) for leaves in each.ends]
            case Rival():
                found.append(("queue", each.pool))
            case Reservation():
                causes = [("queue", each.waiting), ("load", each.load), ("keep", each.keeps)]
                found += [(cause, each.pool) for cause, named in causes if named]
            case LimitObstacle():
                found.append((each.kind, each.pool))
            case OtherPools():
                found.append(("others", each.pools))
            case Out():
                found.append(("out", pool))
            case _:
                raise AssertionError(each)
    return found


def without(core, asked, gone):
    """In which stream a job starts in a copy of a core without some things; None if it does not."""
    core = core.copy()
    state, now = core.state, core.state.now
    mine = state.jobs[asked]
    events = {}
    for kind, name in gone:
        if kind == "turn":
            rank = RANKS.get(type(core.policy), attrgetter("sequence"))
            before = [j for j in mine.pool.waiting() if rank(j) < rank(mine)]
            events |= {j.job.id: JobCancelled(now, j.job.id) for j in before}
        elif kind == "queue":
            others = [j for j in state.pools[name].waiting() if j is not mine]
            events |= {j.job.id: JobCancelled(now, j.job.id) for j in others}
        elif kind == "end":
            events[name] = JobFinished(now, name)
        elif kind == "load":
            loads = [Load(name, i, 0) for i in range(len(state.options.windows))]
            events[kind, name] = ForecastUpdated(now, loads)
        elif kind == "keep":
            core.policy._keeps[state.pools[name]] = []
            events[kind, name] = PoolChanged(now, name, state.pools[name].quota)
        elif kind == "others":  # it does not say of which pools, but where it is of all of them
            others = [pool for pool in mine.pool.group.pools if pool is not mine.pool]
            assert len(others) == name
            causes = ("queue", "load", "keep") if type(core.policy) is Sia else ("queue",)
            more = [(cause, pool.name) for pool in others for cause in causes]
            return without(core, asked, [*more, *(unit for unit in gone if unit[0] != "others")])
        elif kind in ("out", "lending"):
            back = GpusOut(now, name, 0) if kind == "out" else LendingSwitched(now, on=True)
            events[kind] = back
        elif kind == "lend" and not name:
            pools = mine.pool.group.pools
            events |= {
                (kind, pool.name): PoolChanged(now, pool.name, pool.quota, lend_limit=UNLIMITED)
                for pool in pools
            }
        else:
            limit = {f"{kind}_limit": UNLIMITED}
            events[kind, name] = PoolChanged(now, name, state.pools[name].quota, **limit)
    decisions = core.step(now, [*events.values()])
    core.check()
    starts = [d.stream for d in decisions if isinstance(d, StartJob) and d.job_id == asked]
    return starts[0] if starts else None


def parts(found):
    """All strict ones."""
    return chain.from_iterable(combinations(found, size) for size in range(len(found)))


def prove(core, job_id):
    """What it waits for is enough, and no part of it is; so is each way."""
    waiting = core.state.jobs[job_id]
    before = photograph(core)
    said = core.policy.why(waiting)
    assert photograph(core) == before
    pool = waiting.pool.name
    never = (Width, Length)
    assert said.exact
    if any(isinstance(each, never) for each in said.obstacles):
        assert not any(way.open for way in said.ways)
        return said
    found = units(said.obstacles, pool)
    assert without(core, job_id, found), (job_id, found)
    for part in parts(found):
        assert not without(core, job_id, part), (job_id, found, part)
    for way in said.ways:
        if way.open:
            found = units(way.obstacles, pool)
            stream = without(core, job_id, found)
            assert stream is Stream.DEDICATED if way.name == "turn" else stream, (job_id, way)
            wanted = [Stream.DEDICATED] if way.name == "turn" else list(Stream)
            for part in parts(found) if len(found) <= 6 else combinations(found, len(found) - 1):
                assert without(core, job_id, part) not in wanted, (job_id, way, part)
    return said


class Guesses:
    """Foresees anything at all."""

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


# Stories


def told(core, *arrivals, now=0.0, loads=()):
    """These jobs are submitted to a core, which hears what is foreseen."""
    events = [ForecastUpdated(now, [Load(*load) for load in loads])] if loads else []
    events += [JobSubmitted(now, arrival.job, arrival.duration) for arrival in arrivals]
    core.step(now, events)
    return core


def why(core, job_id):
    return prove(core, job_id).obstacles


def test_who_stands_behind_others_waits_for_its_turn_and_for_the_quota():
    core = told(
        Core(pools(a=4), Sia(), SMALL),
        job("long").gpus(3).runs(90),
        job("short").gpus(1).runs(8),
        job("next").gpus(4).runs(1000),
        job("then").gpus(3).runs(1000),
    )
    short = EndingJob("short", "a", 1, 8.0)
    assert why(core, "next") == (
        QuotaObstacle("a", 4, 0, 4, (short, EndingJob("long", "a", 3, 90.0))),
    )
    turn = OrderObstacle(1, 4, "next")
    assert why(core, "then") == (
        turn,
        QuotaObstacle("a", 3, 0, 4, (EndingJob("long", "a", 3, 90.0),)),
    )
    spare = core.policy.why(core.state.jobs["then"]).ways[1]
    assert spare == StartPath("spare", open=False, obstacles=(Length(1000.0, 100.0),))


def test_a_job_of_which_nothing_is_known_is_lent_nothing_and_its_end_is_unknown():
    core = told(Core(pools(a=4, b=4), Sia(), SMALL), *(job(i).gpus(4).runs(1e12) for i in "xy"))
    said = core.policy.why(core.state.jobs["y"])
    assert said.obstacles == (QuotaObstacle("a", 4, 0, 4, (EndingJob("x", "a", 4, None),)),)
    assert said.ways[1].obstacles == (Length(None, 100.0),)


def test_one_that_runs_longer_than_was_thought_is_late():
    core = told(Core(pools(a=4), Sia(), SMALL), *(job(i).gpus(4).runs(5) for i in "xy"))
    core.step(9.0, [])
    assert why(core, "y") == (
        QuotaObstacle("a", 4, 0, 4, (EndingJob("x", "a", 4, 9.0, late=True),)),
    )


def test_a_forecast_of_another_pool_stands_against_a_spare_start():
    core = told(
        Core(pools(a=4, b=8), Sia(), SMALL),
        job("runs").gpus(4).runs(1000),
        job("waits").gpus(4).runs(20),
        loads=[("b", 1, 6), ("b", 2, 6)],
    )
    held = Reservation("b", 20.0, 6, 0, 6, keeps=False, until=20.0)
    assert why(core, "waits") == (
        QuotaObstacle("a", 4, 0, 4, (EndingJob("runs", "a", 4, 1000.0),)),
    )
    assert core.policy.why(core.state.jobs["waits"]).ways[1].obstacles == (held,)


def test_a_pool_that_was_told_to_lend_nothing_is_named_for_it():
    keeps = replace(SMALL, no_lending=frozenset([("b", 20.0), ("b", 100.0)]))
    waiting = job("waits").gpus(2).runs(20)
    core = told(Core(pools(a=1, b=8), Sia(), keeps), waiting)
    core.step(0.0, [PoolChanged(0.0, "a", 2)])
    assert core.state.jobs["waits"].stream is Stream.DEDICATED
    core = told(Core(pools(a=1, b=8), Sia(), keeps), waiting)
    held = Reservation("b", 20.0, 8, 0, 0, keeps=True, until=20.0)
    assert why(core, "waits") == (held,)


@pytest.mark.parametrize(
    ("limit", "obstacle"),
    [
        ({"lend_limit": 3}, LimitObstacle("lend", "b", 3)),
        ({"borrow_limit": 3}, LimitObstacle("borrow", "a", 3)),
    ],
)
def test_a_limit_on_loans_stands_against_it(limit, obstacle):
    quotas = {"a": 1, "b": 8}
    owned = [Pool(n, q, **(limit if obstacle.pool == n else {})) for n, q in quotas.items()]
    core = told(Core(owned, Sia(), SMALL), job("waits").gpus(6).runs(20))
    assert why(core, "waits") == (obstacle,)


def test_limits_of_many_pools_are_one():
    owned = [Pool("a", 1), *(Pool(f"b{i:02}", 2, lend_limit=1) for i in range(12))]
    core = told(Core(owned, Sia(), SMALL), job("waits").gpus(20).runs(20))
    assert why(core, "waits") == tuple(LimitObstacle("lend", f"b{i:02}", 1) for i in range(8))
    core = told(Core(owned, Sia(), SMALL), job("waits").gpus(21).runs(20))
    assert why(core, "waits") == (LimitObstacle("lend"),)


def test_lending_that_is_off_stands_against_it():
    core = Core(pools(a=1, b=8), Sia(), SMALL)
    core.step(0.0, [LendingSwitched(0.0, on=False)])
    told(core, job("waits").gpus(6).runs(20))
    assert why(core, "waits") == (LimitObstacle("lending"),)


def test_who_is_wider_than_all_that_could_be_lent_never_starts():
    core = told(Core(pools(a=1, b=4), Sia(), SMALL), job("wide").gpus(6).runs(20))
    assert why(core, "wide") == (Width(6, 1), Width(6, 4))
    core.step(1.0, [PoolChanged(1.0, "a", 8)])
    assert core.state.jobs["wide"].stream is Stream.DEDICATED


def test_a_pool_that_is_served_first_is_a_rival():
    guests = [job(f"guest{i}").gpus(4).pool("z").runs(4 + i) for i in range(2)]
    core = told(Core(pools(a=4, b=4, z=1), Sia(), SMALL), *guests)
    assert all(core.state.jobs[guest.job.id].stream is Stream.SPARE for guest in guests)
    told(core, *(job(f"{i}1").gpus(4).pool(i).at(1).runs(500) for i in "ab"), now=1.0)
    room = RoomObstacle(3, 1, (EndingJob("guest0", "z", 4, 4.0),))
    assert why(core, "a1") == (room,)
    assert why(core, "b1") == (room, Rival("a", 1, 4))


def test_what_the_next_look_starts_waits_for_nothing():
    core = told(
        Core(pools(a=2, b=2), Sia(), SMALL),
        job("first").gpus(2).runs(1000),
        job("behind").gpus(2).runs(5),
    )
    assert core.state.jobs["behind"].stream is Stream.SPARE
    for seed in range(200):
        _, core = random_state(Sia, seed)
        for job_id, state in core.state.jobs.items() if core else ():
            if state.stream is None and not core.policy.why(state).obstacles:
                assert without(core, job_id, [])
                return
    raise AssertionError("nobody waits for the next look alone")


@pytest.mark.parametrize("policy", [p for p in POLICIES if p not in (*PLAIN, Sia, SiaVc)])
def test_policies_that_do_not_know_say_so_and_name_what_is_there(policy):
    said = 0
    for seed in range(20):
        _, core = random_state(policy, seed)
        if core is None:
            continue
        for state in list(core.state.jobs.values()):
            if state.stream is None:
                found = core.policy.why(state)
                said += 1
                assert not found.exact
                assert found.unknown
                assert all(
                    type(each) in (QuotaObstacle, RoomObstacle, LimitObstacle, Out, Width)
                    for each in found.obstacles
                )
    assert said


# Random ones


def random_state(policy, seed):
    """A core in the midst of a random story, in which jobs wait; None where nobody does."""
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
    if chance.random() < (0.5 if policy is Sia else 0.1):  # others do not say why then
        name, gpus = chance.choice(owned).name, chance.randint(1, 9)
        facts.append(GpusOut(chance.uniform(0, 0.3 * span), name, gpus))
    perfect = PerfectLoads([arrival.job for arrival in arrivals], SMALL.windows)
    loads = rng.choice([None, perfect, Guesses(rng, owned)])
    until = rng.uniform(0.1, 1.0) * span
    run_times = PerfectRunTimes({arrival.job.id: arrival.duration for arrival in arrivals})
    facts.sort(key=lambda fact: fact.time)
    for instant in play(core, arrivals, run_times=run_times, loads=loads, facts=facts):
        if instant.now >= until and core.state.waiting:
            return rng, core
    return rng, None


def ask(policy, seed, jobs=3):
    """Some waiting jobs of a random state are asked about; what was said."""
    rng, core = random_state(policy, seed)
    if core is None:
        return []
    waiting = sorted(i for i, j in core.state.jobs.items() if j.stream is None)
    if policy is not Sia and policy.shares:
        limited = [i for i in waiting if core.state.jobs[i].pool.group.limited]
        assert not any(core.policy.why(core.state.jobs[i]).exact for i in limited)
        waiting = [i for i in waiting if i not in limited]
    return [prove(core, each) for each in rng.sample(waiting, min(jobs, len(waiting)))]


@pytest.mark.parametrize("part", range(3))
def test_random_jobs_start_without_what_is_named_and_with_no_part_of_it(part):
    said = [why for seed in range(50) for why in ask(Sia, 50 * part + seed)]
    assert len(said) > 66
    assert any(type(each) is Out for why in said for way in why.ways for each in way.obstacles)


@pytest.mark.parametrize("policy", PLAIN)
def test_so_they_do_under_policies_that_hold_nothing_back(policy):
    shrunk = 393  # a pool has more than its quota: the end of one job of it makes nothing idle
    said = [why for seed in (*range(60), shrunk) for why in ask(policy, seed)]
    assert len(said) > 40
    named = {type(each) for why in said for each in why.obstacles}
    assert (Rival in named) is (policy in (GlobalSsf, MaxMin, HiveD))
    assert OrderObstacle in named


def test_what_is_said_of_many_pools_together_is_as_true(monkeypatch):
    monkeypatch.setattr(sia_why, "MANY", 0)
    proved = Counter()
    for seed in range(150):
        _, core = random_state(Sia, seed)
        for waiting in [j for j in core.state.jobs.values() if j.stream is None] if core else []:
            said = core.policy.why(waiting)
            obstacles = [each for way in said.ways for each in way.obstacles]
            others = [each for each in obstacles if isinstance(each, OtherPools)]
            limits = LimitObstacle("lend") in obstacles
            all_others = len(waiting.pool.group.pools) - 1
            if (others or limits) and all(each.pools == all_others for each in others):
                prove(core, waiting.job.id)
                proved.update(others=bool(others), limits=limits)
    assert proved["others"] > 10
    assert proved["limits"] > 10
