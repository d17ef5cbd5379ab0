"""What-if questions: they say what then happens, change nothing, and refuse what cannot be."""

import asyncio
from collections import Counter
from heapq import heappop, heappush
from math import inf
from random import Random

import pytest
from msgspec import to_builtins
from msgspec.structs import replace

from daemon.answers.simulate.forward import Played, PredictedStart
from daemon.answers.whatif.compare import compare, notes_of
from daemon.answers.whatif.whatif import (
    Question,
    WhatIfOutcome,
    play,
    play_changed,
    touched,
)
from daemon.cli.answers.whatif import _show as show_whatif
from daemon.config.config import NodeConfig, PoolConfig
from daemon.engine.engine import Engine
from daemon.model.inputs import (
    Cancel,
    Drain,
    Ended,
    Hold,
    Lending,
    Maintain,
    SetPool,
    SetPriority,
    Started,
    Submit,
    Tick,
)
from daemon.model.job import LendingMode, PoolMode
from daemon.model.setup import Budget, Setup
from daemon.wire.jobs import JobRequest
from daemon.wire.whatif import WHATIF_STARTS, JobWhatIf, PoolWhatIf, WhatIf
from sia.model import Pool
from sia.wording import DAY
from tests.support.budget import budget
from tests.support.clusters.cells import spec
from tests.support.daemons.daemons import SMALL, job, setup, submit, until
from tests.support.daemons.doors import asked, door, job_in, story


def all_(pool):
    return True


def unknown(now, spec):
    return 0.0


class World:
    """A daemon's engine and a machine on which each job runs exactly as long as it is thought to.

    What is started is seen to run at once.
    """

    def __init__(self, engine, now=0.0):
        self.engine, self.now = engine, now
        self.ends, self.starts = [], {}

    def do(self, *inputs):
        step = self.engine.step(self.now, inputs)
        ran = []
        for effect in step.effects:
            if hasattr(effect, "spec"):
                self.starts[effect.job] = self.now
                run_time = self.engine.book.jobs[effect.job].run_time
                heappush(self.ends, (self.now + run_time, effect.job, effect.attempt))
                ran.append(Started(effect.job, effect.attempt))
            elif effect.kind == "end":
                heappush(self.ends, (self.now, effect.job, effect.attempt))
        if ran:
            self.do(*ran)
        return step.answers

    def go_on(self, until):
        while (then := min(self.ends[0][0] if self.ends else inf, self.due)) <= until:
            self.now = then
            over = []
            while self.ends and self.ends[0][0] <= then:
                _, job_id, attempt = heappop(self.ends)
                over.append(Ended(job_id, attempt, 0))
            self.do(*(over or [Tick()]))
        self.now = until

    @property
    def due(self):
        return max(self.now, self.engine.due)

    def twin(self):
        """The same world again, which shares nothing with this one."""
        twin = World(Engine.restore(self.engine.dump()), self.now)
        twin.ends = [*self.ends]
        return twin


POOLS = ("a", "b", "c")


def random_cluster(rng):
    """Pools with nothing else, with numbered GPUs, in cells, or one of them in its own group."""
    kind = rng.randrange(4)
    if kind == 0:
        return setup(a=8, b=4, c=4)
    if kind == 1:
        return setup((8, 4, 4), a=8, b=4, c=4)
    if kind == 2:
        cells = spec(quotas={"a": {"node": 1}, "b": {"quad": 1}, "c": {"quad": 1}})
        pools = (Pool("a", 8), Pool("b", 4), Pool("c", 4))
        return Setup(pools, options=SMALL, cells=cells)
    return grouped(("a", 8, "x"), ("b", 4, "x"), ("c", 4, "y"))


def random_world(rng):
    """Somewhere in the middle of the work of three pools."""
    cluster = random_cluster(rng)
    if rng.random() < 0.3:
        slowed = Budget(slowed_budget_pct=rng.choice((0.0, 0.1, 10.0)))
        cluster = replace(cluster, budgets={rng.choice(POOLS): slowed, "b": Budget(0.02)})
    if rng.random() < 0.15:
        cluster = replace(cluster, lending=LendingMode.SHADOW)
    world = World(Engine.new(cluster))
    for i in range(rng.randrange(8, 40)):
        pool = rng.choice(POOLS)
        limit = rng.choice((None, None, 30.0, 400.0))
        new = job(
            f"j{i}", pool, rng.choice((1, 1, 2, 3, 4)), time_limit=limit, hold=rng.random() < 0.05
        )
        world.do(Submit(new, rng.choice((2.0, 7.0, 18.5, 60.0, 150.0, 700.0))))
        world.do(*random_orders(rng, world, f"j{i}"))
        world.go_on(world.now + rng.choice((0.0, 0.0, 1.0, 3.3, 9.0)))
    return world


def random_orders(rng, world, job_id):
    """What people do meanwhile, now and then."""
    now, pool = world.now, rng.choice(POOLS)
    orders = [
        SetPriority(job_id, rng.randrange(-3, 4)),
        SetPool(pool, lend_limit=rng.randrange(4), until=rng.choice((None, now + 50.0))),
        Maintain(f"m-{job_id}", "n1", now + rng.choice((0.0, 30.0)), now + 90.0),
        SetPool(pool, state=PoolMode.HOLD, until=now + 40.0),
        Drain("n0"),
    ]
    return [order for order in orders if rng.random() < 0.03]


CHANGES = (
    "new", "quota", "limits", "weight", "state", "lending", "drain", "cancel", "priority", "width",
    "pool", "time_limit", "all of a job", "several",
)  # fmt: skip


def change_of(seed):
    """Which kind of change a seed is of: each in turn."""
    return CHANGES[seed % len(CHANGES)]


def random_change(rng, world, kind):  # noqa: PLR0911  one for each kind
    """A question of that kind, its new jobs, and the commands that really do it."""
    waiting = [r for r in world.engine.book.jobs.values() if r.phase.value == "pending"]
    if kind == "several":
        return several(rng, world)
    if kind in ("quota", "limits", "weight", "state"):
        return pool_change(rng, world.engine.book, kind)
    if kind == "lending":
        return WhatIf(lending=False), (), [Lending(on=False)]
    if kind == "drain" and "n1" in world.engine.book.nodes:
        return WhatIf(drain=["n1"]), (), [Drain("n1")]
    if kind in ("cancel", "drain"):
        record = rng.choice([*world.engine.book.jobs.values()] or [None])
        name = record.spec.id if record else "nobody"
        return WhatIf(jobs=[JobWhatIf(name, cancel=True)]), (), [Cancel(name)]
    if kind == "new" or not waiting:
        pool = rng.choice(POOLS)
        new = job("new", pool, rng.choice((1, 2, 4)), run_time=40.0)
        request = JobRequest(pool, new.gpus, "new", run_time=40.0)
        return WhatIf(submit=[request]), (new,), [Submit(new)]
    return job_change(rng, rng.choice(waiting), kind)


def pool_change(rng, book, kind):
    pool = rng.choice(POOLS)
    change = {
        "quota": {"quota": book.pools[pool].quota + rng.choice((-2, -1, 1 - bool(book.nodes)))},
        "limits": {"lend_limit": 0, "borrow_limit": 1},
        "weight": {"weight": rng.choice((0.01, 100.0))},
        "state": {"state": rng.choice((PoolMode.HOLD, PoolMode.DRAIN))},
    }[kind]
    return WhatIf(pools=[PoolWhatIf(pool=pool, **change)]), (), [SetPool(pool, **change)]


def job_change(rng, record, kind):
    """Of a job that waits: put elsewhere, or as if it came anew."""
    name, spec = record.spec.id, record.spec
    if kind == "priority":
        return WhatIf(jobs=[JobWhatIf(name, priority=5)]), (), [SetPriority(name, 5)]
    change = {
        "width": {"gpus": 1 + spec.gpus % 4},
        "pool": {"pool": rng.choice([pool for pool in POOLS if pool != spec.pool])},
        "time_limit": {"time_limit": rng.choice((5.0, 1000.0))},
        "all of a job": {"pool": rng.choice(POOLS), "gpus": 2, "time_limit": 60.0},
    }[kind]
    limit = record.time_limit
    like = {"pool": spec.pool, "gpus": spec.gpus, "time_limit": limit, "priority": record.priority}
    run_time = record.run_time if limit is None or record.run_time < limit else 0.0
    commands = [Cancel(name), Submit(job(name + "~", **(like | change)), run_time)]
    return WhatIf(jobs=[JobWhatIf(name, **change)]), (), commands


def several(rng, world):
    """A pool, the switch and a new job at once: done in that order."""
    parts = [random_change(rng, world, kind) for kind in ("limits", "lending", "new")]
    pools, switch, new = (what for what, _, _ in parts)
    return (
        WhatIf(submit=new.submit, pools=pools.pools, lending=switch.lending),
        parts[-1][1],
        [command for _, _, commands in parts for command in commands],
    )


@pytest.mark.parametrize("seed", range(budget(ci=60, soak=500)))
def test_a_whatif_says_what_would_happen(seed):
    """Start by start, as it is and changed, where jobs run as thought."""
    rng = Random(seed)
    world = random_world(rng)
    what, new, commands = random_change(rng, world, change_of(seed))
    what.horizon = 3000.0  # long after the last of them, but for those that never start
    question = Question(what, new, unknown)
    until = world.now + what.horizon
    as_is = play(world.twin().engine, world.now, question)
    changed = play_changed(world.twin().engine, world.now, question)
    really, otherwise = world.twin(), world.twin()
    really.go_on(until)
    assert not as_is.played.cut
    pools = touched(world.engine, what, new)

    def seen(starts):
        jobs = world.engine.book.jobs
        return {j: t for j, t in starts.items() if pools is None or pool_of(jobs, j, new) in pools}

    assert {s.job: s.start for s in as_is.played.starts} == seen(really.starts)
    answers = otherwise.do(*commands)
    refused = next((a for a in answers if hasattr(a, "status")), None)
    assert changed.refused == refused
    if refused is None:
        otherwise.go_on(until)
        assert {s.job: s.start for s in changed.played.starts} == seen(otherwise.starts)
        said = compare(world.engine.book, world.now, question, as_is, changed, all_)
        agree(said, really, otherwise)


def pool_of(jobs, job_id, new):
    """Of a job that there is, that is new, or that is as if it were submitted anew."""
    name = job_id.removesuffix("~")
    return jobs[name].spec.pool if name in jobs else new[0].pool


def agree(said, really, otherwise):
    """Jobs that are said to move are those that do, by as much."""
    named = {job.job for job in said.jobs} | {job.job + "~" for job in said.jobs}
    moved = {move.job: move for move in (*said.earlier, *said.later)}
    for job_id in {*really.starts, *otherwise.starts} - named:
        now, then = really.starts.get(job_id), otherwise.starts.get(job_id)
        if now == then:
            assert job_id not in moved
        else:
            move = moved.pop(job_id)
            assert (move.now, move.then) == (now, then)
            if None not in {now, then}:
                assert move.by == abs(now - then)
    assert not moved
    assert sum(p.earlier for p in said.pools) == len(said.earlier)
    assert sum(p.later for p in said.pools) == len(said.later)


def test_most_drawn_questions_have_an_answer():
    """Of the hundred: jobs are moved by each kind of change, and some are refused."""
    moving, refused = Counter(), 0
    for seed in range(budget(ci=100, soak=500)):
        rng = Random(seed)
        world = random_world(rng)
        what, new, _ = random_change(rng, world, change_of(seed))
        what.horizon = 200.0
        question = Question(what, new, unknown)
        as_is = play(world.twin().engine, world.now, question).played
        changed = play_changed(world.engine, world.now, question)
        if changed.refused is not None:
            refused += 1
        elif changed.played.starts != as_is.starts:
            moving[change_of(seed)] += 1
    # A weight decides only between pools that could borrow at one moment.
    assert set(moving) | {"weight"} == set(CHANGES)
    assert moving.total() > 50
    assert 1 < refused < 30


def grouped(*pools):
    return Setup(tuple(Pool(*pool) for pool in pools), options=SMALL)


def world_of(*steps, **quotas):
    world = World(Engine.new(setup(**quotas)))
    for now, *inputs in steps:
        world.go_on(now)
        world.do(*inputs)
    return world


def answer(world, what, *new, sees=all_):
    question = Question(what, new, unknown)
    notes = notes_of(world.engine.book.jobs.values(), world.now, sees)
    as_is = replace(play(world.twin().engine, world.now, question), notes=tuple(notes))
    changed = play_changed(world.twin().engine, world.now, question)
    if changed.refused is not None:
        return changed.refused
    return compare(world.engine.book, world.now, question, as_is, changed, sees)


def queue():
    """a1 runs for 10 s, then a2 for 20 s, then a3."""
    jobs = (("a1", 10.0), ("a2", 20.0), ("a3", 5.0))
    return world_of((0.0, *(submit(name, gpus=4, run_time=t) for name, t in jobs)), a=4, b=1)


def test_without_one_job_the_jobs_behind_it_start_sooner():
    said = answer(queue(), WhatIf(jobs=[JobWhatIf("a2", cancel=True)]))
    (move,) = said.earlier
    assert (move.job, move.now, move.then, move.by) == ("a3", 30.0, 10.0, 20.0)
    (asked,) = said.jobs
    assert (asked.now.start, asked.now.end, asked.then) == (10.0, 30.0, None)
    (pool,) = said.pools
    assert (pool.earlier, pool.earlier_seconds, pool.earlier_gpu_hours) == (1, 20, 80 / 3600)


def test_a_running_job_that_one_future_stops_for_a_while_starts_neither_sooner_nor_later():
    """As under policies that pause jobs: it starts again in the future that stops it."""
    world = queue()
    again = [PredictedStart("a1", "a", 4, 30.0, 35.0), PredictedStart("a1", "a", 4, 40.0, 45.0)]
    rest = PredictedStart("a2", "a", 4, 10.0, 30.0)
    paused = WhatIfOutcome(played=Played(99.0, cut=False, starts=[rest, *again]))
    alone = WhatIfOutcome(played=Played(99.0, cut=False, starts=[replace(rest, start=11.0)]))
    question = Question(WhatIf(lending=False), (), unknown)
    for a, b in ((paused, alone), (alone, paused)):
        said = compare(world.engine.book, world.now, question, a, b, all_)
        assert [move.job for move in (*said.earlier, *said.later)] == ["a2"]


def test_an_additional_job_is_reported_with_its_start_and_the_jobs_it_delays():
    said = answer(queue(), WhatIf(), job("new", gpus=4, run_time=7.0, priority=3))
    (asked,) = said.jobs
    assert (asked.now, asked.then.start, asked.then.end) == (None, 10.0, 17.0)
    assert [(move.job, move.by) for move in said.later] == [("a2", 7.0), ("a3", 7.0)]


def test_an_end_that_the_user_expects_is_told_however_far_away():
    said = answer(queue(), WhatIf(), job("new", gpus=4, run_time=20 * DAY, priority=3))
    assert said.jobs[0].then.end == 10.0 + 20 * DAY


def test_a_job_without_an_estimate_has_no_end():
    said = answer(queue(), WhatIf(), job("new", gpus=4, priority=3))
    (asked,) = said.jobs
    assert (asked.then.start, asked.then.end) == (10.0, None)
    assert [(m.job, m.now, m.then) for m in said.later] == [("a2", 10.0, None), ("a3", 30.0, None)]
    assert said.later[0].by == said.until - 10.0, "at least that"


def test_a_running_job_keeps_its_end():
    said = answer(queue(), WhatIf(jobs=[JobWhatIf("a1", cancel=True)]))
    (asked,) = said.jobs
    assert (asked.now.start, asked.now.end, asked.then) == (0.0, 10.0, None)
    assert {move.job: move.by for move in said.earlier} == {"a2": 10.0, "a3": 10.0}


def test_a_truncated_answer_says_so():
    said = answer(queue(), WhatIf(jobs=[JobWhatIf("a2", cancel=True)], starts=1))
    assert said.cut
    assert said.until == 10.0
    assert answer(queue(), WhatIf(lending=False, horizon=12.0)).until == 12.0


def test_a_job_that_starts_after_the_playouts_end_is_later_by_at_least_the_rest():
    said = answer(queue(), WhatIf(pools=[PoolWhatIf(pool="a", quota=4)], horizon=15.0))
    assert (said.earlier, said.later) == ([], [])
    said = answer(queue(), WhatIf(jobs=[JobWhatIf("a2", priority=-1)], horizon=12.0))
    moved = {move.job: (move.now, move.then, move.by) for move in said.earlier + said.later}
    assert moved == {"a3": (None, 10.0, 2.0)}
    assert (said.jobs[0].now.start, said.jobs[0].then.start) == (10.0, None)


def test_invisible_pools_are_left_out():
    world = queue()
    said = answer(world, WhatIf(jobs=[JobWhatIf("a2", cancel=True)]), sees=lambda pool: pool == "b")
    assert (said.jobs, said.earlier, said.pools) == ([], [], [])
    assert len(said.notes) == 1


def test_a_whatif_says_what_it_could_not_know():
    world = world_of(
        (0.0, submit("a1", gpus=2, run_time=10.0), submit("a2", run_time=0.0)),
        (1.0, submit("a3", gpus=4), submit("a4"), Hold("a4")),
        a=4,
    )
    world.now = 50.0  # nobody has seen a1 end
    world.ends = []
    assert answer(world, WhatIf(lending=False)).notes == [
        "assumes that no more jobs arrive and that load forecasts stay the same",
        "1 job without a known run time: assumed not to end",
        "1 job running longer than estimated: assumed to run twice as long in all",
        "1 job held: assumed to stay held",
    ]
    (asked,) = answer(world, WhatIf(jobs=[JobWhatIf("a4", gpus=2)])).jobs
    assert asked.held


@pytest.mark.parametrize("same", [{}, {"gpus": 4}, {"gpus": 4, "pool": "a", "priority": 0}])
def test_a_job_without_a_change_is_refused(same):
    world = world_of((0.0, submit("a1", gpus=2), submit("a2", gpus=4)), a=4)
    refused = answer(world, WhatIf(jobs=[JobWhatIf("a2", **same)]))
    assert (refused.status, refused.detail) == (422, "no change given for job a2")


def test_other_groups_are_not_simulated():
    """They share nothing: their jobs stay where they are."""
    pools = grouped(("a", 2, "x"), ("b", 2, "x"), ("c", 2, "y"))
    world = World(Engine.new(pools))
    world.do(*(submit(f"{p}{i}", p, 2, run_time=9.0) for p in "abc" for i in range(3)))
    question = Question(WhatIf(pools=[PoolWhatIf(pool="a", quota=4)]), (), unknown)
    assert touched(world.engine, question.asked, ()) == {"a", "b"}
    played = play(world.twin().engine, world.now, question).played
    assert {start.pool for start in played.starts} == {"a", "b"}
    everything = Question(WhatIf(lending=False), (), unknown)
    assert touched(world.engine, everything.asked, ()) is None


def test_an_impossible_change_is_refused_in_the_words_of_the_command():
    world = queue()
    for what, command in (
        (WhatIf(pools=[PoolWhatIf(pool="a", quota=3)]), SetPool("a", quota=3)),
        (WhatIf(pools=[PoolWhatIf(pool="z", quota=3)]), SetPool("z", quota=3)),
        (WhatIf(drain=["n9"]), Drain("n9")),
        (WhatIf(jobs=[JobWhatIf("a1", priority=3)]), SetPriority("a1", 3)),
        (WhatIf(jobs=[JobWhatIf("nobody", cancel=True)]), Cancel("nobody")),
    ):
        (refused,) = world.twin().do(command)
        assert answer(world, what) == refused
    (refused,) = world.twin().do(submit("w", gpus=5))
    assert answer(world, WhatIf(), job("w", gpus=5)) == refused
    wide = answer(world, WhatIf(jobs=[JobWhatIf("a2", gpus=5)]))
    assert wide.detail == refused.detail
    runs = answer(world, WhatIf(jobs=[JobWhatIf("a1", gpus=2)]))
    assert (runs.status, runs.detail) == (409, "job a1 is running")


def test_an_array_is_cancelled_or_reordered_only_as_a_whole():
    world = queue()
    array = [Submit(job(f"r.{i}", gpus=2, array=(i, 2), time_limit=6.0), 5.0) for i in range(2)]
    world.do(*array)
    said = answer(world, WhatIf(jobs=[JobWhatIf("r", priority=3)]))
    assert [(each.job, each.then.start) for each in said.jobs] == [("r.0", 10.0), ("r.1", 10.0)]
    refused = answer(world, WhatIf(jobs=[JobWhatIf("r", gpus=1)]))
    assert (refused.status, "is an array" in refused.detail) == (422, True)
    one = answer(world, WhatIf(jobs=[JobWhatIf("r.1", gpus=1)]))
    assert [(each.job, each.gpus, each.then.start) for each in one.jobs] == [("r.1", 1, 0.0)]


DOOR = {"speed": 1.0, "pools": (PoolConfig("vision", 8), PoolConfig("speech", 4))}


@story
async def test_over_http_a_whatif_changes_nothing_and_predicts_what_then_happens(folder):
    async with door(folder, **DOOR) as client:
        for name, seconds in (("one", 40_000.0), ("two", 30_000.0)):
            body = {
                "id": name, "pool": "vision", "gpus": 8, "duration": seconds, "run_time": seconds
            }  # fmt: skip
            await asked(client, "POST", "/v1/jobs", body, status=201)
        await job_in(client, "one", "running")
        before = client.service.engine.dump()
        what = {"jobs": [{"job": "one", "cancel": True}]}
        said = await asked(client, "POST", "/v1/whatif", what)
        assert client.service.engine.dump() == before
        (move,) = said["earlier"]
        assert (move["job"], move["then"]) == ("two", said["time"])
        assert move["by"] == pytest.approx(40_000, abs=30)
        await asked(client, "DELETE", "/v1/jobs/one", status=202)
        two = await job_in(client, "two", "running")
        assert two["started"] == pytest.approx(move["then"], abs=30)


@story
async def test_invalid_questions_are_refused_over_http(folder):
    async with door(folder, **DOOR, nodes=(NodeConfig("n1", 12),)) as client:

        async def refused(body, status):
            return (await asked(client, "POST", "/v1/whatif", body, status=status))["detail"]

        assert "no change given" in await refused({}, 422)
        assert "quota" in await refused({"pools": [{"pool": "vision", "quota": -1}]}, 422)
        assert "vision" in await refused({"submit": [{"pool": "vision", "gpus": 99}]}, 422)
        assert "no pool" in await refused({"submit": [{"pool": "nowhere", "gpus": 9}]}, 422)
        assert "no job" in await refused({"jobs": [{"job": "nobody", "gpus": 9}]}, 404)
        assert "1,000" in await refused(
            {"submit": [{"pool": "vision", "gpus": 1, "array": 1001}]}, 413
        )
        body = {"id": "x", "pool": "vision", "gpus": 1, "duration": 0.01}
        await asked(client, "POST", "/v1/jobs", body, status=201)
        await job_in(client, "x", "finished")
        assert "x is finished" in await refused({"jobs": [{"job": "x", "cancel": True}]}, 409)
        said = await asked(client, "POST", "/v1/whatif", {"drain": ["n1"], "lending": False})
        assert said["pools"] == []
        assert (await asked(client, "GET", "/v1/nodes"))["nodes"][0]["out"] == {}


@story
async def test_jobs_of_invisible_pools_appear_not_to_exist(folder):
    async with door(folder, **DOOR) as client:
        body = {"name": "t", "role": "submitter", "pools": ["vision"]}
        token = (await asked(client, "POST", "/v1/tokens", body, status=201))["token"]
        mine = {"Authorization": f"Bearer {token}"}
        for i in range(2):
            job_ = {"id": f"s{i}", "pool": "speech", "gpus": 4, "duration": 9e5, "run_time": 9e5}
            await asked(client, "POST", "/v1/jobs", job_, status=201)

        async def ask(body, status=200):
            return await asked(client, "POST", "/v1/whatif", body, status=status, headers=mine)

        said = await ask({"jobs": [{"job": "s1", "cancel": True}]}, 404)
        assert said["detail"] == "there is no job 's1'"
        await ask({"submit": [{"pool": "speech", "gpus": 1}]}, 403)
        said = await ask({"pools": [{"pool": "speech", "quota": 8}]})
        assert (said["earlier"], said["pools"], said["starts"]) == ([], [], [0, 0])
        # Everybody sees a pool's numbers; in words that refuse there is nothing else.
        said = await ask({"pools": [{"pool": "speech", "quota": 1}]}, 409)
        assert said["detail"] == (
            "dedicated jobs of pool speech use 4 GPUs, more than a quota of 1"
        )
        assert (await asked(client, "GET", "/v1/pools/speech", headers=mine))["dedicated"] == 4
        said = await asked(
            client, "POST", "/v1/whatif", {"pools": [{"pool": "speech", "quota": 8}]}
        )
        assert [move["job"] for move in said["earlier"]] == ["s1"]


@story
async def test_a_token_has_one_question_at_a_time(folder):
    """A second one is told to come again; another token's is answered beside it."""
    async with door(folder, **DOOR) as client:
        body = {"name": "v", "role": "viewer"}
        token = (await asked(client, "POST", "/v1/tokens", body, status=201))["token"]
        others = {"Authorization": f"Bearer {token}"}
        what = {"lending": False}

        async def ask(headers=None):
            async with client.post("/v1/whatif", json=what, headers=headers) as response:
                return response.status, response.headers.get("Retry-After"), await response.json()

        mine, second, another = await asyncio.gather(ask(), ask(), ask(others))
        assert sorted((mine[0], second[0])) == [200, 429]
        again = max(mine, second, key=lambda said: said[0])
        assert (again[1], again[2]["detail"]) == (
            "2", "a what-if request of token operator is in progress",
        )  # fmt: skip
        assert another[0] == 200
        assert (await ask())[0] == 200


@story
async def test_more_starts_than_usual_are_for_operators(folder):
    async with door(folder, **DOOR) as client:
        body = {"name": "v", "role": "viewer"}
        token = (await asked(client, "POST", "/v1/tokens", body, status=201))["token"]
        others = {"Authorization": f"Bearer {token}"}
        for starts, status in ((WHATIF_STARTS, 200), (WHATIF_STARTS + 1, 403)):
            what = {"lending": False, "starts": starts}
            await asked(client, "POST", "/v1/whatif", what, headers=others, status=status)
            await asked(client, "POST", "/v1/whatif", what)


@story
async def test_with_forecasts_a_new_job_is_considered_as_if_it_were_submitted(folder):
    """Jobs of its kind ran for a minute each: so would it, whatever its owner says."""
    async with door(folder, **{**DOOR, "speed": 3000.0}, forecast="peaks+survival") as client:
        await until(lambda: client.service._foresight.ready)
        kind = {"pool": "vision", "gpus": 1, "name": "eval", "user": "u"}
        for i in range(20):
            body = {"id": f"e{i}", "duration": 60.0, **kind}
            await asked(client, "POST", "/v1/jobs", body, status=201)
            await job_in(client, f"e{i}", "finished")
        said = await asked(client, "POST", "/v1/whatif", {"submit": [{"run_time": 5e4, **kind}]})
        (new,) = said["jobs"]
        body = {"id": "real", "duration": 60.0, "run_time": 5e4, **kind}
        await asked(client, "POST", "/v1/jobs", body, status=201)
        real = await asked(client, "GET", "/v1/jobs/real")
        span = new["then"]
        assert span["end"] - span["start"] == pytest.approx(real["run_time"])
        assert real["run_time"] < 5e4


def test_an_answer_counts_the_guests_that_would_start_and_be_stopped(capsys):
    """A guest runs on b's GPU, another would follow it; b's new job takes the GPU for good."""
    made = replace(setup(a=1, b=1), policy="sia-reclaim")
    world = World(Engine.new(made))
    world.do(submit("own", "a"), submit("guest", "a", run_time=30.0, preemptible="restart"))
    world.do(submit("more", "a", run_time=30.0, preemptible="restart"))
    said = answer(world, WhatIf(), job("owner", "b"))
    assert [(each.pool, each.guests, each.stops) for each in said.guests] == [
        ("a", [1, 0], [0, 1]),
    ]
    assert answer(world, WhatIf(), job("owner", "b"), sees=lambda pool: pool == "b").guests == []
    show_whatif(to_builtins(said))
    assert "a: guests 0 (today: 1), stops 1 (today: 0)" in capsys.readouterr().out


def test_a_truncated_table_says_what_is_missing_and_that_sums_may_be_larger(capsys):
    job = {"job": "j", "pool": "a", "gpus": 1, "now": 50.0, "then": 110.0, "by": 60.0}
    pool = {"pool": "a", "earlier": 0, "later": 120, "later_seconds": 7200.0, "later_gpu_hours": 2}
    said = {"time": 0.0, "until": 100.0, "cut": False, "jobs": [], "earlier": [], "notes": [],
            "later": [job] * 100, "pools": [pool], "guests": [], "compared": "start"}  # fmt: skip
    show_whatif(said)
    whole = capsys.readouterr().out
    assert "120 jobs would start later, by 2 h together" in whole
    assert "… and 100 jobs more (--json lists 100)" in whole

    show_whatif(said | {"later": [job, job | {"then": None}], "pools": [pool | {"later": 2}]})
    least = capsys.readouterr().out
    assert "2 jobs would start later, by at least 2 h together" in least
    assert "more (" not in least
