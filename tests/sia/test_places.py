"""Jobs in cells: what each policy does where GPUs have to lie together."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from cells.cells import Cells
from cells.layout.spec import Pinned, Spec
from predictors.perfect import PerfectLoads, PerfectRunTimes
from replay.cluster.cells_file import whole_spec
from replay.logs.trace import PoolTable
from sia import Core, Pool
from sia.core import playout
from sia.core.playout import Arrival, play
from sia.core.snapshot import dump, encode, restore
from sia.decisions import PreemptJob, ProposalRefused, StartJob
from sia.events import (
    JobCancelled,
    JobFinished,
    JobSubmitted,
    NodeBack,
    NodeOut,
    PoolChanged,
    TimePassed,
)
from sia.limits import RECALL
from sia.model import RESTART, Stream
from sia.policies.queues.easy import Easy
from sia.policies.queues.fcfs import Fcfs
from sia.policies.queues.gssf import GlobalSsf
from sia.policies.queues.hived import HiveD
from sia.policies.queues.mmfs import MaxMin
from sia.policies.queues.ssf import Ssf
from sia.policies.sia.policy import Sia
from sia.policies.sia.recall import RecallParams, SiaRecall
from tests.support.budget import budget
from tests.support.builders import SMALL, job, play_out, pools, random_workload, starts
from tests.support.clusters.cells import TYPES, cluster


def nodes_of(owned):
    """A cluster that has just the pools' nodes, of 8 GPUs, in the order of the pools."""
    return Cells(whole_spec(Spec(TYPES, (), ()), PoolTable(list(owned))))


EXACT = msgspec.structs.replace(SMALL, exact=True)
"""For forecasts that are perfect."""


def in_cells(policy, owned, story, options=EXACT, **more):
    cells = nodes_of(owned)
    return play_out(policy, owned, story, cells=cells, options=options, checked=True, **more)


def preemptible(arrival, cost):
    return Arrival(msgspec.structs.replace(arrival.job, preemptible=cost), arrival.duration)


IN_PIECES = [
    job("left").gpus(4).runs(50),
    job("filler").gpus(4).runs(10),
    job("right").gpus(4).runs(50),
]
"""From 10 to 50 half of each of a pool's two nodes is free."""


def test_a_start_names_its_gpus():
    played = in_cells(Fcfs, pools(a=16), [job("one").runs(9), job("many").gpus(12).runs(9)])
    assert played["one"].nodes == (("node0", (0,)),)
    assert played["many"].start == 9, "two whole nodes are not there as long as the first runs"
    assert played["many"].nodes == (("node0", tuple(range(8))), ("node1", (0, 1, 2, 3)))
    played = in_cells(Fcfs, pools(a=16), [job("one").runs(9), job("many").gpus(8).runs(9)])
    assert played["many"].nodes == (("node1", tuple(range(8))),)


def test_gpus_that_do_not_lie_together_are_not_enough():
    owned = pools(a=16)
    story = [
        *IN_PIECES,
        job("wide").gpus(8).at(20).runs(5),
        job("behind").at(21).runs(5),
    ]
    together = {"left": 0, "filler": 0, "right": 0}
    assert starts(in_cells(Fcfs, owned, story)) == together | {"wide": 50, "behind": 50}
    assert starts(play_out(Fcfs, owned, story)) == together | {"wide": 20, "behind": 25}


def test_max_min_starts_the_first_job_on_spare_cells_if_its_own_are_fragmented():
    owned = pools(a=16, b=8)
    story = [
        *IN_PIECES,
        job("wide").gpus(8).at(20).runs(5),
    ]
    played = in_cells(MaxMin, owned, story)
    assert played["wide"].start == 20
    assert played["wide"].stream == "spare"
    assert played["wide"].nodes == (("node2", tuple(range(8))),)
    assert played["wide"].loans == [(20, {"a": 8})], "its own pool has the GPUs, but not together"


def test_a_policy_with_one_queue_is_blocked_by_a_job_without_a_place():
    owned = pools(a=8, b=8)
    story = [job("a").runs(50), job("b").pool("b").runs(50), job("wide").gpus(8).at(1).runs(2)]
    played = in_cells(GlobalSsf, owned, [*story, job("late").at(2).runs(30)])
    assert played["wide"].start == played["late"].start == 50, "the least service comes first"
    played = in_cells(Ssf, owned, [*story, job("late").at(2).runs(30)])
    assert (played["wide"].start, played["late"].start) == (50, 52)


def test_hived_fills_fragments_with_narrow_jobs_of_any_pool():
    owned = pools(a=8, b=8)
    story = [
        job("a").gpus(5).runs(50),
        job("b").pool("b").runs(50),
        job("wide").gpus(8).at(1).runs(5),
        job("narrow").gpus(2).at(2).runs(5),
    ]
    played = in_cells(HiveD, owned, story)
    assert played["narrow"].start == 2
    assert played["narrow"].nodes == (("node1", (2, 3)),), "not in the buddy of the job of b"
    assert played["wide"].start == 50


def test_sia_lends_no_cell_that_its_owner_will_need_whole():
    owned = pools(a=8, b=16)
    story = [
        job("own").gpus(8).runs(60),
        job("queued").at(1).runs(4),
        job("queued2").at(1).runs(4),
        job("node").gpus(8).pool("b").at(3).runs(5),
        job("node2").gpus(8).pool("b").at(4).runs(5),
    ]
    played = in_cells(Sia, owned, story)
    assert (played["node"].start, played["node2"].start) == (3, 4)
    assert played["queued"].start >= 8
    shorter = in_cells(Sia, owned, story[:-1])
    assert shorter["queued"].start == shorter["queued2"].start == 1
    assert shorter["queued"].nodes[0][0] == shorter["queued2"].nodes[0][0], "side by side"


def test_a_first_job_without_a_whole_cell_does_not_block_other_pools_under_sia():
    owned = pools(a=16, b=8)
    story = [
        *IN_PIECES,
        job("wide").gpus(8).at(20).runs(200),
        job("other").gpus(8).pool("b").at(21).runs(5),
    ]
    played = in_cells(Sia, owned, story)
    assert played["other"].start == 21
    assert played["wide"].start == 50


def test_pools_of_another_group_keep_all_their_cells():
    owned = [Pool("a", 8), Pool("b", 8), Pool("alone", 8, share=False)]
    story = [job(f"j{i}").gpus(4).runs(30) for i in range(6)]
    played = in_cells(MaxMin, owned, [*story, job("own").gpus(8).pool("alone").at(5).runs(5)])
    assert sorted(starts(played).values()) == [0, 0, 0, 0, 5, 30, 30]
    assert played["own"].start == 5


def test_pinned_cells_are_used_once_the_pool_has_no_other_cells():
    pinned = Pinned("mine", "a", "quad", ("n2",), (4, 5, 6, 7))
    cells = cluster(quotas={"a": {"node": 1}, "b": {"node": 1}}, pinned=[pinned])
    story = [
        job("first").gpus(8).runs(50),
        job("second").gpus(4).runs(50),
        job("third").gpus(4).runs(50),
        job("other").gpus(8).pool("b").runs(90),
        job("more").gpus(4).pool("b").runs(9),
    ]
    played = play_out(MaxMin, pools(a=12, b=8), story, cells=cells, checked=True)
    assert played["second"].nodes == (("n2", (4, 5, 6, 7)),)
    assert played["third"].start == 50, "the other half of that node is nobody's quota to lend"
    assert played["more"].start == 50


@pytest.mark.parametrize("policy", [Fcfs, Ssf, GlobalSsf, MaxMin, HiveD, Sia, SiaRecall])
@pytest.mark.parametrize("share", [True, False])
def test_cells_that_another_pool_frees_are_considered(policy, share):
    owned = [Pool("a", 8, share=share), Pool("b", 8, share=share)]
    quotas = {"a": {"node": 1}, "b": {"node": 1}}
    cells = cluster(racks=2, nodes=1, quotas=quotas, bad=["n1"])
    story = [job("a").gpus(8).runs(10), job("b").gpus(8).pool("b").at(1).runs(10)]
    assert starts(play_out(policy, owned, story, cells=cells)) == {"a": 0, "b": 10}


def running(core):
    return {j.job.id for j in core.state.jobs.values() if j.stream is not None}


def test_nodes_that_are_down_get_no_jobs_until_they_return():
    owned = pools(a=16)
    core = Core(owned, Fcfs(), SMALL, nodes_of(owned))

    def step(now, *events):
        decisions = core.step(now, events)
        core.check()
        return [d.job_id for d in decisions if isinstance(d, StartJob)]

    assert step(0, JobSubmitted(0, job("stays").gpus(8).runs(9).job, 9)) == ["stays"]
    assert step(1, NodeOut(1, "node0", "bad"), NodeOut(1, "node1", "drained")) == []
    assert step(2, JobSubmitted(2, job("waits").at(2).runs(9).job, 9)) == []
    assert running(core) == {"stays"}
    assert step(3, NodeBack(3, "node1")) == ["waits"]
    assert step(9, JobFinished(9, "stays")) == []
    assert step(9, JobSubmitted(9, job("late").gpus(8).at(9).runs(1).job, 1)) == []
    assert step(10, NodeBack(10, "node0")) == ["late"]
    with pytest.raises(ValueError, match="no node 'node7'"):
        step(11, NodeOut(11, "node7", "bad"))
    with pytest.raises(ValueError, match="without cells"):
        Core(owned, Fcfs(), SMALL).step(0, [NodeOut(0, "node0", "bad")])


def test_a_quota_changes_with_its_cells():
    owned = pools(a=8, b=8)
    core = Core(owned, Fcfs(), SMALL, nodes_of(owned))
    core.step(0, [PoolChanged(0, "b", 0)])
    wide = JobSubmitted(1, job("wide").gpus(16).at(1).runs(9).job, 9)
    assert core.step(1, [wide]) == []
    for cells in ({}, {"node": {"node": 1}}, {"node": {"node": 3}}, {"rack": {"node": 2}}):
        with pytest.raises(ValueError, match="quota"):
            core.step(2, [PoolChanged(2, "a", 16, cells)])
    (start,) = core.step(3, [PoolChanged(3, "a", 16, {"node": {"node": 2}})])
    assert [node for node, _ in start.nodes] == ["node0", "node1"]
    core.check()


@pytest.mark.parametrize(
    ("owned", "message"),
    [
        (pools(a=8), "quota.b: unknown pool"),
        (pools(a=8, b=16), "quota.b: its cells have 8 GPUs, but the pool's quota is 16"),
        (pools(a=8, b=8, c=8), "quota.c: its cells have 0 GPUs, but the pool's quota is 8"),
    ],
)
def test_cells_that_contradict_the_pools_are_refused(owned, message):
    with pytest.raises(ValueError, match=message):
        Core(owned, Fcfs(), SMALL, nodes_of(pools(a=8, b=8)))


def test_a_policy_without_support_for_cells_is_refused():
    with pytest.raises(ValueError, match="Easy does not support cells"):
        Core(pools(a=8), Easy(), SMALL, nodes_of(pools(a=8)))


def recalled(owned, story, *, cells=None, options=SMALL, recall=RECALL):
    """Starts and stops by time, under `SiaRecall`."""
    core = Core(owned, SiaRecall(RecallParams(recall)), options, cells)
    found = []
    for now, _, decisions in play(
        core,
        story,
        run_times=PerfectRunTimes({a.job.id: a.duration for a in story}),
        loads=PerfectLoads([a.job for a in story], options.windows),
    ):
        core.check()
        for decision in decisions:
            assert not isinstance(decision, ProposalRefused), decision
            if isinstance(decision, StartJob | PreemptJob):
                kind = "start" if isinstance(decision, StartJob) else "stop"
                found.append((now, kind, decision.job_id))
    return found


LONG = 150
"""Seconds: longer than every window of `SMALL`."""


def test_without_preemptible_jobs_recall_decides_as_sia():
    for seed in range(budget(ci=15, soak=100)):
        workload = random_workload(Random(seed))
        alone = starts(play_out(Sia, *workload))
        found = recalled(*workload)
        assert {job_id: now for now, kind, job_id in found} == alone
        assert all(kind == "start" for _, kind, _ in found)


def test_a_long_preemptible_job_runs_on_idle_gpus_until_the_owner_needs_them():
    owned = pools(a=1, b=1)
    story = [
        job("own").runs(LONG),
        preemptible(job("guest").at(1).runs(LONG), 0.5),
        job("owner").pool("b").at(40).runs(10),
    ]
    assert recalled(owned, story) == [
        (0, "start", "own"),
        (1, "start", "guest"),
        (40, "stop", "guest"),
        (40, "start", "owner"),
        (50, "start", "guest"),
    ]


def test_the_cost_of_a_stop_counts_for_long_windows_only():
    owned = pools(a=1, b=1)
    story = [
        job("own").runs(LONG),
        preemptible(job("guest").at(1).runs(LONG), 3.0),  # a tenth of the last window, of 100 s
        job("owner").pool("b").at(40).runs(10),
    ]
    assert (1, "start", "guest") not in recalled(owned, story)
    assert (1, "start", "guest") in recalled(owned, story, recall=0.6)  # 3 of 5 seconds


def test_the_cheapest_jobs_are_stopped_and_no_more_than_needed():
    owned = pools(a=1, b=4)
    story = [
        job("own").runs(LONG),
        preemptible(job("dear").at(1).runs(LONG), 0.4),
        preemptible(job("cheap").at(2).runs(LONG), 0.1),
        preemptible(job("fair").at(3).runs(LONG), 0.2),
        job("owner").pool("b").gpus(3).at(40).runs(10),
    ]
    stops = [job_id for now, kind, job_id in recalled(owned, story) if (now, kind) == (40, "stop")]
    assert stops == ["cheap", "fair"], "one GPU was idle"


def at(found, when):
    return [(kind, job_id) for now, kind, job_id in found if now == when]


def test_a_wide_job_is_not_stopped_for_one_gpu():
    owned = pools(a=64, b=65)
    story = [
        job("own").gpus(64).runs(LONG),
        preemptible(job("one").at(1).runs(LONG), 0.3),
        preemptible(job("wide").gpus(64).at(2).runs(LONG), 0.3),
        job("owner").pool("b").at(40).runs(10),
    ]
    assert at(recalled(owned, story), 40) == [("stop", "one"), ("start", "owner")]


def test_two_owners_are_served_by_one_stop_of_a_wide_guest():
    owned = pools(a=8, b=2, c=4)
    story = [
        job("own").gpus(8).runs(LONG),
        preemptible(job("wide").gpus(4).at(1).runs(LONG), 0.4),
        preemptible(job("narrow").gpus(2).at(2).runs(LONG), 0.1),
        job("b").gpus(2).pool("b").at(40).runs(50),
        job("c").gpus(2).pool("c").at(40).runs(50),
    ]
    assert at(recalled(owned, story), 40) == [("stop", "wide"), ("start", "b"), ("start", "c")]


def test_a_job_is_not_stopped_for_a_later_job_of_its_pool():
    owned = pools(a=1, b=1)
    story = [
        job("own").runs(40),
        preemptible(job("guest").at(1).runs(150), 0.5),
        job("later").at(2).runs(300),
        job("owner").pool("b").at(40).runs(300),
    ]
    assert all(kind == "start" for _, kind, _ in recalled(owned, story)[:3])
    assert at(recalled(owned, story), 40) == [("start", "owner")]


def test_only_the_remaining_work_of_a_stopped_job_has_to_fit():
    owned = pools(a=1, b=1)
    story = [
        job("own").runs(400),
        preemptible(job("guest").at(1).runs(110), 5.0),
        job("b1").pool("b").at(105).runs(5),
        job("b2").pool("b").at(140).runs(50),
    ]
    found = recalled(owned, story, recall=1.0)
    assert (105, "stop", "guest") in found
    assert (110, "start", "guest") in found, "eleven seconds are left, and nobody comes before 140"


def test_gpus_left_over_by_a_stop_are_used_at_once():
    owned = pools(a=8, b=4, c=4)
    story = [
        job("own").gpus(8).runs(LONG),
        preemptible(job("guest").gpus(8).at(1).runs(LONG), 0.0),
        job("b").gpus(4).pool("b").at(41).runs(50),
        job("c").gpus(4).pool("c").at(41).runs(50),
    ]
    assert at(recalled(owned, story), 41) == [("stop", "guest"), ("start", "b"), ("start", "c")]


def test_gpus_of_a_pool_that_must_not_lend_are_not_replaced_by_stops():
    options = msgspec.structs.replace(
        SMALL, no_lending=frozenset(("n", window) for window in SMALL.windows)
    )
    owned = pools(a=8, b=8, n=8)
    story = [
        job("own").gpus(8).runs(LONG),
        preemptible(job("guest").gpus(8).at(1).runs(LONG), 0.1),
        job("hard").gpus(8).at(2).runs(90),
    ]
    for cells in (None, nodes_of(owned)):
        found = recalled(owned, story, options=options, cells=cells)
        assert (1, "start", "guest") in found
        assert (2, "start", "hard") not in found


def test_in_cells_the_jobs_in_the_way_are_stopped():
    owned = pools(a=8, b=16)
    story = [
        job("own").gpus(8).runs(LONG),
        preemptible(job("here").gpus(8).at(1).runs(LONG), 0.1),
        preemptible(job("there").gpus(2).at(2).runs(LONG), 0.1),
        job("owner").pool("b").gpus(8).at(40).runs(10),
    ]
    found = recalled(owned, story, cells=nodes_of(owned))
    assert (2, "start", "there") in found
    assert [(kind, job_id) for now, kind, job_id in found if now == 40] == [
        ("stop", "there"),
        ("start", "owner"),
    ]


def test_in_cells_only_preemptible_jobs_are_stopped():
    owned = pools(a=8, b=16)
    story = [
        job("own").gpus(8).runs(LONG),
        job("short").gpus(4).at(1).runs(90),
        preemptible(job("beside").gpus(4).at(1).runs(LONG), 0.1),
        preemptible(job("alone").gpus(8).at(2).runs(LONG), 0.1),
        job("owner").gpus(8).pool("b").at(40).runs(50),
    ]
    found = recalled(owned, story, cells=nodes_of(owned))
    assert at(found, 40) == [("stop", "alone"), ("start", "owner")]


def test_guests_in_cells_that_nobody_owns_are_stopped_for_their_gpus():
    owned = pools(a=8, b=8)
    cells = cluster(racks=3, nodes=1, quotas={"a": {"node": 1}, "b": {"node": 1}})
    story = [
        job("own").gpus(8).runs(LONG),
        preemptible(job("guest").gpus(8).at(1).runs(LONG), 0.1),
        job("owner").gpus(8).pool("b").at(40).runs(10),
    ]
    assert at(recalled(owned, story, cells=cells), 40) == [("stop", "guest"), ("start", "owner")]


def test_recall_in_cells_reserves_whole_cells():
    """Halves of nodes that could be had back beside others that could not are no node."""
    owned = pools(a=8, b=16, n=8)
    story = [
        job("own").gpus(8).runs(LONG),
        job("h1").gpus(4).at(1).runs(90),
        preemptible(job("g1").gpus(4).at(2).runs(LONG), 0.1),
        job("h2").gpus(4).at(3).runs(90),
        preemptible(job("g2").gpus(4).at(4).runs(LONG), 0.1),
        job("h3").gpus(8).at(5).runs(90),
        job("owner").gpus(8).pool("n").at(20).runs(10),
    ]
    assert ("start", "owner") in at(recalled(owned, story, cells=nodes_of(owned)), 20)


def test_a_job_that_is_stopped_after_its_turn_goes_on_in_its_own_cells():
    owned = pools(a=8, b=8)
    story = [
        job("own").gpus(8).runs(20),
        preemptible(job("guest").gpus(4).at(1).runs(1000), 0.1),
        job("behind").gpus(8).at(2).runs(200),
        job("owner").gpus(8).pool("b").at(41).runs(10),
    ]
    found = recalled(owned, story, cells=nodes_of(owned))
    assert at(found, 41) == [("stop", "guest"), ("start", "guest"), ("start", "owner")]
    starts_behind = [now for now, kind, job_id in found if (kind, job_id) == ("start", "behind")]
    assert starts_behind == [20 + 1000], "as without sharing, though the guest has ended sooner"


def test_a_job_that_was_stopped_keeps_its_cells_until_it_would_have_ended():
    owned = pools(a=8, b=8)
    story = [
        job("own").gpus(8).runs(100),
        preemptible(job("guest").gpus(8).at(1).runs(60), 0.5),
        job("behind").gpus(8).at(2).runs(LONG),
        job("owner").gpus(8).pool("b").at(20).runs(200),
    ]
    found = recalled(owned, story, cells=nodes_of(owned))
    assert at(found, 20) == [("stop", "guest"), ("start", "owner")]
    assert at(found, 100) == [("start", "guest")]
    assert at(found, 160) == [("start", "behind")], "as without sharing; the guest ended at 141.5"


def test_recall_frees_gpus_for_several_first_jobs_of_a_pool_in_one_pass():
    owned = pools(a=8, b=16)
    story = [
        job("own").gpus(8).runs(LONG),
        preemptible(job("g1").gpus(8).at(1).runs(LONG), 0.1),
        preemptible(job("g2").gpus(8).at(2).runs(LONG), 0.1),
        job("b1").gpus(8).pool("b").at(41).runs(10),
        job("b2").gpus(8).pool("b").at(41).runs(10),
    ]
    found = recalled(owned, story, cells=nodes_of(owned))
    assert [job_id for kind, job_id in at(found, 41) if kind == "start"] == ["b1", "b2"]


def test_no_guest_stays_in_a_cell_that_its_owner_needs_in_part():
    owned = pools(a=8, b=8)
    story = [
        job("own").gpus(8).runs(LONG),
        preemptible(job("guest").at(1).runs(LONG), 0.1),
        job("owner").pool("b").at(40).runs(10),
    ]
    found = recalled(owned, story, cells=nodes_of(owned))
    assert at(found, 40) == [("stop", "guest"), ("start", "owner")]


def test_a_job_that_could_not_be_stopped_later_goes_home_at_its_turn():
    owned = pools(a=8, b=8)
    story = [
        job("own").gpus(8).runs(30),
        preemptible(job("guest").gpus(4).at(1).runs(LONG), RESTART),
        job("owner").gpus(8).pool("b").at(60).runs(10),
    ]
    found = recalled(owned, story, cells=nodes_of(owned))
    assert at(found, 30) == [("stop", "guest"), ("start", "guest")]
    assert at(found, 60) == [("start", "owner")]


def test_a_guest_that_fills_a_node_stays_there_at_its_turn():
    """Its pool binds the node in which it runs, so a stop would only cost work."""
    owned = pools(a=8, b=8)
    story = [
        job("own").gpus(8).runs(30),
        preemptible(job("guest").gpus(8).at(1).runs(LONG), RESTART),
        job("owner").gpus(8).pool("b").at(60).runs(10),
    ]
    assert recalled(owned, story, cells=nodes_of(owned)) == [
        (0, "start", "own"),
        (1, "start", "guest"),
        (60, "start", "owner"),
    ]


def test_cells_of_a_job_that_ended_sooner_become_free_when_it_would_have_ended():
    owned = pools(a=8, b=8)
    core = Core(owned, SiaRecall(), SMALL, nodes_of(owned))
    story = [
        job("own").gpus(8).runs(30),
        preemptible(job("guest").gpus(8).runs(LONG), 0.1),
        job("behind").gpus(8).runs(LONG),
        job("owner").gpus(8).pool("b").runs(LONG),
    ]
    run_times = {arrival.job.id: arrival.duration for arrival in story}
    core.step(0.0, [JobSubmitted(0.0, story[i].job, run_times[story[i].job.id]) for i in (0, 1)])
    core.step(1.0, [JobSubmitted(1.0, story[2].job, LONG)])
    core.step(30.0, [JobFinished(30.0, "own")])
    assert core.state.places.is_reserved("guest")
    core.step(40.0, [JobSubmitted(40.0, story[3].job, LONG)])
    assert running(core) == {"guest", "owner"}
    core.step(50.0, [JobFinished(50.0, "guest")])
    core.check()
    assert core.state.places.is_reserved("guest"), "it has run less than it would have alone"
    core.step(80.0, [TimePassed(80.0)])
    core.check()
    assert running(core) == {"owner", "behind"}


def test_cells_reserved_for_months_do_not_end_a_playout(monkeypatch):
    monkeypatch.setattr(playout, "MAX_IDLE_WAKES", 100)
    owned = pools(a=8, b=8)
    long = 200 * SMALL.tick
    story = [
        job("own").gpus(8).runs(long),
        preemptible(job("guest").gpus(8).at(1).runs(long), 0.1),
        job("behind").gpus(8).at(2).runs(200),
    ]
    found = recalled(owned, story, cells=nodes_of(owned))
    assert (2 * long, "start", "behind") in found


def test_a_stopped_job_keeps_its_work_less_the_cost_of_the_stop():
    owned = pools(a=1, b=1)
    story = [
        job("own").runs(LONG),
        preemptible(job("guest").at(1).runs(LONG), 0.5),
        job("owner").pool("b").at(40).runs(10),
    ]
    core = Core(owned, SiaRecall(), SMALL)
    ends = {}
    for now, events, _ in play(
        core,
        story,
        run_times=PerfectRunTimes({a.job.id: a.duration for a in story}),
        loads=PerfectLoads([a.job for a in story], SMALL.windows),
    ):
        ends |= {e.job_id: now for e in events if isinstance(e, JobFinished)}
    assert ends["guest"] == 1 + LONG + 10 + 0.5


def test_the_cost_of_a_stop_must_be_a_time():
    core = Core(pools(a=1), SiaRecall(), SMALL)
    for cost in (-1.0, float("nan"), 1e9):
        odd = preemptible(job("odd").runs(1), cost).job
        with pytest.raises(ValueError, match="preemptible must be"):
            core.step(0, [JobSubmitted(0, odd, 1)])


def plain(arrival):
    return Arrival(msgspec.structs.replace(arrival.job, preemptible=None), arrival.duration)


def random_story(rng):
    """Pools of whole nodes and jobs of a cell each, in bursts, some of which may be stopped."""
    owned = [
        Pool(name, 8 * rng.randint(1, 3), rng.choice(["", "", "east"]), share=rng.random() < 0.9)
        for name in "abcd"[: rng.randint(1, 4)]
    ]
    story = []
    for pool in owned:
        span = rng.choice([50, 150, 300])
        for i in range(rng.randint(1, 25)):
            width = min(rng.choice([1, 1, 1, 2, 4, 8, 8, 16]), pool.quota)
            arrival = job(f"{pool.name}{i}").gpus(width).pool(pool.name)
            arrival = arrival.at(rng.randint(0, span) // 5 * 5).runs(rng.randint(1, 150))
            cost = rng.choice([None, None, 0.0, 0.5, 5.0])
            story.append(preemptible(arrival, cost))
    story.sort(key=lambda arrival: arrival.job.submit)
    return owned, story


@pytest.mark.parametrize("policy", [Fcfs, Ssf, GlobalSsf, MaxMin, HiveD, Sia])
def test_every_job_of_a_random_history_gets_gpus_of_its_own(policy):
    for seed in range(budget(ci=9, soak=60)):
        owned, story = random_story(Random(seed))
        played = in_cells(policy, owned, story)
        assert played.keys() == {arrival.job.id for arrival in story}
        for arrival in story:
            nodes = played[arrival.job.id].nodes
            assert sum(len(gpus) for _, gpus in nodes) == arrival.job.width
            assert len(nodes) == max(1, arrival.job.width // 8), "it lies on as few nodes as can be"


def test_recall_in_cells_finishes_every_random_history():
    stops = 0
    for seed in range(budget(ci=9, soak=60)):
        owned, story = random_story(Random(seed))
        found = recalled(owned, story, cells=nodes_of(owned))
        assert {job_id for _, _, job_id in found} == {arrival.job.id for arrival in story}
        stops += sum(kind == "stop" for _, kind, _ in found)
    assert stops > budget(ci=1, soak=10)


def alone(pool, story, withdrawals=()):
    """Starts in a pool alone, FCFS, with jobs that leave its queue at times (time, job)."""
    return {job_id: now for job_id, (now, _) in placed_alone(pool, story, withdrawals).items()}


def gpus_of(start):
    """The GPUs of a job on each of its nodes, whichever nodes these are."""
    return tuple(gpus for _, gpus in start.nodes)


def placed_alone(pool, story, withdrawals=()):
    """The same, with the GPUs of each job on its nodes."""
    jobs = {arrival.job.id: arrival for arrival in story if arrival.job.pool == pool.name}
    core = Core([pool], Fcfs(), SMALL, nodes_of([pool]))
    todo = [(a.job.submit, i, JobSubmitted(a.job.submit, a.job, 0)) for i, a in enumerate(story)]
    todo = [each for each in todo if each[2].job.id in jobs]
    todo += [(time, -1, JobCancelled(time, job_id)) for time, job_id in withdrawals]
    found = {}
    while todo:
        now = min(todo, key=lambda each: each[:2])[0]
        events = [event for time, _, event in sorted(todo, key=lambda e: e[:2]) if time == now]
        todo = [each for each in todo if each[0] > now]
        gone = [e for e in events if isinstance(e, JobCancelled) and e.job_id in found]
        for decision in core.step(now, [event for event in events if event not in gone]):
            found[decision.job_id] = now, gpus_of(decision)
            end = now + jobs[decision.job_id].duration
            todo.append((end, len(todo), JobFinished(end, decision.job_id)))
    return found


def test_fcfs_in_shared_cells_decides_as_if_each_pool_were_alone():
    for seed in range(budget(ci=15, soak=100)):
        owned, story = random_story(Random(seed))
        together = starts(in_cells(Fcfs, owned, story))
        apart = {job_id: t for pool in owned for job_id, t in alone(pool, story).items()}
        assert together == apart, seed


@pytest.mark.parametrize("windows", [SMALL.windows, (5.0, 20.0, 60.0, 400.0, 2000.0)])
def test_sia_with_perfect_forecasts_slows_no_job_and_starts_dedicated_jobs_in_turn(windows):
    options = msgspec.structs.replace(EXACT, windows=windows)
    away, rounds = 0, budget(ci=15, soak=300)
    for seed in range(rounds):
        owned, story = random_story(Random(seed))
        story = [plain(arrival) for arrival in story]
        shared = in_cells(Sia, owned, story, options=options)
        for pool in owned:
            for job_id, before in alone(pool, story).items():
                started = shared[job_id]
                if started.stream == "spare":
                    assert started.start <= before, (seed, job_id)
                    away += 1
                else:
                    assert started.start == before, (seed, job_id)
    assert away > rounds // 2


def stopped_often(rng):
    """A story in which many jobs may be stopped, and some lose all their work."""
    owned, story = random_story(rng)
    costs = rng.choice([(0.5,), (5.0,), (0.0, 0.5, 5.0), (0.5, 20.0, RESTART), (RESTART,)])
    part, longer = rng.choice([0.3, 0.7, 1.0]), rng.choice([0, 100, 250])
    return owned, [
        preemptible(
            Arrival(plain(each).job, each.duration + (rng.random() < 0.5) * longer),
            rng.choice(costs) if rng.random() < part else None,
        )
        for each in story
    ]


def crowded(rng):
    """Two pools with long queues, two with few jobs of mostly whole nodes; stops cost all work.

    The latter take the last empty nodes, so that the others have to bind nodes with guests.
    """
    owned = pools(a=8 * rng.randint(2, 4), b=16, c=8 * rng.randint(1, 2), d=8)
    story = []
    for pool in owned:
        jobs, span, widths = (
            (60, 100, [1, 1, 2, 4, 8, 16]) if pool.name in "ab" else (12, 1500, [1, 8, 8])
        )
        for i in range(jobs):
            arrival = job(f"{pool.name}{i}").gpus(rng.choice(widths)).pool(pool.name)
            arrival = arrival.at(rng.randint(0, span))
            runs = rng.choice([rng.randint(1, 9), rng.randint(1, 150), rng.randint(100, 900)])
            story.append(preemptible(arrival.runs(runs), RESTART))
    story.sort(key=lambda arrival: arrival.job.submit)
    return owned, story


def lateness(owned, story, recall=RECALL):
    """By job: seconds by which it ends later than alone, under `SiaRecall` in cells.

    Also the number of stops. Each dedicated job gets the GPUs of a node that it would get alone.
    """
    core = Core(owned, SiaRecall(RecallParams(recall)), SMALL, nodes_of(owned))
    durations, ends, stops = {a.job.id: a.duration for a in story}, {}, 0
    before = {i: found for pool in owned for i, found in placed_alone(pool, story).items()}
    for now, events, decisions in play(
        core,
        story,
        run_times=PerfectRunTimes(durations),
        loads=PerfectLoads([a.job for a in story], SMALL.windows),
    ):
        ends |= {e.job_id: now for e in events if isinstance(e, JobFinished)}
        stops += sum(isinstance(decision, PreemptJob) for decision in decisions)
        assert not any(isinstance(decision, ProposalRefused) for decision in decisions)
        for start in started_in(decisions):
            if start.stream is Stream.DEDICATED:
                assert gpus_of(start) == before[start.job_id][1], (now, start)
    core.check()
    return {i: ends[i] - start - durations[i] for i, (start, _) in before.items()}, stops


@pytest.mark.parametrize("drawn", [stopped_often, crowded])
def test_recall_with_perfect_forecasts_makes_no_job_later_than_alone(drawn):
    stops, rounds = 0, budget(ci=20, soak=1000)
    for seed in range(rounds):
        rng = Random(seed)
        late, stopped = lateness(*drawn(rng), rng.choice([RECALL, RECALL, 0.5, 1.0]))
        assert max(late.values()) <= 0.001, (seed, max(late, key=late.get))
        stops += stopped
    assert stops > rounds / 2


IN_ITS_OWN_WAY = [
    job("own").gpus(16).runs(30),
    job("other").gpus(8).pool("c").runs(500),
    preemptible(job("sibling").gpus(2).pool("c").at(1).runs(20), RESTART),  # GPUs 0 and 1
    job("wide").gpus(16).at(2).runs(500),
    preemptible(job("guest").at(3).runs(500), RESTART),  # GPU 2 of the node of b
    job("owner").gpus(8).pool("b").at(10).runs(500),  # takes the third node of a
    *(job(job_id).gpus(gpus).at(31).runs(seconds) for job_id, gpus, seconds in [
        ("beside", 1, 5), ("b", 1, 40), ("c", 1, 10), ("quad", 4, 500),
    ]),
    job("e").at(50).runs(500),
    job("pair").gpus(2).at(80).runs(10),
]  # fmt: skip
"""At 30 the pool of the guest has to bind a node, and only that in which the guest runs is left."""


def test_a_guest_in_a_part_of_the_node_that_its_pool_binds_gets_the_gpus_that_it_would_have_alone():
    owned = pools(a=24, b=8, c=8)
    cells = nodes_of(owned)
    found = recalled(owned, IN_ITS_OWN_WAY, cells=cells)
    assert (3, "start", "guest") in found
    assert at(found, 30) == [("start", "wide"), ("stop", "guest"), ("start", "guest")]
    late, _ = lateness(owned, IN_ITS_OWN_WAY)
    assert max(late.values()) <= 0, "with the guest on GPU 3, `pair` waits for two GPUs until 530"


SLOWED = [
    job("first").gpus(8).runs(20),  # on one node, until 20
    job("pair").gpus(2).runs(40),  # on the other one, until 40
    job("quad").gpus(4).at(5).runs(80),  # beside it, until 85
    job("guest").gpus(8).at(15).runs(40),
    job("early").gpus(4).at(30).runs(80),
    job("slowed").gpus(8).at(35).runs(LONG),
]
"""A story in which a queue in cells delays itself (docs/understand/cells.md)."""


def test_a_job_that_runs_elsewhere_keeps_its_turn():
    owned = pools(a=16, b=8)
    before = starts(in_cells(Fcfs, owned, SLOWED))
    assert (before["guest"], before["early"], before["slowed"]) == (20, 40, 60)
    without = alone(owned[0], SLOWED, [(15, "guest")])
    assert (without["early"], without["slowed"]) == (30, 85), "a queue of cells delays itself"
    shared = in_cells(Sia, owned, SLOWED)
    assert shared["guest"][:3] == (15, 55, "spare")
    assert (shared["early"].start, shared["slowed"].start) == (40, 60)


def started_in(decisions):
    return [decision for decision in decisions if isinstance(decision, StartJob)]


def wrong(story, rng):
    """Run times that are estimated without any knowledge, by job."""
    return {arrival.job.id: rng.choice([1.0, 4.0, 15.0, 90.0, 400.0]) for arrival in story}


def test_no_spare_job_starts_on_a_node_of_an_owner_whatever_is_forecast():
    lent = 0
    for seed in range(budget(ci=15, soak=300)):
        rng = Random(seed)
        owned, story = random_story(rng)
        story = [plain(arrival) for arrival in story]
        core, dedicated, on = Core(owned, Sia(), SMALL, nodes_of(owned)), set(), {}
        for _, events, decisions in play(core, story, run_times=PerfectRunTimes(wrong(story, rng))):
            for event in events:
                if isinstance(event, JobFinished):
                    dedicated.discard(event.job_id)
                    on.pop(event.job_id)
            for decision in started_in(decisions):
                nodes = {name for name, _ in decision.nodes}
                if decision.stream is Stream.SPARE:
                    assert not any(nodes & on[each] for each in dedicated), (seed, decision.job_id)
                    lent += 1
                else:
                    dedicated.add(decision.job_id)
                on[decision.job_id] = nodes
            core.check()
        assert not on, "each job has started and ended"
    assert lent > 20


def test_a_pool_that_is_late_keeps_no_cells_for_jobs_that_ran_elsewhere():
    owned = pools(a=16, b=16, c=8)
    core = Core(owned, Sia(), SMALL, nodes_of(owned))

    def submit(now, pool, job_id, gpus, run_time):
        event = JobSubmitted(now, job(job_id).gpus(gpus).pool(pool).at(now).runs(1).job, run_time)
        return {each.job_id for each in started_in(core.step(now, [event]))}

    def end(now, job_id):
        decisions = core.step(now, [JobFinished(now, job_id)])
        core.check()
        assert encode(dump(restore(dump(core), Sia()))) == encode(dump(core))
        return {each.job_id for each in started_in(decisions)}

    for pool, job_id in [("c", "own"), ("b", "first"), ("b", "second")]:
        assert submit(0, pool, job_id, 8, 500) == {job_id}
    assert submit(1, "b", "wide", 8, 500) == set()
    assert submit(2, "b", "elsewhere", 1, 4) == {"elsewhere"}
    assert submit(3, "b", "last", 8, 500) == set()
    assert end(4, "elsewhere") == set()
    assert submit(5, "c", "guest", 1, 4) == {"guest"}, "it will run for 55 s"
    assert submit(6, "a", "one", 8, 500) == {"one"}
    assert submit(7, "a", "two", 8, 500) == set(), "the guest is in its way"
    assert end(20, "second") == {"two"}, "which leaves the guest to the next one"
    assert end(60, "guest") == {"wide"}
    assert end(100, "first") == {"last"}, "alone the job before it would have run for 2 s first"


def test_an_id_is_free_again_when_its_turn_is_over():
    owned = pools(a=8, b=8)
    core = Core(owned, Sia(), EXACT, nodes_of(owned))
    own, guest = job("own").gpus(8).runs(30), job("guest").gpus(8).runs(10)
    core.step(0.0, [JobSubmitted(0.0, own.job, 30.0), JobSubmitted(0.0, guest.job, 10.0)])
    assert running(core) == {"own", "guest"}
    core.step(10.0, [JobFinished(10.0, "guest")])
    with pytest.raises(ValueError, match="job guest: a job with this id ended early"):
        core.step(11.0, [JobSubmitted(11.0, guest.job, 10.0)])
    core.check()
    core.step(30.0, [JobFinished(30.0, "own")])
    core.step(40.0, [TimePassed(40.0)])
    core.step(41.0, [JobSubmitted(41.0, guest.job, 10.0)])
    core.check()
    assert running(core) == {"guest"}
