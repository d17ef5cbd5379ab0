"""`GET /v1/jobs/ID/why`: a job's obstacles, over the wire and in words."""

from unittest.mock import patch

from msgspec.structs import replace

from daemon.answers.explain.explain import explain, waits
from daemon.answers.explain.wording import doubt, outlook_words
from daemon.answers.simulate.fork import ChildTimeoutError
from daemon.config.config import NodeConfig
from daemon.doors.http.routes import explain as route
from daemon.doors.views.queues import QueuePosition, shortly
from daemon.engine.engine import Engine
from daemon.model.access import Principal, Role
from daemon.model.inputs import ForecastHealth, Foreseen, SetPool, Started
from daemon.model.job import JobPhase
from daemon.model.limits import NO_BUDGET
from daemon.model.setup import Budget
from daemon.wire.explain import OutlookView, PoolNotLending
from sia.contract.policy import Awaited
from sia.explain.obstacles import (
    EndingJob,
    Explanation,
    LimitObstacle,
    OrderObstacle,
    RoundObstacle,
    StartPath,
)
from sia.limits import MAX_GROUP
from sia.model import Load
from sia.policies.sia.policy import Sia
from tests.support.daemons.daemons import setup, submit
from tests.support.daemons.doors import asked, door, job_in, story

ALL = Principal("op", Role.OPERATOR, frozenset())
GUESTS = {"guest0": 2, "guest1": 2, "guest2": 3}
LONG = {"pool": "vision", "gpus": 8, "duration": 3600, "run_time": 3600}


async def why(client, job_id, status=200):
    return await asked(client, "GET", f"/v1/jobs/{job_id}/why", status=status)


@story
async def test_a_pending_job_is_explained_in_data_and_in_words(folder):
    async with door(folder, speed=1.0) as client:
        for job_id in ("first", "second", "third"):
            await asked(client, "POST", "/v1/jobs", {"id": job_id, **LONG}, status=201)
        await job_in(client, "first", "running")
        said = await why(client, "third")
        assert said["exact"]
        assert said["position"] == 2
        turn, quota = said["obstacles"]
        assert turn == {"type": "turn", "jobs": 1, "gpus": 8, "first": "second"}
        assert [end["job"] for end in quota.pop("ends")] == ["first"]
        assert quota == {"type": "quota", "pool": "vision", "short": 8, "left": 0, "quota": 8}
        assert [way["name"] for way in said["ways"]] == ["turn", "spare"]
        detail = await asked(client, "GET", "/v1/jobs/third")
        first = "Waiting for 1 job ahead of it (8 GPUs)"
        quota = "and for 8 more GPUs: vision has 0 of 8 free"
        ends = ", 8 GPUs come free when job first (expected in "
        assert said["words"][0].startswith(f"{first}; {quota}{ends}")
        assert detail["waits"][0] == f"{first}; {quota}"


@story
async def test_a_policy_that_raises_is_named_and_costs_the_answer_alone(folder):
    async with door(folder, speed=1.0) as client:
        for job_id in ("first", "second"):
            await asked(client, "POST", "/v1/jobs", {"id": job_id, **LONG}, status=201)
        with patch.object(Sia, "rank", side_effect=KeyError("lost")):
            wrong = await asked(client, "GET", "/v1/jobs/second", status=500)
        assert wrong["detail"] == "the policy failed in rank: KeyError: lost"
        assert "daemon.policy" in wrong["mend"]
        assert (await asked(client, "GET", "/v1/jobs/second"))["waits"]


@story
async def test_the_facts_are_shown_if_no_child_answers_in_time(folder):
    async def late(*_args, **_options):
        raise ChildTimeoutError("no answer within 10 s")

    async with door(folder, speed=1.0) as client:
        for job_id in ("first", "second"):
            await asked(client, "POST", "/v1/jobs", {"id": job_id, **LONG}, status=201)
        with patch.object(route, "child_worker", late):
            said = await why(client, "second")
        assert not said.get("exact")
        assert said["obstacles"][0]["type"] == "quota"
        assert said["obstacles"][0]["ends"] == []
        assert (
            said["words"][-1]
            == "There may be other obstacles: no simulation has confirmed this list"
        )


@story
async def test_why_names_a_hold_of_the_job_and_a_hold_of_its_pool(folder):
    async with door(folder, speed=1.0) as client:
        await asked(client, "POST", "/v1/jobs", {"id": "a", "hold": True, **LONG}, status=201)
        said = await why(client, "a")
        assert (said["obstacles"], said["exact"]) == ([{"type": "hold"}], True)
        await asked(client, "PATCH", "/v1/pools/vision", {"state": "hold"})
        await asked(client, "POST", "/v1/jobs/a/release")
        said = await why(client, "a")
        assert said["obstacles"] == [{"type": "pool_hold", "pool": "vision"}]
        assert said["words"] == ["pool vision is on hold: sia pool set vision --state open"]
        await asked(client, "PATCH", "/v1/pools/vision", {"state": "open"})
        await job_in(client, "a", "running")


@story
async def test_why_names_the_node_that_is_down(folder):
    async with door(folder, nodes=(NodeConfig("n1", 12),), speed=1.0) as client:
        await asked(client, "POST", "/v1/nodes/n1/drain")
        await asked(client, "POST", "/v1/jobs", {"id": "a", **LONG}, status=201)
        said = await why(client, "a")
        assert said["obstacles"] == [{"type": "place", "gpus": 8, "nodes": ["n1"]}]


@story
async def test_running_ended_and_unknown_jobs_are_explained(folder):
    async with door(folder, speed=1.0) as client:
        job = {"id": "a", "pool": "speech", "gpus": 8, "duration": 3600, "run_time": 100}
        await asked(client, "POST", "/v1/jobs", job, status=422)
        await asked(client, "POST", "/v1/jobs", {"id": "b", **LONG, "array": 2}, status=201)
        await job_in(client, "b.0", "running")
        said = await why(client, "b.0")
        assert said["words"] == ["it runs in its pool's quota: head of its pool, within quota"]
        assert said["stream"] == "dedicated"
        await why(client, "b", status=409)
        await asked(client, "DELETE", "/v1/jobs/b.0", status=202)
        await job_in(client, "b.0", "cancelled")
        assert (await why(client, "b.0"))["words"][0].startswith("it is over: cancelled")
        await why(client, "nobody", status=404)


def test_a_guest_is_told_which_pools_lend_it_gpus():
    engine = Engine.new(setup(a=2, b=8))
    engine.step(1.0, [submit("guest", "a", 2, 5.0), submit("more", "a", 2, 5.0)])
    engine.step(2.0, [Started("guest", 1), Started("more", 1)])
    said = explain(engine.book, engine.core, engine.book.jobs["more"], ALL)
    assert said.loans == {"b": 2}
    assert said.words == ["it runs on spare GPUs: ends within 5 s, in which no pool needs the GPUs",
                          "its GPUs are 2 of b"]  # fmt: skip


def test_jobs_of_invisible_pools_appear_only_as_a_sum_of_gpus():
    engine = Engine.new(setup(a=4, b=4))
    engine.step(1.0, [submit(name, "b", n, 5.0) for name, n in GUESTS.items()])
    engine.step(2.0, [submit("own", "a", 1, 1e6), submit("waits", "a", 4, 1e6)])
    record = engine.book.jobs["waits"]
    ends = {}
    for name, pools in (("all", ["a", "b"]), ("own", ["a"])):
        who = Principal("ann", Role.VIEWER, frozenset(pools))
        said = explain(engine.book, engine.core, record, who)
        quota, room = said.obstacles
        assert [end.job for end in quota.ends] == ["own"]
        ends[name] = room.ends
    assert [(end.job, end.gpus) for end in ends["all"]] == [("guest0", 2), ("guest1", 2)]
    assert all(end.end > 2.0 for end in ends["all"])
    assert ends["own"] == (EndingJob("", "b", 4, None),)
    assert "jobs of b (4 GPUs)" in said.words[0]
    assert "guest" not in repr(said)


def test_asking_changes_nothing():
    engine = Engine.new(setup(a=4, b=4))
    engine.step(1.0, [submit(f"j{i}", "ab"[i % 2], 1 + i % 4, 10.0 * i) for i in range(20)])
    before = engine.dump()
    for record in engine.book.jobs.values():
        explain(engine.book, engine.core, record, ALL)
    assert engine.dump() == before
    engine.check()


def kept_from_lending(policy="sia", **budget):
    """Pool b is kept from lending by its budget; `waits` is a job of pool a that it could hold."""
    budgets = {"b": Budget(**budget)}
    engine = Engine.new(replace(setup(a=2, b=4), policy=policy, budgets=budgets))
    engine.step(1.0, [submit("full", "a", 2, 90.0)])
    engine.step(2.0, [submit("waits", "a", 2, 90.0)])
    return engine


def spare_way(engine, who=ALL):
    said = explain(engine.book, engine.core, engine.book.jobs["waits"], who)
    return said.ways[-1].obstacles, said.words[-1]


def test_a_pool_that_may_not_lend_is_named_with_the_reason_and_its_end():
    engine = kept_from_lending(lend_budget_hours=0.0)
    (kept,), words = spare_way(engine)
    assert kept == PoolNotLending("b", {"hours": "lent 0.0 of 0 GPU-hours this month (UTC)"}, None)
    remedy = "(sia pool set b --lend-budget-hours none)"
    assert words.endswith(f"pool b to lend again: {kept.why['hours']} {remedy}")

    engine.step(3.0, [SetPool("b", lend_budget_hours=NO_BUDGET)])
    assert engine.book.jobs["waits"].phase is JobPhase.STARTING


def test_a_pool_with_a_lending_ban_and_a_limit_is_named_for_both():
    engine = kept_from_lending(lend_budget_hours=0.0)
    engine.step(3.0, [ForecastHealth({"b": "7 of 20 windows missed"}), SetPool("b", lend_limit=1)])
    (kept,), words = spare_way(engine)
    assert (kept.why["drift"], kept.limit) == ("7 of 20 windows missed", 1)
    assert 'and 7 of 20 windows missed (drift = "say" in [daemon]), and a limit of b:' in words

    engine.step(4.0, [ForecastHealth({}), SetPool("b", lend_budget_hours=NO_BUDGET)])
    assert spare_way(engine)[0] == [LimitObstacle("lend", "b", 1)]


def test_the_reason_of_a_lending_ban_is_shown_only_to_those_who_may_see_the_pool():
    engine = kept_from_lending(lend_budget_hours=0.0)
    (kept,), words = spare_way(engine, Principal("ann", Role.VIEWER, frozenset("a")))
    assert kept == PoolNotLending("b", {"hours": ""}, None)
    assert words.endswith("waiting for pool b to lend again")


def test_under_any_policy_that_shares_a_pool_that_does_not_lend_is_named():
    engine = kept_from_lending("gssf", lend_budget_hours=0.0)
    (kept,), _ = spare_way(engine)
    assert (type(kept), kept.pool) == (PoolNotLending, "b")


def test_an_unforeseeable_start_is_shown_without_a_number():
    engine = Engine.new(replace(setup(a=2, b=4), policy="sia"))
    windows = range(len(engine.core.state.options.windows))
    engine.step(1.0, [Foreseen([Load("b", window, MAX_GROUP) for window in windows])])
    engine.step(2.0, [submit("full", "a", 2, 90.0), submit("waits", "a", 2, 90.0)])
    _, words = spare_way(engine)
    assert "reserved for pool b for 1 m 40 s (no forecast of its demand is ready yet)" in words
    assert f"{MAX_GROUP:,}" not in words


def test_a_planned_pause_is_announced_with_what_a_round_would_cost_another():
    told = OutlookView(
        2.5, 1.2, 1, 3, 1000.0, 120.0, [1, 1, 0, 0, 1], "b", 4.0, changes_after=600.0, speed=2.0
    )
    said = " | ".join(outlook_words(told, 1060.0))
    assert said.startswith("its weight is 2.5, number 1 of 3 jobs in its pool; its finish-time")
    assert "estimated as 1.20" in said
    assert "| by the plan it will be paused in 3 m for 4 m; " in said
    assert "would take one from job b, which would lose 4 times as much as it gains" in said
    assert said.endswith("| after 10 m of work it is expected to run 2 times as fast")
    for plan, words in (
        ([0, 0, 1], "its next round begins in 3 m"),
        ([1, 1], "it goes on for the next 3 m at least"),
        ([0, 0], "it does not run for the next 3 m at least"),
        ([1, 1, 0], "it will be paused in 3 m for the rest of the plan"),
    ):
        told.plan = plan
        assert f"by the plan {words}; " in outlook_words(told, 1060.0)[1]
    assert outlook_words(None, 0.0) == []
    told.plan = []
    assert outlook_words(told, 1060.0)[1].startswith("no round is planned for it yet")


def test_a_job_that_a_policy_in_rounds_does_not_run_waits_for_the_next_round():
    for policy in ("shockwave", "gavel"):
        engine = Engine.new(replace(setup([2], a=2), policy=policy))
        jobs = [submit(name, gpus=2, run_time=600.0) for name in ("j", "k")]
        engine.step(30.0, jobs)
        engine.check()
        for job_id in ("j", "k"):
            said = explain(engine.book, engine.core, engine.book.jobs[job_id], ALL)
            assert (said.exact, said.obstacles) == (False, [RoundObstacle(120.0)])
            assert said.words[0] == (
                "Waiting for its round: who runs is decided when a round begins, the next one in "
                "1 m 30 s"
            )
        if policy == "shockwave":
            assert "number 1 of 2 jobs" in said.words[1]
            assert said.words[2].startswith("no round is planned for it yet")


def test_a_job_that_waits_for_its_trial_lease_or_cycle_is_told_so():
    made = setup((8,) * 3, a=24)
    engine = Engine.new(replace(made, policy="chronus:profile=300:capacity=16"))
    usual = {"run_time": 1000.0, "deadline": 9000.0}
    slim = submit("slim", gpus=8, run_time=5000.0)
    wide = submit("wide", gpus=24, run_time=100.0, preemptible="never")
    tried, mine = (submit(each, gpus=16, **usual, user=each) for each in ("tried", "mine"))
    engine.step(0.0, [tried, slim, wide, mine])

    def told(name):
        said = explain(engine.book, engine.core, engine.book.jobs[name], ALL)
        assert not any(isinstance(each, RoundObstacle) for each in said.obstacles)
        return [words for words in said.words if words.startswith("By the rules of the policy")]

    (words,) = told("mine")
    assert words.startswith("By the rules of the policy, it waits for its trial on 8 GPUs of 16")
    (words,) = told("wide")
    assert "it waits for GPUs of the profiler, which leaves 8: lower capacity or floor" in words
    engine = Engine.new(replace(made, policy="chronus:profile=0"))
    engine.step(0.0, [submit("short", gpus=24), submit("long", gpus=24, run_time=900.0)])
    (words,) = told("long")
    assert words.endswith("of best effort, in which the shortest jobs go first (in 5 m)")


def test_under_chronus_a_job_waits_for_gpus_and_the_next_cycle_and_not_in_a_queue():
    engine = Engine.new(replace(setup((8,) * 3, a=24), policy="chronus:profile=0"))
    first = submit("runs", gpus=24, run_time=600.0)
    shorter = [submit(f"short{i}", gpus=8, run_time=700.0) for i in range(2)]
    engine.step(0.0, [first])
    engine.step(1.0, [*shorter, submit("long", gpus=24, run_time=900.0)])
    record = engine.book.jobs["long"]
    said = explain(engine.book, engine.core, record, ALL)
    assert not any(isinstance(each, OrderObstacle) for each in said.obstacles)
    cycle = "the next cycle of best effort, in which the shortest jobs go first"
    assert said.words[0].startswith("Waiting for 24 more GPUs: a has 0 of 24 free")
    assert f"By the rules of the policy, it waits for {cycle} (in 4 m 59 s)" in said.words
    assert "ahead" not in " ".join([*said.words, *waits(engine.book, engine.core, record)])
    assert shortly(engine.core, QueuePosition(record, 3)) == f"waiting for {cycle}"
    with patch.object(type(engine.core.policy), "awaits", side_effect=ZeroDivisionError):
        assert shortly(engine.core, QueuePosition(record, 3)) == "waiting for idle GPUs"


def test_a_job_that_lacks_nothing_waits_for_the_next_decision():
    way = StartPath("turn", open=True, obstacles=(), exact=False)
    (line,) = doubt(Explanation((), (way,), exact=False), None, 0.0)
    assert line.endswith("waits for the policy's next decision")
    (line,) = doubt(Explanation((), (way,), exact=False), Awaited("its next lease", 90.0), 30.0)
    assert line.endswith("waits for its next lease (in 1 m)")
