"""Jobs of a higher priority stand before all of a lower one in their pool's queue."""

from random import Random

import pytest
from msgspec.structs import replace

from predictors.perfect import PerfectRunTimes
from sia import Core
from sia.core.playout import play
from sia.decisions import StartJob
from sia.events import JobCancelled, JobFinished, JobSubmitted, PriorityChanged
from sia.limits import MAX_PRIORITY, STRIDE
from sia.policies.preemptive.las import Las, LasParams
from sia.policies.queues.easy import Easy
from sia.policies.queues.fcfs import Fcfs
from sia.policies.queues.hived import HiveD
from sia.policies.queues.mmfs import MaxMin
from sia.policies.queues.ssf import Ssf
from sia.policies.queues.themis import Themis
from sia.policies.sia.policy import Sia
from sia.policies.sia.recall import SiaRecall
from sia.policies.sia.vc import SiaVc
from tests.sia.policies.test_policies import choices, random_choices
from tests.sia.test_places import in_cells
from tests.support.budget import budget
from tests.support.builders import (
    SMALL,
    Workload,
    job,
    play_out,
    pools,
    random_workload,
    revealed,
    starts,
    with_priorities,
    with_urgent_jobs,
)
from tests.support.cores import POLICIES, PREEMPTING, on_cue, photograph, start_dedicated
from tests.support.naive import naive_policies

ROUNDS = budget(ci=36, soak=300)
ORDERED = [p for p in [*POLICIES, *PREEMPTING, SiaRecall] if p is not SiaVc]
"""SIA-VC was told in advance who starts when."""


def urgent(arrival, priority=5):
    return arrival._replace(job=replace(arrival.job, priority=priority))


def rigid(arrival):
    return arrival._replace(job=replace(arrival.job, min_width=arrival.job.width))


def submitted(now, arrival):
    return JobSubmitted(now, arrival.job, arrival.duration)


def started(decisions):
    return [decision.job_id for decision in decisions if isinstance(decision, StartJob)]


def queue(core, pool="a"):
    return [waiting.job.id for waiting in core.state.pools[pool].waiting()]


def test_a_queue_is_ordered_by_priority_and_then_by_arrival():
    core = on_cue(
        job("first").runs(9),
        urgent(job("later").runs(9), -1),
        urgent(job("soon").runs(9)),
        job("second").runs(9),
        urgent(job("next").runs(9)),
        a=1,
    )
    assert queue(core) == ["soon", "next", "first", "second", "later"]
    assert core.state.pools["a"].head.job.id == "soon"
    core.check()


def test_a_job_with_a_changed_priority_keeps_its_order_of_arrival():
    core = on_cue(*(job(name).runs(9) for name in "pqrst"), a=1)
    core.step(1.0, [PriorityChanged(1.0, name, 3) for name in "sq"])
    core.check()
    assert queue(core) == ["q", "s", "p", "r", "t"]
    core.step(2.0, [PriorityChanged(2.0, "q", 0), PriorityChanged(2.0, "r", -1)])
    core.check()
    assert queue(core) == ["s", "p", "q", "t", "r"]
    start_dedicated(core, "q")
    core.step(3.0, [JobFinished(3.0, "q"), JobCancelled(3.0, "s")])
    core.check()
    assert queue(core) == ["p", "t", "r"]
    assert core.state.pools["a"].pending_width == 3


@pytest.mark.parametrize(
    ("job_id", "priority", "message"),
    [
        ("nobody", 1, "is not pending"),
        ("runs", 1, "is not pending"),
        ("waits", MAX_PRIORITY + 1, "priority must be"),
        ("waits", -MAX_PRIORITY - 1, "priority must be"),
    ],
)
def test_an_impossible_priority_is_an_error_and_changes_nothing(job_id, priority, message):
    core = on_cue(job("runs").runs(9), job("waits").runs(9), a=4)
    start_dedicated(core, "runs")
    before = photograph(core)
    with pytest.raises(ValueError, match=message):
        core.step(core.state.now, [PriorityChanged(0.0, job_id, priority)])
    with pytest.raises(ValueError, match="priority must be"):
        core.step(0.0, [submitted(0.0, urgent(job("new").runs(1), MAX_PRIORITY + 1))])
    assert photograph(core) == before
    core.check()


def test_every_queue_position_fits_in_64_bits_and_belongs_to_one_priority():
    core = on_cue(
        urgent(job("top").runs(1), MAX_PRIORITY), urgent(job("low").runs(1), -MAX_PRIORITY), a=1
    )
    places = [waiting.sequence for waiting in core.state.pools["a"].waiting()]
    assert -(2**63) < places[0] < places[1] < 2**63
    assert [waiting.arrival for waiting in core.state.pools["a"].waiting()] == [1, 2]
    assert MAX_PRIORITY * STRIDE < 2**62


@pytest.mark.parametrize("policy", ORDERED)
def test_urgent_jobs_start_first_when_gpus_become_free(policy):
    """Before one who came before it, is as wide and runs as long."""
    core = Core(pools(a=2), policy(), SMALL)
    runs, came, soon = (rigid(job(name).gpus(2).runs(200)) for name in ("runs", "came", "soon"))
    core.step(0.0, [submitted(0.0, runs)])
    core.step(1.0, [submitted(1.0, urgent(came, -1))])
    core.step(2.0, [submitted(2.0, urgent(soon, -1))])
    core.step(3.0, [PriorityChanged(3.0, "soon", 0)])
    core.check()
    waits = [job_id for job_id in ("came", "soon") if core.state.jobs[job_id].stream is None]
    assert waits == ["came", "soon"]
    assert started(core.step(4.0, [JobFinished(4.0, "runs")]))[:1] == ["soon"]
    core.check()


@pytest.mark.parametrize(
    ("policy", "model"),
    [(Fcfs, naive_policies.ranked_fcfs), (Ssf, naive_policies.ssf), (MaxMin, naive_policies.mmfs)],
)
def test_with_priorities_a_policy_starts_every_job_when_its_naive_model_does(policy, model):
    for seed in range(ROUNDS):
        rng = Random(seed)
        workload = random_workload(rng)
        arrivals = with_priorities(rng, workload.arrivals)
        played = play_out(policy, workload.pools, arrivals, checked=seed % 10 == 0)
        priorities = {a.job.id: a.job.priority for a in arrivals}
        assert starts(played) == model(*workload.plain(), priorities), f"seed {seed}"


def test_with_priorities_sia_starts_every_job_when_its_naive_model_does():
    for seed in range(ROUNDS):
        rng = Random(seed)
        workload = random_workload(rng)
        options = random_choices(rng, workload.pools)
        forecast = rng.choice(["perfect", "none"])
        arrivals = with_priorities(rng, workload.arrivals)
        workload = Workload(workload.pools, with_urgent_jobs(workload.pools, arrivals))
        arrivals = workload.arrivals
        played = play_out(Sia, workload.pools, arrivals, forecast=forecast, options=options)
        priorities = {a.job.id: a.job.priority for a in arrivals}
        model = naive_policies.sia(*workload.plain(), choices(options, forecast), priorities)
        assert starts(played) == model, f"seed {seed}"


def random_changes(rng, arrivals):
    """Some jobs get another priority while they wait, if they still do."""
    span = int(arrivals[-1].job.submit) + 50
    return [
        (rng.randint(0, span), rng.choice(arrivals).job.id, rng.choice([-3, 0, 1, 2, 7]))
        for _ in range(len(arrivals))
    ]


def play_changing(owned, arrivals, changes):
    """Starts under FCFS; changes of jobs that do not wait are left out."""
    core = Core(owned, Fcfs(), SMALL)
    durations = {arrival.job.id: arrival.duration for arrival in arrivals}
    agenda, begun = {}, {}
    for arrival in arrivals:
        agenda.setdefault(arrival.job.submit, []).append(submitted(arrival.job.submit, arrival))
    for time, job_id, priority in sorted(changes):
        agenda.setdefault(time, []).append(PriorityChanged(time, job_id, priority))
    while agenda:
        now = min(agenda)
        events = agenda.pop(now)
        waits = {event.job.id for event in events if isinstance(event, JobSubmitted)}
        waits |= {job_id for job_id, known in core.state.jobs.items() if known.stream is None}
        told = [e for e in events if not isinstance(e, PriorityChanged) or e.job_id in waits]
        for job_id in started(core.step(now, told)):
            begun[job_id] = now
            end = now + durations[job_id]
            agenda.setdefault(end, []).append(JobFinished(end, job_id))
        core.check()
    return begun


def test_priorities_that_change_move_jobs_in_their_queues():
    moved = 0
    for seed in range(ROUNDS):
        rng = Random(seed)
        workload = random_workload(rng)
        changes = random_changes(rng, workload.arrivals)
        begun = play_changing(*workload, changes)
        assert begun == naive_policies.ranked_fcfs(*workload.plain(), {}, changes), f"seed {seed}"
        moved += begun != naive_policies.fcfs(*workload.plain())
    assert moved > ROUNDS // 4


@pytest.mark.parametrize("policy", ORDERED)
def test_a_priority_changed_on_arrival_works_as_one_given_at_submission(policy):
    for seed in range(budget(ci=12, soak=200)):
        rng = Random(seed)
        workload = random_workload(rng)
        arrivals = with_priorities(rng, workload.arrivals)
        changes = [
            PriorityChanged(a.job.submit, a.job.id, a.job.priority)
            for a in arrivals
            if a.job.priority
        ]
        plainly = [decisions for _, decisions in playing(policy, workload.pools, arrivals, ())]
        again = playing(policy, *workload, changes)
        assert [decisions for _, decisions in again] == plainly, f"seed {seed}"


def playing(policy, owned, arrivals, facts):
    core = Core(owned, policy(), SMALL)
    times = PerfectRunTimes({arrival.job.id: arrival.duration for arrival in arrivals})
    for now, _, decisions in play(core, arrivals, run_times=times, facts=facts):
        core.check()
        yield now, decisions


@pytest.mark.parametrize("policy", [MaxMin, Sia])
def test_pools_take_turns_whatever_the_priorities_of_their_jobs(policy):
    story = [
        *(job(f"{pool}1").pool(pool).runs(100) for pool in "ab"),
        job("a2").pool("a").at(1).runs(10),
        urgent(job("b2").pool("b").at(1).runs(10)),
    ]
    played = play_out(policy, pools(a=1, b=1, c=1), story)
    assert starts(played) == {"a1": 0, "b1": 0, "a2": 1, "b2": 11}


def test_sia_vc_heeds_a_priority_if_it_was_told_of_it_in_advance():
    story = [*(job(name).runs(10) for name in "pq"), urgent(job("r").runs(10))]
    assert starts(play_out(SiaVc, pools(a=1), story, checked=True)) == {"r": 0, "p": 10, "q": 20}


def test_sia_vc_heeds_no_other_priority():
    story = [job(name).runs(10) for name in "pqr"]
    core = Core(pools(a=1), SiaVc(), SMALL)
    core.step(0.0, [revealed(pools(a=1), story), *(submitted(0.0, told) for told in story)])
    core.step(1.0, [PriorityChanged(1.0, "r", 5)])
    core.check()
    assert started(core.step(10.0, [JobFinished(10.0, "p")])) == ["q"]
    core.check()


def test_a_promoted_job_of_las_keeps_what_it_has_attained():
    """Another priority is no reason to begin anew."""
    core = Core(pools(a=1), Las(LasParams((10.0,), 100.0)), SMALL)
    core.step(0.0, [submitted(0.0, job("old").runs(90))])
    core.step(10.0, [submitted(10.0, job("new").at(10).runs(90))])
    core.step(12.0, [PriorityChanged(12.0, "old", 0)])
    core.check()
    assert core.state.jobs["old"].stream is None
    assert core.policy.memory()["lives"][0][0] == 1
    assert len(core.policy.memory()["timers"]) == 2
    assert started(core.step(13.0, [PriorityChanged(13.0, "old", 1)])) == ["old"]


def test_themis_asks_its_clock_once():
    core = Core(pools(a=1), Themis(), SMALL)
    core.step(0.0, [submitted(0.0, job(name).runs(10)) for name in "pq"])
    clock = core.policy.memory()["clocks"]
    core.step(1.0, [PriorityChanged(1.0, "q", 3)])
    assert core.policy.memory()["clocks"] == clock
    core.check()


def test_in_cells_an_urgent_job_has_its_turn_first():
    story = [
        job("runs").gpus(8).runs(10),
        job("came").gpus(8).at(1).runs(200),
        urgent(job("soon").gpus(8).at(2).runs(200)),
    ]
    for policy in (Fcfs, MaxMin, HiveD, Sia, SiaRecall):
        played = in_cells(policy, pools(a=8), story)
        assert starts(played) == {"runs": 0, "soon": 10, "came": 210}, policy.__name__


def test_in_cells_turns_are_by_priority_when_it_changes():
    story = [job("runs").gpus(8).runs(10), *(job(n).gpus(8).at(1).runs(200) for n in "pqr")]
    changes = [PriorityChanged(2.0, "r", 2), PriorityChanged(3.0, "q", 3)]
    changes += [PriorityChanged(4.0, "q", 1)]
    for policy in (Fcfs, Sia, SiaRecall):
        played = in_cells(policy, pools(a=8), story, quotas=changes)
        assert starts(played) == {"runs": 0, "r": 10, "q": 210, "p": 410}, policy.__name__


def test_easy_backfills_urgent_jobs_first():
    story = [
        job("runs").gpus(3).runs(10),
        urgent(job("head").gpus(4).at(1).runs(5), 9),
        job("small").at(2).runs(8),
        urgent(job("urgent").at(3).runs(7)),
    ]
    core = Core(pools(a=4), Easy(), SMALL)
    core.step(0.0, [submitted(0.0, story[0])])
    core.step(1.0, [submitted(1.0, story[1])])
    core.step(3.0, [submitted(3.0, a) for a in story[2:]])
    core.check()
    assert core.state.jobs["urgent"].stream is not None
    assert core.state.jobs["small"].stream is None
