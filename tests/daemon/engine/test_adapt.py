"""A daemon that is started again with other settings: what goes on, and what is refused."""

import asyncio

import pytest
from msgspec.structs import replace

from daemon.engine.engine import Engine
from daemon.engine.reconfigure import LESS
from daemon.journal.journal import Journal
from daemon.journal.recovery import recover
from daemon.model.calendar import month_of
from daemon.model.inputs import Cancel, Configured, Ended, Maintain, SetPool, Started, Tick
from daemon.model.job import JobPhase, PoolMode
from daemon.model.outputs import Accepted, StopEffect
from daemon.model.setup import Budget
from sia.console.errors import UserError
from sia.events import GpusOut, PoolChanged
from sia.limits import MAX_GROUP
from sia.model import Pool
from tests.support.daemons.daemons import (
    SMALL,
    FakeBackend,
    forget_snapshots,
    serving,
    setup,
    submit,
    until,
)


def busy(**quotas):
    """One job runs in pool a, and one waits."""
    engine = Engine.new(setup([4], **quotas))
    engine.step(1.0, [submit("runs", gpus=2), submit("waits", gpus=2, run_time=1e9)])
    engine.step(1.25, [Tick()])  # what each pool would be alone is looked at a moment later
    return engine


def configured(engine, settings, now=2.0):
    step = engine.step(now, [Configured(settings)])
    engine.check()
    return step


def test_a_reconfigured_quota_applies_at_once():
    engine = busy(a=2, b=2)
    step = configured(engine, setup([4], a=4, b=0))
    assert step.answers == [Accepted()]
    assert [e.job for e in step.effects] == ["waits"]
    assert engine.core.state.pools["a"].quota == 4
    assert configured(engine, setup([4], a=4, b=0)).answers == [Accepted()]


def test_a_change_by_command_stays_if_the_configuration_is_unchanged():
    engine = busy(a=2, b=2)
    engine.step(1.5, [SetPool("b", quota=1), SetPool("a", state=PoolMode.DRAIN)])
    configured(engine, setup([8], a=2, b=2, c=3))
    assert engine.book.pools["b"].quota == engine.core.state.pools["b"].quota == 1
    assert engine.book.pools["a"].state is PoolMode.DRAIN
    step = engine.step(3.0, [submit("new", "c", 3)])
    assert [e.nodes for e in step.effects] == [(("n0", (2, 3, 4)),)]


def test_a_budget_is_changed_alone_and_the_delays_of_this_month_stay_counted():
    engine = Engine.new(
        replace(setup([8], a=4, b=4), budgets={"b": Budget(slowed_budget_minutes=9.0)})
    )
    engine.step(1.0, [SetPool("b", slowed_budget_pct=5.0)])
    pool = engine.book.pools["b"]
    marks, since = (0, -1), (month_of(1.0)[0], -30.0)
    pool.marks, pool.delayed_from = marks, since  # since then one began half a minute late
    configured(engine, replace(setup([8], a=4, b=4), budgets={"b": Budget(2.0, None, 9.0)}))
    pool = engine.book.pools["b"]
    assert (pool.lend_budget_hours, pool.slowed_budget_pct) == (2.0, 5.0)
    assert pool.slowed_budget_minutes == 9.0
    assert (pool.marks, pool.delayed_from) == (marks, since)
    assert engine.delayed_minutes("b", 2.0) == 0.5
    configured(engine, setup([8], a=4, b=4))
    pool = engine.book.pools["b"]
    assert (pool.lend_budget_hours, pool.slowed_budget_minutes) == (None, None)
    assert (pool.slowed_budget_pct, pool.delayed_from) == (5.0, None)


def test_a_removed_pool_disappears_once_it_is_empty():
    engine = busy(a=2, b=2)
    before = engine.dump()
    answer = configured(engine, setup([4], b=2)).answers[0]
    assert answer.status == 409
    assert answer.detail == "pool a is gone but has jobs"
    assert engine.dump() == before
    empty = Engine.new(setup([4], a=2, b=2))
    configured(empty, setup([4], b=2))
    assert list(empty.book.pools) == ["b"]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (setup([1], a=2, b=2), "job runs uses GPUs that are gone"),
        (
            replace(setup([4]), pools=(Pool("a", 2, "other"), Pool("b", 2))),
            "pool a has another sharing group",
        ),
    ],
)
def test_a_change_that_jobs_prevent_is_refused(settings, says):
    engine = busy(a=2, b=2)
    before = engine.dump()
    assert configured(engine, settings).answers[0].detail == says
    assert engine.dump() == before


def test_a_node_that_the_backend_finds_no_longer_stays_out_until_its_jobs_have_ended():
    engine = Engine.new(setup([2, 2], a=2, b=2))
    engine.step(1.0, [submit("runs", gpus=2)])
    ((lost, _),) = engine.book.jobs["runs"].nodes
    left = [node for node in setup([2, 2], a=2, b=2).nodes if node.name != lost]
    without = replace(setup([2, 2], a=1, b=1), nodes=tuple(left), discovered=True)
    assert configured(engine, without).answers == [Accepted()]
    assert set(engine.book.nodes[lost].reasons) == {"backend"}
    step = engine.step(3.0, [submit("one", gpus=1), submit("two", "b", 1)])
    assert {name for effect in step.effects for name, _ in effect.nodes} == {left[0].name}
    again = Engine.restore(engine.dump())
    assert again.dump() == engine.dump()
    engine.step(4.0, [Ended("runs", 1, 0)])
    configured(engine, without, 5.0)
    assert list(engine.book.nodes) == [left[0].name]


def test_a_node_of_which_jobs_use_lost_gpus_stays_out_until_they_have_ended():
    engine = Engine.new(setup([4], a=4))
    engine.step(1.0, [submit("low", gpus=2), submit("high", gpus=2)])
    assert [engine.book.jobs[job].nodes for job in ("low", "high")] == [
        (("n0", (0, 1)),), (("n0", (2, 3)),),
    ]  # fmt: skip
    fewer = replace(setup([3], a=2), discovered=True)
    configured(engine, fewer)
    assert engine.book.nodes["n0"].reasons == {"backend": LESS}
    assert engine.book.nodes["n0"].gpus == (0, 1, 2, 3)
    assert Engine.restore(engine.dump()).dump() == engine.dump()
    step = engine.step(4.0, [Ended("low", 1, 0), submit("waits", gpus=1)])
    assert not step.effects
    engine.step(5.0, [Ended("high", 1, 0)])
    configured(engine, fewer, 6.0)
    assert (engine.book.nodes["n0"].reasons, engine.book.nodes["n0"].gpus) == ({}, (0, 1, 2))


def test_a_node_that_lost_gpus_stays_out_while_the_pools_own_more_than_what_is_left():
    engine = Engine.new(setup([4], a=4))
    configured(engine, replace(setup([3], a=4), discovered=True))
    assert engine.book.nodes["n0"].reasons == {"backend": LESS}


def test_nodes_that_are_gone_stay_out_while_the_pools_own_more_than_what_is_left():
    engine = Engine.new(setup([2, 2], a=2, b=2))
    left = setup([2, 2], a=2, b=2).nodes[:1]
    assert configured(engine, replace(setup([2, 2], a=2, b=2), nodes=left, discovered=True)).answers
    gone = setup([2, 2], a=2, b=2).nodes[1].name
    assert set(engine.book.nodes[gone].reasons) == {"backend"}
    configured(engine, replace(setup([2, 2], a=1, b=1), nodes=left, discovered=True), 3.0)
    assert gone not in engine.book.nodes


def test_a_node_that_the_backend_finds_again_is_used_again():
    engine = Engine.new(setup([2, 2], a=2, b=2))
    engine.step(1.0, [submit("runs", gpus=2)])
    ((lost, _),) = engine.book.jobs["runs"].nodes
    whole = replace(setup([2, 2], a=2, b=2), discovered=True)
    left = tuple(node for node in whole.nodes if node.name != lost)
    configured(engine, replace(setup([2, 2], a=1, b=1), nodes=left, discovered=True))
    configured(engine, whole, 3.0)
    assert not engine.book.nodes[lost].reasons


@pytest.mark.parametrize(
    "settings",
    [
        replace(setup([4], a=2, b=2), policy="fcfs"),
        replace(setup([4], a=2, b=2), options=replace(SMALL, windows=(9.0, 99.0))),
    ],
)
def test_another_policy_continues_with_the_same_jobs(settings):
    engine = busy(a=2, b=2)
    configured(engine, settings)
    assert type(engine.core.policy).__name__.lower() == settings.policy
    step = engine.step(3.0, [Ended("runs", 1, 0)])
    assert [e.job for e in step.effects] == ["waits"]
    again = Engine.restore(engine.dump())
    assert again.dump() == engine.dump()


def test_las_takes_the_jobs_of_the_policy_before():
    engine = busy(a=2, b=2)
    configured(engine, replace(setup([4], a=2, b=2), policy="las"))
    assert type(engine.core.policy).__name__ == "Las"
    assert engine.core.state.jobs.keys() == {"runs", "waits"}
    assert Engine.restore(engine.dump()).dump() == engine.dump()
    engine.step(3.0, [Ended("runs", 1, 0)])
    assert engine.core.state.jobs["waits"].stream is not None


def test_a_pool_that_was_removed_and_added_again_begins_a_new_virtual_schedule():
    settings = setup(a=2, b=4)
    engine = Engine.new(settings)
    engine.step(1.0, [Tick()])
    one = replace(settings, pools=settings.pools[:1])
    engine.step(2.0, [Configured(one)])
    engine.step(3.0, [Configured(replace(settings, pools=(*one.pools, Pool("b", 8))))])
    engine.step(4.0, [submit("wide", "b", 6)])
    engine.step(14.0, [Ended("wide", 1, 0)])
    engine.settle_accounts()
    account = engine.book.accounts["b"]
    assert (account.clock.quota, account.clock.told) == (8, 8)
    assert (account.jobs, account.never) == (1, 0)


def test_timers_that_expired_while_the_daemon_was_down_run_first():
    engine = Engine.new(setup([8], a=4, b=4))
    engine.step(1.0, [SetPool("a", quota=2, until=100.0), submit("long", time_limit=50.0)])
    engine.step(1.0, [Started("long", 1), Maintain("fans", "n0", 90.0, 300.0)])
    told = engine.book.notices
    again = Engine.restore(engine.dump())
    step = configured(again, setup([8, 1], a=4, b=4), now=200.0)
    assert step.answers == [Accepted()]
    assert again.core.state.pools["a"].quota == again.book.pools["a"].quota == 4
    assert StopEffect("long", 1, "end") in step.effects
    assert again.book.jobs["long"].phase is JobPhase.ENDING
    kinds = {n.kind for n in step.notices}
    assert kinds == {"pool_changed", "warned", "ending", "node_out", "configured"}
    assert [n.seq for n in step.notices] == [*range(told + 1, again.book.notices + 1)]
    assert [type(event) for event in step.events] == [PoolChanged, GpusOut, GpusOut]


@pytest.mark.parametrize("begin", [0.5, 50.0])
def test_maintenance_of_a_removed_node_is_dropped(begin):
    engine = Engine.new(setup([4, 4], a=4))
    engine.step(1.0, [Maintain("stays", "n0", begin, 60.0), Maintain("goes", "n1", begin, 60.0)])
    step = configured(engine, setup([4], a=4))
    assert ("maintenance_dropped", "n1") in [(n.kind, n.node) for n in step.notices]
    engine = Engine.restore(engine.dump())
    for now in (50.0, 60.0):
        engine.step(now, [Tick()])
        engine.check()
    assert not engine.book.windows


@pytest.mark.parametrize("policy", ["sia", "fcfs"])
def test_a_pool_changes_its_group_while_no_job_is_there(policy):
    settings = replace(setup(a=8, b=8), policy=policy)
    engine = Engine.new(settings)
    engine.step(1.0, [submit("gone"), Cancel("gone")])
    apart = replace(settings, pools=(Pool("a", 8, share=False), Pool("b", 8, "others")))
    assert configured(engine, apart).answers == [Accepted()]
    groups = [(g.name, [p.name for p in g.pools]) for g in engine.core.state.groups]
    assert groups == [("a alone", ["a"]), ("others", ["b"])]
    step = engine.step(3.0, [submit(f"b{i}", "b", 8, run_time=3.0) for i in range(2)])
    assert [e.job for e in step.effects] == ["b0"]
    engine.step(4.0, [Ended("b0", 1, 0), Cancel("b1")])
    configured(engine, settings, now=5.0)
    assert [len(group.pools) for group in engine.core.state.groups] == [2]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (setup([4], a=2, b=2), "the pools would own 6 GPUs of 4"),
        (setup(a=2, b=MAX_GROUP), f"a sharing group would own more than {MAX_GROUP} GPUs"),
    ],
)
def test_quotas_raised_by_command_count(settings, says):
    engine = Engine.new(setup([8], a=2, b=2))
    engine.step(1.0, [SetPool("a", quota=4)])
    assert configured(engine, settings).answers[0].detail == says


def test_a_new_configuration_is_in_the_journal(tmp_path):
    async def story():
        backend, path = FakeBackend(), tmp_path / "db"
        async with serving(path, setup(a=2), backend) as service:
            await service.submit([submit("one", gpus=2), submit("two", gpus=2)])
            await until(lambda: "one" in backend.running)
        async with serving(path, setup(a=4, b=1), backend) as service:
            await until(lambda: "two" in backend.running)
            engine = service.engine
        forget_snapshots(path)
        journal = Journal(path)
        assert recover(journal, setup(a=2)).dump() == engine.dump()
        journal.close()
        with pytest.raises(UserError, match="pool a is gone but has jobs; drain it"):
            async with serving(path, setup(b=1), backend):
                pass

    asyncio.run(story())


def test_reconfigured_limits_apply_at_once():
    engine = busy(a=2, b=2)
    settings = setup([4], a=2, b=2)
    a, b = settings.pools
    engine.step(1.0, [submit("short", gpus=1, run_time=3.0)])  # b lends it one
    assert engine.core.state.pools["b"].lends == 1
    configured(engine, replace(settings, pools=(a, replace(b, lend_limit=1, weight=2.0))))
    step = engine.step(3.0, [submit("another", gpus=1, run_time=3.0)])
    assert not step.effects
    configured(engine, settings, 4.0)
    assert engine.book.pools["b"].lend_limit is None
    assert [e.job for e in engine.step(5.0, [submit("more", run_time=3.0)]).effects] == []
