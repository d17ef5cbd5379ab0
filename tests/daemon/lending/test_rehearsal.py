"""`lending shadow`: what is real is as with lending off, and what is told as if it were on."""

from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from daemon.config.config import PoolConfig
from daemon.engine.engine import Engine
from daemon.lending.shadow import ShadowCore
from daemon.model.access import public_notice
from daemon.model.account import ShadowState
from daemon.model.inputs import (
    Cancel,
    Configured,
    Drain,
    Foreseen,
    Hold,
    Lending,
    Release,
    Resume,
    SetPool,
    SetPriority,
)
from daemon.model.job import LendingMode, PoolMode
from sia.core.core import Core
from sia.events import JobProgressed, JobSubmitted, LendingSwitched
from sia.model import Job, Load, Options, Pool
from sia.policies import make
from tests.support.budget import budget
from tests.support.daemons.daemons import setup, submit
from tests.support.daemons.doors import asked, door, job_in, story
from tests.support.daemons.lives import Life, lived

ON, OFF, SHADOW = Lending(on=True), Lending(on=False), Lending(on=False, shadow=True)

SEEDS = st.integers(0, 2**32 - 1)

EXAMPLES = budget(ci=12, soak=300)
"""Histories of a test; of those without a restart, twice as many."""


def exact(seconds):
    """Sums of such times are what they should be: not a bit is rounded."""
    return max(1, round(seconds * 64)) / 64


def some_story(seed, *, wild, jobs=40):
    """Submissions and, where it is wild, all else that may happen; how long jobs run in truth."""
    rng = Random(seed)
    tale, lasts, now = [], {}, 1000.0
    for i in range(jobs):
        now += rng.choice([0.0, 1.0, exact(rng.uniform(0, 20)), exact(rng.uniform(0, 60))])
        job_id, length = f"j{i}", exact(rng.choice([rng.uniform(1, 20), rng.uniform(1, 90)]))
        lasts[job_id] = exact(length * rng.uniform(0.3, 3)) if wild else length
        tale.append((now, [submit(job_id, rng.choice("aab"), rng.randint(1, 3), length)]))
        if rng.random() < 0.2:
            load = Load(rng.choice("ab"), rng.randrange(3), rng.randrange(3))
            tale.append((now, [Foreseen([load])]))
        if wild and rng.random() < 0.5:
            other = f"j{rng.randrange(i + 1)}"
            what = rng.choice([
                Cancel(other), Hold(other), Release(other), SetPriority(other, rng.randrange(3)),
                SetPool(rng.choice("ab"), quota=rng.randint(2, 5)), SetPool("a", lend_limit=1),
                SetPool("b", state=rng.choice([PoolMode.OPEN, PoolMode.HOLD])),
            ])  # fmt: skip
            tale.append((now + exact(rng.random()), [what]))
    return sorted(tale, key=lambda each: each[0]), lasts


def live(switch, tale, lasts, policy="sia", quotas=None):
    engine = Engine.new(replace(setup(**(quotas or {"a": 3, "b": 4})), policy=policy))
    return Life(engine, lambda spec: lasts[spec.id]).run([(999.0, [switch]), *tale])


@given(SEEDS, st.sampled_from(["sia", "gssf", "mmfs", "fcfs", "easy"]))
@settings(max_examples=2 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_shadow_lending_leaves_the_real_schedule_unchanged(seed, policy):
    tale, lasts = some_story(seed, wild=True)
    off, shadow = (live(switch, tale, lasts, policy) for switch in (OFF, SHADOW))
    shadow.engine.check()
    # Ticks in between decide nothing: the second core has its own times at which it is woken.
    assert lived(off) == lived(shadow)
    told = [(n.time, n.kind, n.job, n.pool) for n in off.notices if n.kind != "lending"]
    kinds = ("lending", "would_lend")
    assert told == [(n.time, n.kind, n.job, n.pool) for n in shadow.notices if n.kind not in kinds]


@given(SEEDS, st.sampled_from(["sia", "gssf"]))
@settings(max_examples=2 * EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_shadow_loans_equal_real_loans_if_estimates_are_exact(seed, policy):
    """Loan by loan, to the second, and GPU-second by GPU-second."""
    tale, lasts = some_story(seed, wild=False)
    on, shadow = (live(switch, tale, lasts, policy) for switch in (ON, SHADOW))
    told = [(n.data["at"], n.job, n.pool, n.data["gpus"]) for n in shadow.notices
            if n.kind == "would_lend"]  # fmt: skip
    done = [(n.time, n.job, n.pool, n.data["gpus"]) for n in on.notices
            if n.kind == "loan_opened" and n.data["to"] != n.pool]  # fmt: skip
    assert told == done
    kept = shadow.engine.book.shadow
    assert not kept.twins
    assert not kept.renewed
    assert {key: pytest.approx(s, abs=1e-6) for key, s in lent(on).items()} == {
        (lender, to): s for lender, sums in kept.lent.items() for to, s in sums.items()
    }
    both = {job: (lived(shadow)[job].start, run.start) for job, run in lived(on).items()}
    gained = sum(alone - here for alone, here in both.values() if alone > here + 1e-3)
    lost = sum(here - alone for alone, here in both.values() if here > alone + 1e-3)
    assert (kept.gained, kept.lost) == (pytest.approx(gained), pytest.approx(lost))


@pytest.mark.parametrize("policy", ["sia-recall", "sia-reclaim"])
def test_guests_would_be_stopped_and_started_again(policy):
    """A guest that would be stopped gives its loan back, waits, and would be lent to again."""
    tale = [
        (1000.0, [submit("long", "b", 4, 40.0, preemptible="restart")]),
        (1001.0, [submit("guest", "b", 3, 90.0, preemptible="restart")]),
        (1010.0, [submit("owner", "a", 3, 20.0, preemptible="restart")]),
    ]
    lasts = {"long": 40.0, "guest": 90.0, "owner": 20.0}
    on, shadow = (live(switch, tale, lasts, policy) for switch in (ON, SHADOW))
    shadow.engine.check()
    told = [(n.data["at"], n.job, n.pool, n.data["gpus"]) for n in shadow.notices
            if n.kind == "would_lend"]  # fmt: skip
    assert told == [(1001.0, "guest", "a", 3), (1030.0, "guest", "a", 3)]
    kept = shadow.engine.book.shadow
    assert not kept.renewed
    assert kept.lent == {"a": {"b": pytest.approx(lent(on)["a", "b"])}}


def test_gpus_that_are_down_would_not_be_lent():
    engine = Engine.new(setup([4, 4], a=4, b=4))
    life = Life(engine, lambda spec: 50.0).run([
        (999.0, [SHADOW]), (1000.0, [submit("own", "a", 4)]), (1001.0, [Drain("n1")]),
        (1002.0, [submit("guest", "a", 4, 4.0)]), (1010.0, [Resume("n1")]),
    ])  # fmt: skip
    told = [(n.data["at"], n.job) for n in life.notices if n.kind == "would_lend"]
    assert told == [(1010.0, "guest")]


def lent(life):
    """GPU-seconds by (lender, borrower), by what people are told of loans."""
    sums, since = {}, {}
    for n in filter(None, map(public_notice, life.notices)):
        gpus = n.data.get("gpus", 0)
        for pool, more in {
            "loan_opened": [(n.pool, gpus)],
            "loan_closed": [(n.pool, -gpus)],
            "loan_moved": [(n.data.get("previous"), -gpus), (n.pool, gpus)],
        }.get(n.kind, ()):
            had, begin = since.get((n.job, pool), (0, n.time))
            key = pool, n.data["to"]
            assert pool != key[1], "its own GPUs are no loan"
            sums[key] = sums.get(key, 0.0) + had * (n.time - begin)
            since[n.job, pool] = had + more, n.time
    return {key: seconds for key, seconds in sums.items() if seconds}


@given(SEEDS, st.integers(1, 30))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_restart_in_the_middle_changes_nothing(seed, place):
    tale, lasts = some_story(seed, wild=True, jobs=20)
    whole = live(SHADOW, tale, lasts)
    life = Life(Engine.new(setup(a=3, b=4)), lambda spec: lasts[spec.id])
    life.step(999.0, [SHADOW])
    middle = tale[min(place, len(tale) - 1)][0]
    life.run([each for each in tale if each[0] < middle], until=middle - 1 / 128)
    before = life.engine.dump()
    life.engine = Engine.restore(before)
    assert life.engine.dump() == before
    life.run([each for each in tale if each[0] >= middle])
    assert life.engine.dump() == whole.engine.dump()
    assert life.notices == whole.notices


def test_a_restart_between_two_steps_of_one_time_changes_nothing():
    """A job starts in both cores at 1000, in two steps, and ends at its real end."""
    lasts = {"long": 100.0, "short": 90.0}
    whole, cut = (Life(Engine.new(setup(a=3, b=4)), lambda spec: lasts[spec.id]) for _ in range(2))
    for life in (whole, cut):
        life.step(999.0, [SHADOW])
        life.step(1000.0, [submit("long", "a", 3, 100.0), submit("short", "a", 2, 10.0)])
        life.step(1000.0, [SetPool("a", quota=5)])
    kept = whole.engine.book.shadow
    assert kept.twins["short"].began == kept.twins["short"].real == 1000.0
    cut.engine = Engine.restore(cut.engine.dump())
    for life in (whole, cut):
        life.run(until=1050.0)
        assert life.engine.book.shadow.twins["short"].over is None
        life.run()
        assert life.engine.book.shadow.twins == {}
    assert cut.engine.dump() == whole.engine.dump()
    assert cut.notices == whole.notices


@given(SEEDS)
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
def test_restarts_after_each_step_change_nothing_even_with_many_steps_of_one_time(seed):
    tale, lasts = some_story(seed, wild=True, jobs=20)
    whole, cut = (Life(Engine.new(setup(a=3, b=4)), lambda spec: lasts[spec.id]) for _ in range(2))
    for now, inputs in [(999.0, [SHADOW]), *((now - now % 8, inputs) for now, inputs in tale)]:
        for life in (whole, cut):
            life.run(until=now - 1 / 128)
            life.step(now, inputs)
        cut.engine = Engine.restore(cut.engine.dump())
    for life in (whole, cut):
        life.run()
    assert cut.engine.dump() == whole.engine.dump()
    assert cut.notices == whole.notices


def test_shadow_gpu_hours_are_corrected_once_the_job_has_ended():
    """It waits in truth: until it has run, nobody knows how long it would have borrowed."""
    tale = [
        (1000.0, [submit("long", "a", 3, 1e5), submit("short", "a", 2, 10.0)]),
        (2000.0, [Cancel("long")]),
    ]
    life = live(SHADOW, tale, {"long": 1e5, "short": 15.0})
    kept = life.engine.book.shadow
    (told,) = [n for n in life.notices if n.kind == "would_lend"]
    assert (told.time, told.job, told.pool, told.data) == (
        1000.0, "short", "b", {"gpus": 2, "to": "a", "at": 1000.0},
    )  # fmt: skip
    assert kept.lent == {"b": {"a": pytest.approx(30.0)}}  # not the 20 that were thought
    assert (kept.jobs, kept.sooner, kept.gained) == (1, 1, pytest.approx(1000.0 + 0.0))
    assert (kept.pending, kept.left) == (0, 0)


@pytest.mark.parametrize("overhead", [0.0, 30.0])
def test_a_report_of_a_job_that_still_loads_its_work_is_the_same_in_both_cores(overhead):
    real = Core([Pool("a", 2), Pool("b", 2)], make("sia"), Options())
    events = [LendingSwitched(0.0, on=False), JobSubmitted(0.0, Job("j", "a", 0.0, 2), 100.0)]
    real.step(0.0, events)
    shadow = ShadowCore.begin(ShadowState(0.0), real, 0.0, None)
    report = JobProgressed(50.0, "j", 10.0, 0.5, overhead=overhead)
    shadow.record(50.0, [report], real.step(50.0, [report]))
    shadow.settle()
    ends = [core.state.jobs["j"].end(100.0) for core in (real, shadow.core)]
    assert ends == [50.0 + overhead + 180.0] * 2


def test_starts_with_unknown_hours_are_counted_and_stay_counted():
    engine = Engine.new(setup(a=3, b=4))
    life = Life(engine, lambda spec: {"long": 1e5}.get(spec.id, 15.0))
    life.run([(1000.0, [SHADOW]), (1000.0, [submit("long", "a", 3, 1e5)])], until=1000.0)
    life.run([(1001.0, [submit("w", "a", 2, 10.0), submit("x", "a", 2, 20.0)])], until=1500.0)
    engine.settle_accounts()
    kept = engine.book.shadow
    assert (kept.jobs, kept.pending, kept.lent) == (2, 2, {})
    life.step(1501.0, [OFF])
    life.step(1502.0, [Cancel("w")])
    assert (kept.pending, kept.left, kept.twins) == (2, 2, {})


def test_the_shadow_hours_of_a_job_that_never_runs_are_unknown():
    tale = [
        (1000.0, [submit("long", "a", 3, 1e5), submit("short", "a", 2, 10.0)]),
        (1005.0, [Cancel("short")]),
        (2000.0, [Cancel("long")]),
    ]
    kept = live(SHADOW, tale, {"long": 1e5, "short": 15.0}).engine.book.shadow
    assert (kept.unknown, kept.lent, kept.twins) == (1, {}, {})


def test_lending_is_on_off_or_shadow_and_keeps_the_results_of_shadow_lending():
    engine = Engine.new(setup(a=3, b=4))
    life = Life(engine, lambda spec: 10.0)
    assert engine.book.mode is LendingMode.ON
    life.step(1000.0, [SHADOW])
    assert engine.book.mode is LendingMode.SHADOW
    assert not engine.core.state.groups[0].lending
    assert not life.step(1001.0, [SHADOW]).answers[0].new
    life.run([(1002.0, [submit("w", "a", 3, 50.0), submit("n", "a", 2, 5.0)])])
    assert engine.book.shadow.jobs == 1
    life.step(3000.0, [OFF])
    assert engine.book.mode is LendingMode.OFF
    assert engine.book.shadow.until == 3000.0
    assert engine.due == float("inf")
    life.step(3001.0, [ON])
    assert engine.core.state.groups[0].lending
    assert engine.book.shadow.jobs == 1
    assert [n.data["mode"] for n in life.notices if n.kind == "lending"] == ["shadow", "off", "on"]


def test_the_configuration_sets_the_lending_mode_at_first_and_when_it_changes():
    shadow = replace(setup(a=3, b=4), lending=LendingMode.SHADOW)
    engine = Engine.new(shadow)
    assert (engine.book.mode, engine.core.state.groups[0].lending) == (LendingMode.SHADOW, False)
    life = Life(engine, lambda spec: 10.0)
    life.run([(1002.0, [submit("w", "a", 3, 50.0), submit("n", "a", 2, 5.0)])])
    assert (engine.book.shadow.since, engine.book.shadow.jobs) == (1002.0, 1)
    life.step(2000.0, [OFF])
    life.step(2001.0, [Configured(replace(shadow, policy="gssf"))])
    assert engine.book.mode is LendingMode.OFF  # what a command said stays
    life.step(2002.0, [Configured(replace(shadow, lending=LendingMode.ON))])
    assert (engine.book.mode, engine.core.state.groups[0].lending) == (LendingMode.ON, True)
    engine.check()


@story
async def test_shadow_results_over_http_depend_on_the_role(folder):
    pools = (PoolConfig("vision", 4), PoolConfig("speech", 4), PoolConfig("other", 2))
    async with door(folder, pools=pools) as client:
        for body in ({}, {"on": True, "mode": "off"}, {"mode": "half"}):
            await asked(client, "PUT", "/v1/lending", body, status=422)
        said = await asked(client, "PUT", "/v1/lending", {"mode": "shadow"})
        assert (said["on"], said["mode"], said["shadow"]["until"]) == (False, "shadow", None)
        for name, gpus, seconds in (("wide", 4, 2000.0), ("short", 2, 100.0)):
            job = {"id": name, "pool": "vision", "gpus": gpus, "duration": seconds}
            await asked(client, "POST", "/v1/jobs", job | {"time_limit": 20 * seconds}, status=201)
        waits = (await asked(client, "GET", "/v1/jobs/short"))["waits"]
        assert waits[-1].endswith("waiting for lending, which is off: sia lending on")
        assert (await asked(client, "GET", "/v1/lending"))["shadow"]["pending"] == 1
        await job_in(client, "short", "finished")
        said = await asked(client, "PUT", "/v1/lending", {"mode": "off"})
        assert said["shadow"]["jobs"] == 1
        ((pair),) = said["shadow"]["lent"]
        assert (pair["lender"], pair["borrower"]) in {("speech", "vision"), ("other", "vision")}
        assert pair["gpu_hours"] >= 2 * 100 / 3600
        body = {"name": "o", "role": "viewer", "pools": ["other"]}
        made = await asked(client, "POST", "/v1/tokens", body, status=201)
        other = {"Authorization": f"Bearer {made['token']}"}
        said = await asked(client, "GET", "/v1/lending", headers=other)
        assert said["shadow"]["gpu_hours"] >= 2 * 100 / 3600
        assert said["shadow"]["lent"] == [p for p in [pair] if p["lender"] == "other"]
        text = await (await client.get("/metrics")).text()
        assert f'sia_shadow_lent_gpu_seconds{{pool="{pair["lender"]}"}}' in text
        await asked(client, "PUT", "/v1/lending", {"on": True})
