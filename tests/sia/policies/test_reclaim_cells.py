"""`sia-reclaim` in cells: whatever the forecasts, nobody ends later than in the pool alone.

The same holds for `sia-recall` if all jobs may be stopped.
"""

from random import Random

import msgspec
import pytest
from msgspec.structs import replace

from predictors.perfect import PerfectLoads, PerfectRunTimes
from sia import Core
from sia.core.playout import play
from sia.core.snapshot import dump, encode, restore
from sia.decisions import PreemptJob, ProposalRefused, RowRecorded, StartJob
from sia.events import JobCancelled, JobFinished, JobSubmitted
from sia.model import RESTART, Stream
from sia.policies.sia.policy import Sia
from sia.policies.sia.recall import SiaRecall
from sia.policies.sia.reclaim import SiaReclaim
from sia.policies.sia.reclaim_cells import ReclaimInCells, ReclaimParams
from tests.sia.test_places import (
    EXACT,
    IN_ITS_OWN_WAY,
    gpus_of,
    nodes_of,
    placed_alone,
    preemptible,
    stopped_often,
)
from tests.support.budget import budget
from tests.support.builders import SMALL, job, pools


class Life:
    """A story played under `sia-reclaim`, or another policy: starts, stops, and lateness by job.

    `moved` are dedicated jobs on other GPUs of a node than those that they would have alone.
    """

    def __init__(self, owned, story, *, stops=2, estimates=None, policy=None):
        policy = policy or SiaReclaim(ReclaimParams(stops))
        self.core = Core(owned, policy, SMALL, nodes_of(owned))
        durations = {arrival.job.id: arrival.duration for arrival in story}
        self.found, self.stops, self.moved, ends = [], {}, [], {}
        before = {i: found for pool in owned for i, found in placed_alone(pool, story).items()}
        for now, events, decisions in play(
            self.core,
            story,
            run_times=PerfectRunTimes(estimates or durations),
            loads=PerfectLoads([], SMALL.windows),
        ):
            self.core.check()
            ends |= {event.job_id: now for event in events if isinstance(event, JobFinished)}
            for decision in decisions:
                assert not isinstance(decision, ProposalRefused), decision
                if isinstance(decision, StartJob):
                    self.found.append((now, "start", decision.job_id, decision.stream.value))
                    dedicated = decision.stream is Stream.DEDICATED
                    if dedicated and gpus_of(decision) != before[decision.job_id][1]:
                        self.moved.append(decision.job_id)
                elif isinstance(decision, PreemptJob):
                    self.found.append((now, "stop", decision.job_id, ""))
                    self.stops[decision.job_id] = self.stops.get(decision.job_id, 0) + 1
        self.late = {i: ends[i] - start - durations[i] for i, (start, _) in before.items()}


def restarting(*jobs):
    return [preemptible(each, RESTART) for each in jobs]


def test_a_guest_runs_in_idle_cells_until_the_owners_turn():
    owned = pools(a=8, b=8)
    life = Life(owned, restarting(
        job("own").pool("a").gpus(8).runs(50),
        job("guest").pool("a").gpus(8).at(10).runs(100),
        job("owner").pool("b").gpus(4).at(30).runs(20),
    ))  # fmt: skip
    assert life.found == [
        (0.0, "start", "own", "dedicated"),
        (10.0, "start", "guest", "spare"),
        (30.0, "stop", "guest", ""),
        (30.0, "start", "owner", "dedicated"),
        (50.0, "start", "guest", "dedicated"),
    ]
    assert max(life.late.values()) <= 0


def test_a_guest_that_fills_a_node_runs_on_when_its_turn_comes():
    """Its pool binds the node in which it runs."""
    life = Life(pools(a=8, b=8), restarting(
        job("own").pool("a").gpus(8).runs(50),
        job("guest").pool("a").gpus(8).at(10).runs(100),
        job("owner").pool("b").gpus(8).at(80).runs(20),
    ))  # fmt: skip
    assert [each[1:3] for each in life.found] == [
        ("start", "own"), ("start", "guest"), ("start", "owner"),
    ]  # fmt: skip
    assert life.late == {"own": 0, "guest": -40, "owner": 0}


def test_a_guest_elsewhere_restarts_in_its_own_cells_when_its_turn_comes():
    """Beside `part` it would have the other half of the node alone."""
    life = Life(pools(a=8, b=8), restarting(
        job("left").pool("a").gpus(4).runs(50),
        job("part").pool("a").gpus(4).runs(90),
        job("guest").pool("a").gpus(4).at(10).runs(100),
    ))  # fmt: skip
    assert life.found[2:] == [
        (10.0, "start", "guest", "spare"),
        (50.0, "stop", "guest", ""),
        (50.0, "start", "guest", "dedicated"),
    ]
    assert max(life.late.values()) <= 0


def test_a_guest_in_a_part_of_the_node_that_its_pool_binds_gets_the_gpus_that_it_would_have_alone():
    life = Life(pools(a=24, b=8, c=8), restarting(*IN_ITS_OWN_WAY))
    assert (30.0, "stop", "guest", "") in life.found
    assert not life.moved
    assert max(life.late.values()) <= 0


@pytest.mark.parametrize("policy", [SiaRecall, SiaReclaim])
@pytest.mark.parametrize(("limit", "stopped"), [(0, ["guest", "sibling"]), (1, ["guest"])])
def test_a_job_stopped_at_its_own_turn_goes_on_although_no_more_stops_are_allowed(
    policy, limit, stopped
):
    """At 30 pool a has to bind the node in which `guest`, its head, and `sibling` run."""
    story = [
        each._replace(job=replace(each.job, submit=4.0), duration=500.0)
        if each.job.id == "sibling"
        else each
        for each in IN_ITS_OWN_WAY
    ]
    story.sort(key=lambda each: each.job.submit)
    owned = pools(a=24, b=8, c=8)
    core = Core(owned, policy(), replace(SMALL, stops_per_hour=limit), nodes_of(owned))
    durations = {each.job.id: each.duration for each in story}
    loads = PerfectLoads([each.job for each in story], SMALL.windows)
    for now, _, decisions in play(core, story, run_times=PerfectRunTimes(durations), loads=loads):
        core.check()
        if now == 30:
            stops = [each.job_id for each in decisions if isinstance(each, PreemptJob)]
            assert stops == stopped
            assert core.state.jobs["guest"].stream is Stream.DEDICATED
            return
    raise AssertionError("nothing happened at 30")


def test_guests_use_the_cells_that_are_reserved_for_a_job_that_has_ended():
    """`quick` ends in node b before its turn at 50; its own half of node a is free until 80."""
    life = Life(pools(a=8, b=8), restarting(
        job("left").pool("a").gpus(4).runs(50),
        job("part").pool("a").gpus(4).runs(200),
        job("quick").pool("a").gpus(4).at(10).runs(30),
        job("owner").pool("b").gpus(8).at(45).runs(300),
        job("next").pool("b").gpus(4).at(55).runs(20),
    ))  # fmt: skip
    assert (55.0, "start", "next", "spare") in life.found
    assert not life.stops
    assert life.late["next"] < 0


def test_a_job_that_was_stopped_twice_waits_for_its_turn():
    owners = [
        job(f"owner{i}").pool("b").gpus(8).at(20.0 + 30 * i).runs(10) for i in range(4)
    ]  # fmt: skip
    story = restarting(
        job("own").pool("a").gpus(8).runs(200),
        job("guest").pool("a").gpus(8).at(1).runs(100),
        *owners,
    )
    assert Life(pools(a=8, b=8), story).stops == {"guest": 2}
    assert Life(pools(a=8, b=8), story, stops=3).stops == {"guest": 3}
    assert not Life(pools(a=8, b=8), story, stops=0).stops


def test_a_job_that_must_not_be_stopped_is_no_guest_outside_a_window():
    life = Life(pools(a=8, b=8), [
        job("own").pool("a").gpus(8).runs(50),
        job("guest").pool("a").gpus(8).at(10).runs(500),
    ])  # fmt: skip
    assert life.found[1] == (50.0, "start", "guest", "dedicated")


BLOCKED = [
    preemptible(job("own").pool("a").gpus(8).runs(500), RESTART),
    job("never").pool("a").gpus(8).runs(100),
    preemptible(job("first").pool("b").gpus(8).at(20).runs(50), RESTART),
    preemptible(job("second").pool("b").gpus(8).at(21).runs(50), RESTART),
]
"""A job that must not be stopped runs in b's node when b's first job comes."""


@pytest.mark.parametrize(
    ("policy", "whom"),
    [(Sia, "in the way"), (SiaRecall, "in the way"), (SiaReclaim, "must not be stopped")],
)
def test_late_turns_are_recorded_with_who_was_in_the_way(policy, whom):
    rows, reasons = [], {}
    core = Core(pools(a=8, b=8), policy(), SMALL, nodes_of(pools(a=8, b=8)))
    assert core.policy.tables == ("late_turns",)
    times = PerfectRunTimes({arrival.job.id: arrival.duration for arrival in BLOCKED})
    for _, _, decisions in play(
        core, BLOCKED, run_times=times, loads=PerfectLoads([], SMALL.windows)
    ):
        core.check()
        rows += [each.row for each in decisions if isinstance(each, RowRecorded)]
        reasons |= {each.job_id: each.reason for each in decisions if isinstance(each, StartJob)}
        assert encode(dump(restore(dump(core), policy()))) == encode(dump(core))
    assert rows == [
        ("first", "b", 20.0, 100.0, "never", ""),
        ("second", "b", 70.0, 150.0, "", "first"),
    ]
    assert reasons["first"] == f"its turn came 80s ago; {whom}: never"
    assert reasons["second"] == "its turn came 80s ago, behind first of its pool, which was late"


@pytest.mark.parametrize("policy", [Sia, SiaRecall])
def test_no_turn_is_late_where_the_future_is_known(policy):
    starts = 0
    for seed in range(budget(ci=12, soak=500)):
        owned, story = stopped_often(Random(seed))
        times = PerfectRunTimes({arrival.job.id: arrival.duration for arrival in story})
        loads = PerfectLoads([arrival.job for arrival in story], EXACT.windows)
        core = Core(owned, policy(), EXACT, nodes_of(owned))
        for _, _, decisions in play(core, story, run_times=times, loads=loads):
            assert not [each for each in decisions if isinstance(each, RowRecorded)], seed
            starts += sum(isinstance(each, StartJob) for each in decisions)
    assert starts > 100


def test_a_job_behind_one_whose_turn_was_missed_and_that_was_withdrawn_is_late_for_it():
    core = Core(pools(a=8, b=8), Sia(), SMALL, nodes_of(pools(a=8, b=8)))
    rows = []

    def step(now, *events):
        rows.extend(e.row for e in core.step(now, [*events]) if isinstance(e, RowRecorded))
        core.check()

    def submitted(now, name, pool, run_time):
        step(now, JobSubmitted(now, job(name).pool(pool).gpus(8).at(now).runs(1).job, run_time))

    submitted(0.0, "own", "a", 500.0)
    submitted(0.0, "guest", "a", 90.0)
    submitted(20.0, "first", "b", 50.0)
    submitted(30.0, "second", "b", 50.0)
    step(40.0, JobCancelled(40.0, "first"))
    step(100.0, JobFinished(100.0, "guest"))
    assert rows == [("second", "b", 40.0, 100.0, "guest", "")]


@pytest.mark.parametrize("policy", [Sia, SiaRecall, SiaReclaim])
def test_a_head_starts_as_soon_as_another_pools_job_has_left_its_cells(policy):
    core = Core(pools(a=8, b=8), policy(), SMALL, nodes_of(pools(a=8, b=8)))
    times = PerfectRunTimes({arrival.job.id: arrival.duration for arrival in BLOCKED})
    loads, starts = PerfectLoads([], SMALL.windows), {}
    for now, _, decisions in play(core, BLOCKED, run_times=times, loads=loads):
        starts |= {each.job_id: now for each in decisions if isinstance(each, StartJob)}
    assert starts == {"own": 0.0, "never": 0.0, "first": 100.0, "second": 150.0}


@pytest.mark.parametrize("policy", [Sia, SiaRecall, SiaReclaim])
def test_no_request_within_quota_waits_once_guests_are_gone(policy):
    """Whatever the estimates: in each pool the head waits for its own pool or for guests."""
    checked = 0
    for seed in range(budget(ci=24, soak=2000)):
        rng = Random(seed)
        owned, story = stopped_often(rng)
        wrong = {a.job.id: a.duration * rng.choice([0.1, 1.0, 3.0]) for a in story}
        core = Core(owned, policy(), SMALL, nodes_of(owned))
        loads = PerfectLoads([], SMALL.windows)
        for now, _, _ in play(core, story, run_times=PerfectRunTimes(wrong), loads=loads):
            state = core.state
            if any(each.stream is Stream.SPARE for each in state.jobs.values()):
                continue
            for pool in owned:
                head, unused = state.pools[pool.name].head, state.places.in_quota
                if head is not None and core.policy._turns.first(head.pool, state.jobs) is head:
                    checked += 1
                    assert not unused(pool.name, head.job.width), (seed, now, head.job.id)
    assert checked > 100


@pytest.mark.parametrize("policy", [SiaReclaim, SiaRecall])
@pytest.mark.parametrize("costs", [(RESTART,), (RESTART, RESTART, 5.0, 0.0), (0.5, 20.0)])
def test_nobody_is_later_than_alone_whatever_the_estimates(policy, costs):
    stops, sooner, rounds = 0, 0.0, budget(ci=8, soak=1000)
    for seed in range(rounds):
        rng = Random(seed)
        owned, story = stopped_often(rng)
        story = [preemptible(arrival, rng.choice(costs)) for arrival in story]
        wrong = {a.job.id: a.duration * rng.choice([0.1, 1.0, 3.0]) for a in story}
        life = Life(owned, story, estimates=wrong, policy=policy())
        assert max(life.late.values()) <= 0.001, (seed, max(life.late, key=life.late.get))
        assert not life.moved, seed
        stops += sum(life.stops.values())
        sooner -= sum(life.late.values())
    assert stops > rounds / 2
    assert sooner > 1000 * rounds


def test_a_restored_core_decides_the_same():
    for seed in range(budget(ci=2, soak=60)):
        rng = Random(seed)
        owned, story = stopped_often(rng)
        story = restarting(*story)
        core = Core(owned, SiaReclaim(), SMALL, nodes_of(owned))
        assert isinstance(core.policy, ReclaimInCells)
        options = {
            "run_times": lambda story=story: PerfectRunTimes({a.job.id: a.duration for a in story}),
            "loads": lambda: PerfectLoads([], SMALL.windows),
        }
        whole = _decisions(core, story, options)
        again = _decisions(
            Core(owned, SiaReclaim(), SMALL, nodes_of(owned)), story, options, restored=True
        )
        assert whole == again, seed


def _decisions(core, story, options, *, restored=False):
    from sia.core.snapshot import decode, dump, encode, restore  # noqa: PLC0415

    made = []
    for now, _, decisions in play(
        core, story, run_times=options["run_times"](), loads=options["loads"]()
    ):
        made.append((now, [msgspec.to_builtins(each) for each in decisions]))
        if restored:
            twin = restore(decode(encode(dump(core))), SiaReclaim())
            twin.check()
            assert encode(dump(twin)) == encode(dump(core))
    return made
